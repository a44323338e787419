package outcome

import (
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"syscall"
	"testing"
)

var errUser = errors.New("the user pressed stop")

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
		{Cleanup{Result: CleanupUnverified, HelperLost: true}, "curfew: srv: could not be shown to have ended: its supervisor was lost"},
		{Cleanup{Result: CleanupUnverified}, "curfew: srv: could not be shown to have ended: some of its processes cannot be observed"},
		{Cleanup{Result: CleanupUnverified, Suspects: []Process{{PID: 7, Name: "x"}}}, "curfew: srv: could not be shown to have ended; process 7 (x) may belong to it"},
		{Cleanup{Result: CleanupUnverified, Suspects: []Process{{PID: 7}, {PID: 8}, {PID: 9}}}, `curfew: srv: could not be shown to have ended; process 7 ("") may belong to it, and so may 2 more`},
		{Cleanup{Result: CleanupSurvivors, Survivors: alive(1)}, `curfew: srv: could not be shown to have ended; process 100 ("x y\n") is alive: operation not permitted`},
		{Cleanup{Result: CleanupSurvivors, Survivors: alive(5)}, `curfew: srv: could not be shown to have ended; process 100 ("x y\n") is alive: operation not permitted` +
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
