// Package adapter runs external command-line programs for agent peers and
// guarantees how they end: on cancellation, timeout, shutdown or the death of
// the caller, everything that a program started is gone within a bounded time,
// nothing else was touched, and the outcome says what is known about the
// result.
//
// Importing it is all it takes to embed it: the helper process that keeps hold
// of a program's tree is the caller's own executable, started again, and is
// taken over during package initialisation, before main. Some of the caller's
// own init functions can run in it. A c-shared library, a plugin, a setuid
// executable, or a program with a heavy start sets Options.Supervisor to an
// installed curfew command instead.
//
// The package installs no signal handler, never waits for children it did not
// start, and leaves no descriptor, goroutine, zombie or file behind.
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
	// Supervisor is the path of an installed curfew command to use as helper;
	// "" is the running executable.
	Supervisor string
	// MaxIdle is how many idle helpers are kept for the next invocation, 0
	// means 64. They end by themselves after 5 s, or in Shutdown.
	MaxIdle int
	// NoCgroup has no CLI run in a cgroup of its own. Without it, where the
	// caller may make cgroups (v2) below its own, there is one for each CLI: it
	// ends storms of processes faster, and those that run as another user. Nothing
	// that is promised needs it.
	NoCgroup bool
	// StateDir, if not "", is the directory of a journal: what is in flight is
	// recorded there, on disk, before it starts, and its end before it is reported,
	// so that Recover can tell a later caller what became of it if this one dies.
	// It is made if it is not there, and several callers may share it. It should be
	// on a local file system. It holds no arguments, environment or output. What has
	// ended is kept for 30 days, and the last 1000.
	StateDir string
	// Logger, if not nil, gets one line when an invocation starts and one when
	// it ends. Never arguments, environment, input or output. A line that takes longer
	// than 100 ms is not waited for, and the invocation's other is left out.
	Logger *slog.Logger
}

// Adapter runs commands and keeps a register of what it runs. The zero value is
// one with the zero Options. It is safe for concurrent use.
type Adapter struct {
	pool    supervisor.Pool
	journal *journal.Journal // nil: none
	log     *slog.Logger

	noCgroup bool

	mu sync.Mutex
	// Everything that was registered before anything of it could run, until it is
	// shown to be gone: what is running, and what ended without that proof.
	running  map[*invocation]struct{}
	unproven map[*invocation]struct{}
	down     chan struct{} // made by Shutdown, closed when that is complete; then:
	downErr  error
}

// ErrShutdown is the cause of what an Adapter refuses or ends after Shutdown.
var ErrShutdown = errors.New("adapter: shut down")

// New returns an Adapter. It starts nothing; a problem with Options.Supervisor
// is told here if it can be seen from outside.
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

// buildMode is how this program was built, "" if that is not known.
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

// Invoke runs c and blocks until nothing of it is left, or until it is known
// and reported that something is. From the end of ctx it takes at most
// c.Bound(), and 1 s more with Options.StateDir if the disk does not answer.
//
// The outcome is always complete. The error beside it states the same fact: it
// is nil if the command succeeded, and otherwise outcome.ErrNotStarted (with an
// *outcome.StartError), an *outcome.ExitError, or outcome.ErrUnknown, in which
// errors.Is finds context.Canceled or context.DeadlineExceeded and the cause of
// ctx. An *outcome.CopyError is in it for each of Stdin, Stdout and Stderr that
// failed, also if the command succeeded.
//
// Nothing is ever retried: after outcome.ErrUnknown the program may have done
// what it was asked to do.
func (a *Adapter) Invoke(ctx context.Context, c Command) (outcome.Outcome, error) {
	v := newInvocation(a, ctx, c, hooks{})
	if a.register(v) {
		v.invoke()
		a.unregister(v)
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

// proven lets go of what has turned out to be gone.
func (a *Adapter) proven(v *invocation) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.unproven, v)
}

// StopOwner ends what was started with the given Command.Owner, sessions and
// invocations, all at once and each as its StopPolicy says, and nothing else.
// What that owner starts meanwhile is not ended. It blocks until all of it is
// over, at most for the longest Bound among them and one more try where
// something is not shown to be gone, and returns how they ended. If ctx ends
// before, StopOwner returns its cause with the outcomes that there are, and they
// go on ending.
//
// The error joins an *outcome.CleanupError for each that is not shown to be gone. An
// owner "" is refused: it would be everything that has no owner.
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
		default: // ctx has ended before it
		}
	}
	return outcomes, err
}

var errNoOwner = errors.New("adapter: stop owner: the owner is empty; Shutdown stops everything")

// registered returns what is running, and what has ended without a proof that it
// is gone.
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

// end ends all at once, and waits for them. It goes on after a failure, and tries
// once more with what failed.
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
			late = true // which is said once
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

// Shutdown refuses new work, ends everything that is running all at once, waits
// for it, tries once more where something is not shown to be gone, and releases
// the helpers. What is being stopped already, by Stop or for want of traffic, is
// waited for and not stopped again; what has ended is not touched. It blocks at
// most for the longest Bound of all and that one more try. If ctx ends before,
// Shutdown returns its cause, and it goes on without the caller. The error joins
// an *outcome.CleanupError for each that is not shown to be gone.
//
// It may be called again, and from several goroutines: there is one shutdown, for
// which all wait.
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
