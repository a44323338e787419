package supervisor

import (
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"curfew/internal/sys"
	"curfew/proctree"
)

// A helper is known by its pidfd. (Linux 5.3 has pidfds and no waitid for them; there our
// child is reaped by its pid.)

// identity is not needed where there are pidfds.
type identity struct{}

func identify(int) identity { return identity{} }

// withPidfd calls do with the pidfd, which stays open meanwhile.
func (p *process) withPidfd(do func(pidfd int) error) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.pidfd < 0 {
		return unix.ESRCH
	}
	return do(p.pidfd)
}

// Kill ends the process itself. It is for a helper that does not answer: nothing holds then
// what that helper held.
func (p *process) Kill() {
	_ = p.withPidfd(proctree.KillPidfd) // ESRCH: it is gone already
}

// hasPID reports whether the pid is still that of the process, because it is not reaped.
func (p *process) hasPID() bool { return p.withPidfd(proctree.ProbePidfd) == nil }

// resume continues the process if it is suspended.
func (p *process) resume() error { return p.withPidfd(proctree.ResumePidfd) }

// ended reports whether the process has ended, and reaps it if it is our child. A caller
// that reaps every child itself, or ignores SIGCHLD, has done that already.
func (p *process) ended() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.guarded {
		if p.pidfd < 0 {
			return true // that cannot be known; it ends with its socket
		}
		fds := [1]unix.PollFd{{Fd: int32(p.pidfd), Events: unix.POLLIN}}
		n, _ := unix.Poll(fds[:], 0)
		return n > 0
	}
	if p.child == 0 || p.pidfd < 0 {
		return p.reapChild()
	}
	// By the pidfd: if the caller reaps every child itself, the pid can be another child's
	// by now.
	var info unix.Siginfo
	err := sys.Retry(func() error { return unix.Waitid(unix.P_PIDFD, p.pidfd, &info, unix.WEXITED|unix.WNOHANG, nil) })
	switch {
	case err == nil && info.Signo == 0:
		return false
	case err == nil:
		p.child, p.exit = 0, waitStatus(&info)
		return true
	case err == unix.ECHILD:
		p.child = 0
		return true
	}
	return p.reapChild() // Linux 5.3 answers EINVAL
}

// waitStatus turns the result of waitid into that of wait4. The kernel's siginfo_t has pid,
// uid and status after three ints, on a 64-bit system with four bytes between.
func waitStatus(info *unix.Siginfo) *unix.WaitStatus {
	const cldExited = 1
	after := unsafe.Offsetof(info.Code) + 4
	if unsafe.Sizeof(uintptr(0)) == 8 {
		after += 4
	}
	status := unix.WaitStatus(*(*int32)(unsafe.Add(unsafe.Pointer(info), after+8)))
	if info.Code == cldExited {
		status <<= 8
	}
	return &status
}

// awaitEnd waits until the process is dead and its children have another parent, and does
// not reap it. It reports false where it cannot wait for that, and true also when until has
// come.
func (p *process) awaitEnd(until time.Time) bool {
	// The wait is for a descriptor of its own: Close can close the other.
	fd := -1
	_ = p.withPidfd(func(pidfd int) (err error) {
		fd, err = sys.Dup(pidfd)
		return err
	})
	if fd < 0 {
		return false
	}
	defer unix.Close(fd)
	for {
		look := time.Now().Add(lookSoon)
		if look.After(until) {
			look = until
		}
		fds := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
		wait(fds, look)
		// A pidfd does not become readable while a tracer keeps the zombie.
		if fds[0].Revents != 0 || p.pid != 0 && proctree.Dead(p.pid) && p.hasPID() || !time.Now().Before(until) {
			return true
		}
	}
}
