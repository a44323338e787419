package main

import (
	"os"
	"time"

	"golang.org/x/sys/unix"

	"curfew/internal/sys"
)

// watchParent returns a channel that is closed when process ppid, our parent,
// is gone.
func watchParent(ppid int) <-chan struct{} {
	// With a pidfd it does not matter if the number is used again. The check below shows that
	// it was still our parent's when the pidfd was opened.
	pidfd, err := unix.PidfdOpen(ppid, 0)
	if err != nil { // before Linux 5.3, or refused
		return pollParent(ppid)
	}
	gone := make(chan struct{})
	if os.Getppid() != ppid {
		unix.Close(pidfd)
		close(gone)
		return gone
	}
	go func() {
		defer close(gone)
		fds := []unix.PollFd{{Fd: int32(pidfd), Events: unix.POLLIN}}
		for fds[0].Revents == 0 {
			_ = sys.Poll(fds, time.Time{}) // on an error it tries again
		}
	}()
	return gone
}

// hangup returns a channel that is closed when the other end of f, a pipe or a
// socket, is closed, whether or not all of it was read.
func hangup(f *os.File) <-chan struct{} {
	gone := make(chan struct{})
	go func() {
		fds := []unix.PollFd{{Fd: int32(f.Fd()), Events: unix.POLLRDHUP}}
		if sys.Poll(fds, time.Time{}) == nil {
			close(gone)
		}
	}()
	return gone
}
