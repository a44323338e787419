package proctree

import (
	"syscall"

	"golang.org/x/sys/unix"

	"curfew/internal/sys"
)

// One process that is no member of a tree: a helper, known by its pidfd.

// KillPidfd sends SIGKILL to the process that fd, a pidfd, stands for. It is
// for a caller that ends a helper of its own.
func KillPidfd(fd int) error { return signalPidfd(fd, syscall.SIGKILL) }

// ProbePidfd returns an error if that process does not have its pid any more.
func ProbePidfd(fd int) error {
	if !unreaped(fd) {
		return unix.ESRCH
	}
	return nil
}

// ResumePidfd sends SIGCONT to it in the same way.
func ResumePidfd(fd int) error { return signalPidfd(fd, syscall.SIGCONT) }

// Dead reports whether a process is a zombie, all its threads included.
func Dead(pid int) bool {
	var p procfs
	p.open()
	defer sys.RawClose(p.fd)
	return p.dead(pid)
}

func suspended(pid int) bool {
	var p procfs
	p.open()
	defer sys.RawClose(p.fd)
	return p.suspended(pid)
}
