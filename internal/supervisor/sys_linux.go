package supervisor

import (
	"bytes"
	"fmt"
	"os"
	pathpkg "path"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"curfew/internal/fault"
	"curfew/internal/journal"
	"curfew/internal/wire"
	"curfew/outcome"
	"curfew/proctree"
)

// What the helpers and their caller need of Linux.

// TrackerVariable names a variable which, if it is not empty, has trees held by scans of
// the process table, as they are where there is no subreaper. Nobody has a guard then.
const TrackerVariable = "CURFEW_TRACKER"

// tracking reports whether trees are held by scans.
func tracking() bool { return os.Getenv(TrackerVariable) != "" }

func openTree(interrupted func() bool) (proctree.Tree, error) {
	if tracking() {
		return proctree.OpenTracked(proctree.Options{Interrupted: interrupted, Frozen: os.Getenv(wire.FrozenVar), Boot: journal.BootID()})
	}
	return proctree.Open(proctree.Options{Interrupted: interrupted, ID: os.Getenv(wire.IDVar)})
}

// shortenSlice is for the thread that reaps, after the state of forking was read, the
// thread that leaders inherit from. What changes with it goes into state, to be compared
// with later.
func shortenSlice(forking int, state *State) {
	proctree.ShortenSlice(forking)
	state[stSched] = scheduling(forking)
}

const anyDir = unix.O_PATH

// beResumedBy has the kernel send us SIGCONT whenever something happens to our end of a
// socket, its hanging up too: should somebody have suspended us, and be it after our
// parent has died, the other end's next word, or its end, wakes us.
func beResumedBy(socket int) {
	flags, err := unix.FcntlInt(uintptr(socket), unix.F_GETFL, 0)
	for _, set := range [...]struct{ cmd, arg int }{
		{unix.F_SETOWN, unix.Getpid()}, {unix.F_SETSIG, int(unix.SIGCONT)}, {unix.F_SETFL, flags | unix.O_ASYNC},
	} {
		if err == nil {
			_, err = unix.FcntlInt(uintptr(socket), set.cmd, set.arg)
		}
	}
}

// watchCaller returns a descriptor that is readable when the caller is gone, which
// the caller has sent; -1 if there is none.
func watchCaller() int { return pollable(wire.CallerFD) }

// poll waits until something is ready or the time has come; the zero time never
// comes.
func poll(fds []unix.PollFd, until time.Time) error {
	var ts *unix.Timespec
	if !until.IsZero() {
		t := unix.NsecToTimespec(int64(max(time.Until(until), 0)))
		ts = &t
	}
	_, err := unix.Ppoll(fds, ts, nil)
	return err
}

// notifier returns a descriptor that becomes readable when eight bytes are written
// to the other one, which is the same.
func notifier() (fd, tell int, err error) {
	fd, err = unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		return -1, -1, fmt.Errorf("eventfd: %w", err)
	}
	return fd, fd, nil
}

// helperAttr is how a helper is started; its pidfd goes to h.
func helperAttr(h *Client) *syscall.SysProcAttr {
	// One that somebody has suspended has to see to what it holds when we are gone.
	return &syscall.SysProcAttr{Setsid: true, PidFD: &h.pidfd, Pdeathsig: syscall.SIGCONT}
}

// identity is not needed where there are pidfds.
type identity struct{}

func identify(int) identity { return identity{} }

// initThread is the thread that initialises the packages. In a Go program that is the
// main thread; in a library the runtime has made a thread for it.
var initThread = unix.Gettid()

// loadedBy says what has brought us into this process if its executable is not the
// program that we are a part of, "" if it is. Nothing is assumed about what cannot be
// read.
func loadedBy() string {
	if initThread != unix.Getpid() {
		return "this is a c-archive or c-shared library, or a plugin"
	}
	const startCode, endCode = 26 - 3, 27 - 3 // of proc(5), after the name and from the third field on
	b, err := os.ReadFile("/proc/self/stat")
	if err != nil {
		return ""
	}
	fields := bytes.Fields(b[bytes.LastIndexByte(b, ')')+1:])
	if len(fields) <= endCode {
		return ""
	}
	start, _ := strconv.ParseUint(string(fields[startCode]), 10, 64)
	end, _ := strconv.ParseUint(string(fields[endCode]), 10, 64) // 0 where the kernel does not tell, as gVisor's
	if pc, _, _, ok := runtime.Caller(0); ok && end > start && (uint64(pc) < start || uint64(pc) >= end) {
		return "this is a plugin or a shared library, or the program was started by naming it to a loader"
	}
	return ""
}

// ownExecutable is what to start helpers from.
func ownExecutable() (string, error) {
	// The link works for an executable that was deleted or replaced too.
	path := "/proc/self/exe"
	if why := loadedBy(); why != "" {
		return "", notOurs(why)
	}
	if _, err := os.Stat(path); err != nil {
		// Without /proc the name that we were started by is all there is.
		wd, err := os.Getwd()
		if path = os.Args[0]; !strings.Contains(path, "/") || err != nil && !pathpkg.IsAbs(path) {
			return "", fmt.Errorf("%w: without /proc our executable is not to be found by %q; start it by its path, or set Options.Supervisor to an installed curfew", errRefused, path)
		}
		if !pathpkg.IsAbs(path) {
			path = pathpkg.Join(wd, path)
		}
	}
	return path, nil
}

func ownPidfd() (int, error) {
	if errno := fault.At(fault.PidfdOpen); errno != 0 {
		return -1, errno
	}
	return unix.PidfdOpen(unix.Getpid(), 0)
}

// Kill ends the helper itself. It is for one that does not answer: what it held
// is no longer held.
func (h *Client) Kill() {
	_ = h.withPidfd(proctree.KillPidfd) // ESRCH: it is gone already
}

// hasPID reports whether the helper's pid is its own still: nobody has reaped it.
func (h *Client) hasPID() bool { return h.withPidfd(proctree.ProbePidfd) == nil }

// resume has a helper go on that somebody has suspended.
func (h *Client) resume() error { return h.withPidfd(proctree.ResumePidfd) }

// ended reports whether the helper has ended, and reaps it if it is our child. A
// caller that reaps every child itself, or ignores SIGCHLD, has done that
// already.
func (h *Client) ended() bool {
	h.end.Lock()
	defer h.end.Unlock()
	if h.guard != nil {
		if h.pidfd < 0 {
			return true // not to be known; it ends with its socket
		}
		fds := [1]unix.PollFd{{Fd: int32(h.pidfd), Events: unix.POLLIN}}
		n, _ := unix.Poll(fds[:], 0)
		return n > 0
	}
	for h.child != 0 && h.pidfd >= 0 {
		// Exact, where the caller reaps every child itself and the number
		// is another child's by now.
		var info unix.Siginfo
		switch err := unix.Waitid(unix.P_PIDFD, h.pidfd, &info, unix.WEXITED|unix.WNOHANG, nil); {
		case err == unix.EINTR:
			continue
		case err == nil && info.Signo == 0:
			return false
		case err == nil || err == unix.ECHILD: // Linux 5.3 answers EINVAL
			if h.child = 0; err == nil {
				h.exit = waitStatus(&info)
			}
			return true
		}
		break
	}
	return h.reapChild()
}

// waitStatus makes of what waitid has said what wait4 would have. The kernel's
// siginfo_t has pid, uid and status after three ints, on a 64-bit system with four
// bytes between.
func waitStatus(info *unix.Siginfo) *unix.WaitStatus {
	const cldExited = 1
	after := unsafe.Offsetof(info.Code) + 4
	if unsafe.Sizeof(uintptr(0)) == 8 {
		after += 4
	}
	status := unix.WaitStatus(*(*int32)(unsafe.Add(unsafe.Pointer(info), after+8)))
	if info.Code == cldExited {
		status <<= 8
	}
	return &status
}

// awaitEnd waits until the helper is dead and its children are somebody else's,
// and does not reap it. False where that cannot be waited for.
func (h *Client) awaitEnd(until time.Time) bool {
	// The wait is for a descriptor of its own: Close can close the other.
	fd := -1
	_ = h.withPidfd(func(pidfd int) (err error) {
		fd, err = unix.FcntlInt(uintptr(pidfd), unix.F_DUPFD_CLOEXEC, 0)
		return err
	})
	if fd < 0 {
		return false
	}
	defer unix.Close(fd)
	for {
		look := time.Now().Add(lookSoon)
		if look.After(until) {
			look = until
		}
		fds := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
		// Who traces it keeps it from being told.
		if wait(fds, look); fds[0].Revents != 0 || h.pid != 0 && proctree.Dead(h.pid) && h.hasPID() || !time.Now().Before(until) {
			return true
		}
	}
}

// Sweep ends what carries the mark of an invocation whose helper is lost, and
// the helper's guard with it. See proctree.Sweep.
func (h *Client) Sweep(mark string, _ int, since, until time.Time) ([]outcome.Ended, []outcome.Process) {
	// One that does not die must not take all the time there is.
	ended := time.Now().Add(time.Until(until) / 2)
	h.awaitEnd(ended)
	if h.guard != nil {
		h.guard.Kill()
		h.guard.awaitEnd(ended)
	}
	if h.pid != 0 {
		proctree.EndGroup(h.Group(), until)
	}
	return proctree.Sweep(proctree.Lost{Mark: mark, Cgroup: h.cgroup, Group: h.Group(), Since: since}, until)
}

// Sweep ends what carries the mark of an invocation whose caller and helpers are
// all lost; group is what Client.Group returned. See proctree.Sweep.
func Sweep(mark, cgroup, group string, since, until time.Time) ([]outcome.Ended, []outcome.Process) {
	return proctree.Sweep(proctree.Lost{Mark: mark, Cgroup: cgroup, Group: group, Since: since}, until)
}

func groupName(pid int, id string) string { return proctree.GroupName(pid, id) }

// processName is argv[0] as the kernel has it: os.Args can have been changed by
// an init function that ran before.
func processName() string {
	var buf [64]byte
	b, err := readSmallPart("/proc/self/cmdline", buf[:])
	if err != nil || len(b) == 0 {
		if len(os.Args) == 0 {
			return ""
		}
		return os.Args[0]
	}
	return firstArgument(b)
}

// checkDoor says why this process must not serve the other end of its socket:
// it has privileges that the other end may not have.
func checkDoor() string {
	const atSecure = 23
	auxv, err := unix.Auxv()
	if err != nil {
		return "the auxiliary vector cannot be read: " + err.Error()
	}
	secure := true
	for _, e := range auxv {
		if e[0] == atSecure {
			secure = e[1] != 0
		}
	}
	if secure {
		return "the executable gives privileges (setuid, setgid or file capabilities)"
	}
	cred, err := unix.GetsockoptUcred(wire.ControlFD, unix.SOL_SOCKET, unix.SO_PEERCRED)
	if err != nil {
		return "the peer's credentials cannot be read: " + err.Error()
	}
	if int(cred.Uid) != unix.Getuid() || int(cred.Uid) != unix.Geteuid() {
		return "the peer has another uid"
	}
	return ""
}

// denyAccess keeps other processes of this user from taking our descriptors
// (pidfd_getfd), tracing us and reading our memory, unless they have CAP_SYS_PTRACE. What
// we execute can be traced as usual: execve sets the flag again. Helpers that scan do
// without: they know each other by their environments, which could not be read.
func denyAccess() {
	if !tracking() {
		_ = unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0) // it cannot fail
	}
}

// giveUpStderr puts /dev/null in the place of our stderr.
func giveUpStderr() { _ = unix.Dup3(0, 2, 0) }

// eachOpen calls do with each descriptor that is open. False where there is no list.
func eachOpen(do func(fd int)) bool {
	dir, err := unix.Open("/proc/self/fd", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return false
	}
	defer unix.Close(dir)
	var buf [4096]byte
	for {
		n, err := unix.Getdents(dir, buf[:])
		if err != nil || n <= 0 {
			return true
		}
		_, _, names := unix.ParseDirent(buf[:n], -1, nil)
		for _, name := range names {
			if fd, err := strconv.Atoi(name); err == nil {
				do(fd)
			}
		}
	}
}
