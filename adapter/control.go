package adapter

import (
	"context"
	"fmt"
	"os"
	"sync"
	"syscall"
	"time"

	"curfew/internal/supervisor"
	"curfew/internal/wire"
	"curfew/outcome"
)

// control is where requests to stop or signal an invocation meet its supervisor, and
// where it is noted what the supervisor owes.
type control struct {
	id string

	mu     sync.Mutex              // guards what follows
	helper *supervisor.Client      // nil until the request was sent
	cancel context.CancelCauseFunc // ends what comes before the request; nil if that has not begun
	asked  stopRequest             // the first; without a cause there was none
	onStop func()                  // is called with the first; may be nil
	killed bool                    // there is no grace any more
	owed   deadlines               // by the supervisor
	look   time.Time               // when the read of its messages is interrupted; zero: never
	closed bool                    // nothing is owed any more, and no stop is sent
}

// stopRequest is a request to stop an invocation.
type stopRequest struct {
	cause    outcome.Cause
	why      error
	ordinary bool // it is the ordinary end of a session
}

// stop asks for the end of the invocation. Only the first request counts. It blocks at
// most for as long as it takes to send it.
func (c *control) stop(r stopRequest) {
	c.mu.Lock()
	if c.asked.cause != "" || c.closed {
		c.mu.Unlock()
		return
	}
	c.asked = r
	c.owed.stopAt(time.Now())
	if c.onStop != nil {
		c.onStop()
	}
	helper := c.helper
	if helper == nil {
		// Nothing was requested yet. If that is being done just now, the stop is sent
		// after the request.
		if c.cancel != nil {
			c.cancel(r.why)
		}
		c.mu.Unlock()
		return
	}
	c.expect()
	c.mu.Unlock()
	c.sendStop(helper, r)
}

// sendStop sends r. If it cannot be sent, the acknowledgement will be missing too.
func (c *control) sendStop(helper *supervisor.Client, r stopRequest) {
	q := wire.StopRequest{ID: c.id, Cause: r.cause}
	if why, ok := r.why.(*quoted); ok {
		q.Signal, q.Kill = int(why.signal), why.kill
	}
	_ = helper.Stop(q)
}

// kill ends the grace of a stop. It begins one if there is none.
func (c *control) kill() {
	c.stop(stopRequest{cause: outcome.CauseCanceled, why: context.Canceled})
	c.mu.Lock()
	c.killed = true
	helper, closed, cause := c.helper, c.closed, c.asked.cause
	c.mu.Unlock()
	if helper != nil && !closed {
		c.sendKill(helper, cause)
	}
}

// sendKill tells the supervisor that there is no grace. If it cannot be sent, the
// supervisor will soon be lost.
func (c *control) sendKill(helper *supervisor.Client, cause outcome.Cause) {
	_ = helper.Stop(wire.StopRequest{ID: c.id, Cause: cause, Kill: true})
}

// signal sends the leader a signal. os.ErrProcessDone means that there is no leader.
func (c *control) signal(sig syscall.Signal) error {
	if sig < 1 || sig > maxSignal {
		return fmt.Errorf("adapter: signal %d is no signal", int(sig))
	}
	c.mu.Lock()
	helper, closed := c.helper, c.closed
	c.mu.Unlock()
	if helper == nil || closed {
		return os.ErrProcessDone
	}
	return helper.Signal(c.id, sig)
}

// begin makes cancel end what comes before the request, at once if a stop was asked for.
func (c *control) begin(cancel context.CancelCauseFunc) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.asked.cause != "" {
		cancel(c.asked.why)
	}
	c.cancel = cancel
}

// first returns the first request to stop, without a cause if there was none.
func (c *control) first() stopRequest {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.asked
}

// requested reports whether a helper has got the whole request.
func (c *control) requested() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.helper != nil
}

// open notes that helper has got the request, and sends what was asked for before.
func (c *control) open(helper *supervisor.Client) {
	c.mu.Lock()
	c.helper = helper
	early, killed := c.asked, c.killed
	c.expect()
	c.mu.Unlock()
	if early.cause != "" {
		c.sendStop(helper, early)
		if killed {
			c.sendKill(helper, early.cause)
		}
	}
}

// close notes that nothing is owed any more, and returns the first request to stop.
func (c *control) close() stopRequest {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed = true
	c.helper.Interrupt(time.Time{})
	return c.asked
}

// expect interrupts the read of the supervisor's messages when the next one is due.
// c.mu is held.
func (c *control) expect() {
	c.lookAt(c.owed.look(time.Now()))
}

func (c *control) lookAt(at time.Time) {
	c.look = at
	c.helper.Interrupt(at)
}

// stopBegan notes that the supervisor has begun a stop.
func (c *control) stopBegan() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.owed.began(time.Now())
	c.expect()
}

// leaderExited notes that the leader has exited by itself: from here on the supervisor
// owes its report, within the limits that it has for leftovers.
func (c *control) leaderExited() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.owed.acked {
		c.owed.exited(time.Now())
		c.expect()
	}
}

// isLate reports whether the supervisor has not sent in time what it owes. The time can
// have been moved while the read was being interrupted; and a caller that was suspended
// itself finds it long past, with the message in its socket or on the way.
func (c *control) isLate() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	look, lost := c.owed.late(time.Now(), c.look, c.helper.Pending, c.helper.Suspended)
	if !lost {
		c.lookAt(look)
	}
	return lost
}

// swept returns until when the guard may take to end what the supervisor has left, which
// was lost now.
func (c *control) swept(now time.Time) time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.owed.swept(now)
}

// drained returns until when the output is read, the tree being gone now, and until when
// code of the caller's is waited for.
func (c *control) drained(now time.Time) (until, limit time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.owed.drained(now)
}
