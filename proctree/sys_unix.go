//go:build linux || darwin

package proctree

import (
	"os"
	"os/signal"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"curfew/internal/fault"
	"curfew/outcome"
)

// OpenFile opens a file close-on-exec, however often a signal interrupts that.
func OpenFile(path string, flags int) (int, error) {
	for {
		fd, errno := -1, fault.At(fault.Open)
		err := error(errno)
		if errno == 0 {
			fd, err = unix.Open(path, flags|unix.O_CLOEXEC, 0)
		}
		if err != unix.EINTR {
			return fd, err
		}
	}
}

// caught gets the signals that this process survives. It is never read.
var caught = make(chan os.Signal, 1)

// Survive makes the process outlive the signals that a CLI, or somebody at a
// terminal, may send it. They are caught, not ignored: the leader would inherit
// that.
func Survive() {
	signal.Notify(caught, syscall.SIGHUP, syscall.SIGINT, syscall.SIGQUIT, syscall.SIGTERM)
}

func disposition(sig os.Signal, ignore bool) {
	switch {
	case ignore == signal.Ignored(sig):
	case ignore:
		signal.Ignore(sig)
	default:
		signal.Notify(caught, sig)
	}
}

// disown has the system reap our children from now on.
func disown() {
	signal.Ignore(syscall.SIGCHLD)
	for { // each that has died before
		var ws syscall.WaitStatus
		if pid, err := syscall.Wait4(-1, &ws, syscall.WNOHANG|waitAll, nil); err != syscall.EINTR && pid <= 0 {
			return
		}
	}
}

// busyFor is how long an executable that is open for writing is tried again. It
// is usually a matter of a fork elsewhere that has not executed yet.
const busyFor = 300 * time.Millisecond

// execute starts spec, and tries again while its executable is busy, and when
// again has changed something because of which it may have failed.
func execute(spec *Spec, attr *syscall.ProcAttr, canceled *atomic.Bool, again func() bool) (int, *StartError) {
	for began, wait := time.Now(), time.Millisecond; ; wait *= 2 {
		if canceled.Load() {
			return 0, &StartError{Op: "exec", Err: syscall.ECANCELED, Killed: true}
		}
		pid, err := forkExec(spec, attr)
		switch {
		case err == nil:
			return pid, nil
		case canceled.Load():
			// All there was has been struck, so a failure now may be our doing.
			return 0, &StartError{Op: "exec", Err: err, Killed: true}
		case again():
		case err == syscall.ETXTBSY && time.Since(began) < busyFor:
			Pause(wait)
		default:
			return 0, &StartError{Op: "exec", Err: err}
		}
	}
}

func fchdir(dir int) error {
	if errno := fault.At(fault.Fchdir); errno != 0 {
		return errno
	}
	return unix.Fchdir(dir)
}

func forkExec(spec *Spec, attr *syscall.ProcAttr) (int, error) {
	if errno := fault.At(fault.ForkExec); errno != 0 {
		return 0, errno
	}
	return syscall.ForkExec(spec.Path, spec.Argv, attr)
}

// Describe is m in the words of an outcome.
func (m Member) Describe() outcome.Process {
	return outcome.Process{PID: m.PID, Start: startedAt(m.Start), Name: m.Name}
}
