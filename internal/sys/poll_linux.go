package sys

import (
	"time"

	"golang.org/x/sys/unix"
)

func poll(fds []unix.PollFd, until time.Time) error {
	var limit *unix.Timespec
	if !until.IsZero() {
		left := unix.NsecToTimespec(int64(max(time.Until(until), 0)))
		limit = &left
	}
	_, err := unix.Ppoll(fds, limit, nil)
	return err
}
