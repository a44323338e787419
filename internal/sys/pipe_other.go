//go:build unix && !linux

package sys

import (
	"syscall"

	"golang.org/x/sys/unix"
)

// Pipe returns the ends of a pipe, which block: r to read from, w to write to. Not every
// system has pipe2, so that package syscall must not fork before both are close-on-exec.
func Pipe() (r, w int, err error) {
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	var p [2]int
	if err := unix.Pipe(p[:]); err != nil {
		return -1, -1, err
	}
	unix.CloseOnExec(p[0])
	unix.CloseOnExec(p[1])
	return p[0], p[1], nil
}
