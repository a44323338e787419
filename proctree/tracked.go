//go:build linux || darwin

package proctree

import (
	"runtime"
	"slices"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"curfew/outcome"
)

// Tracked is a tree that the kernel keeps no hold of: what descends from the leader
// is found by scans of the process table (see Tracker). It is what a tree is on
// macOS, and on a Linux where orphans cannot be had. It has the methods of Tree on
// Linux, which say what each is for, and the same rules: all are for the one
// goroutine that called OpenTracked, and it serves one leader after another.
//
// The leader is not reaped before the end. So it keeps its pid, and the session of
// that number is its own.
type tracked struct {
	table   *processTable
	tracker *Tracker // nil: there is no leader, or it could not be read yet
	watch   *watcher
	partial error // why the last scan was not whole
	frozen  *frozen

	news        [2]int // a pipe: who has something to tell writes
	orders      chan *Spec
	spec        *Spec
	root        int         // descriptor of "/"
	interrupted func() bool // may be nil

	forkingTID int

	// What the second thread, which starts, has to tell.
	startDone   atomic.Bool
	cancelStart atomic.Bool
	startedPID  int // written before startDone
	startErr    *StartError

	starting    bool
	startKilled bool
	leader      int  // its pid; 0 if there is none, or it was reaped
	exited      bool // its exit was seen
	silent      bool // it was never executed: nobody is to hear of its exit
	leaderFD    int

	next   time.Time // when to scan
	active time.Time // when somebody new was found last

	ended    []trackedEnd
	more     int
	usage    outcome.Usage
	suspects []Row
}

// trackedEnd is what the report will say of a process that got a signal of ours.
type trackedEnd struct {
	row    Row
	name   string
	signal syscall.Signal
}

// The pace of scans while nothing is being ended: quick for a second after
// somebody new was found, and when the leader has exited, because then the end of
// the others is awaited; else paceIdle. A scan may not take more than a quarter of
// the time.
const (
	paceActive = 5 * time.Millisecond
	paceWait   = 20 * time.Millisecond
	activeFor  = time.Second
	paceShare  = 4
)

// OpenTracked prepares this process to start trees and to track them by scans. The
// calling goroutine must be locked to the main thread. What lost holders have left
// suspended in Options.Frozen is ended in the background.
func OpenTracked(o Options) (Tree, error) { return openTracked(o) }

func openTracked(o Options) (*tracked, error) {
	t := &tracked{table: newProcessTable(marking{}), orders: make(chan *Spec), leaderFD: -1}
	if _, err := t.table.Rows(); err != nil {
		// A process that cannot be read now may be one that can be the next time.
		if rows, again := t.table.Rows(); len(rows) == 0 && again != nil {
			return nil, again
		}
	}
	var err error
	if t.root, err = OpenFile("/", unix.O_RDONLY|unix.O_DIRECTORY); err != nil {
		return nil, err
	}
	if t.news, err = NewsPipe(); err != nil {
		return nil, err
	}
	if t.watch, err = newWatcher(t.news[1]); err != nil {
		return nil, err
	}
	t.frozen = openFrozen(o.Frozen, o.Boot)
	t.interrupted = o.Interrupted
	t.table.setEar(o.Interrupted)
	resetIgnored()
	ready := make(chan struct{})
	go t.second(ready)
	<-ready
	return t, nil
}

// NewsPipe makes a pipe of which neither end blocks or is inherited.
func NewsPipe() (p [2]int, err error) {
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	if err := unix.Pipe(p[:]); err != nil {
		return p, err
	}
	for _, fd := range p {
		unix.CloseOnExec(fd)
		_ = unix.SetNonblock(fd, true) // it is a pipe: this cannot fail
	}
	return p, nil
}

// tell makes the pipe readable. If it is full, it is.
func tell(fd int) { _, _ = unix.Write(fd, []byte{1}) }

// second is the second thread, which does what may block in the kernel.
func (t *tracked) second(ready chan<- struct{}) {
	runtime.LockOSThread()
	t.forkingTID = becomeForking()
	close(ready)
	for spec := range t.orders {
		t.startedPID, t.startErr = t.start(spec)
		t.startDone.Store(true)
		tell(t.news[1])
	}
}

func (t *tracked) start(spec *Spec) (int, *StartError) {
	if err := fchdir(spec.Dir); err != nil {
		return 0, &StartError{Op: "chdir", Err: err}
	}
	defer unix.Fchdir(t.root)
	attr := syscall.ProcAttr{Env: spec.Env, Sys: &syscall.SysProcAttr{Setsid: true, Setctty: spec.Terminal}}
	for _, fd := range spec.Files {
		attr.Files = append(attr.Files, uintptr(fd))
	}
	return execute(spec, &attr, &t.cancelStart, func() bool { return false })
}

func (t *tracked) FD() int { return t.news[0] }

// LeaderFD is readable when the leader has exited; -1 where FD tells it.
func (t *tracked) LeaderFD() int { return t.leaderFD }

// Next is when Collect is to be called although nothing is heard; zero if there is
// no such time.
func (t *tracked) Next() time.Time {
	if t.leader == 0 {
		return time.Time{}
	}
	return t.next
}

// Start begins to start the leader.
func (t *tracked) Start(spec *Spec) {
	t.spec, t.startErr, t.startedPID = spec, nil, 0
	t.starting, t.startKilled = true, false
	t.cancelStart.Store(false)
	t.table.marking = marking{prefix: spec.MarkPrefix, mark: spec.Mark}
	t.tracker, t.leader, t.exited, t.silent = nil, 0, false, false
	t.usage, t.suspects = outcome.Usage{}, nil
	t.Forget()
	disposition(syscall.SIGHUP, spec.IgnoreHangup)
	disposition(syscall.SIGINT, spec.IgnoreInterrupt)
	t.orders <- spec
}

// Forget drops what is known of processes that were signalled.
func (t *tracked) Forget() { t.ended, t.more = nil, 0 }

// Collect takes the news, and scans if it is time.
func (t *tracked) Collect(killing bool) Event {
	var buf [64]byte
	heard := false
	for {
		n, err := unix.Read(t.news[0], buf[:])
		if err == unix.EINTR {
			continue
		}
		heard = heard || n > 0
		if n < len(buf) {
			break
		}
	}
	var ev Event
	if t.startDone.Swap(false) {
		t.finishStart(&ev)
	}
	if t.starting || t.leader == 0 || killing {
		return ev
	}
	if !t.seeExit(&ev) && !heard && time.Now().Before(t.next) {
		return ev
	}
	began := time.Now()
	t.scan()
	if t.exited {
		t.conclude(&ev)
	}
	t.pace(began)
	return ev
}

// pace says when the next scan is due.
func (t *tracked) pace(began time.Time) {
	now := time.Now()
	if t.tracker != nil && t.tracker.fresh > 0 {
		t.active = now
	}
	wait := paceIdle
	switch {
	case t.tracker == nil || t.exited:
		wait = paceWait
	case now.Sub(t.active) < activeFor:
		wait = paceActive
	}
	t.next = now.Add(max(wait, paceShare*now.Sub(began)))
}

// finishStart looks at what became of the start.
func (t *tracked) finishStart(ev *Event) {
	t.starting = false
	ev.StartDone = true
	if t.startErr != nil {
		ev.StartErr = t.startErr
		ev.Empty, ev.Proof = true, outcome.ProofScans // what was forked for it is reaped
		return
	}
	t.leader = t.startedPID
	ev.PID = t.leader
	if t.startKilled && t.table.neverExecuted(t.leader) {
		// It is dead or has SIGKILL pending, so it never will.
		ev.StartErr = &StartError{Op: "exec", Err: syscall.ECANCELED, Killed: true}
		t.silent = true
	}
	t.leaderFD = exitFD(t.leader)
	t.active, t.next = time.Now(), time.Time{}
}

// seeExit reports whether the leader's exit was seen by this call.
func (t *tracked) seeExit(ev *Event) bool {
	if t.exited || t.leader == 0 {
		return false
	}
	exit := exitOf(t.leader)
	if exit == nil {
		return false
	}
	t.exited = true
	t.closeLeaderFD()
	if !t.silent {
		ev.Exit = exit
	}
	return true
}

func (t *tracked) closeLeaderFD() {
	if t.leaderFD >= 0 {
		unix.Close(t.leaderFD)
	}
	t.leaderFD = -1
}

// scan scans the process table once. A scan that is not whole is taken for what it
// shows; nobody is gone for not being in it.
func (t *tracked) scan() {
	if t.leader == 0 {
		return
	}
	if t.tracker == nil {
		root, err := t.table.row(t.leader)
		if err != nil {
			t.partial = err
			return
		}
		t.tracker = NewTracker(root)
		t.watch.reset()
	}
	rows, err := t.table.Rows()
	self := unix.Getpid()
	rows = slices.DeleteFunc(rows, func(r Row) bool { return r.PID == self })
	t.tracker.Scan(rows, t.table.Mark)
	if t.partial = err; err != nil {
		t.tracker.Partial()
	}
	t.watch.add(t.tracker.members)
}

// concludeScans bounds the scans that are made at once when the leader has exited.
const concludeScans = 4

// conclude ends the tree, if nothing of it is left.
func (t *tracked) conclude(ev *Event) {
	for range concludeScans {
		if t.tracker == nil || len(t.tracker.members) > 0 {
			return
		}
		if t.tracker.Empty() {
			t.finish(ev)
			return
		}
		t.scan()
	}
}

// finish reaps the leader.
func (t *tracked) finish(ev *Event) {
	var ws syscall.WaitStatus
	var ru syscall.Rusage
	for {
		pid, err := syscall.Wait4(t.leader, &ws, syscall.WNOHANG|waitAll, &ru)
		if err == syscall.EINTR {
			continue
		}
		if err == nil && pid != t.leader {
			return // not yet; the next scan tries again
		}
		break
	}
	t.usage = outcome.Usage{
		User: time.Duration(ru.Utime.Nano()), System: time.Duration(ru.Stime.Nano()), MaxRSSBytes: ru.Maxrss * rssUnit,
	}
	t.suspects = t.tracker.Suspects()
	t.frozen.clear()
	t.tracker, t.leader = nil, 0
	ev.Empty = true
	if ev.Proof = outcome.ProofScans; len(t.suspects) > 0 {
		ev.Proof = outcome.ProofNone
	}
}

// Signal sends sig to the leader, outside the ladder.
func (t *tracked) Signal(sig syscall.Signal) {
	if t.leader != 0 && !t.exited {
		_ = signalUnreaped(t.leader, sig)
	}
}

// Terminate sends sig to those members that have not had it, each followed by SIGCONT.
// It returns how many it reached, and whether there is more to do.
func (t *tracked) Terminate(sig syscall.Signal, to Recipients, until time.Time) (reached int, more bool) {
	if to == ToLeader {
		if t.leader == 0 || t.exited || signalUnreaped(t.leader, sig) != nil {
			return 0, false
		}
		if r, err := t.table.row(t.leader); err == nil {
			t.note(r, sig)
		}
		_ = signalUnreaped(t.leader, syscall.SIGCONT)
		return 1, false
	}
	for range 3 {
		t.scan()
		if t.tracker == nil {
			return reached, false
		}
		n := 0
		for _, r := range t.tracker.Live() {
			if !until.IsZero() && !time.Now().Before(until) {
				return reached, false
			}
			if t.heard() {
				return reached, true
			}
			if r.PID == t.leader || t.signalled(r) >= 0 || to == ToFeeders && t.table.isFed(r.PID, t.spec.Given) || t.table.Signal(&r, sig) != nil {
				continue
			}
			t.note(r, sig)
			_ = t.table.Signal(&r, syscall.SIGCONT) // if it is gone already, so much the better
			n++
		}
		if n == 0 {
			break
		}
		reached += n
	}
	return reached, false
}

func (t *tracked) heard() bool { return t.interrupted != nil && t.interrupted() }

// betweenStrikes is the pause after a scan in which somebody has still to be
// suspended or ended.
const betweenStrikes = time.Millisecond

// Strike suspends and ends what is left, a step with each call. Every scan shows all
// that is below, so it always strikes there.
func (t *tracked) Strike(bool) (struck Struck) {
	if t.starting {
		t.cancelStart.Store(true)
		t.startKilled = true
		t.strikeStart()
		return struck
	}
	if t.scan(); t.tracker == nil {
		if t.leader != 0 && !t.exited { // it cannot be read, and is ours all the same
			_ = signalUnreaped(t.leader, syscall.SIGKILL)
		}
		return struck
	}
	signal := func(r *Row, sig syscall.Signal) error {
		err := t.table.Signal(r, sig)
		if err == nil && sig == syscall.SIGKILL {
			struck.Fresh++
			t.note(*r, sig)
		}
		return err
	}
	if t.frozen.note(t.tracker.Live()) == nil {
		t.tracker.Hunt(signal)
	} else {
		t.tracker.Cull(signal)
	}
	for _, e := range t.tracker.members {
		struck.More = struck.More || !e.killed && e.refused == nil
	}
	if struck.More {
		Pause(betweenStrikes)
	}
	return struck
}

// strikeStart ends what was forked for a start that hangs in the kernel. Whoever is
// a child of ours then is that: the second thread has told of no other.
func (t *tracked) strikeStart() {
	for _, r := range t.ownChildren() {
		_ = t.table.Signal(&r, syscall.SIGKILL)
	}
}

func (t *tracked) ownChildren() []Row {
	rows, _ := t.table.Rows()
	self := unix.Getpid()
	return slices.DeleteFunc(rows, func(r Row) bool { return r.Parent != self })
}

// Reap looks for the leader's exit, which is the only death that is reaped here, and not
// before nothing else is left.
func (t *tracked) Reap() (ev Event) {
	if t.starting || t.leader == 0 {
		return ev
	}
	if t.seeExit(&ev) {
		ev.Died = 1
	}
	if t.exited {
		t.conclude(&ev)
	}
	return ev
}

// StartProgress looks at the children that the second thread has forked so far.
func (t *tracked) StartProgress() StartProgress {
	if !t.starting {
		return StartPending
	}
	own := t.ownChildren()
	switch {
	case slices.ContainsFunc(own, func(r Row) bool { return !t.table.neverExecuted(r.PID) }):
		return StartExecuted
	case t.startKilled && len(own) > 0:
		return StartRuledOut
	}
	return StartPending
}

// signalled returns where in t.ended the process of r is; -1 if it got no signal.
func (t *tracked) signalled(r Row) int {
	return slices.IndexFunc(t.ended, func(e trackedEnd) bool { return e.row.identity() == r.identity() })
}

// note notes that sig was sent to the process of r.
func (t *tracked) note(r Row, sig syscall.Signal) {
	switch i := t.signalled(r); {
	case i >= 0:
		t.ended[i].signal = sig
	case len(t.ended) == maxListed:
		t.more++
	default:
		m := t.table.member(r)
		t.ended = append(t.ended, trackedEnd{r, m.Name, sig})
	}
}

func (t *tracked) Summary() Summary {
	s := Summary{EndedMore: t.more, Suspects: t.listSuspects(), Usage: t.usage}
	for _, e := range t.ended {
		m := Member{PID: e.row.PID, Start: e.row.Start, Name: e.name}
		s.Ended = append(s.Ended, outcome.Ended{Process: m.Describe(), LastSignal: int(e.signal)})
	}
	return s
}

// Members lists the live members of the tree, at most limit.
func (t *tracked) Members(limit int) (list []Member, more bool) {
	if t.scan(); t.tracker == nil {
		return nil, false
	}
	for _, r := range t.tracker.Live() {
		if len(list) == limit {
			break
		}
		m := t.table.member(r)
		m.Leader = r.PID == t.leader
		list = append(list, m)
	}
	return list, false
}

// Survivors lists what is alive, with the reason as far as it can be told.
func (t *tracked) Survivors() (list []outcome.Survivor) {
	members, _ := t.Members(maxListed)
	for _, m := range members {
		list = append(list, outcome.Survivor{Process: m.Describe(), State: string(m.State), Reason: t.table.reason(m)})
	}
	if len(list) == 0 && t.leader != 0 && t.partial != nil {
		list = append(list, outcome.Survivor{
			Process: outcome.Process{PID: t.leader}, State: "?", Reason: "the process table cannot be read: " + t.partial.Error(),
		})
	}
	return list
}

func (t *tracked) listSuspects() (list []outcome.Process) {
	rows := t.suspects
	if t.tracker != nil {
		rows = t.tracker.Suspects()
	}
	for _, r := range rows {
		if len(list) == maxListed {
			break
		}
		m := t.table.member(r)
		list = append(list, m.Describe())
	}
	return list
}

// Holds reports whether a live member may still have output to write.
func (t *tracked) Holds(until time.Time) bool {
	members, _ := t.Members(maxListed)
	for _, m := range members {
		if !time.Now().Before(until) || t.heard() || t.table.holds(m, t.spec.Given) {
			return true
		}
	}
	return false
}

// Disown lets go of all that is left, for good.
func (t *tracked) Disown() { disown() }

// ForkingThread is the thread that leaders inherit from; 0 where each does from the
// whole process.
func (t *tracked) ForkingThread() int { return t.forkingTID }

// There are no cgroups.
func (t *tracked) Prepare() bool     { return true }
func (t *tracked) Close()            {}
func (t *tracked) StrikeGroup() bool { return false }
