package journal

import "golang.org/x/sys/unix"

// fsync asks the drive to write its cache too: fsync(2) does not. Not every file system can.
func fsync(fd int) error {
	_, err := unix.FcntlInt(uintptr(fd), unix.F_FULLFSYNC, 0)
	if err == nil || err == unix.EINTR { // syncFile repeats an interrupted call
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
