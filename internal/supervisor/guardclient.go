//go:build linux || darwin

package supervisor

import (
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"curfew/internal/wire"
)

// guardClient is the caller's end of a guard.
type guardClient struct {
	*Client        // for its socket, its state and its end
	helpers   int  // how many of its supervisors the Pool has given out or keeps
	dismissed bool // it is to start no more of them
}

// spawnGuard starts a guard. The calling goroutine must be locked to its thread:
// the guard, its supervisors and their CLIs inherit from it.
func spawnGuard(exe string, journal []string) (*guardClient, error) {
	h, err := start(wire.GuardName, exe, journal)
	if err != nil {
		return nil, err
	}
	return &guardClient{Client: h}, nil
}

// spawn has the guard start a supervisor. The supervisor has to be greeted.
func (g *guardClient) spawn() (*Client, error) {
	pair, err := wire.Socketpair()
	if err != nil {
		return nil, os.NewSyscallError("socketpair", err)
	}
	defer unix.Close(pair[1])
	caller := callerDescriptor()
	defer unix.Close(caller)
	h := newHelper(g.exe, pair[0])
	null := nullDescriptor()
	defer unix.Close(null)
	stderr, drop := h.keepWords(null)
	defer drop()
	h.guard, h.cgroup, h.noFile = g, g.cgroup, g.noFile
	if err := g.conn.Send(&wire.Message{Spawn: &wire.Spawn{ID: h.id}}, pair[1], caller, stderr); err != nil {
		h.conn.Close()
		h.words.close()
		return nil, fmt.Errorf("%w: ask the guard: %w", errRefused, err)
	}
	return h, nil
}

// Watch tells the guard what is left to do, should h die, for the invocation that h is
// about to take; nil when that is over. If the message cannot be sent the guard is lost:
// then the caller does what is left, or Recover.
func (h *Client) Watch(d *wire.Duties) {
	if h.guard != nil {
		_ = h.guard.conn.Send(&wire.Message{Watch: &wire.Watch{ID: h.id, Duties: d}})
	}
}

// lookEvery is how often the guard looks after its supervisors when the caller
// is gone, and suspendedFor is how many looks in a row one may be found
// suspended: nobody else would notice that it cannot end its tree.
const (
	lookEvery    = 100 * time.Millisecond
	suspendedFor = 10
)

// errGuardLost means that the guard cannot answer for its supervisor.
var errGuardLost = errors.New("supervisor: the guard is lost too")

// Swept waits until nothing is left of what the helper, which is lost, had held,
// as its guard knows it, at most until the given time.
func (h *Client) Swept(until time.Time) (*wire.Swept, error) {
	if h.guard == nil || h.pid == 0 {
		return nil, errGuardLost
	}
	pair, err := wire.Socketpair()
	if err != nil {
		return nil, os.NewSyscallError("socketpair", err)
	}
	answer := newHelper(h.exe, pair[0])
	answer.conn.SetPeer(h.guard.conn.Peer())
	defer answer.Close(0) // with what came with the answer
	err = h.guard.conn.Send(&wire.Message{Lost: &wire.Lost{ID: h.id}}, pair[1])
	unix.Close(pair[1])
	if err != nil {
		return nil, errGuardLost
	}
	var m *wire.Message
	err = h.guard.awake(until, func(look time.Time) error {
		answer.Interrupt(look)
		m, err = answer.read()
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

// awake waits for what the guard does, by calling read with a time limit again
// and again until that is not its error or until has come. In between it looks
// whether somebody has suspended the guard, and resumes it: nobody else would,
// and its supervisors' trees fall to it. A guard that does not stay awake is
// lost.
func (g *guardClient) awake(until time.Time, read func(look time.Time) error) error {
	asleep := 0
	return patiently(until, read, func() error {
		if g.Suspended() {
			if asleep++; asleep > suspendedFor/2 || g.resume() != nil {
				return errGuardLost
			}
		}
		return nil
	})
}

// patiently calls read with a time limit again and again, and between in between, until
// one of them says something else than that nothing has come, or until has come. If we
// had no turn ourselves for a while, as when the machine stood still, who is awaited may
// have had none either: it gets that time again, for the first three times.
func patiently(until time.Time, read func(look time.Time) error, between func() error) error {
	for stills := 0; ; {
		look := time.Now().Add(lookEvery)
		if look.After(until) {
			look = until
		}
		err := read(look)
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

// alive reports whether the guard can be asked. It says nothing unasked: what can
// be read is its end.
func (g *guardClient) alive() bool { return !g.Pending() }
