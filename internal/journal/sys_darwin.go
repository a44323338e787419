package journal

import "golang.org/x/sys/unix"

// fsync alone leaves the data in the drive's cache (fsync(2)). Not every
// filesystem has the other.
func fsync(fd int) error {
	_, err := unix.FcntlInt(uintptr(fd), unix.F_FULLFSYNC, 0)
	if err == nil || err == unix.EINTR { // which is tried again
		return err
	}
	return unix.Fsync(fd)
}

// BootID tells one boot of the system from another. It is "" if unknown.
func BootID() string {
	id, err := unix.Sysctl("kern.bootsessionuuid")
	if err != nil {
		return ""
	}
	return id
}
