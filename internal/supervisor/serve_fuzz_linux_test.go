package supervisor

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"curfew/internal/wire"
	"curfew/outcome"
	"curfew/proctree"
)

// These tests run the main loops of supervisor and guard in this process, and send them what a
// hostile caller could send. The tree that the loops hold starts nothing: it checks the calls
// that it gets.

// stubTree is a proctree.Tree and a proctree.SiblingTree. It reports a call as an error where
// a real tree would panic, or do worse.
type stubTree struct {
	t    *testing.T
	news int // event descriptor
	gone func() bool

	manner stubManner
	late   bool
	ends   atomic.Bool // everything ends now, whatever the manner

	spec     *proctree.Spec
	starting bool
	leader   bool
	told     bool // the leader's exit was reported
	exited   bool // the leader has exited
	died     bool // nothing is left
	started  int
	next     int // the pid of the next sibling
	siblings map[int]bool
	orphans  int
}

type stubManner byte

const (
	polite    stubManner = iota // ends when it is asked to
	deaf                        // ends when it is killed
	undying                     // does not end
	brief                       // has ended by the time it is looked at
	notThere                    // cannot be executed
	survivors                   // the leader ends when it is asked to, and the rest when killed
	daemon                      // the leader ends at a signal, and the rest when killed
	manners
	// late: the helper reads nothing before everything is sent.
	late stubManner = 128
)

func newStubTree(t *testing.T, m stubManner) *stubTree {
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		t.Fatal(err)
	}
	return &stubTree{t: t, news: fd, manner: m &^ late % manners, late: m&late != 0, next: 1000, siblings: map[int]bool{}}
}

func (s *stubTree) wake() { _, _ = unix.Write(s.news, []byte{1, 0, 0, 0, 0, 0, 0, 0}) }

func (s *stubTree) FD() int              { return s.news }
func (s *stubTree) LeaderFD() int        { return -1 }
func (s *stubTree) ForkingThread() int   { return 0 }
func (s *stubTree) Holds(time.Time) bool { return len(s.spec.Given) > 0 && s.manner == deaf }
func (s *stubTree) Forget()              {}
func (s *stubTree) Disown()              {}
func (s *stubTree) ResumeSibling(int)    {}

func (s *stubTree) StartProgress() proctree.StartProgress {
	switch {
	case !s.starting:
		return proctree.StartPending
	case s.manner == notThere:
		return proctree.StartRuledOut
	}
	return proctree.StartExecuted
}

func (s *stubTree) Start(spec *proctree.Spec) {
	s.started++
	switch {
	case s.gone():
		s.t.Error("started although the caller is gone")
	case s.starting || !spec.Sibling && s.started > 1 && !s.died:
		s.t.Error("started beside another")
	case len(spec.Argv) == 0:
		s.t.Error("started without argv[0]")
	case len(spec.Files) < 3 || len(spec.Files) > wire.MaxFileNumber:
		s.t.Errorf("started with %d descriptor numbers", len(spec.Files))
	}
	for i, fd := range append([]int{spec.Dir}, spec.Files...) {
		if fd == -1 && i > 0 {
			continue
		}
		if _, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0); err != nil {
			s.t.Errorf("descriptor %d of a start is %d, which is not open", i, fd)
		}
	}
	if spec.Sibling && (len(spec.Files) != 5 || !isSocket(spec.Files[wire.ControlFD])) {
		s.t.Error("a sibling is started without a socket")
	}
	s.spec, s.starting = spec, true
	if !spec.Sibling {
		s.leader, s.told, s.exited, s.died = false, false, false, false
	}
	s.wake()
}

func (s *stubTree) Collect(killing bool) (ev proctree.Event) {
	var b [8]byte
	_, _ = unix.Read(s.news, b[:])
	if s.starting {
		s.starting, ev.StartDone = false, true
		switch {
		case s.manner == notThere:
			ev.StartErr = &proctree.StartError{Op: "exec", Err: syscall.ENOENT}
			s.exited, s.told, s.died = true, true, true
		case s.spec.Sibling:
			s.next++
			s.siblings[s.next], ev.PID = true, s.next
		default:
			s.leader, ev.PID = true, 4711
			s.exited = s.manner == brief
			s.died = s.exited
		}
	}
	if !killing {
		s.reap(&ev)
	}
	return ev
}

func (s *stubTree) reap(ev *proctree.Event) (n int) {
	if s.ends.Load() {
		s.exited, s.died, s.orphans = true, true, 0
		for pid := range s.siblings {
			delete(s.siblings, pid)
			ev.Siblings = append(ev.Siblings, pid)
			n++
		}
	}
	if s.exited && !s.told && s.leader {
		s.told, s.leader, n = true, false, n+1
		ev.Exit = &outcome.Exit{}
	}
	if ev.Empty = s.died && len(s.siblings) == 0 && s.orphans == 0; ev.Empty {
		ev.Proof = outcome.ProofNoChildren
	}
	return n
}

func (s *stubTree) Reap() (ev proctree.Event) {
	if !s.starting {
		ev.Died = s.reap(&ev)
	}
	return ev
}

func (s *stubTree) valid(sig syscall.Signal) {
	if sig < 1 || sig > 64 {
		s.t.Errorf("%d is sent, which is not a signal", sig)
	}
}

func (s *stubTree) Signal(sig syscall.Signal) {
	s.valid(sig)
	s.exited = s.exited || s.manner == daemon // which the next Collect reports
}

func (s *stubTree) Terminate(sig syscall.Signal, to proctree.Recipients, _ time.Time) (int, bool) {
	s.valid(sig)
	if s.manner == polite || s.manner == survivors && to == proctree.ToLeader {
		s.exited, s.died = true, s.manner == polite
		s.wake()
	}
	return 1, false
}

func (s *stubTree) Strike(bool) (struck proctree.Struck) {
	if s.manner != undying && !s.died && !s.starting {
		s.exited, s.died, struck.Fresh = true, true, 1
	}
	struck.Fresh += s.orphans
	s.orphans = 0
	return struck
}

func (s *stubTree) Members(limit int) ([]proctree.Member, bool) {
	return []proctree.Member{{PID: 4712, Parent: 4711, Name: "stub", State: 'S'}}, false
}

func (s *stubTree) Survivors() []outcome.Survivor {
	return []outcome.Survivor{{Process: outcome.Process{PID: 4712}, State: "D", Reason: "it is a stub"}}
}

func (s *stubTree) Summary() proctree.Summary {
	return proctree.Summary{Ended: []outcome.Ended{{Process: outcome.Process{PID: 4712}, LastSignal: 9}}}
}

func (s *stubTree) OnlySiblings() bool { return !s.starting && s.orphans == 0 }
func (s *stubTree) SuspendedSiblings() (list []int) {
	for pid := range s.siblings {
		list = append(list, pid)
	}
	return list
}
func (s *stubTree) Prepare() bool                               { return true }
func (s *stubTree) Close()                                      {}
func (s *stubTree) StrikeCgroup() bool                          { return false }
func (s *stubTree) EndCgroup(string) (rest proctree.CgroupRest) { return rest }
func (s *stubTree) SiblingDied(int) bool                        { return false }
func (s *stubTree) Next() time.Time                             { return time.Time{} }

func (s *stubTree) EndSibling(pid int) {
	if !s.siblings[pid] {
		s.t.Errorf("%d is ended, which is not a sibling", pid)
	}
}

// script is the input of a fuzz target, read as what a caller does: one byte is the action, the
// next ones are its details.
type script struct {
	b []byte
}

func (s *script) byte() byte {
	if len(s.b) == 0 {
		return 0
	}
	c := s.b[0]
	s.b = s.b[1:]
	return c
}

func (s *script) take(n int) []byte {
	n = min(n, len(s.b))
	b := s.b[:n]
	s.b = s.b[n:]
	return b
}

func pick[T any](s *script, from []T) T { return from[int(s.byte())%len(from)] }

// Values for the fields of a message, valid and invalid ones.
var (
	oddDurations = []time.Duration{0, time.Millisecond, 1, -1, time.Hour, math.MaxInt64, math.MinInt64, math.MaxInt64 / 2}
	oddSignals   = []int{15, 9, 0, -1, 1, 64, 65, 128 + 15, 1e9, math.MinInt32, math.MaxInt64}
	oddCounts    = []int{0, 1, 2, 3, -1, 1 << 20, 1<<20 + 1, math.MaxInt64, math.MinInt64, 1 << 31}
	oddNumbers   = []int{0, 1, 2, 3, 9, 63, -1, wire.MaxFileNumber - 1, wire.MaxFileNumber, math.MaxInt32, math.MaxInt64, math.MinInt64}
	oddIDs       = []string{"test", "", "other", "\xff", strings.Repeat("x", 4096)}
	oddCauses    = []outcome.Cause{outcome.CauseCanceled, "", outcome.CauseTimeout, "no such", "<\x00\xff>", outcome.Cause(strings.Repeat("<", wire.MaxJSON/8))}
	// None of these exists, since a real helper would remove it.
	oddSupervisors = []string{"s1", "s2", "s3", "", "s77", "../s1"}
	oddDirs        = []*wire.TempDir{{Path: []byte("/no such directory/curfew-x"), Ino: 1}, {}, {Path: []byte("curfew-x"), Ino: 1}, {Path: []byte("/no such directory/x"), Ino: 1}}
	oddWords       = []int{0, 1, 2, 3, -1, math.MaxInt64}
	oddJSON        = []string{
		"{}", "null", "[]", `{"run":{}}`, `{"run":null}`, `{"stop":{}}`, `{"stop":[]}`, `{"stop":{"signal":-1}}`, `{"stop":{"signal":1e2}}`,
		`{"stop":{"id":"test","cause":7}}`, `{"run":{"numbers":{"0":1}}}`, `{"run":{"numbers":[1e400]}}`, `{"run":{"args":99999999999999999999}}`,
		`{"stop":{"id":"test"},"stop":{"id":"test","kill":true}}`, `{"STOP":{"ID":"test"}}`, `{"stop":{"id":"test"}}{"stop":{"id":"test"}}`,
		`{"spawn":[]}`, `{"lost":{"pid":"1"}}`, `{"signal":{"signal":15}}`, `{"signal":{"id":"test","signal":1000000000}}`, `{"hello":{"pidfd":true}}`,
		`{"run":{"args":` + strings.Repeat("1", 70000) + `}}`, strings.Repeat("[", 20000), `"` + strings.Repeat("x", 70000), "\xef\xbb\xbf{}", "\x00\x00",
	}
	oddSizes = []uint32{0, 1, 7, 255, 65536, wire.MaxJSON, wire.MaxJSON + 1, wire.MaxRaw, wire.MaxRaw + 1, 1 << 31, math.MaxUint32}
)

// The actions of a script.
const (
	doRaw  byte = iota // n, then n bytes as they are
	doRun              // a run message
	doStop             // a stop message
	doSignal
	doOther // a message of another kind
	doJSON  // a frame with a wrong JSON part
	doHead  // the sizes of a frame alone
	doSpawn
	doLost
	doWatch
	doFiles  // n: descriptors with what comes next
	doLinger // the loop reads what was sent before more is sent
	doEnd    // what was started ends
	doFlood  // many of the last frame
	does
)

// hostile is a caller that acts by a script.
type hostile struct {
	t    *testing.T
	conn int
	w    int // the descriptor that is sent in every place of one
	tree *stubTree

	files   int
	last    []byte
	fds     int   // descriptors sent with the last frame
	asks    []int // our ends of the sockets for the guard's answers
	spawns  []int // our ends of the sockets of supervisors
	spawned int
	full    bool
	// patience is how long the helper may take to read from a full socket, in ms.
	patience int
}

// send sends b with the descriptors that are due. It stops at a socket that stays full or is
// closed.
func (h *hostile) send(b []byte, files []int) {
	for range h.files {
		files = append(files, h.w)
	}
	h.files = 0
	h.last, h.fds = b, len(files)
	for len(b) > 0 && !h.full {
		part, some := b, files
		if len(some) > wire.MaxPerSend {
			part, some = b[:1], files[:wire.MaxPerSend]
		}
		var oob []byte
		if len(some) > 0 {
			oob = unix.UnixRights(some...)
		}
		n, err := unix.SendmsgN(h.conn, part, oob, nil, unix.MSG_NOSIGNAL|unix.MSG_DONTWAIT)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			// Full: what is sent is read at once, unless the loop has ended.
			fds := []unix.PollFd{{Fd: int32(h.conn), Events: unix.POLLOUT}}
			if n, _ := unix.Poll(fds, h.patience); err != unix.EAGAIN || n == 0 || fds[0].Revents&unix.POLLHUP != 0 {
				h.full = true
			}
			continue
		}
		b, files = b[n:], files[len(some):]
	}
}

// newSupervisor returns a new id; every fourth time it returns a used one.
func (h *hostile) newSupervisor() string {
	h.spawned++
	return fmt.Sprint("s", h.spawned-h.spawned/4)
}

func (h *hostile) socket() (ours, theirs int) {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		h.t.Fatal(err)
	}
	return pair[0], pair[1]
}

func (h *hostile) say(m *wire.Message, raw []byte) {
	b, err := wire.Encode(m, raw)
	if err == nil {
		h.send(b, nil)
	}
}

// removed returns a stub for the removal of a directory, which must be one of ours.
func removed(t *testing.T) func(*wire.TempDir) error {
	return func(d *wire.TempDir) error {
		if err := d.Check(); err != nil {
			t.Error(err)
		}
		return errors.New("not removed")
	}
}

// written is a stub for writing the end of a record.
func written(id string, _ *wire.Done) error {
	if id != "test" {
		return errors.New("no such record")
	}
	return nil
}

// runFrom reads a run message from the script. It is a valid one if all its bytes are 0.
func runFrom(s *script) (*wire.Run, []byte) {
	r := &wire.Run{}
	r.ID, r.Signal, r.Timeout, r.StdinGrace, r.Grace = pick(s, oddIDs), pick(s, oddSignals), pick(s, oddDurations), pick(s, oddDurations), pick(s, oddDurations)
	r.KillWait, r.Linger, r.Audience, r.AfterExit = pick(s, oddDurations), pick(s, oddDurations), proctree.Audience(pick(s, oddWords)), wire.AfterExit(pick(s, oddWords))
	flags := s.byte()
	r.Stdin, r.Terminal, r.IgnoreHangup, r.Journal = flags&1 != 0, flags&2 != 0, flags&4 != 0, flags&8 != 0
	if flags&16 != 0 {
		r.TempDir = pick(s, oddDirs)
	}
	for range s.byte() % 5 {
		r.Numbers = append(r.Numbers, pick(s, oddNumbers))
	}
	args := make([]string, 1+s.byte()%4)
	for i := range args {
		args[i] = string(s.take(int(s.byte() % 8)))
	}
	raw := runRaw("/bin/true", args, nil)
	r.Args = len(args)
	if n := s.byte(); n > 0 {
		r.Args = oddCounts[int(n)%len(oddCounts)]
	}
	if n := s.byte(); n > 0 {
		r.Env = oddCounts[int(n)%len(oddCounts)]
	}
	switch n := s.byte(); {
	case n == 0:
	case n < 128:
		raw = raw[:len(raw)-min(len(raw), int(n))]
	default:
		raw = append(raw, s.take(int(n)-127)...)
	}
	return r, raw
}

// play executes the script.
func (h *hostile) play(s *script) {
	for steps := 0; len(s.b) > 0 && steps < 64 && !h.full; steps++ {
		switch s.byte() % does {
		case doRaw:
			h.send(s.take(int(s.byte())), nil)
		case doRun:
			m, raw := runFrom(s)
			h.files += len(m.Numbers) + 1 + int(s.byte()%4)
			if less := s.byte(); less%4 == 1 {
				h.files = max(h.files-2, 0)
			}
			h.say(&wire.Message{Run: m}, raw)
		case doStop:
			h.say(&wire.Message{Stop: &wire.StopRequest{ID: pick(s, oddIDs), Cause: pick(s, oddCauses), Signal: pick(s, append([]int{0}, oddSignals...)), Kill: s.byte()&1 != 0}}, s.take(int(s.byte()%8)))
		case doSignal:
			h.say(&wire.Message{Signal: &wire.Signal{ID: pick(s, oddIDs), Signal: pick(s, oddSignals)}}, nil)
		case doOther:
			h.say(pick(s, []*wire.Message{
				{Ready: &struct{}{}}, {Hello: &wire.Hello{Version: 1}}, {Done: &wire.Done{}}, {Started: &wire.Started{}}, {Exited: &outcome.Exit{}},
				{Swept: &wire.Swept{}}, {Failed: &wire.Failed{Text: "x"}}, {Stopping: &wire.Stopping{}}, {StartFailed: &wire.StartFailed{}}, {Drain: &wire.Drain{Pipes: 1}},
			}), nil)
		case doJSON:
			j := pick(s, oddJSON)
			b := binary.BigEndian.AppendUint32(nil, uint32(len(j)))
			h.send(append(binary.BigEndian.AppendUint32(b, 0), j...), nil)
		case doHead:
			b := binary.BigEndian.AppendUint32(nil, pick(s, oddSizes))
			h.send(binary.BigEndian.AppendUint32(b, pick(s, oddSizes)), nil)
		case doSpawn:
			b, _ := wire.Encode(&wire.Message{Spawn: &wire.Spawn{ID: h.newSupervisor()}}, nil)
			// A pipe in place of a socket. This is not for a real guard: if it accepted
			// the pipe, it would start this test program with all its tests.
			if s.byte()%4 == 3 && h.tree != nil {
				h.send(b, []int{h.w, h.w, h.w})
				break
			}
			ours, theirs := h.socket()
			h.spawns = append(h.spawns, ours)
			h.send(b, []int{theirs, h.w, h.w})
			unix.Close(theirs)
		case doLost:
			ours, theirs := h.socket()
			h.asks = append(h.asks, ours)
			b, _ := wire.Encode(&wire.Message{Lost: &wire.Lost{ID: pick(s, oddSupervisors)}}, nil)
			h.send(b, []int{theirs})
			unix.Close(theirs)
		case doWatch:
			w := wire.Watch{ID: pick(s, oddSupervisors), Duties: &wire.Duties{ID: pick(s, oddIDs), Journal: s.byte()%2 == 0}}
			if s.byte()%2 == 0 {
				w.Duties.TempDir = pick(s, oddDirs)
			}
			h.say(&wire.Message{Watch: &w}, nil)
		case doFiles:
			h.files += int(s.byte())
		case doLinger:
			time.Sleep(time.Millisecond)
		case doEnd:
			if h.tree != nil {
				h.tree.ends.Store(true)
				h.tree.wake()
			}
			time.Sleep(time.Millisecond)
		case doFlood:
			b, n := h.last, h.fds
			if h.tree == nil && bytes.Contains(b, []byte("spawn")) {
				break // see doSpawn
			}
			for range int(s.byte()) {
				h.files = n
				h.send(b, nil)
			}
		}
	}
}

// fedLoop is the main loop of a helper, for feed.
type fedLoop struct {
	step  func() bool
	gone  func() bool // the loop knows that the caller is gone
	conn  *wire.Conn
	check func(t *testing.T)
}

// feed runs a helper's loop to its end, against a caller that executes the script, and returns
// what the helper sent.
func feed(t *testing.T, tree *stubTree, begin func(control int) fedLoop, input []byte) (said []*wire.Message, whole bool, asks [][]*wire.Message) {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	h := &hostile{t: t, conn: pair[0], w: int(w.Fd()), tree: tree, patience: 2000}
	if tree.late {
		h.patience = 0
	}
	l := begin(pair[1])
	over, begun := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(over)
		<-begun
		runtime.LockOSThread() // its state is read
		defer runtime.UnlockOSThread()
		for l.step() {
			l.check(t)
			if l.gone() {
				// The stop itself is tested elsewhere.
				tree.ends.Store(true)
				tree.wake()
			}
		}
		// Descriptors that it has not read are closed.
		_ = unix.Shutdown(pair[1], unix.SHUT_RD)
		for l.conn.Fill() == nil {
		}
		unix.Close(pair[1])
	}()
	// What it sends is read at once: a caller that does not read is another test.
	heard := make(chan struct{})
	go func() {
		defer close(heard)
		said, whole = hearAll(t, pair[0])
	}()
	if !tree.late {
		close(begun)
	}
	h.play(&script{input})
	if tree.late {
		close(begun)
	}
	_ = unix.Shutdown(pair[0], unix.SHUT_WR)
	w.Close()
	select {
	case <-over:
	case <-time.After(patience):
		buf := make([]byte, 1<<16)
		t.Fatalf("the loop does not end\n%s", buf[:runtime.Stack(buf, true)])
	}
	<-heard
	unix.Close(pair[0])
	unix.Close(tree.news)
	for _, fd := range h.asks {
		m, _ := hearAll(t, fd)
		asks = append(asks, m)
		unix.Close(fd)
	}
	for _, fd := range h.spawns {
		if m, _ := hearAll(t, fd); len(m) > 1 || len(m) == 1 && m[0].Failed == nil && m[0].Spawned == nil {
			t.Errorf("a supervisor that does not exist sends %+v", m)
		}
		unix.Close(fd)
	}
	atEOF(t, r)
	return said, whole, asks
}

// hearAll reads messages to the end of the socket; whole reports that the last one is complete.
func hearAll(t *testing.T, fd int) (said []*wire.Message, whole bool) {
	conn := wire.NewHelperConn(fd)
	for {
		fds := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
		if wait(fds, time.Now().Add(patience)); fds[0].Revents == 0 {
			t.Error("the helper does not close its socket")
			return said, false
		}
		switch err := conn.Fill(); {
		case errors.Is(err, wire.ErrProtocol):
			t.Errorf("the helper itself sends something that is not a message: %v", err)
			return said, false
		case err != nil && err != wire.ErrEmpty:
			return said, err == io.EOF
		}
		for {
			m, _, _, err := conn.Next()
			if err != nil {
				t.Errorf("the helper itself violates the protocol: %v", err)
				return said, false
			}
			if m == nil {
				break
			}
			said = append(said, m)
		}
	}
}

// words returns the messages as a string, a letter for each.
func words(t *testing.T, said []*wire.Message) string {
	var b strings.Builder
	for _, m := range said {
		switch {
		case m.Started != nil:
			b.WriteByte('S')
		case m.StartFailed != nil:
			b.WriteByte('N')
		case m.Stopping != nil:
			b.WriteByte('T')
		case m.Exited != nil:
			b.WriteByte('E')
		case m.Done != nil:
			b.WriteByte('D')
		case m.Ready != nil:
			b.WriteByte('R')
		case m.Failed != nil:
			b.WriteByte('F')
		default:
			t.Errorf("the helper says %+v", m)
		}
	}
	return b.String()
}

// orderly checks the messages of a supervisor: for each invocation at most one of each kind, in
// their order; its report before the next invocation begins; a refusal last. A table has what
// may follow each message.
func orderly(said string) error {
	// A stop can be acknowledged before the start is reported; a report can come without a
	// start where the ladder gave up.
	after := map[byte]string{0: "SNTDF", 'S': "TEDF", 'N': "TDF", 'T': "SNEDF", 'E': "TDF", 'D': "RF", 'R': "SNTDF", 'F': ""}
	last := byte(0)
	seen := map[byte]bool{}
	for i := range len(said) {
		c := said[i]
		if !strings.Contains(after[last], string(c)) {
			return fmt.Errorf("%c after %q", c, said[:i])
		}
		if seen[c] {
			return fmt.Errorf("%c twice: %s", c, said)
		}
		seen[c] = c != 'R'
		if c == 'D' {
			seen = map[byte]bool{}
		}
		last = c
	}
	return nil
}

func stubLoop(t *testing.T, control, null int) loop {
	return loop{conn: wire.NewHelperConn(control), control: control, caller: -1, null: null, removeDir: removed(t), writeEnd: written}
}

func stubServer(tree *stubTree, control, null int) *server {
	s := &server{loop: stubLoop(tree.t, control, null), tree: tree}
	var err error
	runtime.LockOSThread()
	s.state, err = readState(0)
	runtime.UnlockOSThread()
	s.stateOK = err == nil
	tree.gone = func() bool { return s.callerGone }
	return s
}

// FuzzServer runs a supervisor's main loop against hostile callers.
func FuzzServer(f *testing.F) {
	for _, seed := range serverSeeds() {
		f.Add(byte(seed.manner), seed.script)
		f.Add(byte(seed.manner|late), seed.script)
	}
	null, err := unix.Open("/dev/null", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, manner byte, input []byte) {
		tree := newStubTree(t, stubManner(manner))
		var s *server
		said, whole, _ := feed(t, tree, func(control int) fedLoop {
			s = stubServer(tree, control, null)
			return fedLoop{s.step, tree.gone, s.conn, func(*testing.T) {}}
		}, input)
		spoken := words(t, said)
		if err := orderly(spoken); err != nil {
			t.Error(err)
		}
		if !whole {
			t.Errorf("the last message is not whole, after %q", spoken)
		}
		if n := strings.Count(spoken, "D"); n != tree.started && !s.hangUp && n < tree.started-1 {
			t.Errorf("%d reports of %d invocations", n, tree.started)
		}
	})
}

type serverSeed struct {
	name   string
	manner stubManner
	script []byte
	// fails: the helper's last message is a refusal.
	fails bool
}

// good returns the script of a run message that can be served.
func good(change ...func(b []byte)) []byte {
	//          ID sig  time std  grace kill  ling aud  after flags nums args len args env raw, files, less
	b := []byte{0, 0, 0, 1, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}
	for _, c := range change {
		c(b)
	}
	return append([]byte{doRun}, b...)
}

func set(i int, v byte) func([]byte) { return func(b []byte) { b[i] = v } }

// The offsets of fields in what good changes.
const (
	atSignal, atTimeout, atStdin, atGrace, atKill, atLinger, atAudience, atAfter, atFlags = 1, 2, 3, 4, 5, 6, 7, 8, 9
	atArgs, atEnv, atRaw, atFiles                                                         = 13, 14, 15, 16
)

func serverSeeds() []serverSeed {
	join := func(parts ...[]byte) (all []byte) {
		for _, p := range parts {
			all = append(all, p...)
		}
		return all
	}
	raw := func(s string) []byte { return append([]byte{doRaw, byte(len(s))}, s...) }
	end, linger := []byte{doEnd}, []byte{doLinger}
	stop := []byte{doStop, 0, 0, 0, 0, 0}
	kill := []byte{doStop, 0, 0, 0, 1, 0}
	json := func(i byte) []byte { return []byte{doJSON, i} }
	seeds := []serverSeed{
		{"nothing", polite, nil, false},
		{"a run that ends by itself", brief, good(), false},
		{"two runs, one after the other", brief, join(good(), linger, linger, good()), false},
		{"two runs at once", deaf, join(good(), good()), true},
		{"stop before run", polite, join(stop, good(), end), false},
		{"run and stop", polite, join(good(), linger, stop, linger), false},
		{"run, stop, kill", deaf, join(good(), linger, stop, kill), false},
		{"stop of another", polite, join(good(), []byte{doStop, 2, 0, 0, 0, 0}, end), false},
		{"not executed", notThere, join(good(), linger, good()), false},
		{"garbage after a run", deaf, join(good(), raw("\xff\xff\xff\xff\xff\xff\xff\xff")), true},
		{"garbage", polite, raw("\xff\xff\xff\xff\xff\xff\xff\xff\xff"), true},
		{"a frame without end", polite, join([]byte{doHead, 5, 7}, raw("abc")), false},
		{"a frame too large", polite, []byte{doHead, 6, 0}, true},
		{"negative sizes", polite, []byte{doHead, 10, 10}, true},
		{"a header cut", polite, raw("\x00\x00\x00\x02\x00"), false},
		{"survivors", undying, join(good(), linger, kill, linger, linger, good()), false},
		{"a run after one that left something", brief, join(good(set(atAfter, 2)), linger, linger, good()), false},
		{"a word of the helper's", polite, []byte{doOther, 2}, true},
		{"a word for the guard", polite, []byte{doSpawn, 0}, true},
		{"a question for the guard", polite, []byte{doLost, 0}, true},
		{"pipes where nothing was left", polite, []byte{doOther, 9}, true},
		{"pipes while it runs", polite, join(good(), linger, []byte{doOther, 9}), true},
		{"descriptors without end", polite, join([]byte{doFiles, 255}, stop, []byte{doFlood, 20}), true},
		{"a stop with a signal that is none", polite, join(good(), linger, []byte{doStop, 0, 0, 4, 0, 0}), true},
		{"a stop with a huge signal", polite, join(good(), linger, []byte{doStop, 0, 0, 9, 0, 0}), true},
		{"a stop with a cause without end", polite, join(good(), linger, []byte{doStop, 0, 5, 0, 0, 0}), true},
		{"leftovers linger", survivors, join(good(set(atLinger, 1)), linger, stop, linger), false},
		{"a run and a stop in one", survivors, join(good(set(atAfter, 2)), stop, good(), stop), false},
		{"a run behind one that left something", daemon | late, join(good(set(atAfter, 2)), []byte{doSignal, 0, 0}, stop, good()), true},
		{"a run that leaves something", daemon, join(good(set(atAfter, 2)), linger, []byte{doSignal, 0, 0}, stop, linger, good()), false},
		{"a signal", polite, join(good(), linger, []byte{doSignal, 0, 0}, linger), false},
		{"a signal that is none", polite, join(good(), linger, []byte{doSignal, 0, 6}), true},
		{"a signal without a run", polite, []byte{doSignal, 0, 8}, true},
	}
	for i, name := range []string{"ID", "signal", "timeout", "stdin grace", "grace", "kill wait", "linger", "audience", "after exit", "flags"} {
		for v := range byte(11) {
			seeds = append(seeds, serverSeed{fmt.Sprintf("%s %d", name, v), polite, join(good(set(i, v)), linger, stop, linger), false})
		}
	}
	for v := range byte(len(oddCounts)) {
		seeds = append(seeds,
			serverSeed{fmt.Sprintf("arguments %d", v), polite, join(good(set(atArgs, v)), end), false},
			serverSeed{fmt.Sprintf("variables %d", v), polite, join(good(set(atEnv, v)), end), false})
	}
	for v := range byte(len(oddNumbers)) {
		b := []byte{doRun, 0, 0, 0, 1, 1, 1, 1, 0, 0, 0, 2, v, 1, 0, 0, 0, 0, 0, 0, 0}
		seeds = append(seeds, serverSeed{fmt.Sprintf("number %d", v), polite, join(b, end), false})
	}
	seeds = append(seeds,
		serverSeed{"raw part cut", polite, good(set(atRaw, 3)), true},
		serverSeed{"raw part too long", polite, append(good(set(atRaw, 130)), 1, 2, 3), true},
		serverSeed{"descriptors too many", polite, join(good(set(atFiles, 3)), end), false},
		serverSeed{"descriptors missing", polite, []byte{doRun, 0, 0, 0, 1, 1, 1, 1, 0, 0, 0, 1, 1, 0, 0, 0, 0, 0, 0, 1}, true})
	for i := range byte(len(oddJSON)) {
		seeds = append(seeds, serverSeed{fmt.Sprintf("JSON %d", i), polite, json(i), false},
			serverSeed{fmt.Sprintf("JSON %d while it runs", i), deaf, join(good(), linger, json(i)), false})
	}
	return seeds
}

// Each script that breaks the protocol is answered with a refusal.
func TestServerComplains(t *testing.T) {
	null, err := unix.Open("/dev/null", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(null)
	for _, seed := range serverSeeds() {
		if !seed.fails {
			continue
		}
		t.Run(seed.name, func(t *testing.T) {
			tree := newStubTree(t, seed.manner)
			said, _, _ := feed(t, tree, func(control int) fedLoop {
				s := stubServer(tree, control, null)
				return fedLoop{s.step, tree.gone, s.conn, func(*testing.T) {}}
			}, seed.script)
			if spoken := words(t, said); !strings.Contains(spoken, "F") {
				t.Errorf("it sends %q, and no refusal", spoken)
			}
		})
	}
}

func guardSeeds() (all [][]byte) {
	spawn, linger := []byte{doSpawn, 0}, []byte{doLinger}
	for _, seed := range [][][]byte{
		nil, {spawn}, {spawn, spawn, spawn}, {spawn, linger, {doLost, 0}}, {{doLost, 1}, {doLost, 2}, {doLost, 3}, {doLost, 4}, {doLost, 5}},
		{spawn, {doRaw, 4, 255, 255, 255, 255}}, {spawn, {doHead, 10, 10}}, {{doFiles, 255}, spawn, {doFlood, 30}}, {good()}, {{doStop, 0, 0, 0, 0, 0}},
		{spawn, {doOther, 5}}, {{doFiles, 3}, spawn, spawn, linger, {doEnd}, {doLost, 0}, {doLost, 1}}, {spawn, linger, {doEnd}, spawn, {doFlood, 9}, {doLost, 0}},
		{{doJSON, 16}}, {{doJSON, 17}}, {{doHead, 1, 0}, {doFiles, 1}, {doRaw, 1, '{'}},
		{{doSpawn, 3}}, {spawn, {doSpawn, 3}, spawn},
	} {
		all = append(all, slices.Concat(seed...))
	}
	return all
}

// FuzzGuard runs a guard's main loop against hostile callers.
func FuzzGuard(f *testing.F) {
	for _, all := range guardSeeds() {
		for m := range manners {
			f.Add(byte(m), byte(0), all)
		}
		f.Add(byte(polite|late), byte(3), all)
	}
	null, err := unix.Open("/dev/null", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, manner, orphans byte, input []byte) {
		tree := newStubTree(t, stubManner(manner))
		tree.died, tree.orphans = true, int(orphans%4)
		tree.gone = func() bool { return false } // what was ordered is still carried out
		var g *guard
		said, whole, asks := feed(t, tree, func(control int) fedLoop {
			g = newGuard(stubLoop(t, control, null), "/proc/self/exe", "1", nil)
			g.tree, g.root = tree, null
			return fedLoop{g.step, func() bool { return g.callerGone }, g.conn, func(t *testing.T) {
				if len(g.swept) > keepSwept || len(g.supervisors) != len(g.swept)+len(g.alive)+len(g.fallen)+len(g.orders) {
					t.Errorf("%d supervisors are remembered: %d swept, %d alive, %d fallen and %d not started", len(g.supervisors), len(g.swept), len(g.alive), len(g.fallen), len(g.orders))
				}
			}}
		}, input)
		if spoken := words(t, said); spoken != "" && spoken != "F" || !whole {
			t.Errorf("the guard says %q", spoken)
		}
		for i, m := range asks {
			if len(m) > 1 || len(m) == 1 && m[0].Swept == nil {
				t.Errorf("question %d is answered with %d messages: %+v", i, len(m), m)
			}
		}
		if len(g.orders) > 0 || g.starting {
			t.Errorf("ended with %d orders left", len(g.orders))
		}
		for _, q := range g.questions {
			unix.Close(q.socket)
		}
		if len(g.questions) > 0 {
			t.Errorf("ended with %d questions left", len(g.questions))
		}
	})
}

// A message that cannot be sent whole is the last one: the next would be read as its rest. Both
// the caller and the loop find the socket at its end.
func TestCallerThatDoesNotRead(t *testing.T) {
	t.Parallel()
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer closeAll(pair[:])
	s := &server{loop: loop{conn: wire.NewHelperConn(pair[1]), control: pair[1]}}
	filled := 0
	for junk := make([]byte, 4096); ; {
		n, err := unix.SendmsgN(pair[1], junk, nil, nil, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL)
		if err != nil {
			break
		}
		filled += n
	}
	s.send(&wire.Message{Started: &wire.Started{}})
	if !s.hangUp {
		t.Fatal("the message counts as sent")
	}
	got, buf := 0, make([]byte, 64<<10)
	for got < filled {
		n, err := unix.Read(pair[0], buf)
		if err != nil || n == 0 {
			t.Fatalf("%d bytes of %d, %v", got, filled, err)
		}
		got += n
	}
	s.send(&wire.Message{Ready: &struct{}{}})
	fds := []unix.PollFd{{Fd: int32(pair[0]), Events: unix.POLLIN}, {Fd: int32(pair[1]), Events: unix.POLLIN}}
	if wait(fds, time.Now().Add(patience)); fds[0].Revents == 0 || fds[1].Revents == 0 {
		t.Error("the socket is not at its end")
	}
	if n, err := unix.Read(pair[0], buf); n != 0 || err != nil {
		t.Errorf("%d bytes more, %v", n, err)
	}
}
