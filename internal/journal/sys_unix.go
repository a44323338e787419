//go:build linux || darwin

package journal

import (
	"errors"
	"io/fs"
	"syscall"

	"golang.org/x/sys/unix"
)

// The system calls of the journal. Helpers make them too, so they stand alone:
// the first os.File of a process starts its poller, which is fatal when there
// is no descriptor left. Locks are POSIX record locks and flocks, which do not
// know of each other on either system (fcntl(2), flock(2)).

func supported() error { return nil }

// inject, if not nil, is asked before each call whether it is to fail instead:
// for tests.
var inject func(call string) error

// call makes a system call, again if a signal interrupted it.
func call(name, path string, do func() error) error {
	for {
		var err error
		if inject != nil {
			err = inject(name)
		}
		if err == nil {
			err = do()
		}
		switch {
		case err == nil:
			return nil
		case err != unix.EINTR:
			return pathError(name, path, err)
		}
	}
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
	flags |= unix.O_CLOEXEC | unix.O_NOFOLLOW | unix.O_NONBLOCK | unix.O_NOCTTY
	err = call("open", path, func() (err error) {
		fd, err = unix.Open(path, flags, 0o600)
		return err
	})
	if err != nil {
		return -1, err
	}
	var st unix.Stat_t
	err = call("fstat", path, func() error { return unix.Fstat(fd, &st) })
	if err == nil && st.Mode&unix.S_IFMT != unix.S_IFREG {
		err = pathError("open", path, errNotRegular)
	}
	if err != nil {
		closeFile(fd)
		return -1, err
	}
	return fd, nil
}

// closeFile reports nothing: what matters was synced before.
func closeFile(fd int) { _ = unix.Close(fd) }

// readAll reads the whole file, from wherever the descriptor stands: at its start.
func readAll(fd int, path string, limit int) ([]byte, error) {
	var st unix.Stat_t
	if err := call("fstat", path, func() error { return unix.Fstat(fd, &st) }); err != nil {
		return nil, err
	}
	if st.Size > int64(limit) {
		return nil, pathError("read", path, errTooBig)
	}
	b := make([]byte, 0, st.Size+1) // one more, to see the end
	for {
		n := 0
		err := call("read", path, func() (err error) {
			n, err = unix.Read(fd, b[len(b):cap(b)])
			return err
		})
		if err != nil {
			return nil, err
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

// writeAll writes b, with a single call unless the system cuts it short.
func writeAll(fd int, path string, b []byte) error {
	for len(b) > 0 {
		n := 0
		err := call("write", path, func() (err error) {
			n, err = unix.Write(fd, b)
			return err
		})
		if err != nil {
			return err
		}
		b = b[n:]
	}
	return nil
}

// syncFile returns when what was written to the file is on the disk.
func syncFile(fd int, path string) error {
	return call("fsync", path, func() error { return fsync(fd) })
}

// syncDir returns when the names in the directory are on the disk.
func syncDir(dir string) error {
	fd := -1
	err := call("open", dir, func() (err error) {
		fd, err = unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		return err
	})
	if err != nil {
		return err
	}
	defer closeFile(fd)
	return syncFile(fd, dir)
}

func rename(from, to string) error {
	return call("rename", from, func() error { return unix.Rename(from, to) })
}

// remove removes a file. One that is gone already is the goal reached.
func remove(path string) error {
	err := call("unlink", path, func() error { return unix.Unlink(path) })
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

func mkdir(dir string) error {
	return call("mkdir", dir, func() error { return unix.Mkdir(dir, 0o700) })
}

// lockProcess takes the file's lock for this process, false if another one has it.
func lockProcess(fd int, path string) (bool, error) {
	whole := unix.Flock_t{Type: unix.F_WRLCK}
	return locked(call("fcntl", path, func() error { return unix.FcntlFlock(uintptr(fd), unix.F_SETLK, &whole) }))
}

// flockShared takes a lock that others may have too, but none alone, false if one has.
func flockShared(fd int, path string) (bool, error) {
	return locked(call("flock", path, func() error { return unix.Flock(fd, unix.LOCK_SH|unix.LOCK_NB) }))
}

// flockExclusive takes a lock that nobody else has, false if somebody has it or
// shares one.
func flockExclusive(fd int, path string) (bool, error) {
	return locked(call("flock", path, func() error { return unix.Flock(fd, unix.LOCK_EX|unix.LOCK_NB) }))
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
