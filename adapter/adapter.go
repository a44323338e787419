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
	"log/slog"
	"sync"

	"curfew/internal/supervisor"
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
	// Logger, if not nil, gets one line when an invocation starts and one when
	// it ends. Never arguments, environment, input or output.
	Logger *slog.Logger
}

// Adapter runs commands and keeps a register of what it runs. The zero value is
// one with the zero Options. It is safe for concurrent use.
type Adapter struct {
	pool supervisor.Pool
	log  *slog.Logger

	noCgroup bool

	mu      sync.Mutex
	running map[*invocation]struct{}
	closed  bool
	idle    chan struct{} // made by Shutdown, closed when nothing runs any more
}

// ErrShutdown is the cause of what an Adapter refuses or ends after Shutdown.
var ErrShutdown = errors.New("adapter: shut down")

// New returns an Adapter. It starts nothing; a problem with Options.Supervisor
// is told here if it can be seen from outside.
func New(o Options) (*Adapter, error) {
	if err := supervisor.Check(o.Supervisor); err != nil {
		return nil, err
	}
	return &Adapter{
		pool: supervisor.Pool{Executable: o.Supervisor, MaxIdle: o.MaxIdle},
		log:  o.Logger, noCgroup: o.NoCgroup,
	}, nil
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
// c.Stop.Bound().
//
// The outcome is always complete. The error beside it states the same fact: it
// is nil if the command succeeded, and otherwise outcome.ErrNotStarted (with an
// *outcome.StartError), an *outcome.ExitError, or outcome.ErrUnknown, in which
// errors.Is finds context.Canceled or context.DeadlineExceeded and the cause of
// ctx.
//
// Nothing is ever retried: after outcome.ErrUnknown the program may have done
// what it was asked to do.
func (a *Adapter) Invoke(ctx context.Context, c Command) (outcome.Outcome, error) {
	v := newInvocation(a, ctx, c)
	if !a.register(v) {
		return v.notStarted(outcome.CauseShutdown, outcome.Why{Cause: ErrShutdown})
	}
	defer a.unregister(v)
	return v.invoke()
}

func (a *Adapter) register(v *invocation) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.closed {
		return false
	}
	if a.running == nil {
		a.running = map[*invocation]struct{}{}
	}
	a.running[v] = struct{}{}
	return true
}

func (a *Adapter) unregister(v *invocation) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.running, v)
	if a.closed && len(a.running) == 0 {
		close(a.idle)
	}
}

// Shutdown refuses new invocations, ends the running ones all at once, waits
// for them, and releases the helpers. If ctx ends before they have, Shutdown
// returns its cause, and they go on ending. It is idempotent.
func (a *Adapter) Shutdown(ctx context.Context) error {
	a.mu.Lock()
	if !a.closed {
		a.closed, a.idle = true, make(chan struct{})
		if len(a.running) == 0 {
			close(a.idle)
		}
	}
	running := make([]*invocation, 0, len(a.running))
	for v := range a.running {
		running = append(running, v)
	}
	a.mu.Unlock()

	for _, v := range running {
		go v.stop(outcome.CauseShutdown, ErrShutdown)
	}
	select {
	case <-a.idle:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	a.pool.Close()
	return nil
}

func newID() string { return rand.Text() }
