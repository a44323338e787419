package adapter

import (
	"errors"
	"fmt"
	"io"
)

// What the caller gives us has code of its own: a Reader, a Writer, a Logger, a
// context, the errors of these. That code can panic, block, return what it must not,
// or end its goroutine. None of that may hold up or end anything but what it is for.

// quoted is an error of the caller's with the text that it had when it came. Its own
// methods are not called again.
type quoted struct {
	err  error
	text string
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
