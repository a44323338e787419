//go:build linux || darwin

// Package supervisor is the helper between a caller and a CLI: the caller's own
// executable, started again, which starts the CLI, keeps hold of its tree and
// ends it. Importing the package is enough: when a process was started as a
// helper, the package's initialisation takes over and never returns.
//
// Both ends are here: Client and Pool are the caller's, serve is the helper's.
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

	"curfew/internal/wire"
	"curfew/proctree"
)

// exitRefused is the exit code of a helper that will not serve. It must never
// go on as the program that it is a copy of.
const exitRefused = 125

// init takes a helper over. Go initialises, of the packages whose imports are all
// initialised, the one whose path sorts first, so each import of this package and of
// those below it can put this one behind many of the program's own packages. Those of
// runtime/debug, path/filepath, crypto/rand, math/big and net do, and are not used here;
// adapter's TestTakeOverComesEarly holds the list.
func init() {
	if !isSocket(wire.ControlFD) {
		return
	}
	name := processName()
	if name != wire.SupervisorName && name != wire.GuardName {
		if os.Getenv(wire.HelperVar) != "" {
			// It would go on as another copy of the program, which starts
			// helpers of its own.
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

// firstArgument takes argv[0] from what /proc/PID/cmdline begins with.
func firstArgument(b []byte) string {
	name, _, _ := bytes.Cut(b, []byte{0})
	return string(name)
}

func isSocket(fd int) bool {
	var st unix.Stat_t
	return unix.Fstat(fd, &st) == nil && st.Mode&unix.S_IFMT == unix.S_IFSOCK
}

// spareThreads is how many idle threads a helper has ready: the Go runtime
// aborts when it cannot start one, and a bomb in the CLI uses up exactly that.
const spareThreads = 4

// spareFiles is how many descriptors a helper needs at the least, beyond those that it
// starts with.
const spareFiles = 16

// settle makes this process fit to be a helper.
func settle() error {
	unix.CloseOnExec(wire.ControlFD)
	unix.CloseOnExec(wire.CallerFD)
	closeOthers()
	if err := checkFiles(); err != nil {
		return err // the runtime would abort
	}
	beResumedBy(wire.ControlFD)
	runtime.GOMAXPROCS(2)
	proctree.Survive()
	// The runtime opens what it needs for timers at the first one, and aborts
	// if it cannot: a CLI can take that right away from us.
	time.Sleep(time.Nanosecond)

	room, _ := strconv.Atoi(os.Getenv(wire.RoomVar))
	_ = os.Unsetenv(wire.RoomVar) // the next helper need not
	startThreads(spareThreads, min(room, callerThreads))
	return nil
}

// startThreads makes the Go runtime have idle threads, of which it takes one before it
// starts another; it never ends them. The passing ones only show that they could be had.
func startThreads(staying, passing int) {
	// Threads that are all blocked at once are all different.
	var ready, over sync.WaitGroup
	release := make(chan struct{})
	for i := range staying + passing {
		ready.Add(1)
		over.Add(1)
		go func() {
			runtime.LockOSThread()
			ready.Done()
			<-release
			if i < staying {
				runtime.UnlockOSThread() // or the thread ends with the goroutine
			}
			over.Done()
		}()
	}
	ready.Wait()
	close(release)
	over.Wait()
}

// checkFiles returns an error if there are not enough descriptors to be had.
func checkFiles() (err error) {
	var files []int
	for len(files) < spareFiles && err == nil {
		var fd int
		if fd, err = unix.FcntlInt(wire.ControlFD, unix.F_DUPFD_CLOEXEC, 0); err == nil {
			files = append(files, fd)
		}
	}
	closeAll(files)
	return os.NewSyscallError("fcntl", err)
}

// closeOthers closes every descriptor that came along by accident. What was
// opened since the process was executed is close-on-exec, and stays: the Go
// runtime has some, if an init function before ours has used a timer.
//
// From the limit of open files on a number cannot be made again, so that the leader
// can have it only by inheritance: such a descriptor stays.
func closeOthers() {
	limit := int(noFileLimit())
	eachInherited(func(fd int) {
		if fd < limit {
			unix.Close(fd)
		}
	})
}

// eachInherited calls do with each descriptor above callerFD that is not close-on-exec.
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
		const likely = 4096 // without a list
		for fd := range likely {
			check(fd)
		}
	}
}
