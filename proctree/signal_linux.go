package proctree

import (
	"errors"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"

	"curfew/internal/fault"
	"curfew/internal/sys"
)

// This is the only file that sends signals. Three kinds of target are possible,
// and none can be a stranger: a pidfd that was checked after it was opened; where
// there is none, a child that only this process reaps, so that its pid cannot be
// given to another process; and a cgroup that was created for the tree. Nothing is ever sent
// to a process group, or to a pid that means "all processes" or init.

// errNotOurs refuses a pid that is not an unreaped child of this process.
var errNotOurs = errors.New("proctree: signal a process: it is not an unreaped child of this one")

// target is a process that is about to be signalled. It cannot become another process
// while it is held: pidfd stands for it. Where pidfd is -1, because there is none, it is a
// child of ours that only this process can reap.
type target struct {
	pid, pidfd int
	own        bool // a child of ours
}

// meanwhile is called before each step on the way to a signal ("open", "check", "send")
// and after each read of OnlySiblings: a test lets a child vanish there.
var meanwhile = func(next string, pid int) {}

// holdChild holds pid if it is a living child of ours. The pidfd comes first and the
// question after it: if the pidfd's process still has its number when a signal is
// sent, it has had it all the time, and was our child when the kernel was asked. A list
// proves nothing: its numbers may be strangers' (it can be the /proc of another pid
// namespace), and since Linux 7.1 a child can disappear without being reaped by us.
// spare points to a descriptor that is closed if there is no other left, and that the caller
// opens again afterwards; nil if there is no such descriptor.
func holdChild(pid int, spare *int) (m target, err error) {
	if pid <= 1 {
		panic("proctree: hold a child: the pid is not that of a single process")
	}
	meanwhile("open", pid)
	m = target{pid: pid, own: true}
	if m.pidfd, err = pidfdOpen(pid); (err == unix.EMFILE || err == unix.ENFILE) && spare != nil && *spare >= 0 {
		sys.RawClose(*spare)
		*spare = -1
		m.pidfd, err = pidfdOpen(pid)
	}
	if err == unix.ESRCH {
		return m, errNotOurs
	}
	meanwhile("check", pid)
	switch stateOf(pid) {
	case childNone:
		err = errNotOurs
	case childDead:
		err = unix.ESRCH
	default:
		return m, nil
	}
	if m.pidfd >= 0 {
		sys.RawClose(m.pidfd)
	}
	return m, err
}

// send sends sig to m: by its number where the kernel has no pidfds or refuses them, and
// for want of descriptors.
func (m *target) send(sig syscall.Signal) error {
	if sig <= 0 {
		panic("proctree: send a signal: there is no such signal")
	}
	meanwhile("send", m.pid)
	if m.pidfd >= 0 {
		err := signalPidfd(m.pidfd, sig)
		if err != unix.ENOSYS && err != unix.EPERM || !m.own {
			return err
		}
	}
	return killChild(m.pid, sig)
}

// killChild sends sig to a child by its number, which is exact as long as only the
// calling goroutine reaps.
func killChild(pid int, sig syscall.Signal) error {
	switch {
	case kernelReaps || childrenVanish():
		return unix.EPERM
	case stateOf(pid) != childAlive:
		return errNotOurs
	}
	if errno := fault.At(fault.Kill); errno != 0 {
		return errno
	}
	if _, _, errno := unix.RawSyscall(unix.SYS_KILL, uintptr(pid), uintptr(sig), 0); errno != 0 {
		return errno
	}
	return nil
}

// signalChild sends sig to pid if it is a living child of this process, and refuses
// otherwise.
func signalChild(pid int, sig syscall.Signal) error {
	m, err := holdChild(pid, nil)
	if err != nil {
		return err
	}
	if m.pidfd >= 0 {
		defer sys.RawClose(m.pidfd)
	}
	return m.send(sig)
}

// kernelReaps means that children are gone as soon as they exit: see setSIGCHLD.
var kernelReaps bool

// exists reports whether m, dead or alive, still has its pid.
func (m *target) exists() bool {
	return m.pidfd >= 0 && unreaped(m.pidfd) || m.pidfd < 0 && stateOf(m.pid) != childNone
}

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

// killCgroup makes the kernel send SIGKILL to all processes in a cgroup and in those below
// it, and to what they are forking. kill is its cgroup.kill. If that fails the next strike
// tries again.
func killCgroup(kill int) bool {
	if fault.At(fault.Write) != 0 {
		return false
	}
	one := [1]byte{'1'}
	_, _, errno := unix.RawSyscall6(unix.SYS_PWRITE64, uintptr(kill), uintptr(unsafe.Pointer(&one[0])), 1, 0, 0, 0)
	return errno == 0
}

// signal sends a signal to the process of a row, which it holds by a pidfd while it looks
// whether that is the one.
func (p *processTable) signal(r *tableRow, sig syscall.Signal) error {
	if r.PID <= 1 || r.PID == unix.Getpid() {
		return errNotOurs
	}
	fd, err := pidfdOpen(r.PID)
	if err != nil {
		return err
	}
	defer sys.RawClose(fd)
	var s stat
	if !p.stat(r.PID, &s) || s.start != r.Start || !unreaped(fd) {
		return syscall.ESRCH
	}
	return signalPidfd(fd, sig)
}
