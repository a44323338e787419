package proctree

import "golang.org/x/sys/unix"

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
