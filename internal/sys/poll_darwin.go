package sys

import (
	"time"

	"golang.org/x/sys/unix"
)

// poll waits for whole milliseconds, and rather too long than too short.
func poll(fds []unix.PollFd, until time.Time) error {
	ms := -1
	if !until.IsZero() {
		ms = int(min((max(time.Until(until), 0)+time.Millisecond-1)/time.Millisecond, 1<<30))
	}
	_, err := unix.Poll(fds, ms)
	return err
}
