package adapter

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"curfew/outcome"
)

func init() { roles["is idle in the end"] = idleInTheEndRole }

// heldBy returns a command whose whole tree has the end of a pipe open, which
// tells when nothing of it is left, and which says "up" on its stdout.
func heldBy(h *heldPipe, script string) Command {
	c := sh(script)
	c.ExtraFiles = []*os.File{h.w}
	return c
}

// startHeld starts a session and waits until it says that it is up.
func startHeld(t *testing.T, a *Adapter, c Command) *Session {
	t.Helper()
	s := start(t, a, c)
	if line, err := bufio.NewReader(s.Stdout()).ReadString('\n'); line != "up\n" {
		t.Fatalf("it says %q, %v", line, err)
	}
	return s
}

// ignoring is a server that neither its end of input nor SIGTERM ends.
const ignoring = `trap "" TERM; echo up; while :; do sleep ` + tooLong + `; done`

// 50 sessions that ignore everything are ended together, in the time of one.
func TestShutdownOfMany(t *testing.T) {
	t.Parallel()
	n := size(50, 10, 50)
	a := newAdapter(t)
	whole := newHeldPipe(t)
	c := heldBy(whole, ignoring)
	c.Stop = StopPolicy{StdinGrace: 500 * time.Millisecond, Grace: 500 * time.Millisecond}
	all := make([]*Session, n)
	for i := range all {
		all[i] = startHeld(t, a, c)
	}
	began := time.Now()
	if err := a.Shutdown(t.Context()); err != nil {
		t.Error(err)
	}
	took := time.Since(began)
	whole.isFree(atOnce)
	// One after another would take a second each.
	if bound := all[0].v.cmd.waits(false).bound(); took < time.Second || took > bound {
		t.Errorf("it took %v, want from 1 s to the bound of one, %v", took, bound)
	}
	t.Logf("%d sessions in %v", n, took)
	for _, s := range all {
		if o := s.is(t, outcome.StatusStopped, outcome.CauseShutdown); o.Exit == nil || o.Exit.Signal != 9 {
			t.Errorf("exit %+v", o.Exit)
		}
	}
	if _, err := a.Start(t.Context(), c); !errors.Is(err, outcome.ErrNotStarted) || !errors.Is(err, ErrShutdown) {
		t.Errorf("a start after the shutdown: %v", err)
	}
}

// Whatever a session is in the middle of, a shutdown ends it once and within its
// bound, and the others too.
func TestShutdownMeanwhile(t *testing.T) {
	t.Parallel()
	// It counts the signals that it gets, and ends at the second.
	const counting = `trap 'echo TERM >>"$DIR/signals"; n=x$n; [ $n = xx ] && exit' TERM
		echo up; while read -r line; do :; done; echo EOF >>"$DIR/signals"; while :; do sleep 0.01; done`
	unhurried := StopPolicy{StdinGrace: 50 * time.Millisecond, Grace: 500 * time.Millisecond}
	for _, tt := range []struct {
		name   string
		script string
		idle   time.Duration
		before func(t *testing.T, s *Session) // what is under way
		cause  outcome.Cause
	}{
		{"a stop is under way", counting, 0, func(t *testing.T, s *Session) {
			for range 3 {
				go func() { _ = s.Stop(context.Background()) }() // whose result is that of the session
			}
			for end := time.Now().Add(patience); !s.isStopping(); time.Sleep(time.Millisecond) {
				if time.Now().After(end) {
					t.Fatal("the stop does not begin")
				}
			}
		}, outcome.CauseCanceled},
		{"its idle time is over", counting, 3 * time.Second, func(t *testing.T, s *Session) {
			for end := time.Now().Add(patience); !s.isStopping(); time.Sleep(time.Millisecond) {
				if time.Now().After(end) {
					t.Fatal("the idle time does not end it")
				}
			}
		}, outcome.CauseIdle},
		{"a writer is blocked", `echo up; exec sleep ` + tooLong, 0, func(t *testing.T, s *Session) {
			result := make(chan error, 1)
			go func() {
				_, err := s.Stdin().Write(make([]byte, 1<<20))
				result <- err
			}()
			t.Cleanup(func() {
				if err := <-result; !errors.Is(err, ErrStopped) {
					t.Errorf("the blocked Write returned %v", err)
				}
			})
			for end := time.Now().Add(patience); !s.isWriting(); time.Sleep(time.Millisecond) {
				if time.Now().After(end) {
					t.Fatal("nothing is written")
				}
			}
		}, outcome.CauseShutdown},
		{"it ignores everything", ignoring, 0, func(*testing.T, *Session) {}, outcome.CauseShutdown},
		{"it ends by itself", `echo up; read -r line; exit 0`, 0, func(t *testing.T, s *Session) {
			_, _ = io.WriteString(s.Stdin(), "go\n") // and is perhaps faster
		}, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			a := newAdapter(t)
			whole, other := newHeldPipe(t), newHeldPipe(t)
			c := heldBy(whole, tt.script)
			c.Stop, c.Env, c.IdleTimeout = unhurried, append(os.Environ(), "DIR="+dir), tt.idle
			s := startHeld(t, a, c)
			neighbour := startHeld(t, a, heldBy(other, `echo up; cat`))
			tt.before(t, s)
			began := time.Now()
			var both sync.WaitGroup
			for range 2 { // at once: it is one shutdown
				both.Go(func() {
					if err := a.Shutdown(t.Context()); err != nil {
						t.Error(err)
					}
				})
			}
			both.Wait()
			if took, bound := time.Since(began), s.v.cmd.waits(false).bound(); took > bound+2*time.Second {
				t.Errorf("it took %v, want %v", took, bound)
			}
			whole.isFree(atOnce)
			other.isFree(atOnce)
			o, _ := s.Outcome()
			switch {
			case tt.cause != "":
				s.is(t, outcome.StatusStopped, tt.cause)
			case o.Status != outcome.StatusStopped && o.Status != outcome.StatusSucceeded:
				t.Errorf("it ended as %s", o.Status)
			}
			neighbour.Wait()
			if b, err := os.ReadFile(filepath.Join(dir, "signals")); err == nil && (strings.Count(string(b), "EOF") > 1 || strings.Count(string(b), "TERM") > 1) {
				t.Errorf("the session got %q", b)
			}
			steps := map[string]int{}
			for _, step := range o.Cleanup.Steps {
				if steps[string(step.Name)]++; steps[string(step.Name)] > 1 {
					t.Errorf("%s twice: %+v", step.Name, o.Cleanup.Steps)
				}
			}
		})
	}
}

func (s *Session) isStopping() bool {
	return s.traffic.hasEnded()
}

func (s *Session) isWriting() bool {
	s.traffic.mu.Lock()
	defer s.traffic.mu.Unlock()
	return s.traffic.writes > 0
}

// A start that races with a shutdown has happened and is ended, or is refused.
// No test is beside this one: nothing may have the pipe at the very return.
func TestShutdownDuringStarts(t *testing.T) {
	random := rand.New(rand.NewPCG(seed(t), 0))
	for range size(20, 5, 100) {
		a := newAdapter(t)
		whole := newHeldPipe(t)
		var both sync.WaitGroup
		for range 4 {
			both.Go(func() {
				s, err := a.Start(t.Context(), heldBy(whole, `exec sleep `+tooLong))
				if (s == nil) == (err == nil) {
					t.Errorf("%v, %v", s, err)
				}
				switch {
				case s != nil:
					s.is(t, outcome.StatusStopped, outcome.CauseShutdown)
				case !errors.Is(err, ErrShutdown) || !errors.Is(err, outcome.ErrNotStarted) && !errors.Is(err, outcome.ErrUnknown):
					t.Errorf("the error of a start is %v", err)
				}
			})
		}
		time.Sleep(time.Duration(random.IntN(int(60 * time.Millisecond))))
		if err := a.Shutdown(t.Context()); err != nil {
			t.Error(err)
		}
		both.Wait()
		whole.isFree(0)
	}
}

// Who gives up while a supervisor is started takes the guard from nobody: a
// session that shares it is still proven to be gone when its supervisor is lost.
func TestCanceledStartKeepsTheGuard(t *testing.T) {
	t.Parallel()
	a := newAdapter(t)
	whole := newHeldPipe(t)
	s := startHeld(t, a, heldBy(whole, `echo up; read -r line; kill -KILL $PPID; exec sleep `+tooLong))
	canceled := 0
	for i := range 20 {
		ctx, cancel := context.WithTimeout(t.Context(), time.Duration(i)*time.Millisecond)
		o, _ := a.Invoke(ctx, sh("exit 0"))
		cancel()
		if o.Status == outcome.StatusNotStarted {
			canceled++
		}
	}
	if canceled == 0 {
		t.Fatal("nobody gave up before the start")
	}
	if _, err := io.WriteString(s.Stdin(), "go\n"); err != nil {
		t.Fatal(err)
	}
	o := s.is(t, outcome.StatusUnknown, outcome.CauseSupervisorLost)
	if o.Cleanup.Result != outcome.CleanupEmpty || o.Cleanup.Proof != outcome.ProofChildList {
		t.Errorf("cleanup %+v", o.Cleanup)
	}
	whole.isFree(atOnce)
}

// One session whose end fails stops neither the end of the others nor the return,
// which says so; and what fails at first is tried once more.
func TestShutdownGoesOnAfterAFailure(t *testing.T) {
	t.Parallel()
	for _, when := range []string{"never", "in time", "long before"} {
		t.Run("thawed "+when, func(t *testing.T) {
			thawed := when != "never"
			t.Parallel()
			f := newFreezer(t)
			a, err := New(Options{})
			if err != nil {
				t.Fatal(err)
			}
			stuck, other := newHeldPipe(t), newHeldPipe(t)
			c := heldBy(stuck, `echo $$ >"$FREEZER"/cgroup.procs; echo up; exec sleep `+tooLong)
			c.Env = append(os.Environ(), "FREEZER="+f.dir)
			c.Owner = "stuck"
			c.Stop = StopPolicy{StdinGrace: -1, Grace: -1, KillWait: 100 * time.Millisecond}
			s := startHeld(t, a, c)
			startHeld(t, a, heldBy(other, `echo up; cat`))
			f.freeze()
			var failed *outcome.CleanupError
			if err := s.Stop(t.Context()); !errors.As(err, &failed) || failed.ID != s.ID() || len(failed.Cleanup.Survivors) != 1 {
				t.Errorf("Stop: %v", err)
			}
			if thawed {
				f.thaw()
			}
			if when == "long before" {
				// The supervisor that had it has ended by then, and its guard.
				stuck.isFree(patience)
				time.Sleep(4 * reapTime)
			}
			began := time.Now()
			err = a.Shutdown(t.Context())
			if took := time.Since(began); took > s.v.cmd.waits(false).bound()+retryLimit+2*time.Second {
				t.Errorf("it took %v", took)
			}
			other.isFree(atOnce)
			failed = nil
			if thawed {
				stuck.isFree(atOnce)
				if err != nil {
					t.Errorf("Shutdown: %v", err)
				}
			} else {
				if !errors.As(err, &failed) || failed.ID != s.ID() {
					t.Errorf("Shutdown: %v", err)
				}
				f.thaw()
				stuck.isFree(patience) // without anybody asking
			}
			if again := a.Shutdown(t.Context()); fmt.Sprint(again) != fmt.Sprint(err) {
				t.Errorf("again: %v, first %v", again, err)
			}
		})
	}
}

// reapTime is how often the helpers that were let go of are looked after.
const reapTime = time.Second

// A server that needs time to save its state when its input ends gets that, and
// no signal (cases/81).
func TestSessionSavesItsState(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	a := newAdapter(t)
	c := sh(`trap 'touch "$DIR"/term' TERM; while read -r line; do :; done; touch "$DIR"/eof; sleep 1.5; touch "$DIR"/saved`)
	c.Env = append(os.Environ(), "DIR="+dir)
	c.Stop.StdinGrace = time.Minute // it is over before
	s := start(t, a, c)
	if err := s.Stop(t.Context()); err != nil {
		t.Error(err)
	}
	if o := s.is(t, outcome.StatusStopped, outcome.CauseCanceled); o.Exit == nil || o.Exit.Code != 0 || o.Exit.Signal != 0 {
		t.Errorf("exit %+v", o.Exit)
	}
	files, err := filepath.Glob(filepath.Join(dir, "*"))
	for i := range files {
		files[i] = filepath.Base(files[i])
	}
	if got := strings.Join(files, " "); err != nil || got != "eof saved" {
		t.Errorf("there is %q, %v", got, err)
	}
}

// What a server leaves behind that ends with its input is ended, and counted
// (cases/87); that it has exited is told before.
func TestSessionLeavesSomething(t *testing.T) {
	t.Parallel()
	a := newAdapter(t)
	whole := newHeldPipe(t)
	c := heldBy(whole, `setsid sh -c 'trap "" TERM; echo up; sleep `+tooLong+`' </dev/null & while read -r line; do :; done; exit 0`)
	c.Stop.Grace = time.Second
	s := startHeld(t, a, c)
	closed := time.Now()
	if err := s.Stdin().Close(); err != nil {
		t.Error(err)
	}
	select {
	case <-s.Exited():
		if exit, ok := s.Exit(); !ok || exit.Code != 0 {
			t.Errorf("its exit is %v, %v", exit, ok)
		}
		if _, over := s.Outcome(); over && time.Since(closed) < c.Stop.Grace {
			t.Error("it is over at once, although something ignores SIGTERM for a second")
		}
	case <-time.After(patience):
		t.Fatal("nobody tells of the exit")
	}
	o := s.is(t, outcome.StatusSucceeded, outcome.CauseExit)
	whole.isFree(atOnce)
	if len(o.Cleanup.Ended) != 2 {
		t.Errorf("ended %+v, want the two that were left", o.Cleanup.Ended)
	}
	isEmpty(t, o)
}

// A caller that is idle has no helper, zombie, descriptor or goroutine of ours:
// at once after a shutdown, and after the idle time without.
func TestNothingIsLeftOfUs(t *testing.T) {
	t.Parallel()
	inRole(t, time.Minute, "is idle in the end", t.TempDir())
}

func idleInTheEndRole(args []string) error {
	warm, err := os.Open(os.DevNull) // the runtime's own descriptors
	if err != nil {
		return err
	}
	time.Sleep(time.Millisecond)
	warm.Close()
	ignored := goleak.IgnoreCurrent()
	before := descriptors()
	for _, o := range []Options{{}, {MaxIdle: 1}, {StateDir: args[0]}} {
		for _, shutdown := range []bool{true, false} {
			if !shutdown && o != (Options{}) {
				continue // it takes its time, and a journal is open until the shutdown
			}
			a, err := New(o)
			if err != nil {
				return err
			}
			for range 3 {
				s, err := a.Start(context.Background(), Command{Path: "cat", TempDir: true, Stdin: Pipe, Stdout: Pipe, IdleTimeout: time.Hour})
				if err != nil {
					return err
				}
				if _, err := io.WriteString(s.Stdin(), "x\n"); err != nil {
					return err
				}
				if err := s.Stop(context.Background()); err != nil {
					return err
				}
				if _, err := a.Invoke(context.Background(), Command{Path: "true"}); err != nil {
					return err
				}
			}
			if _, err := a.Start(context.Background(), Command{Path: "there is no such program"}); err == nil {
				return errors.New("it started")
			}
			if shutdown {
				if err := a.Shutdown(context.Background()); err != nil {
					return err
				}
			}
			state := func() error {
				if c := children(); c != "" {
					return fmt.Errorf("children: %s", c)
				}
				if n := descriptors(); n != before {
					return fmt.Errorf("%d descriptors, before %d", n, before)
				}
				return goleak.Find(ignored)
			}
			for end := time.Now(); ; time.Sleep(10 * time.Millisecond) {
				err := state()
				if err == nil {
					break
				}
				patient := 20 * time.Second // the idle time of a supervisor is 5 s, and then that of the guard
				if shutdown {
					patient = 0
				}
				if time.Since(end) > patient {
					return fmt.Errorf("%+v, shut down: %v: %w", o, shutdown, err)
				}
			}
			runtime.KeepAlive(a)
		}
	}
	return nil
}
