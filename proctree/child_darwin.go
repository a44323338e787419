package proctree

import (
	"syscall"

	"golang.org/x/sys/unix"

	"curfew/outcome"
)

// What the kernel answers about children of this process.

// inExecution is the kernel's P_EXEC: the process has executed something since it was
// forked.
const inExecution = 0x4000

// kinfo reads the entry of one process in kern.proc.
func kinfo(pid int) (*unix.KinfoProc, error) {
	k, err := unix.SysctlKinfoProc("kern.proc.pid", pid)
	if err == nil && int(k.Proc.P_pid) != pid {
		err = unix.ESRCH
	}
	return k, err
}

// neverExecuted reports whether pid, an unreaped child, is still what it was when it
// was forked.
func (p *processTable) neverExecuted(pid int) bool {
	k, err := kinfo(pid)
	return err == nil && k.Proc.P_flag&inExecution == 0
}

// exitFD returns -1: the watcher reports it.
func exitFD(int) int { return -1 }

// exitOf returns how pid, an unreaped child, has ended; nil if it has not.
// (waitid cannot be asked: it takes one that is stopped for one that has exited.)
func exitOf(pid int) *outcome.Exit {
	k, err := kinfo(pid)
	if err != nil || k.Proc.P_stat != stateZombie {
		return nil
	}
	return exitFrom(syscall.WaitStatus(k.Proc.P_xstat))
}

// What wait4 awaits, and the unit in which it reports the memory used.
const (
	waitAll = 0
	rssUnit = 1
)
