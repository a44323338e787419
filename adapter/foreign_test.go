//go:build linux || darwin

package adapter

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"curfew/outcome"
)

// oddContext is a context of which each method calls a function first.
type oddContext struct {
	context.Context
	deadline, done, err, value func()
}

func call(f func()) {
	if f != nil {
		f()
	}
}

func (c *oddContext) Deadline() (time.Time, bool) { call(c.deadline); return c.Context.Deadline() }
func (c *oddContext) Done() <-chan struct{}       { call(c.done); return c.Context.Done() }
func (c *oddContext) Err() error                  { call(c.err); return c.Context.Err() }
func (c *oddContext) Value(key any) any           { call(c.value); return c.Context.Value(key) }

// oddCause is the cause of a cancellation of which each method calls a function first.
type oddCause struct{ text, as, unwrap func() }

func (c *oddCause) Error() string { call(c.text); return "odd" }
func (c *oddCause) As(any) bool   { call(c.as); return false }
func (c *oddCause) Unwrap() error { call(c.unwrap); return nil }

// Whatever the methods of a context and of its cause do, the invocation ends, the
// process does not, and what did not return is counted.
func TestContextsOfTheCallers(t *testing.T) {
	t.Parallel()
	a := newAdapter(t)
	for _, how := range []string{"blocks", "panics", "ends the goroutine"} {
		for _, what := range []string{"Deadline", "Done", "Err", "Value", "Error", "As", "Unwrap"} {
			t.Run(what+" "+how, func(t *testing.T) {
				t.Parallel()
				until := make(chan struct{})
				defer close(until)
				odd := map[string]func(){
					"blocks":             func() { <-until },
					"panics":             func() { panic("oops") },
					"ends the goroutine": runtime.Goexit,
				}[how]
				parent, cancel := context.WithCancelCause(t.Context())
				cause := &oddCause{}
				ctx := &oddContext{Context: parent}
				*map[string]*func(){"Deadline": &ctx.deadline, "Done": &ctx.done, "Err": &ctx.err, "Value": &ctx.value,
					"Error": &cause.text, "As": &cause.as, "Unwrap": &cause.unwrap}[what] = odd
				c := sh("echo ready; exec sleep " + tooLong)
				c.Stdout, c.Timeout, c.Stop.Grace = onWrite(func() { cancel(cause) }), time.Minute, 5*time.Second
				atOnce := what == "Deadline" || what == "Done"
				if atOnce && how == "blocks" {
					c.Timeout = 2 * time.Second // nothing else is to be learned from it
				}
				began := time.Now()
				o, err := a.Invoke(ctx, c)
				if took := time.Since(began); took > c.Timeout/2+c.waits(false).bound() {
					t.Errorf("took %v", took)
				}
				wantStatus, wantCause, abandoned := outcome.StatusUnknown, outcome.CauseCanceled, 0
				switch {
				case how == "blocks" && atOnce:
					wantCause, abandoned = outcome.CauseTimeout, 1
				case how == "blocks":
					abandoned = 1
				case atOnce:
					wantStatus = outcome.StatusNotStarted
				}
				if o.Status != wantStatus || o.Cause != wantCause || o.Output.Abandoned != abandoned || err == nil {
					t.Errorf("%s, %s, %d abandoned, %v", o.Status, o.Cause, o.Output.Abandoned, err)
				}
				isEmpty(t, o)
			})
		}
	}
}

func TestCausesOfTheCallers(t *testing.T) {
	t.Parallel()
	a := newAdapter(t)
	for _, sig := range []syscall.Signal{syscall.SIGUSR1, 999, -1, 0} {
		ctx, cancel := context.WithCancelCause(t.Context())
		cause := fmt.Errorf("a wrapped %w", StopCause{Signal: sig, Reason: errors.New("odd")})
		c := sh("echo ready; exec sleep " + tooLong)
		c.Stdout = onWrite(func() { cancel(cause) })
		o, err := a.Invoke(ctx, c)
		want := syscall.SIGTERM
		if sig == syscall.SIGUSR1 {
			want = sig
		}
		if o.Cause != outcome.CauseCanceled || o.Exit == nil || o.Exit.Signal != int(want) || !errors.Is(err, cause) || !strings.Contains(err.Error(), "canceled: a wrapped odd") {
			t.Errorf("signal %d: %s, %+v, %v", sig, o.Cause, o.Exit, err)
		}
		isEmpty(t, o)
	}
	// What takes a context besides.
	s := start(t, a, Command{Path: "sleep", Args: []string{tooLong}, Owner: "it"})
	until := make(chan struct{})
	defer close(until)
	blocks := &oddContext{Context: t.Context(), done: func() { <-until }}
	if err := s.Stop(blocks); err != nil {
		t.Error(err)
	}
	if s, err := a.Start(blocks, Command{Path: "true"}); err != nil {
		t.Error(err)
	} else if o, err := s.Wait(); err != nil || o.Output.Abandoned != 1 {
		t.Errorf("%d abandoned, %v", o.Output.Abandoned, err)
	}
	panics := &oddContext{Context: t.Context(), done: func() { panic("oops") }}
	if _, err := a.StopOwner(panics, "it"); err != nil && !strings.Contains(err.Error(), "oops") {
		t.Error(err)
	}
	if _, err := a.Start(panics, Command{Path: "true"}); !errors.Is(err, outcome.ErrNotStarted) {
		t.Error(err)
	}
	b := newAdapter(t)
	if err := b.Shutdown(blocks); err != nil {
		t.Error(err)
	}
}

// oddLog calls a function for each line.
type oddLog func(line string)

func (l oddLog) Enabled(context.Context, slog.Level) bool { return true }
func (l oddLog) WithAttrs([]slog.Attr) slog.Handler       { return l }
func (l oddLog) WithGroup(string) slog.Handler            { return l }
func (l oddLog) Handle(_ context.Context, r slog.Record) error {
	l(r.Message)
	return errors.New("no line was written")
}

func TestLoggersOfTheCallers(t *testing.T) {
	t.Parallel()
	for _, how := range []string{"blocks", "panics", "ends the goroutine"} {
		for _, event := range []string{"start", "end"} {
			t.Run(how+" at the "+event, func(t *testing.T) {
				t.Parallel()
				until := make(chan struct{})
				var mu sync.Mutex
				var lines []string
				a := newAdapter(t, Options{Logger: slog.New(oddLog(func(line string) {
					mu.Lock()
					lines = append(lines, line)
					mu.Unlock()
					if !strings.HasSuffix(line, event) {
						return
					}
					switch how {
					case "blocks":
						<-until
					case "panics":
						panic("oops")
					default:
						runtime.Goexit()
					}
				}))})
				defer close(until)
				o, err := run(t, a, sh("exit 0"))
				abandoned := 0
				if how == "blocks" {
					abandoned = 1
				}
				want := "[curfew: start curfew: end]"
				if event == "start" {
					want = "[curfew: start]"
				}
				mu.Lock()
				defer mu.Unlock()
				if err != nil || o.Output.Abandoned != abandoned || fmt.Sprint(lines) != want {
					t.Errorf("%d abandoned, %v, %v", o.Output.Abandoned, lines, err)
				}
			})
		}
	}
}

// A kill by the context counts from the beginning, also while the CLI is being started.
func TestKillBeforeTheStart(t *testing.T) {
	t.Parallel()
	var kill context.CancelCauseFunc
	a := newAdapter(t, Options{Logger: slog.New(slowLog{func() {
		kill(StopCause{Kill: true}) // between the choice of a supervisor and the request
		time.Sleep(abandonAfter / 2)
	}})})
	refused := 0
	// On a busy machine the context may be looked at late, and the CLI is started then.
	for end := time.Now().Add(patience); refused == 0 && time.Now().Before(end); {
		ctx, cancel := context.WithCancelCause(t.Context())
		kill = cancel
		c := sh("trap '' TERM; while :; do sleep 1; done")
		c.Stop.Grace = 30 * time.Second
		began := time.Now()
		o, _ := a.Invoke(ctx, c)
		if took := time.Since(began); o.Cause != outcome.CauseCanceled || took > 20*time.Second {
			t.Errorf("%s, %s, after %v", o.Status, o.Cause, took)
		}
		if o.Status == outcome.StatusNotStarted {
			refused++
		}
		isEmpty(t, o)
	}
	if refused == 0 {
		t.Error("it was always started")
	}
}
