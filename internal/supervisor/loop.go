//go:build linux || darwin

package supervisor

import (
	"errors"
	"time"

	"golang.org/x/sys/unix"

	"curfew/internal/sys"
	"curfew/internal/wire"
)

// loop is what the main loops of a supervisor and of a guard have in common. It is one
// thread that waits for its caller, for its processes, for its calls and for the clock, and
// for nothing else: what can block in the kernel because of the CLI is done by the tree's
// second thread, and what can block because of a file system by a call.
type loop struct {
	conn    *wire.Conn
	control int // the socket of conn
	caller  int // readable when the caller has ended; -1: only the socket can tell
	null    int // a descriptor that gives nothing: /dev/null or a substitute
	polled  [polls]unix.PollFd

	callerGone bool // the caller has ended, has closed its end, or is not served any more
	hangUp     bool // a message could not be sent whole, so that no other can be sent

	calls calls
	// removeDir and writeEnd can hang: they are for calls. Nil: it is not done at all.
	removeDir func(*wire.TempDir) error
	writeEnd  func(id string, report *wire.Done) error
}

// The descriptors that await polls, by their index in loop.polled.
const (
	pollTree = iota
	pollLeader
	pollCalls
	pollControl
	pollCaller
	polls
)

func newLoop() loop {
	return loop{conn: wire.NewHelperConn(wire.ControlFD), control: wire.ControlFD, caller: watchCaller(), removeDir: removeTempDir}
}

// start makes this process a helper of the given role and greets the caller. openTree opens
// what the helper needs besides, and returns the thread that forks. The returned state is
// what leaders inherit; known is false if it cannot be read. release gives up the hold on the
// caller's journal. If start returns an error, the caller has been informed.
func (l *loop) start(role string, openTree func() (forking int, err error)) (state State, known bool, release func(), err error) {
	err = prepareHelper()
	dir := ""
	if err == nil {
		dir, release, err = holdState()
	}
	l.writeEnd = func(id string, report *wire.Done) error { return writeEnd(dir, role, id, report) }
	forking := 0
	if err == nil {
		forking, err = openTree()
	}
	if err != nil {
		l.send(wire.Refusal(err))
		return state, false, nil, err
	}
	state, err = readState(forking)
	known = err == nil
	if hello(l.conn, state, known) != nil {
		l.stopSending()
	}
	shortenSlice(forking, &state)
	return state, known, release, nil
}

// hello sends a helper's first message. With it goes a pidfd of the helper, so that the
// caller can end exactly this process.
func hello(conn *wire.Conn, state State, known bool) error {
	giveUpStderr() // the caller reads no more of it
	m := &wire.Message{Hello: &wire.Hello{Version: wire.Version, PID: unix.Getpid(), State: state, StateKnown: known}}
	var files []int
	if fd, err := ownPidfd(); err == nil {
		defer unix.Close(fd)
		m.Hello.Pidfd, files = true, []int{fd}
	}
	return conn.Send(m, files...)
}

// pollable returns fd, or -1 if fd stands for a pidfd that could not be had: /dev/null or
// a directory, which poll always reports as ready.
func pollable(fd int) int {
	var st unix.Stat_t
	if unix.Fstat(fd, &st) != nil || st.Mode&unix.S_IFMT == unix.S_IFCHR || st.Mode&unix.S_IFMT == unix.S_IFDIR {
		return -1
	}
	return fd
}

// await waits until tree or leader is readable (-1: neither is polled), until a call has
// returned, until the caller sends something or ends, or until the given time; zero means no
// limit. A descriptor is polled only while the step that follows also reads it: one that
// stays readable would make an idle loop spin.
func (l *loop) await(until time.Time, tree, leader int) {
	control, caller := l.control, l.caller
	if l.callerGone {
		control, caller = -1, -1
	}
	for i, fd := range [polls]int{pollTree: tree, pollLeader: leader, pollCalls: l.calls.pollFD(), pollControl: control, pollCaller: caller} {
		l.polled[i] = unix.PollFd{Fd: int32(fd), Events: unix.POLLIN} // poll skips -1
	}
	wait(l.polled[:], until)
}

// wait polls until a descriptor is ready or the time has come; the zero time never comes.
func wait(fds []unix.PollFd, until time.Time) {
	if sys.Poll(fds, until) == nil {
		return
	}
	// The kernel is short of memory. The loop must neither become deaf nor spin: it acts as if
	// each descriptor were ready.
	for i := range fds {
		if fds[i].Fd >= 0 {
			fds[i].Revents = unix.POLLERR
		}
	}
	sys.Pause(10 * time.Millisecond)
}

// earlier returns the earlier of two times, of which zero means never.
func earlier(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}

// handleMessage handles a message, its raw part, and the descriptors that came with it,
// which it owns. handleCut handles a message whose descriptors did not all come through.
type (
	handleMessage func(m *wire.Message, raw []byte, files []int) error
	handleCut     func(m *wire.Message) error
)

// hear handles what the caller has sent since await. It reports whether the caller is gone,
// and sets callerGone.
func (l *loop) hear(handle handleMessage, cut handleCut) (gone bool) {
	if l.callerGone {
		return false
	}
	// The caller's pidfd counts too: a forked copy of the caller can keep the socket open.
	ended := l.polled[pollCaller].Revents&unix.POLLIN != 0 || l.hangUp
	if l.polled[pollControl].Revents != 0 && !l.receive(handle, cut) || ended {
		l.callerGone = true
	}
	return l.callerGone
}

// receive reads from the socket and handles each message. It returns false if the caller has
// closed its end, or has sent what cannot be served; then the caller is informed.
func (l *loop) receive(handle handleMessage, cut handleCut) bool {
	err := l.conn.Fill()
	switch {
	case err == wire.ErrEmpty:
		return true
	case err != nil && !errors.Is(err, wire.ErrProtocol):
		return false
	}
	for err == nil {
		var m *wire.Message
		var raw []byte
		var files []int
		m, raw, files, err = l.conn.Next()
		switch {
		case err == wire.ErrFilesCut:
			err = cut(m)
		case err != nil:
		case m == nil:
			return true
		default:
			err = handle(m, raw, files)
		}
	}
	_ = l.conn.Send(wire.Refusal(err)) // the last message: the helper hangs up next
	return false
}

// callerWaits reports whether the caller has sent something, or has ended, and the loop
// does not know it yet.
func (l *loop) callerWaits() bool {
	if l.callerGone {
		return false
	}
	fds := [2]unix.PollFd{{Fd: int32(l.control), Events: unix.POLLIN}, {Fd: int32(l.caller), Events: unix.POLLIN}}
	n, _ := unix.Poll(fds[:], 0)
	return n > 0
}

// send sends m to the caller. A caller that stops reading is treated as gone.
func (l *loop) send(m *wire.Message) {
	if !l.callerGone && !l.hangUp && l.conn.Send(m) != nil {
		l.stopSending()
	}
}

// stopSending makes the next step find the caller gone.
func (l *loop) stopSending() {
	l.hangUp = true
	_ = unix.Shutdown(l.control, unix.SHUT_RDWR) // so that the next await returns at once
}

func closeAll(fds []int) {
	for _, fd := range fds {
		unix.Close(fd)
	}
}
