package supervisor

import (
	"fmt"
	"os"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"curfew/internal/journal"
	"curfew/internal/sys"
	"curfew/internal/wire"
	"curfew/proctree"
)

// What the helpers and their caller need of Linux.

// scanning is set in a helper that its caller told so, and in a caller that is a test.
var scanning atomic.Bool

// TrackTrees decides whether scans of the process table hold the trees, as they do where
// there is no subreaper. There are no guards then. It is for tests: nothing else calls it, so
// that no environment can take the kernel's proof from a program.
func TrackTrees(on bool) { scanning.Store(on) }

// tracking reports whether scans hold the trees.
func tracking() bool { return scanning.Load() }

// becomeTracker takes over from the environment of a helper what its caller decided.
func becomeTracker() { scanning.Store(os.Getenv(wire.TrackerVar) != "") }

func openTree(interrupted func() bool) (proctree.Tree, error) {
	if tracking() {
		return proctree.OpenTracked(proctree.Options{Interrupted: interrupted, Frozen: os.Getenv(wire.FrozenVar), Boot: journal.BootID()})
	}
	return proctree.Open(proctree.Options{Interrupted: interrupted, ID: os.Getenv(wire.IDVar)})
}

// shortenSlice is for the thread that reaps, after the state of forking was read, the
// thread that leaders inherit from. What changes with it goes into state, to be compared
// with later.
func shortenSlice(forking int, state *State) {
	sys.ShortenSlice(forking)
	state[stSched] = scheduling(forking)
}

// watchCaller returns a descriptor that is readable when the caller is gone, which
// the caller has sent; -1 if there is none.
func watchCaller() int { return pollable(wire.CallerFD) }

// notifier returns a descriptor that becomes readable when eight bytes are written
// to the other one, which is the same.
func notifier() (fd, tell int, err error) {
	fd, err = unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		return -1, -1, fmt.Errorf("eventfd: %w", err)
	}
	return fd, fd, nil
}
