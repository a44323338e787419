package sys

import (
	"time"

	"golang.org/x/sys/unix"
)

// Pause lets d pass, or less. It does not need the Go runtime, which may be unable to start a
// thread.
func Pause(d time.Duration) {
	left := unix.NsecToTimespec(int64(d))
	_ = unix.Nanosleep(&left, nil)
}
