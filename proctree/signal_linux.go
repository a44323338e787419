package proctree

import (
	"errors"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"

	"curfew/internal/fault"
)

// This is the only file that sends signals. Three kinds of target are possible,
// and none can be a stranger: a child of ours that nobody but us reaps, so that
// its pid cannot be given to anyone else; a pidfd; and a cgroup that was made for
// the tree. Nothing is ever sent to a process group, or to a pid that means
// "everyone" or init.

// errNotOurs refuses a pid that is not an unreaped child of this process.
var errNotOurs = errors.New("not an unreaped child of this process")

// childState is what awaitChild saw.
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

// stateOf says what pid is to us, and changes nothing.
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
func peek(pid int) (info siginfo, errno syscall.Errno) {
	for {
		if errno = fault.At(fault.Waitid); errno == 0 {
			_, _, errno = unix.RawSyscall6(unix.SYS_WAITID, unix.P_PID, uintptr(pid), uintptr(unsafe.Pointer(&info)),
				unix.WEXITED|unix.WNOHANG|unix.WNOWAIT|unix.WALL, 0, 0)
		}
		if errno != unix.EINTR {
			return info, errno
		}
	}
}

// The values of si_code for SIGCHLD that mean an end; the others tell of a
// child that was stopped or continued.
const (
	cldExited = 1
	cldKilled = 2
	cldDumped = 3
)

// signalChild sends sig to pid if it is an unreaped child of this process, and
// refuses otherwise. The numbers that /proc lists may be strangers' (it can be
// the /proc of another pid namespace), so the kernel is asked first; between
// the question and the signal the answer cannot change, because only the
// calling goroutine reaps. A child that has exited is left alone.
func signalChild(pid int, sig syscall.Signal) error {
	if pid <= 1 || sig <= 0 {
		panic("proctree: signal to a pid that is no single process, or no signal")
	}
	switch stateOf(pid) {
	case childNone:
		return errNotOurs
	case childDead:
		return syscall.ESRCH
	}
	if errno := fault.At(fault.Kill); errno != 0 {
		return errno
	}
	if _, _, errno := unix.RawSyscall(unix.SYS_KILL, uintptr(pid), uintptr(sig), 0); errno != 0 {
		return errno
	}
	return nil
}

// signalUnreaped sends sig to pid, a child that is not reaped.
func signalUnreaped(pid int, sig syscall.Signal) error { return signalChild(pid, sig) }

// signalPidfd sends sig to the process that fd stands for.
func signalPidfd(fd int, sig syscall.Signal) error {
	if errno := fault.At(fault.PidfdSendSignal); errno != 0 {
		return errno
	}
	if _, _, errno := unix.RawSyscall6(unix.SYS_PIDFD_SEND_SIGNAL, uintptr(fd), uintptr(sig), 0, 0, 0, 0); errno != 0 {
		return errno
	}
	return nil
}

// unreaped reports whether the process that fd stands for still has its pid: it
// is alive, or a zombie.
func unreaped(fd int) bool {
	errno := fault.At(fault.PidfdSendSignal)
	if errno == 0 {
		_, _, errno = unix.RawSyscall6(unix.SYS_PIDFD_SEND_SIGNAL, uintptr(fd), 0, 0, 0, 0, 0)
	}
	return errno == 0 || errno == unix.EPERM
}

// pidfdOpen returns a pidfd for pid, close-on-exec.
func pidfdOpen(pid int) (int, error) {
	if errno := fault.At(fault.PidfdOpen); errno != 0 {
		return -1, errno
	}
	fd, _, errno := unix.RawSyscall(unix.SYS_PIDFD_OPEN, uintptr(pid), 0, 0)
	if errno != 0 {
		return -1, errno
	}
	return int(fd), nil
}

// KillPidfd sends SIGKILL to the process that fd, a pidfd, stands for. It is
// for a caller that ends a helper of its own.
func KillPidfd(fd int) error { return signalPidfd(fd, syscall.SIGKILL) }

// ResumePidfd sends SIGCONT to it in the same way.
func ResumePidfd(fd int) error { return signalPidfd(fd, syscall.SIGCONT) }

// killGroup has the kernel send SIGKILL to all in a cgroup and in those below it,
// and to whom they are forking. kill is its cgroup.kill.
func killGroup(kill int) {
	if fault.At(fault.Write) != 0 {
		return // the next strike tries again
	}
	one := [1]byte{'1'}
	_, _, _ = unix.RawSyscall6(unix.SYS_PWRITE64, uintptr(kill), uintptr(unsafe.Pointer(&one[0])), 1, 0, 0, 0)
}
