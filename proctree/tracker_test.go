//go:build unix

package proctree

import (
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"syscall"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// rules is what a kernel keeps of a process's origin, and how exact a signal is.
type rules struct {
	name string
	// execLoses: at an execution the kernel notes the parent of that moment.
	execLoses bool
	// births: it keeps the version that the parent had at the fork.
	births bool
	// exact: a signal names a version. Else the process that has the pid is compared with
	// the row right before.
	exact bool
	// ids: it has IDs at all.
	ids bool
}

// The rules of macOS are in its kernel's source (bsd/kern): the parent's unique ID
// is noted anew by an execution since xnu-8792, a signal can name a version since
// xnu-10002.61, and the version at the fork is kept since xnu-11417.101.
var allRules = []rules{
	{"macOS 12", false, false, false, true},
	{"macOS 13", true, false, false, true},
	{"macOS 14.2", true, false, true, true},
	{"macOS 15.4", true, true, true, true},
	{"no IDs", false, false, false, false},
}

// historiesVariable names how many histories TestTracker makes up for each set of
// rules.
const historiesVariable = "CURFEW_HISTORIES"

// In made-up histories, in which processes fork, execute, exit and use the pids of
// others again while the table is read, every process that can be found by the rules is found
// and ended, no stranger ever gets a signal, and a process that cannot be distinguished from a
// stranger is a suspect.
func TestTracker(t *testing.T) {
	if n := os.Getenv(historiesVariable); n != "" {
		old := flag.Lookup("rapid.checks").Value.String()
		if err := flag.Set("rapid.checks", n); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = flag.Set("rapid.checks", old) })
	}
	for _, r := range allRules {
		t.Run(r.name, func(t *testing.T) {
			found, suspected, lost := 0, 0, 0
			rapid.Check(t, func(rt *rapid.T) {
				k := newSimulation(rt, r)
				k.history()
				found, suspected, lost = found+k.found, suspected+k.suspected, lost+k.lost
			})
			t.Logf("%d processes found, %d not, which are below %d suspects", found, lost, suspected)
			if found == 0 {
				t.Error("the histories are too simple")
			}
		})
	}
}

// proc is a process of the simulated kernel.
type proc struct {
	pid            int
	id             uint64
	start          uint64
	parent         *proc // nil: the first process
	orphan         bool
	parentID       uint64
	version, birth uint32
	session        int
	coalition      uint64
	mark           foundMark // in its environment, readable or not
	hidden         bool
	careless       bool // its children leave no zombies
	immune         bool // of another user: signals are refused
	zombie, reaped bool
	stopping       int // how much it still does before it is suspended, +1
	suspended      bool
	killed         bool

	// What is true, and the tracker has to find out.
	ours     bool
	creator  *proc
	bornOf   uint32 // the creator's version then
	seen     bool   // in some scan
	linked   bool   // its creator is what its row had at its first sight
	versions []uint32
	shown    bool // its mark could be read when it was an orphan
}

type simulation struct {
	rules
	t       *rapid.T
	random  *rand.Rand // rapid's own numbers are mostly small ones
	all     []*proc    // also those that are gone
	table   map[int]*proc
	first   *proc
	root    *proc
	lastPID int
	nextID  uint64
	version uint32
	moves   int // that are left
	forks   int // of ours that are left
	tracker *tracker

	found, suspected, lost int
}

// maxSimulatedPID is the number after which pids are given out again.
const maxSimulatedPID = 24

func newSimulation(t *rapid.T, r rules) *simulation {
	k := &simulation{rules: r, t: t, table: map[int]*proc{}, lastPID: 1, nextID: 100, version: 1000}
	k.random = rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 0))
	k.moves, k.forks = 30+rapid.IntRange(0, 200).Draw(t, "moves"), 3+rapid.IntRange(0, 20).Draw(t, "forks")
	k.first = &proc{pid: 1, id: 1, version: 1, session: 1}
	k.table[1] = k.first
	shell := k.add(k.first)
	shell.session, shell.coalition = shell.pid, 7
	other := k.add(k.first)
	other.session, other.coalition = other.pid, 8
	for range k.upTo(2) { // older than the root, and orphans of its coalition
		p := k.add(shell)
		p.parent, p.orphan = k.first, true
	}
	k.root = k.add(shell)
	k.root.ours, k.root.session = true, k.root.pid
	if k.one(3) { // else it has wiped its environment
		k.root.mark, k.root.hidden = markOurs, k.one(2)
	}
	k.root.seen, k.root.linked = true, true
	k.root.versions = append(k.root.versions, k.root.version)
	k.tracker = newTracker(k.row(k.root))
	return k
}

func (k *simulation) upTo(n int) int { return k.random.IntN(n + 1) }

// one is true in one of n cases.
func (k *simulation) one(n int) bool { return k.upTo(n-1) == 0 }

// add forks.
func (k *simulation) add(parent *proc) *proc {
	pid := k.lastPID
	for tries := 0; ; tries++ {
		if pid++; pid > maxSimulatedPID {
			pid = 2
		}
		if tries > maxSimulatedPID {
			return nil // EAGAIN
		}
		if k.free(pid) {
			break
		}
	}
	k.lastPID = pid
	k.nextID++
	k.version++
	p := &proc{
		pid: pid, id: k.nextID, start: k.nextID, parent: parent, parentID: parent.id,
		version: k.version, birth: parent.version, session: parent.session, coalition: parent.coalition,
		mark: parent.mark, hidden: parent.hidden, immune: parent.immune, careless: parent.careless,
		ours: parent.ours, creator: parent, bornOf: parent.version,
	}
	k.table[pid] = p
	k.all = append(k.all, p)
	return p
}

func (k *simulation) free(pid int) bool {
	if k.table[pid] != nil {
		return false
	}
	for _, p := range k.table {
		if p.session == pid {
			return false
		}
	}
	return true
}

func (k *simulation) exit(p *proc) {
	for _, c := range k.table {
		if c.parent != p {
			continue
		}
		c.parent, c.orphan = k.first, true
		if c.zombie {
			k.reap(c)
		}
	}
	p.zombie, p.suspended = true, false
	if p.parent == k.first || p.parent.careless && p != k.root {
		k.reap(p)
	}
}

func (k *simulation) reap(p *proc) {
	p.reaped = true
	delete(k.table, p.pid)
}

// move has some process do something.
func (k *simulation) move() {
	if k.moves == 0 {
		return
	}
	k.moves--
	var able []*proc
	for _, p := range k.all {
		if !p.reaped && !p.zombie && !p.suspended {
			able = append(able, p)
		}
	}
	if len(able) == 0 {
		return
	}
	p := able[k.upTo(len(able)-1)]
	switch {
	case p.killed:
		k.exit(p)
		return
	case p.stopping == 1:
		p.suspended, p.stopping = true, 0
		return
	case p.stopping > 1:
		p.stopping--
	}
	switch k.upTo(11) {
	default:
		if !p.ours || k.forks > 0 {
			if c := k.add(p); c != nil && c.ours {
				k.forks--
			}
		}
	case 4, 5: // executes something
		k.version++
		p.version = k.version
		if k.execLoses {
			p.parentID = p.parent.id
		}
		switch k.upTo(3) {
		case 0:
			p.mark = markHidden
		case 1:
			p.hidden = true
		default:
			p.hidden = false
		}
		p.immune = p.immune || p.ours && p != k.root && k.one(12)
	case 6:
		if p != k.root.creator { // which holds the root, as a supervisor does
			k.exit(p)
		}
	case 8:
		if p.session != p.pid {
			p.session = p.pid
		}
	case 9:
		for _, c := range k.all {
			if c.parent == p && c.zombie && !c.reaped && c != k.root {
				k.reap(c)
				break
			}
		}
		p.careless = p.careless || k.one(4)
	}
}

// settle has what is to end without further doing end.
func (k *simulation) settle() {
	for _, p := range k.all {
		if p.reaped || p.zombie {
			continue
		}
		switch {
		case p.killed:
			k.exit(p)
		case p.stopping > 0:
			p.suspended, p.stopping = true, 0
		}
	}
}

func (k *simulation) row(p *proc) tableRow {
	r := tableRow{
		PID: p.pid, Parent: p.parent.pid, Orphan: p.orphan, Start: p.start, Session: p.session,
		Coalition: p.coalition, Zombie: p.zombie, Suspended: p.suspended,
	}
	if k.ids {
		r.ID, r.ParentID, r.Version = p.id, p.parentID, p.version
	}
	if k.births {
		r.ParentVersion = p.birth
	}
	return r
}

// scan reads the table: first the pids, and then one row after the other, while
// the processes go on.
func (k *simulation) scan() {
	var pids []int
	for pid := range k.table {
		pids = append(pids, pid)
	}
	slices.Sort(pids)
	var rows []tableRow
	for _, pid := range pids {
		// Without IDs nothing shows that all pids were used up within one scan
		// (docs/limits.md).
		if k.ids && k.one(4) {
			k.move()
		}
		p := k.table[pid]
		if p == nil || p == k.first {
			continue
		}
		rows = append(rows, k.row(p))
		if !p.seen {
			p.seen = true
			p.linked = p.creator != nil && p.parentID == p.creator.id
			if !k.ids {
				p.linked = !p.orphan
			}
		}
		if !slices.Contains(p.versions, p.version) {
			p.versions = append(p.versions, p.version)
		}
	}
	k.tracker.take(rows, func(r *tableRow) foundMark {
		p := k.table[r.PID]
		if p == nil || k.row(p).identity() != r.identity() || p.hidden {
			return markHidden
		}
		p.shown = p.shown || p.mark == markOurs
		return p.mark
	})
}

// signal is what a platform does with a row.
func (k *simulation) signal(r *tableRow, sig syscall.Signal) error {
	for range k.upTo(2) {
		k.move() // the row is old
	}
	p := k.table[r.PID]
	if p == nil || k.row(p).identity() != r.identity() || k.exact && p.version != r.Version {
		return syscall.ESRCH
	}
	if p.immune {
		return syscall.EPERM
	}
	if !p.ours {
		k.t.Fatalf("signal %d for a stranger, %+v", sig, *r)
	}
	switch {
	case p.zombie:
	case sig == syscall.SIGKILL:
		p.killed, p.suspended = true, false
	case p.stopping == 0 && !p.suspended:
		p.stopping = 1 + k.upTo(1)
	}
	return nil
}

func (k *simulation) history() {
	for range k.upTo(8) {
		for range k.upTo(10) {
			k.move()
		}
		k.scan()
	}
	passes := 0
	for ; ; passes++ {
		k.scan()
		if k.tracker.empty() || passes > 200 {
			break
		}
		if left, _ := k.tracker.refused(); len(left) > 0 && len(left) == len(k.tracker.live()) && k.moves == 0 {
			break
		}
		k.tracker.hunt(k.signal)
		for range k.upTo(4) {
			k.move()
		}
		if k.one(2) {
			k.settle()
		}
		if passes > 100 { // by then they have to be suspended
			k.moves = 0
		}
	}
	if passes > 200 {
		k.t.Fatalf("it does not come to an end: %+v", k.tracker.live())
	}
	k.check()
}

// check compares what was done with what is true.
func (k *simulation) check() {
	findable := map[*proc]bool{k.root: true}
	for more := true; more; {
		more = false
		for _, p := range k.all {
			if p.ours && p.seen && !findable[p] && (p.shown || findable[p.creator] && (p.linked || k.births && slices.Contains(p.creator.versions, p.bornOf))) {
				findable[p], more = true, true
			}
		}
	}
	member := func(p *proc) bool {
		r := k.row(p)
		e := k.tracker.known[r.identity()]
		return e != nil && e.member
	}
	refused, _ := k.tracker.refused()
	suspects := map[identity]bool{}
	for _, r := range refused {
		suspects[r.identity()] = true // it is reported as well, and what it forks is below it
	}
	for _, r := range k.tracker.suspected() {
		suspects[r.identity()] = true
	}
	for _, p := range k.all {
		if !p.ours || p.zombie || p.reaped {
			k.found += count(p.killed)
			continue
		}
		switch {
		case p.immune && slices.ContainsFunc(refused, func(r tableRow) bool { return r.PID == p.pid }):
		case findable[p]:
			k.t.Fatalf("%d could be found and lives: %+v; member %v", p.pid, k.row(p), member(p))
		case member(p):
			k.t.Fatalf("%d is known and lives: %+v", p.pid, k.row(p))
		default:
			k.lost++
			top := p
			for top != k.first && !suspects[k.row(top).identity()] {
				top = top.creator // which may have died since it was listed
			}
			if top == k.first {
				k.t.Fatalf("%d lives and no suspect is above it: %s", p.pid, k.chain(p))
			}
		}
	}
	k.suspected += len(k.tracker.suspected())
}

// chain describes p and those above it.
func (k *simulation) chain(p *proc) (text string) {
	for ; p != k.first; p = p.creator {
		text += fmt.Sprintf("\n%+v, seen %v, linked %v", k.row(p), p.seen, p.linked)
	}
	return text
}

// The number of a session is given away when the last that was in it has gone:
// having it is a link only to those that were in it together.
func TestTrackerSession(t *testing.T) {
	t.Parallel()
	root := tableRow{PID: 10, Parent: 2, ID: 100, ParentID: 50, Session: 10}
	member := tableRow{PID: 20, Parent: 10, ID: 101, ParentID: 100, Session: 20}
	other := tableRow{PID: 21, Parent: 1, Orphan: true, ID: 103, ParentID: 1, Session: 20} // has executed something
	inRoots := tableRow{PID: 22, Parent: 1, Orphan: true, ID: 104, ParentID: 1, Session: 10}
	for _, tt := range []struct {
		name  string
		scans [][]tableRow
		want  bool
	}{
		{"both in two scans", [][]tableRow{{root, member, other}, {root, member, other}}, true},
		{"the other is new", [][]tableRow{{root, member}, {root, member, other}}, false},
		{"the member is gone", [][]tableRow{{root, member}, {root, member, other}, {root, other}}, false},
		{"the member was gone", [][]tableRow{{root, member, other}, {root, other}, {root, member, other}}, false},
		{"the root's, which is not reaped", [][]tableRow{{root, inRoots}}, true},
	} {
		k := newTracker(root)
		for _, rows := range tt.scans {
			k.take(rows, func(*tableRow) foundMark { return markHidden })
		}
		got := slices.ContainsFunc(k.live(), func(r tableRow) bool { return r.ID >= other.ID })
		if got != tt.want {
			t.Errorf("%s: adopted %v, want %v", tt.name, got, tt.want)
		}
		if suspected := len(k.suspected()) > 0; suspected == got {
			t.Errorf("%s: suspected %v", tt.name, suspected)
		}
	}
}

// A process that has come and gone as a stranger is a link still when it turns out
// that it was none.
func TestTrackerRemembersStrangers(t *testing.T) {
	t.Parallel()
	root := tableRow{PID: 10, Parent: 2, ID: 100, ParentID: 50, Session: 10}
	top := tableRow{PID: 20, Parent: 1, Orphan: true, ID: 102, ParentID: 1, Session: 20}
	middle := tableRow{PID: 21, Parent: 20, ID: 103, ParentID: 102, Session: 20}
	last := tableRow{PID: 22, Parent: 21, ID: 104, ParentID: 103, Session: 22}
	orphaned := last
	orphaned.Parent, orphaned.Orphan = 1, true
	k := newTracker(root)
	for i, rows := range [][]tableRow{{root, top, middle, last}, {root, top, orphaned}, {root, top, orphaned}} {
		k.take(rows, func(r *tableRow) foundMark {
			if i == 2 && r.PID == top.PID {
				return markOurs // it can be read at last
			}
			return markHidden
		})
	}
	if live := k.live(); len(live) != 3 {
		t.Errorf("%d members, want the root, the top and the last: %+v", len(live), live)
	}
}

// A scan that has missed a member makes no stranger of it, and one that is not of the
// whole table is not taken: each shows its absence, and a wrong "empty" is a leak.
func TestTrackerMissesSomebody(t *testing.T) {
	t.Parallel()
	root := tableRow{PID: 10, Parent: 2, ID: 100, ParentID: 50, Session: 10}
	member := tableRow{PID: 20, Parent: 10, ID: 101, ParentID: 100, Session: 20}
	later := tableRow{PID: 20, Parent: 1, Orphan: true, ID: 101, ParentID: 1, Session: 20} // it has executed something since
	hidden := func(*tableRow) foundMark { return markHidden }

	k := newTracker(root)
	for _, rows := range [][]tableRow{{root, member}, {root}, {root, later}} {
		k.take(rows, hidden)
	}
	if live := k.live(); len(live) != 2 || len(k.suspected()) > 0 {
		t.Errorf("after a scan that has missed it: members %+v, suspects %+v", live, k.suspected())
	}

	k = newTracker(root)
	for _, rows := range [][]tableRow{{root, member}, {}, nil, {later}} {
		k.take(rows, hidden)
	}
	if k.empty() || len(k.live()) != 2 {
		t.Errorf("after scans without the root: empty %v, members %+v", k.empty(), k.live())
	}
}

// A process that was a stranger's child when it was first seen is no suspect when it has lost that
// parent, and neither is what descends from it.
func TestTrackerKnowsStrangersChildren(t *testing.T) {
	for _, ids := range []bool{true, false} {
		row := func(pid, parent int) tableRow {
			r := tableRow{PID: pid, Parent: parent, Orphan: parent == 1, Start: uint64(pid), Session: pid, Coalition: 7}
			if ids {
				r.ID, r.ParentID = uint64(pid), uint64(parent)
			}
			return r
		}
		first, shell, root := tableRow{PID: 1, Session: 1}, row(10, 1), row(20, 10)
		if ids {
			first.ID = 1
		}
		orphan := row(31, 1)
		orphan.ParentID = row(31, 30).ParentID // which an orphan keeps
		tracker := newTracker(root)
		hidden := func(*tableRow) foundMark { return markHidden }
		tracker.take([]tableRow{first, shell, root, row(30, 10), row(31, 30)}, hidden)
		tracker.take([]tableRow{first, shell, root, orphan, row(32, 31)}, hidden)
		if s := tracker.suspected(); len(s) != 0 {
			t.Errorf("IDs %v: suspects %+v", ids, s)
		}
		tracker.take([]tableRow{first, shell, root, orphan, row(40, 1)}, hidden) // no scan has seen the parent of that one
		if s := tracker.suspected(); len(s) != 1 || s[0].PID != 40 {
			t.Errorf("IDs %v: suspects %+v, want 40", ids, s)
		}
	}
}

// madeUp is a table in which a signal acts at once.
type madeUp struct {
	rows    map[int]tableRow
	marks   map[int]foundMark
	struck  []int
	partial int // so many of the next scans are not whole
}

func (m *madeUp) readRows() ([]tableRow, error) {
	rows := slices.Collect(maps.Values(m.rows))
	if m.partial--; m.partial >= 0 {
		return rows[:len(rows)/2], syscall.EAGAIN
	}
	return rows, nil
}

func (m *madeUp) readMark(r *tableRow) foundMark { return m.marks[r.PID] }

func (m *madeUp) signal(r *tableRow, sig syscall.Signal) error {
	switch now := m.rows[r.PID]; sig {
	case syscall.SIGSTOP:
		now.Suspended = true
		m.rows[r.PID] = now
	case syscall.SIGKILL:
		delete(m.rows, r.PID)
		m.struck = append(m.struck, r.PID)
	}
	return nil
}

// What a lost supervisor has left is found by the leader's session, by the mark, and
// by descent from those, and no other process is touched.
func TestOrphanTracker(t *testing.T) {
	const first, leader = 1, 50
	row := func(pid, parent, session int) tableRow {
		return tableRow{PID: pid, Parent: parent, Orphan: parent == first, Start: uint64(pid), ID: uint64(pid), ParentID: uint64(parent), Session: session, Coalition: 7}
	}
	table := map[int]tableRow{
		first:  {PID: first, ID: 1, Session: 1},
		10:     row(10, first, 10),                                                                                // older than the tree, and an orphan
		40:     row(40, 10, 10),                                                                                   // the caller
		leader: row(leader, first, 50),                                                                            // it hides its environment
		51:     row(51, leader, 51),                                                                               // so does its child, in a session of its own
		52:     row(52, first, 52),                                                                                // a daemon with the mark
		53:     row(53, 52, 53),                                                                                   // and its child without
		54:     row(54, first, leader),                                                                            // an orphan in the leader's session
		55:     row(55, first, 55),                                                                                // an orphan of which nothing is known
		56:     row(56, first, 56),                                                                                // one of another tree
		57:     row(57, 10, 57),                                                                                   // a stranger's child
		58:     {PID: 58, Parent: first, Orphan: true, Start: 58, ID: 58, ParentID: 1, Session: 58, Coalition: 8}, // one of another coalition
	}
	m := &madeUp{rows: table, marks: map[int]foundMark{52: markOurs, 56: markAnother}, partial: 3}
	tracker := newOrphanTracker(leader, 7, 45)
	empty := tracker.end(m, time.Now().Add(time.Minute))
	slices.Sort(m.struck)
	if want := []int{leader, 51, 52, 53, 54}; !slices.Equal(m.struck, want) || !empty {
		t.Errorf("ended %v, want %v; empty %v", m.struck, want, empty)
	}
	if s := tracker.suspected(); len(s) != 1 || s[0].PID != 55 {
		t.Errorf("suspects %+v, want 55", s)
	}
}

// BenchmarkTracker is one scan of a table in which all are younger than the root,
// which is the worst: one in ten is a member.
func BenchmarkTracker(b *testing.B) {
	for _, n := range []int{500, 2000, 10000} {
		b.Run(strconv.Itoa(n), func(b *testing.B) {
			root := tableRow{PID: 10, Parent: 2, ID: 100, ParentID: 50, Session: 10}
			rows := []tableRow{root, {PID: 11, Parent: 1, Orphan: true, ID: 101, ParentID: 1, Session: 11}}
			for i := 2; i < n; i++ {
				up := 1
				if i%10 == 0 {
					up = 0
				}
				p := &rows[up+(i-up)/20*10%max(i-up, 1)]
				rows = append(rows, tableRow{PID: 10 + i, Parent: p.PID, ID: uint64(100 + i), ParentID: p.ID, Start: uint64(i), Session: p.Session})
			}
			k := newTracker(root)
			for b.Loop() {
				k.take(rows, func(*tableRow) foundMark { return markHidden })
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(n), "ns/process")
			b.ReportMetric(float64(len(k.live())), "members")
		})
	}
}

func count(b bool) int {
	if b {
		return 1
	}
	return 0
}

// refused lists the live members that could not be signalled, with the reasons.
func (t *tracker) refused() (list []tableRow, reasons []error) {
	for _, e := range t.members {
		if e.refused != nil {
			list, reasons = append(list, e.tableRow), append(reasons, e.refused)
		}
	}
	return list, reasons
}
