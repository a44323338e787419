package supervisor

import (
	"bytes"
	"os"
	"runtime"
	"runtime/debug"
	"strconv"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"curfew/proctree"
)

// argv[0] of the helpers, and what people see in ps.
const (
	helperName = "curfew-supervisor"
	guardName  = "curfew-guard"
)

// The descriptors a helper is started with, besides /dev/null on 0 to 2.
const (
	controlFD = 3
	callerFD  = 4 // a pidfd of the caller, or /dev/null where there are none
)

// exitRefused is the exit code of a helper that will not serve. It must never
// go on as the program that it is a copy of.
const exitRefused = 125

// helperVar is in the environment of every helper, and of nothing else. It tells
// a helper that was not taken over: an init function that ran before ours can
// have changed os.Args, or started the program's own work.
const helperVar = "CURFEW_HELPER"

func init() {
	if !isSocket(controlFD) {
		return
	}
	name := processName()
	if name != helperName && name != guardName {
		if os.Getenv(helperVar) != "" {
			// It would go on as another copy of the program, which starts
			// helpers of its own.
			refuse("this process was started as a helper, and does not look like one")
		}
		return
	}
	if why := checkDoor(); why != "" {
		refuse(why)
	}
	runtime.LockOSThread()
	if name == guardName {
		serveGuard()
	} else {
		serve()
	}
	syscall.Exit(0)
}

func refuse(why string) {
	_, _ = os.Stderr.WriteString("curfew: helper refused: " + why + "\n")
	syscall.Exit(exitRefused)
}

// processName is argv[0] as the kernel has it: os.Args can have been changed by
// an init function that ran before.
func processName() string {
	var buf [64]byte
	b, err := readSmallPart("/proc/self/cmdline", buf[:])
	if err != nil || len(b) == 0 {
		if len(os.Args) == 0 {
			return ""
		}
		return os.Args[0]
	}
	return firstArgument(b)
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

// checkDoor says why this process must not serve the other end of its socket:
// it has privileges that the other end may not have.
func checkDoor() string {
	const atSecure = 23
	auxv, err := unix.Auxv()
	if err != nil {
		return "the auxiliary vector cannot be read: " + err.Error()
	}
	secure := true
	for _, e := range auxv {
		if e[0] == atSecure {
			secure = e[1] != 0
		}
	}
	if secure {
		return "the executable gives privileges (setuid, setgid or file capabilities)"
	}
	cred, err := unix.GetsockoptUcred(controlFD, unix.SOL_SOCKET, unix.SO_PEERCRED)
	if err != nil {
		return "the peer's credentials cannot be read: " + err.Error()
	}
	if int(cred.Uid) != unix.Getuid() || int(cred.Uid) != unix.Geteuid() {
		return "the peer has another uid"
	}
	return ""
}

// spareThreads is how many idle threads a helper has ready: the Go runtime
// aborts when it cannot start one, and a bomb in the CLI uses up exactly that.
const spareThreads = 4

// memoryLimit is where the collector, which is off, would set in after all.
// Between two invocations it is run by hand.
const memoryLimit = 64 << 20

// settle makes this process fit to be a helper.
func settle() {
	unix.CloseOnExec(controlFD)
	unix.CloseOnExec(callerFD)
	closeOthers()
	debug.SetGCPercent(-1)
	debug.SetMemoryLimit(memoryLimit)
	runtime.GOMAXPROCS(2)
	proctree.Survive()
	// The runtime opens what it needs for timers at the first one, and aborts
	// if it cannot: a CLI can take that right away from us.
	time.Sleep(time.Nanosecond)

	// Threads that are all blocked at once are all different; afterwards they
	// idle, and the runtime takes one of them before it starts another.
	var ready, over sync.WaitGroup
	release := make(chan struct{})
	for range spareThreads {
		ready.Add(1)
		over.Add(1)
		go func() {
			runtime.LockOSThread()
			ready.Done()
			<-release
			runtime.UnlockOSThread()
			over.Done()
		}()
	}
	ready.Wait()
	close(release)
	over.Wait()
}

// closeOthers closes every descriptor that came along by accident. What was
// opened since the process was executed is close-on-exec, and stays: the Go
// runtime has some, if an init function before ours has used a timer.
func closeOthers() {
	inherited := func(fd int) bool {
		flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0)
		return err == nil && flags&unix.FD_CLOEXEC == 0
	}
	dir, err := unix.Open("/proc/self/fd", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		const likely = 4096 // without /proc there is no list
		for fd := callerFD + 1; fd < likely; fd++ {
			if inherited(fd) {
				unix.Close(fd)
			}
		}
		return
	}
	defer unix.Close(dir)
	var buf [4096]byte
	for {
		n, err := unix.Getdents(dir, buf[:])
		if err != nil || n <= 0 {
			return
		}
		_, _, names := unix.ParseDirent(buf[:n], -1, nil)
		for _, name := range names {
			if fd, err := strconv.Atoi(name); err == nil && fd > callerFD && inherited(fd) {
				unix.Close(fd)
			}
		}
	}
}
