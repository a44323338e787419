package verdict

import (
	"context"
	"errors"
	"io/fs"
	"strings"
	"syscall"
	"testing"
	"time"

	"curfew/internal/text"
	. "curfew/outcome"
)

var errUser = errors.New("the user pressed stop")

func TestErr(t *testing.T) {
	t.Parallel()
	noFile := &StartError{Op: OpExec, Path: "./x", Err: syscall.ENOENT}
	incomplete := []*CopyError{{Stream: "stdout", Err: errUser}, {Stream: "stdin", Err: fs.ErrNotExist}}
	all := []error{ErrUnknown, ErrNotStarted, context.Canceled, context.DeadlineExceeded, errUser, fs.ErrNotExist}
	tests := []struct {
		name string
		o    Outcome
		why  Why
		text string // "" for no error
		is   []error
	}{
		{"succeeded", Outcome{Status: StatusSucceeded, Cause: CauseExit, Exit: code(0)}, Why{Cause: errUser}, "", nil},
		{"stopped", Outcome{Status: StatusStopped, Cause: CauseShutdown, Exit: death(15)}, Why{Cause: errUser}, "", nil},
		{"failed by a code", Outcome{Status: StatusFailed, Cause: CauseExit, Exit: code(3)}, Why{Program: "sleep", Cause: context.Canceled},
			"curfew: sleep: exit code 3", nil},
		{"failed by a signal", Outcome{Status: StatusFailed, Cause: CauseExit, Exit: &Exit{Code: -1, Signal: 11, CoreDumped: true}}, Why{Program: "sleep"},
			"curfew: sleep: death by " + SignalName(11) + ", core dumped", nil},
		{"succeeded, incomplete", Outcome{Status: StatusSucceeded, Cause: CauseExit, Exit: code(0)}, Why{Program: "sleep", Incomplete: incomplete},
			"curfew: sleep: exit code 0; incomplete stdout: the user pressed stop; incomplete stdin: file does not exist", []error{errUser, fs.ErrNotExist}},
		{"failed, incomplete", Outcome{Status: StatusFailed, Cause: CauseExit, Exit: code(3)}, Why{Program: "sleep", Incomplete: incomplete[:1]},
			"curfew: sleep: exit code 3; incomplete stdout: the user pressed stop", []error{errUser}},
		{"unknown, incomplete", Outcome{Status: StatusUnknown, Cause: CauseHostLost}, Why{Program: "sleep", Incomplete: incomplete[:1]},
			"curfew: sleep: outcome unknown: caller lost; incomplete stdout: the user pressed stop", []error{ErrUnknown, errUser}},
		{"failed, no name", Outcome{Status: StatusFailed, Cause: CauseExit, Exit: code(3)}, Why{}, "curfew: exit code 3", nil},

		{"not started: no file", Outcome{Status: StatusNotStarted, Cause: CauseStartFailed}, Why{Program: "./x", Start: noFile, Cause: errUser},
			noFile.Error(), []error{ErrNotStarted, fs.ErrNotExist}},
		{"not started: for a reason without a StartError", Outcome{Status: StatusNotStarted, Cause: CauseStartFailed}, Why{Program: "x", Detail: errUser},
			"curfew: start x: the user pressed stop", []error{ErrNotStarted, errUser}},
		{"not started: canceled", Outcome{Status: StatusNotStarted, Cause: CauseCanceled}, Why{Program: "sleep", Start: noFile, Cause: context.Canceled},
			"curfew: sleep: not started: canceled", []error{ErrNotStarted, context.Canceled}},
		{"not started: canceled for a reason", Outcome{Status: StatusNotStarted, Cause: CauseCanceled}, Why{Program: "sleep", Cause: errUser},
			"curfew: sleep: not started: canceled: the user pressed stop", []error{ErrNotStarted, context.Canceled, errUser}},
		{"not started: timed out", Outcome{Status: StatusNotStarted, Cause: CauseTimeout}, Why{Program: "sleep", Cause: context.DeadlineExceeded},
			"curfew: sleep: not started: timed out", []error{ErrNotStarted, context.DeadlineExceeded}},
		{"not started: shut down", Outcome{Status: StatusNotStarted, Cause: CauseShutdown}, Why{Program: "sleep", Cause: errUser},
			"curfew: sleep: not started: shut down: the user pressed stop", []error{ErrNotStarted, errUser}},
		{"not started: supervisor lost", Outcome{Status: StatusNotStarted, Cause: CauseSupervisorLost}, Why{Program: "sleep", Cause: context.Canceled},
			"curfew: sleep: not started: supervisor lost", []error{ErrNotStarted}},

		{"unknown: canceled", Outcome{Status: StatusUnknown, Cause: CauseCanceled}, Why{Program: "sleep", Cause: context.Canceled},
			"curfew: sleep: outcome unknown: canceled", []error{ErrUnknown, context.Canceled}},
		{"unknown: canceled for a reason", Outcome{Status: StatusUnknown, Cause: CauseCanceled, Exit: afterStop(death(15))}, Why{Program: "sleep", Cause: errUser},
			"curfew: sleep: outcome unknown: canceled: the user pressed stop (death by " + SignalName(15) + " seen after the stop began)",
			[]error{ErrUnknown, context.Canceled, errUser}},
		{"unknown: the command's own timeout", Outcome{Status: StatusUnknown, Cause: CauseTimeout, Exit: afterStop(code(0))}, Why{Program: "sleep", Timeout: time.Second},
			"curfew: sleep: outcome unknown: timed out after 1s (exit code 0 seen after the stop began)", []error{ErrUnknown, context.DeadlineExceeded}},
		{"unknown: the context's deadline", Outcome{Status: StatusUnknown, Cause: CauseTimeout}, Why{Program: "sleep", Cause: context.DeadlineExceeded},
			"curfew: sleep: outcome unknown: timed out", []error{ErrUnknown, context.DeadlineExceeded}},
		{"unknown: the context's deadline for a reason", Outcome{Status: StatusUnknown, Cause: CauseTimeout}, Why{Program: "sleep", Cause: errUser},
			"curfew: sleep: outcome unknown: timed out: the user pressed stop", []error{ErrUnknown, context.DeadlineExceeded, errUser}},
		{"unknown: the tree was not empty", Outcome{Status: StatusUnknown, Cause: CauseTimeout, Exit: code(0)}, Why{Program: "sleep"},
			"curfew: sleep: outcome unknown: timed out (exit code 0 seen, but the invocation was not over)", []error{ErrUnknown, context.DeadlineExceeded}},
		{"unknown: shut down", Outcome{Status: StatusUnknown, Cause: CauseShutdown}, Why{Program: "sleep"},
			"curfew: sleep: outcome unknown: shut down", []error{ErrUnknown}},
		{"unknown: idle", Outcome{Status: StatusUnknown, Cause: CauseIdle}, Why{Program: "sleep", Cause: errUser},
			"curfew: sleep: outcome unknown: idle: the user pressed stop", []error{ErrUnknown, errUser}},
		{"unknown: output limit, then canceled", Outcome{Status: StatusUnknown, Cause: CauseOutputLimit}, Why{Program: "sleep", Cause: context.Canceled},
			"curfew: sleep: outcome unknown: output limit reached", []error{ErrUnknown}},
		{"unknown: supervisor lost", Outcome{Status: StatusUnknown, Cause: CauseSupervisorLost}, Why{Program: "sleep", Detail: errors.New("no answer\nfor 1s")},
			"curfew: sleep: outcome unknown: supervisor lost: no answer; for 1s", []error{ErrUnknown}},
		{"unknown: caller lost", Outcome{Status: StatusUnknown, Cause: CauseHostLost}, Why{Program: "sleep"},
			"curfew: sleep: outcome unknown: caller lost", []error{ErrUnknown}},

		{"a name that does not print", Outcome{Status: StatusFailed, Cause: CauseExit, Exit: code(1)}, Why{Program: "a\nb\xff"},
			`curfew: "a\nb\xff": exit code 1`, nil},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			tt.o.Err = Err(&tt.o, tt.why)
			got := ""
			if tt.o.Err != nil {
				got = tt.o.Err.Error()
			}
			if got != tt.text {
				t.Errorf("got  %s\nwant %s", got, tt.text)
			}
			for _, target := range all {
				want := false
				for _, is := range tt.is {
					want = want || is == target
				}
				if got := errors.Is(tt.o.Err, target); got != want {
					t.Errorf("errors.Is(err, %q): got %t, want %t", target, got, want)
				}
			}
			var exit *ExitError
			if got, want := errors.As(tt.o.Err, &exit), tt.o.Status == StatusFailed; got != want {
				t.Errorf("errors.As(err, *ExitError): got %t, want %t", got, want)
			}
			if exit != nil && exit.Exit != *tt.o.Exit {
				t.Errorf("exit: got %+v, want %+v", exit.Exit, *tt.o.Exit)
			}
			var start *StartError
			if got, want := errors.As(tt.o.Err, &start), tt.o.Status == StatusNotStarted && tt.o.Cause == CauseStartFailed; got != want {
				t.Errorf("errors.As(err, *StartError): got %t, want %t", got, want)
			}
		})
	}
}

// Err has an error of one line for everything that Decide returns.
func TestErrTakesWhatDecideReturns(t *testing.T) {
	t.Parallel()
	type result struct {
		status Status
		cause  Cause
		exit   Exit
		known  bool
	}
	seen := map[result]bool{}
	allFacts(func(f Facts) {
		var o Outcome
		o.Status, o.Cause, o.Exit = Decide(f)
		r := result{status: o.Status, cause: o.Cause}
		if o.Exit != nil {
			r.exit, r.known = *o.Exit, true
		}
		if seen[r] {
			return
		}
		seen[r] = true
		o.Err = Err(&o, Why{Program: "sleep", Cause: errors.Join(errUser, errUser), Detail: errors.Join(errUser, errUser)})
		if (o.Err == nil) != (o.Status == StatusSucceeded || o.Status == StatusStopped) {
			t.Errorf("%+v: error %v", r, o.Err)
		}
		if o.Err != nil && strings.ContainsAny(o.Err.Error(), "\r\n") {
			t.Errorf("%+v: not one line: %q", r, o.Err)
		}
	})
}

func TestErrPanicsOnContradictions(t *testing.T) {
	t.Parallel()
	for name, o := range map[string]Outcome{
		"failed without an exit": {Status: StatusFailed},
		"no status":              {},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			defer func() {
				if recover() == nil {
					t.Error("no panic")
				}
			}()
			o.Err = Err(&o, Why{})
		})
	}
}

// The error of another invocation, as a cause or as the error of a Reader or Writer, does not
// give this one its verdict. errors.Is finds everything else that it wraps.
func TestForeignVerdicts(t *testing.T) {
	own := errors.New("the caller's own")
	elsewhere := []error{
		&text.Error{Text: "x", Errs: []error{ErrNotStarted, own}},
		&text.Error{Text: "x", Errs: []error{ErrUnknown, own}},
		&text.Error{Text: "x", Errs: []error{&ExitError{Program: "other", Exit: Exit{Code: 7}}, own}},
		errors.Join(&StartError{Op: OpExec, Path: "other", Err: fs.ErrNotExist}, own),
		errors.Join(&CleanupError{Program: "other"}, own),
		errors.Join(&CopyError{Stream: "stdin", Err: fs.ErrClosed}, own),
	}
	for _, e := range elsewhere {
		for name, o := range map[string]*Outcome{
			"canceled":     {Status: StatusUnknown, Cause: CauseCanceled},
			"lost":         {Status: StatusUnknown, Cause: CauseSupervisorLost},
			"not started":  {Status: StatusNotStarted, Cause: CauseCanceled},
			"start failed": {Status: StatusNotStarted, Cause: CauseStartFailed},
			"succeeded":    {Status: StatusSucceeded, Cause: CauseExit, Exit: &Exit{}},
			"failed":       {Status: StatusFailed, Cause: CauseExit, Exit: &Exit{Code: 3}},
		} {
			w := Why{Cause: e, Detail: e}
			switch {
			case name == "start failed":
				w.Start = &StartError{Op: OpChdir, Path: "dir", Err: e}
			case o.Exit != nil:
				w.Incomplete = []*CopyError{{Stream: "stdout", Err: e}}
			}
			o.Err = Err(o, w)
			var exit *ExitError
			var start *StartError
			var copied *CopyError
			var cleanup *CleanupError
			for _, check := range []struct {
				what      string
				got, want bool
			}{
				{"ErrNotStarted", errors.Is(o.Err, ErrNotStarted), o.Status == StatusNotStarted},
				{"ErrUnknown", errors.Is(o.Err, ErrUnknown), o.Status == StatusUnknown},
				{"ExitError", errors.As(o.Err, &exit) && exit.Exit.Code != 3, false},
				{"an ExitError of its own", exit != nil, o.Status == StatusFailed},
				{"StartError", errors.As(o.Err, &start) && start.Path != "dir", false},
				{"CopyError", errors.As(o.Err, &copied) && copied.Stream != "stdout", false},
				{"CleanupError", errors.As(o.Err, &cleanup), false},
				{"the caller's own", errors.Is(o.Err, own), true},
			} {
				if check.got != check.want {
					t.Errorf("%s, with %v (%T): %s is found: %v", name, e, e, check.what, check.got)
				}
			}
		}
	}
}
