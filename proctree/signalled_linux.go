package proctree

import (
	"syscall"

	"golang.org/x/sys/unix"

	"curfew/internal/sys"
	"curfew/outcome"
)

// signalled remembers which processes got a signal, for the decision whether one needs
// another, and for the report. It uses no more memory than it has from the beginning:
// it is used when memory may be short.
type signalled struct {
	proc  *procfs
	table pidTable
	list  []record
	more  int  // signalled, and not in the list
	inode bool // the inode of a pidfd identifies the process (Linux 6.9)

	scratch stat
}

// record is what the report will have about a process that got a signal.
type record struct {
	pid    int
	start  uint64
	name   [16]byte
	nameN  int
	signal syscall.Signal
}

func newSignalled(p *procfs) signalled {
	s := signalled{proc: p, list: make([]record, 0, maxListed), inode: pidfdsIdentify()}
	s.table.reset()
	return s
}

// pidfdsIdentify reports whether each process has an inode of its own, which its pidfds
// show. Before Linux 6.9, all have the same.
func pidfdsIdentify() bool {
	fd, err := pidfdOpen(unix.Getpid())
	if err != nil {
		return false
	}
	defer sys.Close(fd)
	var fs unix.Statfs_t
	return unix.Fstatfs(fd, &fs) == nil && fs.Type == unix.PID_FS_MAGIC
}

func (s *signalled) reset() {
	s.table.reset()
	s.list, s.more = s.list[:0], 0
}

// entry returns what is known of m, which is about to be signalled, and lists it if
// there is room: afterwards it may be gone, and its number another process's. It returns
// nil if the table is full.
func (s *signalled) entry(m *target) *pidEntry {
	id, read := s.identify(m)
	e := s.table.at(m.pid, id)
	if e == nil || e.index != notListed {
		return e
	}
	if len(s.list) == cap(s.list) {
		e.index = tooMany
		return e
	}
	read = read || s.proc.stat(m.pid, &s.scratch)
	if !read && !m.exists() {
		e.index = tooMany // it is gone, and can only be counted
		return e
	}
	e.index = int16(len(s.list))
	s.list = append(s.list, record{pid: m.pid})
	if read {
		r := &s.list[e.index]
		r.start, r.name, r.nameN = s.scratch.start, s.scratch.comm, s.scratch.commN
	}
	return e
}

// identify returns a number that m does not share with an earlier process of its pid, 0 if
// there is none. read: the scratch has its stat.
func (s *signalled) identify(m *target) (id uint32, read bool) {
	if !s.inode {
		if read = s.proc.stat(m.pid, &s.scratch); read {
			id = uint32(s.scratch.start)
		}
		return id, read
	}
	if m.pidfd >= 0 {
		var st unix.Stat_t
		if unix.Fstat(m.pidfd, &st) == nil {
			id = uint32(st.Ino)
		}
	}
	return id, false
}

// note notes that sig was sent to the process of an entry, or with what error it was not,
// and reports whether this is the first SIGKILL it got.
func (s *signalled) note(e *pidEntry, sig syscall.Signal, err error) bool {
	switch {
	case e == nil:
		if err == nil {
			s.more++
		}
		return false // more than the table holds: reap, and go on
	case err != nil:
		if e.signal == 0 && int(e.index) == len(s.list)-1 {
			s.list, e.index = s.list[:e.index], notListed
		}
		return false
	case e.index >= 0:
		s.list[e.index].signal = sig
	case e.signal == 0:
		s.more++
	}
	fresh := sig == syscall.SIGKILL && e.signal != int8(sig)
	e.signal = int8(sig)
	return fresh
}

func (s *signalled) ended() (list []outcome.Ended) {
	boot := bootTime()
	for i := range s.list {
		r := &s.list[i]
		list = append(list, outcome.Ended{
			Process:    outcome.Process{PID: r.pid, Start: startTime(boot, r.start), Name: string(r.name[:r.nameN])},
			LastSignal: int(r.signal),
		})
	}
	return list
}

// pidTable finds what is known of a process that was signalled by its pid. It is of fixed
// size; what does not fit gets a nil entry. It must be reset before use.
type pidTable struct {
	entries []pidEntry
	n       int
}

type pidEntry struct {
	pid    int32  // 0: never used; -1: forgotten
	id     uint32 // identifies the process that had the pid; 0 if that is not known
	index  int16  // into the list of the ended; or one of these:
	signal int8
	doomed bool // a child of ours that has died or got SIGKILL, and was not reaped since
}

const (
	notListed = -1
	tooMany   = -2
)

const tableSize = 1 << 14 // a power of two

func (t *pidTable) reset() {
	if t.entries == nil {
		t.entries = make([]pidEntry, tableSize)
	} else if t.n > 0 {
		clear(t.entries)
	}
	t.n = 0
}

// at returns the entry of the process id that has pid, a new one if it had none, or
// nil if the table is full.
func (t *pidTable) at(pid int, id uint32) *pidEntry {
	fresh := pidEntry{pid: int32(pid), id: id, index: notListed}
	for i := hash(pid); ; i = (i + 1) % tableSize {
		e := &t.entries[i]
		switch e.pid {
		case int32(pid):
			switch {
			case e.id == 0:
				e.id = id
			case id != 0 && id != e.id:
				*e = fresh // the process that had it is gone
			}
			return e
		case 0:
			if t.n >= tableSize*3/4 {
				return nil
			}
			t.n++
			*e = fresh
			return e
		}
	}
}

// find returns the entry of the process that had pid last, nil if there is none.
func (t *pidTable) find(pid int) *pidEntry {
	for i := hash(pid); t.n > 0; i = (i + 1) % tableSize {
		switch e := &t.entries[i]; e.pid {
		case int32(pid):
			return e
		case 0:
			return nil
		}
	}
	return nil
}

// doom notes that pid, a child of ours, has died. It need not be looked at again before
// it is reaped.
func (t *pidTable) doom(pid int) {
	if e := t.at(pid, 0); e != nil {
		e.doomed = true
	}
}

// doomed reports whether pid was a child of ours that had died or was sent SIGKILL. That
// cannot be undone: it needs no second one as long as it is not reaped. Should it have
// vanished, and its number have come to another child, that is struck by the next pass
// below.
func (t *pidTable) doomed(pid int) bool {
	e := t.find(pid)
	return e != nil && e.doomed
}

// pardon takes doom back from all: their pids may stand for other processes now.
func (t *pidTable) pardon() {
	for i := range t.entries {
		t.entries[i].doomed = false
	}
}

// killed reports whether the process that had pid last was sent SIGKILL.
func (t *pidTable) killed(pid int) bool {
	e := t.find(pid)
	return e != nil && e.signal == int8(syscall.SIGKILL)
}

// forget drops pid: it was reaped, and may come back as another process.
func (t *pidTable) forget(pid int) {
	if e := t.find(pid); e != nil {
		*e = pidEntry{pid: -1}
	}
}

func hash(pid int) int { return int(uint32(pid)*2654435769>>8) % tableSize }
