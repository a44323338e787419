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
	exitNotEmpty      = 122 // the tree is not shown to be empty
	exitStopped       = 123 // stopped for a cause that has no code of its own, or its output was lost
	exitTimeout       = 124
	exitFailed        = 125 // used wrongly, or failed before the start
	exitNotExecutable = 126 // found, but it cannot be executed
	exitNotFound      = 127
	exitSignal        = 128 // plus the number of a signal
)

// exitCode says how an outcome is told to a shell. told is the signal by which
// curfew was told to stop, 0 if it was not. Where several things are true the
// first of these counts: the CLI could not be started; it is not shown that
// nothing of it is left; a signal to curfew, a timeout or another stop ended it;
// it ended by itself.
func exitCode(o outcome.Outcome, told syscall.Signal) int {
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
		// It ended by itself, whatever curfew was told too late.
	case told != 0:
		return exitSignal + int(told)
	case o.Cause == outcome.CauseTimeout:
		return exitTimeout
	default:
		return exitStopped
	}
	switch {
	case o.Exit == nil:
		return exitStopped // not so while Decide holds
	case o.Status == outcome.StatusSucceeded && o.Err != nil:
		return exitStopped // its output was lost on the way
	case o.Exit.Signal != 0:
		return exitSignal + o.Exit.Signal
	default:
		return o.Exit.Code
	}
}

// startFailed tells what is wrong with the CLI from what is wrong with the
// rest, as env(1) and timeout(1) do.
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
		return exitFailed // no process, no memory: it says nothing about the CLI
	case e.Interpreter != "", is(exec.ErrDot):
		return exitNotExecutable
	case is(fs.ErrNotExist), is(exec.ErrNotFound):
		return exitNotFound
	default:
		return exitNotExecutable
	}
}
