package adapter

import (
	"errors"
	"io"
	"os"
	"sync"
	"sync/atomic"
	"time"
	"unicode/utf8"

	"curfew/outcome"
)

// keeper keeps the head and the tail of what is written to it, half of its
// limit each, at a constant cost for each byte. Not safe for concurrent use.
type keeper struct {
	limit int64
	head  []byte
	tail  []byte // a ring once it is full
	next  int    // where the ring's next byte goes
	seen  int64
}

func (k *keeper) Write(p []byte) (int, error) {
	n := len(p)
	k.seen += int64(n)
	headSize := k.limit - k.limit/2
	if room := headSize - int64(len(k.head)); room > 0 {
		m := min(int64(len(p)), room)
		k.head = append(k.head, p[:m]...)
		p = p[m:]
	}
	size := int(k.limit / 2)
	if len(p) > size {
		p = p[len(p)-size:]
	}
	if room := size - len(k.tail); room > 0 {
		m := min(len(p), room)
		k.tail = append(k.tail, p[:m]...)
		p = p[m:]
	}
	for len(p) > 0 {
		m := copy(k.tail[k.next:], p)
		k.next = (k.next + m) % size
		p = p[m:]
	}
	return n, nil
}

// kept returns what was kept and what it is of. Where bytes are missing in
// between, both edges are moved to the border of a UTF-8 sequence.
func (k *keeper) kept() ([]byte, outcome.Stream) {
	head := k.head
	tail := append(append([]byte(nil), k.tail[k.next:]...), k.tail[:k.next]...)
	s := outcome.Stream{Seen: k.seen}
	if k.seen > int64(len(head)+len(tail)) {
		s.Truncated = true
		head, tail = trimEnd(head), trimStart(tail)
	}
	s.HeadBytes = int64(len(head))
	all := append(head[:len(head):len(head)], tail...)
	s.Kept = int64(len(all))
	return all, s
}

// trimEnd drops a UTF-8 sequence that was cut off at the end of b.
func trimEnd(b []byte) []byte {
	for i := 1; i < utf8.UTFMax && i <= len(b); i++ {
		if c := b[len(b)-i]; utf8.RuneStart(c) {
			if c >= utf8.RuneSelf && !utf8.FullRune(b[len(b)-i:]) {
				return b[:len(b)-i]
			}
			break
		}
	}
	return b
}

// trimStart drops the rest of a UTF-8 sequence that was cut off before b.
func trimStart(b []byte) []byte {
	// After three bytes of the rest the next sequence begins.
	for i := 0; i < utf8.UTFMax && i < len(b); i++ {
		if utf8.RuneStart(b[i]) {
			return b[i:]
		}
	}
	if len(b) < utf8.UTFMax {
		return b[len(b):] // there is nothing but the rest
	}
	return b
}

// drain copies one or two of the CLI's streams, which share a pipe, to where
// they go, from the start to the end of the stream or until it is cut off.
type drain struct {
	pipe *os.File
	to   io.Writer     // nil: keep only
	keep *keeper       // nil: do not keep
	over func(n int64) // told of each chunk's size; may be nil

	mu     sync.Mutex // guards keep and the rest once it runs
	seen   int64
	failed error
	done   chan struct{}

	turn  sync.Mutex // held while the stream is read and passed on; guards:
	ended bool       // the end of the stream was read
	cut   bool       // nothing is to be read any more
}

var chunks = sync.Pool{New: func() any { return new([32 << 10]byte) }}

// run copies until the end of the stream, or until it is cut off. A writer that
// fails is not written to again; the stream is read on, so that the CLI does not
// block.
func (d *drain) run() {
	defer close(d.done)
	chunk := chunks.Get().(*[32 << 10]byte)
	defer chunks.Put(chunk)
	raw, err := d.pipe.SyscallConn()
	if err != nil {
		return
	}
	for {
		n := 0
		// Its error is that the time is over: finish sees to the rest. The lock
		// is kept from the reading to the passing on; the pipe's own is not,
		// since closing it waits for that.
		_ = raw.Read(func(fd uintptr) (over bool) {
			d.turn.Lock()
			if n = d.readOnce(int(fd), chunk[:]); n > 0 {
				return true
			}
			over = d.ended || d.cut
			d.turn.Unlock()
			return over // or wait for more
		})
		if n == 0 {
			return
		}
		d.take(chunk[:n])
		d.turn.Unlock()
	}
}

// readOnce reads what is there now, 0 bytes if that is nothing. d.turn is held.
func (d *drain) readOnce(fd int, chunk []byte) int {
	if d.cut || d.ended {
		return 0
	}
	n, err := readNow(fd, chunk)
	if n == 0 && !again(err) {
		d.ended = true
	}
	return n
}

// take passes on what was read.
func (d *drain) take(b []byte) {
	if len(b) == 0 {
		return
	}
	d.mu.Lock()
	d.seen += int64(len(b))
	if d.keep != nil {
		_, _ = d.keep.Write(b)
	}
	to := d.to
	if d.failed != nil {
		to = nil
	}
	d.mu.Unlock()
	if d.over != nil {
		d.over(int64(len(b)))
	}
	if to == nil {
		return
	}
	n, err := to.Write(b)
	if err == nil && n < len(b) {
		err = io.ErrShortWrite
	}
	if err != nil {
		d.mu.Lock()
		d.failed = err
		d.mu.Unlock()
	}
}

// maxRest is what a pipe can hold (pipe-max-size, which an ordinary user cannot
// raise), so that somebody who keeps writing does not keep us reading.
const maxRest = 1 << 20

// finish waits for the end of the stream until the given time, cuts it off then,
// and reports whether it had not come to its end. A writer that does not return
// is abandoned.
//
// On a machine under load the time can be over before run had its turn on the
// processor. What is in the pipe then is taken here, unless it is for a writer
// of the caller's, which could keep us.
func (d *drain) finish(until time.Time) (incomplete, abandoned bool) {
	defer d.pipe.Close()
	select {
	case <-d.done:
		return !d.ended, false
	case <-time.After(time.Until(until)):
	}
	if d.to != nil {
		patience := abandonAfter
		if d.turn.TryLock() {
			// It is not in a Write, so it needs but its turn.
			d.turn.Unlock()
			patience = turnLimit
		}
		defer func() { _ = d.pipe.SetReadDeadline(time.Unix(1, 0)) }()
		select {
		case <-d.done:
			return !d.ended, false
		case <-time.After(patience):
			return true, !d.turn.TryLock()
		}
	}
	d.turn.Lock() // nothing of the caller's is done under it
	defer d.turn.Unlock()
	chunk := chunks.Get().(*[32 << 10]byte)
	defer chunks.Put(chunk)
	if raw, err := d.pipe.SyscallConn(); err == nil {
		_ = raw.Control(func(fd uintptr) {
			for total := 0; total < maxRest; {
				n := d.readOnce(int(fd), chunk[:])
				if n == 0 {
					break
				}
				d.take(chunk[:n])
				total += n
			}
		})
	}
	d.cut = true
	_ = d.pipe.SetReadDeadline(time.Unix(1, 0)) // ends run's wait
	return !d.ended, false
}

// turnLimit is how long a goroutine that is not held up by anything may take to
// get its turn.
const turnLimit = time.Second

// abandonAfter is how long a Read or Write of the caller's that is under way at
// the end may take before its goroutine is left to itself. It only has to tell
// one that is about to return from one that never will.
const abandonAfter = 100 * time.Millisecond

// result returns what was kept, and the counts.
func (d *drain) result() ([]byte, outcome.Stream) {
	d.mu.Lock()
	defer d.mu.Unlock()
	var kept []byte
	s := outcome.Stream{Seen: d.seen}
	if d.keep != nil {
		kept, s = d.keep.kept()
	}
	if d.failed != nil {
		s.WriteError = d.failed.Error()
	}
	return kept, s
}

// feed copies the caller's reader to the CLI's stdin.
type feed struct {
	from   io.Reader
	pipe   *os.File
	done   chan struct{}
	closed atomic.Bool // by us, to end the CLI's input
	failed error       // valid once done is closed
}

func (f *feed) run() {
	defer close(f.done)
	chunk := chunks.Get().(*[32 << 10]byte)
	defer chunks.Put(chunk)
	defer f.pipe.Close()
	for {
		n, err := f.from.Read(chunk[:])
		if n > 0 {
			if _, werr := f.pipe.Write(chunk[:n]); werr != nil {
				if !f.closed.Load() || !errors.Is(werr, os.ErrClosed) {
					f.failed = werr
				} else {
					f.failed = errStdinClosed
				}
				return
			}
		}
		if err == io.EOF {
			return
		}
		if err != nil {
			f.failed = err
			return
		}
	}
}

var errStdinClosed = errors.New("closed by the stop before it was all written")

// close ends the CLI's input.
func (f *feed) close() {
	f.closed.Store(true)
	_ = f.pipe.Close()
}

// finish ends the input and reports what went wrong with it, and whether a Read
// of the caller's was left to itself.
func (f *feed) finish() (problem string, abandoned bool) {
	f.close()
	select {
	case <-f.done:
	case <-time.After(abandonAfter):
		return "", true
	}
	if f.failed == nil {
		return "", false
	}
	var path *os.PathError
	if errors.As(f.failed, &path) {
		return path.Err.Error(), false
	}
	return f.failed.Error(), false
}
