//go:build unix

package sys

import "golang.org/x/sys/unix"

// NonblockingPipe returns the ends of a pipe of which neither blocks.
func NonblockingPipe() (r, w int, err error) {
	if r, w, err = Pipe(); err == nil {
		_ = unix.SetNonblock(r, true) // it is a pipe: this cannot fail
		_ = unix.SetNonblock(w, true)
	}
	return r, w, err
}
