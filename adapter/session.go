package adapter

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"sync"
	"syscall"
	"time"

	"curfew/outcome"
)

// Session is a long-lived CLI, such as an MCP server on stdio. Adapter.Start makes it.
// It ends by itself, by Stop, Kill, StopOwner or Shutdown, by its idle time or its
// timeout, and with the caller. Done is closed then. All methods may be called at any
// time and from several goroutines.
type Session struct {
	v       *invocation
	traffic traffic

	up     chan struct{} // closed when the leader was executed; guards:
	p      *Process
	began  time.Time
	exited chan struct{} // closed when the leader is known to have exited, or with done; guards:
	exit   *outcome.Exit // nil: not known
	once   sync.Once     // of exited
}

// Causes of the end of a Session, and what its Stdin returns after it.
var (
	// ErrStopped is the cause of a session that Session.Stop has ended. A Write to its
	// Stdin returns it once any stop was asked for, or the session has ended.
	ErrStopped = errors.New("adapter: session stopped")
	// ErrOwnerStopped is the cause of what StopOwner has ended.
	ErrOwnerStopped = errors.New("adapter: owner stopped")
	// ErrIdle is the cause of a session that Command.IdleTimeout has ended.
	ErrIdle = errors.New("adapter: session without traffic")
)

// Start starts c as a session and blocks until it was executed. ctx is for the start
// alone: when Start has returned, its end changes nothing. If ctx ends before, the start
// fails, or StopOwner or Shutdown ends it, Start ends what there is of the session, and
// returns the error that Invoke would return. A stop during the start takes at most
// c.Bound().
//
// Of the streams, those that are Pipe are the caller's: see Stdin, Stdout and Stderr.
// Nil means what it means for Invoke: empty input, and output that is kept in the
// Outcome.
func (a *Adapter) Start(ctx context.Context, c Command) (*Session, error) {
	starting := newCallerContext(ctx)
	defer starting.release()
	s := &Session{up: make(chan struct{}), exited: make(chan struct{})}
	v := newInvocation(a, context.Background(), c, hooks{session: true, started: s.started, exited: s.leaderExited, traffic: &s.traffic})
	v.code.contexts = append(v.code.contexts, starting)
	s.v = v
	if !a.register(v) {
		return nil, v.outcome.Err
	}
	// What the CLI inherits is the calling thread's, so this is not done by
	// another goroutine.
	helper := v.start(starting)
	if helper == nil {
		a.unregister(v)
		return nil, v.outcome.Err
	}
	go func() {
		v.follow(helper)
		s.leaderExited(v.outcome.Exit)
		s.traffic.end()
		a.unregister(v)
	}()
	select {
	case <-s.up:
	case <-v.done:
	case <-starting.Done():
		cause, why := starting.why()
		v.control.stop(stopRequest{cause: cause, why: why})
		v.control.kill()
		<-v.done
		if v.outcome.Err != nil {
			return nil, v.outcome.Err
		}
	}
	select {
	case <-s.up: // also if it has ended since
		s.traffic.watch(v.cmd.IdleTimeout, func() {
			v.control.stop(stopRequest{cause: outcome.CauseIdle, why: fmt.Errorf("%w for %v", ErrIdle, v.cmd.IdleTimeout), ordinary: true})
		})
		return s, nil
	default:
		return nil, v.outcome.Err
	}
}

// started is called when the CLI was executed.
func (s *Session) started(p *Process, at time.Time) {
	s.p, s.began = p, at
	close(s.up)
}

// leaderExited is called when the CLI has exited, and when the session has ended. exit is
// nil if it is not known.
func (s *Session) leaderExited(exit *outcome.Exit) {
	s.once.Do(func() {
		s.exit = exit
		close(s.exited)
	})
}

// ID returns the session's unique ID, which is its outcome's.
func (s *Session) ID() string { return s.v.id }

// Owner returns Command.Owner.
func (s *Session) Owner() string { return s.v.cmd.Owner }

// PID returns the process ID of the CLI. See Process.PID.
func (s *Session) PID() int { return s.p.PID() }

// Signal sends a signal to the CLI, and does not wait. See Process.Signal.
func (s *Session) Signal(sig syscall.Signal) error { return s.p.Signal(sig) }

// Kill ends the grace of a stop, and begins one if none is under way. It does not wait.
// A session that it stops has the status outcome.StatusUnknown. See Process.Kill.
func (s *Session) Kill() { s.p.Kill() }

// Started returns when the CLI was executed.
func (s *Session) Started() time.Time { return s.began }

// Bound returns the longest time from the request to stop the session to its end, which
// is that of its Command.
func (s *Session) Bound() time.Duration { return s.v.cmd.Bound() }

// Stdin returns the caller's end of the CLI's stdin, nil unless Command.Stdin was Pipe.
func (s *Session) Stdin() StdinPipe {
	if p := s.v.wiring.in; p != nil {
		return p
	}
	return nil
}

// Stdout returns the caller's end of the CLI's stdout, nil unless Command.Stdout was
// Pipe.
func (s *Session) Stdout() StdoutPipe { return s.output(0) }

// Stderr returns the caller's end of the CLI's stderr, nil unless Command.Stderr was
// Pipe.
func (s *Session) Stderr() StdoutPipe { return s.output(1) }

func (s *Session) output(i int) StdoutPipe {
	if p := s.v.wiring.out[i]; p != nil {
		return p
	}
	return nil
}

// Kept returns a copy of what is kept by now of the CLI's stdout and stderr. Each is nil
// unless that stream of the Command was nil. It does not block.
func (s *Session) Kept() (stdout, stderr []byte) {
	kept := func(d *drain) []byte {
		if d == nil {
			return nil
		}
		b, _ := d.result()
		return bytes.Clone(b)
	}
	return kept(s.v.wiring.streams[0]), kept(s.v.wiring.streams[1])
}

// Exited returns a channel that is closed as soon as the CLI itself has exited. A request
// that waits for its answer has failed then. What the CLI has left behind may still be
// being stopped; Done is closed when nothing is left.
func (s *Session) Exited() <-chan struct{} { return s.exited }

// Exit returns how the CLI itself has ended, also after a Stop. It reports false while
// Exited is not closed, and if it is not known.
func (s *Session) Exit() (outcome.Exit, bool) {
	select {
	case <-s.exited:
		if s.exit != nil {
			return *s.exit, true
		}
	default:
	}
	return outcome.Exit{}, false
}

// Done returns a channel that is closed when the session has ended: the CLI and all that it
// started have ended, or it is known and reported that they have not.
func (s *Session) Done() <-chan struct{} { return s.v.done }

// Outcome returns how the session ended. It reports false while Done is not closed.
func (s *Session) Outcome() (outcome.Outcome, bool) {
	select {
	case <-s.v.done:
		return s.v.outcome, true
	default:
		return outcome.Outcome{}, false
	}
}

// Wait blocks until the session has ended, and returns how it ended and the error of that.
// The error is nil for outcome.StatusSucceeded and outcome.StatusStopped. A session that
// was asked to end has the latter, also if it took SIGKILL to end it: Exit has how.
func (s *Session) Wait() (outcome.Outcome, error) {
	<-s.v.done
	return s.v.outcome, s.v.outcome.Err
}

// Stop ends the session: it closes the CLI's stdin, waits StdinGrace, sends the signal,
// waits Grace, and kills what is left. It blocks until no process of the session is alive,
// at most for Bound. If ctx ends before, Stop returns its cause, and the session goes on
// ending. The error is nil if nothing is alive, however that was reached, and otherwise an
// *outcome.CleanupError; a later Stop looks again. A session that has ended is not touched.
//
// A CLI whose Stdout has been read to its end is most likely dying: Stop waits up to
// 100 ms for its exit, so that a crash is reported as one.
func (s *Session) Stop(ctx context.Context) error {
	caller := newCallerContext(ctx)
	defer caller.release()
	select {
	case <-s.v.done:
		err := s.v.awaitGone(caller)
		if err == errLate {
			err = caller.given()
		}
		return err
	default:
	}
	if p := s.v.wiring.out[0]; p != nil && p.atEnd() {
		select {
		case <-s.exited:
		case <-time.After(dyingLimit):
		case <-caller.Done():
		}
	}
	s.v.control.stop(stopRequest{cause: outcome.CauseCanceled, why: ErrStopped, ordinary: true})
	select {
	case <-s.v.done:
		return s.v.cleanupErr()
	case <-caller.Done():
		return caller.given()
	}
}
