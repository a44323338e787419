package outcome

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"syscall"
	"testing"
	"time"
)

var errUser = errors.New("the user pressed stop")

func TestSetErr(t *testing.T) {
	t.Parallel()
	noFile := &StartError{Op: OpExec, Path: "./x", Err: syscall.ENOENT}
	incomplete := []*CopyError{{"stdout", errUser}, {"stdin", fs.ErrNotExist}}
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
			tt.o.Err = errUser // from before
			tt.o.SetErr(tt.why)
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

// What Decide returns, SetErr has an error for, in one line.
func TestCleanupError(t *testing.T) {
	t.Parallel()
	alive := func(n int) (list []Survivor) {
		for i := range n {
			list = append(list, Survivor{Process: Process{PID: 100 + i, Name: "x y\n"}, Reason: "operation not permitted"})
		}
		return list
	}
	for _, tt := range []struct {
		cleanup Cleanup
		want    string
	}{
		{Cleanup{}, ""},
		{Cleanup{Result: CleanupEmpty}, ""},
		{Cleanup{Result: CleanupLeft}, ""},
		{Cleanup{Result: CleanupUnverified, HelperLost: true}, "curfew: srv: not shown to be gone: those who watched it were lost"},
		{Cleanup{Result: CleanupUnverified}, "curfew: srv: not shown to be gone: some of it is where it cannot be seen"},
		{Cleanup{Result: CleanupUnverified, Suspects: []Process{{PID: 7, Name: "x"}}}, "curfew: srv: not shown to be gone; process 7 (x) may be of it"},
		{Cleanup{Result: CleanupUnverified, Suspects: []Process{{PID: 7}, {PID: 8}, {PID: 9}}}, `curfew: srv: not shown to be gone; process 7 ("") may be of it, and so may 2 more`},
		{Cleanup{Result: CleanupSurvivors, Survivors: alive(1)}, `curfew: srv: not shown to be gone; process 100 ("x y\n") is alive: operation not permitted`},
		{Cleanup{Result: CleanupSurvivors, Survivors: alive(5)}, `curfew: srv: not shown to be gone; process 100 ("x y\n") is alive: operation not permitted` +
			`; process 101 ("x y\n") is alive: operation not permitted; process 102 ("x y\n") is alive: operation not permitted; and 2 more`},
	} {
		err := tt.cleanup.Err("7", "srv")
		got := ""
		if err != nil {
			got = err.Error()
		}
		if got != tt.want {
			t.Errorf("%s: got %q, want %q", tt.cleanup.Result, got, tt.want)
		}
		if e := (*CleanupError)(nil); err != nil && (!errors.As(err, &e) || e.ID != "7") {
			t.Errorf("%v is no CleanupError of 7", err)
		}
	}
}

func TestSetErrTakesWhatDecideReturns(t *testing.T) {
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
		o.SetErr(Why{Program: "sleep", Cause: errors.Join(errUser, errUser), Detail: errors.Join(errUser, errUser)})
		if (o.Err == nil) != (o.Status == StatusSucceeded || o.Status == StatusStopped) {
			t.Errorf("%+v: error %v", r, o.Err)
		}
		if o.Err != nil && strings.ContainsAny(o.Err.Error(), "\r\n") {
			t.Errorf("%+v: not one line: %q", r, o.Err)
		}
	})
}

func TestSetErrPanicsOnContradictions(t *testing.T) {
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
			o.SetErr(Why{})
		})
	}
}

func TestStartError(t *testing.T) {
	t.Parallel()
	wrapped := func(err error) error { return &fs.PathError{Op: "fork/exec", Path: "./x", Err: err} }
	tests := []struct {
		name string
		err  StartError
		want []string // all of these are in the message
		is   error
	}{
		{"not in PATH", StartError{Op: OpLookUp, Path: "gti", Err: syscall.ENOENT},
			[]string{"curfew: look up gti: not found in PATH", "PATH in the command's environment"}, fs.ErrNotExist},
		{"in PATH, not executable", StartError{Op: OpLookUp, Path: "tool", Err: fs.ErrPermission},
			[]string{"curfew: look up tool: found in PATH, but permission denied", "chmod +x"}, fs.ErrPermission},
		{"missing file", StartError{Op: OpExec, Path: "./x", Err: wrapped(syscall.ENOENT)},
			[]string{"curfew: exec ./x: no such file or directory", "check the path", "interpreter"}, fs.ErrNotExist},
		{"missing interpreter", StartError{Op: OpExec, Path: "./x.py", Interpreter: "/usr/bin/python4", Err: syscall.ENOENT},
			[]string{"curfew: exec ./x.py: its interpreter /usr/bin/python4 does not exist", "first line"}, fs.ErrNotExist},
		{"carriage return", StartError{Op: OpExec, Path: "./x.sh", Interpreter: "/bin/sh\r", Err: syscall.ENOENT},
			[]string{`its interpreter "/bin/sh\r" does not exist`, "carriage return", "Unix line ends"}, fs.ErrNotExist},
		{"interpreter not executable", StartError{Op: OpExec, Path: "./x", Interpreter: "/etc/passwd", Err: syscall.EACCES},
			[]string{"curfew: exec ./x: permission denied for its interpreter /etc/passwd"}, fs.ErrPermission},
		{"no permission", StartError{Op: OpExec, Path: "./x", Err: wrapped(syscall.EACCES)},
			[]string{"curfew: exec ./x: permission denied", "chmod +x", "noexec"}, fs.ErrPermission},
		{"a file for a directory", StartError{Op: OpExec, Path: "/etc/passwd/x", Err: syscall.ENOTDIR},
			[]string{"exec /etc/passwd/x: not a directory", "check the path"}, syscall.ENOTDIR},
		{"no first line", StartError{Op: OpExec, Path: "./x", Err: wrapped(syscall.ENOEXEC)},
			[]string{"curfew: exec ./x: exec format error", "#!/bin/sh"}, syscall.ENOEXEC},
		{"too long", StartError{Op: OpExec, Path: "./x", Err: syscall.E2BIG},
			[]string{"curfew: exec ./x: arguments and environment too long", "stdin"}, syscall.E2BIG},
		{"busy", StartError{Op: OpExec, Path: "./x", Err: syscall.ETXTBSY},
			[]string{"curfew: exec ./x: text file busy", "open for writing", "rename"}, syscall.ETXTBSY},
		{"a NUL byte", StartError{Op: OpExec, Path: "./x", Err: syscall.EINVAL},
			[]string{"curfew: exec ./x: invalid argument", "NUL"}, syscall.EINVAL},
		{"no more processes", StartError{Op: OpExec, Path: "./x", Err: syscall.EAGAIN},
			[]string{"no more processes allowed", "ulimit -u"}, syscall.EAGAIN},
		{"no memory", StartError{Op: OpExec, Path: "./x", Err: syscall.ENOMEM}, []string{"out of memory"}, syscall.ENOMEM},
		{"no descriptors", StartError{Op: "open", Path: "/dev/null", Err: syscall.EMFILE},
			[]string{"curfew: open /dev/null: too many open files", "ulimit -n"}, syscall.EMFILE},
		{"missing directory", StartError{Op: OpChdir, Path: "/nowhere", Err: syscall.ENOENT},
			[]string{"curfew: chdir /nowhere: no such directory", "create"}, fs.ErrNotExist},
		{"a file as directory", StartError{Op: OpChdir, Path: "/etc/passwd", Err: syscall.ENOTDIR},
			[]string{"curfew: chdir /etc/passwd: not a directory"}, syscall.ENOTDIR},
		{"closed directory", StartError{Op: OpChdir, Path: "/root", Err: syscall.EACCES},
			[]string{"curfew: chdir /root: permission denied", "searchable"}, fs.ErrPermission},
		{"anything else", StartError{Op: "start helper", Path: "/x", Err: fmt.Errorf("handshake: %w", errUser)},
			[]string{"curfew: start helper /x: handshake: the user pressed stop"}, errUser},
		{"anything else with a path", StartError{Op: OpExec, Path: "./x", Err: wrapped(errUser)},
			[]string{"curfew: exec ./x: the user pressed stop"}, errUser},
		{"no path", StartError{Op: "check", Err: errUser}, []string{"curfew: check: the user pressed stop"}, errUser},
		{"no cause", StartError{Op: OpExec, Path: "a b "}, []string{`curfew: exec "a b "`}, ErrNotStarted},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			err := fmt.Errorf("adapter: %w", &tt.err)
			for _, want := range tt.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("got %q, want %q in it", err, want)
				}
			}
			if strings.ContainsAny(err.Error(), "\r\n") {
				t.Errorf("not one line: %q", err)
			}
			if !errors.Is(err, tt.is) || !errors.Is(err, ErrNotStarted) {
				t.Errorf("errors.Is does not find %v and %v in %q", tt.is, ErrNotStarted, err)
			}
			if errors.Is(err, ErrUnknown) {
				t.Errorf("errors.Is finds %v in %q", ErrUnknown, err)
			}
		})
	}
}

func TestStartErrorLimitOfSystem(t *testing.T) {
	t.Parallel()
	e := StartError{Op: OpExec, Path: "./x", Err: syscall.E2BIG}
	for goos, want := range map[string]string{
		"linux":   "one string may have at most 128 KiB, all together a quarter of the stack limit; pass large input on stdin or in a file",
		"darwin":  "all together may have at most 1 MiB; pass large input on stdin or in a file",
		"freebsd": "pass large input on stdin or in a file",
	} {
		if _, got := e.explain(goos); got != want {
			t.Errorf("%s: got %q, want %q", goos, got, want)
		}
	}
}

func TestSignalName(t *testing.T) {
	t.Parallel()
	if got, want := SignalName(126), "signal 126"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	if signalName(9) == "" {
		t.Skip("no signal names on this system")
	}
	if got, want := SignalName(9), "SIGKILL"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

// The error of another invocation, as a cause or as what a Reader or Writer failed with,
// does not give this one its verdict. What it wraps besides is found.
func TestForeignVerdicts(t *testing.T) {
	own := errors.New("the caller's own")
	elsewhere := []error{
		&statusError{text: "x", errs: []error{ErrNotStarted, own}},
		&statusError{text: "x", errs: []error{ErrUnknown, own}},
		&statusError{text: "x", errs: []error{&ExitError{Program: "other", Exit: Exit{Code: 7}}, own}},
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
			o.SetErr(w)
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
