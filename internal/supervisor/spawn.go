//go:build linux || darwin

package supervisor

import (
	"context"
	"errors"
	"fmt"
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
	"curfew/internal/sys"
	"curfew/internal/wire"
)

// How a caller starts helpers, and the handshake with each.

// errRefused wraps why no helper can be started.
var errRefused = errors.New("supervisor: cannot start a helper")

// Check returns an error if helpers cannot be started from the executable at path, as far as that
// can be checked without starting one; "" is the running executable.
func Check(path string) error {
	if path == "" {
		return nil // checked at its first use: not every program that imports adapter invokes anything
	}
	if fi, err := os.Stat(path); err != nil {
		return fmt.Errorf("supervisor: %w", err)
	} else if fi.IsDir() || fi.Mode()&0o111 == 0 {
		return fmt.Errorf("supervisor: %s is not an executable file; name an installed curfew", path)
	}
	return nil
}

// self is the executable to start a helper from, checked once.
var self = sync.OnceValues(func() (string, error) {
	if os.Getenv(wire.HelperVar) != "" {
		return "", fmt.Errorf("%w: this process was itself started as a helper and was not taken over; its package initialisation must not end or replace the process", errRefused)
	}
	return ownExecutable()
})

// notOurs returns why an executable is not started again: it is not the program that this package is
// a part of.
func notOurs(why string) error {
	return fmt.Errorf("%w: %s, so the executable is not ours to start again; set Options.Supervisor to an installed curfew", errRefused, why)
}

// environment returns a helper's environment. Of ours it has what the loader and the Go runtime
// read, and HOME and PATH, which init functions of the program can need. The garbage collector of a
// helper is off, below a limit that no helper should reach; it runs between two invocations.
// (Package runtime/debug would be initialised too late: see takeover.go.) A CLI gets nothing of
// this: its environment comes with its request.
func environment() []string {
	env := append(fault.Environment(), wire.HelperVar+"=1", "GOMEMLIMIT=64MiB")
	if !tracking() {
		env = append(env, "GOGC=off")
	} else {
		// With this mark, helpers of a caller that has died suspect each other of nothing.
		env = append(env, wire.TrackerVar+"=1", wire.Mark("helper"), wire.FrozenVar+"="+pathpkg.Join(os.TempDir(), "curfew-frozen-"+strconv.Itoa(os.Geteuid())))
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

// ends are the descriptors that a helper is started with. They are ours to close.
type ends struct {
	control int // the helper's end of its socket
	caller  int // a pidfd of the caller, or what stands for none
	stderr  int // while it starts
	null    int // gives and takes nothing
	keep    *os.File
}

// prepare makes h the caller's end of a helper that is about to be started from exe.
func (h *helper) prepare(exe string) (*ends, error) {
	pair, err := wire.Socketpair()
	if err != nil {
		return nil, os.NewSyscallError("socketpair", err)
	}
	h.exe, h.pidfd, h.conn = exe, -1, wire.NewCallerConn(pair[0])
	e := &ends{control: pair[1], caller: callerDescriptor(), null: nullDescriptor()}
	e.stderr = e.null
	if h.stderr, e.keep = keepStderr(); e.keep != nil {
		e.stderr = int(e.keep.Fd())
	}
	return e, nil
}

func (e *ends) close() {
	closeAll([]int{e.control, e.caller, e.null})
	if e.keep != nil {
		_ = e.keep.Close()
	}
}

// abandon lets go of a helper that was not started.
func (h *helper) abandon() {
	h.conn.Close()
	h.stderr.close()
}

// start starts a helper of the given name as our child. The calling goroutine must be locked
// to its thread, which the helper inherits from. The variables are added to its environment.
func (h *helper) start(name, exe string, variables ...string) (err error) {
	if exe == "" {
		if exe, err = self(); err != nil {
			return err
		}
	}
	if err := privileged(exe); err != nil {
		return fmt.Errorf("%w from %s: %w; set Options.Supervisor to an installed curfew", errRefused, exe, err)
	}
	ends, err := h.prepare(exe)
	if err != nil {
		return err
	}
	defer ends.close()
	h.origin.cgroup, h.origin.noFile = ownCgroup(), noFileLimit()
	if err = sys.Fault(fault.ForkExec); err == nil {
		h.child, err = syscall.ForkExec(exe, []string{name, strconv.Itoa(unix.Getpid()), exe}, &syscall.ProcAttr{
			Dir:   "/",
			Env:   append(environment(), variables...),
			Files: []uintptr{uintptr(ends.null), uintptr(ends.null), uintptr(ends.stderr), uintptr(ends.control), uintptr(ends.caller)},
			Sys:   h.attributes(),
		})
	}
	if err != nil {
		h.abandon()
		return fmt.Errorf("%w: execute %s: %w", errRefused, exe, err)
	}
	h.pid, h.exact = h.child, identify(h.child)
	if h.conn.SendersNamed() {
		h.conn.SetPeer(h.child)
	}
	return nil
}

// spawn starts a supervisor without a guard, as our child. See start.
func spawn(exe string, journal []string) (*Client, error) {
	c := &Client{id: wire.NewID(), ready: true}
	// A guard gives each of its supervisors its id.
	if err := c.start(wire.SupervisorName, exe, append(journal, wire.IDVar+"="+c.id)...); err != nil {
		return nil, err
	}
	return c, nil
}

// spawnGuard starts a guard, from which its supervisors and their CLIs inherit. See start.
func spawnGuard(exe string, journal []string) (*guardClient, error) {
	g := &guardClient{}
	if err := g.start(wire.GuardName, exe, journal...); err != nil {
		return nil, err
	}
	return g, nil
}

// spawn asks the guard to start a supervisor, which has to be greeted.
func (g *guardClient) spawn() (*Client, error) {
	c := &Client{id: wire.NewID(), ready: true}
	ends, err := c.prepare(g.exe)
	if err != nil {
		return nil, err
	}
	defer ends.close()
	c.guard, c.guarded = g, true
	c.origin.cgroup, c.origin.noFile = g.origin.cgroup, g.origin.noFile
	if err := g.conn.Send(&wire.Message{Spawn: &wire.Spawn{ID: c.id}}, ends.control, ends.caller, ends.stderr); err != nil {
		c.abandon()
		return nil, fmt.Errorf("%w: ask the guard: %w", errRefused, err)
	}
	return c, nil
}

// nullDescriptor opens a file that gives and takes nothing.
func nullDescriptor() int {
	fd, err := sys.Open("/dev/null", unix.O_RDWR, 0)
	if err != nil {
		// A root directory without /dev.
		fd, _ = sys.Open("/", anyDir, 0)
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

// handshakeLimit bounds the start of a helper. It is generous, since a machine under load
// can take long for it; a caller that is canceled does not wait.
const handshakeLimit = 10 * time.Second

// greeting is what a helper sends first, and what its guard sends about it on the same
// socket.
type greeting struct {
	first   *wire.Message // the helper's
	sender  int           // of first
	guard   int           // the process that has to name the helper, if it is not 0
	spawned int           // the process that the guard names; 0: not yet
}

// complete reports whether there is nothing more to wait for.
func (g *greeting) complete() bool {
	return g.first != nil && (g.guard == 0 || g.spawned != 0 || g.first.Hello == nil)
}

// take adds a message.
func (g *greeting) take(m *wire.Message, sender int) error {
	switch {
	case m.Spawned == nil && g.first == nil:
		g.first, g.sender = m, sender
	case m.Spawned != nil && g.guard != 0 && sender == g.guard:
		g.spawned = m.Spawned.PID
	default:
		return wire.ErrOtherSender
	}
	return nil
}

// greet waits for the first message of a helper that was started, and checks it.
func (h *helper) greet(ctx context.Context) error {
	defer h.stderr.close()
	var g greeting
	if h.guard != nil && h.conn.SendersNamed() {
		g.guard = h.guard.conn.Peer()
	}
	err := h.awaitGreeting(ctx, &g)
	if err == nil {
		err = h.accept(&g)
	}
	if g.guard != 0 && h.conn.Peer() == 0 {
		h.dropPidfd() // it is not known which process that is
	}
	if err == nil {
		prepareCaller()
	}
	return err
}

// awaitGreeting receives until g is complete.
func (h *helper) awaitGreeting(ctx context.Context, g *greeting) error {
	undo := context.AfterFunc(ctx, func() { h.Interrupt(time.Unix(1, 0)) })
	defer undo()
	receive := func(look time.Time) error {
		h.Interrupt(look)
		for !g.complete() {
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			m, err := h.read()
			if err == nil {
				err = g.take(m, h.conn.Sender())
			}
			if err != nil {
				return err
			}
		}
		return nil
	}
	until := time.Now().Add(handshakeLimit)
	var err error
	if h.guard != nil {
		err = h.guard.await(until, receive)
	} else {
		err = patiently(until, receive, func() error { return nil })
	}
	if !undo() {
		return context.Cause(ctx)
	}
	h.Interrupt(time.Time{})
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded):
		return fmt.Errorf("%w: %s did not answer within %v%s; if init functions of the program take that long, set Options.Supervisor to an installed curfew", errRefused, h.exe, handshakeLimit, h.stderr.quoted())
	case err != nil:
		return fmt.Errorf("%w: %s ended before it was taken over%s%s (%w); a limit (ulimit -u, pids.max, memory), a signal, or an init function of the program has ended it; against the last, set Options.Supervisor to an installed curfew", errRefused, h.exe, h.describeEnd(), h.stderr.quoted(), err)
	}
	return nil
}

// accept checks the greeting, and takes from it what is known of the helper.
func (h *helper) accept(g *greeting) error {
	hello := g.first.Hello
	switch {
	case g.first.Failed != nil:
		return fmt.Errorf("%w: %w", errRefused, g.first.Failed)
	case hello == nil:
		return fmt.Errorf("%w: %s does not begin with its version; it must be an installed curfew of the same version as this library", errRefused, h.exe)
	case hello.Version != wire.Version:
		return fmt.Errorf("%w: %s speaks version %d of the protocol, and this library version %d; both must be of the same release", errRefused, h.exe, hello.Version, wire.Version)
	}
	if g.guard != 0 {
		// If the guard is in another pid namespace, its numbers are not ours.
		if h.guard.pid == g.guard && g.sender != g.spawned {
			return fmt.Errorf("%w: %w", errRefused, wire.ErrOtherSender)
		}
		h.conn.SetPeer(g.sender)
	}
	h.pid, h.origin.state, h.origin.known = hello.PID, hello.State, hello.StateKnown
	return nil
}

// callerThreads is how many idle threads a caller has ready before its first CLI starts: for
// the goroutines of an invocation that wait in a system call (copying to a file, a poll), and
// for those that they wake.
const callerThreads = 6

// prepareCaller starts them once, after a helper has shown that there is room for them (see
// wire.RoomVar): the runtime ends a process in which it cannot start one.
var prepareCaller = sync.OnceFunc(func() {
	startThreads(callerThreads, 0)
	callerReady.Store(true)
})

var callerReady atomic.Bool

// IdleThreads makes the Go runtime have n idle threads, or ends the process. It is for a
// process that has a few already and must not fail while its first helper takes the rest.
func IdleThreads(n int) { startThreads(n, 0) }
