//go:build linux || darwin

package supervisor

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	pathpkg "path"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"curfew/internal/fault"
	"curfew/internal/wire"
	"curfew/proctree"
)

// Client is the caller's end of one helper process. It serves one invocation
// after another. Its methods are for one goroutine at a time, except Stop,
// Signal, Interrupt and Kill.
type Client struct {
	conn *wire.Conn
	pid  int

	end   sync.Mutex // of pidfd: a guard is used by the goroutines of all its supervisors
	pidfd int        // -1 where the kernel has none, and when it has ended
	exact identity   // where it has none

	child int              // its pid as our child that is not reaped; 0: the guard's, or reaped
	exit  *unix.WaitStatus // how it ended, if it was our child; nil: not, or not known
	words *startWords      // nil: not kept
	guard *guardClient     // its parent; nil if we are

	id      string // stands for it and for no other, whatever becomes of its pid
	exe     string // what was executed
	state   State
	cgroup  string // the content of its /proc/PID/cgroup, when it was started
	known   bool   // state could be read on both sides
	noFile  uint64
	greeted bool
	alone   bool  // it is for one invocation
	drains  bool  // it stays for what it has left alive
	ready   bool  // took no invocation yet, or has said so
	said    uint8 // which events of the invocation Next has returned
	expires time.Time
}

// handshakeLimit bounds the start of a helper. It is generous, since a machine
// under load can take long for it; a caller that is canceled does not wait.
const handshakeLimit = 10 * time.Second

// errRefused wraps why no helper can be started.
var errRefused = errors.New("supervisor: cannot start a helper")

// environment is what a helper gets of ours: what the loader and the Go runtime look
// at, and HOME and PATH, which init functions of the program can need. The collector
// of a helper is off, below a limit that no helper should reach; it runs between two
// invocations. (Package runtime/debug would be initialised too late: see takeover.go.)
// A CLI gets nothing of this: its environment comes with its request.
func environment() []string {
	env := append(fault.Environment(), wire.HelperVar+"=1", "GOMEMLIMIT=64MiB")
	if !tracking() {
		env = append(env, "GOGC=off")
	} else {
		// Helpers of a caller that has died are no suspects of each other's.
		env = append(env, TrackerVariable+"=1", wire.Mark("helper"), wire.FrozenVar+"="+pathpkg.Join(os.TempDir(), "curfew-frozen-"+strconv.Itoa(os.Geteuid())))
	}
	if !callerReady.Load() {
		env = append(env, wire.RoomVar+"="+strconv.Itoa(callerThreads))
	}
	for _, kv := range os.Environ() {
		for _, prefix := range []string{"LD_", "HOME=", "PATH=", "GODEBUG=", "GORACE=", "GOTRACEBACK=", "GOCOVERDIR="} {
			if strings.HasPrefix(kv, prefix) {
				env = append(env, kv)
			}
		}
	}
	return env
}

// self is the executable to start a helper from, checked once.
var self = sync.OnceValues(func() (string, error) {
	if os.Getenv(wire.HelperVar) != "" {
		return "", fmt.Errorf("%w: this process was itself started as a helper and was not taken over; its package initialisation must not end or replace the process", errRefused)
	}
	return ownExecutable()
})

// notOurs is why an executable that we are not the program of is not started again.
func notOurs(why string) error {
	return fmt.Errorf("%w: %s, so the executable is not ours to start again; set Options.Supervisor to an installed curfew", errRefused, why)
}

// spawn starts a supervisor without a guard, as our child. The calling goroutine
// must be locked to its thread: the supervisor inherits from it.
func spawn(exe string, journal []string) (*Client, error) {
	return start(wire.SupervisorName, exe, journal)
}

// start starts a helper of the given name as our child. The variables tell it
// where the journal is.
func start(name, exe string, journal []string) (*Client, error) {
	if exe == "" {
		var err error
		if exe, err = self(); err != nil {
			return nil, err
		}
	}
	if err := privileged(exe); err != nil {
		return nil, fmt.Errorf("%w from %s: %w; set Options.Supervisor to an installed curfew", errRefused, exe, err)
	}
	pair, err := wire.Socketpair()
	if err != nil {
		return nil, os.NewSyscallError("socketpair", err)
	}
	defer unix.Close(pair[1])
	null := nullDescriptor()
	defer unix.Close(null)
	caller := callerDescriptor()
	defer unix.Close(caller)
	h := newHelper(exe, pair[0])
	stderr, drop := h.keepWords(null)
	defer drop()
	h.cgroup, h.noFile = ownCgroup(), noFileLimit()
	env := append(environment(), journal...)
	if name == wire.SupervisorName {
		env = append(env, wire.IDVar+"="+h.id) // a guard's supervisors have ids of their own
	}
	if errno := fault.At(fault.ForkExec); errno != 0 {
		err = errno
	} else {
		h.child, err = syscall.ForkExec(exe, []string{name, strconv.Itoa(unix.Getpid()), exe}, &syscall.ProcAttr{
			Dir:   "/",
			Env:   env,
			Files: []uintptr{uintptr(null), uintptr(null), uintptr(stderr), uintptr(pair[1]), uintptr(caller)},
			Sys:   helperAttr(h),
		})
	}
	if err != nil {
		h.conn.Close()
		h.words.close()
		return nil, fmt.Errorf("%w: execute %s: %w", errRefused, exe, err)
	}
	h.pid, h.exact = h.child, identify(h.child)
	if h.conn.SendersNamed() {
		h.conn.SetPeer(h.child)
	}
	return h, nil
}

func newHelper(exe string, socket int) *Client {
	return &Client{id: wire.NewID(), exe: exe, pidfd: -1, ready: true, conn: wire.NewCallerConn(socket)}
}

// nullDescriptor opens something that gives and takes nothing.
func nullDescriptor() int {
	fd, err := proctree.OpenFile("/dev/null", unix.O_RDWR)
	if err != nil {
		// A root directory without /dev.
		fd, _ = proctree.OpenFile("/", anyDir)
	}
	return fd
}

// callerDescriptor opens a pidfd of ourselves, or what stands for none.
func callerDescriptor() int {
	fd, err := ownPidfd()
	if err != nil {
		return nullDescriptor()
	}
	return fd
}

// greet waits for the helper's first message.
func (h *Client) greet(ctx context.Context) error {
	over := context.AfterFunc(ctx, func() { h.Interrupt(time.Unix(1, 0)) })
	defer over()
	defer h.words.close()
	// Of a supervisor that a guard has started we know from the guard which process it is.
	byGuard := h.conn.SendersNamed() && h.guard != nil && h.guard.conn.Peer() != 0
	defer func() {
		if byGuard && h.conn.Peer() == 0 {
			h.dropPidfd() // whose it is, is not known
		}
	}()
	var m *wire.Message
	from, spawned := 0, 0
	hear := func(look time.Time) error {
		h.Interrupt(look)
		for m == nil || byGuard && spawned == 0 && m.Hello != nil {
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			next, err := h.read()
			switch {
			case err != nil:
				return err
			case next.Spawned == nil && m == nil:
				m, from = next, h.conn.Sender()
			case next.Spawned != nil && byGuard && h.conn.Sender() == h.guard.conn.Peer():
				spawned = next.Spawned.PID
			default:
				return wire.ErrOtherSender
			}
		}
		return nil
	}
	until := time.Now().Add(handshakeLimit)
	var err error
	if h.guard != nil {
		err = h.guard.awake(until, hear)
	} else {
		err = patiently(until, hear, func() error { return nil })
	}
	if !over() {
		return context.Cause(ctx)
	}
	h.Interrupt(time.Time{})
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded):
		return fmt.Errorf("%w: %s did not answer within %v%s; if init functions of the program take that long, set Options.Supervisor to an installed curfew", errRefused, h.exe, handshakeLimit, h.words.quoted())
	case err != nil:
		return fmt.Errorf("%w: %s ended before it was taken over%s%s (%w); a limit (ulimit -u, pids.max, memory), a signal, or an init function of the program has ended it; against the last, set Options.Supervisor to an installed curfew", errRefused, h.exe, h.howEnded(), h.words.quoted(), err)
	case m.Failed != nil:
		return fmt.Errorf("%w: %w", errRefused, m.Failed)
	case m.Hello == nil || m.Hello.Version != wire.Version:
		return fmt.Errorf("%w: %s speaks another version of the protocol; it must be of the same version as this library", errRefused, h.exe)
	}
	if byGuard {
		// Where the guard is in another pid namespace its numbers are not ours.
		if h.guard.pid == h.guard.conn.Peer() && from != spawned {
			return fmt.Errorf("%w: %w", errRefused, wire.ErrOtherSender)
		}
		h.conn.SetPeer(from)
	}
	h.pid, h.state, h.known, h.greeted = m.Hello.PID, State(m.Hello.State), m.Hello.StateKnown, true
	prepareCaller()
	return nil
}

// callerThreads is how many idle threads a caller has ready before its first CLI
// starts: for the goroutines of an invocation that wait in a system call (copying to
// a file, a poll), and for those that they wake.
const callerThreads = 6

// prepareCaller starts them once, after a helper has shown that there is room for them
// (see roomVar): the runtime ends a process in which it cannot start one.
var prepareCaller = sync.OnceFunc(func() {
	startThreads(callerThreads, 0)
	callerReady.Store(true)
})

var callerReady atomic.Bool

// IdleThreads makes the Go runtime have some idle threads, or ends the process. It is for
// one that has a few already and must not fail while its first helper takes the rest.
func IdleThreads(n int) { startThreads(n, 0) }

// howEnded says how a helper that has hung up has ended, as far as that is known: a
// guard's children are the guard's to reap.
func (h *Client) howEnded() string {
	h.awaitEnd(time.Now().Add(reapLimit))
	h.ended()
	h.end.Lock()
	defer h.end.Unlock()
	switch {
	case h.exit == nil:
		return ""
	case h.exit.Signaled():
		return ", by signal " + h.exit.Signal().String()
	}
	return ", with exit status " + strconv.Itoa(h.exit.ExitStatus())
}

// startWords keeps the last of what a helper writes to its stderr before it is taken
// over. A helper that is has /dev/null instead.
type startWords struct {
	pipe *os.File
	last []byte
	done chan struct{} // closed when last is final
}

// keptWords is how much of it is kept.
const keptWords = 1 << 10

// stacksBegin is what the Go runtime writes between the reason why it ends a process,
// such as that it cannot start a thread, and many lines that say less.
var stacksBegin = [][]byte{[]byte("\nSIGABRT: abort\n"), []byte("\n\ngoroutine "), []byte("\n\nruntime stack:")}

// keepWords returns what is to be the helper's stderr, and what closes our descriptor
// of it: without a pipe, null.
func (h *Client) keepWords(null int) (fd int, drop func()) {
	r, w, err := os.Pipe()
	if err != nil {
		return null, func() {}
	}
	words := &startWords{pipe: r, done: make(chan struct{})}
	h.words = words
	go func() {
		defer close(words.done)
		var buf [keptWords]byte
		for {
			n, err := r.Read(buf[:])
			words.last = append(words.last, buf[:n]...)
			for _, s := range stacksBegin {
				if i := bytes.Index(words.last, s); i >= 0 && err == nil {
					words.last = words.last[:i]
					_, _ = io.Copy(io.Discard, r) // the helper must not wait for us
					return
				}
			}
			words.last = words.last[max(len(words.last)-keptWords, 0):]
			if err != nil {
				return
			}
		}
	}()
	return int(w.Fd()), func() { _ = w.Close() }
}

// close ends the keeping. Again is no harm.
func (w *startWords) close() {
	if w != nil {
		_ = w.pipe.Close()
		<-w.done
	}
}

// quoted is what was kept, for an error message. A process that the helper has left
// can hold the pipe: it is not waited for.
func (w *startWords) quoted() string {
	if w == nil {
		return ""
	}
	_ = w.pipe.SetReadDeadline(time.Now().Add(lookEvery))
	<-w.done
	if text := bytes.TrimSpace(w.last); len(text) > 0 {
		return fmt.Sprintf("; its stderr ends with %q", text)
	}
	return ""
}

// read returns the next message.
func (h *Client) read() (*wire.Message, error) {
	m, _, files, err := h.conn.Receive()
	if m != nil && m.Hello != nil && len(files) == 1 && h.pidfd < 0 {
		h.pidfd, files = files[0], nil
	}
	closeAll(files)
	return m, err
}

func (h *Client) dropPidfd() {
	h.end.Lock()
	defer h.end.Unlock()
	if h.pidfd >= 0 {
		unix.Close(h.pidfd)
		h.pidfd = -1
	}
}

// runLimit bounds how long a helper may take to accept a request. It is idle, so
// that one which takes longer hangs.
const runLimit = 5 * time.Second

// Run sends the request. It blocks until the helper has accepted it, ctx is
// done, or a limit has passed. On an error the helper must be killed; nothing
// was executed then, and nothing will be.
func (h *Client) Run(ctx context.Context, q *wire.Request) error {
	h.ready, h.said = false, 0
	return h.conn.SendRequest(ctx, runLimit, q)
}

// Next returns the next event. It blocks until there is one, the helper is
// lost, or Interrupt's time has come (os.ErrDeadlineExceeded).
//
// Of one invocation each event comes once at most: one that came again and again
// would put off what its caller awaits.
func (h *Client) Next() (Event, error) {
	m, err := h.read()
	if err != nil {
		return Event{}, err
	}
	var word uint8
	switch {
	case m.Started != nil, m.StartFailed != nil:
		word = 1
	case m.Stopping != nil:
		word = 2
	case m.Exited != nil:
		word = 4
	case m.Done != nil && m.Done.Check() == nil:
		word = 8
	case m.Failed != nil:
		return Event{}, m.Failed
	}
	if word == 0 || h.said&(word|8) != 0 {
		return Event{}, fmt.Errorf("%w: a message out of order", wire.ErrProtocol)
	}
	h.said |= word
	return Event{Started: m.Started, StartFailed: m.StartFailed, Stopping: m.Stopping, Exited: m.Exited, Done: m.Done}, nil
}

// Pending reports whether the helper has said something that Next has not
// returned yet, or is gone, or was let go of.
func (h *Client) Pending() bool { return h.conn.Readable() }

// Suspended reports whether somebody has stopped the helper, so that it cannot
// answer.
func (h *Client) Suspended() bool {
	return h.pid != 0 && proctree.Suspended(h.pid) && h.hasPID() // in this order
}

// Interrupt makes Next return at the given time at the latest; the zero time
// takes that back.
func (h *Client) Interrupt(at time.Time) { h.conn.SetReadDeadline(at) }

// Stop asks for the stop ladder. It does not wait.
func (h *Client) Stop(q wire.StopRequest) error { return h.conn.Send(&wire.Message{Stop: &q}) }

// Signal sends a signal to the leader of the invocation id.
func (h *Client) Signal(id string, sig syscall.Signal) error {
	return h.conn.Send(&wire.Message{Signal: &wire.Signal{ID: id, Signal: int(sig)}})
}

// Drain has the helper, which has left processes alive, read on from pipes that they may
// write to, until nobody has these open any more. The helper ends then; nobody waits for
// it.
func (h *Client) Drain(pipes []int) error {
	err := h.conn.Send(&wire.Message{Drain: &wire.Drain{Pipes: len(pipes)}}, pipes...)
	h.drains = err == nil
	return err
}

// PID returns the helper's process id, for the record.
func (h *Client) PID() int { return h.pid }

// Group returns the name of the cgroup that the helper has for its tree, if it has one.
func (h *Client) Group() string { return groupName(h.pid, h.id) }

// Cgroup returns the content of its /proc/PID/cgroup, when it was started.
func (h *Client) Cgroup() string { return h.cgroup }

// withPidfd does something with the pidfd, which stays open meanwhile.
func (h *Client) withPidfd(do func(pidfd int) error) error {
	h.end.Lock()
	defer h.end.Unlock()
	if h.pidfd < 0 {
		return unix.ESRCH
	}
	return do(h.pidfd)
}

// Close lets go of the helper: an idle one ends, one with survivors goes on
// without us. It waits for its end as long as limit, so that no zombie of ours
// stays, and reports whether it has ended. A guard's child is the guard's to
// reap.
func (h *Client) Close(limit time.Duration) bool {
	h.conn.Close()
	for end := time.Now().Add(limit); !h.ended(); {
		if !time.Now().Before(end) {
			return false
		}
		if !h.awaitEnd(end) {
			time.Sleep(min(time.Until(end), time.Millisecond))
		}
	}
	h.dropPidfd()
	return true
}

// reapChild reaps our child by its pid, if it has ended, and reports whether there is
// none any more. h.end is held.
func (h *Client) reapChild() bool {
	for h.child != 0 {
		var status unix.WaitStatus
		pid, err := unix.Wait4(h.child, &status, unix.WNOHANG, nil)
		switch {
		case err == unix.EINTR:
		case pid == h.child || err != nil:
			if err == nil {
				h.exit = &status
			}
			h.child = 0 // never asked for again: the number is free now
		default:
			return false
		}
	}
	return true
}

// Gone waits until nothing is left of what a helper has held that was let go of
// with survivors, at most until the given time, and reports whether that is
// known: the helper ends when its tree is empty, and its guard knows it for sure.
func (h *Client) Gone(until time.Time) bool {
	h.awaitEnd(until)
	if !h.ended() {
		return false
	}
	if swept, err := h.Swept(until); err == nil {
		return !swept.Left
	}
	// One that was let go of ends when it has no child: then it knew.
	if h.guard == nil {
		return h.isClean()
	}
	if !h.guard.awaitEnd(until) && !h.guard.ended() {
		return false
	}
	return h.guard.ended() && h.guard.isClean()
}

func (h *Client) isClean() bool {
	h.end.Lock()
	defer h.end.Unlock()
	return h.exit != nil && *h.exit == 0
}

// Check reports whether helpers can be started from the executable at path, as
// far as that can be seen without starting one; "" is the running executable.
func Check(path string) error {
	if path == "" {
		return nil // told when it is used: not every program that links us invokes anything
	}
	if fi, err := os.Stat(path); err != nil {
		return fmt.Errorf("supervisor: %w", err)
	} else if fi.IsDir() || fi.Mode()&0o111 == 0 {
		return fmt.Errorf("supervisor: %s is not an executable file; name an installed curfew", path)
	}
	return nil
}
