package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os/exec"
	"syscall"
	"testing"

	"curfew/outcome"
)

func TestExitCode(t *testing.T) {
	t.Parallel()
	empty := outcome.Cleanup{Result: outcome.CleanupEmpty, Proof: outcome.ProofNoChildren}
	with := func(r outcome.CleanupResult) outcome.Cleanup {
		return outcome.Cleanup{Result: r, Proof: outcome.ProofNone}
	}
	code := func(n int, after bool) *outcome.Exit { return &outcome.Exit{Code: n, AfterStop: after} }
	death := func(n int, after bool) *outcome.Exit { return &outcome.Exit{Code: -1, Signal: n, AfterStop: after} }
	failed := func(op string, err error) outcome.Outcome {
		return outcome.Outcome{Status: outcome.StatusNotStarted, Cause: outcome.CauseStartFailed, Cleanup: empty,
			Err: &outcome.StartError{Op: op, Path: "x", Err: err}}
	}
	unknown := func(cause outcome.Cause, e *outcome.Exit, c outcome.Cleanup) outcome.Outcome {
		return outcome.Outcome{Status: outcome.StatusUnknown, Cause: cause, Exit: e, Cleanup: c}
	}
	ended := func(s outcome.Status, e *outcome.Exit, c outcome.Cleanup) outcome.Outcome {
		return outcome.Outcome{Status: s, Cause: outcome.CauseExit, Exit: e, Cleanup: c}
	}
	badInterpreter := outcome.Outcome{Status: outcome.StatusNotStarted, Cause: outcome.CauseStartFailed, Cleanup: empty,
		Err: &outcome.StartError{Op: outcome.OpExec, Path: "x", Interpreter: "/nowhere", Err: syscall.ENOENT}}

	for _, c := range []struct {
		name string
		o    outcome.Outcome
		told syscall.Signal
		want int
	}{
		{"succeeded", ended(outcome.StatusSucceeded, code(0, false), empty), 0, 0},
		{"its own code", ended(outcome.StatusFailed, code(7, false), empty), 0, 7},
		{"its own code, though it looks like ours", ended(outcome.StatusFailed, code(124, false), empty), 0, 124},
		{"death by a signal", ended(outcome.StatusFailed, death(11, false), empty), 0, 139},
		{"ended by itself before the signal counted", ended(outcome.StatusFailed, code(7, false), empty), syscall.SIGTERM, 7},
		{"succeeded before the signal counted", ended(outcome.StatusSucceeded, code(0, false), empty), syscall.SIGINT, 0},
		{"left by request", ended(outcome.StatusSucceeded, code(0, false), with(outcome.CleanupLeft)), 0, 0},

		{"timed out", unknown(outcome.CauseTimeout, death(15, true), empty), 0, 124},
		{"timed out, and code 0 after it", unknown(outcome.CauseTimeout, code(0, true), empty), 0, 124},
		{"timed out, exit not seen", unknown(outcome.CauseTimeout, nil, empty), 0, 124},
		{"timed out, then a signal", unknown(outcome.CauseTimeout, nil, empty), syscall.SIGINT, 130},
		{"stopped by a signal", unknown(outcome.CauseCanceled, death(15, true), empty), syscall.SIGTERM, 143},
		{"stopped by a signal, and code 0 after it", unknown(outcome.CauseCanceled, code(0, true), empty), syscall.SIGINT, 130},
		{"stopped by SIGHUP", unknown(outcome.CauseCanceled, nil, empty), syscall.SIGHUP, 129},
		{"stopped by SIGQUIT", unknown(outcome.CauseCanceled, nil, empty), syscall.SIGQUIT, 131},
		{"parent or stdin gone", unknown(outcome.CauseCanceled, death(15, true), empty), 0, 123},
		{"output limit", unknown(outcome.CauseOutputLimit, death(15, true), empty), 0, 123},
		{"supervisor lost, but proven empty", unknown(outcome.CauseSupervisorLost, nil, outcome.Cleanup{Result: outcome.CleanupEmpty, Proof: outcome.ProofChildList}), 0, 123},
		{"supervisor lost", unknown(outcome.CauseSupervisorLost, nil, with(outcome.CleanupUnverified)), 0, 122},
		{"survivors of a timeout", unknown(outcome.CauseTimeout, nil, with(outcome.CleanupSurvivors)), 0, 122},
		{"survivors of a stop by a signal", unknown(outcome.CauseCanceled, nil, with(outcome.CleanupSurvivors)), syscall.SIGTERM, 122},
		{"survivors of a success", ended(outcome.StatusSucceeded, code(0, false), with(outcome.CleanupSurvivors)), 0, 122},

		{"not found in PATH", failed(outcome.OpLookUp, fmt.Errorf("%w: %w", exec.ErrNotFound, fs.ErrNotExist)), 0, 127},
		{"path not found", failed(outcome.OpExec, syscall.ENOENT), 0, 127},
		{"not found, and a signal", failed(outcome.OpExec, syscall.ENOENT), syscall.SIGTERM, 127},
		{"a path through a file", failed(outcome.OpExec, syscall.ENOTDIR), 0, 126},
		{"permission", failed(outcome.OpExec, syscall.EACCES), 0, 126},
		{"permission in PATH", failed(outcome.OpLookUp, &fs.PathError{Op: "access", Err: syscall.EACCES}), 0, 126},
		{"found in the working directory only", failed(outcome.OpLookUp, exec.ErrDot), 0, 126},
		{"a directory", failed(outcome.OpExec, syscall.EISDIR), 0, 126},
		{"no executable format", failed(outcome.OpExec, syscall.ENOEXEC), 0, 126},
		{"bad interpreter", badInterpreter, 0, 126},
		{"too long", failed(outcome.OpExec, syscall.E2BIG), 0, 126},
		{"no more processes", failed(outcome.OpExec, syscall.EAGAIN), 0, 125},
		{"working directory", failed(outcome.OpChdir, syscall.ENOENT), 0, 125},
		{"command refused", failed("check the command", errors.New("x")), 0, 125},
		{"no supervisor", failed("start a supervisor for", syscall.EPERM), 0, 125},

		{"stopped by a signal before the start", outcome.Outcome{Status: outcome.StatusNotStarted, Cause: outcome.CauseCanceled, Cleanup: empty}, syscall.SIGTERM, 143},
		{"parent gone before the start", outcome.Outcome{Status: outcome.StatusNotStarted, Cause: outcome.CauseCanceled, Cleanup: empty}, 0, 123},
		{"timed out before the start", outcome.Outcome{Status: outcome.StatusNotStarted, Cause: outcome.CauseTimeout, Cleanup: empty}, 0, 124},
	} {
		if got := exitCode(c.o, c.told); got != c.want {
			t.Errorf("%s: %d, want %d", c.name, got, c.want)
		}
	}
}
