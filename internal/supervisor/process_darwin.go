package supervisor

import (
	"time"

	"golang.org/x/sys/unix"

	"curfew/proctree"
)

// A helper is known by its pid and when that was given to it: the pid alone could be another
// process's, if the caller reaps every child itself.

type identity = proctree.Identity

func identify(pid int) identity {
	i, err := proctree.Identify(pid)
	if err != nil {
		return identity{} // no process has this one
	}
	return i
}

// Kill ends the process itself. It is for a helper that does not answer: nothing holds then
// what that helper held.
func (p *process) Kill() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.child != 0 {
		_ = p.exact.Kill() // ESRCH: it is gone already
	}
}

// hasPID reports whether the pid is still that of the process, because it is not reaped.
func (p *process) hasPID() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.child != 0
}

// resume continues the process if it is suspended.
func (p *process) resume() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.child == 0 {
		return unix.ESRCH
	}
	return p.exact.Resume()
}

// ended reports whether the process has ended, and reaps it. A caller that reaps every child
// itself, or ignores SIGCHLD, has done that already.
func (p *process) ended() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.reapChild()
}

// awaitEnd waits until the process is dead, and does not reap it. It reports whether it is.
func (p *process) awaitEnd(until time.Time) bool {
	for pause := time.Millisecond; ; pause = min(2*pause, 20*time.Millisecond) {
		p.mu.Lock()
		gone := p.child == 0 || p.exact.HasExited()
		p.mu.Unlock()
		if gone || !time.Now().Before(until) {
			return gone
		}
		time.Sleep(min(pause, time.Until(until)))
	}
}
