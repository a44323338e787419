package proctree

import (
	"unsafe"

	"golang.org/x/sys/unix"

	"curfew/internal/sys"
)

func checks() []Check {
	var subreaper int32
	prctl := unix.Prctl(unix.PR_GET_CHILD_SUBREAPER, uintptr(unsafe.Pointer(&subreaper)), 0, 0, 0)
	fd, pidfd := unix.PidfdOpen(unix.Getpid(), 0)
	if pidfd == nil {
		sys.RawClose(fd)
	}
	var p procfs
	p.open()
	defer sys.RawClose(p.fd)
	cgroup, left := false, 0
	if base := openOwnCgroup(&p); base >= 0 {
		cgroup = unix.Faccessat(base, ".", unix.W_OK, 0) == nil
		left = len(p.leftCgroups(base))
		sys.RawClose(base)
	}
	return []Check{
		{"orphans fall to us (child subreaper)", prctl == nil, true, "nothing can be started"},
		{"a process can be named by a descriptor (pidfd)", pidfd == nil, false, "what is below a child that does not die is not reached"},
		{"what has died keeps its place until it is reaped (no CLONE_AUTOREAP)", !childrenVanish(), false, "at a task limit a bomb refills what was ended of it, where it has no cgroup"},
		{"/proc is mounted and ours", p.fd >= 0, false, "children are found by asking the kernel for every pid; supervisors are not used twice"},
		{"/proc lists children", p.fd >= 0 && !p.noChildren, false, "all processes are looked through instead, which is slower"},
		{"a cgroup can be made below our own (v2)", cgroup, false, "a storm of thousands that fork and exit is ended in the background"},
		{"no cgroup of a tree that was ended is left", left == 0, false, "each helper that starts goes on to remove it; a process may be in it"},
	}
}
