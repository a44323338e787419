//go:build linux || darwin

package adapter_test

import (
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"curfew/adapter"
	"curfew/outcome"
)

// The promise, as somebody sees it who has the package's documentation and nothing else.

// patient is longer than anything here takes that nothing holds up.
const patient = 20 * time.Second

// stubborn is a script whose tree ignores SIGTERM, has left its group and session, and holds
// the descriptor 3 in each process. It prints a line when all that is so.
const stubborn = `trap "" TERM; setsid sh -c 'trap "" TERM; echo ready; while :; do sleep 1; done' & while :; do sleep 1; done`

// hold returns the writing end of a pipe, and a function that fails the test unless nobody
// has that end any more.
func hold(t *testing.T) (w *os.File, isFree func()) {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.Close() })
	return w, func() {
		t.Helper()
		_ = r.SetReadDeadline(time.Now().Add(time.Second))
		if _, err := r.Read(make([]byte, 1)); err != io.EOF {
			t.Errorf("a process is left: %v", err)
		}
	}
}

// onLine is a Writer that calls the function with the first that it gets.
type onLine struct{ do func() }

func (w *onLine) Write(p []byte) (int, error) {
	if w.do != nil {
		w.do()
		w.do = nil
	}
	return len(p), nil
}

func newAdapter(t *testing.T) *adapter.Adapter {
	t.Helper()
	a, err := adapter.New(adapter.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patient)
		defer cancel()
		if err := a.Shutdown(ctx); err != nil {
			t.Error(err)
		}
	})
	return a
}

// needs skips the test where there is no such program.
func needs(t *testing.T, program string) {
	t.Helper()
	if _, err := exec.LookPath(program); err != nil {
		t.Skip(err)
	}
}

// Bounded and empty: whichever way a stop is asked for, Invoke returns within the bound, and
// no process has the pipe any more.
func TestPromiseOfInvoke(t *testing.T) {
	t.Parallel()
	needs(t, "setsid")
	a := newAdapter(t)
	errOwn := errors.New("the user has left")
	for name, tt := range map[string]struct {
		cause outcome.Cause
		is    error
		// prepare returns the context, and what is to be done when the CLI is ready.
		prepare func(ctx context.Context, c *adapter.Command) (context.Context, func())
	}{
		"canceled": {outcome.CauseCanceled, errOwn, func(ctx context.Context, c *adapter.Command) (context.Context, func()) {
			ctx, cancel := context.WithCancelCause(ctx)
			return ctx, func() { cancel(errOwn) }
		}},
		"killed by the cause": {outcome.CauseCanceled, errOwn, func(ctx context.Context, c *adapter.Command) (context.Context, func()) {
			c.Stop.Grace = time.Hour
			ctx, cancel := context.WithCancelCause(ctx)
			return ctx, func() { cancel(&adapter.StopCause{Kill: true, Reason: errOwn}) }
		}},
		"killed by its process": {outcome.CauseCanceled, context.Canceled, func(ctx context.Context, c *adapter.Command) (context.Context, func()) {
			c.Stop.Grace = time.Hour
			started := make(chan *adapter.Process, 1)
			c.Started = func(p *adapter.Process) { started <- p }
			return ctx, func() { (<-started).Kill() }
		}},
		"its owner is stopped": {outcome.CauseShutdown, adapter.ErrOwnerStopped, func(ctx context.Context, c *adapter.Command) (context.Context, func()) {
			c.Owner = "it"
			return ctx, func() { go func() { _, _ = a.StopOwner(context.Background(), "it") }() }
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w, isFree := hold(t)
			c := adapter.Command{Path: "sh", Args: []string{"-c", stubborn}, ExtraFiles: []*os.File{w}}
			c.Stop.Grace = 300 * time.Millisecond
			ctx, stop := tt.prepare(t.Context(), &c)
			var began time.Time
			c.Stdout = &onLine{func() { began = time.Now(); stop() }}
			o, err := a.Invoke(ctx, c)
			took := time.Since(began)
			w.Close()
			isFree()
			if took > min(c.Bound(), patient) {
				t.Errorf("it took %v, the bound is %v", took, c.Bound())
			}
			if o.Status != outcome.StatusUnknown || o.Cause != tt.cause || !errors.Is(err, outcome.ErrUnknown) || !errors.Is(err, tt.is) {
				t.Errorf("%s, %s, %v", o.Status, o.Cause, err)
			}
			if o.Cleanup.Result != outcome.CleanupEmpty {
				t.Errorf("the cleanup is %+v", o.Cleanup)
			}
		})
	}
}

// A session has the same promise, and nil means the same for it.
func TestPromiseOfStart(t *testing.T) {
	t.Parallel()
	needs(t, "setsid")
	a := newAdapter(t)
	w, isFree := hold(t)
	c := adapter.Command{Path: "sh", Args: []string{"-c", "echo kept; " + stubborn}, ExtraFiles: []*os.File{w}, Stdin: adapter.Pipe, Stderr: adapter.Pipe}
	c.Args[1] = strings.Replace(c.Args[1], "echo ready", "echo ready >&2", 1)
	c.Stop.StdinGrace, c.Stop.Grace = 100*time.Millisecond, 100*time.Millisecond
	s, err := a.Start(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	w.Close()
	if s.Stdout() != nil || s.Stdin() == nil {
		t.Error("it has a pipe that is not its own, or none that it asked for")
	}
	_ = s.Stderr().SetReadDeadline(time.Now().Add(patient))
	line := make([]byte, 16)
	if n, err := s.Stderr().Read(line); string(line[:n]) != "ready\n" {
		t.Errorf("stderr: %q, %v", line[:n], err)
	}
	began := time.Now()
	if err := s.Stop(t.Context()); err != nil || time.Since(began) > s.Bound() {
		t.Errorf("Stop took %v: %v", time.Since(began), err)
	}
	isFree()
	o, err := s.Wait()
	exit, known := s.Exit()
	if o.Status != outcome.StatusStopped || err != nil || !known || exit.Signal != int(syscall.SIGKILL) || string(o.Stdout) != "kept\n" {
		t.Errorf("%s, %v, %v, %q", o.Status, err, exit, o.Stdout)
	}
	if s.Bound() != c.Bound() {
		t.Errorf("the bound of the session is %v, of its command %v", s.Bound(), c.Bound())
	}
}

// What cannot be is refused with a text that names it, and nothing is executed.
func TestRefusedCommands(t *testing.T) {
	t.Parallel()
	a := newAdapter(t)
	for want, c := range map[string]adapter.Command{
		"Path is empty":    {},
		"use Start":        {Path: "true", Stdout: adapter.Pipe},
		"IdleTimeout is":   {Path: "true", IdleTimeout: time.Second},
		"Timeout -1s":      {Path: "true", Timeout: -time.Second},
		"OutputLimit -1":   {Path: "true", OutputLimit: -1},
		"Arg0 \"a\\x00b\"": {Path: "true", Arg0: "a\x00b"},
		"AfterExit 7":      {Path: "true", AfterExit: 7},
		"Stop.Audience 7":  {Path: "true", Stop: adapter.StopPolicy{Audience: 7}},
		"Stop.Signal 99":   {Path: "true", Stop: adapter.StopPolicy{Signal: 99}},
		"TempDir is set":   {Path: "true", TempDir: true, AfterExit: adapter.AfterExitLeave},
	} {
		o, err := a.Invoke(t.Context(), c)
		if o.Status != outcome.StatusNotStarted || !errors.Is(err, outcome.ErrNotStarted) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %s, %v", want, o.Status, err)
		}
	}
	for want, c := range map[string]adapter.Command{
		"without a Pipe": {Path: "true", IdleTimeout: time.Second},
		"negative":       {Path: "true", Stdin: adapter.Pipe, IdleTimeout: -1},
	} {
		if _, err := a.Start(t.Context(), c); !errors.Is(err, outcome.ErrNotStarted) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", want, err)
		}
	}
	if _, err := a.StopOwner(t.Context(), ""); err == nil {
		t.Error("the owner \"\" is not refused")
	}
	if n, err := adapter.Pipe.Read(make([]byte, 1)); n != 0 || err == nil {
		t.Errorf("Pipe was read: %d, %v", n, err)
	}
}

// The program name can be another one than Path.
func TestArg0(t *testing.T) {
	t.Parallel()
	a := newAdapter(t)
	for arg0, want := range map[string]string{"": "sh", "another": "another"} {
		o, err := a.Invoke(t.Context(), adapter.Command{Path: "sh", Arg0: arg0, Args: []string{"-c", "ps -o args= -p $$ | cut -d' ' -f1"}})
		if err != nil {
			t.Skip(err) // there is no ps
		}
		if got := strings.TrimSpace(string(o.Stdout)); got != want {
			t.Errorf("Arg0 %q: the name is %q", arg0, got)
		}
	}
}

// Started is code of the caller's: what it does holds up and ends nothing.
func TestStarted(t *testing.T) {
	t.Parallel()
	a := newAdapter(t)
	until := make(chan struct{})
	defer close(until)
	for name, do := range map[string]func(){"returns": func() {}, "panics": func() { panic("oops") }, "blocks": func() { <-until }} {
		calls := make(chan int, 2)
		o, err := a.Invoke(t.Context(), adapter.Command{Path: "true", Started: func(p *adapter.Process) { calls <- p.PID(); do() }})
		abandoned := 0
		if name == "blocks" {
			abandoned = 1
		}
		if err != nil || o.Output.Abandoned != abandoned || len(calls) != 1 || <-calls <= 1 {
			t.Errorf("%s: %v, %d abandoned, %d more calls", name, err, o.Output.Abandoned, len(calls))
		}
	}
	if _, err := a.Invoke(t.Context(), adapter.Command{Path: "there is no such program", Started: func(*adapter.Process) { t.Error("Started was called") }}); err == nil {
		t.Error("it was started")
	}
}
