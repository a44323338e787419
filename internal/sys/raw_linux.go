package sys

import (
	"unsafe"

	"golang.org/x/sys/unix"

	"curfew/internal/fault"
)

// RawOpenat opens the file path, which ends with a NUL, below the directory dir; -1 if that
// fails.
func RawOpenat(dir int, path []byte, flags int) int {
	for {
		fd, errno := uintptr(0), fault.At(fault.Openat)
		if errno == 0 {
			fd, _, errno = unix.RawSyscall6(unix.SYS_OPENAT, uintptr(dir), uintptr(unsafe.Pointer(&path[0])), uintptr(flags|unix.O_CLOEXEC), 0, 0, 0)
		}
		switch errno {
		case 0:
			return int(fd)
		case unix.EINTR:
		default:
			return -1
		}
	}
}

// RawReadAll fills buf from fd, and returns how much there was until the end or an error.
func RawReadAll(fd int, buf []byte) int {
	n := 0
	for n < len(buf) {
		m, size, errno := uintptr(0), fault.Size(fault.Read, len(buf)-n), fault.At(fault.Read)
		if errno == 0 {
			m, _, errno = unix.RawSyscall(unix.SYS_READ, uintptr(fd), uintptr(unsafe.Pointer(&buf[n])), uintptr(size))
		}
		if errno == unix.EINTR {
			continue
		}
		if errno != 0 || m == 0 {
			break
		}
		n += int(m)
	}
	return n
}

// RawPread reads what is at offset; 0 at the end and after an error.
func RawPread(fd int, buf []byte, offset int64) int {
	for {
		n, size, errno := uintptr(0), fault.Size(fault.Pread, len(buf)), fault.At(fault.Pread)
		if errno == 0 {
			n, _, errno = unix.RawSyscall6(unix.SYS_PREAD64, uintptr(fd), uintptr(unsafe.Pointer(&buf[0])), uintptr(size), uintptr(offset), 0, 0)
		}
		switch errno {
		case 0:
			return int(n)
		case unix.EINTR:
		default:
			return 0
		}
	}
}

// RawReadlinkat reads the link path, which ends with a NUL, in the directory dir.
func RawReadlinkat(dir int, path, buf []byte) (int, error) {
	for {
		n, _, errno := unix.RawSyscall6(unix.SYS_READLINKAT, uintptr(dir), uintptr(unsafe.Pointer(&path[0])), uintptr(unsafe.Pointer(&buf[0])), uintptr(len(buf)), 0, 0)
		switch errno {
		case 0:
			return int(n), nil
		case unix.EINTR:
		default:
			return 0, errno
		}
	}
}

// RawNotify makes an event descriptor readable. It fails if its counter is full: then it is.
func RawNotify(fd int) {
	one := [8]byte{1}
	for {
		errno := fault.At(fault.Write)
		if errno == 0 {
			_, _, errno = unix.RawSyscall(unix.SYS_WRITE, uintptr(fd), uintptr(unsafe.Pointer(&one[0])), 8)
		}
		if errno != unix.EINTR {
			return
		}
	}
}

// RawClose closes fd.
func RawClose(fd int) { _, _, _ = unix.RawSyscall(unix.SYS_CLOSE, uintptr(fd), 0, 0) }

// RawList lists the directory fd with raw calls.
func RawList(fd int, buf []byte) Dir { return Dir{fd: fd, buf: buf, raw: true} }

func rawGetdents(fd int, buf []byte) (int, error) {
	for {
		n, errno := uintptr(0), fault.At(fault.Getdents)
		if errno == 0 {
			n, _, errno = unix.RawSyscall(unix.SYS_GETDENTS64, uintptr(fd), uintptr(unsafe.Pointer(&buf[0])), uintptr(len(buf)))
		}
		switch errno {
		case 0:
			return int(n), nil
		case unix.EINTR:
		default:
			return 0, errno
		}
	}
}
