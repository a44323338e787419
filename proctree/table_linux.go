package proctree

import "syscall"

// pidTable remembers who was signalled. It is of fixed size, because it is used
// when memory may be short: what does not fit is told by a nil entry. The zero
// value must be reset before use.
type pidTable struct {
	entries []pidEntry
	n       int
}

type pidEntry struct {
	pid    int32  // 0: never used; -1: forgotten
	id     uint32 // tells who had the pid; 0 if that is not known
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
	if t.entries == nil {
		t.reset()
	}
	fresh := pidEntry{pid: int32(pid), id: id, index: notListed}
	for i := hash(pid); ; i = (i + 1) % tableSize {
		e := &t.entries[i]
		switch e.pid {
		case int32(pid):
			switch {
			case e.id == 0:
				e.id = id
			case id != 0 && id != e.id:
				*e = fresh // who had it is gone
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

// find returns the entry of who had pid last, nil if there is none.
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

// doomed reports whether pid was a child of ours that had died or was sent SIGKILL. That cannot be
// undone: it needs no second one as long as it is not reaped. Should it have vanished,
// and its number have come to another child, that is struck by the next pass below.
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

// killed reports whether who had pid last was sent SIGKILL.
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
