package proctree

// What happens when children die faster than they are reaped.
//
// A hundred processes that start a successor and exit, without end, get a hundred
// times as much CPU time as the one thread that reaps them. Their zombies take all
// pids there are (32,768 within 1.2 s), and then no process of the machine can fork.
// Two things prevent that. The thread that reaps has a short time slice, so that its
// turn comes soon. And while a backlog lasts, the kernel reaps: a child that exits while
// its parent ignores SIGCHLD becomes no zombie.
//
// What the kernel reaps is not accounted for in Summary.Usage, and its pid is free at once.
// So every signal is sent through a pidfd, or to a pid that was checked while a
// pidfd held it. The exit of the leader is read through its pidfd, which keeps it
// since Linux 6.15. Where the pidfd does not keep it, the kernel reaps only after the
// leader has exited, or in a stop, after which the exit decides nothing.

import (
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"curfew/internal/sys"
)

// backlog is the state of a tree in which children die faster than this process reaps.
type backlog struct {
	kernelReaps bool // SIGCHLD is ignored
	used        bool // it was, and no look has shown since which children have vanished
	dying       bool // the kernel has begun to reap the leader, and its exit cannot be read yet
	killing     bool // it was, in this kill phase
	until       time.Time
	passes      int       // of this kill phase, since before
	before      int       // how many children there were then
	few         bool      // they were not halved, and are too few for a bomb at a high limit
	next        time.Time // when to look again: nothing reports a death meanwhile
	children    uint64    // a hash of their pids at the last look

	// keepsExits: whether a pidfd still has the exit of a process that was reaped.
	keepsExits answer
}

type answer int8

const (
	unknown answer = iota
	yes
	no
)

// The kernel reaps until the children were the same for quiet. As long as it does, the
// tree is looked at every silentEvery.
const (
	quiet       = 20 * time.Millisecond
	silentEvery = 2 * time.Millisecond
)

// In a kill phase zombies are kept at first: they hold their places under a task
// limit, and a bomb cannot take them. Chains of processes that start one successor
// and exit are the opposite. More than keptFirst children are taken for such chains,
// and the kernel reaps for killReaping and killPasses, and again as long as that
// halves the children. If it does not, it may be a bomb at a high limit after all, and
// zombies are kept again, up to keptAtMost of them: the pids belong to the whole
// machine. If there were few children, it cannot be one, and they are kept for keptFor.
const (
	keptFirst   = 2500
	keptAtMost  = 12000
	killReaping = 300 * time.Millisecond
	killPasses  = 16
	keptFor     = 200 * time.Millisecond
)

// letKernelReap makes the kernel reap what dies from now on, for the time d.
func (t *subreaper) letKernelReap(d time.Duration) {
	b := &t.backlog
	b.kernelReaps, b.used = true, true
	b.until = time.Now().Add(d)
	b.next = b.until
	setSIGCHLD(sys.SigIgnore)
}

// reapAgain makes children zombies again until this process reaps them.
func (t *subreaper) reapAgain() {
	if b := &t.backlog; b.kernelReaps {
		b.kernelReaps, b.next = false, time.Time{}
		setSIGCHLD(sys.SigDefault)
		t.signalled.table.pardon() // the kernel may have given the pids away
	}
}

// behind is called when there was more to reap than is reaped at once.
func (t *subreaper) behind(ev *Event) {
	b := &t.backlog
	if b.kernelReaps || !t.siblings.visible() || t.leader.pid != 0 && !t.keepsExits(ev) {
		return
	}
	t.letKernelReap(quiet)
}

// caughtUp is called when nothing was left to reap. It reports whether the kernel
// still reaps; then nothing reports the next death.
func (t *subreaper) caughtUp() bool {
	b := &t.backlog
	if b.dying {
		b.next = time.Now().Add(silentEvery)
		return true
	}
	if !b.kernelReaps {
		b.next = time.Time{}
		return false
	}
	var children uint64
	for _, pid := range t.kin.list() {
		children = children*31 + uint64(pid)
	}
	now := time.Now()
	if children != b.children {
		b.children, b.until = children, now.Add(quiet)
	}
	if !now.Before(b.until) {
		t.reapAgain()
		return false
	}
	b.next = now.Add(silentEvery)
	return true
}

// whileKilling decides in a kill phase whether the kernel reaps, given the number of
// children.
func (t *subreaper) whileKilling(children int) {
	b := &t.backlog
	b.passes++
	begin := false
	switch {
	case b.kernelReaps && !b.killing:
		begin = true
	case b.kernelReaps && (b.passes < killPasses || time.Now().Before(b.until)):
	case b.kernelReaps && children > b.before/2:
		t.reapAgain()
		b.few = children <= keptFirst/2
	case b.kernelReaps:
		begin = true
	default:
		again := !b.killing || b.few && time.Since(b.until) > keptFor
		begin = (children > keptAtMost || children > keptFirst && again) && t.siblings.visible()
	}
	if begin {
		t.letKernelReap(killReaping)
		b.killing, b.passes, b.before = true, 0, children
	}
}

// keepsExits reports whether this kernel keeps the exit of a process for its pidfd.
// The first time it looks at a child that is dead and not the leader, and reaps it.
func (t *subreaper) keepsExits(ev *Event) bool {
	b := &t.backlog
	if b.keepsExits != unknown || t.leader.fd < 0 {
		return b.keepsExits == yes
	}
	info, errno := waitFor(unix.P_ALL, 0, unix.WEXITED|unix.WNOHANG|unix.WNOWAIT)
	pid := int(info.pid)
	if errno != 0 || pid == 0 || pid == t.leader.pid {
		return false // the next time
	}
	fd, err := pidfdOpen(pid)
	if err != nil {
		return false
	}
	defer sys.Close(fd)
	for range reapAtOnce {
		if _, errno := waitFor(unix.P_PIDFD, fd, unix.WEXITED|unix.WNOHANG|unix.WNOWAIT); errno == unix.ECHILD {
			b.keepsExits = no
			if _, ok := keptExit(fd); ok {
				b.keepsExits = yes
			}
			break
		}
		if t.reap(ev, 1) == 0 {
			break
		}
	}
	return b.keepsExits == yes
}

// keptExit reads the wait status of a process that was reaped.
func keptExit(pidfd int) (syscall.WaitStatus, bool) {
	info := unix.PidfdInfo{Mask: unix.PIDFD_INFO_EXIT}
	err := unix.IoctlPidfdInfo(pidfd, &info)
	return syscall.WaitStatus(info.Exit_code), err == nil && info.Mask&unix.PIDFD_INFO_EXIT != 0
}

// visible reports whether the exits of all siblings can be seen although the kernel
// reaps.
func (s siblings) visible() bool {
	for _, fd := range s {
		if fd < 0 {
			return false
		}
	}
	return true
}

// seeVanished notes the exits of the leader and of siblings that the kernel has reaped.
func (t *subreaper) seeVanished(ev *Event) {
	if !t.backlog.used {
		return
	}
	// What the kernel has begun to reap is no child any more.
	t.backlog.used, t.backlog.dying = t.backlog.kernelReaps, false
	vanished := func(pidfd int) bool {
		if pidfd < 0 {
			return false
		}
		_, errno := waitFor(unix.P_PIDFD, pidfd, unix.WEXITED|unix.WNOHANG|unix.WNOWAIT)
		return errno == unix.ECHILD
	}
	for pid, fd := range t.siblings {
		if vanished(fd) {
			t.siblings.gone(pid, ev)
		}
	}
	if t.leader.pid == 0 || !vanished(t.leader.fd) {
		return
	}
	ws, ok := keptExit(t.leader.fd)
	if !ok && unreaped(t.leader.fd) {
		// The pidfd gets the exit a moment before the pid is free. Until then the
		// tree is not over.
		t.backlog.used, t.backlog.dying = true, true
		ev.Empty, ev.Proof = false, ""
		return
	}
	if ok {
		ev.Exit = exitFrom(ws)
	}
	t.leaderGone()
}
