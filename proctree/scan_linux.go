package proctree

import (
	"errors"
	"syscall"

	"golang.org/x/sys/unix"
)

// processTable is the process table for a Tracker, read from /proc: for a Linux
// that knows no subreaper, and for tests of the Tracker with real processes. There
// are no IDs; a process is told by its pid and its start.
type processTable struct {
	procfs
	marking
	adopters map[int]bool
}

// newProcessTable reads the table for the process that calls it and its tree.
// Orphans fall to that process or to somebody above it.
func newProcessTable(m marking) *processTable {
	p := &processTable{marking: m}
	p.open()
	p.adopters = p.ancestors(unix.Getpid())
	return p
}

func (p *processTable) Rows() (rows []Row, err error) {
	var s stat
	for _, pid := range p.all() {
		if p.stat(pid, &s) {
			rows = append(rows, p.row(&s))
		} else if _, e := unix.Getpgid(pid); e != unix.ESRCH {
			err = errNotWhole
		}
	}
	return rows, err
}

var errNotWhole = errors.New("proctree: a process cannot be read, though it is there")

func (p *processTable) row(s *stat) Row {
	return Row{
		PID: s.pid, Parent: s.ppid, Orphan: p.adopters[s.ppid] && s.ppid != unix.Getpid(), Start: s.start, Session: s.session,
		// A process whose main thread has exited is called a zombie while others
		// live.
		Zombie:    s.state == 'X' || s.state == 'Z' && s.threads <= 1,
		Suspended: s.state == 'T' || s.state == 't' || s.state == 'Z' && s.threads > 1,
	}
}

func (p *processTable) Mark(r *Row) Mark {
	fd := p.openat(unix.O_RDONLY, r.PID, "/environ", -1, "")
	if fd < 0 {
		return MarkHidden
	}
	env := readWhole(fd, p.buf[:])
	closeFD(fd)
	var s stat
	if !p.stat(r.PID, &s) || s.start != r.Start {
		return MarkHidden // it was another's
	}
	return p.in(env)
}

// Signal holds the process by a pidfd while it looks whether that is the one.
func (p *processTable) Signal(r *Row, sig syscall.Signal) error {
	fd, err := pidfdOpen(r.PID)
	if err != nil {
		return err
	}
	defer closeFD(fd)
	var s stat
	if !p.stat(r.PID, &s) || s.start != r.Start || !unreaped(fd) {
		return syscall.ESRCH
	}
	return signalPidfd(fd, sig)
}
