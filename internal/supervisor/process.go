//go:build linux || darwin

package supervisor

import (
	"strconv"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"curfew/internal/sys"
	"curfew/proctree"
)

// process is a helper as a process, seen from its caller. Its methods are safe for
// concurrent use: the clients of all supervisors of a guard share that guard.
type process struct {
	pid     int  // 0: not known
	guarded bool // it is a guard's child, which the guard reaps

	mu    sync.Mutex
	pidfd int              // -1 where the kernel has none, and once the end is known
	exact identity         // where the kernel has no pidfd
	child int              // its pid while it is our child that is not reaped; else 0
	exit  *unix.WaitStatus // nil: not ended, or not known
}

func (p *process) dropPidfd() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.pidfd >= 0 {
		unix.Close(p.pidfd)
		p.pidfd = -1
	}
}

// Suspended reports whether the process is stopped by a signal, so that it cannot answer.
func (p *process) Suspended() bool {
	return p.pid != 0 && proctree.Suspended(p.pid) && p.hasPID() // in this order
}

// wake resumes the process if it is suspended. No other process resumes a guard, or a supervisor
// without a guard. The error is why it cannot be resumed.
func (p *process) wake() (suspended bool, err error) {
	if !p.Suspended() {
		return false, nil
	}
	return true, p.resume()
}

// reapChild reaps our child by its pid, if it has ended, and reports whether there is none
// any more. p.mu is held.
func (p *process) reapChild() bool {
	if p.child == 0 {
		return true
	}
	var status unix.WaitStatus
	pid := 0
	err := sys.Retry(func() (err error) {
		pid, err = unix.Wait4(p.child, &status, unix.WNOHANG, nil)
		return err
	})
	switch {
	case err == nil && pid != p.child:
		return false
	case err == nil:
		p.exit = &status
	}
	p.child = 0 // the number is free now, and must not be used
	return true
}

// awaitReaped waits until the process has ended and is reaped, for at most limit, and
// reports whether it is. A guard's child counts as reaped when it has ended.
func (p *process) awaitReaped(limit time.Duration) bool {
	for end := time.Now().Add(limit); !p.ended(); {
		if !time.Now().Before(end) {
			return false
		}
		if !p.awaitEnd(end) {
			time.Sleep(min(time.Until(end), time.Millisecond))
		}
	}
	p.dropPidfd()
	return true
}

// exitedClean reports whether the process is known to have ended with exit code 0.
func (p *process) exitedClean() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.exit != nil && *p.exit == 0
}

// describeEnd returns for an error message how the process has ended, as far as that is known: the
// guard reaps its children.
func (p *process) describeEnd() string {
	p.awaitEnd(time.Now().Add(reapLimit))
	p.ended()
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.exit == nil:
		return ""
	case p.exit.Signaled():
		return ", by signal " + p.exit.Signal().String()
	}
	return ", with exit status " + strconv.Itoa(p.exit.ExitStatus())
}
