//go:build unix

package adapter

import (
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// The system calls of the adapter. They make descriptors that are close-on-exec
// and, where the CLI gets them, blocking, which os.Pipe does not.

func pipe() (p [2]int, err error) {
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	if err := unix.Pipe(p[:]); err != nil {
		return p, os.NewSyscallError("pipe", err)
	}
	unix.CloseOnExec(p[0])
	unix.CloseOnExec(p[1])
	return p, nil
}

// pollable returns fd as a file that the runtime waits for without a thread.
func pollable(fd int, name string) *os.File {
	_ = unix.SetNonblock(fd, true) // it is a pipe: this cannot fail
	return os.NewFile(uintptr(fd), name)
}

func openDir(dir string) (int, error) {
	for {
		fd, err := unix.Open(dir, dirFlags, 0)
		if err != unix.EINTR {
			return fd, err
		}
	}
}

func idOf(fd int) (fileID, error) {
	var st unix.Stat_t
	err := unix.Fstat(fd, &st)
	return fileID{uint64(st.Dev), st.Ino}, err
}

// duplicate returns another descriptor of f, -1 if there is none to be had.
func duplicate(f *os.File) int {
	fd := -1
	if raw, err := f.SyscallConn(); err == nil {
		_ = raw.Control(func(own uintptr) { fd, _ = unix.FcntlInt(own, unix.F_DUPFD_CLOEXEC, 0) })
	}
	return fd
}

func closeFD(fd int) { _ = unix.Close(fd) } // nothing was written to it

func mayExecute(file string) error {
	return unix.Faccessat(unix.AT_FDCWD, file, unix.X_OK, unix.AT_EACCESS)
}

// readNow reads from a descriptor that does not block.
func readNow(fd int, b []byte) (int, error) {
	for {
		n, err := unix.Read(fd, b)
		if err != unix.EINTR {
			return max(n, 0), err
		}
	}
}

// again reports whether there is nothing to read yet.
func again(err error) bool { return err == unix.EAGAIN }

// readable reports whether a read from fd would not block.
func readable(fd int) bool {
	fds := [1]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
	n, _ := unix.Poll(fds[:], 0)
	return n > 0
}
