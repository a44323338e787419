//go:build linux || darwin

package lease

import (
	"errors"
	"io"
	"io/fs"
	"os"
	pathpkg "path"
	"sync"

	"golang.org/x/sys/unix"

	"curfew/internal/fault"
	"curfew/internal/sys"
)

// own has the name of each file that this process has created or taken, without the
// directory, which can have more than one name.
var own struct {
	sync.Mutex
	names map[string]bool
}

// claim notes that the file at path is this process's own. It returns false if it is already.
func claim(path string) bool {
	own.Lock()
	defer own.Unlock()
	name := pathpkg.Base(path)
	if own.names[name] {
		return false
	}
	if own.names == nil {
		own.names = map[string]bool{}
	}
	own.names[name] = true
	return true
}

func unclaim(path string) {
	own.Lock()
	defer own.Unlock()
	delete(own.names, pathpkg.Base(path))
}

// Create makes the file path and holds it. Until it is locked it has the name temp, in the
// same directory. The name of path has to be random: no other file may have it, in any
// directory.
func Create(path, temp string) (*Lease, error) {
	if !claim(path) {
		return nil, sys.PathError("lock", path, ErrHeld)
	}
	l, err := open(path, temp, unix.O_CREAT|unix.O_EXCL)
	if err != nil {
		unclaim(path)
		return nil, err
	}
	if err = l.lockProcess(); err == nil {
		err = sys.Rename(temp, path)
	}
	if err != nil {
		err = errors.Join(err, sys.Remove(temp))
		l.Release()
		return nil, err
	}
	return l, nil
}

// Take holds a file whose owner has ended, or has given it up. The error wraps ErrHeld if the
// owner lives, and fs.ErrNotExist if there is no such file.
func Take(path string) (*Lease, error) {
	if !claim(path) {
		return nil, sys.PathError("lock", path, ErrHeld)
	}
	l, err := open(path, path, 0)
	if err != nil {
		unclaim(path)
		return nil, err
	}
	if err := l.lockProcess(); err != nil {
		l.Release()
		return nil, err
	}
	return l, nil
}

// open opens the file at, for the lease of path.
func open(path, at string, flags int) (*Lease, error) {
	fd, err := sys.OpenRegular(at, unix.O_RDWR|flags, 0o600)
	if err != nil {
		return nil, err
	}
	return &Lease{Path: path, FD: fd, release: func() {
		sys.Close(fd)
		unclaim(path)
	}}, nil
}

// lockProcess takes the lock of the file for this process.
func (l *Lease) lockProcess() error {
	whole := unix.Flock_t{Type: unix.F_WRLCK}
	return lock(l.Path, fault.Fcntl, func() error { return unix.FcntlFlock(uintptr(l.FD), unix.F_SETLK, &whole) })
}

// lock returns ErrHeld if another process has a lock that excludes this one.
func lock(path string, kind fault.Call, call func() error) error {
	err := sys.Call(kind, call)
	switch err {
	case nil:
		return nil
	case unix.EAGAIN, unix.EACCES:
		return sys.PathError("lock", path, ErrHeld)
	}
	return sys.PathError(kind.String(), path, err)
}

// Join holds the file, which other processes can hold at the same time by Join. The error
// wraps fs.ErrNotExist once End has removed the file.
func Join(path string) (*Lease, error) {
	l, err := flock(path, unix.O_RDONLY, unix.LOCK_SH)
	if errors.Is(err, ErrHeld) { // by an End that is about to remove it
		return nil, sys.PathError("flock", path, fs.ErrNotExist)
	}
	if err != nil {
		return nil, err
	}
	if _, err = os.Lstat(path); err != nil {
		l.Release()
		return nil, err
	}
	return l, nil
}

// End removes the file if no process holds it by Join. It reports whether the file does not
// exist any more; from then on Join fails.
func End(path string) (bool, error) {
	l, err := flock(path, unix.O_RDONLY, unix.LOCK_EX)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return true, nil
	case errors.Is(err, ErrHeld):
		return false, nil
	case err != nil:
		return false, err
	}
	defer l.Release()
	if err := sys.Remove(path); err != nil {
		return false, err
	}
	return true, nil
}

// TryLock holds the file alone. It makes the file if there is none. The error wraps ErrHeld
// if another process holds it.
func TryLock(path string) (*Lease, error) {
	return flock(path, unix.O_RDWR|unix.O_CREAT, unix.LOCK_EX)
}

func flock(path string, flags, how int) (*Lease, error) {
	fd, err := sys.OpenRegular(path, flags, 0o600)
	if err != nil {
		return nil, err
	}
	if err := lock(path, fault.Flock, func() error { return unix.Flock(fd, how|unix.LOCK_NB) }); err != nil {
		sys.Close(fd)
		return nil, err
	}
	return &Lease{Path: path, FD: fd, release: func() {
		// A process that is being started has a copy of the descriptor for a moment. Unlocking
		// one that is locked cannot fail.
		_ = unix.Flock(fd, unix.LOCK_UN)
		sys.Close(fd)
	}}, nil
}

// Read reads the file.
func (l *Lease) Read(b []byte) (int, error) {
	n, err := sys.Read(l.FD, b)
	if n == 0 && err == nil && len(b) > 0 {
		err = io.EOF
	}
	return n, err
}

// Write writes to the file.
func (l *Lease) Write(b []byte) (int, error) {
	if err := sys.WriteAll(l.FD, b); err != nil {
		return 0, err
	}
	return len(b), nil
}
