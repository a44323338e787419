package main

import (
	"errors"
	"io/fs"
	"os/exec"
	"syscall"

	"curfew/outcome"
)

// The exit codes that are curfew's own.
const (
	exitNotEmpty      = 122 // the tree could not be shown to be empty
	exitStopped       = 123 // stopped for a cause without a code of its own, or the output was lost
	exitTimeout       = 124
	exitFailed        = 125 // used wrongly, or failed before the start
	exitNotExecutable = 126 // found, but it cannot be executed
	exitNotFound      = 127
	exitSignal        = 128 // plus the number of a signal
)

// exitCode returns the exit code for an outcome. sig is the signal that stopped curfew, 0 if
// there was none. If several of these are true, the first one counts: the CLI could not be
// started; the tree could not be shown to have ended; a signal to curfew, a timeout or another
// stop ended it; it ended by itself.
func exitCode(o outcome.Outcome, sig syscall.Signal) int {
	if o.Cause == outcome.CauseStartFailed {
		return startFailed(o.Err)
	}
	switch o.Cleanup.Result {
	case outcome.CleanupEmpty, outcome.CleanupLeft, "": // "": there was no tree
	default:
		return exitNotEmpty
	}
	switch {
	case o.Status == outcome.StatusSucceeded || o.Status == outcome.StatusFailed:
		// It ended by itself; a signal that came later does not count.
	case sig != 0:
		return exitSignal + int(sig)
	case o.Cause == outcome.CauseTimeout:
		return exitTimeout
	default:
		return exitStopped
	}
	switch {
	case o.Exit == nil:
		return exitStopped // no outcome is like that
	case o.Status == outcome.StatusSucceeded && o.Err != nil:
		return exitStopped // some of its output was lost
	case o.Exit.Signal != 0:
		return exitSignal + o.Exit.Signal
	default:
		return o.Exit.Code
	}
}

// startFailed returns the exit code for a CLI that could not be started. As env(1) and
// timeout(1) do, it distinguishes what is wrong with the CLI from everything else.
func startFailed(err error) int {
	var e *outcome.StartError
	if !errors.As(err, &e) {
		return exitFailed
	}
	is := func(target error) bool { return errors.Is(e.Err, target) }
	switch {
	case e.Op != outcome.OpLookUp && e.Op != outcome.OpExec:
		return exitFailed
	case is(syscall.EAGAIN), is(syscall.ENOMEM), is(syscall.EMFILE), is(syscall.ENFILE):
		return exitFailed // no process, no memory: nothing is known about the CLI
	case e.Interpreter != "", is(exec.ErrDot):
		return exitNotExecutable
	case is(fs.ErrNotExist), is(exec.ErrNotFound):
		return exitNotFound
	default:
		return exitNotExecutable
	}
}
