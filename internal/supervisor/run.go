//go:build linux || darwin

package supervisor

import (
	"errors"
	"slices"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"curfew/internal/wire"
	"curfew/outcome"
	"curfew/proctree"
)

// phase is the state of a run. A run only ever moves down this table.
//
//	phase       what happens                                     ends with                                  next
//	starting    the leader is being started                      the start succeeds or fails                running
//	                                                             a stop, the timeout                        killing
//	running     the leader runs; or it has exited, and           the leader exits, something is left        lingering
//	            AfterExitWait waits for the rest                 a stop, the timeout                        stopping
//	lingering   leftovers may finish their output                none has any, Linger is over, a stop       stopping
//	            with AfterExitLeave: they are listed             the list is complete, its time is over     cleaning
//	stopping    the ladder closes stdin and sends the signal     the grace is over, a stop with Kill        killing
//	killing     everything is struck until nothing is left       KillWait is over                           background
//	background  the survivors are reported; striking goes on     -
//	any above                                                    the tree is empty                          emptying
//	emptying    processes in the tree's cgroup that are not      there is none, cgroupLimit is over          cleaning
//	            below us may take a moment to end
//	cleaning    the temporary directory is removed               it is removed, or late                     reporting
//	reporting   the report is written to the record and sent     it is sent                                 the run ends
//
// Without a grace, a stop moves on from stopping to killing at once. A run that gave up has
// its report written and sent during background.
type phase int

const (
	phaseStarting phase = iota
	phaseRunning
	phaseLingering
	phaseStopping
	phaseKilling
	phaseBackground
	phaseEmptying
	phaseCleaning
	phaseReporting
)

// run is one invocation, from the request to the end of the report. Its methods are for the
// loop: step does what is due, stop and signal what the caller asks for. The server drops the
// run in one place, once it has ended.
type run struct {
	loop     *loop
	tree     proctree.Tree
	settings wire.Settings
	files    leaderFiles

	phase    phase
	deadline time.Time // of the timeout; zero: none, or it has passed
	ladder   proctree.Ladder
	kill     proctree.KillPhase
	report   wire.Done

	leaderReadable bool // the leader's descriptor was readable: it is not polled again
	acknowledged   bool // a stop was
	gaveUp         bool // the report names survivors and is, or will be, the last message
	reportSent     bool
	result         outcome.CleanupResult // from phaseCleaning on

	leftovers struct { // in phaseLingering
		until time.Time     // they may finish, or be listed
		next  time.Time     // when to look at them again
		pause time.Duration // between two looks
	}
	polite struct { // in phaseStopping
		to      proctree.Recipients
		next    time.Time // when to go on; zero: no other member gets the signal
		readers time.Time // when those that others feed get it too; zero: they are no exception
	}
	cgroupUntil time.Time // in phaseEmptying
}

// newRun starts the leader.
func newRun(l *loop, tree proctree.Tree, m *wire.Run, q *wire.Request, noFile int) *run {
	r := &run{loop: l, tree: tree, settings: m.Settings, files: newLeaderFiles(m, q, l.null, noFile)}
	r.ladder.Policy = m.Policy
	if m.Timeout > 0 {
		r.deadline = time.Now().Add(m.Timeout)
	}
	tree.Start(&r.files.spec)
	return r
}

// ended reports whether nothing is left to be done for the run.
func (r *run) ended() bool { return r.phase == phaseReporting && r.reportSent }

// descriptors returns what is to be polled for the run; -1 is nothing.
func (r *run) descriptors() (tree, leader int) {
	tree, leader = -1, -1
	if r.phase < phaseCleaning {
		tree = r.tree.FD()
	}
	// While killing, an exited leader can stay unreaped for a while.
	if (r.phase == phaseRunning || r.phase == phaseStopping) && !r.leaderReadable {
		leader = r.tree.LeaderFD()
	}
	return tree, leader
}

// next is when the clock alone makes a step due; zero if never.
func (r *run) next() (at time.Time) {
	if r.phase >= phaseCleaning {
		return at
	}
	if rung, ok := r.ladder.Next(); ok {
		at = rung
	}
	at = earlier(at, r.deadline)
	switch r.phase {
	case phaseKilling, phaseBackground:
		return earlier(at, r.kill.Next())
	case phaseLingering:
		at = earlier(at, r.leftovers.next)
	case phaseStopping:
		at = earlier(at, r.polite.next)
	case phaseEmptying:
		at = earlier(at, time.Now().Add(cgroupEvery))
	}
	return earlier(at, r.tree.Next())
}

// interrupted reports whether the ladder or the caller wants a turn.
func (r *run) interrupted() bool {
	next, ok := r.ladder.Next()
	return ok && !time.Now().Before(next) || r.loop.callerWaits()
}

// step does what is due. From phaseCleaning on only calls are awaited.
func (r *run) step() {
	if r.phase >= phaseCleaning {
		return
	}
	r.collect()
	now := time.Now()
	if !r.deadline.IsZero() && !now.Before(r.deadline) {
		r.timeOut()
	}
	if r.phase == phaseLingering && !now.Before(r.leftovers.next) {
		r.lookAtLeftovers(now)
	}
	r.climb(r.ladder.Step(now))
	switch {
	case r.phase == phaseStopping && !r.polite.next.IsZero() && !now.Before(r.polite.next):
		r.signalMembers(now)
	case r.phase == phaseKilling:
		r.see(r.kill.Step(r.tree, now, proctree.Quickly))
	case r.phase == phaseBackground:
		r.see(r.kill.Step(r.tree, now, proctree.Slowly))
	}
}

// collect takes what has happened in the tree.
func (r *run) collect() {
	if r.phase < phaseCleaning {
		r.see(r.tree.Collect(r.phase == phaseKilling || r.phase == phaseBackground))
	}
}

// see handles what was seen of the tree.
func (r *run) see(ev proctree.Event) {
	if ev.StartDone {
		r.finishStart(ev.PID, ev.StartErr)
	}
	if ev.Exit != nil {
		r.leaderExited(ev.Exit, ev.Empty)
	}
	if ev.Empty {
		r.treeEmpty(ev.Proof)
	}
}

// inform sends m to the caller, unless the report was the last message.
func (r *run) inform(m *wire.Message) {
	if !r.gaveUp {
		r.loop.send(m)
	}
}

func (r *run) finishStart(pid int, startErr *proctree.StartError) {
	r.files.close()
	if r.phase == phaseStarting {
		r.phase = phaseRunning
	}
	if startErr == nil {
		r.report.Started = true
		r.inform(&wire.Message{Started: &wire.Started{PID: pid, At: time.Now()}})
		return
	}
	var errno syscall.Errno
	errors.As(startErr, &errno)
	if errno == syscall.EBADF {
		errno = syscall.EMFILE // a number that our limit does not allow; execve has no such error
	}
	r.report.NotExecuted = true
	r.inform(&wire.Message{StartFailed: &wire.StartFailed{Op: startErr.Op, Errno: int(errno), Killed: startErr.Killed}})
}

// leaderExited decides what becomes of leftovers, if the leader exited by itself.
func (r *run) leaderExited(exit *outcome.Exit, empty bool) {
	_, begun := r.ladder.Begun()
	exit.AfterStop = begun
	r.report.Exit = exit
	r.ladder.LeaderGone()
	r.inform(&wire.Message{Exited: exit})
	if begun || empty || r.settings.AfterExit == wire.AfterExitWait {
		return
	}
	now := time.Now()
	limit := r.settings.Linger
	if r.settings.AfterExit == wire.AfterExitLeave {
		limit = leaveLimit
	}
	r.phase = phaseLingering
	r.leftovers.until, r.leftovers.pause = now.Add(limit), 2*time.Millisecond
	r.lookAtLeftovers(now)
}

// lookAtLeftovers lets leftovers finish that may have output to write; any other gets the
// ladder. With AfterExitLeave it lists them.
func (r *run) lookAtLeftovers(now time.Time) {
	left := &r.leftovers
	switch {
	case r.settings.AfterExit == wire.AfterExitLeave:
		r.leave(now)
	case now.Before(left.until) && r.tree.Holds(left.until):
		// To look takes a quarter of the time at most.
		done := time.Now()
		left.next = done.Add(max(left.pause, 3*done.Sub(now)))
		if left.next.After(left.until) {
			left.next = left.until
		}
		left.pause = min(2*left.pause, 50*time.Millisecond)
	default:
		r.askToEnd(now)
	}
}

// leaveLimit is how long the list of what is left may take.
const leaveLimit = 200 * time.Millisecond

// leave reports what is alive and lets go of it. The supervisor ends when its caller hangs
// up, so that the tree falls to the process that adopts orphans here; with pipes to drain,
// it ends when no process has them open any more.
func (r *run) leave(now time.Time) {
	members, more := r.tree.Members(1024)
	if more && now.Before(r.leftovers.until) {
		r.leftovers.next = now // once the caller was heard
		return
	}
	for _, m := range members {
		r.report.Cleanup.LeftAlive = append(r.report.Cleanup.LeftAlive, m.Describe())
	}
	r.clean(outcome.CleanupLeft, outcome.ProofNone)
}

// signal sends a signal to the leader on the caller's behalf.
func (r *run) signal(sig syscall.Signal) {
	if r.phase == phaseRunning || r.phase == phaseStopping {
		r.tree.Signal(sig)
	}
}

// timeOut stops the run, unless the leader exited in time: leftovers have their own limits.
func (r *run) timeOut() {
	r.deadline = time.Time{}
	if _, begun := r.ladder.Begun(); !begun && (r.report.Exit == nil || r.settings.AfterExit == wire.AfterExitWait) {
		r.stop(&wire.StopRequest{Cause: outcome.CauseTimeout})
	}
}

// stop begins the ladder, or shortens what is left of it.
func (r *run) stop(q *wire.StopRequest) {
	// What the kernel already knows counts: an exit that is there now came before our first
	// action.
	r.collect()
	r.awaitStart()
	if r.gaveUp {
		return
	}
	now := time.Now()
	_, begun := r.ladder.Begun()
	// After the leader's own exit a stop only hastens the end of the leftovers, unless the
	// caller chose to wait for the whole tree.
	waits := r.settings.AfterExit == wire.AfterExitWait
	if r.phase < phaseCleaning && !r.acknowledged && (waits || !begun && r.report.Exit == nil) {
		r.report.StopBegan, r.report.StopCause = true, q.Cause
	}
	r.acknowledge(q.Cause)
	if q.Signal != 0 && !begun {
		r.ladder.Policy.Signal = q.Signal
	}
	switch {
	case r.phase >= phaseEmptying:
		// Nothing is left to be stopped; the report is on its way.
	case r.phase == phaseLingering && r.settings.AfterExit == wire.AfterExitLeave:
		r.leftovers.until = now // what is left is not stopped
	case r.phase == phaseStarting, q.Kill:
		// What has not been executed has no claim to the polite signal.
		r.phase = max(r.phase, phaseStopping)
		r.climb(r.ladder.Hasten(now, 0))
	default:
		r.askToEnd(now)
	}
}

// acknowledge answers the first stop.
func (r *run) acknowledge(cause outcome.Cause) {
	if !r.acknowledged && !r.reportSent {
		r.acknowledged = true
		r.loop.send(&wire.Message{Stopping: &wire.Stopping{Cause: cause, CloseStdin: r.settings.Stdin}})
	}
}

// startKnownIn bounds the wait for the news that the leader runs. It is half of the time in
// which a stop must be acknowledged.
const startKnownIn = 500 * time.Millisecond

// awaitStart waits for the news that the leader was started, if that is certain to come. A
// leader that runs has a claim to the polite signal, also where its first output was faster
// than that news.
func (r *run) awaitStart() {
	if r.phase != phaseStarting || r.tree.StartProgress() != proctree.StartExecuted {
		return
	}
	for end := time.Now().Add(startKnownIn); r.phase == phaseStarting && time.Now().Before(end); r.collect() {
		wait([]unix.PollFd{{Fd: int32(r.tree.FD()), Events: unix.POLLIN}}, end)
	}
}

// askToEnd begins the ladder. Nothing changes if it has begun already.
func (r *run) askToEnd(now time.Time) {
	r.phase = max(r.phase, phaseStopping)
	r.climb(r.ladder.Begin(now))
}

// climb carries out what the ladder asks for.
func (r *run) climb(actions []proctree.Action) {
	sig := syscall.Signal(r.ladder.Policy.Signal)
	now := time.Now()
	for _, a := range actions {
		switch a {
		case proctree.CloseStdin:
			r.noteStep(outcome.StepCloseStdin, 0)
		case proctree.SignalLeader:
			r.noteStep(outcome.StepSignalLeader, sig)
			r.tree.Terminate(sig, proctree.ToLeader, time.Time{})
		case proctree.SignalMembers:
			r.polite.to = proctree.ToOthers
			if !r.acknowledged && r.ladder.Policy.Audience == proctree.LeaderFirst {
				// Of leftovers, what reads from others has something to read until those
				// have ended.
				r.polite.to, r.polite.readers = proctree.ToFeeders, now.Add(r.ladder.Policy.Grace/3)
			}
			r.signalMembers(now)
		case proctree.Kill:
			r.noteStep(outcome.StepKill, syscall.SIGKILL)
			r.phase, r.kill = phaseKilling, proctree.KillPhase{Interrupted: r.interrupted}
		case proctree.GiveUp:
			r.noteStep(outcome.StepGiveUp, 0)
			r.giveUp()
		}
	}
}

// signalMembers sends the polite signal to members that have not had it.
func (r *run) signalMembers(now time.Time) {
	sig := syscall.Signal(r.ladder.Policy.Signal)
	graceEnd, _ := r.ladder.Next()
	reached, more := r.tree.Terminate(sig, r.polite.to, graceEnd)
	noted := func(step outcome.Step) bool { return step.Name == outcome.StepSignalMembers }
	if reached > 0 && !slices.ContainsFunc(r.report.Cleanup.Steps, noted) {
		r.noteStep(outcome.StepSignalMembers, sig)
	}
	r.polite.next = time.Time{}
	switch {
	case more:
		r.polite.next = now // once the caller was heard
	case !r.polite.readers.IsZero():
		r.polite.to, r.polite.next, r.polite.readers = proctree.ToOthers, r.polite.readers, time.Time{}
	}
}

// noteStep notes a step of the ladder in the report.
func (r *run) noteStep(name outcome.StepName, sig syscall.Signal) {
	began, _ := r.ladder.Begun()
	c := &r.report.Cleanup
	c.Steps = append(c.Steps, outcome.Step{Name: name, Signal: int(sig), After: max(time.Since(began), 0)})
}

// giveUp reports the survivors. The supervisor goes on striking in the background, and takes
// no other invocation.
func (r *run) giveUp() {
	r.phase, r.gaveUp = phaseBackground, true
	if r.tree.StartProgress() == proctree.StartRuledOut {
		r.report.NotExecuted = true
	}
	r.report.Cleanup.Survivors = r.tree.Survivors()
	if r.settings.TempDir != nil {
		r.keepTempDir(errInUse)
	}
	r.sendReport(outcome.CleanupSurvivors, outcome.ProofNone)
}

// cgroupLimit is how long processes in a cgroup may take to end when there is no child left:
// they are where orphans do not come back from. cgroupEvery is how often they are looked at.
const (
	cgroupLimit = 500 * time.Millisecond
	cgroupEvery = 5 * time.Millisecond
)

// treeEmpty ends the processes in the tree's cgroup that cannot be found below us. The tree
// reports again that it is empty, until they have ended or their time is over.
func (r *run) treeEmpty(proof outcome.Proof) {
	r.ladder.Empty()
	r.phase = phaseEmptying
	populated, now := r.tree.StrikeCgroup(), time.Now()
	if r.cgroupUntil.IsZero() {
		r.cgroupUntil = now.Add(cgroupLimit)
	}
	switch {
	case populated && now.Before(r.cgroupUntil):
	case populated, proof == outcome.ProofNone:
		r.clean(outcome.CleanupUnverified, outcome.ProofNone)
	default:
		r.clean(outcome.CleanupEmpty, proof)
	}
}

// clean removes the temporary directory, if nothing is left that may use it. The report
// follows, unless it names survivors and was sent before.
func (r *run) clean(result outcome.CleanupResult, proof outcome.Proof) {
	r.phase, r.result = phaseCleaning, result
	if _, begun := r.ladder.Begun(); begun && result == outcome.CleanupEmpty && !r.gaveUp {
		r.noteStep(outcome.StepEmpty, 0)
	}
	cleaned := func(err error) {
		if err != nil && !r.gaveUp {
			r.keepTempDir(err)
		}
		r.phase = phaseReporting
		if !r.gaveUp {
			r.sendReport(result, proof)
		}
	}
	dir, remove := r.settings.TempDir, r.loop.removeDir
	switch {
	case dir == nil || remove == nil:
		cleaned(nil)
	case result != outcome.CleanupEmpty:
		cleaned(errInUse)
	default:
		r.loop.calls.run(wire.RemoveLimit, func() error { return remove(dir) }, cleaned)
	}
}

// keepTempDir reports that the temporary directory still exists.
func (r *run) keepTempDir(why error) {
	c := &r.report.Cleanup
	c.TempDirs = append(c.TempDirs, keptTempDir(r.settings.TempDir, why))
}

// sendReport completes the report, writes it to the record and sends it.
func (r *run) sendReport(result outcome.CleanupResult, proof outcome.Proof) {
	c := &r.report.Cleanup
	c.Result, c.Proof = result, proof
	tree := r.tree.Summary()
	c.Ended, c.EndedMore = withoutSurvivors(tree.Ended, c.Survivors), tree.EndedMore
	c.Suspects, r.report.Usage = tree.Suspects, tree.Usage
	if began, begun := r.ladder.Begun(); begun {
		c.Elapsed = max(time.Since(began), 0)
	}
	send := func(err error) {
		if err != nil {
			c.JournalError = err.Error()
		}
		r.loop.send(&wire.Message{Done: &r.report})
		r.reportSent = true
	}
	write := r.loop.writeEnd
	if !r.settings.Journal || write == nil {
		send(nil)
		return
	}
	written := r.report // what is written does not change any more
	r.loop.calls.run(wire.WriteLimit, func() error { return write(r.settings.ID, &written) }, send)
}

// withoutSurvivors returns those of list that have ended, as far as is known: survivors have
// been sent signals too. A start time is measured anew in each list.
func withoutSurvivors(list []outcome.Ended, survivors []outcome.Survivor) []outcome.Ended {
	const inaccuracy = 50 * time.Millisecond
	return slices.DeleteFunc(list, func(e outcome.Ended) bool {
		return slices.ContainsFunc(survivors, func(s outcome.Survivor) bool {
			return s.PID == e.PID && s.Start.Sub(e.Start).Abs() < inaccuracy
		})
	})
}
