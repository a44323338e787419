package sys

import (
	"time"

	"golang.org/x/sys/unix"
)

// ShortenSlice gives the calling thread, which reaps, and another one of this process, from
// which what is started inherits, a short time slice (Linux 6.12), so that they get their
// turns sooner among many others. What they start does not inherit it. 0 is the calling thread.
//
// Real-time priority would do more, and harm: the kernel spins in wait4 as long as another
// process, such as ps, is about to read the /proc files of the dead one, and a real-time
// thread does not let that process run.
func ShortenSlice(forking int) {
	const resetOnFork = 1
	const shortSlice = 100 * time.Microsecond // the least there is
	for _, tid := range []int{0, forking} {
		attr, err := unix.SchedGetAttr(tid, 0)
		if err != nil || attr.Policy != unix.SCHED_NORMAL && attr.Policy != unix.SCHED_BATCH {
			continue
		}
		// The flag would give a leader that is to have a negative nice value another.
		if tid == 0 || attr.Nice >= 0 {
			attr.Runtime = uint64(shortSlice)
			attr.Flags |= resetOnFork
			_ = unix.SchedSetAttr(tid, attr, 0)
		}
	}
}
