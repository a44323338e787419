package journal

import (
	"errors"
	"io/fs"
	pathpkg "path"
	"sync"
)

// A caller is alive as long as its lock cannot be taken. That is a POSIX record
// lock: it belongs to the process and goes with it, and a forked copy of the
// caller, which has all its descriptors, does not have it. The price: it goes
// too when the process closes any descriptor of that file. So the caller opens
// the file once, and own keeps its Recover away from it.
//
// A helper is alive as long as its flock is held. The helpers of a dead caller
// are looked for only after the caller was found dead. Who finds none removes
// the file before giving up the lock, so a helper that comes up late is refused.

const (
	callerSuffix  = ".caller"
	helpersSuffix = ".helpers"
)

// own are the peers of this process, of all its journals.
var own struct {
	sync.Mutex
	peers map[string]bool
}

func isOwn(peer string) bool {
	own.Lock()
	defer own.Unlock()
	return own.peers[peer]
}

func setOwn(peer string, is bool) {
	own.Lock()
	defer own.Unlock()
	if own.peers == nil {
		own.peers = map[string]bool{}
	}
	if is {
		own.peers[peer] = true
	} else {
		delete(own.peers, peer)
	}
}

// join makes the files of a new peer and returns the locked descriptor.
func join(dir, peer string) (fd int, err error) {
	setOwn(peer, true)
	// Locked before it has its name: nobody may find it unlocked.
	temp, path := pathpkg.Join(dir, peersDir, tempPre+randomName()), callerFile(dir, peer)
	if fd, err = openFile(temp, forLocking|mustCreate); err != nil {
		setOwn(peer, false)
		return -1, err
	}
	made := temp
	locked, err := lockProcess(fd, temp)
	if err == nil && !locked {
		err = pathError("lock", temp, errors.New("held by somebody else"))
	}
	if err == nil {
		err = rename(temp, path)
	}
	if err == nil {
		made = path
		// Last: without the caller's file this one would be a dead caller's.
		var helpers int
		if helpers, err = openFile(helpersFile(dir, peer), forLocking|mustCreate); err == nil {
			closeFile(helpers)
		}
	}
	if err != nil {
		err = errors.Join(err, remove(made))
		leave(peer, fd)
		return -1, err
	}
	return fd, nil
}

// leave gives up the lock of a peer of this process.
func leave(peer string, fd int) {
	closeFile(fd)
	setOwn(peer, false)
}

// callerDead reports whether the caller is dead or has closed its journal. That
// is for ever, since no name is used twice. A caller whose file is missing is
// dead: it has the file before it has a record, and leaves it only if it dies.
// If it cannot be told, the caller counts as alive.
func callerDead(dir, peer string) (bool, error) {
	if isOwn(peer) {
		return false, nil
	}
	path := callerFile(dir, peer)
	fd, err := openFile(path, forLocking)
	if errors.Is(err, fs.ErrNotExist) {
		return true, nil
	}
	if err != nil {
		return false, &RecordError{path, err}
	}
	defer closeFile(fd)
	dead, err := lockProcess(fd, path)
	if err != nil {
		return false, &RecordError{path, err}
	}
	return dead, nil
}

// helpersGone reports whether no helper of a dead caller is alive, for ever:
// from then on Hold refuses.
func helpersGone(dir, peer string) (bool, error) {
	path := helpersFile(dir, peer)
	fd, err := openFile(path, forReading)
	if errors.Is(err, fs.ErrNotExist) {
		return true, nil
	}
	if err != nil {
		return false, &RecordError{path, err}
	}
	defer closeFile(fd)
	gone, err := flockExclusive(fd, path)
	if err == nil && gone {
		err = remove(path)
	}
	if err != nil {
		return false, &RecordError{path, err}
	}
	return gone, nil
}
