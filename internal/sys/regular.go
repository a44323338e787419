//go:build unix

package sys

import (
	"golang.org/x/sys/unix"

	"curfew/internal/fault"
)

// OpenRegular opens a regular file, and refuses anything else: it does not
// block and follows no link. Its errors name the file.
func OpenRegular(path string, flags int, perm uint32) (int, error) {
	fd, err := Open(path, flags|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_NOCTTY, perm)
	if err != nil {
		return -1, PathError("open", path, err)
	}
	var st unix.Stat_t
	if err = Fstat(fd, &st); err != nil {
		err = PathError("fstat", path, err)
	} else if st.Mode&unix.S_IFMT != unix.S_IFREG {
		err = PathError("open", path, ErrNotRegular)
	}
	if err != nil {
		Close(fd)
		return -1, err
	}
	return fd, nil
}

// Rename renames a file. Its error names it.
func Rename(from, to string) error {
	if err := Call(fault.Rename, func() error { return unix.Rename(from, to) }); err != nil {
		return PathError("rename", from, err)
	}
	return nil
}

// Remove removes a file. One that is gone already is the goal reached.
func Remove(path string) error {
	err := Call(fault.Unlink, func() error { return unix.Unlink(path) })
	if err == nil || err == unix.ENOENT {
		return nil
	}
	return PathError("unlink", path, err)
}
