package supervisor

import (
	"context"
	"fmt"
	"runtime"
	"sync"
	"time"
)

// Pool keeps idle helpers for the next invocation. The zero value is ready.
type Pool struct {
	// Executable to start helpers from; "" is the running one.
	Executable string
	// IdleTime is how long an idle helper is kept; 0 means DefaultIdleTime.
	IdleTime time.Duration
	// MaxIdle is how many idle helpers are kept; 0 means DefaultMaxIdle.
	MaxIdle int

	mu       sync.Mutex
	idle     []*Helper // the one used last is last
	straying []*Helper // let go of and not reaped yet
	timer    *time.Timer
	closed   bool
}

// Defaults of a Pool.
const (
	DefaultIdleTime = 5 * time.Second
	DefaultMaxIdle  = 64
)

// reapLimit bounds the wait for a helper that was told to end. It has nothing
// left to do.
const reapLimit = time.Second

// Get returns a helper whose CLI will inherit just what one started by the
// calling thread would inherit now. It takes an idle one if that is so, or
// starts one. It blocks until the helper has answered.
func (p *Pool) Get(ctx context.Context) (*Helper, error) {
	for {
		h, now, err := p.takeOrSpawn()
		if err != nil {
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
			continue // one that has ended meanwhile; each is met once
		}
		err = h.greet(ctx)
		if err == nil && h.known && now != nil {
			if what := now.Differs(&h.state); what != "" {
				err = fmt.Errorf("%w: the CLI would not inherit what it should: %s", errRefused, what)
			}
		}
		if err != nil {
			h.Kill()
			p.letGo(h)
			return nil, err
		}
		h.known = h.known && now != nil
		return h, nil
	}
}

// takeOrSpawn does what depends on the calling thread. The state returned is
// nil where it cannot be read: then no helper is used twice.
func (p *Pool) takeOrSpawn() (*Helper, *State, error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	now, err := readState(0)
	if err != nil {
		h, err := spawn(p.Executable)
		return h, nil, err
	}
	if h := p.take(&now, noFileLimit()); h != nil {
		return h, &now, nil
	}
	h, err := spawn(p.Executable)
	return h, &now, err
}

// take takes the helper used last that fits. Those that do not fit end when
// their time is over: another thread may be what they fit.
func (p *Pool) take(now *State, noFile uint64) *Helper {
	p.mu.Lock()
	defer p.mu.Unlock()
	for i := len(p.idle) - 1; i >= 0; i-- {
		h := p.idle[i]
		if h.state == *now && h.noFile == noFile {
			p.idle = append(p.idle[:i], p.idle[i+1:]...)
			return h
		}
	}
	return nil
}

// awaitReady waits for the helper to have made itself ready, which it does
// while the caller does something else.
func (h *Helper) awaitReady(ctx context.Context) bool {
	if h.ready {
		return true
	}
	_ = h.conn.SetReadDeadline(time.Now().Add(reapLimit))
	stop := context.AfterFunc(ctx, func() { _ = h.conn.SetReadDeadline(time.Unix(1, 0)) })
	m, _, err := h.read()
	if !stop() {
		return false
	}
	_ = h.conn.SetReadDeadline(time.Time{})
	h.ready = err == nil && m.Ready != nil
	return h.ready
}

// Put gives a helper back after its Done with an empty tree.
func (p *Pool) Put(h *Helper) {
	p.mu.Lock()
	idleTime, most := p.IdleTime, p.MaxIdle
	if idleTime == 0 {
		idleTime = DefaultIdleTime
	}
	if most == 0 {
		most = DefaultMaxIdle
	}
	if p.closed || !h.known || len(p.idle) >= most {
		p.mu.Unlock()
		p.letGo(h)
		return
	}
	h.expires = time.Now().Add(idleTime)
	p.idle = append(p.idle, h)
	if p.timer == nil {
		p.timer = time.AfterFunc(idleTime, p.expire)
	}
	p.mu.Unlock()
}

// Discard lets go of a helper that is not to be used again: lost, or busy with
// survivors.
func (p *Pool) Discard(h *Helper) { p.letGo(h) }

func (p *Pool) letGo(h *Helper) {
	if h.Close(0) {
		return
	}
	p.mu.Lock()
	p.straying = append(p.straying, h)
	if p.timer == nil && !p.closed {
		p.timer = time.AfterFunc(reapLimit, p.expire)
	}
	p.mu.Unlock()
}

// expire ends what was idle too long and reaps what has ended.
func (p *Pool) expire() {
	p.mu.Lock()
	now := time.Now()
	var old []*Helper
	keep := p.idle[:0]
	for _, h := range p.idle {
		if now.Before(h.expires) {
			keep = append(keep, h)
		} else {
			old = append(old, h)
		}
	}
	clear(p.idle[len(keep):])
	p.idle = keep
	straying := p.straying[:0]
	for _, h := range p.straying {
		if !h.Close(0) {
			straying = append(straying, h)
		}
	}
	clear(p.straying[len(straying):])
	p.straying = straying
	p.timer = nil
	if !p.closed && len(p.idle)+len(p.straying)+len(old) > 0 {
		next := reapLimit
		if len(old)+len(p.straying) == 0 {
			next = max(time.Until(p.idle[0].expires), time.Millisecond)
		}
		p.timer = time.AfterFunc(next, p.expire)
	}
	p.mu.Unlock()
	for _, h := range old {
		p.letGo(h)
	}
}

// Close ends every idle helper and waits for it, bounded. Helpers that are in
// use are let go of when they come back. It reports how many helpers are still
// there: they are busy with survivors.
func (p *Pool) Close() int {
	p.mu.Lock()
	p.closed = true
	all := append(p.idle, p.straying...)
	p.idle, p.straying = nil, nil
	if p.timer != nil {
		p.timer.Stop()
		p.timer = nil
	}
	p.mu.Unlock()
	for _, h := range all {
		h.Close(0) // tell them all before waiting for one
	}
	end := time.Now().Add(reapLimit)
	left := 0
	for _, h := range all {
		if !h.Close(time.Until(end)) {
			p.mu.Lock()
			p.straying = append(p.straying, h)
			p.mu.Unlock()
			left++
		}
	}
	return left
}
