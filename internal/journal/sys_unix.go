//go:build linux || darwin

package journal

import (
	"errors"
	"io/fs"
	"syscall"

	"golang.org/x/sys/unix"

	"curfew/internal/fault"
	"curfew/internal/sys"
)

// The system calls of the journal. Helpers make them too, so they do without os.File: the
// first one of a process starts the runtime's poller, which aborts the process if there is no
// descriptor left. Locks are POSIX record locks and flocks, which do not know of each other
// on either system (fcntl(2), flock(2)).

func supported() error { return nil }

// call makes a system call for the file path.
func call(kind fault.Call, path string, do func() error) error {
	if err := sys.Call(kind, do); err != nil {
		return pathError(kind.String(), path, err)
	}
	return nil
}

// What a file is opened for.
const (
	forReading   = unix.O_RDONLY
	forAppending = unix.O_RDWR | unix.O_APPEND
	forLocking   = unix.O_RDWR // a POSIX lock that excludes others needs it
	orCreate     = unix.O_CREAT
	mustCreate   = unix.O_CREAT | unix.O_EXCL
)

var errNotRegular = errors.New("not a regular file")

// openFile opens a regular file. Others are refused without waiting for anybody
// and without following a link.
func openFile(path string, flags int) (fd int, err error) {
	fd, err = sys.Open(path, flags|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_NOCTTY, 0o600)
	if err != nil {
		return -1, pathError("open", path, err)
	}
	st, err := status(fd, path)
	if err == nil && st.Mode&unix.S_IFMT != unix.S_IFREG {
		err = pathError("open", path, errNotRegular)
	}
	if err != nil {
		closeFile(fd)
		return -1, err
	}
	return fd, nil
}

func status(fd int, path string) (st unix.Stat_t, err error) {
	if err = sys.Fstat(fd, &st); err != nil {
		err = pathError("fstat", path, err)
	}
	return st, err
}

func closeFile(fd int) { sys.Close(fd) }

// readAll reads the file from where the descriptor stands: at its start.
func readAll(fd int, path string, limit int) ([]byte, error) {
	st, err := status(fd, path)
	if err != nil {
		return nil, err
	}
	if st.Size > int64(limit) {
		return nil, pathError("read", path, errTooBig)
	}
	b := make([]byte, 0, st.Size+1) // one more, to see the end
	for {
		n, err := sys.Read(fd, b[len(b):cap(b)])
		if err != nil {
			return nil, pathError("read", path, err)
		}
		if n == 0 {
			return b, nil
		}
		if b = b[:len(b)+n]; len(b) > limit {
			return nil, pathError("read", path, errTooBig)
		}
		if len(b) == cap(b) {
			b = append(b, 0)[:len(b)]
		}
	}
}

// writeAll writes b, with one call unless the system cuts it short.
func writeAll(fd int, path string, b []byte) error {
	if err := sys.WriteAll(fd, b); err != nil {
		return pathError("write", path, err)
	}
	return nil
}

// syncFile returns when what was written to the file is on the disk.
func syncFile(fd int, path string) error {
	return call(fault.Fsync, path, func() error { return fsync(fd) })
}

// syncDir returns when the names in the directory are on the disk.
func syncDir(dir string) error {
	fd, err := sys.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		return pathError("open", dir, err)
	}
	defer closeFile(fd)
	return syncFile(fd, dir)
}

func rename(from, to string) error {
	return call(fault.Rename, from, func() error { return unix.Rename(from, to) })
}

// remove removes a file. One that is gone already is the goal reached.
func remove(path string) error {
	err := call(fault.Unlink, path, func() error { return unix.Unlink(path) })
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

func mkdir(dir string) error {
	return call(fault.Mkdir, dir, func() error { return unix.Mkdir(dir, 0o700) })
}

// lockProcess takes the file's lock for this process, false if another one has it.
func lockProcess(fd int, path string) (bool, error) {
	whole := unix.Flock_t{Type: unix.F_WRLCK}
	return locked(call(fault.Fcntl, path, func() error { return unix.FcntlFlock(uintptr(fd), unix.F_SETLK, &whole) }))
}

// flockShared takes a lock that others may have too, but none alone, false if one has.
func flockShared(fd int, path string) (bool, error) {
	return locked(call(fault.Flock, path, func() error { return unix.Flock(fd, unix.LOCK_SH|unix.LOCK_NB) }))
}

// flockExclusive takes a lock that nobody else has, false if somebody has it or
// shares one.
func flockExclusive(fd int, path string) (bool, error) {
	return locked(call(fault.Flock, path, func() error { return unix.Flock(fd, unix.LOCK_EX|unix.LOCK_NB) }))
}

// flockRelease gives up the lock although there may be copies of the descriptor.
func flockRelease(fd int) { _ = unix.Flock(fd, unix.LOCK_UN) } // cannot fail on one that is locked

func locked(err error) (bool, error) {
	if errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EACCES) {
		return false, nil
	}
	return err == nil, err
}

// ownerOf returns the user that a file belongs to.
func ownerOf(info fs.FileInfo) int {
	return int(info.Sys().(*syscall.Stat_t).Uid)
}
