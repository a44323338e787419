package adapter

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"syscall"
	"time"

	"curfew/internal/verdict"
	"curfew/internal/wire"
	"curfew/outcome"
)

// Session is a long-lived CLI, such as an MCP server on stdio. It is made by
// Adapter.Start, and over when Done is closed: by itself, by Stop, StopOwner or
// Shutdown, by its idle time or its timeout. All methods may be called at any
// time and from several goroutines.
type Session struct {
	v   *invocation
	in  *sessionIn  // nil: Command.Stdin was given
	out *sessionOut // nil: Command.Stdout was given
	err *drain      // nil: Command.Stderr is a file

	up     chan struct{} // closed when the leader was executed; guards:
	pid    int
	began  time.Time
	exited chan struct{} // closed when the leader is known to have exited, or with done; guards:
	exit   *outcome.Exit // nil: not known
	once   sync.Once     // of exited

	mu       sync.Mutex
	calls    int       // Writes that are under way
	traffic  time.Time // the last
	stopping bool      // nothing is written any more
	idle     *time.Timer
}

// StdinPipe is the caller's end of a session's stdin.
type StdinPipe interface {
	io.WriteCloser
	SetWriteDeadline(time.Time) error
}

// StdoutPipe is the caller's end of a session's stdout.
type StdoutPipe interface {
	io.ReadCloser
	SetReadDeadline(time.Time) error
}

// Errors that a Session's end has as its cause.
var (
	// ErrStopped is what Session.Stop has as its cause, and what a Write returns
	// once a stop was asked for or the session is over.
	ErrStopped = errors.New("adapter: session stopped")
	// ErrOwnerStopped is the cause of what StopOwner ends.
	ErrOwnerStopped = errors.New("adapter: owner stopped")
	// ErrIdle is the cause of the end of a session without traffic.
	ErrIdle = errors.New("adapter: session without traffic")
)

// Defaults of a session's StopPolicy that are not those of an invocation. A
// server gets the time to save its state when its input ends, before any signal;
// and what it leaves behind is no longer in use when it has exited.
const (
	sessionStdinGrace = 2 * time.Second
	sessionLinger     = -1 // none
)

// Start starts c as a session and blocks until it was executed. ctx is for the
// start alone: if it ends before, or the start fails, everything is ended before
// Start returns the error, which is the one that Invoke would return; it is so too
// if StopOwner or Shutdown ends the start. A session ends when its CLI does, when it is asked to, and when the caller ends.
//
// Where Stdin or Stdout is nil, the caller has the other end of a pipe in
// Session.Stdin and Session.Stdout. Stderr is always read, and the last of it
// kept. Of c.Stop, StdinGrace is 2 s unless it is set, and Linger none. The
// Timeout is that of the whole session.
func (a *Adapter) Start(ctx context.Context, c Command) (*Session, error) {
	if c.Stop.StdinGrace == 0 {
		c.Stop.StdinGrace = sessionStdinGrace
	}
	if c.Stop.Linger == 0 {
		c.Stop.Linger = sessionLinger
	}
	v := newInvocation(a, ctx, c)
	s := &Session{v: v, up: make(chan struct{}), exited: make(chan struct{}), traffic: time.Now()}
	v.session = s
	if !a.register(v) {
		v.notStarted(outcome.CauseShutdown, verdict.Why{Cause: ErrShutdown})
		return nil, v.outcome.Err
	}
	// What the CLI inherits is the calling thread's, so this is not done by
	// another goroutine.
	helper := v.order()
	if helper == nil {
		a.unregister(v)
		return nil, v.outcome.Err
	}
	starting := v.ctx
	defer starting.release()
	v.starting, v.ctx = starting, newCallerContext(context.Background())
	go func() {
		v.follow(helper)
		s.over()
		a.unregister(v)
	}()
	select {
	case <-s.up:
	case <-v.done:
	case <-starting.Done():
		v.stop(starting.why())
		v.hasten()
		<-v.done
		if v.outcome.Err != nil {
			return nil, v.outcome.Err
		}
	}
	select {
	case <-s.up: // also if it has ended since
		s.watchIdle(a.idleTimeout)
		return s, nil
	default:
		return nil, v.outcome.Err
	}
}

// ID returns the session's unique id, which is its outcome's.
func (s *Session) ID() string { return s.v.id }

// Owner returns the label that it was started with.
func (s *Session) Owner() string { return s.v.cmd.Owner }

// PID returns the process id of the leader. It may be another process's once the
// session is over: for signals there is Signal.
func (s *Session) PID() int { return s.pid }

// Started returns when the leader was executed.
func (s *Session) Started() time.Time { return s.began }

// Bound is the longest time that Stop takes, whatever the CLI does.
func (s *Session) Bound() time.Duration {
	if s.v.a.journal != nil {
		return s.v.cmd.Bound() + wire.WriteLimit
	}
	return s.v.cmd.Bound()
}

// Stdin returns the caller's end of the CLI's stdin, nil if the command had its
// own. A Write blocks while the pipe is full; a stop closes the pipe and has the
// Write return an error with how much went out. Close ends the CLI's input, and
// may be called again. SetWriteDeadline is that of an os.File.
func (s *Session) Stdin() StdinPipe {
	if s.in == nil {
		return nil
	}
	return s.in
}

// Stdout returns the caller's end of the CLI's stdout, nil if the command had its
// own. It is a stream of bytes, with the pipe as the only buffer: a CLI that
// writes faster than it is read is held up. When the session is over, what the
// pipe still had can be read to its end, io.EOF. Close has the CLI write into a
// broken pipe; a session that is over has nothing that must be closed.
// SetReadDeadline is that of an os.File.
func (s *Session) Stdout() StdoutPipe {
	if s.out == nil {
		return nil
	}
	return s.out
}

// Stderr returns a copy of what is kept of the CLI's stderr by now: its head and
// its tail, Command.KeepOutput bytes at most. It is nil if Command.Stderr is a
// file.
func (s *Session) Stderr() []byte {
	if s.err == nil {
		return nil
	}
	kept, _ := s.err.result()
	return kept
}

// Exited returns a channel that is closed as soon as the CLI itself has exited.
// Calls that wait for its answer have failed then. What it has left behind may
// still be ended; Done tells when nothing is left.
func (s *Session) Exited() <-chan struct{} { return s.exited }

// Exit returns how the CLI itself has ended; false while Exited is not closed, and
// if it is not known.
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

// Done returns a channel that is closed when the session is over: the CLI has
// ended, and so has everything that it started, or it is known and reported that
// it has not.
func (s *Session) Done() <-chan struct{} { return s.v.done }

// Outcome returns how the session ended; false while it has not. The status is
// outcome.StatusStopped if the session was asked to end and was seen to.
func (s *Session) Outcome() (outcome.Outcome, bool) {
	select {
	case <-s.v.done:
		return s.v.outcome, true
	default:
		return outcome.Outcome{}, false
	}
}

// Wait blocks until the session is over and returns how it ended. The error is
// the outcome's.
func (s *Session) Wait() (outcome.Outcome, error) {
	<-s.v.done
	return s.v.outcome, s.v.outcome.Err
}

// Signal sends a signal to the CLI. os.ErrProcessDone means that it has ended.
// It does not wait, and does not end the session.
func (s *Session) Signal(sig syscall.Signal) error { return s.v.signal(sig) }

// Stop ends the session: it closes the CLI's stdin, waits StdinGrace, sends the
// signal, waits Grace, and kills what is left. It blocks until the whole tree is
// gone, at most for Bound; if ctx ends before, Stop returns its cause, and the
// session goes on ending. The error is nil if the tree is gone, however the CLI
// took it, and otherwise an *outcome.CleanupError; a later Stop tries again. A
// session that is over is not touched.
//
// A CLI whose output has been read to its end is most likely just dying: it has
// 100 ms to be seen to, so that a crash is told as one.
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
	if s.out != nil && s.out.atEnd() {
		select {
		case <-s.exited:
		case <-time.After(dyingLimit):
		case <-caller.Done():
		}
	}
	s.stop(outcome.CauseCanceled, ErrStopped)
	select {
	case <-s.v.done:
		return s.v.cleanupErr()
	case <-caller.Done():
		return caller.given()
	}
}

// dyingLimit is what the kernel may take from closing the descriptors of a process
// that dies to telling its parent. It takes microseconds on an idle machine.
const dyingLimit = 100 * time.Millisecond

// stop asks for the ordinary end of the session.
func (s *Session) stop(cause outcome.Cause, why error) {
	s.mu.Lock()
	s.stopping = true
	s.mu.Unlock()
	s.v.ask(cause, why, true)
}

// started takes the word that the CLI was executed.
func (s *Session) started(pid int, at time.Time) {
	s.pid, s.began = pid, at
	close(s.up)
}

// leaderGone takes the word that the CLI has exited, nil if it is over without.
func (s *Session) leaderGone(exit *outcome.Exit) {
	s.once.Do(func() {
		s.exit = exit
		close(s.exited)
	})
}

// over lets go of what the session has open. What is left in the pipe stays to
// be read.
func (s *Session) over() {
	s.leaderGone(s.v.outcome.Exit)
	s.mu.Lock()
	s.stopping = true
	if s.idle != nil {
		s.idle.Stop()
	}
	s.mu.Unlock()
}

// watchIdle ends the session when there was no traffic for so long. 0 is never.
func (s *Session) watchIdle(timeout time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if timeout <= 0 || s.stopping {
		return
	}
	s.traffic = time.Now()
	s.idle = time.AfterFunc(timeout, func() {
		s.mu.Lock()
		left := time.Until(s.traffic.Add(timeout))
		if s.calls > 0 {
			left = timeout
		}
		if left > 0 && !s.stopping {
			s.idle.Reset(left)
			s.mu.Unlock()
			return
		}
		stopping := s.stopping
		s.stopping = true // a Write that comes now fails, and is not lost
		s.mu.Unlock()
		if !stopping {
			s.v.ask(outcome.CauseIdle, fmt.Errorf("%w for %v", ErrIdle, timeout), true)
		}
	})
}

// sessionIn is the caller's end of a session's stdin.
type sessionIn struct {
	s    *Session
	pipe *os.File
}

func (w *sessionIn) Write(b []byte) (int, error) {
	w.s.mu.Lock()
	if w.s.stopping {
		w.s.mu.Unlock()
		return 0, ErrStopped
	}
	w.s.calls++
	w.s.mu.Unlock()
	n, err := w.pipe.Write(b)
	w.s.mu.Lock()
	w.s.calls--
	w.s.traffic = time.Now()
	if errors.Is(err, os.ErrClosed) && w.s.stopping {
		err = ErrStopped
	}
	w.s.mu.Unlock()
	return n, err
}

func (w *sessionIn) SetWriteDeadline(t time.Time) error { return w.pipe.SetWriteDeadline(t) }

func (w *sessionIn) Close() error {
	if err := w.pipe.Close(); err != nil && !errors.Is(err, os.ErrClosed) {
		return err
	}
	return nil
}

// sessionOut is the caller's end of a session's stdout.
type sessionOut struct {
	s    *Session
	pipe *os.File

	turn   sync.Mutex // held while the pipe is read; guards:
	rest   []byte     // what the pipe had at the end
	ended  bool       // nothing more is to be read from the pipe
	closed bool       // by the caller
}

func (r *sessionOut) Read(b []byte) (int, error) {
	if len(b) == 0 {
		return 0, nil
	}
	n := 0
	if raw, err := r.pipe.SyscallConn(); err == nil {
		err = raw.Read(func(fd uintptr) (over bool) {
			r.turn.Lock()
			defer r.turn.Unlock()
			if r.ended || r.closed {
				return true
			}
			var err error
			n, err = readNow(int(fd), b)
			r.ended = n == 0 && !again(err)
			return n > 0 || r.ended
		})
		if errors.Is(err, os.ErrDeadlineExceeded) {
			return 0, err
		}
		// Else its error is that the pipe was closed: by finish, or the caller.
	}
	if n == 0 {
		r.turn.Lock()
		defer r.turn.Unlock()
		switch {
		case r.closed:
			return 0, os.ErrClosed
		case len(r.rest) == 0:
			return 0, io.EOF
		}
		n = copy(b, r.rest)
		r.rest = r.rest[n:]
		return n, nil
	}
	r.s.mu.Lock()
	r.s.traffic = time.Now()
	r.s.mu.Unlock()
	if r.s.v.cmd.OutputLimit > 0 {
		r.s.v.count(int64(n))
	}
	return n, nil
}

// atEnd reports whether a Read has met the end of the pipe.
func (r *sessionOut) atEnd() bool {
	r.turn.Lock()
	defer r.turn.Unlock()
	return r.ended && !r.closed
}

func (r *sessionOut) SetReadDeadline(t time.Time) error { return r.pipe.SetReadDeadline(t) }

func (r *sessionOut) Close() error {
	r.turn.Lock()
	r.closed, r.rest = true, nil
	r.turn.Unlock()
	_ = r.pipe.Close() // again is no harm
	return nil
}

// finish takes what the pipe has, now that nobody of the tree can write to it
// any more, and closes it. Who holds the other end besides was not part of it.
func (r *sessionOut) finish() {
	r.turn.Lock()
	if raw, err := r.pipe.SyscallConn(); err == nil && !r.ended && !r.closed {
		_ = raw.Control(func(fd uintptr) {
			chunk := chunks.Get().(*[chunkSize]byte)
			defer chunks.Put(chunk)
			for len(r.rest) < maxRest {
				n, err := readNow(int(fd), chunk[:])
				if n <= 0 {
					if err == syscall.EINTR {
						continue
					}
					break
				}
				r.rest = append(r.rest, chunk[:n]...)
			}
		})
	}
	r.ended = true
	r.turn.Unlock()
	_ = r.pipe.Close() // ends a wait, too
}
