package journal

import (
	"errors"
	"io/fs"
	pathpkg "path"

	"curfew/internal/lease"
	"curfew/internal/sys"
)

// A caller holds a lease of its own for as long as it lives; a forked copy of the caller does
// not have it. Its helpers share another lease. Recover asks for helpers only after it
// found the caller dead. If no helper lives, it removes their file, so that a helper that
// starts late is refused.

const (
	callerSuffix  = ".caller"
	helpersSuffix = ".helpers"
)

// join makes the files of a new peer and returns its lease.
func join(dir, peer string) (*lease.Lease, error) {
	caller, err := lease.Create(callerFile(dir, peer), pathpkg.Join(dir, peersDir, tempPre+randomName()))
	if err != nil {
		return nil, err
	}
	// Last: without the caller's file, this one would count as that of a dead caller.
	helpers, err := openFile(helpersFile(dir, peer), forLocking|mustCreate)
	if err != nil {
		err = errors.Join(err, sys.Remove(caller.Path))
		caller.Release()
		return nil, err
	}
	sys.Close(helpers)
	return caller, nil
}

// callerDead reports whether the caller is dead or has closed its journal. That is final,
// since no name is used twice. A caller without a file is dead: it makes the file before its
// first record. If an error hides the answer, the caller counts as alive.
func callerDead(dir, peer string) (bool, error) {
	path := callerFile(dir, peer)
	caller, err := lease.Take(path)
	switch {
	case err == nil:
		caller.Release()
		return true, nil
	case errors.Is(err, fs.ErrNotExist):
		return true, nil
	case errors.Is(err, lease.ErrHeld):
		return false, nil
	}
	return false, &RecordError{path, err}
}

// helpersGone reports whether all helpers of a dead caller have ended. That is final: from
// then on Hold refuses.
func helpersGone(dir, peer string) (bool, error) {
	path := helpersFile(dir, peer)
	gone, err := lease.End(path)
	if err != nil {
		return false, &RecordError{path, err}
	}
	return gone, nil
}
