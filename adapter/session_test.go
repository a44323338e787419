//go:build linux || darwin

package adapter

import (
	"bufio"
	"context"
	"errors"
	"io"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"curfew/outcome"
)

// start starts a session that has to start. The caller has its input and output, unless
// c has others for it.
func start(t *testing.T, a *Adapter, c Command) *Session {
	t.Helper()
	c = piping(c)
	s, err := a.Start(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// piping returns c with Pipe where it has no input or output.
func piping(c Command) Command {
	if c.Terminal == nil && c.Stdin == nil {
		c.Stdin = Pipe
	}
	if c.Terminal == nil && c.Stdout == nil {
		c.Stdout = Pipe
	}
	return c
}

// keptStderr is what is kept of the session's stderr by now.
func (s *Session) keptStderr() string {
	_, stderr := s.Kept()
	return string(stderr)
}

// is fails unless the session, which is over soon, ended as said.
func (s *Session) is(t *testing.T, status outcome.Status, cause outcome.Cause) outcome.Outcome {
	t.Helper()
	select {
	case <-s.Done():
	case <-time.After(time.Minute):
		t.Fatal("the session is not over after a minute")
	}
	o, ok := s.Outcome()
	if !ok || o.Status != status || o.Cause != cause {
		t.Errorf("the session ended as %s, %s (%v); want %s, %s", o.Status, o.Cause, o.Err, status, cause)
	}
	if (o.Err == nil) != (status == outcome.StatusSucceeded || status == outcome.StatusStopped) {
		t.Errorf("its error is %v with the status %s", o.Err, o.Status)
	}
	return o
}

// A session is talked to, stopped by closing its input, and its last words are
// not lost.
func TestSession(t *testing.T) {
	t.Parallel()
	a := newAdapter(t)
	c := sh(`echo ready >&2; while read line; do echo "got $line"; done; echo last; exit 3`)
	c.Stop.StdinGrace = time.Minute // it does not need that
	s := start(t, a, c)
	if s.PID() <= 1 || s.Started().IsZero() || s.ID() == "" {
		t.Errorf("pid %d, started %v, id %q", s.PID(), s.Started(), s.ID())
	}
	if _, ok := s.Outcome(); ok {
		t.Error("there is an outcome before the end")
	}
	out := bufio.NewReader(s.Stdout())
	for range 3 {
		if _, err := io.WriteString(s.Stdin(), "this\n"); err != nil {
			t.Fatal(err)
		}
		if line, err := out.ReadString('\n'); line != "got this\n" {
			t.Fatalf("read %q, %v", line, err)
		}
	}
	for end := time.Now().Add(patience); s.keptStderr() != "ready\n"; time.Sleep(time.Millisecond) { // it is copied on its own
		if time.Now().After(end) {
			t.Fatalf("stderr is %q while it runs", s.keptStderr())
		}
	}
	if err := s.Stop(t.Context()); err != nil {
		t.Error(err)
	}
	o := s.is(t, outcome.StatusStopped, outcome.CauseCanceled)
	isEmpty(t, o)
	if o.Exit == nil || o.Exit.Code != 3 || !o.Exit.AfterStop || string(o.Stderr) != "ready\n" {
		t.Errorf("exit %+v, stderr %q", o.Exit, o.Stderr)
	}
	for _, step := range o.Cleanup.Steps {
		if step.Signal != 0 {
			t.Errorf("it got signal %d although it ends with its input", step.Signal)
		}
	}
	if rest, err := io.ReadAll(out); string(rest) != "last\n" || err != nil {
		t.Errorf("after the stop %q is read, %v", rest, err)
	}
	if _, err := io.WriteString(s.Stdin(), "late\n"); !errors.Is(err, ErrStopped) {
		t.Errorf("a late write: %v", err)
	}
	if err := s.Signal(syscall.SIGTERM); !errors.Is(err, os.ErrProcessDone) {
		t.Errorf("a late signal: %v", err)
	}
	if err := s.Stop(t.Context()); err != nil {
		t.Errorf("a second stop: %v", err)
	}
	if err := errors.Join(s.Stdin().Close(), s.Stdout().Close()); err != nil {
		t.Error(err)
	}
}

// A session that ends by itself is told of at once, with its exit and its stderr.
func TestSessionEndsByItself(t *testing.T) {
	t.Parallel()
	a := newAdapter(t)
	s := start(t, a, sh(`echo bad luck >&2; exit 7`))
	o := s.is(t, outcome.StatusFailed, outcome.CauseExit)
	isEmpty(t, o)
	var exit *outcome.ExitError
	if _, err := s.Wait(); !errors.As(err, &exit) || exit.Exit.Code != 7 || string(o.Stderr) != "bad luck\n" {
		t.Errorf("%v, stderr %q", err, o.Stderr)
	}
	if err := s.Stop(t.Context()); err != nil {
		t.Errorf("a stop after the end: %v", err)
	}
	s.is(t, outcome.StatusFailed, outcome.CauseExit)
}

// What is executed and canceled before Start returns is gone then, and what is not
// executed leaves nothing.
func TestSessionDoesNotStart(t *testing.T) {
	t.Parallel()
	a := newAdapter(t)
	for _, c := range []Command{{Path: "there is no such program"}, {Path: "cat", Dir: "/there is no such directory"}, {}} {
		s, err := a.Start(t.Context(), c)
		if s != nil || !errors.Is(err, outcome.ErrNotStarted) {
			t.Errorf("%q: %v, %v", c.Path, s, err)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if s, err := a.Start(ctx, Command{Path: "cat"}); s != nil || !errors.Is(err, outcome.ErrNotStarted) || !errors.Is(err, context.Canceled) {
		t.Errorf("canceled: %v, %v", s, err)
	}
}

// A client that stops a session because its output has come to an end does not
// make a stop of a crash. On a machine under load the crash can come too late for
// that, but not every time.
func TestSessionCrashes(t *testing.T) {
	t.Parallel()
	a := newAdapter(t)
	crashes := 0
	for range 20 {
		s := start(t, a, sh(`exec >&-; sleep 0.02; exit 3`))
		if b, err := io.ReadAll(s.Stdout()); len(b) > 0 || err != nil {
			t.Errorf("%q, %v", b, err)
		}
		if err := s.Stop(t.Context()); err != nil {
			t.Error(err)
		}
		o, _ := s.Wait()
		if exit, ok := s.Exit(); !ok || exit.Code != 3 {
			t.Errorf("its exit is %v, %v", exit, ok)
		}
		if o.Status == outcome.StatusFailed {
			crashes++
		}
	}
	if crashes == 0 {
		t.Error("each crash is told as a stop")
	}
}

// A Read and a Write end at their deadlines, and can be tried again.
func TestSessionDeadlines(t *testing.T) {
	t.Parallel()
	a := newAdapter(t)
	s := start(t, a, sh(`read -r line; cat >/dev/null; echo "$line"`))
	soon := func() time.Time { return time.Now().Add(10 * time.Millisecond) }
	if err := s.Stdout().SetReadDeadline(soon()); err != nil {
		t.Fatal(err)
	}
	if n, err := s.Stdout().Read(make([]byte, 1)); n != 0 || !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("%d bytes, %v", n, err)
	}
	blocked := start(t, a, Command{Path: "sleep", Args: []string{tooLong}})
	if err := blocked.Stdin().SetWriteDeadline(soon()); err != nil {
		t.Fatal(err)
	}
	if n, err := blocked.Stdin().Write(make([]byte, 1<<20)); n == 1<<20 || !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("%d bytes, %v", n, err)
	}
	if err := errors.Join(s.Stdout().SetReadDeadline(time.Time{}), s.Stdin().SetWriteDeadline(time.Now().Add(patience))); err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(s.Stdin(), "x\n"); err != nil {
		t.Error(err)
	}
	if err := s.Stdin().Close(); err != nil {
		t.Error(err)
	}
	if b, err := io.ReadAll(s.Stdout()); string(b) != "x\n" || err != nil {
		t.Errorf("%q, %v", b, err)
	}
	s.is(t, outcome.StatusSucceeded, outcome.CauseExit)
}

// Idle sessions are ended, and those that are used are not.
func TestSessionIsIdle(t *testing.T) {
	t.Parallel()
	const idle = 2 * time.Second
	a := newAdapter(t)
	unused, used := start(t, a, Command{Path: "cat", IdleTimeout: idle}), start(t, a, Command{Path: "cat", IdleTimeout: idle})
	out := bufio.NewReader(used.Stdout())
	for done := unused.Done(); done != nil; {
		if _, err := io.WriteString(used.Stdin(), "x\n"); err != nil {
			t.Fatal(err)
		}
		if line, err := out.ReadString('\n'); line != "x\n" {
			t.Fatal(line, err)
		}
		select {
		case <-done:
			done = nil
		case <-time.After(idle / 10):
		}
	}
	o := unused.is(t, outcome.StatusStopped, outcome.CauseIdle)
	if o.Elapsed < idle {
		t.Errorf("it was ended after %v", o.Elapsed)
	}
	used.is(t, outcome.StatusStopped, outcome.CauseIdle)
	if _, err := io.WriteString(used.Stdin(), "x\n"); !errors.Is(err, ErrStopped) {
		t.Errorf("a write to an idle session: %v", err)
	}
}

// StopOwner ends what is its own.
func TestStopOwner(t *testing.T) {
	t.Parallel()
	a := newAdapter(t)
	var all [3][2]*Session
	for i, owner := range []string{"", "b", "c"} {
		for j := range 2 {
			c := sh(`(trap "" TERM; while :; do sleep 0.1; done) & exec cat`)
			c.Owner, c.Stop.Grace = owner, 100*time.Millisecond
			all[i][j] = start(t, a, c)
		}
	}
	if _, err := a.StopOwner(t.Context(), ""); err == nil {
		t.Error("the owner \"\" is not refused")
	}
	outcomes, err := a.StopOwner(t.Context(), "b")
	if len(outcomes) != 2 || err != nil {
		t.Errorf("%d outcomes, %v", len(outcomes), err)
	}
	for _, s := range all[1] {
		o := s.is(t, outcome.StatusStopped, outcome.CauseShutdown)
		isEmpty(t, o)
	}
	for _, i := range []int{0, 2} {
		for _, s := range all[i] {
			if _, err := io.WriteString(s.Stdin(), "still\n"); err != nil {
				t.Error(err)
			}
			if line, err := bufio.NewReader(s.Stdout()).ReadString('\n'); !strings.HasPrefix(line, "still") {
				t.Errorf("%q, %v", line, err)
			}
		}
	}
}
