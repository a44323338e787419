package proctree

import (
	"errors"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"curfew/outcome"
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
	pids, err := p.all()
	rows = make([]Row, 0, len(pids))
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

var (
	errNoProc   = errors.New("proctree: /proc is not mounted, or is that of another pid namespace")
	errNotWhole = errors.New("proctree: a process cannot be read, though it is there")
)

// setEar sets what ends a scan that somebody must be heard in.
func (p *processTable) setEar(ear func() bool) { p.ear = ear }

// row reads one row.
func (p *processTable) row(pid int) (Row, error) {
	var s stat
	if !p.stat(pid, &s) {
		return Row{}, errNotWhole
	}
	return p.rowOf(&s), nil
}

func (p *processTable) rowOf(s *stat) Row {
	return Row{
		PID: s.pid, Parent: s.ppid, Orphan: p.adopters[s.ppid] && s.ppid != unix.Getpid(), Start: s.start, Session: s.session,
		// A process of which no thread was found that lives may be a zombie.
		Zombie:    s.state == 'X' || s.state == 'Z' && s.threads <= 1,
		Suspended: s.state == 'T' || s.state == 't' || s.state == 'Z' && s.threads > 1,
	}
}

// member says of the process of a row what people want to know.
func (p *processTable) member(r Row) Member {
	m := Member{PID: r.PID, Parent: r.Parent, Start: r.Start, State: '?'}
	var s stat
	if p.stat(r.PID, &s) && s.start == r.Start {
		m.Name, m.State, m.thread = s.name(), s.state, s.thread
	}
	return m
}

func (p *processTable) Mark(r *Row) Mark {
	var s stat
	if !p.stat(r.PID, &s) {
		return MarkHidden
	}
	fd := p.openOf(unix.O_RDONLY, r.PID, s.thread, "/environ")
	if fd < 0 {
		return MarkHidden
	}
	env := readWhole(fd, p.buf[:])
	closeFD(fd)
	if !p.stat(r.PID, &s) || s.start != r.Start {
		return MarkHidden // it was another's
	}
	return p.in(env)
}

// Signal holds the process by a pidfd while it looks whether that is the one.
func (p *processTable) Signal(r *Row, sig syscall.Signal) error {
	if r.PID <= 1 || r.PID == unix.Getpid() {
		return errNotOurs
	}
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

// exitFD returns a descriptor that is readable when pid, a child that nobody has
// reaped, has exited; -1 if there is none.
func exitFD(pid int) int {
	fd, err := pidfdOpen(pid)
	if err != nil {
		return -1
	}
	return fd
}

// exitOf says how pid, a child that nobody has reaped, has ended; nil if it has not.
func exitOf(pid int) *outcome.Exit {
	info, errno := peek(pid)
	switch {
	case errno != 0 || int(info.pid) != pid:
		return nil
	case info.code == cldExited:
		return &outcome.Exit{Code: int(info.status)}
	case info.code == cldKilled, info.code == cldDumped:
		return &outcome.Exit{Code: -1, Signal: int(info.status), CoreDumped: info.code == cldDumped}
	}
	return nil
}

// watcher tells of forks where the system does. Here nothing does, and so the scans
// come by the clock.
type watcher struct{}

const paceIdle = 250 * time.Millisecond

func newWatcher(int) (*watcher, error) { return nil, nil }
func (w *watcher) reset()              {}
func (w *watcher) add([]*entry)        {}

// What wait4 is to await, and the unit in which it tells the memory used.
const (
	waitAll = unix.WALL
	rssUnit = 1 << 10
)
