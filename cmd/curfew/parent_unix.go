//go:build unix

package main

import "golang.org/x/sys/unix"

// parentIsOurs reports whether ppid started us, as far as that can be known. If the process
// that started us ended before we read our parent, our parent is one that adopted us. A
// process is in the session of the process that forked it, or has made its own; a process
// that adopts orphans (pid 1, a subreaper) is in another session. Pid 1 can be both: in a
// container it starts everything.
func parentIsOurs(ppid int) bool {
	own, err := unix.Getsid(0)
	if err != nil || own == unix.Getpid() {
		return true
	}
	theirs, err := unix.Getsid(ppid)
	if err == unix.ESRCH {
		return false
	}
	return err != nil || own == theirs
}
