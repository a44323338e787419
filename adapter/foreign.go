package adapter

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"sync"
	"syscall"
	"time"

	"curfew/outcome"
)

// A Reader, a Writer, a Logger, Started, a context, and the errors of these are code of the
// caller's. That code can panic, block, return what is not allowed, or end its goroutine.
// None of that may hold up or end anything but the copying or the call itself.

// callerCode is the code of the caller's that an invocation calls and that is not a
// Reader or a Writer. Its zero value has called nothing.
type callerCode struct {
	mu        sync.Mutex
	calls     []<-chan struct{} // each is closed when the call has returned
	contexts  []*callerContext
	logFailed bool // the Logger is not called again
}

// log gives the Logger a line. After a line that does not return in time, or panics,
// the Logger is not called again.
func (c *callerCode) log(l *slog.Logger, event string, args ...any) {
	if l == nil || c.logFailed {
		return
	}
	returned, ok := within(func() { l.Info(event, args...) })
	if !ok {
		c.logFailed = true
		c.called(returned)
	}
}

// start calls code on a goroutine of its own.
func (c *callerCode) start(code func()) {
	done := make(chan struct{})
	c.called(done)
	go func() {
		defer close(done)
		var err error // a panic is dropped
		called(&err, func() error { code(); return nil })
	}()
}

func (c *callerCode) called(returned <-chan struct{}) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.calls = append(c.calls, returned)
}

// abandoned releases the contexts, and returns how many calls do not return.
func (c *callerCode) abandoned() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	calls := c.calls
	for _, ctx := range c.contexts {
		calls = append(calls, ctx.release()...)
	}
	return inside(calls)
}

// quoted is an error of the caller's with its text, so that its methods need not be called
// again.
type quoted struct {
	err    error
	text   string
	signal syscall.Signal // the StopCause's, if it is the cause of a stop; 0: none
	kill   bool           // the StopCause's
}

func (q *quoted) Error() string { return q.text }
func (q *quoted) Unwrap() error { return q.err }

// quote calls err's Error method, which may panic.
func quote(err error) (q *quoted) {
	q = &quoted{err: err, text: "an error whose Error method panics"}
	defer func() { _ = recover() }() // the text of q reports it
	if text := err.Error(); text != "" {
		q.text = text
	} else {
		q.text = "an error without a text"
	}
	return q
}

// errGoexit is the error of code that ended its goroutine.
var errGoexit = errors.New("it called runtime.Goexit")

// errCount is the error of a Reader or a Writer that returns an impossible count.
var errCount = errors.New("it returned a count that cannot be")

// called runs code of the caller's and stores its error in *err, also if it panics. If the
// code ends the goroutine, deferred calls find errGoexit there.
func called(err *error, code func() error) {
	*err = errGoexit
	defer func() {
		if r := recover(); r == nil {
			return
		} else if e, ok := r.(error); ok {
			*err = fmt.Errorf("it panicked: %w", quote(e))
		} else {
			*err = fmt.Errorf("it panicked: %v", r)
		}
	}()
	*err = code()
}

// writeTo writes all of b to w.
func writeTo(w io.Writer, b []byte, err *error) {
	called(err, func() error {
		n, err := w.Write(b)
		switch {
		case err != nil:
			return quote(err)
		case n < 0 || n > len(b):
			return errCount
		case n < len(b):
			return io.ErrShortWrite
		}
		return nil
	})
}

// readFrom reads into b. The end is io.EOF.
func readFrom(r io.Reader, b []byte, n *int, err *error) {
	*n = 0
	called(err, func() error {
		m, err := r.Read(b)
		if m < 0 || m > len(b) {
			return errCount
		}
		*n = m
		if err == nil || err == io.EOF {
			return err
		}
		return quote(err)
	})
}

// within runs code of the caller's that should take no time, and waits for it no longer
// than abandonAfter. returned is closed when the code has returned, whenever that is. ok is
// false if it has not returned in time, or has panicked.
func within(code func()) (returned <-chan struct{}, ok bool) {
	done := make(chan struct{})
	err := errGoexit
	go func() {
		defer close(done)
		called(&err, func() error { code(); return nil })
	}()
	timer := time.NewTimer(abandonAfter)
	defer timer.Stop()
	select {
	case <-done:
		return done, err == nil
	case <-timer.C:
		return done, false
	}
}

// callerContext is a context that ends when a context of the caller's does. It calls the
// methods of that one, and of its cause, on goroutines of its own only. A context of the
// caller's that panics counts as ended.
type callerContext struct {
	context.Context
	end      context.CancelCauseFunc
	deadline time.Time // the caller's; zero: there is none, or Deadline did not return in time

	released chan struct{} // closed by release
	once     sync.Once

	// Valid when Done is closed.
	kind  outcome.Cause
	cause error // in it errors.Is finds context.Cause of the caller's

	mu    sync.Mutex
	calls []<-chan struct{} // calls of the caller's code; each is closed when that has returned
}

// errSilentContext is the cause of a context that has ended and whose Err or cause does
// not return.
var errSilentContext = errors.New("adapter: the context does not say why it ended")

// newCallerContext returns a context that ends when ctx does, until it is released.
func newCallerContext(ctx context.Context) *callerContext {
	if ctx == nil {
		panic("adapter: nil Context")
	}
	c := &callerContext{released: make(chan struct{})}
	c.Context, c.end = context.WithCancelCause(context.Background())
	if ctx == context.Background() {
		return c
	}
	first := make(chan time.Time, 1)
	done := make(chan struct{})
	c.calls = append(c.calls, done)
	go func() {
		defer close(done)
		err := errGoexit
		defer func() {
			if err != nil {
				c.ended(outcome.CauseCanceled, fmt.Errorf("adapter: the context: %w", err))
			}
			close(first)
		}()
		called(&err, func() error {
			at, _ := ctx.Deadline()
			ended := ctx.Done()
			select {
			case <-ended:
				c.ask(ctx)
				return nil
			default:
			}
			first <- at
			select {
			case <-ended:
				c.ask(ctx)
			case <-c.released:
			}
			return nil
		})
	}()
	timer := time.NewTimer(2 * abandonAfter) // ask can take abandonAfter
	defer timer.Stop()
	select {
	case c.deadline = <-first:
	case <-timer.C:
	}
	return c
}

// ask takes the cause of ctx, which has ended.
func (c *callerContext) ask(ctx context.Context) {
	kind, cause := outcome.CauseCanceled, error(nil)
	returned, ok := within(func() {
		if errors.Is(ctx.Err(), context.DeadlineExceeded) {
			kind = outcome.CauseTimeout
		}
		cause = context.Cause(ctx)
		if cause == nil || cause == context.Canceled || cause == context.DeadlineExceeded {
			return
		}
		q, s := quote(cause), stopCause(cause)
		if s.Signal > 0 && s.Signal <= maxSignal {
			q.signal = s.Signal
		}
		q.kill = s.Kill
		cause = q
	})
	if ok {
		c.ended(kind, cause)
		return
	}
	c.mu.Lock()
	c.calls = append(c.calls, returned)
	c.mu.Unlock()
	c.ended(outcome.CauseCanceled, errSilentContext)
}

func (c *callerContext) ended(kind outcome.Cause, cause error) {
	if cause == nil { // ctx closed Done, and has no error
		cause = context.Canceled
	}
	c.kind, c.cause = kind, cause
	c.end(cause)
}

// why returns why the context ended.
func (c *callerContext) why() (outcome.Cause, error) { return c.kind, c.cause }

// given returns the cause as the caller has given it.
func (c *callerContext) given() error {
	if q, ok := c.cause.(*quoted); ok {
		return q.err
	}
	return c.cause
}

// release makes c no longer follow the caller's context. It returns the calls of the
// caller's code, some of which may not have returned.
func (c *callerContext) release() []<-chan struct{} {
	c.once.Do(func() { close(c.released) })
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.calls
}

// inside waits for the calls, abandonAfter for all of them together, and returns how many
// have not returned.
func inside(calls []<-chan struct{}) (n int) {
	late := make(chan struct{})
	timer := time.AfterFunc(abandonAfter, func() { close(late) })
	defer timer.Stop()
	for _, returned := range calls {
		select {
		case <-returned:
			continue
		default:
		}
		select {
		case <-returned:
		case <-late:
			n++
		}
	}
	return n
}
