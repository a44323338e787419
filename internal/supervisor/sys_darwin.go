package supervisor

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"curfew/internal/journal"
	"curfew/internal/wire"
	"curfew/outcome"
	"curfew/proctree"
)

// What the helpers and their caller need of macOS. There is no subreaper, so there are
// no guards: supervisors are children of the caller, which sweeps if it loses one.

// TrackerVariable names a variable that has trees held by scans of the process table.
// Here they are in any case.
const TrackerVariable = "CURFEW_TRACKER"

func tracking() bool { return true }

func openTree(interrupted func() bool) (proctree.Tree, error) {
	return proctree.Open(proctree.Options{Interrupted: interrupted, Frozen: os.Getenv(wire.FrozenVar), Boot: journal.BootID()})
}

func serveGuard() int {
	refuse("there are no guards on macOS")
	return exitRefused
}

// shortenSlice does nothing: launchd reaps what is orphaned here.
func shortenSlice(int, *State) {}

const anyDir = unix.O_RDONLY

// beResumedBy does nothing: the signal that the kernel can send cannot be chosen here.
func beResumedBy(int) {}

// watchCaller returns what is readable when the caller, our parent, is gone: its end
// of the socket can be held by a copy that it has forked.
func watchCaller() int {
	kq, err := unix.Kqueue()
	if err != nil {
		return -1 // its end of the socket has to do
	}
	unix.CloseOnExec(kq)
	change := []unix.Kevent_t{{
		Ident: uint64(unix.Getppid()), Filter: unix.EVFILT_PROC, Flags: unix.EV_ADD, Fflags: unix.NOTE_EXIT,
	}}
	// One that is exiting cannot be watched; that its end of the socket is closed
	// tells of it.
	_, _ = unix.Kevent(kq, change, nil, nil)
	return kq
}

// poll waits until something is ready or the time has come; the zero time never
// comes.
func poll(fds []unix.PollFd, until time.Time) error {
	ms := -1
	if !until.IsZero() {
		ms = int(min((max(time.Until(until), 0)+time.Millisecond-1)/time.Millisecond, 1<<30))
	}
	_, err := unix.Poll(fds, ms)
	return err
}

// notifier returns a descriptor that becomes readable when something is written to the
// other one.
func notifier() (fd, tell int, err error) {
	p, err := proctree.NewsPipe()
	if err != nil {
		return -1, -1, fmt.Errorf("pipe: %w", err)
	}
	return p[0], p[1], nil
}

// helperAttr is how a helper is started.
func helperAttr(*Client) *syscall.SysProcAttr { return &syscall.SysProcAttr{Setsid: true} }

// identity is how a helper is known: its pid alone could be another's, where the
// caller reaps every child itself.
type identity = proctree.Identity

func identify(pid int) identity {
	i, err := proctree.Identify(pid)
	if err != nil {
		return identity{} // nobody
	}
	return i
}

// ownExecutable is what to start helpers from.
func ownExecutable() (string, error) {
	path, err := os.Executable()
	if err != nil {
		return "", fmt.Errorf("%w: our executable cannot be found: %w; set Options.Supervisor to an installed curfew", errRefused, err)
	}
	return path, nil
}

// ownPidfd fails: there are none.
func ownPidfd() (int, error) { return -1, unix.ENOSYS }

// Kill ends the helper itself. It is for one that does not answer: what it held
// is no longer held.
func (h *Client) Kill() {
	h.end.Lock()
	defer h.end.Unlock()
	if h.child != 0 {
		_ = h.exact.Kill() // ESRCH: it is gone already
	}
}

// hasPID reports whether the helper's pid is its own still: nobody has reaped it.
func (h *Client) hasPID() bool {
	h.end.Lock()
	defer h.end.Unlock()
	return h.child != 0
}

// resume has a helper go on that somebody has suspended.
func (h *Client) resume() error {
	h.end.Lock()
	defer h.end.Unlock()
	if h.child == 0 {
		return unix.ESRCH
	}
	return h.exact.Resume()
}

// ended reports whether the helper has ended, and reaps it. A caller that reaps every
// child itself, or ignores SIGCHLD, has done that already.
func (h *Client) ended() bool {
	h.end.Lock()
	defer h.end.Unlock()
	return h.reapChild()
}

// awaitEnd waits until the helper is dead, and does not reap it.
func (h *Client) awaitEnd(until time.Time) bool {
	for pause := time.Millisecond; ; pause = min(2*pause, 20*time.Millisecond) {
		h.end.Lock()
		gone := h.child == 0 || h.exact.HasExited()
		h.end.Unlock()
		if gone || !time.Now().Before(until) {
			return gone
		}
		time.Sleep(min(pause, time.Until(until)))
	}
}

// Sweep ends what is left of an invocation whose helper is lost. See proctree.Sweep.
func (h *Client) Sweep(mark string, leader int, since, until time.Time) ([]outcome.Ended, []outcome.Process) {
	h.awaitEnd(until)
	return proctree.Sweep(proctree.Lost{Mark: mark, MarkPrefix: wire.MarkPrefix, Leader: leader, Since: since}, until)
}

// Sweep ends what is left of an invocation whose caller and helpers are all lost. See
// proctree.Sweep.
func Sweep(mark, _, _ string, since, until time.Time) ([]outcome.Ended, []outcome.Process) {
	return proctree.Sweep(proctree.Lost{Mark: mark, MarkPrefix: wire.MarkPrefix, Since: since}, until)
}

// processName is argv[0] as the kernel has it: os.Args can have been changed by
// an init function that ran before.
func processName() string {
	b, err := unix.SysctlRaw("kern.procargs2", unix.Getpid())
	if err != nil || len(b) < 4 {
		if len(os.Args) == 0 {
			return ""
		}
		return os.Args[0]
	}
	// The number of arguments, the path of the executable, zero bytes, the arguments.
	_, rest, _ := bytes.Cut(b[4:], []byte{0})
	return firstArgument(bytes.TrimLeft(rest, "\x00"))
}

// checkDoor says why this process must not serve the other end of its socket:
// it has privileges that the other end may not have.
func checkDoor() string {
	if unix.Issetugid() {
		return "the executable gives privileges (setuid or setgid)"
	}
	cred, err := unix.GetsockoptXucred(wire.ControlFD, unix.SOL_LOCAL, unix.LOCAL_PEERCRED)
	if err != nil {
		return "the peer's credentials cannot be read: " + err.Error()
	}
	if int(cred.Uid) != unix.Getuid() || int(cred.Uid) != unix.Geteuid() {
		return "the peer has another uid"
	}
	return ""
}

// giveUpStderr puts /dev/null in the place of our stderr.
func giveUpStderr() { _ = unix.Dup2(0, 2) }

// eachOpen returns false: there is no list that can be had without a name for each.
func eachOpen(func(fd int)) bool { return false }

// errUnread means that the state cannot be read in full, so that no helper is used
// twice: nothing tells the umask without changing it.
var errUnread = errors.New("supervisor: the state of this process cannot be read in full")

func readState(int) (State, error) { return State{}, errUnread }

func ownCgroup() string { return "" }

// denyAccess does nothing: no process can take another one's descriptors here.
func denyAccess() {}

func groupName(int, string) string { return "" }

// noFileLimit is our own soft RLIMIT_NOFILE.
func noFileLimit() uint64 {
	var l unix.Rlimit
	_ = unix.Getrlimit(unix.RLIMIT_NOFILE, &l)
	return l.Cur
}

// privileged reports why the executable at path must not be started as a helper of
// ourselves: it would get privileges that we do not have.
func privileged(path string) error {
	fi, err := os.Stat(path)
	if err == nil && fi.Mode()&(os.ModeSetuid|os.ModeSetgid) != 0 {
		err = errors.New("the executable is setuid or setgid")
	}
	return err
}

// Ignored reports whether this process ignores sig.
func Ignored(sig syscall.Signal) bool { return signal.Ignored(sig) }
