//go:build unix

package main

import "golang.org/x/sys/unix"

// parentIsOurs tells a parent that started us from one that has adopted us
// because the other was gone before we could look. A process is in the session
// of the one that forked it, or has made one of its own; whoever adopts orphans
// (pid 1, a subreaper) is in another. Pid 1 can be either: in a container it is
// what starts everything.
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
