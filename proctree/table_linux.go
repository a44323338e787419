package proctree

// pidTable remembers which pids were signalled. It is of fixed size, because it
// is used when memory may be short: what does not fit is told by a nil entry.
// The zero value must be reset before use.
type pidTable struct {
	entries []pidEntry
	n       int
}

type pidEntry struct {
	pid    int32 // 0: never used; -1: forgotten
	index  int16 // into the list of the ended; or one of these:
	signal int8
	doomed bool // a child of ours that has got SIGKILL, and was not reaped since
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

// at returns the entry of pid, a new one if it had none, or nil if the table is
// full.
func (t *pidTable) at(pid int) *pidEntry {
	if t.entries == nil {
		t.reset()
	}
	for i := hash(pid); ; i = (i + 1) % tableSize {
		e := &t.entries[i]
		switch e.pid {
		case int32(pid):
			return e
		case 0:
			if t.n >= tableSize*3/4 {
				return nil
			}
			t.n++
			*e = pidEntry{pid: int32(pid), index: notListed}
			return e
		}
	}
}

// had reports whether pid was sent a signal since it was last forgotten.
func (t *pidTable) had(pid int) bool {
	e := t.at(pid)
	return e != nil && e.signal != 0
}

// doom notes that pid, a child of ours, was sent SIGKILL. That cannot be undone:
// it needs no second one as long as it is not reaped.
func (t *pidTable) doom(pid int) {
	if e := t.at(pid); e != nil {
		e.doomed = true
	}
}

func (t *pidTable) doomed(pid int) bool {
	e := t.at(pid)
	return e != nil && e.doomed
}

// pardon takes doom back from all: their pids may stand for other processes now.
func (t *pidTable) pardon() {
	for i := range t.entries {
		t.entries[i].doomed = false
	}
}

// forget drops pid: it was reaped, and may come back as another process.
func (t *pidTable) forget(pid int) {
	if t.n == 0 {
		return
	}
	for i := hash(pid); ; i = (i + 1) % tableSize {
		e := &t.entries[i]
		switch e.pid {
		case int32(pid):
			*e = pidEntry{pid: -1}
			return
		case 0:
			return
		}
	}
}

func hash(pid int) int { return int(uint32(pid)*2654435769>>8) % tableSize }
