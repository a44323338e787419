// On macOS, unlinkat on a mount point reaches the mounted directory, and for
// the root of a file system it returns EBUSY: unlinkat(2), rmdir(2). A directory
// that cannot be read cannot be opened: its mode is changed by name, without
// following a link, and the directory that is opened then is checked once more. The parent
// has to be readable. A file with the flag uchg is not removed.

package scratch

import (
	"golang.org/x/sys/unix"

	"curfew/internal/fault"
	"curfew/internal/sys"
)

const parentFlags = unix.O_RDONLY | unix.O_DIRECTORY

// openClosed opens a directory for which openat has returned EACCES.
func openClosed(at int, name string, ok func(fd int, st *unix.Stat_t) error) (int, error) {
	var st unix.Stat_t
	err := fstatat(at, name, &st)
	if err == nil {
		err = ok(-1, &st)
	}
	if err != nil {
		return -1, err
	}
	if !ours(&st) || !isDir(&st) {
		return -1, unix.EACCES
	}
	mode := uint32(st.Mode)&0o7777 | 0o700
	if err := sys.Call(fault.Fchmod, func() error { return unix.Fchmodat(at, name, mode, unix.AT_SYMLINK_NOFOLLOW) }); err != nil {
		return -1, err
	}
	return sys.Openat(at, name, dirFlags)
}

// unlinkat removes a name that ends with a NUL.
func unlinkat(at int, name []byte, flags int) error {
	return sys.Call(fault.Unlinkat, func() error { return unix.Unlinkat(at, text(name), flags) })
}

// birth returns when the directory with the status st was made.
func birth(_ int, st *unix.Stat_t) int64 { return st.Btim.Nano() }
