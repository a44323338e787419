package adapter

import (
	"errors"
	"io"
	"os"
	"sync"
	"syscall"
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

// kept returns what was kept, and the counts. Where bytes are missing in between, it
// drops the UTF-8 sequences that were cut off at both edges.
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

// drain copies one of the CLI's streams, or both if they share a pipe, to a Writer or a
// keeper, until the end of the stream or until it is cut off.
type drain struct {
	pipe  *os.File
	to    io.Writer     // nil: keep only
	keep  *keeper       // nil: do not keep
	count func(n int64) // is called with the size of each chunk; may be nil

	mu     sync.Mutex // guards keep and what follows, once run was called
	seen   int64
	failed error // why to did not get everything
	done   chan struct{}

	turn  sync.Mutex // held while a chunk is read and passed on; guards:
	ended bool       // the end of the stream was read, or to has failed
	cut   bool       // nothing is to be read any more
}

const chunkSize = 32 << 10

// chunks are buffers that are never passed to code of the caller's: a Reader can write to
// the buffer that it got after it has returned.
var chunks = sync.Pool{New: func() any { return new([chunkSize]byte) }}

// run copies until the end of the stream, or until it is cut off. When the Writer fails,
// run closes the pipe: the CLI's next write gets SIGPIPE.
func (d *drain) run() {
	defer close(d.done)
	defer d.pipe.Close()
	var chunk []byte
	if d.to == nil {
		pooled := chunks.Get().(*[chunkSize]byte)
		defer chunks.Put(pooled)
		chunk = pooled[:]
	} else {
		chunk = make([]byte, chunkSize)
	}
	raw, err := d.pipe.SyscallConn()
	if err != nil {
		return
	}
	for d.step(raw, chunk) {
	}
}

// step reads a chunk and passes it on. It reports whether there may be another one.
func (d *drain) step(raw syscall.RawConn, chunk []byte) bool {
	n := 0
	// An error means that the pipe was closed: finish takes the rest. d.turn is held
	// from the read until the chunk was passed on. The lock of the pipe itself is not,
	// because Close waits for that.
	_ = raw.Read(func(fd uintptr) (done bool) {
		d.turn.Lock()
		if n = d.readOnce(int(fd), chunk); n > 0 {
			return true
		}
		done = d.ended || d.cut
		d.turn.Unlock()
		return done // false: wait for more
	})
	if n == 0 {
		return false
	}
	defer d.turn.Unlock() // deferred, because the Writer can end the goroutine
	d.take(chunk[:n])
	return !d.ended
}

// readOnce reads what the pipe has now, and returns 0 if it has nothing. d.turn is held.
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

// take counts a chunk, and passes it on. d.turn is held.
func (d *drain) take(b []byte) {
	d.mu.Lock()
	d.seen += int64(len(b))
	if d.keep != nil {
		_, _ = d.keep.Write(b)
	}
	d.mu.Unlock()
	if d.count != nil {
		d.count(int64(len(b)))
	}
	if d.to == nil {
		return
	}
	var err error
	defer func() {
		if err != nil {
			d.ended = true
			d.fail(err)
		}
	}()
	writeTo(d.to, b, &err)
}

// fail notes why the Writer did not get everything. Only the first reason counts.
func (d *drain) fail(err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.failed == nil {
		d.failed = err
	}
}

// errSlowWriter is the reason if the Writer has not failed.
var errSlowWriter = errors.New("the Writer had not taken it all when the time for the rest of the output was over")

// maxRest is how much a pipe can hold (pipe-max-size, which an ordinary user cannot
// raise). No more is read at the end, so that a process that goes on writing does not
// hold up the end.
const maxRest = 1 << 20

// finish waits until the given time for the end of the stream, then cuts it off. It
// reports whether the stream had not ended, and whether a Write that did not return by the
// limit was abandoned.
//
// On a machine under load the time can be over before run got its turn on the processor.
// finish then takes what is in the pipe itself, unless it is for a Writer of the caller's,
// which could block.
func (d *drain) finish(until, limit time.Time) (incomplete, abandoned bool) {
	defer d.pipe.Close()
	select {
	case <-d.done:
		return !d.ended, false
	case <-time.After(time.Until(until)):
	}
	if d.to != nil {
		return d.cutWriter(limit)
	}
	d.turn.Lock() // run does not hold it while code of the caller's runs, as there is none
	defer d.turn.Unlock()
	pooled := chunks.Get().(*[chunkSize]byte)
	defer chunks.Put(pooled)
	if raw, err := d.pipe.SyscallConn(); err == nil {
		_ = raw.Control(func(fd uintptr) {
			for total := 0; total < maxRest; {
				n := d.readOnce(int(fd), pooled[:])
				if n == 0 {
					break
				}
				d.take(pooled[:n])
				total += n
			}
		})
	}
	d.cut = true
	return !d.ended, false
}

// cutWriter cuts off a stream that goes to a Writer of the caller's.
func (d *drain) cutWriter(limit time.Time) (incomplete, abandoned bool) {
	patience := abandonAfter
	if d.turn.TryLock() {
		// run is not in a Write: it has passed on everything, or waits for its turn.
		d.cut = !d.pending()
		d.turn.Unlock()
		patience = turnLimit
		if d.cut {
			return !d.ended, false
		}
	}
	select {
	case <-d.done:
		return !d.ended, false
	case <-time.After(min(patience, time.Until(limit))):
	}
	if !d.turn.TryLock() {
		d.fail(errSlowWriter)
		return true, true
	}
	defer d.turn.Unlock()
	if d.pending() {
		d.fail(errSlowWriter)
	}
	d.cut = true
	return !d.ended, false
}

// unfinished reports whether finish has not seen the end of the stream.
func (d *drain) unfinished() bool {
	if !d.turn.TryLock() {
		return true // run is in a Write that does not return
	}
	defer d.turn.Unlock()
	return !d.ended
}

// pending reports whether a read of the pipe would return something, or its end.
// d.turn is held.
func (d *drain) pending() (pending bool) {
	if raw, err := d.pipe.SyscallConn(); err == nil {
		_ = raw.Control(func(fd uintptr) { pending = readable(int(fd)) })
	}
	return pending
}

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

// failure returns why the Writer did not get everything, nil if it did.
func (d *drain) failure() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.failed
}

// feed copies the caller's reader to the CLI's stdin.
type feed struct {
	from io.Reader
	pipe *os.File
	done chan struct{}

	once   sync.Once
	closed chan struct{} // closed to end the CLI's input; guards:
	why    error

	failed error // valid once done is closed
	own    bool  // failed is the Reader's own error
}

// emptyReads is how many Reads in a row may return nothing before the Reader is
// called less often.
const emptyReads = 10

func (f *feed) run() {
	defer close(f.done)
	defer f.pipe.Close()
	chunk := make([]byte, chunkSize) // not from the pool: the Reader can keep it
	for empty := 0; ; {
		var n int
		var err error
		func() {
			defer func() {
				if err != nil && err != io.EOF {
					f.failed, f.own = err, true
				}
			}()
			readFrom(f.from, chunk, &n, &err)
		}()
		if n > 0 {
			empty = 0
			if _, werr := f.pipe.Write(chunk[:n]); werr != nil {
				f.failed, f.own = f.writeFailed(werr), false
				return
			}
		}
		if err != nil {
			if f.own && f.isClosed() {
				f.failed, f.own = f.why, false // it failed because the CLI's input was closed
			}
			return
		}
		if n > 0 {
			continue
		}
		pause := time.Duration(0)
		if empty++; empty > emptyReads {
			pause = time.Millisecond
		}
		select {
		case <-f.closed:
			f.failed = f.why
			return
		case <-time.After(pause):
		}
	}
}

func (f *feed) isClosed() bool {
	select {
	case <-f.closed:
		return true
	default:
		return false
	}
}

// writeFailed returns why the CLI's pipe took no more.
func (f *feed) writeFailed(err error) error {
	if errors.Is(err, os.ErrClosed) && f.isClosed() {
		return f.why
	}
	var path *os.PathError
	if errors.As(err, &path) {
		return path.Err
	}
	return err
}

// Reasons to end the CLI's input.
var (
	errStdinStopped = errors.New("closed by the stop before it was all written")
	errStdinLeft    = errors.New("the CLI ended before it was all written")
)

// close ends the CLI's input.
func (f *feed) close(why error) {
	f.once.Do(func() {
		f.why = why
		close(f.closed)
	})
	_ = f.pipe.Close()
}

// finish ends the input. problem is why not all of it was written, nil if it was. own
// reports whether that is the Reader's own error, and abandoned whether a Read that did not
// return was abandoned.
func (f *feed) finish(limit time.Time) (own, abandoned bool, problem error) {
	f.close(errStdinLeft)
	select {
	case <-f.done:
		return f.own, false, f.failed
	case <-time.After(min(abandonAfter, time.Until(limit))):
		return false, true, f.why
	}
}
