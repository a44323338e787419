//go:build linux || darwin

package wire

import (
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"curfew/internal/sys"
)

// socket is how an end waits. read and write call try until it returns true, and wait
// before each further call until the socket is ready. They return an error instead if that
// takes too long.
type socket interface {
	read(try func(fd int) bool) error
	write(try func(fd int) bool) error
	// pause waits for d, or returns an error if there is no time left to write.
	pause(d time.Duration) error
	control(do func(fd int)) error
	setReadDeadline(time.Time)
	setWriteDeadline(time.Time)
	close()
}

// callerSocket waits with the Go runtime's poller, so that no thread waits.
type callerSocket struct {
	file *os.File
	raw  syscall.RawConn
}

func (s *callerSocket) read(try func(int) bool) error {
	return s.raw.Read(func(fd uintptr) bool { return try(int(fd)) })
}

func (s *callerSocket) write(try func(int) bool) error {
	return s.raw.Write(func(fd uintptr) bool { return try(int(fd)) })
}

func (s *callerSocket) pause(d time.Duration) error {
	if err := s.raw.Write(func(uintptr) bool { return true }); err != nil {
		return err
	}
	time.Sleep(d)
	return nil
}

func (s *callerSocket) control(do func(int)) error {
	return s.raw.Control(func(fd uintptr) { do(int(fd)) })
}

func (s *callerSocket) setReadDeadline(at time.Time)  { _ = s.file.SetReadDeadline(at) } // if it is closed, read returns that error
func (s *callerSocket) setWriteDeadline(at time.Time) { _ = s.file.SetWriteDeadline(at) }
func (s *callerSocket) close()                        { _ = s.file.Close() }

// helperSocket waits in poll, on the thread of the loop: the Go runtime aborts a process in
// which it cannot start a thread.
type helperSocket struct {
	fd    int
	until time.Time // for writing
}

func (s *helperSocket) read(try func(int) bool) error {
	if !try(s.fd) {
		return ErrEmpty
	}
	return nil
}

func (s *helperSocket) write(try func(int) bool) error {
	for !try(s.fd) {
		if !time.Now().Before(s.until) {
			return os.ErrDeadlineExceeded
		}
		poll([]unix.PollFd{{Fd: int32(s.fd), Events: unix.POLLOUT}}, s.until)
	}
	return nil
}

func (s *helperSocket) pause(d time.Duration) error {
	if !time.Now().Before(s.until) {
		return os.ErrDeadlineExceeded
	}
	poll(nil, time.Now().Add(d))
	return nil
}

// poll waits until a descriptor is ready or the time has come, or less.
func poll(fds []unix.PollFd, until time.Time) {
	if sys.Poll(fds, until) != nil {
		sys.Pause(10 * time.Millisecond) // the kernel is short of memory
	}
}

func (s *helperSocket) control(do func(int)) error {
	do(s.fd)
	return nil
}

func (s *helperSocket) setReadDeadline(time.Time)     {} // it never waits
func (s *helperSocket) setWriteDeadline(at time.Time) { s.until = at }
func (s *helperSocket) close()                        { unix.Close(s.fd) }
