package supervisor

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"curfew/internal/journal"
	"curfew/internal/sys"
	"curfew/internal/wire"
	"curfew/proctree"
)

// What the helpers and their caller need of macOS. There is no subreaper, so there are
// no guards: supervisors are children of the caller, which sweeps if it loses one.

// tracking returns true: scans of the process table hold the trees.
func tracking() bool { return true }

func becomeTracker() {}

func openTree(interrupted func() bool) (proctree.Tree, error) {
	return proctree.Open(proctree.Options{Interrupted: interrupted, Frozen: os.Getenv(wire.FrozenVar), Boot: journal.BootID()})
}

func serveGuard() int {
	refuse("there are no guards on macOS")
	return exitRefused
}

// shortenSlice does nothing: launchd reaps what is orphaned here.
func shortenSlice(int, *State) {}

// watchCaller returns what is readable when the caller, our parent, is gone: its end
// of the socket can be held by a copy that it has forked.
func watchCaller() int {
	kq, err := unix.Kqueue()
	if err != nil {
		return -1 // its end of the socket has to do
	}
	unix.CloseOnExec(kq)
	change := []unix.Kevent_t{{
		Ident: uint64(unix.Getppid()), Filter: unix.EVFILT_PROC, Flags: unix.EV_ADD, Fflags: unix.NOTE_EXIT,
	}}
	// One that is exiting cannot be watched; that its end of the socket is closed
	// tells of it.
	_, _ = unix.Kevent(kq, change, nil, nil)
	return kq
}

// notifier returns a descriptor that becomes readable when something is written to the
// other one.
func notifier() (fd, tell int, err error) {
	if fd, tell, err = sys.NonblockingPipe(); err != nil {
		return -1, -1, fmt.Errorf("pipe: %w", err)
	}
	return fd, tell, nil
}
