//go:build linux || darwin

package supervisor

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"curfew/internal/sys"
	"curfew/internal/wire"
	"curfew/outcome"
	"curfew/proctree"
)

// server is a supervisor's main loop.
type server struct {
	loop
	tree      proctree.Tree
	nullFlags FileFlags // of null: each leader can change them
	noFile    int       // our limit of open files when we began: see place
	state     State     // what leaders inherit
	stateOK   bool      // state could be read

	run     *run // nil while idle
	served  int
	unknown bool // it is not known whether reported survivors have ended
	left    bool // processes are left alive by request: no other invocation is taken
	drains  []int
}

// run is one invocation.
type run struct {
	settings wire.Settings
	spec     proctree.Spec
	placed   []int     // which of the leader's descriptors are at their numbers
	deadline time.Time // zero: none
	ladder   proctree.Ladder

	startDone bool
	// leaderHeard: the leader's descriptor was readable, and is not polled again.
	leaderHeard bool
	report      wire.Done
	stopping    bool // the ladder was begun by a stop, not for leftovers
	lingerEnd   time.Time
	lookAgain   time.Time // when to see whether the leftovers still have output to write
	lookWait    time.Duration
	signalAt    time.Time // when to go on with the polite signal; zero: there is no more to do
	signalTo    proctree.Recipients
	fedAt       time.Time // when those that are fed get it too; zero: they are no exception
	groupEnd    time.Time // until when what is left in the cgroup alone may end; zero: there was nothing
	groupAgain  time.Time // when to look at it again
	kill        proctree.KillPhase
	gaveUp      bool // reported, or about to be; going on in the background
	over        bool // the tree is empty
	told        bool // reported
	cleaned     bool // the temporary directory was seen to
	result      outcome.CleanupResult
}

// serve returns the exit code, which is not 0 if the supervisor cannot serve, or does not
// know whether survivors that it has reported have ended.
func serve() (code int) {
	s := &server{loop: newLoop(), noFile: int(noFileLimit())}
	var release func()
	var err error
	if s.state, s.stateOK, release, err = s.start("supervisor", s.open); err != nil {
		return exitRefused
	}
	s.tree.Prepare()
	for s.step() {
	}
	s.tree.Close()
	if len(s.drains) > 0 {
		s.tree.Disown()
		release()
		runtime.GC()
		// On another thread: the time slice of this one is short.
		done := make(chan struct{})
		go func() {
			drain(s.drains)
			close(done)
		}()
		<-done
	}
	if s.unknown {
		return exitUnknown
	}
	return 0
}

// open opens what a supervisor needs of the system.
func (s *server) open() (forking int, err error) {
	eachInherited(unix.CloseOnExec)
	if s.tree, err = openTree(s.interrupted); err != nil {
		return 0, err
	}
	if s.null, err = sys.Open("/dev/null", unix.O_RDWR, 0); err != nil {
		// A root directory without /dev.
		if s.null, err = emptyPipe(); err != nil {
			return 0, err
		}
	}
	s.nullFlags = ReadFileFlags(s.null)
	return s.tree.ForkingThread(), nil
}

// emptyPipe returns what a leader can have as its stdin and find at its end.
func emptyPipe() (int, error) {
	var p [2]int
	if err := unix.Pipe(p[:]); err != nil {
		return -1, os.NewSyscallError("pipe", err)
	}
	unix.CloseOnExec(p[0])
	return p[0], unix.Close(p[1])
}

// exitUnknown is the exit code of a supervisor that does not know whether what it had
// told of as alive has gone.
const exitUnknown = 1

// step waits for the next thing to happen and handles it. It returns false when the
// supervisor has nothing left to do.
func (s *server) step() bool {
	if s.run == nil && s.callerGone && (len(s.drains) > 0 || !s.calls.pending()) {
		return false
	}
	tree, leader := -1, -1
	if r := s.run; r != nil && !r.over {
		tree = s.tree.FD()
		// While killing, an exited leader can stay unreaped for a while.
		if !r.ladder.Killing() && !r.gaveUp && !r.leaderHeard {
			leader = s.tree.LeaderFD()
		}
	}
	s.await(s.wake(), tree, leader)
	if s.polled[pollLeader].Revents != 0 {
		// A leader that is traced has exited and cannot be reaped yet; the
		// tree's descriptor reports when it can.
		s.run.leaderHeard = true
	}
	if s.hear(s.handle, s.handleCut) && s.run != nil {
		s.stop(&wire.StopRequest{Cause: outcome.CauseHostLost})
	}
	if s.run != nil && !s.run.over {
		s.advance()
	}
	s.calls.finish()
	return true
}

// wake is the next moment at which the clock alone makes something due.
func (s *server) wake() time.Time {
	r := s.run
	at := s.calls.next()
	if r == nil && s.callerGone {
		return time.Now().Add(lookEvery) // whether a call is still to be stayed for
	}
	if r == nil || r.over {
		return at
	}
	sooner := func(t time.Time) {
		if !t.IsZero() && (at.IsZero() || t.Before(at)) {
			at = t
		}
	}
	if next, ok := r.ladder.Next(); ok {
		sooner(next)
	}
	if _, begun := r.ladder.Begun(); !begun {
		sooner(r.deadline)
	}
	sooner(r.lookAgain)
	sooner(r.signalAt)
	sooner(r.groupAgain)
	sooner(r.kill.Next())
	if !r.ladder.Killing() && !r.gaveUp {
		sooner(s.tree.Next())
	}
	return at
}

// handleCut refuses a request whose descriptors did not all come through.
func (s *server) handleCut(m *wire.Message) error {
	if m.Run == nil || s.run != nil {
		return wire.ErrFilesCut
	}
	s.refuse(unix.EMFILE)
	return nil
}

func (s *server) handle(m *wire.Message, raw []byte, files []int) error {
	switch {
	case m.Run != nil:
		if s.run != nil || s.callerGone || s.left {
			// The one before can have been the last that we serve: then nobody
			// would stop this one.
			closeAll(files)
			return fmt.Errorf("%w: an invocation where none can begin", wire.ErrProtocol)
		}
		return s.begin(m.Run, raw, files)
	case m.Stop != nil:
		if err := m.Stop.Check(); err != nil {
			return err
		}
		if s.run != nil && !s.run.gaveUp && s.run.settings.ID == m.Stop.ID {
			s.stop(m.Stop)
		}
		return nil
	case m.Signal != nil:
		if m.Signal.Signal < 1 || m.Signal.Signal > 64 {
			return fmt.Errorf("%w: signal %d", wire.ErrProtocol, m.Signal.Signal)
		}
		if s.run != nil && s.run.startDone && !s.run.over && s.run.settings.ID == m.Signal.ID {
			s.tree.Signal(syscall.Signal(m.Signal.Signal))
		}
		return nil
	case m.Drain != nil:
		if s.run != nil || !s.left || m.Drain.Pipes != len(files) {
			closeAll(files)
			return fmt.Errorf("%w: %d pipes where nobody is left that could write to them", wire.ErrProtocol, m.Drain.Pipes)
		}
		s.drains, s.callerGone = files, true
		return nil
	}
	closeAll(files)
	return fmt.Errorf("%w: a message that is not for a supervisor", wire.ErrProtocol)
}

// refuse reports an invocation that cannot be begun.
func (s *server) refuse(errno syscall.Errno) {
	s.send(&wire.Message{StartFailed: &wire.StartFailed{Op: outcome.OpExec, Errno: int(errno)}})
	s.send(&wire.Message{Done: &wire.Done{NotExecuted: true, Cleanup: outcome.Cleanup{Result: outcome.CleanupEmpty, Proof: outcome.ProofNoChildren}}})
	s.makeReady()
}

// begin starts an invocation.
func (s *server) begin(m *wire.Run, raw []byte, files []int) error {
	q, err := m.Request(raw, files)
	if err != nil {
		closeAll(files)
		return err
	}
	r := &run{settings: m.Settings, spec: proctree.Spec{
		Path: q.Path, Argv: q.Args, Env: q.Env, Dir: q.Dir,
		Terminal: m.Terminal, IgnoreHangup: m.IgnoreHangup, IgnoreInterrupt: m.IgnoreInterrupt,
		// What is left alive would keep the group from being removed.
		NoCgroup: m.NoCgroup || m.AfterExit == wire.AfterExitLeave,
		Mark:     wire.Mark(m.ID), MarkPrefix: wire.MarkPrefix,
	}}
	top := 3
	for _, n := range m.Numbers {
		top = max(top, n+1)
	}
	r.spec.Files = make([]int, top)
	for i := range r.spec.Files {
		r.spec.Files[i] = -1
		if i < 3 {
			r.spec.Files[i] = s.null
		}
	}
	for i, n := range m.Numbers {
		r.spec.Files[n] = q.Files[i]
		if n < 3 {
			r.spec.Given = appendName(r.spec.Given, q.Files[i])
		}
	}
	r.ladder.Policy = m.Policy
	if m.Timeout > 0 {
		r.deadline = time.Now().Add(m.Timeout)
	}
	s.run = r
	r.place(s.noFile)
	s.tree.Start(&r.spec)
	return nil
}

// place puts the leader's descriptors from 3 on at their numbers in our own table,
// where the fork finds them, as far as those are free. syscall.ForkExec moves what it
// is given above all of them first, which a low limit of open files (noFile) has no room
// for. A number at the limit or above cannot be made at all: it is inherited from the
// caller, through the guard (see eachInherited).
func (r *run) place(noFile int) {
	files := r.spec.Files
	for n := len(files) - 1; n > 2; n-- {
		fd := files[n]
		if fd < 0 || fd != n && !moveTo(fd, n, noFile) {
			continue
		}
		_, _ = unix.FcntlInt(uintptr(n), unix.F_SETFD, 0)
		files[n] = n
		r.placed = append(r.placed, n)
	}
	for n := len(files) - 1; n > 2 && (files[n] == n || files[n] < 0); n-- {
		files = files[:n]
	}
	r.spec.Files = files
}

// moveTo moves a descriptor to a number, if that is free or, from noFile on, has the
// same file already.
func moveTo(fd, n, noFile int) bool {
	if n < noFile {
		got, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, n)
		if err == nil && got != n {
			unix.Close(got)
		}
		if err != nil || got != n {
			return false
		}
	} else if !sameFile(fd, n) {
		return false
	}
	unix.Close(fd)
	return true
}

func sameFile(a, b int) bool {
	var one, other unix.Stat_t
	return unix.Fstat(a, &one) == nil && unix.Fstat(b, &other) == nil && one.Dev == other.Dev && one.Ino == other.Ino
}

// appendName adds the name of an open file, unless it is /dev/null, which every daemon
// has open.
func appendName(list []string, fd int) []string {
	var st unix.Stat_t
	if unix.Fstat(fd, &st) != nil || st.Mode&unix.S_IFMT == unix.S_IFCHR && uint64(st.Rdev) == nullDevice() {
		return list
	}
	if name := proctree.FileName(fd); name != "" {
		list = append(list, name)
	}
	return list
}

// nullDevice is the number of /dev/null.
var nullDevice = sync.OnceValue(func() uint64 {
	var st unix.Stat_t
	if unix.Stat("/dev/null", &st) != nil || st.Mode&unix.S_IFMT != unix.S_IFCHR {
		return 0
	}
	return uint64(st.Rdev)
})

// closeFiles closes what came with the request. The leader has its own by then.
func (r *run) closeFiles(null, noFile int) {
	if r.spec.Dir >= 0 {
		unix.Close(r.spec.Dir)
		r.spec.Dir = -1
	}
	for i, fd := range r.spec.Files {
		if fd >= 0 && fd != null && (fd != i || i < 3) {
			unix.Close(fd)
		}
		r.spec.Files[i] = -1
	}
	for _, n := range r.placed {
		if n < noFile {
			unix.Close(n)
		} else {
			unix.CloseOnExec(n) // it can be wanted again
		}
	}
	r.placed = nil
}

// stop begins the ladder, or shortens what is left of it.
func (s *server) stop(q *wire.StopRequest) {
	r := s.run
	if r.over {
		// There is nothing to stop any more; the report is on its way.
		s.acknowledge(q.Cause)
		return
	}
	// What the kernel already knows counts: an exit that is there now came
	// before our first action.
	s.collect()
	s.awaitStart()
	if s.run != r || r.gaveUp {
		return
	}
	if r.over {
		s.acknowledge(q.Cause)
		return
	}
	now := time.Now()
	_, begun := r.ladder.Begun()
	if !r.stopping && (!begun || r.settings.AfterExit == wire.AfterExitWait) {
		// After the leader's own exit a stop only hastens the end of the
		// leftovers, unless the caller chose to wait for the whole tree.
		if r.report.Exit == nil || r.settings.AfterExit == wire.AfterExitWait {
			r.report.StopBegan, r.report.StopCause = true, q.Cause
		}
	}
	s.acknowledge(q.Cause)
	if q.Signal != 0 && !begun {
		r.ladder.Policy.Signal = q.Signal
	}
	if r.report.Exit != nil && r.settings.AfterExit == wire.AfterExitLeave {
		r.lingerEnd = now // it is being listed what is left, which is not stopped
		return
	}
	r.lingerEnd, r.lookAgain = time.Time{}, time.Time{}
	switch {
	case q.Kill || !r.startDone:
		// What has not been executed yet has nothing to be polite to.
		s.act(r.ladder.Hasten(now, 0))
	default:
		s.act(r.ladder.Begin(now))
	}
}

// acknowledge answers a stop, once.
func (s *server) acknowledge(cause outcome.Cause) {
	if r := s.run; !r.stopping && !r.told {
		r.stopping = true
		s.send(&wire.Message{Stopping: &wire.Stopping{Cause: cause, CloseStdin: r.settings.Stdin}})
	}
}

// startToldIn bounds the wait for the second thread's word that the leader runs.
// It is half of the time in which a stop must be answered.
const startToldIn = 500 * time.Millisecond

// awaitStart waits for the word that the leader was started, if that is certain
// to come. A leader that runs has a claim to the polite signal, also where its
// first output was faster than that word.
func (s *server) awaitStart() {
	r := s.run
	if r == nil || r.startDone || s.tree.StartProgress() != proctree.StartExecuted {
		return
	}
	for end := time.Now().Add(startToldIn); s.run == r && !r.over && !r.startDone && time.Now().Before(end); s.collect() {
		wait([]unix.PollFd{{Fd: int32(s.tree.FD()), Events: unix.POLLIN}}, end)
	}
}

// advance does what is due.
func (s *server) advance() {
	r := s.run
	s.collect()
	if s.run != r || r.over {
		return
	}
	now := time.Now()
	if _, begun := r.ladder.Begun(); !begun && !r.deadline.IsZero() && !now.Before(r.deadline) {
		if r.report.Exit == nil || r.settings.AfterExit == wire.AfterExitWait {
			s.stop(&wire.StopRequest{Cause: outcome.CauseTimeout})
			if s.run != r || r.over {
				return
			}
		} else {
			r.deadline = time.Time{} // the leader made it; leftovers have their own limits
		}
	}
	if !r.lookAgain.IsZero() && !now.Before(r.lookAgain) {
		s.lookAgain(now)
		if s.run != r || r.over {
			return
		}
	}
	s.act(r.ladder.Step(now))
	if !r.signalAt.IsZero() && !now.Before(r.signalAt) {
		s.signalMembers(now)
	}
	if s.run == r && !r.over && (r.ladder.Killing() || r.gaveUp) {
		s.kill(now)
	}
}

// collect takes the tree's news.
func (s *server) collect() {
	r := s.run
	killing := r.ladder.Killing() || r.gaveUp
	ev := s.tree.Collect(killing)
	s.news(ev)
}

// news handles what was seen of the tree.
func (s *server) news(ev proctree.Event) {
	r := s.run
	say := func(m *wire.Message) {
		if !r.gaveUp { // the report has been the last word
			s.send(m)
		}
	}
	if ev.StartDone {
		r.startDone = true
		r.closeFiles(s.null, s.noFile)
		if ev.StartErr != nil {
			var errno syscall.Errno
			errors.As(ev.StartErr, &errno)
			if errno == syscall.EBADF {
				errno = syscall.EMFILE // a number that our limit does not allow; execve has no such error
			}
			r.report.NotExecuted = true
			say(&wire.Message{StartFailed: &wire.StartFailed{Op: ev.StartErr.Op, Errno: int(errno), Killed: ev.StartErr.Killed}})
		} else {
			r.report.Started = true
			say(&wire.Message{Started: &wire.Started{PID: ev.PID, At: time.Now()}})
		}
	}
	if ev.Exit != nil {
		_, begun := r.ladder.Begun()
		ev.Exit.AfterStop = begun
		r.report.Exit = ev.Exit
		r.ladder.LeaderGone()
		say(&wire.Message{Exited: ev.Exit})
		if !begun && !ev.Empty {
			s.leftovers()
		}
	}
	if ev.Empty {
		r.ladder.Empty()
		group, now := s.tree.StrikeCgroup(), time.Now()
		if r.groupEnd.IsZero() {
			r.groupEnd = now.Add(groupLimit)
		}
		if group && now.Before(r.groupEnd) {
			r.groupAgain = now.Add(groupEvery)
			return // and the tree says it again
		}
		if group || ev.Proof == outcome.ProofNone {
			s.finish(outcome.CleanupUnverified, outcome.ProofNone)
		} else {
			s.finish(outcome.CleanupEmpty, ev.Proof)
		}
	}
}

// groupLimit is how long what is in the cgroup may take to end when there is no
// child left: it is somewhere that orphans do not come back from.
const groupLimit = 500 * time.Millisecond

// groupEvery is how often it is looked at meanwhile.
const groupEvery = 5 * time.Millisecond

// leftovers decides what becomes of them, now that the leader exited by itself.
func (s *server) leftovers() {
	r := s.run
	now := time.Now()
	switch r.settings.AfterExit {
	case wire.AfterExitLeave:
		r.lingerEnd = now.Add(leaveLimit)
		s.leave(now)
	case wire.AfterExitTerminate:
		r.lingerEnd, r.lookWait = now.Add(r.settings.Linger), 2*time.Millisecond
		s.linger(now)
	}
}

// lookAgain takes another look at the leftovers.
func (s *server) lookAgain(now time.Time) {
	if s.run.settings.AfterExit == wire.AfterExitLeave {
		s.leave(now)
	} else {
		s.linger(now)
	}
}

// linger lets leftovers finish that may have output to write; any other gets the
// ladder. To look takes a quarter of the time at most.
func (s *server) linger(now time.Time) {
	r := s.run
	if now.Before(r.lingerEnd) && s.tree.Holds(r.lingerEnd) {
		done := time.Now()
		r.lookAgain = done.Add(max(r.lookWait, 3*done.Sub(now)))
		if r.lookAgain.After(r.lingerEnd) {
			r.lookAgain = r.lingerEnd
		}
		r.lookWait = min(2*r.lookWait, 50*time.Millisecond)
		return
	}
	r.lookAgain = time.Time{}
	s.act(r.ladder.Begin(now))
}

// leaveLimit is how long the list of what is left may take.
const leaveLimit = 200 * time.Millisecond

// leave reports what is alive and lets go of it. The helper ends when its caller
// hangs up, so that the tree falls to whoever adopts orphans here; with pipes to
// drain, when nobody has them open any more.
func (s *server) leave(now time.Time) {
	r := s.run
	left, more := s.tree.Members(1024)
	if more && now.Before(r.lingerEnd) {
		r.lookAgain = now // when the caller was heard
		return
	}
	r.lookAgain = time.Time{}
	for _, m := range left {
		r.report.Cleanup.LeftAlive = append(r.report.Cleanup.LeftAlive, m.Describe())
	}
	s.finish(outcome.CleanupLeft, outcome.ProofNone)
}

// drain reads what is written to the pipes, until nobody can write to them any more.
func drain(pipes []int) {
	fds := make([]unix.PollFd, len(pipes))
	for i, fd := range pipes {
		fds[i] = unix.PollFd{Fd: int32(fd), Events: unix.POLLIN}
		_ = unix.SetNonblock(fd, true) // it is a pipe: this cannot fail
	}
	var buf [64 << 10]byte
	for open := len(fds); open > 0; {
		wait(fds, time.Time{})
		for i := range fds {
			if fds[i].Fd < 0 || fds[i].Revents == 0 {
				continue
			}
			n, err := unix.Read(int(fds[i].Fd), buf[:])
			if n <= 0 && err != unix.EAGAIN && err != unix.EINTR {
				fds[i].Fd = -1
				open--
			}
		}
	}
}

// act carries out what the ladder asks for.
func (s *server) act(actions []proctree.Action) {
	r := s.run
	sig := syscall.Signal(r.ladder.Policy.Signal)
	now := time.Now()
	for _, a := range actions {
		switch a {
		case proctree.CloseStdin:
			s.rung(outcome.StepCloseStdin, 0)
		case proctree.SignalLeader:
			s.rung(outcome.StepSignalLeader, int(sig))
			s.tree.Terminate(sig, proctree.ToLeader, time.Time{})
		case proctree.SignalMembers:
			r.signalTo = proctree.ToOthers
			if !r.stopping && r.ladder.Policy.Audience == proctree.LeaderFirst {
				// Of leftovers, what reads from others has something to read until
				// those have ended.
				r.signalTo, r.fedAt = proctree.ToFeeders, now.Add(r.ladder.Policy.Grace/3)
			}
			s.signalMembers(now)
		case proctree.Kill:
			s.rung(outcome.StepKill, int(syscall.SIGKILL))
			r.kill = proctree.KillPhase{Interrupted: s.interrupted}
		case proctree.GiveUp:
			s.rung(outcome.StepGiveUp, 0)
			s.giveUp()
		}
	}
}

// signalMembers sends the polite signal to members that have not had it.
func (s *server) signalMembers(now time.Time) {
	r := s.run
	r.signalAt = time.Time{}
	if r.ladder.Killing() || r.gaveUp {
		return
	}
	until, _ := r.ladder.Next() // the end of the grace
	reached, more := s.tree.Terminate(syscall.Signal(r.ladder.Policy.Signal), r.signalTo, until)
	if reached > 0 && !slices.ContainsFunc(r.report.Cleanup.Steps, func(step outcome.Step) bool { return step.Name == outcome.StepSignalMembers }) {
		s.rung(outcome.StepSignalMembers, r.ladder.Policy.Signal)
	}
	switch {
	case more:
		r.signalAt = now // when the caller was heard
	case !r.fedAt.IsZero():
		r.signalTo, r.signalAt, r.fedAt = proctree.ToOthers, r.fedAt, time.Time{}
	}
}

// rung notes a step of the ladder.
func (s *server) rung(name outcome.StepName, sig int) {
	began, _ := s.run.ladder.Begun()
	c := &s.run.report.Cleanup
	c.Steps = append(c.Steps, outcome.Step{Name: name, Signal: sig, After: max(time.Since(began), 0)})
}

// kill strikes what is left, until it is time for something else.
func (s *server) kill(now time.Time) {
	r := s.run
	pace := proctree.Quickly
	if r.gaveUp {
		pace = proctree.Slowly
	}
	s.news(r.kill.Step(s.tree, now, pace))
}

// interrupted reports whether the ladder or the caller wants a turn.
func (s *server) interrupted() bool {
	if r := s.run; r != nil {
		if next, ok := r.ladder.Next(); ok && !time.Now().Before(next) {
			return true
		}
	}
	return s.callerWaits()
}

// giveUp reports the survivors. The helper keeps trying in the background and
// takes no other invocation.
func (s *server) giveUp() {
	r := s.run
	r.gaveUp = true
	if !r.startDone {
		r.report.NotExecuted = s.tree.StartProgress() == proctree.StartRuledOut
	}
	c := &r.report.Cleanup
	c.Survivors = s.tree.Survivors()
	if r.settings.TempDir != nil {
		c.TempDirs = append(c.TempDirs, keptTempDir(r.settings.TempDir, errInUse))
	}
	s.tell(outcome.CleanupSurvivors, outcome.ProofNone)
}

// finish ends the invocation, of which nothing is left or is to be waited for:
// its temporary directory is removed, and it is reported, unless it was.
func (s *server) finish(result outcome.CleanupResult, proof outcome.Proof) {
	r := s.run
	r.over, r.result = true, result
	s.unknown = s.unknown || r.gaveUp && result != outcome.CleanupEmpty
	if _, begun := r.ladder.Begun(); begun && result == outcome.CleanupEmpty && !r.gaveUp {
		s.rung(outcome.StepEmpty, 0)
	}
	report := func() {
		r.cleaned = true
		if r.gaveUp {
			s.close()
		} else {
			s.tell(result, proof)
		}
	}
	dir := r.settings.TempDir
	if dir == nil || s.removeDir == nil {
		report()
		return
	}
	kept := func(why error) {
		c := &r.report.Cleanup
		c.TempDirs = append(c.TempDirs, keptTempDir(dir, why))
	}
	if result != outcome.CleanupEmpty {
		kept(errInUse)
		report()
		return
	}
	s.calls.run(wire.RemoveLimit, func() error { return s.removeDir(dir) }, func(err error) {
		if err != nil {
			kept(err)
		}
		report()
	})
}

// tell writes the end of the invocation down and sends the report.
func (s *server) tell(result outcome.CleanupResult, proof outcome.Proof) {
	r := s.run
	c := &r.report.Cleanup
	c.Result, c.Proof = result, proof
	tree := s.tree.Summary()
	c.Ended, c.EndedMore = withoutSurvivors(tree.Ended, c.Survivors), tree.EndedMore
	c.Suspects, r.report.Usage = tree.Suspects, tree.Usage
	if began, begun := r.ladder.Begun(); begun {
		c.Elapsed = max(time.Since(began), 0)
	}
	send := func() {
		s.send(&wire.Message{Done: &r.report})
		r.told = true
		s.close()
	}
	if !r.settings.Journal || s.writeEnd == nil {
		send()
		return
	}
	written := r.report // what is written is not changed any more
	s.calls.run(wire.WriteLimit, func() error { return s.writeEnd(r.settings.ID, &written) }, func(err error) {
		if err != nil {
			c.JournalError = err.Error()
		}
		send()
	})
}

// withoutSurvivors returns those of list that have ended, as far as is known: survivors
// have been sent signals too. A start time is measured anew in each list.
func withoutSurvivors(list []outcome.Ended, survivors []outcome.Survivor) []outcome.Ended {
	const inaccuracy = 50 * time.Millisecond
	return slices.DeleteFunc(list, func(e outcome.Ended) bool {
		return slices.ContainsFunc(survivors, func(s outcome.Survivor) bool {
			return s.PID == e.PID && s.Start.Sub(e.Start).Abs() < inaccuracy
		})
	})
}

// close takes leave of an invocation, when all is done.
func (s *server) close() {
	r := s.run
	if !r.over || !r.told || !r.cleaned {
		return
	}
	r.closeFiles(s.null, s.noFile)
	s.run = nil
	switch {
	case r.result == outcome.CleanupLeft && !r.gaveUp:
		s.left = true // and the caller may have pipes for us
	case r.gaveUp || r.result != outcome.CleanupEmpty || s.calls.pending():
		s.callerGone = true
	case !s.callerGone:
		s.makeReady()
	}
}

// collectEvery is how many invocations share one run of the collector, which is
// off otherwise.
const collectEvery = 64

// makeReady prepares for the next invocation, while nobody waits for us. A CLI
// can renice its supervisor, or change its limits; then this one has served.
func (s *server) makeReady() {
	s.nullFlags.Restore(s.null)
	if s.served++; s.served%collectEvery == 0 {
		runtime.GC()
	}
	now, err := readState(s.tree.ForkingThread())
	if !s.stateOK || err != nil || now != s.state {
		s.callerGone = true
		return
	}
	if !s.tree.Prepare() {
		s.callerGone = true
		return
	}
	s.send(&wire.Message{Ready: &struct{}{}})
}
