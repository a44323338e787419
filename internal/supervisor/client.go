//go:build linux || darwin

package supervisor

import (
	"context"
	"errors"
	"fmt"
	"os"
	"syscall"
	"time"

	"curfew/internal/wire"
)

// helper is the caller's end of a helper: of a supervisor or of a guard.
type helper struct {
	process
	conn   *wire.Conn
	exe    string       // what was executed
	stderr *startStderr // nil: not kept
	origin origin
	guard  *guardClient // of a supervisor: its parent; nil if we are
	drains bool         // it stays until the processes that it has left alive close their pipes
}

// origin is what a helper has inherited, and passes on to its CLIs.
type origin struct {
	state  State
	known  bool // state could be read on both sides
	noFile uint64
	cgroup string // the content of its /proc/PID/cgroup, when it was started
}

// fits reports whether a CLI inherits just what it would from a thread in the state now.
func (o *origin) fits(now *State, noFile uint64) bool {
	return now != nil && o.known && o.state == *now && o.noFile == noFile
}

// read returns the next message. The pidfd that comes with a hello becomes that of the
// process.
func (h *helper) read() (*wire.Message, error) {
	m, _, files, err := h.conn.Receive()
	if m != nil && m.Hello != nil && len(files) == 1 && h.pidfd < 0 {
		h.pidfd, files = files[0], nil
	}
	closeAll(files)
	return m, err
}

// Interrupt makes Next return at the given time at the latest; the zero time takes that
// back.
func (h *helper) Interrupt(at time.Time) { h.conn.SetReadDeadline(at) }

// Pending reports whether the helper has sent something that was not read yet, or has hung
// up, or is closed.
func (h *helper) Pending() bool { return h.conn.Readable() }

// Close closes the socket: an idle helper ends, one with survivors goes on without us. Close waits
// for the helper's end for at most limit, so that no zombie of ours stays, and reports whether it
// has ended. The guard reaps its children itself.
func (h *helper) Close(limit time.Duration) bool {
	h.conn.Close()
	return h.awaitReaped(limit)
}

// Client is the caller's end of a supervisor, which serves one invocation after another. Its
// methods are for one goroutine at a time, except Stop, Signal, Interrupt and Kill.
type Client struct {
	helper
	id string // stands for this supervisor and for no other, whatever becomes of its pid

	alone   bool  // it is for one invocation
	ready   bool  // it has begun no invocation yet, or has reported that it can take another
	events  uint8 // those of the invocation that Next has returned
	expires time.Time
}

// runLimit bounds how long a supervisor may take to accept a request. It is idle: one that
// takes longer hangs.
const runLimit = 5 * time.Second

// Run sends the request. It blocks until the supervisor has accepted it, ctx is done, or a
// limit has passed. After an error the supervisor must be killed; nothing was executed then,
// and nothing will be. The descriptors of q stay open here.
func (c *Client) Run(ctx context.Context, q *wire.Request) error {
	c.ready, c.events = false, 0
	return c.conn.SendRequest(ctx, runLimit, q)
}

// The kinds of event, as bits.
const (
	eventStart = 1 << iota // Started or StartFailed
	eventStopping
	eventExited
	eventDone
)

// Next returns the next event. It blocks until there is one, the supervisor is lost, or the
// time of Interrupt has come (os.ErrDeadlineExceeded).
//
// Each event of an invocation comes once at most, and none after Done: an event that came
// again and again would put off what its caller awaits.
func (c *Client) Next() (Event, error) {
	m, err := c.read()
	if err != nil {
		return Event{}, err
	}
	var kind uint8
	switch {
	case m.Started != nil, m.StartFailed != nil:
		kind = eventStart
	case m.Stopping != nil:
		kind = eventStopping
	case m.Exited != nil:
		kind = eventExited
	case m.Done != nil && m.Done.Check() == nil:
		kind = eventDone
	case m.Failed != nil:
		return Event{}, m.Failed
	}
	if kind == 0 || c.events&(kind|eventDone) != 0 {
		return Event{}, fmt.Errorf("%w: a message out of order", wire.ErrProtocol)
	}
	c.events |= kind
	return Event{Started: m.Started, StartFailed: m.StartFailed, Stopping: m.Stopping, Exited: m.Exited, Done: m.Done}, nil
}

// awaitReady waits until the supervisor reports that it can take another invocation. It
// prepares for that while the caller does something else.
func (c *Client) awaitReady(ctx context.Context) bool {
	if c.ready {
		return !c.Pending() // an idle one sends nothing
	}
	c.Interrupt(time.Now().Add(reapLimit))
	undo := context.AfterFunc(ctx, func() { c.Interrupt(time.Unix(1, 0)) })
	m, err := c.read()
	if !undo() {
		return false
	}
	c.Interrupt(time.Time{})
	c.ready = err == nil && m.Ready != nil
	// One that was killed while it was idle had reported that before.
	return c.ready && !c.Pending()
}

// Stop asks for the stop ladder. It does not wait.
func (c *Client) Stop(q wire.StopRequest) error { return c.conn.Send(&wire.Message{Stop: &q}) }

// Signal sends a signal to the leader of the invocation id.
func (c *Client) Signal(id string, sig syscall.Signal) error {
	return c.conn.Send(&wire.Message{Signal: &wire.Signal{ID: id, Signal: int(sig)}})
}

// Drain makes the supervisor, which has left processes alive, read on from pipes that they may
// write to, until no process has these open any more. Then the supervisor ends. Nothing waits for
// that.
func (c *Client) Drain(pipes []int) error {
	err := c.conn.Send(&wire.Message{Drain: &wire.Drain{Pipes: len(pipes)}}, pipes...)
	c.drains = err == nil
	return err
}

// PID returns the supervisor's process ID, for the record.
func (c *Client) PID() int { return c.pid }

// Group returns the name of the cgroup that the supervisor has for its tree, if it has one.
func (c *Client) Group() string { return groupName(c.pid, c.id) }

// Cgroup returns the content of the supervisor's /proc/PID/cgroup, when it was started.
func (c *Client) Cgroup() string { return c.origin.cgroup }

// Watch sends the guard the duties that are left if the supervisor dies during the invocation that
// it is about to take; nil when that invocation has ended. If the message cannot be sent the guard is
// lost: then the caller does the duties, or Recover does.
func (c *Client) Watch(d *wire.Duties) {
	if c.guard != nil {
		_ = c.guard.conn.Send(&wire.Message{Watch: &wire.Watch{ID: c.id, Duties: d}})
	}
}

// errGuardLost means that the guard cannot answer for its supervisor.
var errGuardLost = errors.New("supervisor: the guard is lost too")

// Swept asks the guard about the supervisor, which is lost, and waits for the answer until
// the given time at most: the guard answers when nothing is left of what the supervisor held.
func (c *Client) Swept(until time.Time) (*wire.Swept, error) {
	if c.guard == nil || c.pid == 0 {
		return nil, errGuardLost
	}
	pair, err := wire.Socketpair()
	if err != nil {
		return nil, os.NewSyscallError("socketpair", err)
	}
	answer := wire.NewCallerConn(pair[0])
	answer.SetPeer(c.guard.conn.Peer())
	defer answer.Close()
	err = c.guard.conn.Send(&wire.Message{Lost: &wire.Lost{ID: c.id}}, pair[1])
	closeAll(pair[1:])
	if err != nil {
		return nil, errGuardLost
	}
	var m *wire.Message
	err = c.guard.await(until, func(look time.Time) (err error) {
		var files []int
		answer.SetReadDeadline(look)
		m, _, files, err = answer.Receive()
		closeAll(files)
		return err
	})
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded):
		return nil, err
	case err != nil || m.Swept == nil:
		return nil, errGuardLost
	}
	return m.Swept, nil
}

// Gone waits until nothing is left of what the supervisor held, after it was discarded with
// survivors, at most until the given time. It reports whether that is known: the supervisor ends
// when its tree is empty, and the guard can prove it.
func (c *Client) Gone(until time.Time) bool {
	c.awaitEnd(until)
	if !c.ended() {
		return false
	}
	if swept, err := c.Swept(until); err == nil {
		return !swept.Left
	}
	// Without an answer, the exit code shows whether the tree became empty.
	if c.guard == nil {
		return c.exitedClean()
	}
	if !c.guard.awaitEnd(until) && !c.guard.ended() {
		return false
	}
	return c.guard.ended() && c.guard.exitedClean()
}

// guardClient is the caller's end of a guard.
type guardClient struct {
	helper
	supervisors int  // how many of its supervisors the Pool has given out or keeps
	dismissed   bool // it is to start no more of them
}

// alive reports whether the guard can be asked. It sends nothing unasked: what can be read
// is its end.
func (g *guardClient) alive() bool { return !g.Pending() }

// lookEvery is how often a helper is looked at while it is awaited, or while the guard has
// no caller any more. suspendedFor is how many looks in a row the guard may find a
// supervisor suspended: then the supervisor cannot end its tree, and the guard does.
const (
	lookEvery    = 100 * time.Millisecond
	suspendedFor = 10
)

// await waits for something that the guard does: it calls receive with a time limit again and again,
// until receive returns another error than that the limit has passed, or until has come. In between
// it wakes the guard, to which the trees of its supervisors fall. A guard that does not stay awake
// is lost.
func (g *guardClient) await(until time.Time, receive func(look time.Time) error) error {
	asleep := 0
	return patiently(until, receive, func() error {
		suspended, err := g.wake()
		if suspended {
			asleep++
		}
		if err != nil || asleep > suspendedFor/2 {
			return errGuardLost
		}
		return nil
	})
}

// patiently calls receive with a time limit again and again, and between in between, until
// one of them returns another error than that the limit has passed, or until has come. If this
// process did not run for a while, as when the machine stood still, the helper may not have run
// either: the wait gets that time in addition, for the first three times.
func patiently(until time.Time, receive func(look time.Time) error, between func() error) error {
	for stills := 0; ; {
		look := time.Now().Add(lookEvery)
		if look.After(until) {
			look = until
		}
		err := receive(look)
		if !errors.Is(err, os.ErrDeadlineExceeded) {
			return err
		}
		now := time.Now()
		if late := now.Sub(look); late > lookEvery && stills < 3 {
			until = now.Add(max(until.Sub(now), 0) + late)
			stills++
		}
		if !now.Before(until) {
			return err
		}
		if err := between(); err != nil {
			return err
		}
	}
}
