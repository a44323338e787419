package sys

import "golang.org/x/sys/unix"

// Pipe returns the ends of a pipe, which block: r to read from, w to write to.
func Pipe() (r, w int, err error) {
	var p [2]int
	if err := unix.Pipe2(p[:], unix.O_CLOEXEC); err != nil {
		return -1, -1, err
	}
	return p[0], p[1], nil
}
