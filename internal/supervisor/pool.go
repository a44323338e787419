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

// Pool has the helpers of a caller: the guards, and the idle supervisors that
// are kept for the next invocation. The zero value is ready.
type Pool struct {
	// Executable to start helpers from; "" is the running one.
	Executable string
	// BuildMode is how this program was built, "" if that is not known. Libraries
	// cannot do without an Executable.
	BuildMode string
	// IdleTime is how long an idle helper is kept; 0 means DefaultIdleTime.
	IdleTime time.Duration
	// MaxIdle is how many idle supervisors are kept; 0 means DefaultMaxIdle.
	MaxIdle int
	// StateDir and Peer are the journal's directory and our name in it, if there
	// is one.
	StateDir, Peer string

	once  sync.Once
	start chan struct{} // held by who starts a guard: the others wait for it and use it

	mu       sync.Mutex
	guards   []*guardClient
	idle     []*Client // the one used last is last
	straying []*Client // let go of and not ended yet
	timer    *time.Timer
	closed   bool

	serving map[*Client]bool // supervisors that Get has given out
	watch   *time.Timer      // of lookAfter, as long as there is one
}

// Defaults of a Pool.
const (
	DefaultIdleTime = 5 * time.Second
	DefaultMaxIdle  = 64
)

// journal is where helpers find the journal.
func (p *Pool) journal() []string {
	if p.StateDir == "" {
		return nil
	}
	return []string{wire.StateVar + "=" + p.StateDir, wire.PeerVar + "=" + p.Peer}
}

// reapLimit bounds the wait for a helper that was told to end. It has nothing
// left to do.
const reapLimit = time.Second

// closeLimit is the same for those that were told to end for good. They take
// milliseconds, and on a machine under load seconds.
const closeLimit = 10 * time.Second

// Get returns a supervisor whose CLI will inherit just what one started by the
// calling thread would inherit now. It takes an idle one if that is so, or
// starts one. It blocks until the supervisor has answered.
//
// One that is to leave processes behind is alone: its parent is no guard, which
// would end what was to be left.
func (p *Pool) Get(ctx context.Context, alone bool) (*Client, error) {
	h, err := p.get(ctx, alone)
	if err == nil {
		p.giveOut(h)
	}
	return h, err
}

// watchEvery is how often helpers are looked after that nobody else looks after.
const watchEvery = time.Second

func (p *Pool) giveOut(h *Client) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.serving == nil {
		p.serving = map[*Client]bool{}
	}
	p.serving[h] = true
	if p.watch == nil {
		p.watch = time.AfterFunc(watchEvery, p.lookAfter)
	}
}

// takenBack notes that h serves no more. p.mu is held.
func (p *Pool) takenBack(h *Client) {
	delete(p.serving, h)
	if len(p.serving) == 0 && p.watch != nil {
		p.watch.Stop()
		p.watch = nil
	}
}

// lookAfter resumes guards that somebody has suspended, and supervisors without a guard.
// A guard does that for its supervisors. Who is not resumed sees neither the exit of a
// CLI nor a timeout.
func (p *Pool) lookAfter() {
	p.mu.Lock()
	watched := map[*Client]bool{}
	for h := range p.serving {
		if h.guard != nil {
			h = h.guard.Client
		}
		watched[h] = true
	}
	p.mu.Unlock()
	for h := range watched {
		if h.Suspended() {
			_ = h.resume() // one that has ended is not suspended
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.watch != nil {
		p.watch.Reset(watchEvery)
	}
}

func (p *Pool) get(ctx context.Context, alone bool) (*Client, error) {
	began := time.Now()
	for tries := 0; ; tries++ {
		h, fresh, now, err := p.takeOrSpawn(ctx, alone)
		if err != nil {
			if errors.Is(err, errGuardChanged) && tries < guardTries && ctx.Err() == nil {
				continue
			}
			return nil, err
		}
		if h.greeted {
			if h.awaitReady(ctx) {
				return h, nil
			}
			p.letGo(h)
			if ctx.Err() != nil {
				return nil, context.Cause(ctx)
			}
			tries = -1 // one that has ended meanwhile; each is met once
			continue
		}
		err = h.greet(ctx)
		if err == nil && h.known && now != nil {
			if what := now.Differs(&h.state); what != "" {
				err = fmt.Errorf("%w: the CLI would not inherit what it should: %s", errRefused, what)
			}
		}
		if err != nil {
			guard := h.guard
			h.Kill()
			p.letGo(h)
			// A start that was given up at once says nothing against the guard.
			if guard != nil && (ctx.Err() == nil || time.Since(began) > dismissAfter) {
				p.dismiss(guard)
			}
			// A guard that is older can have been changed, or be gone.
			if ctx.Err() == nil && !fresh && tries == 0 {
				continue
			}
			return nil, err
		}
		h.known = h.known && now != nil
		return h, nil
	}
}

// dismissAfter is how long a start must have taken, when it is given up, for its
// guard to be suspected of not starting anything any more. An idle machine takes
// 20 ms.
const dismissAfter = 2 * time.Second

// errGuardChanged means that a guard is not what it was when it was started. One
// can be dismissed in the moment in which another invocation is about to ask it,
// also a fresh one.
var errGuardChanged = errors.New("supervisor: the guard has changed")

// guardTries is how often another guard is taken instead.
const guardTries = 20

// takeOrSpawn does what depends on the calling thread. fresh reports that the
// guard was started for it. The state is nil where it cannot be read: then no
// helper is used twice.
func (p *Pool) takeOrSpawn(ctx context.Context, alone bool) (h *Client, fresh bool, now *State, err error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	state, err := readState(0)
	if err == nil {
		now = &state
	}
	noFile := noFileLimit()
	if now != nil && !alone {
		if h := p.take(now, noFile); h != nil {
			return h, false, now, nil
		}
	}
	if p.Executable == "" && slices.Contains([]string{"c-shared", "c-archive", "plugin"}, p.BuildMode) {
		return nil, true, now, notOurs("this is a " + p.BuildMode + " library")
	}
	if alone || tracking() {
		if h, err = spawn(p.Executable, p.journal()); err == nil {
			h.alone = alone
		}
		return h, true, now, err
	}
	g, fresh, err := p.guard(ctx, now, noFile)
	if err != nil {
		return nil, fresh, now, err
	}
	h, err = g.spawn()
	if err != nil {
		p.release(g)
		p.dismiss(g)
		err = fmt.Errorf("%w: %w", errGuardChanged, err)
	}
	return h, fresh, now, err
}

// guard returns a guard in the given state, which it starts if there is none.
// The guard counts a helper more from then on.
func (p *Pool) guard(ctx context.Context, now *State, noFile uint64) (g *guardClient, fresh bool, err error) {
	p.once.Do(func() { p.start = make(chan struct{}, 1) })
	select {
	case p.start <- struct{}{}:
		defer func() { <-p.start }()
	case <-ctx.Done():
		return nil, false, context.Cause(ctx)
	}
	p.mu.Lock()
	for _, g := range p.guards {
		if now != nil && g.known && g.state == *now && g.noFile == noFile && !g.dismissed && g.alive() {
			g.helpers++
			p.mu.Unlock()
			return g, false, nil
		}
	}
	p.mu.Unlock()
	if g, err = spawnGuard(p.Executable, p.journal()); err != nil {
		return nil, true, err
	}
	if err = g.greet(ctx); err == nil && g.known && now != nil {
		if what := now.Differs(&g.state); what != "" {
			err = fmt.Errorf("%w: the CLI would not inherit what it should: %s", errRefused, what)
		}
	}
	if err != nil {
		g.Kill()
		p.letGo(g.Client)
		return nil, true, err
	}
	g.known = g.known && now != nil
	g.helpers = 1
	p.mu.Lock()
	p.guards = append(p.guards, g)
	p.mu.Unlock()
	return g, true, nil
}

// release counts a helper less for its guard.
func (p *Pool) release(g *guardClient) {
	p.mu.Lock()
	g.helpers--
	p.mu.Unlock()
}

// dismiss has the guard start no more supervisors. Whoever has one of it needs the
// guard still, which is to tell what it has proven should that one be lost: it is
// let go of after the last.
func (p *Pool) dismiss(g *guardClient) {
	p.mu.Lock()
	g.dismissed = true
	needed := g.helpers > 0 && g.alive()
	if !needed {
		p.guards = slices.DeleteFunc(p.guards, func(other *guardClient) bool { return other == g })
	}
	p.mu.Unlock()
	if !needed {
		p.letGo(g.Client)
	}
}

// take takes the supervisor used last that fits. Those that do not fit end when
// their time is over: another thread may be what they fit.
func (p *Pool) take(now *State, noFile uint64) *Client {
	p.mu.Lock()
	defer p.mu.Unlock()
	for i := len(p.idle) - 1; i >= 0; i-- {
		h := p.idle[i]
		if h.state == *now && h.noFile == noFile && (h.guard == nil || !h.guard.dismissed && h.guard.alive()) {
			p.idle = append(p.idle[:i], p.idle[i+1:]...)
			return h
		}
	}
	return nil
}

// awaitReady waits for the supervisor to have made itself ready, which it does
// while the caller does something else.
func (h *Client) awaitReady(ctx context.Context) bool {
	if h.ready {
		return !h.Pending() // it says nothing unasked
	}
	h.conn.SetReadDeadline(time.Now().Add(reapLimit))
	stop := context.AfterFunc(ctx, func() { h.conn.SetReadDeadline(time.Unix(1, 0)) })
	m, err := h.read()
	if !stop() {
		return false
	}
	h.conn.SetReadDeadline(time.Time{})
	h.ready = err == nil && m.Ready != nil
	// One that was killed while it was idle had said that it is ready before.
	return h.ready && !h.Pending()
}

// Put gives a supervisor back after its Done with an empty tree.
func (p *Pool) Put(h *Client) {
	p.mu.Lock()
	p.takenBack(h)
	most := p.MaxIdle
	if most == 0 {
		most = DefaultMaxIdle
	}
	if p.closed || !h.known || h.alone || len(p.idle) >= most {
		p.mu.Unlock()
		p.letGo(h)
		return
	}
	h.expires = time.Now().Add(p.idleTime())
	p.idle = append(p.idle, h)
	p.wakeIn(p.idleTime())
	p.mu.Unlock()
}

func (p *Pool) idleTime() time.Duration {
	if p.IdleTime == 0 {
		return DefaultIdleTime
	}
	return p.IdleTime
}

// wakeIn has expire run, if it is not going to anyway and there is something for
// it to do. p.mu is held.
func (p *Pool) wakeIn(d time.Duration) {
	if p.timer == nil && (!p.closed || len(p.straying) > 0) {
		p.timer = time.AfterFunc(d, p.expire)
	}
}

// Discard lets go of a supervisor that is not to be used again: lost, or busy
// with survivors.
func (p *Pool) Discard(h *Client) { p.letGo(h) }

func (p *Pool) letGo(h *Client) {
	gone := h.Close(0)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.takenBack(h)
	p.note(h, gone)
	p.wakeIn(min(reapLimit, p.idleTime()))
}

// note notes what has become of a helper that was closed. One that has not
// ended keeps its guard, which knows what becomes of the rest. p.mu is held.
func (p *Pool) note(h *Client, gone bool) {
	switch {
	case !gone:
		p.straying = append(p.straying, h)
	case h.guard != nil:
		h.guard.helpers--
	}
}

// expire ends what was idle too long, guards without supervisors too, and reaps
// what has ended.
func (p *Pool) expire() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.timer = nil
	now := time.Now()
	p.idle = slices.DeleteFunc(p.idle, func(h *Client) bool {
		if now.Before(h.expires) {
			return false
		}
		p.note(h, h.Close(0))
		return true
	})
	straying := p.straying
	p.straying = nil
	for _, h := range straying {
		p.note(h, h.Close(0))
	}
	p.guards = slices.DeleteFunc(p.guards, func(g *guardClient) bool {
		if g.helpers > 0 && g.alive() {
			return false
		}
		if !g.Close(0) {
			p.straying = append(p.straying, g.Client)
		}
		return true
	})
	switch {
	case len(p.straying) > 0:
		p.wakeIn(reapLimit)
	case len(p.idle) > 0:
		p.wakeIn(max(time.Until(p.idle[0].expires), time.Millisecond))
	}
}

// Close ends every idle helper and waits for it, bounded. Helpers that are in
// use are let go of when they come back. It reports how many helpers are still
// there: they are busy with survivors, or late. They are reaped when they end. Those
// that stay for what they have left alive are not counted.
func (p *Pool) Close() int {
	p.mu.Lock()
	p.closed = true
	told := p.idle
	for _, g := range p.guards {
		told = append(told, g.Client)
	}
	straying := p.straying
	p.idle, p.straying, p.guards = nil, nil, nil
	if p.timer != nil {
		p.timer.Stop()
		p.timer = nil
	}
	p.mu.Unlock()
	for _, h := range told {
		h.Close(0) // tell them all before waiting for one
	}
	began := time.Now()
	var draining []*Client
	straying = slices.DeleteFunc(straying, func(h *Client) bool {
		if h.drains && !h.Close(0) {
			draining = append(draining, h)
		}
		return h.drains
	})
	left := closeAllUntil(straying, began.Add(reapLimit))
	limit := closeLimit
	if len(left) > 0 {
		limit = reapLimit // one that has survivors does not end, nor does its guard
	}
	left = append(left, closeAllUntil(told, began.Add(limit))...)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.straying = append(append(p.straying, left...), draining...)
	p.wakeIn(reapLimit)
	return len(left)
}

// closeAllUntil closes helpers and returns those that have not ended by then.
func closeAllUntil(all []*Client, end time.Time) (left []*Client) {
	for _, h := range all {
		if !h.Close(time.Until(end)) {
			left = append(left, h)
		}
	}
	return left
}
