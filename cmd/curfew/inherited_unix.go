//go:build unix

package main

import (
	"os"
	"runtime"
	"strconv"

	"golang.org/x/sys/unix"
)

// nonblock keeps the opening of a FIFO that nobody reads from blocking.
const nonblock = unix.O_NONBLOCK

// inherited are the descriptors from 3 on that curfew was started with, each at
// its number less 3. They are listed before anything is opened here, and they
// stay referenced: they must not be closed by a finalizer.
var inherited = listInherited()

// listInherited finds what whoever started us left open on purpose. What is
// close-on-exec is our own runtime's.
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
		for fd := range 256 { // there is no such list; shells stay below this
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
