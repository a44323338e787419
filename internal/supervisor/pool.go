//go:build linux || darwin

package supervisor

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"time"

	"curfew/internal/wire"
)

// Pool has the helpers of a caller: the guards, the supervisors in use, and the idle ones that
// are kept for the next invocation. The zero value is ready. Its methods are safe for
// concurrent use.
type Pool struct {
	// Executable is what helpers are started from; "" is the running executable.
	Executable string
	// BuildMode is how this program was built, "" if that is not known. Libraries cannot do
	// without an Executable.
	BuildMode string
	// IdleTime is how long an idle supervisor is kept; 0 means DefaultIdleTime.
	IdleTime time.Duration
	// MaxIdle is how many idle supervisors are kept; 0 means DefaultMaxIdle.
	MaxIdle int
	// StateDir and Peer are the journal's directory and our name in it, if there is one.
	StateDir, Peer string

	once  sync.Once
	start chan struct{} // holds one value while a guard is started: the others wait for it and use it

	mu       sync.Mutex
	closed   bool
	guards   []*guardClient
	serving  map[*helper]bool // supervisors that Get has given out
	idle     []*Client        // the one used last is last
	straying []*helper        // closed, and not ended yet
	waking   *time.Timer      // runs wakeHelpers, while supervisors serve
	expiring *time.Timer      // runs expire, if it has something to do
}

// Defaults of a Pool.
const (
	DefaultIdleTime = 5 * time.Second
	DefaultMaxIdle  = 64
)

// journal returns the variables by which helpers find the journal.
func (p *Pool) journal() []string {
	if p.StateDir == "" {
		return nil
	}
	return []string{wire.StateVar + "=" + p.StateDir, wire.PeerVar + "=" + p.Peer}
}

// reapLimit bounds the wait for the end of a helper that was closed and has nothing left to do.
const reapLimit = time.Second

// closeLimit is the same for Close. A helper takes milliseconds to end, and seconds on a machine
// under load.
const closeLimit = 10 * time.Second

// Get returns a supervisor whose CLI will inherit just what a process started by the calling
// thread would inherit now. It takes an idle one that fits, or starts one. It blocks until the
// supervisor has answered.
//
// A supervisor that is to leave processes behind is alone: it is our child, since a guard would
// end what was to be left.
func (p *Pool) Get(ctx context.Context, alone bool) (*Client, error) {
	c, err := p.get(ctx, alone)
	if err == nil {
		p.giveOut(c)
	}
	return c, err
}

// get is Get but for the bookkeeping.
func (p *Pool) get(ctx context.Context, alone bool) (*Client, error) {
	began := time.Now()
	for tries := 0; ; tries++ {
		c, how, err := p.takeOrSpawn(ctx, alone)
		switch {
		case err != nil:
			if !errors.Is(err, errGuardChanged) || tries >= guardTries || ctx.Err() != nil {
				return nil, err
			}
		case how.idle:
			if c.awaitReady(ctx) {
				return c, nil
			}
			p.letGo(&c.helper)
			if ctx.Err() != nil {
				return nil, context.Cause(ctx)
			}
			tries = -1 // it has ended meanwhile; each idle one is met once
		default:
			if err = c.greetIn(ctx, how.now); err == nil {
				return c, nil
			}
			p.refused(ctx, c, began)
			// A guard that was there before can have been changed, or have ended.
			if ctx.Err() != nil || how.fresh || tries > 0 {
				return nil, err
			}
		}
	}
}

// greetIn greets a helper that was started from a thread in the state now, nil if that could
// not be read, and compares.
func (h *helper) greetIn(ctx context.Context, now *State) error {
	if err := h.greet(ctx); err != nil {
		return err
	}
	if h.origin.known && now != nil {
		if what := now.Differs(&h.origin.state); what != "" {
			return fmt.Errorf("%w: the CLI would not inherit what it should: %s", errRefused, what)
		}
	}
	h.origin.known = h.origin.known && now != nil
	return nil
}

// dismissAfter is how long a start that is given up must have taken, for its guard to be
// suspected of starting nothing any more. An idle machine takes 20 ms.
const dismissAfter = 2 * time.Second

// refused ends a supervisor whose greeting failed, and dismisses its guard, unless the start was
// given up at once: then the guard may be well.
func (p *Pool) refused(ctx context.Context, c *Client, began time.Time) {
	c.Kill()
	p.letGo(&c.helper)
	if c.guard != nil && (ctx.Err() == nil || time.Since(began) > dismissAfter) {
		p.dismiss(c.guard)
	}
}

// errGuardChanged means that a guard is not what it was when it was started. A guard, even a new
// one, can be dismissed while another invocation is about to ask it.
var errGuardChanged = errors.New("supervisor: the guard has changed")

// guardTries is how often another guard is taken instead.
const guardTries = 20

// obtained is how takeOrSpawn got a supervisor.
type obtained struct {
	idle  bool   // it was kept from another invocation
	fresh bool   // its guard, if any, was started for it
	now   *State // of the calling thread; nil if it cannot be read: then no helper is used twice
}

// takeOrSpawn does what depends on the calling thread.
func (p *Pool) takeOrSpawn(ctx context.Context, alone bool) (c *Client, how obtained, err error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if state, err := readState(0); err == nil {
		how.now = &state
	}
	noFile := noFileLimit()
	if !alone {
		if c := p.take(how.now, noFile); c != nil {
			how.idle = true
			return c, how, nil
		}
	}
	how.fresh = true
	if p.Executable == "" && slices.Contains([]string{"c-shared", "c-archive", "plugin"}, p.BuildMode) {
		return nil, how, notOurs("this is a " + p.BuildMode + " library")
	}
	if alone || tracking() {
		if c, err = spawn(p.Executable, p.journal()); err == nil {
			c.alone = alone
		}
		return c, how, err
	}
	g, fresh, err := p.guard(ctx, how.now, noFile)
	if how.fresh = fresh; err != nil {
		return nil, how, err
	}
	if c, err = g.spawn(); err != nil {
		p.release(g)
		p.dismiss(g)
		err = fmt.Errorf("%w: %w", errGuardChanged, err)
	}
	return c, how, err
}

// guard returns a guard in the state now, and starts one if there is none. It counts one
// supervisor more for the guard.
func (p *Pool) guard(ctx context.Context, now *State, noFile uint64) (g *guardClient, fresh bool, err error) {
	p.once.Do(func() { p.start = make(chan struct{}, 1) })
	select {
	case p.start <- struct{}{}:
		defer func() { <-p.start }()
	case <-ctx.Done():
		return nil, false, context.Cause(ctx)
	}
	if g := p.findGuard(now, noFile); g != nil {
		return g, false, nil
	}
	if g, err = spawnGuard(p.Executable, p.journal()); err != nil {
		return nil, true, err
	}
	if err = g.greetIn(ctx, now); err != nil {
		g.Kill()
		p.letGo(&g.helper)
		return nil, true, err
	}
	g.supervisors = 1
	p.mu.Lock()
	p.guards = append(p.guards, g)
	p.mu.Unlock()
	return g, true, nil
}

func (p *Pool) findGuard(now *State, noFile uint64) *guardClient {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, g := range p.guards {
		if g.origin.fits(now, noFile) && g.usable() {
			g.supervisors++
			return g
		}
	}
	return nil
}

// release counts one supervisor less for its guard.
func (p *Pool) release(g *guardClient) {
	p.mu.Lock()
	g.supervisors--
	p.mu.Unlock()
}

// dismiss makes the guard start no more supervisors. The guard stays until its last supervisor
// has ended: should one be lost, the guard answers for it.
func (p *Pool) dismiss(g *guardClient) {
	p.mu.Lock()
	g.dismissed = true
	needed := g.needed()
	if !needed {
		p.guards = slices.DeleteFunc(p.guards, func(other *guardClient) bool { return other == g })
	}
	p.mu.Unlock()
	if !needed {
		p.letGo(&g.helper)
	}
}

// usable reports whether supervisors of the guard can be given out. p.mu is held.
func (g *guardClient) usable() bool { return !g.dismissed && g.alive() }

// needed reports whether the guard has to stay for its supervisors. p.mu is held.
func (g *guardClient) needed() bool { return g.supervisors > 0 && g.alive() }

// take takes the idle supervisor that fits and was used last. The others stay until they
// expire: they may match another thread.
func (p *Pool) take(now *State, noFile uint64) *Client {
	p.mu.Lock()
	defer p.mu.Unlock()
	for i, c := range slices.Backward(p.idle) {
		if c.origin.fits(now, noFile) && (c.guard == nil || c.guard.usable()) {
			p.idle = slices.Delete(p.idle, i, i+1)
			return c
		}
	}
	return nil
}

// giveOut notes that c serves.
func (p *Pool) giveOut(c *Client) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.serving == nil {
		p.serving = map[*helper]bool{}
	}
	p.serving[&c.helper] = true
	if p.waking == nil {
		p.waking = time.AfterFunc(watchEvery, p.wakeHelpers)
	}
}

// takeBack notes that h serves no more. p.mu is held.
func (p *Pool) takeBack(h *helper) {
	delete(p.serving, h)
	if len(p.serving) == 0 && p.waking != nil {
		p.waking.Stop()
		p.waking = nil
	}
}

// watchEvery is how often helpers are looked at that no guard looks after.
const watchEvery = time.Second

// wakeHelpers resumes guards that are suspended, and supervisors without a guard. A guard
// does that for its supervisors. A suspended helper sees neither the exit of a CLI nor a
// timeout.
func (p *Pool) wakeHelpers() {
	p.mu.Lock()
	watched := map[*helper]bool{}
	for h := range p.serving {
		if h.guard != nil {
			h = &h.guard.helper
		}
		watched[h] = true
	}
	p.mu.Unlock()
	for h := range watched {
		_, _ = h.wake() // one that has ended is not suspended
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.waking != nil {
		p.waking.Reset(watchEvery)
	}
}

// Put gives a supervisor back after its Done with an empty tree.
func (p *Pool) Put(c *Client) {
	p.mu.Lock()
	p.takeBack(&c.helper)
	most := p.MaxIdle
	if most == 0 {
		most = DefaultMaxIdle
	}
	if p.closed || !c.origin.known || c.alone || len(p.idle) >= most {
		p.mu.Unlock()
		p.letGo(&c.helper)
		return
	}
	c.expires = time.Now().Add(p.idleTime())
	p.idle = append(p.idle, c)
	p.expireIn(p.idleTime())
	p.mu.Unlock()
}

func (p *Pool) idleTime() time.Duration {
	if p.IdleTime == 0 {
		return DefaultIdleTime
	}
	return p.IdleTime
}

// Discard lets go of a supervisor that is not to be used again: lost, or busy with survivors.
func (p *Pool) Discard(c *Client) { p.letGo(&c.helper) }

func (p *Pool) letGo(h *helper) {
	ended := h.Close(0)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.takeBack(h)
	p.noteClosed(h, ended)
	p.expireIn(min(reapLimit, p.idleTime()))
}

// noteClosed notes what has become of a helper that was closed. A supervisor that has not
// ended keeps its guard, which knows what becomes of its tree. p.mu is held.
func (p *Pool) noteClosed(h *helper, ended bool) {
	switch {
	case !ended:
		p.straying = append(p.straying, h)
	case h.guard != nil:
		h.guard.supervisors--
	}
}

// expireIn makes expire run after d, if it is not going to run anyway and has something to
// do. p.mu is held.
func (p *Pool) expireIn(d time.Duration) {
	if p.expiring == nil && (!p.closed || len(p.straying) > 0) {
		p.expiring = time.AfterFunc(d, p.expire)
	}
}

// expire ends what was idle too long, and guards without supervisors, and reaps what has
// ended.
func (p *Pool) expire() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.expiring = nil
	now := time.Now()
	p.idle = slices.DeleteFunc(p.idle, func(c *Client) bool {
		if now.Before(c.expires) {
			return false
		}
		p.noteClosed(&c.helper, c.Close(0))
		return true
	})
	straying := p.straying
	p.straying = nil
	for _, h := range straying {
		p.noteClosed(h, h.Close(0))
	}
	p.guards = slices.DeleteFunc(p.guards, func(g *guardClient) bool {
		if g.needed() {
			return false
		}
		p.noteClosed(&g.helper, g.Close(0))
		return true
	})
	switch {
	case len(p.straying) > 0:
		p.expireIn(reapLimit)
	case len(p.idle) > 0:
		p.expireIn(max(time.Until(p.idle[0].expires), time.Millisecond))
	}
}

// Close ends every idle helper and waits for it, bounded. Helpers that are in use are let go
// of when they come back. It reports how many helpers are still there: they are busy with
// survivors, or late. They are reaped when they end. Those that stay for what they have left
// alive are not counted.
func (p *Pool) Close() int {
	p.mu.Lock()
	p.closed = true
	var closing []*helper
	for _, c := range p.idle {
		closing = append(closing, &c.helper)
	}
	for _, g := range p.guards {
		closing = append(closing, &g.helper)
	}
	straying := p.straying
	p.idle, p.straying, p.guards = nil, nil, nil
	if p.expiring != nil {
		p.expiring.Stop()
		p.expiring = nil
	}
	p.mu.Unlock()
	for _, h := range closing {
		h.Close(0) // all of them before waiting for one
	}
	began := time.Now()
	var draining []*helper
	straying = slices.DeleteFunc(straying, func(h *helper) bool {
		if h.drains && !h.Close(0) {
			draining = append(draining, h)
		}
		return h.drains
	})
	left := closeUntil(straying, began.Add(reapLimit))
	limit := closeLimit
	if len(left) > 0 {
		limit = reapLimit // one that has survivors does not end, nor does its guard
	}
	left = append(left, closeUntil(closing, began.Add(limit))...)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.straying = append(append(p.straying, left...), draining...)
	p.expireIn(reapLimit)
	return len(left)
}

// closeUntil closes helpers and returns those that have not ended by then.
func closeUntil(all []*helper, end time.Time) (left []*helper) {
	for _, h := range all {
		if !h.Close(time.Until(end)) {
			left = append(left, h)
		}
	}
	return left
}
