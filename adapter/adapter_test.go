//go:build linux || darwin

package adapter

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/shirou/gopsutil/v4/process"

	"curfew/outcome"
)

// tooLong is longer than any test and ends by itself.
const tooLong = "55"

// sh is a command that runs a script.
func sh(script string) Command { return Command{Path: "sh", Args: []string{"-c", script}} }

// run invokes c within a time that no test should need.
func run(t *testing.T, a *Adapter, c Command) (outcome.Outcome, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	o, err := a.Invoke(ctx, c)
	if (err == nil) != (o.Err == nil) || err != nil && err.Error() != o.Err.Error() {
		t.Errorf("the error %v is not the outcome's, %v", err, o.Err)
	}
	if errors.Is(err, context.DeadlineExceeded) && c.Timeout == 0 {
		t.Fatalf("it took a minute: %v", err)
	}
	return o, err
}

// killer returns a function that waits until c was executed, and kills it.
func killer(c *Command) func() {
	started := make(chan *Process, 1)
	c.Started = func(p *Process) { started <- p }
	return func() { (<-started).Kill() }
}

// newAdapter makes an Adapter, which must be shut down without a complaint at
// the end of the test.
func newAdapter(t *testing.T, o ...Options) *Adapter {
	t.Helper()
	return newAdapterLeft(t, 0, o...)
}

// shutDown shuts a down where helpers are killed, or scans hold the trees: that what
// those held is not shown to be gone is right, and so is that of who has suspects.
func shutDown(ctx context.Context, a *Adapter) error {
	err := a.Shutdown(ctx)
	all, ok := err.(interface{ Unwrap() []error })
	if !ok {
		return err
	}
	var rest []error
	for _, err := range all.Unwrap() {
		var c *outcome.CleanupError
		if !errors.As(err, &c) || c.Cleanup.Result != outcome.CleanupUnverified || !c.Cleanup.HelperLost && len(c.Cleanup.Suspects) == 0 {
			rest = append(rest, err)
		}
	}
	return errors.Join(rest...)
}

// newAdapterLeft makes one of which so many invocations will not be shown to be
// gone: a complaint for each is due.
func newAdapterLeft(t *testing.T, unproven int, o ...Options) *Adapter {
	t.Helper()
	a, err := New(append(o, Options{})[0])
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		err := a.Shutdown(ctx)
		complaints := 0
		if all, ok := err.(interface{ Unwrap() []error }); ok {
			complaints = len(all.Unwrap())
		}
		if (err != nil) != (unproven > 0) || complaints != unproven {
			t.Errorf("Shutdown has %d complaints, want %d: %v", complaints, unproven, err)
		}
	})
	return a
}

func isEmpty(t *testing.T, o outcome.Outcome) {
	t.Helper()
	if o.Status == outcome.StatusNotStarted && o.Cleanup.Proof == outcome.ProofNoChildren {
		return // there was nobody to scan for
	}
	if o.Cleanup.Result != outcome.CleanupEmpty || o.Cleanup.Proof != emptyBy {
		t.Errorf("cleanup is %+v, want empty by %s", o.Cleanup, emptyBy)
	}
}

func TestExits(t *testing.T) {
	t.Parallel()
	a := newAdapter(t)
	for _, tt := range []struct {
		name, script string
		status       outcome.Status
		exit         outcome.Exit
	}{
		{"success", "exit 0", outcome.StatusSucceeded, outcome.Exit{}},
		{"code", "exit 7", outcome.StatusFailed, outcome.Exit{Code: 7}},
		{"code of a timeout", "exit 124", outcome.StatusFailed, outcome.Exit{Code: 124}},
		{"code that looks like a signal", "exit 137", outcome.StatusFailed, outcome.Exit{Code: 137}},
		{"signal", "kill -KILL $$", outcome.StatusFailed, outcome.Exit{Code: -1, Signal: 9}},
		{"our signal from elsewhere", "kill -TERM $$", outcome.StatusFailed, outcome.Exit{Code: -1, Signal: 15}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			o, err := run(t, a, sh(tt.script))
			if o.Status != tt.status || o.Cause != outcome.CauseExit || o.Exit == nil || *o.Exit != tt.exit {
				t.Errorf("got %s, %s, %+v", o.Status, o.Cause, o.Exit)
			}
			var exit *outcome.ExitError
			if failed := tt.status == outcome.StatusFailed; errors.As(err, &exit) != failed {
				t.Errorf("error is %v", err)
			}
			isEmpty(t, o)
		})
	}
}

func TestNotStarted(t *testing.T) {
	t.Parallel()
	a := newAdapter(t)
	dir := t.TempDir()
	ran := filepath.Join(dir, "ran")
	write := func(name, content string, mode os.FileMode) string {
		file := filepath.Join(dir, name)
		if err := os.WriteFile(file, []byte(content), mode); err != nil {
			t.Fatal(err)
		}
		return file
	}
	busy := write("busy", "", 0o755)
	if b, err := os.ReadFile("/bin/true"); err != nil {
		t.Fatal(err)
	} else if err := os.WriteFile(busy, b, 0o755); err != nil {
		t.Fatal(err)
	}
	open, err := os.OpenFile(busy, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer open.Close()
	t.Run("cases", func(t *testing.T) {
		for _, tt := range []struct {
			name string
			c    Command
			is   error
			says string
		}{
			{"missing file", Command{Path: filepath.Join(dir, "missing")}, fs.ErrNotExist, "no such file"},
			{"missing name", Command{Path: "no-such-program-anywhere"}, exec.ErrNotFound, "PATH"},
			{"no permission", Command{Path: write("plain", "#!/bin/sh\ntouch "+ran, 0o644)}, fs.ErrPermission, "chmod +x"},
			{"bad interpreter", Command{Path: write("script", "#!/no/such/sh -x\ntouch "+ran, 0o755)}, fs.ErrNotExist, "/no/such/sh"},
			{"carriage return", Command{Path: write("crlf", "#!/bin/sh\r\ntouch "+ran, 0o755)}, fs.ErrNotExist, "carriage return"},
			{"no shebang", Command{Path: write("bare", "touch "+ran, 0o755)}, syscall.ENOEXEC, "#!/bin/sh"},
			{"directory", Command{Path: dir}, fs.ErrPermission, ""},
			{"missing directory", Command{Path: "touch", Args: []string{ran}, Dir: filepath.Join(dir, "nowhere")}, fs.ErrNotExist, "working directory"},
			{"directory is a file", Command{Path: "touch", Args: []string{ran}, Dir: busy}, syscall.ENOTDIR, "not a directory"},
			{"argument too long", Command{Path: "touch", Args: []string{ran, strings.Repeat("x", maxString)}}, syscall.E2BIG, "128 KiB"},
			{"variable too long", Command{Path: "touch", Args: []string{ran}, Env: []string{"BIG=" + strings.Repeat("x", maxString)}}, syscall.E2BIG, "BIG"},
			{"arguments too long together", Command{Path: "/bin/touch", Args: append([]string{ran}, strings.Split(strings.Repeat("y", 120<<10)+strings.Repeat(","+strings.Repeat("x", 120<<10), 80), ",")...)}, syscall.E2BIG, "stdin"},
			{"more than the protocol takes", Command{Path: "/bin/touch", Args: append([]string{ran}, strings.Split(strings.Repeat(strings.Repeat("x", 100<<10)+",", 200), ",")...)}, syscall.E2BIG, "stdin"},
			{"more arguments than the protocol takes", Command{Path: "/bin/touch", Args: append([]string{ran}, make([]string, 1<<20)...)}, syscall.E2BIG, "stdin"},
			{"busy", Command{Path: busy}, syscall.ETXTBSY, "writing"},
			{"NUL in an argument", Command{Path: "touch", Args: []string{ran, "a\x00b"}}, nil, "argument 2"},
			{"NUL in the path", Command{Path: "a\x00b"}, nil, "NUL"},
			{"no path", Command{}, nil, "Path is empty"},
			{"NUL in the environment", Command{Path: "touch", Args: []string{ran}, Env: []string{"NA\x00ME"}}, nil, "NUL"},
			{"negative timeout", Command{Path: "touch", Args: []string{ran}, Timeout: -1}, nil, "negative"},
			{"closed file", Command{Path: "touch", Args: []string{ran}, Stdout: closedFile(t)}, os.ErrClosed, "Stdout"},
			{"no file", Command{Path: "touch", Args: []string{ran}, Stderr: (*os.File)(nil)}, os.ErrClosed, "Stderr"},
		} {
			t.Run(tt.name, func(t *testing.T) {
				t.Parallel()
				o, err := run(t, a, tt.c)
				if o.Status != outcome.StatusNotStarted || o.Cause != outcome.CauseStartFailed || o.Exit != nil || !o.Started.IsZero() {
					t.Errorf("got %+v", o)
				}
				var start *outcome.StartError
				if !errors.Is(err, outcome.ErrNotStarted) || !errors.As(err, &start) {
					t.Errorf("error %v is no StartError", err)
				}
				if tt.is != nil && !errors.Is(err, tt.is) {
					t.Errorf("error %v is not %v", err, tt.is)
				}
				if !strings.Contains(err.Error(), tt.says) {
					t.Errorf("error %q does not say %q", err, tt.says)
				}
				isEmpty(t, o)
			})
		}
	})
	if _, err := os.Stat(ran); err == nil {
		t.Error("something was executed")
	}
	// Writable for a moment only: it is tried again.
	time.AfterFunc(30*time.Millisecond, func() { open.Close() })
	if o, err := run(t, a, Command{Path: busy}); err != nil {
		t.Errorf("busy for a moment: %s, %v", o.Status, err)
	}
}

func closedFile(t *testing.T) *os.File {
	f, err := os.CreateTemp(t.TempDir(), "")
	if err != nil {
		t.Fatal(err)
	}
	f.Close()
	return f
}

func TestCanceledBeforeTheStart(t *testing.T) {
	t.Parallel()
	a := newAdapter(t)
	ran := filepath.Join(t.TempDir(), "ran")
	cause := errors.New("not needed any more")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(cause)
	o, err := a.Invoke(ctx, Command{Path: "touch", Args: []string{ran}})
	if o.Status != outcome.StatusNotStarted || o.Cause != outcome.CauseCanceled {
		t.Errorf("got %s, %s", o.Status, o.Cause)
	}
	for _, want := range []error{outcome.ErrNotStarted, context.Canceled, cause} {
		if !errors.Is(err, want) {
			t.Errorf("error %v is not %v", err, want)
		}
	}
	ctx, cancelTimeout := context.WithTimeout(t.Context(), -1)
	defer cancelTimeout()
	o, err = a.Invoke(ctx, Command{Path: "touch", Args: []string{ran}})
	if o.Status != outcome.StatusNotStarted || o.Cause != outcome.CauseTimeout || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %s, %s, %v", o.Status, o.Cause, err)
	}
	if _, err := os.Stat(ran); err == nil {
		t.Error("it was executed")
	}
}

func TestStopCauses(t *testing.T) {
	t.Parallel()
	cause := errors.New("the user left")
	// A stop by the clock can come before the start on a machine under load;
	// then it is given more time.
	for _, tt := range []struct {
		name  string
		cause outcome.Cause
		is    []error
		// prepare returns the context, and what to do when the CLI has begun.
		prepare func(a *Adapter, ctx context.Context, c *Command, span time.Duration) (context.Context, func())
	}{
		{"canceled", outcome.CauseCanceled, []error{context.Canceled, cause}, func(_ *Adapter, ctx context.Context, _ *Command, _ time.Duration) (context.Context, func()) {
			ctx, cancel := context.WithCancelCause(ctx)
			return ctx, func() { cancel(cause) }
		}},
		{"timeout", outcome.CauseTimeout, []error{context.DeadlineExceeded}, func(_ *Adapter, ctx context.Context, c *Command, span time.Duration) (context.Context, func()) {
			c.Timeout = span
			return ctx, func() {}
		}},
		{"deadline", outcome.CauseTimeout, []error{context.DeadlineExceeded, cause}, func(_ *Adapter, ctx context.Context, _ *Command, span time.Duration) (context.Context, func()) {
			ctx, cancel := context.WithTimeoutCause(ctx, span, cause)
			t.Cleanup(cancel)
			return ctx, func() {}
		}},
		{"shutdown", outcome.CauseShutdown, []error{ErrShutdown}, func(a *Adapter, ctx context.Context, _ *Command, _ time.Duration) (context.Context, func()) {
			return ctx, func() { go func() { _ = a.Shutdown(context.Background()) }() }
		}},
		{"output limit", outcome.CauseOutputLimit, nil, func(_ *Adapter, ctx context.Context, c *Command, _ time.Duration) (context.Context, func()) {
			c.OutputLimit = 1000
			c.Args[1] = "while :; do echo xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx; done"
			return ctx, func() {}
		}},
		{"killed", outcome.CauseCanceled, []error{context.Canceled}, func(_ *Adapter, ctx context.Context, c *Command, _ time.Duration) (context.Context, func()) {
			c.Stop.Grace = time.Minute
			return ctx, killer(c)
		}},
		{"killed by the context", outcome.CauseCanceled, []error{context.Canceled, cause, StopCause{Kill: true, Reason: cause}}, func(_ *Adapter, ctx context.Context, c *Command, _ time.Duration) (context.Context, func()) {
			c.Stop.Grace = time.Minute
			ctx, cancel := context.WithCancelCause(ctx)
			return ctx, func() { cancel(StopCause{Kill: true, Reason: cause}) }
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			var o outcome.Outcome
			var err error
			for span := 200 * time.Millisecond; span < time.Minute; span *= 2 {
				a := newAdapter(t)
				c := sh("trap 'exit 0' TERM; echo ready; sleep " + tooLong + " & wait")
				ctx, begun := tt.prepare(a, t.Context(), &c, span)
				var once sync.Once
				c.Stdout = onWrite(func() { once.Do(begun) })
				if o, err = a.Invoke(ctx, c); o.Status != outcome.StatusNotStarted {
					break
				}
			}
			if o.Status != outcome.StatusUnknown || o.Cause != tt.cause || o.Exit == nil || !o.Exit.AfterStop {
				t.Errorf("got %s, %s, %+v", o.Status, o.Cause, o.Exit)
			}
			for _, want := range append(tt.is, outcome.ErrUnknown) {
				if !errors.Is(err, want) {
					t.Errorf("error %v is not %v", err, want)
				}
			}
			isEmpty(t, o)
		})
	}
}

// The supervisor keeps the context's deadline too, and can be faster than its
// timer: the context's cause holds all the same.
func TestDeadlineBeforeItsTimer(t *testing.T) {
	t.Parallel()
	cause := errors.New("the user left")
	a := newAdapter(t)
	for span := 200 * time.Millisecond; ; span *= 2 {
		parent, cancel := context.WithCancelCause(t.Context())
		ctx := &lateContext{parent, time.Now().Add(span)}
		// Well after the supervisor has ended what it does by itself.
		timer := time.AfterFunc(span+ackLimit/5, func() { cancel(cause) })
		o, err := a.Invoke(ctx, sh("sleep "+tooLong))
		timer.Stop()
		cancel(nil)
		if o.Status == outcome.StatusNotStarted && span < patience {
			continue // on a machine with much else to do
		}
		if o.Cause != outcome.CauseTimeout || !errors.Is(err, cause) {
			t.Errorf("got %s, %s, %v", o.Status, o.Cause, err)
		}
		return
	}
}

// lateContext has a deadline, and is done when its parent is.
type lateContext struct {
	context.Context
	deadline time.Time
}

func (c *lateContext) Deadline() (time.Time, bool) { return c.deadline, true }

func TestShutdownRefuses(t *testing.T) {
	t.Parallel()
	a := newAdapter(t)
	for range 2 {
		if err := a.Shutdown(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	o, err := a.Invoke(t.Context(), sh("exit 0"))
	if o.Status != outcome.StatusNotStarted || o.Cause != outcome.CauseShutdown || !errors.Is(err, ErrShutdown) {
		t.Errorf("got %s, %s, %v", o.Status, o.Cause, err)
	}
}

// Output that a filter behind the leader's exit still writes is not lost, and
// the leader's code stands.
func TestOutputAfterTheLeader(t *testing.T) {
	t.Parallel()
	a := newAdapter(t)
	o, err := run(t, a, Command{Path: "bash", Args: []string{"-c", "exec > >(sleep 0.5; cat); echo LAST; exit 7"}})
	if string(o.Stdout) != "LAST\n" || o.Exit == nil || o.Exit.Code != 7 || o.Output.DrainIncomplete {
		t.Errorf("got %q, %+v, %v", o.Stdout, o.Exit, err)
	}
	if len(o.Cleanup.Ended) > 0 {
		t.Errorf("the filter was ended: %+v", o.Cleanup.Ended)
	}
	// The same with a file, where no pipe tells of the end.
	f, err := os.Create(filepath.Join(t.TempDir(), "out"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	_, err = run(t, a, Command{Path: "bash", Args: []string{"-c", "exec > >(sleep 0.3; cat); echo LAST"}, Stdout: f})
	if b, _ := os.ReadFile(f.Name()); string(b) != "LAST\n" || err != nil {
		t.Errorf("into a file: %q, %v", b, err)
	}
}

// A filter that writes elsewhere reads the leader's output to its end, although it
// holds none of the CLI's files.
func TestFilterBehindTheLeader(t *testing.T) {
	t.Parallel()
	a := newAdapter(t)
	const lines = 3000
	for name, script := range map[string]string{
		"slow":     `exec > >(exec >f 2>e; sleep 0.3; cat) 2>&1; seq $0`,
		"pipeline": `exec > >((sleep 0.2; cat) 2>e | (sleep 0.2; cat) 2>e | cat >f 2>e) 2>&1; seq $0`,
		"FIFO":     `mkfifo p; (sleep 0.3; cat) <p >f 2>e & exec >p 2>&1; seq $0`,
		"tee":      `exec > >(sleep 0.1; exec tee f >/dev/null 2>&1) 2>&1; seq $0`,
		// What keeps the pipe open ends before the filter is asked to.
		"beside a writer": `exec > >(exec >f 2>e; all=$(cat); echo "$all") 2>&1; seq $0; sleep ` + tooLong + ` &`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			o, err := run(t, a, Command{Path: "bash", Args: []string{"-c", script, strconv.Itoa(lines)}, Dir: dir})
			b, _ := os.ReadFile(filepath.Join(dir, "f"))
			if n := strings.Count(string(b), "\n"); n != lines || err != nil {
				t.Errorf("%d of %d lines, %v; ended %+v", n, lines, err, o.Cleanup.Ended)
			}
			isEmpty(t, o)
		})
	}
}

func TestLeftovers(t *testing.T) {
	t.Parallel()
	a := newAdapter(t)
	t.Run("ended", func(t *testing.T) {
		t.Parallel()
		o, err := run(t, a, Command{Path: "sh", Args: []string{"-c", "setsid sleep " + tooLong + " >/dev/null 2>&1 & exit 5"}})
		if o.Status != outcome.StatusFailed || o.Exit.Code != 5 || o.Cause != outcome.CauseExit || len(o.Cleanup.Ended) != 1 {
			t.Errorf("got %s, %+v, %+v, %v", o.Status, o.Exit, o.Cleanup, err)
		}
		isEmpty(t, o)
	})
	t.Run("one that holds the output gets its time first", func(t *testing.T) {
		t.Parallel()
		c := sh("sleep " + tooLong + " & exit 0")
		c.Stop.Linger = 300 * time.Millisecond
		o, err := run(t, a, c)
		if err != nil || o.Elapsed < c.Stop.Linger || len(o.Cleanup.Ended) != 1 {
			t.Errorf("after %v: %+v, %v", o.Elapsed, o.Cleanup, err)
		}
		isEmpty(t, o)
	})
	t.Run("waited for", func(t *testing.T) {
		t.Parallel()
		c := sh("(sleep 0.4; echo late) & exit 0")
		c.AfterExit, c.Stop.Linger = AfterExitWait, -1
		o, err := run(t, a, c)
		if err != nil || string(o.Stdout) != "late\n" || len(o.Cleanup.Ended) != 0 {
			t.Errorf("got %q, %+v, %v", o.Stdout, o.Cleanup, err)
		}
	})
	t.Run("waited for, and stopped", func(t *testing.T) {
		t.Parallel()
		// The leftover tells when the leader was reaped, so that its exit was seen.
		c := sh("(while kill -0 $$; do sleep 0.01; done 2>/dev/null; echo reaped; sleep " + tooLong + ") & exit 0")
		ctx, cancel := context.WithCancel(t.Context())
		c.AfterExit, c.Stdout = AfterExitWait, onWrite(cancel)
		o, err := a.Invoke(ctx, c)
		if o.Status != outcome.StatusUnknown || o.Cause != outcome.CauseCanceled || o.Exit == nil || o.Exit.AfterStop {
			t.Errorf("got %s, %s, %+v, %v", o.Status, o.Cause, o.Exit, err)
		}
		isEmpty(t, o)
	})
	t.Run("left", func(t *testing.T) {
		t.Parallel()
		c := sh("sleep 1 >/dev/null 2>&1 & exit 0")
		c.AfterExit = AfterExitLeave
		o, err := run(t, a, c)
		if err != nil || o.Cleanup.Result != outcome.CleanupLeft || len(o.Cleanup.LeftAlive) != 1 {
			t.Fatalf("got %+v, %v", o.Cleanup, err)
		}
		// An independent view of the same process.
		left := o.Cleanup.LeftAlive[0]
		p, err := process.NewProcess(int32(left.PID))
		if err != nil {
			t.Fatalf("what was left is not alive: %v", err)
		}
		const tick = 10 * time.Millisecond // start times are no finer, and each view measures the boot
		if ms, err := p.CreateTime(); err != nil || left.Start.Sub(time.UnixMilli(ms)).Abs() > 100*tick {
			t.Errorf("it started at %v, says the outcome; at %v (%v)", left.Start, time.UnixMilli(ms), err)
		}
		if env, err := p.Environ(); err != nil || !slices.Contains(env, "CURFEW_INVOCATION_"+o.ID+"=1") {
			t.Errorf("it has no mark of the invocation: %v %v", env, err)
		}
	})
}

// What is left alive can write on although nobody has its output any more, and holds
// nobody up.
func TestLeftWritesOn(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	a, err := New(Options{StateDir: filepath.Join(dir, "state")})
	if err != nil {
		t.Fatal(err)
	}
	// More than a pipe holds, again and again until it is told to end.
	c := sh(`(while ! test -e end; do head -c 100000 /dev/zero || exit 1; echo x; echo . >>rounds; sleep 0.02; done; echo all >done) & echo first`)
	c.AfterExit, c.Dir, c.Stop.Drain, c.Stderr = AfterExitLeave, dir, 50*time.Millisecond, onWrite(func() {})
	o, err := run(t, a, c)
	if err != nil || o.Cleanup.Result != outcome.CleanupLeft || len(o.Cleanup.LeftAlive) == 0 || !o.Output.DrainIncomplete {
		t.Fatalf("got %+v, %+v, %v", o.Cleanup, o.Output, err)
	}
	p, err := process.NewProcess(int32(o.Cleanup.LeftAlive[0].PID))
	if err != nil {
		t.Fatalf("what was left is not alive: %v", err)
	}
	drainer, err := p.Parent()
	if err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	if err := a.Shutdown(t.Context()); err != nil {
		t.Error(err)
	}
	t.Logf("Shutdown took %v", time.Since(began))
	at := func(name string) int64 {
		fi, err := os.Stat(filepath.Join(dir, name))
		if err != nil {
			return 0
		}
		return fi.Size()
	}
	await := func(what string, is func() bool) {
		t.Helper()
		for end := time.Now().Add(patience); !is(); time.Sleep(10 * time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("not in %v: %s", patience, what)
			}
		}
	}
	before := at("rounds")
	await("what is left goes on writing", func() bool { return at("rounds") > before+10 })
	if err := os.WriteFile(filepath.Join(dir, "end"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	await("what is left ends by itself", func() bool { return at("done") > 0 })
	await("its supervisor ends, and is reaped", func() bool { is, err := drainer.IsRunning(); return err == nil && !is })
}

func TestStdin(t *testing.T) {
	t.Parallel()
	a := newAdapter(t)
	t.Run("none", func(t *testing.T) {
		t.Parallel()
		o, err := run(t, a, sh("cat; echo end"))
		if err != nil || string(o.Stdout) != "end\n" {
			t.Errorf("%q, %v", o.Stdout, err)
		}
	})
	t.Run("large, both ways", func(t *testing.T) {
		t.Parallel()
		c := Command{Path: "cat", Stdin: strings.NewReader(strings.Repeat("0123456789", 100000))}
		var out bytes.Buffer
		c.Stdout = &out
		if o, err := run(t, a, c); err != nil || out.Len() != 1000000 || o.Output.StdinError != "" || o.Output.Stdout.Seen != 1000000 {
			t.Errorf("%d bytes, %+v, %v", out.Len(), o.Output, err)
		}
	})
	t.Run("not read", func(t *testing.T) {
		t.Parallel()
		c := sh("exit 0")
		c.Stdin = strings.NewReader(strings.Repeat("x", 1<<20))
		if o, err := run(t, a, c); err != nil || o.Output.StdinError != "broken pipe" && o.Output.StdinError != errStdinLeft.Error() {
			t.Errorf("%+v, %v", o.Output, err)
		}
	})
	t.Run("a reader that never returns", func(t *testing.T) {
		t.Parallel()
		r, w := io.Pipe()
		t.Cleanup(func() { w.Close() })
		c := sh("exit 3")
		c.Stdin = r
		if o, _ := run(t, a, c); o.Exit == nil || o.Exit.Code != 3 || o.Output.Abandoned != 1 || o.Output.StdinError != errStdinLeft.Error() {
			t.Errorf("%+v, %+v", o.Exit, o.Output)
		}
	})
	t.Run("until the stop", func(t *testing.T) {
		t.Parallel()
		r, w := io.Pipe()
		t.Cleanup(func() { w.Close() })
		c := Command{Path: "cat", Stdin: r, Timeout: 100 * time.Millisecond}
		if o, _ := run(t, a, c); o.Output.Abandoned != 1 || o.Output.StdinError != errStdinStopped.Error() {
			t.Errorf("%+v, %+v", o.Exit, o.Output)
		}
	})
	full := &ownError{"no more"}
	for name, tt := range map[string]struct {
		do   func(p []byte) (int, error)
		text string
		is   error
	}{
		"error":           {func([]byte) (int, error) { return 0, full }, "no more", full},
		"too much":        {func(p []byte) (int, error) { return len(p) + 1, nil }, "it returned a count that cannot be", nil},
		"less than none":  {func(p []byte) (int, error) { return -1, nil }, "it returned a count that cannot be", nil},
		"panic":           {func(p []byte) (int, error) { panic("oops") }, "it panicked: oops", nil},
		"goroutine ended": {func(p []byte) (int, error) { runtime.Goexit(); return 0, nil }, "it called runtime.Goexit", nil},
	} {
		t.Run("a reader that fails/"+name, func(t *testing.T) {
			t.Parallel()
			c := Command{Path: "cat", Stdin: io.MultiReader(strings.NewReader("some"), onRead(tt.do))}
			o, err := run(t, a, c)
			var copying *outcome.CopyError
			if o.Status != outcome.StatusSucceeded || string(o.Stdout) != "some" || o.Output.StdinError != tt.text ||
				!errors.As(err, &copying) || copying.Stream != "stdin" || tt.is != nil && !errors.Is(err, tt.is) {
				t.Errorf("%q, %+v, %v", o.Stdout, o.Output, err)
			}
		})
	}
	t.Run("a reader that returns nothing for ever", func(t *testing.T) {
		t.Parallel()
		var calls atomic.Int64
		c := Command{Path: "sleep", Args: []string{"0.2"}, Stdin: onRead(func([]byte) (int, error) { calls.Add(1); return 0, nil })}
		o, err := run(t, a, c)
		if err != nil || o.Output.Abandoned != 0 || o.Output.StdinError != errStdinLeft.Error() {
			t.Errorf("%+v, %v", o.Output, err)
		}
		n := calls.Load()
		time.Sleep(20 * time.Millisecond)
		if more := calls.Load() - n; more > 0 || n > 2000 {
			t.Errorf("%d calls, and %d after the end", n, more)
		}
	})
	t.Run("a file", func(t *testing.T) {
		t.Parallel()
		f, err := os.Open("/etc/passwd")
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		want, _ := os.ReadFile("/etc/passwd")
		if o, err := run(t, a, Command{Path: "cat", Stdin: f}); err != nil || !bytes.Equal(o.Stdout, want) {
			t.Errorf("%q, %v", o.Stdout, err)
		}
	})
}

// onWrite is a writer that calls the function.
type onWrite func()

func (f onWrite) Write(p []byte) (int, error) { f(); return len(p), nil }

// onRead is a reader that calls the function.
type onRead func(p []byte) (int, error)

func (f onRead) Read(p []byte) (int, error) { return f(p) }

type blockedWriter struct{ until chan struct{} }

func (w blockedWriter) Write(p []byte) (int, error) { <-w.until; return len(p), nil }

// A writer that blocks, with the pipe full behind it, holds up the CLI and not
// the stop.
func TestBlockedWriter(t *testing.T) {
	t.Parallel()
	a := newAdapter(t)
	w := blockedWriter{make(chan struct{})}
	defer close(w.until)
	c := sh("while :; do echo xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx; done")
	ctx, cancel := context.WithCancel(t.Context())
	var canceled time.Time
	c.Stdout = io.MultiWriter(onWrite(func() {
		canceled = time.Now()
		cancel()
	}), w)
	c.Stop = StopPolicy{Grace: 200 * time.Millisecond, Drain: 200 * time.Millisecond}
	o, err := a.Invoke(ctx, c)
	if took := time.Since(canceled); took > bound(c.Stop) {
		t.Errorf("took %v, more than %v", took, bound(c.Stop))
	}
	if o.Status != outcome.StatusUnknown || !o.Output.DrainIncomplete || o.Output.Abandoned != 1 {
		t.Errorf("got %s, %+v, %v", o.Status, o.Output, err)
	}
	isEmpty(t, o)
}

// badWriter counts its calls, of which each after the first good ones does do.
type badWriter struct {
	good int
	do   func(p []byte) (int, error)
	n    atomic.Int32
}

func (w *badWriter) Write(p []byte) (int, error) {
	if int(w.n.Add(1)) <= w.good {
		return len(p), nil
	}
	return w.do(p)
}

type ownError struct{ what string }

func (e *ownError) Error() string { return e.what }

// sulkyError has an Error method that panics.
type sulkyError struct{}

func (sulkyError) Error() string { panic("no text") }

// When the Writer fails, the CLI's pipe is closed: it gets SIGPIPE, as with os/exec.
// The Writer is not called again.
func TestWriterThatFails(t *testing.T) {
	t.Parallel()
	a := newAdapter(t)
	full := &ownError{"disk full"}
	for name, tt := range map[string]struct {
		do   func(p []byte) (int, error)
		text string
		is   error
	}{
		"error":               {func([]byte) (int, error) { return 0, full }, "disk full", full},
		"broken pipe":         {func([]byte) (int, error) { return 0, syscall.EPIPE }, "broken pipe", syscall.EPIPE},
		"short":               {func(p []byte) (int, error) { return len(p) - 1, nil }, "short write", io.ErrShortWrite},
		"too much":            {func(p []byte) (int, error) { return len(p) + 1, nil }, "it returned a count that cannot be", nil},
		"less than none":      {func(p []byte) (int, error) { return -1, nil }, "it returned a count that cannot be", nil},
		"panic":               {func(p []byte) (int, error) { panic("oops") }, "it panicked: oops", nil},
		"panic with an error": {func(p []byte) (int, error) { panic(full) }, "it panicked: disk full", full},
		"goroutine ended":     {func(p []byte) (int, error) { runtime.Goexit(); return 0, nil }, "it called runtime.Goexit", nil},
		"bad error":           {func(p []byte) (int, error) { return 0, sulkyError{} }, "an error whose Error method panics", sulkyError{}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := &badWriter{good: 1, do: tt.do}
			o, err := run(t, a, Command{Path: "yes", Stdout: w, Timeout: time.Minute})
			if o.Status != outcome.StatusFailed || o.Exit.Signal != int(syscall.SIGPIPE) || w.n.Load() != 2 || o.Output.Stdout.WriteError != tt.text ||
				o.Output.DrainIncomplete || o.Output.Abandoned != 0 {
				t.Errorf("%s, %+v, %d writes, %+v", o.Status, o.Exit, w.n.Load(), o.Output)
			}
			var exit *outcome.ExitError
			var copying *outcome.CopyError
			if !errors.As(err, &exit) || !errors.As(err, &copying) || copying.Stream != "stdout" || tt.is != nil && !errors.Is(err, tt.is) {
				t.Errorf("the error is %v", err)
			}
		})
	}
}

// A CLI that has succeeded and whose output is lost gives an error, as with os/exec.
func TestOutputIsLost(t *testing.T) {
	t.Parallel()
	a := newAdapter(t)
	full := &ownError{"disk full"}
	fails := func() io.Writer { return &badWriter{do: func([]byte) (int, error) { return 0, full }} }
	c := sh("echo out; echo err >&2")
	c.Stdout, c.Stderr = fails(), fails()
	o, err := run(t, a, c)
	var own *ownError
	if o.Status != outcome.StatusSucceeded || !errors.As(err, &own) || own != full ||
		err.Error() != "curfew: sh: exit code 0; incomplete stdout: disk full; incomplete stderr: disk full" {
		t.Errorf("%s, %v", o.Status, err)
	}

	until := make(chan struct{})
	defer close(until)
	c = sh("echo out")
	c.Stdout, c.Stop.Drain = blockedWriter{until}, 100*time.Millisecond
	o, err = run(t, a, c)
	if o.Status != outcome.StatusSucceeded || err == nil || o.Output.Abandoned != 1 || o.Output.Stdout.WriteError == "" {
		t.Errorf("%s, %+v, %v", o.Status, o.Output, err)
	}
}

func TestHeadAndTail(t *testing.T) {
	t.Parallel()
	a := newAdapter(t)
	c := sh(`printf 'begin'; i=0; while [ $i -lt 5000 ]; do printf 'é'; i=$((i+1)); done; printf 'end'; echo err >&2`)
	c.KeepOutput = 101
	o, err := run(t, a, c)
	s := o.Output.Stdout
	if err != nil || s.Seen != 5+2*5000+3 || !s.Truncated || s.Kept != int64(len(o.Stdout)) || len(o.Stdout) > 101 ||
		!bytes.HasPrefix(o.Stdout, []byte("beginé")) || !bytes.HasSuffix(o.Stdout, []byte("éend")) {
		t.Errorf("%q, %+v, %v", o.Stdout, s, err)
	}
	if strings.ToValidUTF8(string(o.Stdout), "") != string(o.Stdout) {
		t.Errorf("a character was cut: %q", o.Stdout)
	}
	if string(o.Stderr) != "err\n" {
		t.Errorf("stderr %q", o.Stderr)
	}
}

func TestOneWriterForBoth(t *testing.T) {
	t.Parallel()
	a := newAdapter(t)
	var both bytes.Buffer
	c := sh("echo one; echo two >&2; echo three")
	c.Stdout, c.Stderr = &both, &both
	if _, err := run(t, a, c); err != nil || both.String() != "one\ntwo\nthree\n" {
		t.Errorf("%q, %v", both.String(), err)
	}
}

// Go cannot compare every value, also of types that are comparable.
type wrappedWriter struct{ io.Writer }

type manyWriters []io.Writer

func (m manyWriters) Write(p []byte) (int, error) { return m[0].Write(p) }

type manyErrors []error

func (manyErrors) Error() string { return "many errors" }

func TestValuesThatCannotBeCompared(t *testing.T) {
	t.Parallel()
	a := newAdapter(t)
	var out bytes.Buffer
	c := sh("echo one")
	c.Stdout, c.Stderr = wrappedWriter{manyWriters{&out}}, wrappedWriter{manyWriters{io.Discard}}
	if _, err := run(t, a, c); err != nil || out.String() != "one\n" {
		t.Errorf("%q, %v", out.String(), err)
	}

	s := start(t, a, Command{Path: "sleep", Args: []string{"60"}, Owner: "it", Stop: StopPolicy{Grace: -1}})
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(manyErrors{})
	if _, err := a.StopOwner(ctx, "it"); err == nil || err.Error() != "many errors" {
		t.Errorf("StopOwner of a context that has ended: %v", err)
	}
	<-s.Done()
}

// The end of one invocation leaves another alone.
func TestNeighbourIsUntouched(t *testing.T) {
	t.Parallel()
	a := newAdapter(t)
	ctx, cancel := context.WithCancel(t.Context())
	file := filepath.Join(t.TempDir(), "go")
	var wg sync.WaitGroup
	wg.Go(func() {
		c := sh("trap 'echo signalled' TERM HUP INT; (setsid sh -c 'while [ ! -e " + file + " ]; do sleep 0.01; done; echo escapee') & while [ ! -e " + file + " ]; do sleep 0.01; done; wait; echo leader")
		o, err := run(t, a, c)
		if err != nil || string(o.Stdout) != "escapee\nleader\n" {
			t.Errorf("the neighbour: %q, %v", o.Stdout, err)
		}
	})
	wg.Go(func() {
		c := sh("setsid sleep " + tooLong + " & echo ready; sleep " + tooLong)
		c.Stdout = onWrite(cancel)
		o, err := a.Invoke(ctx, c)
		if !errors.Is(err, outcome.ErrUnknown) {
			t.Errorf("the one to be ended: %v", err)
		}
		isEmpty(t, o)
		if err := os.WriteFile(file, nil, 0o600); err != nil {
			t.Error(err)
		}
	})
	wg.Wait()
}

// Many runs of a CLI that ends exactly at its deadline: each outcome is
// consistent.
func TestEndsAtTheDeadline(t *testing.T) {
	t.Parallel()
	a := newAdapter(t)
	runs := size(100, 20, 200)
	var own, unknown int
	for i := range runs {
		c := Command{Path: "sleep", Args: []string{"0.02"}}
		c.Timeout = 20*time.Millisecond + time.Duration(i%40)*100*time.Microsecond
		o, err := run(t, a, c)
		switch {
		case o.Status == outcome.StatusSucceeded:
			own++
			if err != nil || o.Exit == nil || o.Exit.AfterStop || o.Exit.Code != 0 || len(o.Cleanup.Steps) != 0 || o.Cause != outcome.CauseExit {
				t.Fatalf("inconsistent: %+v, %v", o, err)
			}
		case o.Status == outcome.StatusUnknown && o.Cause == outcome.CauseTimeout:
			unknown++
			if !errors.Is(err, outcome.ErrUnknown) || !errors.Is(err, context.DeadlineExceeded) || o.Exit == nil || !o.Exit.AfterStop {
				t.Fatalf("inconsistent: %+v, %v", o, err)
			}
		case o.Status == outcome.StatusNotStarted && o.Cause == outcome.CauseTimeout:
			// On a machine under load the time can be over before the start.
			if o.Exit != nil || !errors.Is(err, context.DeadlineExceeded) {
				t.Fatalf("inconsistent: %+v, %v", o, err)
			}
		default:
			t.Fatalf("got %s, %s, %v", o.Status, o.Cause, err)
		}
		isEmpty(t, o)
	}
	t.Logf("%d ended first, %d were stopped first", own, unknown)
}

func TestExampleOfACommandThatLeaks(t *testing.T) {
	t.Parallel()
	a := newAdapter(t)
	c := sh(`setsid sh -c 'trap "" TERM; echo ready; sleep ` + tooLong + `' & sleep ` + tooLong)
	ctx, cancel := context.WithCancel(t.Context())
	c.Stdout, c.Stop.Grace = onWrite(cancel), 300*time.Millisecond
	o, err := a.Invoke(ctx, c)
	if o.Status != outcome.StatusUnknown || len(o.Cleanup.Ended) < 2 {
		t.Errorf("%s, %+v, %v", o.Status, o.Cleanup, err)
	}
	isEmpty(t, o)
	if s := fmt.Sprint(o.Cleanup.Steps); !strings.Contains(s, string(outcome.StepKill)) {
		t.Errorf("steps are %s", s)
	}
}

// slowLog calls a function when an invocation is about to be started, as a
// logger does that takes its time.
type slowLog struct{ do func() }

func (l slowLog) Enabled(context.Context, slog.Level) bool { return true }
func (l slowLog) WithAttrs([]slog.Attr) slog.Handler       { return l }
func (l slowLog) WithGroup(string) slog.Handler            { return l }

func (l slowLog) Handle(_ context.Context, r slog.Record) error {
	if strings.HasSuffix(r.Message, "start") {
		l.do()
	}
	return nil
}

// A shutdown between the choice of a supervisor and the request stops the
// invocation: it is not lost on the way.
func TestShutdownJustBeforeTheRequest(t *testing.T) {
	t.Parallel()
	ran := filepath.Join(t.TempDir(), "ran")
	var a *Adapter
	done := make(chan error, 1)
	a, err := New(Options{Logger: slog.New(slowLog{func() {
		go func() { done <- a.Shutdown(context.Background()) }()
		for asked := false; !asked; time.Sleep(time.Millisecond) {
			a.mu.Lock()
			for v := range a.running {
				asked = v.control.first().cause != ""
			}
			a.mu.Unlock()
		}
	}})})
	if err != nil {
		t.Fatal(err)
	}
	o, err := run(t, a, sh("echo >"+ran+"; exec sleep "+tooLong))
	if o.Cause != outcome.CauseShutdown || o.Cleanup.HelperLost || !errors.Is(err, ErrShutdown) {
		t.Errorf("got %s, %s, %+v, %v", o.Status, o.Cause, o.Cleanup, err)
	}
	if _, err := os.Stat(ran); err == nil && o.Status == outcome.StatusNotStarted {
		t.Error("not started, and it was executed")
	}
	isEmpty(t, o)
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// Stops at every moment of a start are stops: no supervisor is lost over them.
func TestShutdownAtAnyMoment(t *testing.T) {
	t.Parallel()
	rounds := size(30, 10, 60)
	for i := range rounds {
		a, err := New(Options{})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := run(t, a, Command{Path: "true"}); err != nil {
			t.Fatal(err)
		}
		var wg sync.WaitGroup
		for range 4 {
			wg.Go(func() {
				c := Command{Path: "sleep", Args: []string{tooLong}}
				c.Stop.Grace = -1
				o, _ := run(t, a, c)
				if o.Cleanup.HelperLost || o.Cleanup.Result != outcome.CleanupEmpty || o.Cause != outcome.CauseShutdown {
					t.Errorf("got %s, %s, %+v, %v", o.Status, o.Cause, o.Cleanup, o.Err)
				}
			})
		}
		time.Sleep(time.Duration(i) * 50 * time.Microsecond)
		if err := a.Shutdown(t.Context()); err != nil {
			t.Error(err)
		}
		wg.Wait()
	}
}

func TestLongTimes(t *testing.T) {
	t.Parallel()
	const forever = time.Duration(1<<63 - 1)
	a := newAdapter(t)
	c := sh("exit 0")
	c.Timeout = forever
	c.Stop = StopPolicy{StdinGrace: forever, Grace: forever, KillWait: forever, Drain: forever, Linger: forever}
	if o, err := run(t, a, c); err != nil {
		t.Errorf("%s, %v", o.Status, err)
	}
	if b := bound(c.Stop); b <= 0 {
		t.Errorf("the bound is %v", b)
	}
}

func TestZeroAdapter(t *testing.T) {
	t.Parallel()
	var a Adapter
	if _, err := run(t, &a, sh("exit 0")); err != nil {
		t.Error(err)
	}
	if err := a.Shutdown(t.Context()); err != nil {
		t.Error(err)
	}
}

// A caller that was suspended beyond the timeout finds the answer in its socket.
func TestCallerIsSuspended(t *testing.T) {
	t.Parallel()
	cmd := exec.CommandContext(t.Context(), os.Args[0])
	cmd.Env = append(os.Environ(), roleVar+"=suspended")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, 256)
	if _, err := out.Read(buf); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Process.Signal(syscall.SIGSTOP)
	time.Sleep(7 * time.Second) // the CLI ends after 1 s, the timeout is 5 s
	_ = cmd.Process.Signal(syscall.SIGCONT)
	rest, _ := io.ReadAll(out)
	_ = cmd.Wait()
	if string(rest) != "succeeded exit empty\n" {
		t.Errorf("got %q", rest)
	}
}

func init() {
	roles["suspended"] = func([]string) error {
		var a Adapter
		c := sh("echo ready; sleep 1; exit 0")
		c.Stdout, c.Timeout = os.Stdout, 5*time.Second
		o, _ := a.Invoke(context.Background(), c)
		fmt.Println(o.Status, o.Cause, o.Cleanup.Result)
		return nil
	}
}

// What is in the pipe when the time for reading is over is taken all the same,
// also if nothing was read before.
func TestRestIsTaken(t *testing.T) {
	t.Parallel()
	var w wiring
	defer w.disconnect()
	pipe, fd, err := w.pipeFrom()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := syscall.Write(fd, []byte("all of it")); err != nil {
		t.Fatal(err)
	}
	d := &drain{pipe: pipe, keep: &keeper{limit: 100}, done: make(chan struct{})}
	// Its goroutine gets no turn: here it is not even started.
	incomplete, abandoned := d.finish(time.Now(), time.Now())
	if b, s := d.result(); string(b) != "all of it" || s.Seen != 9 || !incomplete || abandoned {
		t.Errorf("%q, %+v, incomplete %v, abandoned %v", b, s, incomplete, abandoned)
	}
}
