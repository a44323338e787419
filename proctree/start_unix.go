//go:build linux || darwin

package proctree

import (
	"os/signal"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"curfew/internal/fault"
	"curfew/internal/sys"
)

// start is the start of a leader or a sibling. The tree's thread begins it and ends it;
// the second thread, which may block in the kernel, carries it out in between.
type start struct {
	spec     *Spec
	underWay bool
	struck   bool        // a strike has ended it, or tries to
	canceled atomic.Bool // it must not be tried again

	// The result. The second thread writes it before done.
	done atomic.Bool
	pid  int
	err  *StartError
}

func (s *start) begin(spec *Spec) {
	s.spec, s.pid, s.err = spec, 0, nil
	s.underWay, s.struck = true, false
	s.canceled.Store(false)
	sys.SetIgnored(syscall.SIGHUP, spec.IgnoreHangup)
	sys.SetIgnored(syscall.SIGINT, spec.IgnoreInterrupt)
}

// strike makes sure that a strike on what was forked for the start ends it.
func (s *start) strike() {
	s.canceled.Store(true)
	s.struck = true
}

// finish reports whether the second thread has come to the end since the last call.
func (s *start) finish() bool {
	if !s.done.Swap(false) {
		return false
	}
	s.underWay = false
	return true
}

// errNeverExecuted is for a leader that was ended before it executed anything.
func errNeverExecuted() *StartError {
	return &StartError{Op: "exec", Err: syscall.ECANCELED, Killed: true}
}

// busyFor is how long an executable that is open for writing is tried again. Usually
// another process has just forked and not executed yet.
const busyFor = 300 * time.Millisecond

// execute forks and executes s.spec on the second thread. It tries again while the
// executable is busy, and when again has changed what the failure may be due to.
func (s *start) execute(attr *syscall.ProcAttr, root int, again func() bool) (pid int, err *StartError) {
	if err := sys.Call(fault.Fchdir, func() error { return unix.Fchdir(s.spec.Dir) }); err != nil {
		return 0, &StartError{Op: "chdir", Err: err}
	}
	defer unix.Fchdir(root)
	attr.Env = s.spec.Env
	for _, fd := range s.spec.Files {
		attr.Files = append(attr.Files, uintptr(fd))
	}
	for began, wait := time.Now(), time.Millisecond; ; wait *= 2 {
		if s.canceled.Load() {
			return 0, errNeverExecuted()
		}
		pid, err := forkExec(s.spec, attr)
		switch {
		case err == nil:
			return pid, nil
		case s.canceled.Load():
			// Everything that was forked has been struck, so we may have caused this.
			return 0, &StartError{Op: "exec", Err: err, Killed: true}
		case again():
		case err == syscall.ETXTBSY && time.Since(began) < busyFor:
			sys.Pause(wait)
		default:
			return 0, &StartError{Op: "exec", Err: err}
		}
	}
}

func forkExec(spec *Spec, attr *syscall.ProcAttr) (int, error) {
	if errno := fault.At(fault.ForkExec); errno != 0 {
		return 0, errno
	}
	return syscall.ForkExec(spec.Path, spec.Argv, attr)
}

// disown makes the system reap our children from now on.
func disown() {
	signal.Ignore(syscall.SIGCHLD)
	for { // each that has died before
		var status syscall.WaitStatus
		if pid, err := sys.Wait4(-1, &status, syscall.WNOHANG|waitAll, nil); err != nil || pid <= 0 {
			return
		}
	}
}
