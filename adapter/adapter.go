// Package adapter runs external command-line programs (CLIs) and guarantees how they
// end: on cancellation, timeout, shutdown or the death of the caller, every process that a
// CLI started ends within a bounded time, no other process is touched, and the outcome says
// what is known about the result. It is for Go programs, such as agents, that call programs
// which they do not control.
//
// Adapter.Invoke runs a CLI to its end. Adapter.Start starts a long-lived one, a Session,
// such as a server on stdio. Command says what to run, and StopPolicy how it is stopped.
//
// To embed the package, import it. The helper processes that hold the CLIs' trees are the
// caller's own executable, started again; the package takes them over during package
// initialisation, before main. Some of the caller's own init functions can run in them. A
// c-shared library, a plugin, a setuid executable, or a program with a heavy start sets
// Options.Supervisor to an installed curfew command instead.
//
// The package installs no signal handler, never waits for children that it did not start,
// and leaves no descriptor, goroutine, zombie or file behind.
package adapter

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"runtime/debug"
	"sync"

	"curfew/internal/journal"
	"curfew/internal/supervisor"
	"curfew/internal/verdict"
	"curfew/outcome"
)

// Options configures an Adapter. The zero value is ready to use.
type Options struct {
	// Supervisor is the path of an installed curfew command to use as helper. ""
	// means the running executable.
	Supervisor string
	// MaxIdle is how many idle helpers are kept for the next invocation. 0 means
	// 64. An idle helper ends after 5 s, and in Shutdown.
	MaxIdle int
	// NoCgroup disables the cgroup (v2) of each invocation. By default each CLI gets
	// one where the caller may create it: it ends storms of processes faster, and
	// processes of other users. No guarantee depends on it.
	NoCgroup bool
	// StateDir, if not "", is the directory of a journal. Each invocation is recorded
	// there, on disk, before it starts, and its end before it is reported, so that
	// Recover can report it to a later caller if this one dies. The directory is
	// created if it does not exist. Several callers may share it. It should be on a
	// local file system. The journal has no arguments, environment or output. It keeps
	// the last 1000 invocations that have ended, for 30 days.
	StateDir string
	// Logger, if not nil, gets a line when an invocation starts and a line when it
	// ends, without arguments, environment, input or output. A line that takes longer
	// than 100 ms is not waited for, and the invocation's next line is left out.
	Logger *slog.Logger
}

// Adapter runs commands and keeps a register of what it runs. The zero value is an
// Adapter with the zero Options. It is safe for concurrent use. A program that has made
// one calls Shutdown in the end.
type Adapter struct {
	pool    supervisor.Pool
	journal *journal.Journal // nil: none
	log     *slog.Logger

	noCgroup bool

	mu sync.Mutex
	// An invocation is registered before any process of it can run, until its tree is
	// shown to be empty: those that run, and those that ended without that proof.
	running  map[*invocation]struct{}
	unproven map[*invocation]struct{}
	down     chan struct{} // made by Shutdown, and closed when that is complete; guards:
	downErr  error
}

// ErrShutdown is the cause of what an Adapter refuses or stops after Shutdown.
var ErrShutdown = errors.New("adapter: shut down")

// New returns an Adapter. It starts no process. It returns an error if
// Options.Supervisor cannot be executed, as far as that can be checked without starting
// it, and if Options.StateDir cannot be used.
func New(o Options) (*Adapter, error) {
	if err := supervisor.Check(o.Supervisor); err != nil {
		return nil, err
	}
	a := &Adapter{
		pool: supervisor.Pool{Executable: o.Supervisor, BuildMode: buildMode(), MaxIdle: o.MaxIdle},
		log:  o.Logger, noCgroup: o.NoCgroup,
	}
	if o.StateDir != "" {
		dir, err := filepath.Abs(o.StateDir)
		if err != nil {
			return nil, fmt.Errorf("adapter: Options.StateDir %q: %w", o.StateDir, err)
		}
		if a.journal, err = journal.Open(dir); err != nil {
			return nil, err
		}
		a.pool.StateDir, a.pool.Peer = a.journal.Dir(), a.journal.Peer()
	}
	return a, nil
}

// buildMode returns how this program was built, "" if that is not known.
func buildMode() string {
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, s := range info.Settings {
			if s.Key == "-buildmode" {
				return s.Value
			}
		}
	}
	return ""
}

var shared = sync.OnceValue(func() *Adapter {
	a, err := New(Options{})
	if err != nil {
		panic("adapter: the zero Options are not accepted: " + err.Error())
	}
	return a
})

// Invoke runs c on an Adapter that is shared by the whole program and never
// shut down. See Adapter.Invoke.
func Invoke(ctx context.Context, c Command) (outcome.Outcome, error) {
	return shared().Invoke(ctx, c)
}

// Invoke runs c and blocks until no process of it is alive, or until it is known
// and reported that one is. After the end of ctx it blocks at most for c.Bound().
//
// The outcome is always complete. The error beside it states the same fact: it is nil
// if the CLI succeeded, and otherwise outcome.ErrNotStarted (with an
// *outcome.StartError), an *outcome.ExitError, or outcome.ErrUnknown, in which
// errors.Is finds context.Canceled or context.DeadlineExceeded and the cause of ctx.
// It has an *outcome.CopyError for each of Stdin, Stdout and Stderr that failed, also
// if the CLI succeeded.
//
// Invoke never retries: after outcome.ErrUnknown the CLI may have done what it was
// asked to do.
//
// A StopCause as the cause of ctx says with which signal the CLI is stopped.
func (a *Adapter) Invoke(ctx context.Context, c Command) (outcome.Outcome, error) {
	v := newInvocation(a, ctx, c, hooks{})
	if a.register(v) {
		defer a.unregister(v)
		v.invoke()
	}
	return v.outcome, v.outcome.Err
}

// register adds v to what Shutdown and StopOwner end. After Shutdown has begun it
// refuses v and reports false: v must not start then.
func (a *Adapter) register(v *invocation) bool {
	a.mu.Lock()
	refused := a.down != nil
	if !refused {
		if a.running == nil {
			a.running, a.unproven = map[*invocation]struct{}{}, map[*invocation]struct{}{}
		}
		a.running[v] = struct{}{}
	}
	a.mu.Unlock()
	if refused {
		v.notStarted(&refusal{outcome.CauseShutdown, verdict.Why{Cause: ErrShutdown}})
	}
	return !refused
}

// unregister removes v, which has ended. It is kept among the unproven if its tree was
// not shown to be gone.
func (a *Adapter) unregister(v *invocation) {
	v.wiring.takeBack(v.outcome.Cleanup.Result == outcome.CleanupLeft)
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.running, v)
	if v.cleanupErr() != nil {
		a.unproven[v] = struct{}{}
	}
	close(v.done)
}

// proven removes v from the unproven: its tree was shown to be empty after all.
func (a *Adapter) proven(v *invocation) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.unproven, v)
}

// StopOwner stops all sessions and invocations that have the given Command.Owner, at
// once and each by its StopPolicy, and returns how they ended. It does not stop what
// that owner starts meanwhile. It blocks until all have ended, at most for the longest
// of their bounds, and up to 6 s more if a tree is not shown to be empty. If ctx ends
// before, StopOwner returns its cause with the outcomes that there are, and the others go
// on ending.
//
// The error joins an *outcome.CleanupError for each tree that is not shown to be empty.
// The owner "" is refused, so that a label that was lost does not stop everything.
func (a *Adapter) StopOwner(ctx context.Context, owner string) ([]outcome.Outcome, error) {
	if owner == "" {
		return nil, errNoOwner
	}
	caller := newCallerContext(ctx)
	defer caller.release()
	running, unproven := a.registered(func(v *invocation) bool { return v.cmd.Owner == owner })
	err := a.end(caller, running, unproven, ErrOwnerStopped)
	var outcomes []outcome.Outcome
	for _, v := range running {
		select {
		case <-v.done:
			outcomes = append(outcomes, v.outcome)
		default: // ctx has ended before
		}
	}
	return outcomes, err
}

var errNoOwner = errors.New("adapter: stop owner: the owner is empty; Shutdown stops everything")

// registered returns the invocations that run, and those that have ended without a proof
// that their tree is empty.
func (a *Adapter) registered(is func(*invocation) bool) (running, unproven []*invocation) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for v := range a.running {
		if is(v) {
			running = append(running, v)
		}
	}
	for v := range a.unproven {
		if is(v) {
			unproven = append(unproven, v)
		}
	}
	return running, unproven
}

// end stops all at once, and waits for them. It goes on after a failure, and looks once
// more at the trees that were not shown to be empty.
func (a *Adapter) end(ctx *callerContext, running, unproven []*invocation, why error) error {
	errs := make(chan error)
	for _, v := range running {
		go func() {
			v.shut(why)
			select {
			case <-v.done:
				errs <- v.awaitGone(ctx)
			case <-ctx.Done():
				errs <- errLate
			}
		}()
	}
	for _, v := range unproven {
		go func() { errs <- v.awaitGone(ctx) }()
	}
	var all []error
	late := false
	for range len(running) + len(unproven) {
		err := <-errs
		if err == errLate {
			late = true // which is reported once
			continue
		}
		all = append(all, err)
	}
	if late {
		all = append(all, ctx.given())
	}
	return errors.Join(all...)
}

// errLate means that the caller's context ended first.
var errLate = errors.New("adapter: the context ended first")

// Shutdown refuses new invocations, stops all that run at once, waits for them, looks once
// more at trees that are not shown to be empty, and releases the helpers. It waits for what
// is being stopped already and does not stop it again; what has ended it does not touch. It
// blocks at most for the longest of the bounds, and up to 6 s more if a tree is not shown to
// be empty. If ctx ends before, Shutdown returns its cause, and goes on in the background.
// The error joins an *outcome.CleanupError for each tree that is not shown to be empty.
//
// It may be called again, and from several goroutines: there is one shutdown, and all
// callers wait for it and get the same error.
func (a *Adapter) Shutdown(ctx context.Context) error {
	caller := newCallerContext(ctx)
	defer caller.release()
	a.mu.Lock()
	first := a.down == nil
	if first {
		a.down = make(chan struct{})
	}
	a.mu.Unlock()
	if first {
		running, unproven := a.registered(func(*invocation) bool { return true })
		go func() {
			defer close(a.down)
			a.downErr = a.end(newCallerContext(context.Background()), running, unproven, ErrShutdown)
			a.pool.Close()
			if a.journal != nil {
				a.downErr = errors.Join(a.downErr, a.journal.Close())
			}
		}()
	}
	select {
	case <-a.down:
		return a.downErr
	case <-caller.Done():
		return caller.given()
	}
}

func newID() string { return rand.Text() }
