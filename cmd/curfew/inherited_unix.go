//go:build unix

package main

import (
	"errors"
	"os"
	"runtime"
	"strconv"

	"golang.org/x/sys/unix"
)

// openFlags are for files that may be anything: opening does not wait for the reader of a
// FIFO, and no terminal becomes our controlling terminal.
const openFlags = unix.O_NONBLOCK | unix.O_NOCTTY

// duplicate returns a copy of a descriptor that curfew was started with, and that can
// be written to. Position and flags are shared with the original.
func duplicate(fd int) (*os.File, error) {
	if fd > 2 && (fd-3 >= len(inherited) || inherited[fd-3] == nil) {
		return nil, unix.EBADF // also for a descriptor that curfew itself opened
	}
	flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFL, 0)
	if err != nil {
		return nil, err
	}
	if access := flags & unix.O_ACCMODE; access != unix.O_WRONLY && access != unix.O_RDWR {
		return nil, errors.New("the descriptor is not open for writing")
	}
	copied, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 3)
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(copied), "descriptor "+strconv.Itoa(fd)), nil
}

// inherited are the descriptors from 3 on that curfew was started with; descriptor N has the
// index N-3. They are listed before this program opens any file. The variable keeps them
// referenced, so that no finalizer closes them.
var inherited = listInherited()

// listInherited finds the descriptors that the parent left open on purpose: those without
// close-on-exec. The Go runtime opens its own with it.
func listInherited() []*os.File {
	var files []*os.File
	for _, fd := range openDescriptors() {
		flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0)
		if fd < 3 || err != nil || flags&unix.FD_CLOEXEC != 0 {
			continue
		}
		for len(files) <= fd-3 {
			files = append(files, nil)
		}
		files[fd-3] = os.NewFile(uintptr(fd), "inherited descriptor "+strconv.Itoa(fd))
	}
	return files
}

func openDescriptors() []int {
	dir := "/dev/fd"
	if runtime.GOOS == "linux" {
		dir = "/proc/self/fd"
	}
	var fds []int
	entries, err := os.ReadDir(dir)
	if err != nil {
		for fd := range 256 { // without a list; shells use lower numbers
			fds = append(fds, fd)
		}
		return fds
	}
	for _, e := range entries {
		if fd, err := strconv.Atoi(e.Name()); err == nil {
			fds = append(fds, fd)
		}
	}
	return fds
}
