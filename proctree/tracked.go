//go:build linux || darwin

package proctree

import (
	"runtime"
	"slices"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"curfew/internal/sys"
	"curfew/outcome"
)

// tracked is a Tree that the kernel keeps no hold of: what descends from the leader
// is found by scans of the process table (see tracker). It is the Tree of
// macOS, and runs on Linux too, so that real processes exercise it in every test run.
//
// The leader is not reaped before the end. So it keeps its pid, and the session of
// that number is its own.
type tracked struct {
	table       *processTable
	tracker     *tracker // nil: there is no leader, or it could not be read yet
	partial     error    // why the last scan was not whole
	frozen      *frozen
	watch       *watcher
	interrupted func() bool // Options.Interrupted; may be nil

	start    trackedStart
	leader   trackedLeader
	pace     pace
	ended    trackedEnds
	usage    outcome.Usage
	suspects []tableRow // of a tree that is empty
}

// trackedStart is the second thread, which carries out starts.
type trackedStart struct {
	start
	orders  chan struct{}
	news    int // what to read from; FD
	notify  int // what to write to
	root    int // descriptor of "/"
	forking int
}

// trackedLeader is the leader that was started last.
type trackedLeader struct {
	pid    int  // 0 if there is none, or it was reaped
	exited bool // its exit was seen
	silent bool // it was never executed: its exit is not reported
	fd     int  // readable when it has exited; -1 if there is none
}

func (l *trackedLeader) closeFD() {
	if l.fd >= 0 {
		sys.Close(l.fd)
	}
	l.fd = -1
}

// pace decides when to scan while nothing is being ended: quickly for a second after
// a new member was found, and when the leader has exited, because then the end of
// the others is awaited; else every paceIdle. A scan may not take more than a quarter of
// the time.
type pace struct {
	next   time.Time
	active time.Time // when a new member was found last
}

const (
	paceActive = 5 * time.Millisecond
	paceWait   = 20 * time.Millisecond
	activeFor  = time.Second
	paceShare  = 4
)

func (p *pace) set(began time.Time, fresh, waiting bool) {
	now := time.Now()
	if fresh {
		p.active = now
	}
	wait := paceIdle
	switch {
	case waiting:
		wait = paceWait
	case now.Sub(p.active) < activeFor:
		wait = paceActive
	}
	p.next = now.Add(max(wait, paceShare*now.Sub(began)))
}

// openTracked opens a tree. What lost holders have left suspended in Options.Frozen is ended
// in the background.
func openTracked(o Options) (*tracked, error) {
	t := &tracked{table: newProcessTable(marking{}), leader: trackedLeader{fd: -1}, interrupted: o.Interrupted}
	if _, err := t.table.readRows(); err != nil {
		// A process that cannot be read now may be one that can be the next time.
		if rows, again := t.table.readRows(); len(rows) == 0 && again != nil {
			return nil, again
		}
	}
	t.table.setInterrupted(o.Interrupted)
	s := &t.start
	s.orders = make(chan struct{})
	var err error
	if s.root, err = sys.Open("/", unix.O_RDONLY|unix.O_DIRECTORY, 0); err != nil {
		return nil, err
	}
	if s.news, s.notify, err = sys.NonblockingPipe(); err != nil {
		return nil, err
	}
	if t.watch, err = newWatcher(s.notify); err != nil {
		return nil, err
	}
	t.frozen = openFrozen(o.Frozen, o.Boot)
	resetIgnored()
	ready := make(chan struct{})
	go s.second(ready)
	<-ready
	return t, nil
}

// notify makes a pipe readable. If it is full, it is.
func notify(fd int) { _, _ = unix.Write(fd, []byte{1}) }

// second is the second thread, which does what may block in the kernel.
func (s *trackedStart) second(ready chan<- struct{}) {
	runtime.LockOSThread()
	s.forking = becomeForking()
	close(ready)
	for range s.orders {
		attr := syscall.ProcAttr{Sys: &syscall.SysProcAttr{Setsid: true, Setctty: s.spec.Terminal}}
		s.pid, s.err = s.execute(&attr, s.root, func() bool { return false })
		s.done.Store(true)
		notify(s.notify)
	}
}

func (t *tracked) FD() int            { return t.start.news }
func (t *tracked) LeaderFD() int      { return t.leader.fd }
func (t *tracked) ForkingThread() int { return t.start.forking }

func (t *tracked) Next() time.Time {
	if t.leader.pid == 0 {
		return time.Time{}
	}
	return t.pace.next
}

// There are no cgroups.

func (t *tracked) Prepare() bool      { return true }
func (t *tracked) StrikeCgroup() bool { return false }
func (t *tracked) Close()             {}

func (t *tracked) Start(spec *Spec) {
	t.start.begin(spec)
	t.table.marking = marking{prefix: spec.MarkPrefix, mark: spec.Mark}
	t.tracker, t.leader = nil, trackedLeader{fd: t.leader.fd}
	t.ended = trackedEnds{}
	t.usage, t.suspects = outcome.Usage{}, nil
	t.start.orders <- struct{}{}
}

func (t *tracked) Collect(killing bool) (ev Event) {
	heard := t.readNews()
	if t.start.finish() {
		t.finishStart(&ev)
	}
	if t.start.underWay || t.leader.pid == 0 || killing {
		return ev
	}
	if !t.seeExit(&ev) && !heard && time.Now().Before(t.pace.next) {
		return ev
	}
	began := time.Now()
	t.scan()
	if t.leader.exited {
		t.conclude(&ev)
	}
	t.pace.set(began, t.tracker != nil && t.tracker.scan.fresh > 0, t.tracker == nil || t.leader.exited)
	return ev
}

// readNews empties the pipe, and reports whether there was anything in it.
func (t *tracked) readNews() (heard bool) {
	var buf [64]byte
	for {
		n, err := unix.Read(t.start.news, buf[:])
		if err == unix.EINTR {
			continue
		}
		heard = heard || n > 0
		if n < len(buf) {
			return heard
		}
	}
}

func (t *tracked) finishStart(ev *Event) {
	s := &t.start
	ev.StartDone = true
	if s.err != nil {
		ev.StartErr = s.err
		ev.Empty, ev.Proof = true, outcome.ProofScans // what was forked for it is reaped
		return
	}
	t.leader.pid, ev.PID = s.pid, s.pid
	if s.struck && t.table.neverExecuted(s.pid) {
		// It is dead or has SIGKILL pending, so it never will.
		ev.StartErr = errNeverExecuted()
		t.leader.silent = true
	}
	t.leader.closeFD()
	t.leader.fd = exitFD(s.pid)
	t.pace = pace{active: time.Now()}
}

// StartProgress looks at the children that the second thread has forked so far.
func (t *tracked) StartProgress() StartProgress {
	if !t.start.underWay {
		return StartPending
	}
	own := t.ownChildren()
	switch {
	case slices.ContainsFunc(own, func(r tableRow) bool { return !t.table.neverExecuted(r.PID) }):
		return StartExecuted
	case t.start.struck && len(own) > 0:
		return StartRuledOut
	}
	return StartPending
}

func (t *tracked) ownChildren() []tableRow {
	rows, _ := t.table.readRows()
	self := unix.Getpid()
	return slices.DeleteFunc(rows, func(r tableRow) bool { return r.Parent != self })
}

// seeExit reports whether the leader's exit was seen by this call.
func (t *tracked) seeExit(ev *Event) bool {
	if t.leader.exited || t.leader.pid == 0 {
		return false
	}
	exit := exitOf(t.leader.pid)
	if exit == nil {
		return false
	}
	t.leader.exited = true
	t.leader.closeFD()
	if !t.leader.silent {
		ev.Exit = exit
	}
	return true
}

// scan scans the process table once. An incomplete scan adds members but never removes
// any.
func (t *tracked) scan() {
	if t.leader.pid == 0 {
		return
	}
	if t.tracker == nil {
		root, err := t.table.row(t.leader.pid)
		if err != nil {
			t.partial = err
			return
		}
		t.tracker = newTracker(root)
		t.watch.reset()
	}
	rows, err := t.table.readRows()
	self := unix.Getpid()
	rows = slices.DeleteFunc(rows, func(r tableRow) bool { return r.PID == self })
	t.tracker.take(rows, t.table.readMark)
	if t.partial = err; err != nil {
		t.tracker.incomplete()
	}
	t.watch.add(t.tracker.members)
}

// Reap looks for the leader's exit, which is the only death that is reaped here, and not
// before nothing else is left.
func (t *tracked) Reap() (ev Event) {
	if t.start.underWay || t.leader.pid == 0 {
		return ev
	}
	if t.seeExit(&ev) {
		ev.Died = 1
	}
	if t.leader.exited {
		t.conclude(&ev)
	}
	return ev
}

// concludeScans bounds the scans that are made at once when the leader has exited.
const concludeScans = 4

// conclude ends the tree, if nothing of it is left.
func (t *tracked) conclude(ev *Event) {
	for range concludeScans {
		if t.tracker == nil || len(t.tracker.members) > 0 {
			return
		}
		if t.tracker.empty() {
			t.reapLeader(ev)
			return
		}
		t.scan()
	}
}

func (t *tracked) reapLeader(ev *Event) {
	var status syscall.WaitStatus
	var used syscall.Rusage
	if pid, err := sys.Wait4(t.leader.pid, &status, syscall.WNOHANG|waitAll, &used); err == nil && pid != t.leader.pid {
		return // not yet; the next scan tries again
	}
	addUsage(&t.usage, &used)
	t.suspects = t.tracker.suspected()
	t.frozen.clear()
	t.tracker, t.leader.pid = nil, 0
	ev.Empty, ev.Proof = true, outcome.ProofScans
	if len(t.suspects) > 0 {
		ev.Proof = outcome.ProofNone
	}
}

func (t *tracked) Signal(sig syscall.Signal) {
	if t.leader.pid != 0 && !t.leader.exited {
		_ = signalChild(t.leader.pid, sig)
	}
}

func (t *tracked) Terminate(sig syscall.Signal, to Recipients, until time.Time) (reached int, more bool) {
	if to == ToLeader {
		return t.terminateLeader(sig), false
	}
	over := func() bool { return !until.IsZero() && !time.Now().Before(until) }
	for range 3 {
		n := 0
		t.scan()
		if t.tracker == nil {
			break
		}
		for _, r := range t.tracker.live() {
			if over() {
				return reached + n, false
			}
			if t.wanted() {
				return reached + n, true
			}
			if r.PID != t.leader.pid && (to != ToFeeders || !t.table.isFed(r.PID, t.start.spec.Given)) && t.politely(r, sig) {
				n++
			}
		}
		if n == 0 {
			break
		}
		reached += n
	}
	return reached, false
}

func (t *tracked) terminateLeader(sig syscall.Signal) (reached int) {
	if t.leader.pid == 0 || t.leader.exited || signalChild(t.leader.pid, sig) != nil {
		return 0
	}
	if r, err := t.table.row(t.leader.pid); err == nil {
		t.ended.note(t.table, r, sig)
	}
	_ = signalChild(t.leader.pid, syscall.SIGCONT)
	return 1
}

// politely sends sig to the process of r if it has had no signal yet.
func (t *tracked) politely(r tableRow, sig syscall.Signal) bool {
	if t.ended.find(r) >= 0 || t.table.signal(&r, sig) != nil {
		return false
	}
	t.ended.note(t.table, r, sig)
	_ = t.table.signal(&r, syscall.SIGCONT) // if it is gone already, so much the better
	return true
}

// wanted reports whether the caller of the methods has something else to do.
func (t *tracked) wanted() bool { return t.interrupted != nil && t.interrupted() }

// betweenStrikes is the pause after a scan in which a process has still to be
// suspended or ended.
const betweenStrikes = time.Millisecond

// Strike suspends and ends what is left, a step with each call. Every scan shows all
// that is below, so it always strikes there.
func (t *tracked) Strike(bool) (struck Struck) {
	if t.start.underWay {
		t.start.strike()
		// A child of ours can only be what was forked for the start: the second thread has
		// reported no other.
		for _, r := range t.ownChildren() {
			_ = t.table.signal(&r, syscall.SIGKILL)
		}
		return struck
	}
	if t.scan(); t.tracker == nil {
		if t.leader.pid != 0 && !t.leader.exited { // it cannot be read, and is ours all the same
			_ = signalChild(t.leader.pid, syscall.SIGKILL)
		}
		return struck
	}
	signal := func(r *tableRow, sig syscall.Signal) error {
		err := t.table.signal(r, sig)
		if err == nil && sig == syscall.SIGKILL {
			struck.Fresh++
			t.ended.note(t.table, *r, sig)
		}
		return err
	}
	if t.frozen.note(t.tracker.live()) == nil {
		t.tracker.hunt(signal)
	} else {
		t.tracker.cull(signal)
	}
	if struck.More = slices.ContainsFunc(t.tracker.members, func(e *entry) bool { return !e.killed && e.refused == nil }); struck.More {
		sys.Pause(betweenStrikes)
	}
	return struck
}

// trackedEnds lists what got a signal of ours.
type trackedEnds struct {
	list []trackedEnd
	more int
}

type trackedEnd struct {
	row    tableRow
	name   string
	signal syscall.Signal
}

// find returns where in the list the process of r is; -1 if it got no signal.
func (e *trackedEnds) find(r tableRow) int {
	return slices.IndexFunc(e.list, func(end trackedEnd) bool { return end.row.identity() == r.identity() })
}

// note notes that sig was sent to the process of r.
func (e *trackedEnds) note(table *processTable, r tableRow, sig syscall.Signal) {
	switch i := e.find(r); {
	case i >= 0:
		e.list[i].signal = sig
	case len(e.list) == maxListed:
		e.more++
	default:
		e.list = append(e.list, trackedEnd{r, table.member(r).Name, sig})
	}
}

func (t *tracked) Summary() Summary {
	s := Summary{EndedMore: t.ended.more, Usage: t.usage}
	for _, e := range t.ended.list {
		m := Member{PID: e.row.PID, Start: e.row.Start, Name: e.name}
		s.Ended = append(s.Ended, outcome.Ended{Process: m.Describe(), LastSignal: int(e.signal)})
	}
	suspects := t.suspects
	if t.tracker != nil {
		suspects = t.tracker.suspected()
	}
	for _, r := range suspects[:min(len(suspects), maxListed)] {
		s.Suspects = append(s.Suspects, t.table.member(r).Describe())
	}
	return s
}

// Members is one scan, which is not interrupted.
func (t *tracked) Members(limit int) (list []Member, more bool) {
	if t.scan(); t.tracker == nil {
		return nil, false
	}
	live := t.tracker.live()
	for _, r := range live[:min(len(live), limit)] {
		m := t.table.member(r)
		m.Leader = r.PID == t.leader.pid
		list = append(list, m)
	}
	return list, false
}

func (t *tracked) Holds(until time.Time) bool {
	members, _ := t.Members(maxListed)
	return slices.ContainsFunc(members, func(m Member) bool {
		return !time.Now().Before(until) || t.wanted() || t.table.holds(m, t.start.spec.Given)
	})
}

func (t *tracked) Survivors() (list []outcome.Survivor) {
	members, _ := t.Members(maxListed)
	for _, m := range members {
		list = append(list, outcome.Survivor{Process: m.Describe(), State: string(m.State), Reason: t.table.reason(m)})
	}
	if len(list) == 0 && t.leader.pid != 0 && t.partial != nil {
		list = append(list, outcome.Survivor{
			Process: outcome.Process{PID: t.leader.pid}, State: "?", Reason: "the process table cannot be read: " + t.partial.Error(),
		})
	}
	return list
}

func (t *tracked) Disown() { disown() }
