//go:build linux || darwin

package supervisor

import (
	"bytes"
	"os"
	"runtime"
	"strconv"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"curfew/internal/sys"
	"curfew/internal/wire"
)

// exitRefused is the exit code of a helper that does not serve. It must never go on as the
// program that it is a copy of.
const exitRefused = 125

// init takes a helper over. Of the packages whose imports are all initialised, Go initialises the
// one whose path sorts first, so each import of this package and of those below it can put this
// one behind many of the program's own packages. The imports runtime/debug, path/filepath,
// crypto/rand, math/big and net do that, and are not used here; adapter's
// TestTakeOverComesEarly has the list.
func init() {
	if !isSocket(wire.ControlFD) {
		return
	}
	name := processName()
	if name != wire.SupervisorName && name != wire.GuardName {
		if os.Getenv(wire.HelperVar) != "" {
			// It would go on as another copy of the program, which starts helpers of its own.
			refuse("this process was started as a helper, and does not look like one")
		}
		return
	}
	if why := checkDoor(); why != "" {
		refuse(why)
	}
	becomeTracker()
	denyAccess()
	runtime.LockOSThread()
	if name == wire.GuardName {
		syscall.Exit(serveGuard())
	}
	syscall.Exit(serve())
}

func refuse(why string) {
	_, _ = os.Stderr.WriteString("curfew: helper refused: " + why + "\n")
	syscall.Exit(exitRefused)
}

// firstArgument returns argv[0] from the beginning of /proc/PID/cmdline.
func firstArgument(b []byte) string {
	name, _, _ := bytes.Cut(b, []byte{0})
	return string(name)
}

func isSocket(fd int) bool {
	var st unix.Stat_t
	return unix.Fstat(fd, &st) == nil && st.Mode&unix.S_IFMT == unix.S_IFSOCK
}

// spareThreads is how many idle threads a helper keeps: the Go runtime aborts a process in which
// it cannot start a thread, and a fork bomb leaves none.
const spareThreads = 4

// spareFiles is how many descriptors a helper needs at least, beyond those that it starts with.
const spareFiles = 16

// prepareHelper makes this process fit to be a helper.
func prepareHelper() error {
	unix.CloseOnExec(wire.ControlFD)
	unix.CloseOnExec(wire.CallerFD)
	closeOthers()
	if err := checkFiles(); err != nil {
		return err // the runtime would abort
	}
	beResumedBy(wire.ControlFD)
	runtime.GOMAXPROCS(2)
	sys.Survive()
	// The runtime opens what it needs for timers at the first one, and aborts if it cannot. A
	// CLI can use up the descriptors later.
	time.Sleep(time.Nanosecond)

	room, _ := strconv.Atoi(os.Getenv(wire.RoomVar))
	_ = os.Unsetenv(wire.RoomVar) // the supervisors of this guard need not check
	startThreads(spareThreads, min(room, callerThreads))
	return nil
}

// startThreads makes the Go runtime keep idle threads: it takes one of them before it starts
// another, and never ends them. The passing ones end; they only show that there is room.
func startThreads(staying, passing int) {
	// Threads that are all blocked at once are all different.
	var ready, done sync.WaitGroup
	release := make(chan struct{})
	for i := range staying + passing {
		ready.Add(1)
		done.Add(1)
		go func() {
			runtime.LockOSThread()
			ready.Done()
			<-release
			if i < staying {
				runtime.UnlockOSThread() // else the thread ends with the goroutine
			}
			done.Done()
		}()
	}
	ready.Wait()
	close(release)
	done.Wait()
}

// checkFiles returns an error if this process cannot have spareFiles descriptors more.
func checkFiles() (err error) {
	var files []int
	for len(files) < spareFiles && err == nil {
		var fd int
		if fd, err = sys.Dup(wire.ControlFD); err == nil {
			files = append(files, fd)
		}
	}
	closeAll(files)
	return os.NewSyscallError("fcntl", err)
}

// closeOthers closes every descriptor that was inherited by accident. What was opened since the
// process was executed is close-on-exec, and stays: the Go runtime has some, if an init function
// before ours has used a timer.
//
// A number that is not below the limit of open files cannot be made again, so a leader can have
// it only by inheritance: such a descriptor stays.
func closeOthers() {
	limit := int(noFileLimit())
	eachInherited(func(fd int) {
		if fd < limit {
			unix.Close(fd)
		}
	})
}

// eachInherited calls do with each descriptor above wire.CallerFD that is not close-on-exec.
func eachInherited(do func(fd int)) {
	check := func(fd int) {
		if fd <= wire.CallerFD {
			return
		}
		if flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0); err == nil && flags&unix.FD_CLOEXEC == 0 {
			do(fd)
		}
	}
	if !eachOpen(check) {
		const likely = 4096 // there is no list
		for fd := range likely {
			check(fd)
		}
	}
}
