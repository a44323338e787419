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

// What the caller gives us has code of its own: a Reader, a Writer, a Logger, Started, a
// context, the errors of these. That code can panic, block, return what it must not,
// or end its goroutine. None of that may hold up or end anything but what it is for.

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

// quoted is an error of the caller's with the text that it had when it came. Its own
// methods are not called again.
type quoted struct {
	err    error
	text   string
	signal syscall.Signal // the StopCause's, if it is the cause of a stop; 0: none
	kill   bool           // the StopCause's
}

func (q *quoted) Error() string { return q.text }
func (q *quoted) Unwrap() error { return q.err }

// quote asks err for its text.
func quote(err error) (q *quoted) {
	q = &quoted{err: err, text: "an error whose Error method panics"}
	defer func() { _ = recover() }() // q says it
	if text := err.Error(); text != "" {
		q.text = text
	} else {
		q.text = "an error without a text"
	}
	return q
}

// errGoexit is what is known of code that ended our goroutine.
var errGoexit = errors.New("it called runtime.Goexit")

// errCount is what is said of a Reader or a Writer that cannot count.
var errCount = errors.New("it returned a count that cannot be")

// called runs code of the caller's and returns its error, also if it panics. If it
// ends the goroutine, the deferred calls find errGoexit in *err.
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

// writeTo passes all of b on to w.
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

// within runs code of the caller's that is to take no time, and waits for it no longer
// than abandonAfter. returned is closed when it has returned, whenever that is; ok
// is false if it has not in time, or has panicked.
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

// callerContext is a context of ours that ends when one of the caller's does. Only
// goroutines of its own call the methods of that one, and of its cause. A context
// that panics counts as ended.
type callerContext struct {
	context.Context
	end      context.CancelCauseFunc
	deadline time.Time // of the caller's; zero: none, or it did not tell in time

	over chan struct{} // closed by release
	once sync.Once

	// Valid when Done is closed.
	kind  outcome.Cause
	cause error // in it errors.Is finds context.Cause of the caller's

	mu    sync.Mutex
	calls []<-chan struct{} // code of the caller's that was begun; closed when it has returned
}

// errSilentContext is the cause of a context that has ended and does not say why.
var errSilentContext = errors.New("adapter: the context does not say why it ended")

// newCallerContext returns what follows ctx until it is released.
func newCallerContext(ctx context.Context) *callerContext {
	if ctx == nil {
		panic("adapter: nil Context")
	}
	c := &callerContext{over: make(chan struct{})}
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
			case <-c.over:
			}
			return nil
		})
	}()
	timer := time.NewTimer(2 * abandonAfter) // it may have to ask why it ended
	defer timer.Stop()
	select {
	case c.deadline = <-first:
	case <-timer.C:
	}
	return c
}

// ask asks a context that has ended why.
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
	if cause == nil { // it has not ended
		cause = context.Canceled
	}
	c.kind, c.cause = kind, cause
	c.end(cause)
}

// why says why the context ended.
func (c *callerContext) why() (outcome.Cause, error) { return c.kind, c.cause }

// given is the cause as the caller has given it.
func (c *callerContext) given() error {
	if q, ok := c.cause.(*quoted); ok {
		return q.err
	}
	return c.cause
}

// release ends the following, and returns what of the caller's code is to return yet.
func (c *callerContext) release() []<-chan struct{} {
	c.once.Do(func() { close(c.over) })
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.calls
}

// inside counts what of the caller's code does not return either while we wait once
// more, for all of it together.
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
