package proctree

// What the kernel answers about children of this process.

import (
	"math"
	"sync"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"

	"curfew/internal/fault"
	"curfew/outcome"
)

// childState is what a process is to this one.
type childState int

const (
	childAlive childState = iota
	childDead             // exited, not reaped
	childNone             // no child of ours has this pid
)

// siginfo is the part of the kernel's siginfo_t that waitid fills in, on a
// 64-bit system: three ints, padding, then pid, uid and status.
type siginfo struct {
	signo, errno, code int32
	_                  int32
	pid                int32
	uid                uint32
	status             int32
	_                  [100]byte
}

// stateOf returns what pid is to us, and changes nothing.
func stateOf(pid int) childState {
	info, errno := peek(pid)
	switch {
	case errno != 0:
		return childNone
	case int(info.pid) == pid && (info.code == cldExited || info.code == cldKilled || info.code == cldDumped):
		return childDead
	}
	return childAlive
}

// peek asks whether pid, a child of ours, has exited, and does not reap it.
func peek(pid int) (siginfo, syscall.Errno) {
	return waitFor(unix.P_PID, pid, unix.WEXITED|unix.WNOHANG|unix.WNOWAIT)
}

// The values of si_code for SIGCHLD that mean an end; the others are for a
// child that was stopped or continued.
const (
	cldExited = 1
	cldKilled = 2
	cldDumped = 3
)

// waitFor is waitid for any kind of child. It blocks unless the options prevent it, and
// keeps its thread.
func waitFor(kind, id, options int) (info siginfo, errno syscall.Errno) {
	for {
		if errno = fault.At(fault.Waitid); errno == 0 {
			_, _, errno = unix.RawSyscall6(unix.SYS_WAITID, uintptr(kind), uintptr(id), uintptr(unsafe.Pointer(&info)),
				uintptr(options|unix.WALL), 0, 0)
		}
		if errno != unix.EINTR {
			return info, errno
		}
	}
}

// childless asks the kernel whether we have any child, dead or alive.
func childless() bool {
	_, errno := waitFor(unix.P_ALL, 0, unix.WEXITED|unix.WNOHANG|unix.WNOWAIT)
	return errno == unix.ECHILD
}

// childrenVanish reports whether the kernel knows CLONE_AUTOREAP (Linux 7.1,
// clone(2)), which needs no privilege: a child made with it is gone when it has ended,
// whichever process is its parent by then. The kernel answers "invalid argument" to a flag
// that it does not know, and to one that it knows that there is no such cgroup: no descriptor
// is as high as the one that it is given. Where seccomp forbids the question, the processes
// below cannot use the flag either.
var childrenVanish = sync.OnceValue(func() bool {
	args := struct {
		flags, pidfd, childTID, parentTID, exitSignal, stack, stackSize, tls, setTID, setTIDSize, cgroup uint64
	}{flags: unix.CLONE_AUTOREAP | unix.CLONE_INTO_CGROUP, cgroup: math.MaxInt32}
	pid, _, errno := unix.RawSyscall(unix.SYS_CLONE3, uintptr(unsafe.Pointer(&args)), unsafe.Sizeof(args), 0)
	if errno == 0 && pid == 0 {
		for { // no Linux comes here
			_, _, _ = unix.RawSyscall(unix.SYS_EXIT_GROUP, 0, 0, 0)
		}
	}
	return errno != unix.EINVAL && errno != unix.ENOSYS && errno != unix.EPERM
})

// neverExecuted reports whether pid, an unreaped child, is still what it was
// when it was forked.
func (p *procfs) neverExecuted(pid int) bool {
	var s stat
	return p.stat(pid, &s) && s.flags&forkNoExec != 0
}

// exitFD returns a descriptor that is readable when pid, an unreaped child, has exited; -1
// if there is none.
func exitFD(pid int) int {
	fd, err := pidfdOpen(pid)
	if err != nil {
		return -1
	}
	return fd
}

// exitOf returns how pid, an unreaped child, has ended; nil if it has not.
func exitOf(pid int) *outcome.Exit {
	info, errno := peek(pid)
	switch {
	case errno != 0 || int(info.pid) != pid:
		return nil
	case info.code == cldExited:
		return &outcome.Exit{Code: int(info.status)}
	case info.code == cldKilled, info.code == cldDumped:
		return &outcome.Exit{Code: -1, Signal: int(info.status), CoreDumped: info.code == cldDumped}
	}
	return nil
}

// What wait4 awaits, and the unit in which it reports the memory used.
const (
	waitAll = unix.WALL
	rssUnit = 1 << 10
)
