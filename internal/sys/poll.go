//go:build linux || darwin

package sys

import (
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"curfew/internal/fault"
)

// Poll waits until a descriptor is ready or the time has come; the zero time never comes.
func Poll(fds []unix.PollFd, until time.Time) error {
	return Call(fault.Poll, func() error { return poll(fds, until) })
}

// Wait4 waits for a child as wait4(2) does. With WNOHANG, pid is 0 if there is nothing new.
func Wait4(child int, status *syscall.WaitStatus, options int, usage *syscall.Rusage) (pid int, err error) {
	err = Call(fault.Wait4, func() (err error) {
		pid, err = syscall.Wait4(child, status, options, usage)
		return err
	})
	return pid, err
}
