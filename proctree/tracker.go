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
// An orphan there falls to the first process of the system, and nothing shows any
// more whose it was, except for what the kernel noted when it was forked. So the
// tracker remembers that of every process at its first sight, ours or not: a link
// that is lost later (macOS 13 loses one when an orphan executes something) is
// known then. It errs to one side. A member is a process with a link to a member that no
// stranger can have; one that may be a member and has no such link is a suspect, which
// is reported and never signalled.

// tableRow is one process in a scan of the process table. What is in one row belongs
// together; different rows are of different moments.
type tableRow struct {
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
	// Session is the pid of the process that created it, 0 if not known.
	Session int
	// Coalition is what a process shares with the one that started it and cannot leave by
	// itself; 0 if not known.
	Coalition uint64
	Zombie    bool
	// Suspended: it was stopped, and none of its threads runs any more.
	Suspended bool
}

// systemTable is the process table of the system, as a platform reads it.
type systemTable interface {
	// readRows reads the whole table. On an error a process may be missing that is there.
	readRows() ([]tableRow, error)
	// readMark reads the mark of the process of that row.
	readMark(*tableRow) foundMark
	// signal sends a signal to the process of that row: see hunt.
	signal(*tableRow, syscall.Signal) error
}

// tracker knows which processes of the scans are members of one tree. It is for
// one goroutine. Use newTracker.
type tracker struct {
	root tableRow
	// orphaned: the root is not kept unreaped, so that it can be gone.
	orphaned bool
	known    map[identity]*entry
	past     past
	links    links
	scan     scan

	members  []*entry
	suspects []*entry
	queue    []*entry // adopted in this scan, and not looked at yet
	path     []*entry // of judge

	clean int // how many scans running have found no member alive, and left nothing open
	calm  int // how many scans running have found no new member, and all suspended
	pass  int // scans since the last SIGKILL
}

// scan is the scan that was taken last.
type scan struct {
	number int
	rows   []tableRow
	byPID  map[int]*tableRow // the same, made when it is needed
	fresh  int               // how many members it has found
	open   bool              // it leaves something undecided
}

// past is what members have had, also those that are gone, and the number of the scan
// that saw it last.
type past struct {
	ids      map[identity]int
	versions map[uint32]int
}

// links are the processes that are no members, by what could make them members in this scan.
type links struct {
	byParent  map[identity][]*entry
	byBirth   map[uint32][]*entry
	bySession map[int][]*entry
	joined    map[int]bool // sessions that were looked at
}

// identity distinguishes a process from all others. Where there are no IDs it is the pid
// and the start.
type identity struct {
	pid   int
	start uint64
}

func (r tableRow) identity() identity {
	if r.ID != 0 {
		return identity{start: r.ID}
	}
	return identity{r.PID, r.Start}
}

// verdict is what a process is to a tree.
type verdict int

const (
	notOurs   verdict = iota
	ours              // a member
	suspect           // may be one, and may be a stranger
	undecided         // cannot be known at this moment
)

// entry is what is known of a process.
type entry struct {
	tableRow // as it was seen last
	key      identity
	parent   identity // at its first sight
	birth    uint32   // its ParentVersion then
	versions []uint32 // that it has had

	seen      int // the scan that saw it last
	joined    int // the scan since which it is in its session
	member    bool
	mark      foundMark
	suspended bool // SIGSTOP was sent
	killed    bool // SIGKILL was sent
	refused   error
	judged    int // the scan that the verdict is of
	verdict   verdict
	kept      int // for prune
}

// newTracker tracks the tree of root, which was just started in a session of its
// own, and is not reaped as long as the tracker is used.
func newTracker(root tableRow) *tracker {
	t := emptyTracker(root)
	t.look([]tableRow{root})
	t.adopt(t.known[root.identity()])
	return t
}

// newOrphanTracker tracks what the lost holder of a tree has left: the processes that are
// in the session that the leader had created, 0 if that is not known,
// or carry the mark, and what descends from those, if it was started at or after
// earliest.
func newOrphanTracker(leader int, coalition, earliest uint64) *tracker {
	t := emptyTracker(tableRow{PID: leader, Session: leader, Coalition: coalition, Start: earliest})
	t.orphaned = true
	return t
}

func emptyTracker(root tableRow) *tracker {
	return &tracker{root: root, known: map[identity]*entry{}, past: past{ids: map[identity]int{}, versions: map[uint32]int{}}}
}

// take takes a scan of the whole table and finds which processes have become members. The
// mark of a process is read only where nothing else shows whose it is. The time
// that it takes grows with the number of rows.
//
// The root is in every scan of the whole table, being unreaped. One without it is of
// something else, and not taken: no member is gone for not being in that.
func (t *tracker) take(rows []tableRow, mark func(*tableRow) foundMark) {
	if !t.orphaned && !slices.ContainsFunc(rows, func(r tableRow) bool { return r.identity() == t.root.identity() }) {
		t.incomplete()
		return
	}
	t.scan = scan{number: t.scan.number + 1}
	t.queue = t.queue[:0]
	t.look(rows)
	t.index()
	for _, e := range t.known {
		switch {
		case e.member:
			if t.sees(e) {
				t.queue = append(t.queue, e)
			}
		case t.linked(e):
			t.adopt(e)
		}
	}
	t.spread()
	for _, e := range t.known {
		if !e.member && e.Orphan && !e.Zombie && t.sees(e) {
			if e.mark = mark(&e.tableRow); e.mark == markOurs {
				t.adopt(e)
			}
		}
	}
	t.spread()
	t.list()
	t.prune()
}

// incomplete is for when the last scan was not whole: no member is gone for not being in it.
func (t *tracker) incomplete() { t.clean, t.calm = 0, 0 }

// sees reports whether e was in the last scan.
func (t *tracker) sees(e *entry) bool { return e.seen == t.scan.number }

// look notes what the rows show. Where there are no IDs the parent is the process that has
// its pid in the same scan.
func (t *tracker) look(rows []tableRow) {
	t.scan.rows = rows
	for i := range rows {
		r := &rows[i]
		if r.PID <= 1 || !t.younger(r) {
			continue // it cannot descend from the root, now or later
		}
		e := t.known[r.identity()]
		if e == nil {
			e = &entry{key: r.identity(), parent: t.parentOf(r), birth: r.ParentVersion, seen: -1}
			t.known[e.key] = e
		}
		if e.Session != r.Session || e.seen != t.scan.number-1 {
			e.joined = t.scan.number
		}
		if r.Version != 0 && !slices.Contains(e.versions, r.Version) {
			e.versions = append(e.versions, r.Version)
		}
		e.tableRow, e.seen = *r, t.scan.number
		if e.member {
			t.note(e)
		}
	}
}

// parentOf returns the parent of r, which was not seen before; the zero value if it is not
// known.
func (t *tracker) parentOf(r *tableRow) identity {
	if r.ID != 0 {
		return identity{start: r.ParentID}
	}
	if p := t.at(r.Parent); !r.Orphan && p != nil && p.Start <= r.Start {
		return p.identity()
	}
	return identity{}
}

// at returns the process that had the pid in this scan, nil if there was none.
func (t *tracker) at(pid int) *tableRow {
	if t.scan.byPID == nil {
		t.scan.byPID = make(map[int]*tableRow, len(t.scan.rows))
		for i := range t.scan.rows {
			t.scan.byPID[t.scan.rows[i].PID] = &t.scan.rows[i]
		}
	}
	return t.scan.byPID[pid]
}

// younger reports whether r can descend from the root at all.
func (t *tracker) younger(r *tableRow) bool {
	if r.ID != 0 && !t.orphaned {
		return r.ID >= t.root.ID
	}
	return r.Start >= t.root.Start
}

// index sorts those that are no members by what they could become one by.
func (t *tracker) index() {
	t.links = links{map[identity][]*entry{}, map[uint32][]*entry{}, map[int][]*entry{}, map[int]bool{}}
	l := &t.links
	for _, e := range t.known {
		if e.member {
			continue
		}
		l.byParent[e.parent] = append(l.byParent[e.parent], e)
		if e.birth != 0 {
			l.byBirth[e.birth] = append(l.byBirth[e.birth], e)
		}
		if e.Session != 0 && t.sees(e) {
			l.bySession[e.Session] = append(l.bySession[e.Session], e)
		}
	}
}

// linked reports whether e, which is no member, has a link to what members have had.
func (t *tracker) linked(e *entry) bool {
	if _, parent := t.past.ids[e.parent]; parent {
		return true
	}
	if _, again := t.past.ids[e.key]; again {
		return true // the scan before has missed it
	}
	if _, born := t.past.versions[e.birth]; born && e.birth != 0 {
		return true
	}
	return t.orphaned && e.Session != 0 && e.Session == t.root.PID
}

// adopt makes e a member for good.
func (t *tracker) adopt(e *entry) {
	if e.member {
		return
	}
	e.member = true
	t.note(e)
	t.scan.fresh++
	t.queue = append(t.queue, e)
}

// note keeps what a child of the member e may show.
func (t *tracker) note(e *entry) {
	t.past.ids[e.key] = t.scan.number
	for _, v := range e.versions {
		t.past.versions[v] = t.scan.number
	}
}

// spread adopts what has a link to those in the queue, to a fixpoint.
func (t *tracker) spread() {
	for len(t.queue) > 0 {
		e := t.queue[len(t.queue)-1]
		t.queue = t.queue[:len(t.queue)-1]
		for _, child := range t.links.byParent[e.key] {
			t.adopt(child)
		}
		for _, v := range e.versions {
			for _, child := range t.links.byBirth[v] {
				t.adopt(child)
			}
		}
		if !t.sees(e) || !t.holds(e) || t.links.joined[e.Session] {
			continue
		}
		t.links.joined[e.Session] = true
		for _, other := range t.links.bySession[e.Session] {
			if other.joined < t.scan.number || e.Session == t.root.PID {
				t.adopt(other)
			}
		}
	}
}

// holds reports whether the session that the member e is in is known to be ours
// now. The root's is, since the root is not reaped and keeps the number. Another
// one was created by a member, but its number may have been given away and used again
// since it was seen: so e must have been in it at the last scan, and so must a process that
// is adopted for it. Each was in it from the one scan to the other, and so there was a
// moment in which both were in the same.
func (t *tracker) holds(e *entry) bool {
	return e.Session != 0 && (e.Session == t.root.PID && t.root.Session == t.root.PID ||
		e.Session != t.root.Session && e.joined < t.scan.number)
}

// list sorts out what this scan has shown.
func (t *tracker) list() {
	t.members, t.suspects = t.members[:0], t.suspects[:0]
	for _, e := range t.known {
		switch {
		case !t.sees(e):
			// A suspect that has gone may have left a child behind in this scan.
			t.scan.open = t.scan.open || e.seen == t.scan.number-1 && e.judged == e.seen && e.verdict == suspect
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
	if len(t.members) == 0 && !t.scan.open {
		t.clean++
	} else {
		t.clean = 0
	}
}

// judge decides what e, which is no member, is to the tree. It goes up from e to
// a process that is older than the root, so that those below are no suspects, or to an
// orphan of which it is not known which process had forked it. If it does not get that far
// (a parent has died during the scan, which then has not seen which process became an
// orphan), the next scan decides.
func (t *tracker) judge(e *entry) verdict {
	path := t.path[:0]
	for e.judged != t.scan.number {
		path = append(path, e)
		e.judged, e.verdict = t.scan.number, undecided
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
	t.scan.open = t.scan.open || e.verdict == undecided
	return e.verdict
}

// above returns the parent of e, or nil if the verdict depends on no other process.
func (t *tracker) above(e *entry) *entry {
	switch {
	case e.Coalition != t.root.Coalition || e.mark == markAnother:
		e.verdict = notOurs
		return nil
	case e.Orphan || !t.sees(e):
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

// forker returns the process that had forked e, which has lost its parent, or nil if the
// verdict depends on no other process. One that was a stranger's child at its first sight is
// not ours.
func (t *tracker) forker(e *entry) *entry {
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

// prune drops what is gone, except for strangers through which a living process
// could turn out to descend from a member.
func (t *tracker) prune() {
	t.keepLinks()
	for key, e := range t.known {
		if !t.sees(e) && (e.member || e.kept != t.scan.number) && key != t.root.identity() {
			delete(t.known, key)
		}
	}
	if t.scan.number%keepScans == 0 {
		dropOld(t.past.ids, t.scan.number)
		dropOld(t.past.versions, t.scan.number)
	}
}

// keepLinks marks the strangers that are above a living one.
func (t *tracker) keepLinks() {
	gone := map[uint32]*entry{} // strangers, by the versions that they have had
	for _, e := range t.known {
		if !e.member && !t.sees(e) {
			for _, v := range e.versions {
				gone[v] = e
			}
		}
	}
	var keep func(e *entry)
	keep = func(e *entry) {
		for e != nil && e.kept != t.scan.number {
			e.kept = t.scan.number
			if p := gone[e.birth]; e.birth != 0 && p != nil && p.key != e.parent {
				keep(p)
			}
			e = t.known[e.parent]
		}
	}
	for _, e := range t.known {
		if t.sees(e) && !e.member {
			keep(e)
		}
	}
}

// dropOld drops what no scan has seen for long.
func dropOld[K comparable](seen map[K]int, now int) {
	for key, last := range seen {
		if last < now-keepScans {
			delete(seen, key)
		}
	}
}

// live lists the members that the last scan saw alive, those started last first.
func (t *tracker) live() []tableRow { return rowsOf(t.members) }

// suspected lists the processes that may be members and cannot be distinguished from
// strangers: orphans that were started after the root, are in the same coalition, and do not
// carry the mark of another tree; and what is below those.
func (t *tracker) suspected() []tableRow { return rowsOf(t.suspects) }

func rowsOf(entries []*entry) []tableRow {
	list := make([]tableRow, len(entries))
	for i, e := range entries {
		list[i] = e.tableRow
	}
	return list
}

// betweenScans is the pause after each scan of a hunt: what was signalled needs a turn.
const betweenScans = 2 * time.Millisecond

// end hunts the tree until nothing of it is left, and reports that, or until the
// given time.
func (t *tracker) end(table systemTable, until time.Time) (empty bool) {
	for {
		rows, err := table.readRows()
		if t.take(rows, table.readMark); err != nil {
			t.incomplete()
		}
		if t.empty() {
			return true
		}
		if !time.Now().Before(until) {
			return false
		}
		t.hunt(table.signal)
		time.Sleep(betweenScans)
	}
}

// empty reports whether two scans running have found no member alive. A scan is
// not of one moment: behind one alone a member can have forked and died.
func (t *tracker) empty() bool { return t.clean >= 2 }

// maxPass is how many scans may pass before SIGKILL is sent although a member does not come
// to rest.
const maxPass = 20

// hunt does what is to be done after a scan in the kill phase; the next scan is to
// follow soon. First it suspends all members: a parent that is suspended neither
// ends nor reaps, so that what was forked meanwhile has a link that can be read.
// When two scans running have found no new member and all of them suspended, it kills
// them, those started last first: a group whose last parent outside dies is
// resumed by the kernel.
//
// signal must reach the process of that row or none: syscall.ESRCH means that it
// is gone or has executed something since, and the next scan shows which. A process that
// cannot be signalled for another reason is not tried again.
func (t *tracker) hunt(signal func(*tableRow, syscall.Signal) error) {
	if t.pass++; t.scan.fresh > 0 {
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
	if atRest && t.scan.fresh == 0 {
		t.calm++
	} else {
		t.calm = 0
	}
	if t.calm < 2 && t.pass < maxPass {
		return
	}
	t.pass = 0
	t.cull(signal)
}

// cull kills all members at once, those started last first, without suspending them:
// a process that is being forked in that moment may lose the link to its parent.
func (t *tracker) cull(signal func(*tableRow, syscall.Signal) error) {
	for _, e := range t.members {
		if !e.killed && e.refused == nil {
			e.killed = t.send(e, syscall.SIGKILL, signal)
		}
	}
}

func (t *tracker) send(e *entry, sig syscall.Signal, signal func(*tableRow, syscall.Signal) error) bool {
	err := signal(&e.tableRow, sig)
	if err != nil && err != syscall.ESRCH {
		e.refused = err
	}
	return err == nil
}
