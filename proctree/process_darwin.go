package proctree

import (
	"syscall"

	"golang.org/x/sys/unix"
)

// One process that is no member of a tree: a helper.

// Identity identifies a process, for as long as the system runs.
type Identity struct{ row tableRow }

// Identify identifies the process that has pid now.
func Identify(pid int) (Identity, error) {
	r, err := newProcessTable(marking{}).row(pid)
	return Identity{r}, err
}

// HasExited reports whether the process has ended, reaped or not.
func (i Identity) HasExited() bool {
	r, err := newProcessTable(marking{}).row(i.row.PID)
	return err == unix.ESRCH || err == nil && (r.Zombie || r.identity() != i.row.identity())
}

// Kill sends SIGKILL to the process, and to no other. syscall.ESRCH means that it is gone.
func (i Identity) Kill() error { return newProcessTable(marking{}).signal(&i.row, syscall.SIGKILL) }

// Resume sends SIGCONT in the same way.
func (i Identity) Resume() error { return newProcessTable(marking{}).signal(&i.row, syscall.SIGCONT) }

func suspended(pid int) bool {
	k, err := kinfo(pid)
	return err == nil && k.Proc.P_stat == stateStopped
}
