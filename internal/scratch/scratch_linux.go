// On Linux, unlinkat on a directory checks for a mount (EBUSY) before it checks
// whether the directory is empty, bind mounts of the same file system included:
// vfs_rmdir in fs/namei.c, seen on 6.18. A directory that cannot be read can have
// a descriptor with O_PATH, and /proc/self/fd leads back to it.

package scratch

import (
	"strconv"
	"unsafe"

	"golang.org/x/sys/unix"

	"curfew/internal/fault"
	"curfew/internal/sys"
)

// parentFlags are for a directory that may be searched and not read.
const parentFlags = unix.O_PATH | unix.O_DIRECTORY

// openClosed opens a directory for which openat has returned EACCES.
func openClosed(at int, name string, ok func(fd int, st *unix.Stat_t) error) (int, error) {
	handle, err := sys.Openat(at, name, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW)
	if err != nil {
		return -1, err
	}
	defer unix.Close(handle)
	var st unix.Stat_t
	if err = sys.Fstat(handle, &st); err == nil {
		err = ok(handle, &st)
	}
	if err != nil {
		return -1, err
	}
	if !ours(&st) {
		return -1, unix.EACCES
	}
	// fchmod takes no such descriptor, and fchmodat2 came with Linux 6.6.
	err = sys.Call(fault.Fchmod, func() error { return unix.Chmod("/proc/self/fd/"+strconv.Itoa(handle), st.Mode&0o7777|0o700) })
	if err != nil {
		return -1, unix.EACCES // an error about /proc would mislead
	}
	return sys.Openat(handle, ".", dirFlags)
}

// unlinkat removes a name that ends with a NUL. It allocates nothing; unix.Unlinkat
// allocates for each name.
func unlinkat(at int, name []byte, flags int) error {
	return sys.Call(fault.Unlinkat, func() error {
		_, _, errno := unix.Syscall(unix.SYS_UNLINKAT, uintptr(at), uintptr(unsafe.Pointer(&name[0])), uintptr(flags))
		if errno != 0 {
			return errno
		}
		return nil
	})
}

// birth returns when the directory fd was made, 0 if the file system does not know it.
func birth(fd int, _ *unix.Stat_t) int64 {
	var st unix.Statx_t
	err := sys.Retry(func() error {
		return unix.Statx(fd, "", unix.AT_EMPTY_PATH|unix.AT_STATX_SYNC_AS_STAT, unix.STATX_BTIME, &st)
	})
	if err != nil || st.Mask&unix.STATX_BTIME == 0 {
		return 0
	}
	return st.Btime.Sec*1e9 + int64(st.Btime.Nsec)
}
