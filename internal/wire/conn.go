//go:build linux || darwin

package wire

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"curfew/internal/fault"
	"curfew/internal/sys"
)

// Conn is one end of a socket between a caller and a helper. Both ends frame, send and
// receive in the same way. They differ in how they wait: the caller's end uses the Go
// runtime's poller and has deadlines; the helper's end belongs to a loop on one thread,
// so it never waits to receive, and waits in the kernel to send.
//
// Send, SendRequest, SetReadDeadline, Readable and Close are safe for concurrent use. The
// other methods are for one goroutine at a time.
type Conn struct {
	socket socket
	in     inbox
	buf    []byte
	oob    []byte

	sending sync.Mutex

	sendersNamed bool // the kernel names the sender of what arrives
	peer         int  // the only process that is believed; 0: not known yet
	sender       int  // of the last bytes, as our kernel numbers it
}

// SendLimit is how long the other end may take to accept a message. An end whose socket
// stays full for longer does not read.
const SendLimit = 500 * time.Millisecond

// ErrEmpty is the error of Fill at a helper's end if nothing has arrived.
var ErrEmpty = errors.New("wire: nothing has arrived")

// ErrOtherSender means that another process than the peer writes to the socket.
var ErrOtherSender = fmt.Errorf("%w: a message from another process", ErrProtocol)

// NewCallerConn returns the caller's end of a connection over socket, and owns the socket
// from then on.
func NewCallerConn(socket int) *Conn {
	_ = unix.SetNonblock(socket, true) // it is a socket: this cannot fail
	f := os.NewFile(uintptr(socket), "curfew control socket")
	raw, err := f.SyscallConn()
	if err != nil {
		panic("wire: an open file has no descriptor: " + err.Error())
	}
	// A helper sends one descriptor at most, and the kernel adds the sender's ids.
	const oobBytes = 128
	return &Conn{socket: &callerSocket{f, raw}, oob: make([]byte, oobBytes), sendersNamed: nameSenders(socket)}
}

// NewHelperConn returns a helper's end of a connection over socket.
func NewHelperConn(socket int) *Conn {
	const oobBytes = 1024 // the kernel takes 253 descriptors in one message
	return &Conn{socket: &helperSocket{fd: socket}, buf: make([]byte, 32<<10), oob: make([]byte, oobBytes)}
}

// SendOn sends m from a helper's end of a connection that carries nothing else.
func SendOn(socket int, m *Message, files ...int) error {
	return (&Conn{socket: &helperSocket{fd: socket}}).Send(m, files...)
}

// Send sends m, and files with it, within SendLimit. The files stay open here. A request that
// is still being sent has no more time than that either.
func (c *Conn) Send(m *Message, files ...int) error {
	frame, err := Encode(m, nil)
	if err != nil {
		return err
	}
	c.socket.setWriteDeadline(time.Now().Add(SendLimit))
	c.sending.Lock()
	defer c.sending.Unlock()
	c.socket.setWriteDeadline(time.Now().Add(SendLimit))
	return c.send(frame, files)
}

// SendRequest sends q within limit, and returns earlier if ctx is done. After an error the
// helper has not got the whole request, and executes nothing.
func (c *Conn) SendRequest(ctx context.Context, limit time.Duration, q *Request) error {
	frame, err := q.encode()
	if err != nil {
		return err
	}
	c.sending.Lock()
	defer c.sending.Unlock()
	c.socket.setWriteDeadline(time.Now().Add(limit))
	defer context.AfterFunc(ctx, func() { c.socket.setWriteDeadline(time.Unix(1, 0)) })()
	return c.send(frame, append([]int{q.Dir}, q.Files...))
}

// send sends the frame, and the descriptors with its first bytes.
func (c *Conn) send(frame []byte, files []int) (err error) {
	for pause := time.Millisecond; ; pause = min(2*pause, 50*time.Millisecond) {
		var failed error
		err = c.socket.write(func(fd int) bool {
			for len(frame) > 0 && failed == nil {
				if frame, files, failed = sendSome(fd, frame, files); failed == unix.EAGAIN {
					failed = nil
					return false
				}
			}
			return true
		})
		if err != nil || failed == nil {
			return err
		}
		if failed != unix.ETOOMANYREFS {
			return os.NewSyscallError("sendmsg", failed)
		}
		// All processes of our user together have sent more descriptors that are not received
		// yet than one process may have open. That passes.
		if err := c.socket.pause(pause); err != nil {
			return errors.Join(os.NewSyscallError("sendmsg", failed), err)
		}
	}
}

// sendSome sends what one call takes, and returns what is left.
func sendSome(fd int, frame []byte, files []int) ([]byte, []int, error) {
	part, some := frame, files
	if len(some) > MaxPerSend {
		// Each part of the descriptors needs a byte to travel with; a frame with that
		// many has enough.
		part, some = frame[:1], files[:MaxPerSend]
	}
	var oob []byte
	if len(some) > 0 {
		oob = unix.UnixRights(some...)
	}
	n := 0
	err := sys.Call(fault.Sendmsg, func() (err error) {
		n, err = unix.SendmsgN(fd, part[:fault.Size(fault.Sendmsg, len(part))], oob, nil, sendFlags)
		return err
	})
	if err != nil {
		return frame, files, err
	}
	return frame[n:], files[len(some):], nil
}

// Receive returns the next message and the descriptors that came with it, which are the
// caller's. It is for the caller's end: it waits until the read deadline. raw is valid until
// the next call.
func (c *Conn) Receive() (m *Message, raw []byte, files []int, err error) {
	for {
		m, raw, files, err = c.Next()
		if m != nil || err != nil {
			c.dropFiles() // those that belong to no message
			return m, raw, files, err
		}
		if err = c.Fill(); err != nil {
			return nil, nil, nil, err
		}
	}
}

// Fill reads once from the socket. At a helper's end it returns ErrEmpty if nothing has
// arrived. At the end it returns io.EOF, within a message io.ErrUnexpectedEOF. After any error
// but ErrEmpty and os.ErrDeadlineExceeded the connection is of no use.
func (c *Conn) Fill() error {
	if c.buf == nil {
		c.buf = make([]byte, 8<<10)
	}
	var got received
	var failed error
	err := c.socket.read(func(fd int) bool {
		got, failed = receive(fd, c.buf, c.oob)
		return failed != unix.EAGAIN
	})
	if errors.Is(err, os.ErrDeadlineExceeded) || err == ErrEmpty {
		return err // the rest of a message may come
	}
	if err == nil {
		err = c.check(got, failed)
	}
	if err == nil {
		c.sender, c.in.cut = got.sender, c.in.cut || got.cut
		err, got.files = c.in.add(c.buf[:got.n], got.files), nil // they are the inbox's
	}
	if err != nil {
		closeAll(got.files)
		c.clear()
	}
	return err
}

// received is what one call has read.
type received struct {
	n      int
	files  []int
	sender int  // 0 where the socket does not name it
	cut    bool // some descriptors did not come through
}

// check returns why what was read, or could not be read, is not a part of a message.
func (c *Conn) check(got received, failed error) error {
	switch {
	case failed == unix.ECONNRESET || failed == nil && got.n == 0: // reset if the other end had not read everything
		if len(c.in.buf) > 0 {
			return io.ErrUnexpectedEOF
		}
		return io.EOF
	case failed != nil:
		return os.NewSyscallError("recvmsg", failed)
	case c.peer != 0 && got.sender != c.peer || len(c.in.buf) > 0 && got.sender != c.sender:
		return ErrOtherSender // no process finishes the message of another one
	}
	return nil
}

// Next returns the next whole message of what Fill has read; nil if there is none. raw is
// valid until the next Fill. The descriptors are the caller's. With ErrFilesCut comes a
// message whose descriptors did not all come through, and were closed. After any other error
// the connection is of no use.
func (c *Conn) Next() (m *Message, raw []byte, files []int, err error) {
	m, raw, files, err = c.in.next()
	if err != nil {
		closeAll(files)
		files = nil
		if err != ErrFilesCut {
			c.clear()
		}
	}
	return m, raw, files, err
}

// receive reads bytes and descriptors without waiting. What two processes have sent never
// comes at once.
func receive(fd int, buf, oob []byte) (got received, err error) {
	err = sys.Call(fault.Recvmsg, func() (err error) {
		got, err = recvmsg(fd, buf[:fault.Size(fault.Recvmsg, len(buf))], oob)
		return err
	})
	return got, err
}

// rights returns the descriptors that came with a message.
func rights(oob []byte) (files []int, err error) {
	if len(oob) == 0 {
		return nil, nil
	}
	msgs, err := unix.ParseSocketControlMessage(oob)
	for i := range msgs {
		if fds, err := unix.ParseUnixRights(&msgs[i]); err == nil {
			files = append(files, fds...)
		}
	}
	return files, err
}

// dropFiles closes the descriptors that belong to no message yet.
func (c *Conn) dropFiles() {
	closeAll(c.in.files)
	c.in.files = nil
}

// clear forgets what has arrived and is not a whole message.
func (c *Conn) clear() {
	c.dropFiles()
	c.in = inbox{}
}

func closeAll(files []int) {
	for _, fd := range files {
		unix.Close(fd)
	}
}

// SendersNamed reports whether the kernel names the sender of each message.
func (c *Conn) SendersNamed() bool { return c.sendersNamed }

// Sender returns the process that has sent what was read last, as our kernel numbers it; 0
// if the kernel does not name it.
func (c *Conn) Sender() int { return c.sender }

// Peer returns the only process whose messages are accepted; 0 if it is not known.
func (c *Conn) Peer() int { return c.peer }

// SetPeer makes Fill refuse what any other process sends: another one can have taken a
// descriptor of the socket.
func (c *Conn) SetPeer(pid int) { c.peer = pid }

// SetReadDeadline makes Receive return at the given time at the latest, with
// os.ErrDeadlineExceeded; the zero time takes that back. It is for the caller's end.
func (c *Conn) SetReadDeadline(at time.Time) { c.socket.setReadDeadline(at) }

// Readable reports whether there is something to read, or the other end is closed, or this
// one.
func (c *Conn) Readable() bool {
	readable := false
	err := c.socket.control(func(fd int) {
		fds := [1]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
		n, _ := unix.Poll(fds[:], 0)
		readable = n > 0
	})
	return readable || err != nil // closed
}

// Control calls do with the socket, which stays open meanwhile.
func (c *Conn) Control(do func(fd int)) error { return c.socket.control(do) }

// Close closes the socket. What waits for it returns. A second Close does nothing.
func (c *Conn) Close() { c.socket.close() }

// Socketpair returns two connected sockets.
func Socketpair() ([2]int, error) {
	if err := sys.Fault(fault.Socketpair); err != nil {
		return [2]int{-1, -1}, err
	}
	return socketpair()
}
