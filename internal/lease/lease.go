// Package lease tells whether the owner of something lives. The owner holds the lock of a
// file, which the system drops when the owner ends, however it ends. A pid would tell
// nothing about another container, and is used again.
//
// Two kinds of lock do not know of each other on either system (fcntl(2), flock(2)):
//
//   - Create and Take use a POSIX record lock, which belongs to one process. A forked copy of
//     the owner has all its descriptors, and does not have this lock. The price: the process
//     loses it by closing any descriptor of the file. So a process opens its own file once,
//     and Take does not open it again.
//   - Join, End and TryLock use flock, which several processes can share.
//
// A file is never unlocked while its owner lives. A process that has found the owner dead can
// rely on that, because no name is used twice.
package lease

import "errors"

// Lease is a file that this process holds until Release, or until the process ends.
type Lease struct {
	Path string
	FD   int // must not be closed

	release func()
}

// ErrHeld means that an owner of the file lives.
var ErrHeld = errors.New("another process holds it")

// Release gives up the lock. The file stays, as that of a dead owner.
func (l *Lease) Release() { l.release() }
