package adapter

import (
	"errors"
	"io"
	"os"
	"sync"
	"syscall"
	"time"
)

// StdinPipe is the caller's end of a session's stdin. Its methods may be called from
// several goroutines, at any time, also when the session has ended.
type StdinPipe interface {
	// Write blocks while the pipe is full, until the CLI reads, the deadline, or the
	// end of the CLI's input: by Close, by the CLI's own end (syscall.EPIPE), or because
	// a stop was asked for or the session has ended (ErrStopped). It returns how many
	// bytes went into the pipe.
	// Close ends the CLI's input. It does not block, and it may be called again.
	io.WriteCloser
	// SetWriteDeadline is that of an os.File. A Write beyond it returns
	// os.ErrDeadlineExceeded; a part of what was to be written may have gone out.
	SetWriteDeadline(time.Time) error
}

// StdoutPipe is the caller's end of a session's stdout or stderr. The pipe is the only
// buffer: a CLI that writes faster than it is read is held up. Its methods may be called
// from several goroutines, at any time. When the session has ended, what the pipe still
// had can be read, up to io.EOF, and nothing has to be closed.
type StdoutPipe interface {
	// Read blocks until there is something to read, the deadline, or the end of the
	// output.
	// Close makes the CLI write into a broken pipe, and drops what was not read. It may
	// be called again; a Read after it returns os.ErrClosed.
	io.ReadCloser
	// SetReadDeadline is that of an os.File. A Read beyond it returns
	// os.ErrDeadlineExceeded, and can be tried again.
	SetReadDeadline(time.Time) error
}

// traffic is what passes through the pipes of a session.
type traffic struct {
	mu     sync.Mutex
	writes int       // under way
	last   time.Time // when something passed
	ended  bool      // nothing is written any more
	idle   *time.Timer
}

// end makes every Write fail from now on.
func (t *traffic) end() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.ended = true
	if t.idle != nil {
		t.idle.Stop()
	}
}

func (t *traffic) hasEnded() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.ended
}

// passed notes that something was read.
func (t *traffic) passed() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.last = time.Now()
}

// watch calls idle once nothing has passed for so long. 0 means never.
func (t *traffic) watch(timeout time.Duration, idle func()) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if timeout <= 0 || t.ended {
		return
	}
	t.last = time.Now()
	t.idle = time.AfterFunc(timeout, func() {
		t.mu.Lock()
		left := time.Until(t.last.Add(timeout))
		if t.writes > 0 {
			left = timeout
		}
		if left > 0 && !t.ended {
			t.idle.Reset(left)
			t.mu.Unlock()
			return
		}
		first := !t.ended
		t.ended = true // a Write that comes now fails, and is not lost
		t.mu.Unlock()
		if first {
			idle()
		}
	})
}

// inPipe is the StdinPipe of a session.
type inPipe struct {
	t    *traffic
	pipe *os.File
}

func (w *inPipe) Write(b []byte) (int, error) {
	w.t.mu.Lock()
	if w.t.ended {
		w.t.mu.Unlock()
		return 0, ErrStopped
	}
	w.t.writes++
	w.t.mu.Unlock()
	n, err := w.pipe.Write(b)
	w.t.mu.Lock()
	defer w.t.mu.Unlock()
	w.t.writes--
	w.t.last = time.Now()
	if errors.Is(err, os.ErrClosed) && w.t.ended {
		err = ErrStopped
	}
	return n, err
}

func (w *inPipe) SetWriteDeadline(t time.Time) error { return w.pipe.SetWriteDeadline(t) }

func (w *inPipe) Close() error {
	if err := w.pipe.Close(); err != nil && !errors.Is(err, os.ErrClosed) {
		return err
	}
	return nil
}

// outPipe is a StdoutPipe of a session.
type outPipe struct {
	t     *traffic
	pipe  *os.File
	count func(n int64) // is called with the size of what was read; may be nil

	turn   sync.Mutex // held while the pipe is read; guards:
	rest   []byte     // what the pipe had at the end of the session
	ended  bool       // nothing more is to be read from the pipe
	closed bool       // by the caller
}

func (r *outPipe) Read(b []byte) (int, error) {
	if len(b) == 0 {
		return 0, nil
	}
	n := 0
	if raw, err := r.pipe.SyscallConn(); err == nil {
		err = raw.Read(func(fd uintptr) (done bool) {
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
		// Any other error is that the pipe was closed: by finish, or by the caller.
	}
	if n == 0 {
		return r.readRest(b)
	}
	r.t.passed()
	if r.count != nil {
		r.count(int64(n))
	}
	return n, nil
}

// readRest reads what finish has taken.
func (r *outPipe) readRest(b []byte) (int, error) {
	r.turn.Lock()
	defer r.turn.Unlock()
	switch {
	case r.closed:
		return 0, os.ErrClosed
	case len(r.rest) == 0:
		return 0, io.EOF
	}
	n := copy(b, r.rest)
	r.rest = r.rest[n:]
	return n, nil
}

// atEnd reports whether a Read has met the end of the pipe.
func (r *outPipe) atEnd() bool {
	r.turn.Lock()
	defer r.turn.Unlock()
	return r.ended && !r.closed
}

func (r *outPipe) SetReadDeadline(t time.Time) error { return r.pipe.SetReadDeadline(t) }

func (r *outPipe) Close() error {
	r.turn.Lock()
	r.closed, r.rest = true, nil
	r.turn.Unlock()
	_ = r.pipe.Close() // a second one does no harm
	return nil
}

// finish takes what the pipe has, now that no process of the tree can write to it any
// more, and closes it. A process outside the tree can still hold the other end.
func (r *outPipe) finish() {
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
	_ = r.pipe.Close() // ends a Read that waits, too
}
