//go:build linux || darwin

package supervisor

import (
	"fmt"
	"os"
	"runtime"
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
	noFile    int       // our limit of open files at the start: see leaderFiles.place
	state     State     // what leaders inherit
	stateOK   bool      // state could be read

	run      *run  // nil while idle
	served   int   // how many invocations
	unknown  bool  // it is not known whether reported survivors have ended
	treeLeft bool  // processes are left alive by request: no other invocation is taken
	drains   []int // pipes to read to their end, as the last thing
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

// emptyPipe returns a pipe that is at its end, as a stdin for leaders.
func emptyPipe() (int, error) {
	var p [2]int
	if err := unix.Pipe(p[:]); err != nil {
		return -1, os.NewSyscallError("pipe", err)
	}
	unix.CloseOnExec(p[0])
	return p[0], unix.Close(p[1])
}

// exitUnknown is the exit code of a helper that does not know whether all that it had to end
// has ended.
const exitUnknown = 1

// step waits for the next thing to happen and handles it. It returns false when the
// supervisor has nothing left to do.
func (s *server) step() bool {
	if s.run == nil && s.callerGone && (len(s.drains) > 0 || !s.calls.pending()) {
		return false
	}
	tree, leader := -1, -1
	if s.run != nil {
		tree, leader = s.run.descriptors()
	}
	s.await(s.next(), tree, leader)
	if s.polled[pollLeader].Revents != 0 {
		// A leader that is traced has exited and cannot be reaped yet; the tree's
		// descriptor reports when it can.
		s.run.leaderReadable = true
	}
	gone := s.hear(s.handle, s.handleCut)
	if s.run != nil {
		if gone {
			s.run.stop(&wire.StopRequest{Cause: outcome.CauseHostLost})
		}
		s.run.step()
	}
	s.calls.finish()
	if s.run != nil && s.run.ended() {
		s.endRun()
	}
	return true
}

// next is when the clock alone makes something due; zero if never.
func (s *server) next() time.Time {
	at := s.calls.next()
	switch {
	case s.run != nil:
		return earlier(at, s.run.next())
	case s.callerGone:
		return earlier(at, time.Now().Add(lookEvery)) // until no call is worth staying for
	}
	return at
}

// interrupted reports whether the run or the caller wants a turn.
func (s *server) interrupted() bool {
	if s.run != nil {
		return s.run.interrupted()
	}
	return s.callerWaits()
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
		return s.begin(m.Run, raw, files)
	case m.Stop != nil:
		if err := m.Stop.Check(); err != nil {
			return err
		}
		if r := s.runOf(m.Stop.ID); r != nil {
			r.stop(m.Stop)
		}
		return nil
	case m.Signal != nil:
		if m.Signal.Signal < 1 || m.Signal.Signal > 64 {
			return fmt.Errorf("%w: signal %d", wire.ErrProtocol, m.Signal.Signal)
		}
		if r := s.runOf(m.Signal.ID); r != nil {
			r.signal(syscall.Signal(m.Signal.Signal))
		}
		return nil
	case m.Drain != nil:
		if s.run != nil || !s.treeLeft || m.Drain.Pipes != len(files) {
			closeAll(files)
			return fmt.Errorf("%w: %d pipes where no process is left that could write to them", wire.ErrProtocol, m.Drain.Pipes)
		}
		s.drains, s.callerGone = files, true
		return nil
	}
	closeAll(files)
	return fmt.Errorf("%w: a message that is not for a supervisor", wire.ErrProtocol)
}

// runOf returns the run of an invocation; nil if it has ended or never began here. A message
// that comes late must not reach the next one.
func (s *server) runOf(id string) *run {
	if s.run == nil || s.run.settings.ID != id {
		return nil
	}
	return s.run
}

// refuse reports an invocation that cannot begin.
func (s *server) refuse(errno syscall.Errno) {
	s.send(&wire.Message{StartFailed: &wire.StartFailed{Op: outcome.OpExec, Errno: int(errno)}})
	s.send(&wire.Message{Done: &wire.Done{NotExecuted: true, Cleanup: outcome.Cleanup{Result: outcome.CleanupEmpty, Proof: outcome.ProofNoChildren}}})
	s.makeReady()
}

// begin starts an invocation.
func (s *server) begin(m *wire.Run, raw []byte, files []int) error {
	if s.run != nil || s.callerGone || s.treeLeft {
		// The invocation before may have been our last one: then nothing would stop this
		// one.
		closeAll(files)
		return fmt.Errorf("%w: an invocation where none can begin", wire.ErrProtocol)
	}
	q, err := m.Request(raw, files)
	if err != nil {
		closeAll(files)
		return err
	}
	s.run = newRun(&s.loop, s.tree, m, q, s.noFile)
	return nil
}

// endRun drops a run that has ended, and decides whether another may begin.
func (s *server) endRun() {
	r := s.run
	s.run = nil
	r.files.close()
	switch {
	case r.result == outcome.CleanupLeft:
		s.treeLeft = true // the caller may have pipes for us to drain
	case r.gaveUp || r.result != outcome.CleanupEmpty || s.calls.pending():
		s.unknown = r.gaveUp && r.result != outcome.CleanupEmpty
		s.callerGone = true
	case !s.callerGone:
		s.makeReady()
	}
}

// collectEvery is how many invocations share one run of the garbage collector, which is off
// otherwise.
const collectEvery = 64

// makeReady prepares for the next invocation, while nobody waits for us. A CLI can renice its
// supervisor, or change its limits; such a supervisor takes no other invocation.
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

// drain reads what is written to the pipes, until no process can write to them any more.
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
