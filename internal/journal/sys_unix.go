//go:build linux || darwin

package journal

import (
	"io/fs"
	"syscall"

	"golang.org/x/sys/unix"

	"curfew/internal/fault"
	"curfew/internal/sys"
)

// The system calls of the journal. Helpers make them too, and therefore use no os.File: the
// first os.File of a process starts the runtime's poller, which aborts the process if it
// gets no descriptor.

func supported() error { return nil }

// What a file is opened for.
const (
	forReading   = unix.O_RDONLY
	forAppending = unix.O_RDWR | unix.O_APPEND
	forLocking   = unix.O_RDWR
	orCreate     = unix.O_CREAT
	mustCreate   = unix.O_CREAT | unix.O_EXCL
)

func openFile(path string, flags int) (fd int, err error) { return sys.OpenRegular(path, flags, 0o600) }

// readAll reads the file from where the descriptor stands: at its start.
func readAll(fd int, path string, limit int) ([]byte, error) {
	var st unix.Stat_t
	if err := sys.Fstat(fd, &st); err != nil {
		return nil, sys.PathError("fstat", path, err)
	}
	if st.Size > int64(limit) {
		return nil, sys.PathError("read", path, errTooBig)
	}
	b := make([]byte, 0, st.Size+1) // one more, to see the end
	for {
		n, err := sys.Read(fd, b[len(b):cap(b)])
		if err != nil {
			return nil, sys.PathError("read", path, err)
		}
		if n == 0 {
			return b, nil
		}
		if b = b[:len(b)+n]; len(b) > limit {
			return nil, sys.PathError("read", path, errTooBig)
		}
		if len(b) == cap(b) {
			b = append(b, 0)[:len(b)]
		}
	}
}

// writeAll writes b, with one call unless the system cuts it short.
func writeAll(fd int, path string, b []byte) error {
	if err := sys.WriteAll(fd, b); err != nil {
		return sys.PathError("write", path, err)
	}
	return nil
}

// syncFile returns when what was written to the file is on the disk.
func syncFile(fd int, path string) error {
	if err := sys.Call(fault.Fsync, func() error { return fsync(fd) }); err != nil {
		return sys.PathError("fsync", path, err)
	}
	return nil
}

// syncDir returns when the names in the directory are on the disk.
func syncDir(dir string) error {
	fd, err := sys.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		return sys.PathError("open", dir, err)
	}
	defer sys.Close(fd)
	return syncFile(fd, dir)
}

func mkdir(dir string) error {
	if err := sys.Call(fault.Mkdir, func() error { return unix.Mkdir(dir, 0o700) }); err != nil {
		return sys.PathError("mkdir", dir, err)
	}
	return nil
}

// ownerOf returns the user that a file belongs to.
func ownerOf(info fs.FileInfo) int {
	return int(info.Sys().(*syscall.Stat_t).Uid)
}
