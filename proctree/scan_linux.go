package proctree

import (
	"time"

	"golang.org/x/sys/unix"
)

// processTable is the process table for a tracker, read from /proc: for a Linux
// that knows no subreaper, and for tests of the tracker with real processes. There
// are no IDs; a process is identified by its pid and its start.
type processTable struct {
	procfs
	marking
	adopters map[int]bool
}

// newProcessTable reads the table for the process that calls it and its tree.
// Orphans fall to that process or to one above it.
func newProcessTable(m marking) *processTable {
	p := &processTable{marking: m}
	p.open()
	p.adopters = p.ancestors(unix.Getpid())
	return p
}

// setInterrupted sets what ends a scan early.
func (p *processTable) setInterrupted(interrupted func() bool) { p.interrupted = interrupted }

// readRows reads the whole table.
func (p *processTable) readRows() (rows []tableRow, err error) {
	pids, err := p.all()
	rows = make([]tableRow, 0, len(pids))
	p.begin(time.Time{})
	defer p.end()
	var s stat
	for _, pid := range pids {
		if p.over() {
			return rows, errNotWhole
		}
		if p.stat(pid, &s) {
			rows = append(rows, p.rowOf(&s))
		} else if _, e := unix.Getpgid(pid); e != unix.ESRCH {
			err = errNotWhole
		}
	}
	return rows, err
}

// row reads one row.
func (p *processTable) row(pid int) (tableRow, error) {
	var s stat
	if !p.stat(pid, &s) {
		return tableRow{}, errNotWhole
	}
	return p.rowOf(&s), nil
}

func (p *processTable) rowOf(s *stat) tableRow {
	return tableRow{
		PID: s.pid, Parent: s.ppid, Orphan: p.adopters[s.ppid] && s.ppid != unix.Getpid(), Start: s.start, Session: s.session,
		// A process of which no thread was found that lives may be a zombie.
		Zombie:    s.state == 'X' || s.state == 'Z' && s.threads <= 1,
		Suspended: s.state == 'T' || s.state == 't' || s.state == 'Z' && s.threads > 1,
	}
}

// readMark reads the mark of the process of a row.
func (p *processTable) readMark(r *tableRow) foundMark {
	var s stat
	if !p.stat(r.PID, &s) {
		return markHidden
	}
	env, ok := p.whole(&s, "/environ")
	if !ok || !p.stat(r.PID, &s) || s.start != r.Start {
		return markHidden // there is none, or it was another's
	}
	return p.in(env)
}
