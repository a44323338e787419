//go:build unix

// Package sys makes the system calls that several packages need. Each function repeats a
// call that a signal has interrupted, and asks package fault first whether a test wants the
// call to fail. What opens a descriptor makes it close-on-exec.
//
// A function whose name begins with Raw keeps its thread and allocates nothing: the Go
// scheduler does not know of the call, so the goroutine needs no other thread afterwards. Raw
// calls are for files that cannot block, as those below /proc, and for a locked thread that
// must not wait for the scheduler.
package sys

import (
	"golang.org/x/sys/unix"

	"curfew/internal/fault"
)

// Retry repeats call until no signal interrupts it, and returns its error.
func Retry(call func() error) error {
	for {
		if err := call(); err != unix.EINTR {
			return err
		}
	}
}

// Call does the same for a kind of call that tests can make fail.
func Call(kind fault.Call, call func() error) error {
	for {
		err := Fault(kind)
		if err == nil {
			err = call()
		}
		if err != unix.EINTR {
			return err
		}
	}
}

// Fault returns the error that a test wants the next call of this kind to fail with.
func Fault(kind fault.Call) error {
	if errno := fault.At(kind); errno != 0 {
		return errno
	}
	return nil
}

// Open opens a file.
func Open(path string, flags int, perm uint32) (fd int, err error) {
	err = Call(fault.Open, func() (err error) {
		fd, err = unix.Open(path, flags|unix.O_CLOEXEC, perm)
		return err
	})
	return result(fd, err)
}

// Openat opens the file name in the directory dir.
func Openat(dir int, name string, flags int) (fd int, err error) {
	err = Call(fault.Openat, func() (err error) {
		fd, err = unix.Openat(dir, name, flags|unix.O_CLOEXEC, 0)
		return err
	})
	return result(fd, err)
}

func result(fd int, err error) (int, error) {
	if err != nil {
		return -1, err
	}
	return fd, nil
}

// Close closes fd. It returns no error: data that matters has to be synced before.
func Close(fd int) { _ = unix.Close(fd) }

// Read reads into b, as much as one call returns. 0 is the end.
func Read(fd int, b []byte) (n int, err error) {
	err = Call(fault.Read, func() (err error) {
		n, err = unix.Read(fd, b[:fault.Size(fault.Read, len(b))])
		return err
	})
	return max(n, 0), err
}

// Write writes b, as much as one call takes.
func Write(fd int, b []byte) (n int, err error) {
	err = Call(fault.Write, func() (err error) {
		n, err = unix.Write(fd, b)
		return err
	})
	return max(n, 0), err
}

// WriteAll writes all of b.
func WriteAll(fd int, b []byte) error {
	for len(b) > 0 {
		n, err := Write(fd, b)
		if err != nil {
			return err
		}
		b = b[n:]
	}
	return nil
}

// Fstat returns the status of an open file.
func Fstat(fd int, st *unix.Stat_t) error {
	return Call(fault.Fstat, func() error { return unix.Fstat(fd, st) })
}

// Dup returns another descriptor of the same open file.
func Dup(fd int) (int, error) { return unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0) }
