//go:build unix

package proctree

import (
	"cmp"
	"slices"
	"syscall"
	"time"
)

// How a tree is tracked where the kernel keeps no hold of it (macOS, and Linux
// without a subreaper): from scans of the whole process table. Nothing here makes
// a system call; the platform reads the table and sends the signals.
//
// An orphan there falls to the first process of the system, and nothing says any
// more whose it was, except for what the kernel noted when it was forked. So the
// tracker remembers that of every process at its first sight, ours or not: a link
// that is lost later (macOS 13 loses one when an orphan executes something) is
// known then. It errs to one side. A member is who has a link to one that no
// stranger can have; who may be a member and has no such link is a suspect, which
// is reported and never signalled.

// Row is one process in a scan of the process table. What is in one row belongs
// together; different rows are of different moments.
type Row struct {
	PID    int
	Parent int // the parent's pid at that moment
	// Orphan: its parent has died, and it was given to another process.
	Orphan bool
	// Start grows from one process that has the pid to the next. Its unit is the
	// platform's.
	Start uint64
	// ID is never given to two processes, and a later one is greater; 0 if the
	// platform has none. All rows have one, or none has.
	ID uint64
	// ParentID is the ID of the parent as the kernel noted it.
	ParentID uint64
	// Version is new with every fork and every execution, 0 if there is none.
	// ParentVersion is that of the parent in the moment of the fork.
	Version, ParentVersion uint32
	// Session is the pid of who made it, 0 if not known.
	Session int
	// Coalition is what a process shares with who started it and cannot leave by
	// itself; 0 if not known.
	Coalition uint64
	Zombie    bool
	// Suspended: it was stopped, and none of its threads runs any more.
	Suspended bool
}

// Mark is what the environment of a process says.
type Mark int

// What a mark says; the zero value is that of a process which nobody has asked.
const (
	MarkHidden  Mark = iota // nothing: it cannot be read, or was wiped
	MarkOurs                // it is of this tree
	MarkAnother             // it is of another one
)

// Tracker knows which processes of the scans are members of one tree. It is for
// one goroutine. Use NewTracker.
type Tracker struct {
	root Row
	// orphaned: nobody keeps the root unreaped, so that it can be gone.
	orphaned bool
	known    map[identity]*entry
	// What members have had, also those that are gone, and the scan that saw it
	// last.
	ids      map[identity]int
	versions map[uint32]int

	scan     int // the number of this scan
	members  []*entry
	suspects []*entry
	queue    []*entry // adopted in this scan, and not looked at yet
	fresh    int      // how many members this scan has found
	clean    int      // how many scans running have found no member alive, and left nothing open
	calm     int      // how many have found nobody new, and all suspended
	pass     int      // scans since the last SIGKILL

	// Who waits for a parent in this scan, by what it has of it.
	byParent  map[identity][]*entry
	byBirth   map[uint32][]*entry
	bySession map[int][]*entry
	joined    map[int]bool // sessions that were looked at

	rows  []Row        // of this scan
	byPID map[int]*Row // the same, made when it is needed
	open  bool         // this scan leaves something undecided
	path  []*entry     // of judge
}

// identity tells a process from all others. Where there are no IDs it is the pid
// and the start.
type identity struct {
	pid   int
	start uint64
}

func (r Row) identity() identity {
	if r.ID != 0 {
		return identity{start: r.ID}
	}
	return identity{r.PID, r.Start}
}

// verdict says what a process is to a tree.
type verdict int

const (
	notOurs   verdict = iota
	ours              // a member
	suspect           // may be one, and may be a stranger
	undecided         // cannot be told at this moment
)

// entry is what is known of a process.
type entry struct {
	Row      // as it was seen last
	key      identity
	parent   identity // at its first sight
	birth    uint32   // its ParentVersion then
	versions []uint32 // that it has had

	seen      int // the scan that saw it last
	joined    int // the scan since which it is in its session
	member    bool
	mark      Mark
	suspended bool // SIGSTOP was sent
	killed    bool // SIGKILL was sent
	refused   error
	judged    int // the scan that the verdict is of
	verdict   verdict
	kept      int // for prune
}

// NewTracker tracks the tree of root, which was just started in a session of its
// own, and is not reaped as long as the Tracker is used.
func NewTracker(root Row) *Tracker {
	t := &Tracker{root: root, known: map[identity]*entry{}, ids: map[identity]int{}, versions: map[uint32]int{}}
	t.look([]Row{root})
	t.adopt(t.known[root.identity()])
	return t
}

// newOrphanTracker tracks what somebody has left who kept hold of a tree and is lost
// himself: whoever is in the session that its leader had made, 0 if that is not known,
// or carries the mark, and what descends from those, if it was started at or after
// earliest.
func newOrphanTracker(leader int, coalition, earliest uint64) *Tracker {
	return &Tracker{
		root: Row{PID: leader, Session: leader, Coalition: coalition, Start: earliest}, orphaned: true,
		known: map[identity]*entry{}, ids: map[identity]int{}, versions: map[uint32]int{},
	}
}

// Scan takes a scan of the whole table and finds who has become a member. The mark
// of a process is asked for only where nothing else tells whose it is. The time
// that it takes grows with the number of rows.
//
// The root is in every scan of the whole table, being unreaped. One without it is of
// something else, and not taken: nobody is gone for not being in that.
func (t *Tracker) Scan(rows []Row, mark func(*Row) Mark) {
	if !t.orphaned && !slices.ContainsFunc(rows, func(r Row) bool { return r.identity() == t.root.identity() }) {
		t.clean, t.calm = 0, 0
		return
	}
	t.scan++
	t.fresh, t.queue = 0, t.queue[:0]
	t.open = false
	t.look(rows)
	t.index()
	for _, e := range t.known {
		_, ours := t.ids[e.parent]
		_, again := t.ids[e.key] // the scan before has missed it
		switch {
		case e.member:
			if e.seen == t.scan {
				t.queue = append(t.queue, e)
			}
		case ours, again, t.bornOurs(e), t.orphaned && e.Session != 0 && e.Session == t.root.PID:
			t.adopt(e)
		}
	}
	t.spread()
	for _, e := range t.known {
		if !e.member && e.Orphan && !e.Zombie && e.seen == t.scan {
			if e.mark = mark(&e.Row); e.mark == MarkOurs {
				t.adopt(e)
			}
		}
	}
	t.spread()
	t.list()
	t.prune()
}

// Partial says that the last scan was not whole: nobody is gone for not being in it.
func (t *Tracker) Partial() { t.clean, t.calm = 0, 0 }

// look notes what the rows say. Where there are no IDs the parent is who has its
// pid in the same scan.
func (t *Tracker) look(rows []Row) {
	t.rows, t.byPID = rows, nil
	for i := range rows {
		r := &rows[i]
		if r.PID <= 1 || !t.younger(r) {
			continue // it cannot descend from the root, now or later
		}
		e := t.known[r.identity()]
		if e == nil {
			e = &entry{key: r.identity(), birth: r.ParentVersion, seen: -1}
			t.known[e.key] = e
			switch {
			case r.ID != 0:
				e.parent = identity{start: r.ParentID}
			case !r.Orphan:
				if p := t.at(r.Parent); p != nil && p.Start <= r.Start {
					e.parent = p.identity()
				}
			}
		}
		if e.Session != r.Session || e.seen != t.scan-1 {
			e.joined = t.scan
		}
		if r.Version != 0 && !slices.Contains(e.versions, r.Version) {
			e.versions = append(e.versions, r.Version)
		}
		e.Row, e.seen = *r, t.scan
		if e.member {
			t.note(e)
		}
	}
}

// at returns who had the pid in this scan, nil if nobody had.
func (t *Tracker) at(pid int) *Row {
	if t.byPID == nil {
		t.byPID = make(map[int]*Row, len(t.rows))
		for i := range t.rows {
			t.byPID[t.rows[i].PID] = &t.rows[i]
		}
	}
	return t.byPID[pid]
}

// younger reports whether r can descend from the root at all.
func (t *Tracker) younger(r *Row) bool {
	if r.ID != 0 && !t.orphaned {
		return r.ID >= t.root.ID
	}
	return r.Start >= t.root.Start
}

// index sorts those that are no members by what they could become one by.
func (t *Tracker) index() {
	t.byParent, t.byBirth = map[identity][]*entry{}, map[uint32][]*entry{}
	t.bySession, t.joined = map[int][]*entry{}, map[int]bool{}
	for _, e := range t.known {
		if e.member {
			continue
		}
		t.byParent[e.parent] = append(t.byParent[e.parent], e)
		if e.birth != 0 {
			t.byBirth[e.birth] = append(t.byBirth[e.birth], e)
		}
		if e.Session != 0 && e.seen == t.scan {
			t.bySession[e.Session] = append(t.bySession[e.Session], e)
		}
	}
}

func (t *Tracker) bornOurs(e *entry) bool {
	_, ours := t.versions[e.birth]
	return ours && e.birth != 0
}

// adopt makes e a member for good.
func (t *Tracker) adopt(e *entry) {
	if e.member {
		return
	}
	e.member = true
	t.note(e)
	t.fresh++
	t.queue = append(t.queue, e)
}

// note keeps what a child of the member e may show.
func (t *Tracker) note(e *entry) {
	t.ids[e.key] = t.scan
	for _, v := range e.versions {
		t.versions[v] = t.scan
	}
}

// spread adopts whoever has a link to those in the queue, to a fixpoint.
func (t *Tracker) spread() {
	for len(t.queue) > 0 {
		e := t.queue[len(t.queue)-1]
		t.queue = t.queue[:len(t.queue)-1]
		for _, child := range t.byParent[e.key] {
			t.adopt(child)
		}
		for _, v := range e.versions {
			for _, child := range t.byBirth[v] {
				t.adopt(child)
			}
		}
		if e.seen != t.scan || !t.holds(e) || t.joined[e.Session] {
			continue
		}
		t.joined[e.Session] = true
		for _, other := range t.bySession[e.Session] {
			if other.joined < t.scan || e.Session == t.root.PID {
				t.adopt(other)
			}
		}
	}
}

// holds reports whether the session that the member e is in is known to be ours
// now. The root's is, since the root is not reaped and keeps the number. Another
// one was made by a member, but its number may have been given away and used again
// since it was seen: so e must have been in it at the last scan, and so must who is
// adopted for it. Each was in it from the one scan to the other, and so there was a
// moment in which both were in the same.
func (t *Tracker) holds(e *entry) bool {
	return e.Session != 0 && (e.Session == t.root.PID && t.root.Session == t.root.PID ||
		e.Session != t.root.Session && e.joined < t.scan)
}

// list sorts out what this scan has shown.
func (t *Tracker) list() {
	t.members, t.suspects = t.members[:0], t.suspects[:0]
	for _, e := range t.known {
		switch {
		case e.seen != t.scan:
			// A suspect that has gone may have left somebody behind in this scan.
			t.open = t.open || e.seen == t.scan-1 && e.judged == e.seen && e.verdict == suspect
		case e.Zombie:
		case e.member:
			t.members = append(t.members, e)
		case t.judge(e) == suspect:
			t.suspects = append(t.suspects, e)
		}
	}
	youngestFirst := func(a, b *entry) int {
		return cmp.Or(cmp.Compare(b.ID, a.ID), cmp.Compare(b.Start, a.Start), cmp.Compare(b.PID, a.PID))
	}
	slices.SortFunc(t.members, youngestFirst)
	slices.SortFunc(t.suspects, youngestFirst)
	if len(t.members) == 0 && !t.open {
		t.clean++
	} else {
		t.clean = 0
	}
}

// judge says what e, who is no member, is to the tree. It goes up from e to
// somebody who is older than the root, and so are no suspects those below, or to an
// orphan of which it is not known who had forked it. If it does not get that far (a parent has died during the scan, which
// then has not seen who became an orphan), that is for the next scan to tell.
func (t *Tracker) judge(e *entry) verdict {
	path := t.path[:0]
	for e.judged != t.scan {
		path = append(path, e)
		e.judged, e.verdict = t.scan, undecided
		next := t.above(e)
		if next == nil {
			break
		}
		e = next
	}
	for _, below := range path {
		below.verdict = e.verdict
	}
	t.path = path
	t.open = t.open || e.verdict == undecided
	return e.verdict
}

// above returns the parent of e, or nil if the verdict depends on nobody else.
func (t *Tracker) above(e *entry) *entry {
	switch {
	case e.Coalition != t.root.Coalition || e.mark == MarkAnother:
		e.verdict = notOurs
		return nil
	case e.Orphan || e.seen != t.scan:
		return t.forker(e)
	}
	p := t.at(e.Parent)
	switch {
	case p == nil || p.Zombie || p.Start > e.Start:
		return nil
	case !t.younger(p):
		e.verdict = notOurs
		return nil
	}
	next := t.known[p.identity()]
	if next == nil || next.member {
		return nil
	}
	return next
}

// forker returns who had forked e, which has lost its parent, or nil if the verdict
// depends on nobody else. Who was a stranger's child at its first sight is none of ours.
func (t *Tracker) forker(e *entry) *entry {
	first := t.at(1)
	switch {
	case e.parent == identity{}, first == nil || e.parent == first.identity():
		e.verdict = suspect
	case e.parent.start < t.root.identity().start && !t.orphaned:
		e.verdict = notOurs
	default:
		if p := t.known[e.parent]; p != nil && !p.member {
			return p
		}
		e.verdict = suspect
	}
	return nil
}

// keepScans is for how many scans what a member has had is kept when the member
// is gone. A child of it is in the next scan, unless that one missed it.
const keepScans = 1000

// prune drops who is gone, except for strangers through whom somebody that lives
// could turn out to descend from a member.
func (t *Tracker) prune() {
	byVersion := map[uint32]*entry{}
	for _, e := range t.known {
		if !e.member && e.seen != t.scan {
			for _, v := range e.versions {
				byVersion[v] = e
			}
		}
	}
	var keep func(e *entry)
	keep = func(e *entry) {
		for e != nil && e.kept != t.scan {
			e.kept = t.scan
			if e.birth != 0 {
				if p := byVersion[e.birth]; p != nil && p.key != e.parent {
					keep(p)
				}
			}
			e = t.known[e.parent]
		}
	}
	for _, e := range t.known {
		if e.seen == t.scan && !e.member {
			keep(e)
		}
	}
	for key, e := range t.known {
		if e.seen != t.scan && (e.member || e.kept != t.scan) && key != t.root.identity() {
			delete(t.known, key)
		}
	}
	if t.scan%keepScans == 0 {
		for id, last := range t.ids {
			if last < t.scan-keepScans {
				delete(t.ids, id)
			}
		}
		for v, last := range t.versions {
			if last < t.scan-keepScans {
				delete(t.versions, v)
			}
		}
	}
}

// Live lists the members that the last scan saw alive, those started last first.
func (t *Tracker) Live() []Row { return rows(t.members) }

// Suspects lists who may be a member and cannot be told from a stranger: orphans
// that were started after the root, are in the same coalition, and do not carry the
// mark of another tree; and what is below those.
func (t *Tracker) Suspects() []Row { return rows(t.suspects) }

// Refused lists the live members that could not be signalled, with the reasons.
func (t *Tracker) Refused() (list []Row, reasons []error) {
	for _, e := range t.members {
		if e.refused != nil {
			list, reasons = append(list, e.Row), append(reasons, e.refused)
		}
	}
	return list, reasons
}

func rows(entries []*entry) []Row {
	list := make([]Row, len(entries))
	for i, e := range entries {
		list[i] = e.Row
	}
	return list
}

// Table is the process table of the system, as a platform reads it.
type Table interface {
	// Rows reads the whole table. On an error somebody may be missing who is there.
	Rows() ([]Row, error)
	// Mark reads the mark of the process of that row.
	Mark(*Row) Mark
	// Signal sends a signal to the process of that row: see Hunt.
	Signal(*Row, syscall.Signal) error
}

// betweenScans is the pause after each scan of a hunt: whoever was signalled is to
// get a turn.
const betweenScans = 2 * time.Millisecond

// End hunts the tree until nothing of it is left, and reports that, or until the
// given time.
func (t *Tracker) End(table Table, until time.Time) (empty bool) {
	for {
		rows, err := table.Rows()
		if t.Scan(rows, table.Mark); err != nil {
			t.Partial()
		}
		if t.Empty() {
			return true
		}
		if !time.Now().Before(until) {
			return false
		}
		t.Hunt(table.Signal)
		time.Sleep(betweenScans)
	}
}

// Empty reports whether two scans running have found no member alive. A scan is
// not of one moment: in one alone somebody can have forked behind it and died.
func (t *Tracker) Empty() bool { return t.clean >= 2 }

// maxPass is how many scans may pass before SIGKILL is sent although there is
// still somebody who does not come to rest.
const maxPass = 20

// Hunt does what is to be done after a Scan in the kill phase; the next scan is to
// follow soon. First it suspends all members: a parent that is suspended neither
// ends nor reaps, so that whoever was forked meanwhile has a link that can be read.
// When two scans running have found nobody new and all of them suspended, it kills
// them, those started last first: a group whose last parent outside dies is
// resumed by the kernel.
//
// signal must reach the process of that row or nobody: syscall.ESRCH says that it
// is gone or has executed something since, and the next scan tells which. Whoever
// cannot be signalled for another reason is not tried again.
func (t *Tracker) Hunt(signal func(*Row, syscall.Signal) error) {
	if t.pass++; t.fresh > 0 {
		t.calm = 0
	}
	atRest := true
	for _, e := range t.members {
		if e.killed || e.refused != nil || e.suspended && e.Suspended {
			continue
		}
		atRest = false
		if e.suspended = t.send(e, syscall.SIGSTOP, signal); !e.suspended {
			t.calm = 0
		}
	}
	if atRest && t.fresh == 0 {
		t.calm++
	} else {
		t.calm = 0
	}
	if t.calm < 2 && t.pass < maxPass {
		return
	}
	t.pass = 0
	t.Cull(signal)
}

// Cull kills all members at once, those started last first, without suspending them:
// who is being forked in that moment may lose the link to its parent.
func (t *Tracker) Cull(signal func(*Row, syscall.Signal) error) {
	for _, e := range t.members {
		if !e.killed && e.refused == nil {
			e.killed = t.send(e, syscall.SIGKILL, signal)
		}
	}
}

func (t *Tracker) send(e *entry, sig syscall.Signal, signal func(*Row, syscall.Signal) error) bool {
	err := signal(&e.Row, sig)
	if err != nil && err != syscall.ESRCH {
		e.refused = err
	}
	return err == nil
}
