package supervisor

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"curfew/internal/wire"
	"curfew/outcome"
	"curfew/proctree"
)

// tooLong is longer than any test and ends by itself.
const tooLong = "55"

// patience bounds every wait. It is no measure of speed.
const patience = 20 * time.Second

func init() {
	roles["changes"] = changesRole
	roles["exits traced"] = exitsTracedRole
	roles["is scheduled"] = isScheduledRole
	roles["drops root"] = dropsRootRole
	roles["namespaces"] = namespacesRole
	roles["client"] = clientRole
	roles["vandal"] = vandalRole
}

// inRole runs a role in a process of its own and fails with its error.
func inRole(t *testing.T, role string, args ...string) {
	t.Helper()
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, os.Args[0], args...)
	cmd.Env = append(os.Environ(), roleVar+"="+role)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
}

func needsRoot(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
}

func settings() wire.Settings {
	return wire.Settings{Duties: wire.Duties{ID: "test"}, Policy: proctree.Policy{Signal: 15, Grace: time.Second, KillWait: 2 * time.Second}, Linger: time.Second, Numbers: []int{1}}
}

// runCLI runs argv on a supervisor of the pool and returns its output, the report and the
// supervisor's pid.
func runCLI(p *Pool, s wire.Settings, argv ...string) (string, *wire.Done, int, error) {
	h, err := p.Get(context.Background(), false)
	if err != nil {
		return "", nil, 0, err
	}
	pid := h.pid
	out, done, err := runOn(h, s, argv...)
	if err == nil {
		p.Put(h)
	}
	return out, done, pid, err
}

func runOn(h *Client, s wire.Settings, argv ...string) (string, *wire.Done, error) {
	path, err := exec.LookPath(argv[0])
	if err != nil {
		return "", nil, err
	}
	r, w, err := os.Pipe()
	if err != nil {
		return "", nil, err
	}
	defer r.Close()
	dir, err := unix.Open(".", unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		return "", nil, err
	}
	err = h.Run(context.Background(), &wire.Request{Settings: s, Path: path, Args: argv, Env: os.Environ(), Dir: dir, Files: []int{int(w.Fd())}})
	unix.Close(dir)
	w.Close()
	if err != nil {
		return "", nil, err
	}
	h.Interrupt(time.Now().Add(patience))
	defer h.Interrupt(time.Time{})
	for {
		ev, err := h.Next()
		if err != nil {
			return "", nil, err
		}
		if ev.Done != nil {
			b, err := io.ReadAll(r)
			return string(b), ev.Done, err
		}
	}
}

// A supervisor is used again, but not after the caller has changed in something that the CLI would
// inherit: then the CLI has what a new child would have.
func TestHelperIsNoOldSelf(t *testing.T) { inRole(t, "changes") }

func changesRole([]string) error {
	var p Pool
	defer p.Close()
	status := func(key string) func(string) (string, error) {
		return func(out string) (string, error) {
			for line := range strings.Lines(out) {
				if v, ok := strings.CutPrefix(line, key+":"); ok {
					return strings.TrimSpace(v), nil
				}
			}
			return "", errors.New("no " + key + " in what the CLI wrote")
		}
	}
	get := func() (string, int, error) {
		out, done, pid, err := runCLI(&p, settings(), "sh", "-c", "cat /proc/self/status; echo Nice: $(nice); echo Core: $(ulimit -Hc); echo OOM: $(cat /proc/self/oom_score_adj)")
		if err == nil && (done.Exit == nil || done.Exit.Code != 0) {
			err = fmt.Errorf("exit %+v", done.Exit)
		}
		return out, pid, err
	}
	_, first, err := get()
	if err != nil {
		return err
	}
	if _, again, err := get(); err != nil || again != first {
		return fmt.Errorf("without a change: helper %d after %d, %v", again, first, err)
	}
	old := first
	for _, tt := range []struct {
		key    string
		want   string
		change func() error
	}{
		{"Umask", "0027", func() error { unix.Umask(0o027); return nil }},
		{"Nice", "5", func() error {
			// A child inherits from the thread that forks, so every thread is changed: the call
			// for the process changes its main thread alone.
			tasks, err := filepath.Glob("/proc/self/task/*")
			for _, task := range tasks {
				tid, _ := strconv.Atoi(filepath.Base(task))
				if err := unix.Setpriority(unix.PRIO_PROCESS, tid, 5); err != nil {
					return err
				}
			}
			return err
		}},
		{"Core", "0", func() error { return unix.Setrlimit(unix.RLIMIT_CORE, &unix.Rlimit{}) }},
		{"OOM", "321", func() error { return os.WriteFile("/proc/self/oom_score_adj", []byte("321"), 0) }},
	} {
		if err := tt.change(); err != nil {
			return fmt.Errorf("change %s: %w", tt.key, err)
		}
		out, pid, err := get()
		if err != nil {
			return err
		}
		got, err := status(tt.key)(out)
		if err != nil || got != tt.want {
			return fmt.Errorf("after the change the CLI has %s %q, want %q (%v)", tt.key, got, tt.want, err)
		}
		if pid == old {
			return fmt.Errorf("%s: the helper was used again", tt.key)
		}
		old = pid
	}
	return nil
}

// A caller that drops from root to another uid must not get a root CLI.
func TestCallerDropsRoot(t *testing.T) {
	needsRoot(t)
	inRole(t, "drops root")
}

func dropsRootRole([]string) error {
	var p Pool
	defer p.Close()
	if out, _, _, err := runCLI(&p, settings(), "id", "-u"); err != nil || strings.TrimSpace(out) != "0" {
		return fmt.Errorf("as root: %q %v", out, err)
	}
	// The executable of the test may lie in a directory that this user cannot search; its link works.
	if err := errors.Join(syscall.Setgroups(nil), syscall.Setgid(65534), syscall.Setuid(65534)); err != nil {
		return err
	}
	out, _, _, err := runCLI(&p, settings(), "sh", "-c", "id -u; id -G; grep CapEff /proc/self/status")
	if err != nil {
		return err
	}
	if f := strings.Fields(out); len(f) != 4 || f[0] != "65534" || f[1] != "65534" || strings.Trim(f[3], "0") != "" {
		return fmt.Errorf("after the drop the CLI is %q", out)
	}
	return nil
}

// A caller's thread in a network namespace of its own gets a CLI in it; the other threads get CLIs
// in theirs.
func TestThreadInItsOwnNamespace(t *testing.T) {
	needsRoot(t)
	inRole(t, "namespaces")
}

func namespacesRole([]string) error {
	var p Pool
	defer p.Close()
	link := func() (string, error) {
		out, _, _, err := runCLI(&p, settings(), "readlink", "/proc/self/ns/net")
		return strings.TrimSpace(out), err
	}
	outside, err := link()
	if err != nil {
		return err
	}
	inside := make(chan string)
	failed := make(chan error, 1)
	go func() {
		defer close(inside)
		runtime.LockOSThread() // never unlocked: the thread is of no use to others
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			failed <- fmt.Errorf("unshare: %w", err)
			return
		}
		want, err := os.Readlink("/proc/thread-self/ns/net")
		if err != nil {
			failed <- err
			return
		}
		got, err := link()
		if err != nil || got != want {
			failed <- fmt.Errorf("in a namespace of its own: %q, want %q (%v)", got, want, err)
			return
		}
		inside <- got
	}()
	in, ok := <-inside
	if !ok {
		return <-failed
	}
	again, err := link()
	if err != nil || again != outside || again == in {
		return fmt.Errorf("outside %q, then %q, inside %q (%v)", outside, again, in, err)
	}
	return nil
}

// A supervisor that its CLI has changed serves no other.
func TestSupervisorThatWasChanged(t *testing.T) { inRole(t, "vandal") }

func vandalRole([]string) error {
	var p Pool
	defer p.Close()
	_, _, first, err := runCLI(&p, settings(), "sh", "-c", "for t in /proc/$PPID/task/*; do renice -n 7 -p ${t##*/}; done")
	if err != nil {
		return err
	}
	out, _, second, err := runCLI(&p, settings(), "nice")
	if err != nil || second == first || strings.TrimSpace(out) != "0" {
		return fmt.Errorf("helper %d, then %d: the next CLI has nice %q (%v)", first, second, out, err)
	}
	return nil
}

// clientRole is a caller whose CLI sleeps, for tests that look at it from outside.
func clientRole(args []string) error {
	var p Pool
	h, err := p.Get(context.Background(), false)
	if err != nil {
		return err
	}
	fmt.Println(h.pid)
	_, _, err = runOn(h, settings(), "sleep", tooLong)
	return err
}

// rawHelper starts a supervisor, to which the test writes bytes.
func rawHelper(t *testing.T) (*net.UnixConn, int) {
	t.Helper()
	runtime.LockOSThread()
	h, err := spawn("", nil)
	runtime.UnlockOSThread()
	if err != nil {
		t.Fatal(err)
	}
	f := os.NewFile(uintptr(copySocket(t, &h.helper)), "")
	c, err := net.FileConn(f)
	f.Close()
	if err != nil {
		t.Fatal(err)
	}
	h.conn.Close()
	t.Cleanup(func() {
		c.Close()
		if !h.Close(patience) {
			t.Errorf("helper %d is still there", h.pid)
			h.Kill()
			h.Close(patience)
		}
	})
	conn := c.(*net.UnixConn)
	if m := hear(t, conn); m.Hello == nil {
		t.Fatalf("first word %+v", m)
	}
	return conn, h.pid
}

// copySocket returns another descriptor of our end of a helper's socket.
func copySocket(t *testing.T, h *helper) (fd int) {
	t.Helper()
	var err error
	if closed := h.conn.Control(func(socket int) { fd, err = unix.FcntlInt(uintptr(socket), unix.F_DUPFD_CLOEXEC, 0) }); closed != nil || err != nil {
		t.Fatal(closed, err)
	}
	return fd
}

func hear(t *testing.T, c *net.UnixConn) *wire.Message {
	t.Helper()
	_ = c.SetReadDeadline(time.Now().Add(patience))
	var head [wire.FrameHeader]byte
	if _, err := io.ReadFull(c, head[:]); err != nil {
		t.Fatal(err)
	}
	j, r, err := wire.FrameSize(head[:])
	if err != nil {
		t.Fatal(err)
	}
	b := make([]byte, j+r)
	if _, err := io.ReadFull(c, b); err != nil {
		t.Fatal(err)
	}
	m, err := wire.Decode(b[:j])
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// An idle supervisor that gets what is no message answers with an error and ends.
func TestHelperRefusesNonsense(t *testing.T) {
	for name, say := range map[string][]byte{
		"noise":                 bytes.Repeat([]byte("\xff"), 1000),
		"no JSON":               append([]byte{0, 0, 0, 5, 0, 0, 0, 0}, "hello"...),
		"a word of its own":     frame(t, &wire.Message{Ready: &struct{}{}}, nil),
		"run without anything":  frame(t, &wire.Message{Run: &wire.Run{}}, nil),
		"run without directory": frame(t, &wire.Message{Run: &wire.Run{Settings: wire.Settings{Policy: proctree.Policy{Signal: 15}}, Args: 1}}, runRaw("/bin/true", []string{"true"}, nil)),
		"no such signal":        frame(t, &wire.Message{Signal: &wire.Signal{ID: "test", Signal: 99}}, nil),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c, _ := rawHelper(t)
			if _, err := c.Write(say); err != nil {
				t.Fatal(err)
			}
			if m := hear(t, c); m.Failed == nil {
				t.Errorf("answer %+v", m)
			}
			if n, err := c.Read(make([]byte, 1)); err != io.EOF {
				t.Errorf("after its complaint: %d bytes, %v", n, err)
			}
		})
	}
}

// Nonsense during an invocation ends the invocation: its FIFO comes to its end.
func TestNonsenseEndsTheInvocation(t *testing.T) {
	t.Parallel()
	c, _ := rawHelper(t)
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	dir, err := os.Open("/")
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	s := settings()
	s.Grace = 0
	sh, _ := exec.LookPath("sh")
	say := frame(t, &wire.Message{Run: &wire.Run{Settings: s, Args: 3}},
		runRaw(sh, []string{"sh", "-c", "trap '' TERM; setsid sleep " + tooLong + " & sleep " + tooLong}, nil))
	if _, _, err := c.WriteMsgUnix(say, unix.UnixRights(int(dir.Fd()), int(w.Fd())), nil); err != nil {
		t.Fatal(err)
	}
	w.Close()
	if m := hear(t, c); m.Started == nil {
		t.Fatalf("answer %+v", m)
	}
	if _, err := c.Write(bytes.Repeat([]byte{0}, 64)); err != nil {
		t.Fatal(err)
	}
	_ = r.SetReadDeadline(time.Now().Add(patience))
	if n, err := r.Read(make([]byte, 1)); err != io.EOF {
		t.Errorf("%d bytes, %v: something still holds the pipe", n, err)
	}
}

// When a caller is killed, the tree and the supervisor end.
func TestCallerIsKilled(t *testing.T) {
	t.Parallel()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), roleVar+"=client")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, 32)
	n, _ := out.Read(buf)
	helper, err := strconv.Atoi(strings.TrimSpace(string(buf[:n])))
	if err != nil {
		t.Fatal(err)
	}
	pidfd, err := unix.PidfdOpen(helper, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(pidfd)
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
	fds := []unix.PollFd{{Fd: int32(pidfd), Events: unix.POLLIN}}
	if wait(fds, time.Now().Add(patience)); fds[0].Revents == 0 {
		t.Error("the helper outlives its caller")
	}
}

// A copy of this program that gives privileges does not serve.
func TestSetuidCopyIsNoHelper(t *testing.T) {
	needsRoot(t)
	t.Parallel()
	dir, err := os.MkdirTemp("", "curfew-door-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	self, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	start := func(t *testing.T, mode os.FileMode) (said string, code int) {
		file := filepath.Join(dir, fmt.Sprintf("copy-%o", mode))
		if err := os.WriteFile(file, self, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(file, 0o755|mode); err != nil {
			t.Fatal(err)
		}
		pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		ours, theirs := os.NewFile(uintptr(pair[0]), "ours"), os.NewFile(uintptr(pair[1]), "theirs")
		defer ours.Close()
		cmd := exec.Command(file)
		cmd.Args = []string{wire.SupervisorName}
		cmd.ExtraFiles = []*os.File{theirs, theirs}
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
		var stderr strings.Builder
		cmd.Stderr = &stderr
		err = cmd.Start()
		for end := time.Now().Add(patience); errors.Is(err, syscall.ETXTBSY) && time.Now().Before(end); {
			// Another test has forked while the copy was open for writing.
			again := exec.Command(file)
			again.Args, again.ExtraFiles, again.SysProcAttr, again.Stderr = cmd.Args, cmd.ExtraFiles, cmd.SysProcAttr, cmd.Stderr
			cmd, err = again, again.Start()
		}
		if err != nil {
			t.Fatal(err)
		}
		theirs.Close()
		_ = ours.SetReadDeadline(time.Now().Add(patience))
		b := make([]byte, 4096)
		n, _ := ours.Read(b)
		ours.Close()
		_ = cmd.Wait()
		return string(b[:n]) + stderr.String(), cmd.ProcessState.ExitCode()
	}
	// SO_PEERCRED has the uid of the test, which is root's: the plain copy, run by another user,
	// refuses too, and reports why.
	if said, code := start(t, 0); code != exitRefused || !strings.Contains(said, "another uid") {
		t.Errorf("another user's copy: exit %d, %q", code, said)
	}
	if said, code := start(t, os.ModeSetuid); code != exitRefused || !strings.Contains(said, "setuid") {
		t.Errorf("setuid copy: exit %d, %q", code, said)
	}
	if err := privileged(filepath.Join(dir, fmt.Sprintf("copy-%o", os.ModeSetuid))); err == nil {
		t.Error("a setuid executable is taken for a helper")
	}
}

func TestGetIsCanceled(t *testing.T) {
	t.Parallel()
	// An executable that never sends a Hello.
	file := filepath.Join(t.TempDir(), "mute")
	if err := os.WriteFile(file, []byte("#!/bin/sh\nexec sleep "+tooLong+"\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	p := Pool{Executable: file}
	cause := errors.New("enough")
	ctx, cancel := context.WithCancelCause(t.Context())
	time.AfterFunc(50*time.Millisecond, func() { cancel(cause) })
	if h, err := p.Get(ctx, false); h != nil || !errors.Is(err, cause) {
		t.Errorf("got %v, %v", h, err)
	}
	if left := p.Close(); left != 0 {
		t.Errorf("%d helpers are left", left)
	}
}

func TestExecutableThatIsNoHelper(t *testing.T) {
	t.Parallel()
	p := Pool{Executable: "/bin/true"}
	defer p.Close()
	if h, err := p.Get(t.Context(), false); h != nil || !errors.Is(err, errRefused) {
		t.Errorf("got %v, %v", h, err)
	}
}

// An idle caller has no helper after a while: supervisor and guard have ended, and the guard, which
// is our child, is reaped.
func TestIdleHelpersEnd(t *testing.T) {
	t.Parallel()
	p := Pool{IdleTime: 50 * time.Millisecond}
	h, err := p.Get(t.Context(), false)
	if err != nil {
		t.Fatal(err)
	}
	pids := []int{h.pid, h.guard.pid}
	if _, done, err := runOn(h, settings(), "true"); err != nil || done.Cleanup.Result != outcome.CleanupEmpty {
		t.Fatalf("%+v %v", done, err)
	}
	p.Put(h)
	for _, pid := range pids {
		for end := time.Now().Add(patience); ; time.Sleep(10 * time.Millisecond) {
			if _, err := os.Stat("/proc/" + strconv.Itoa(pid)); err != nil {
				break
			}
			if time.Now().After(end) {
				t.Errorf("helper %d is still there", pid)
				break
			}
		}
	}
	p.Close()
}

// A supervisor that ends only after its pool was closed is reaped, and leaves no descriptor: one
// that is late, and one that was discarded before.
func TestLateHelperOfAClosedPool(t *testing.T) {
	t.Parallel()
	for _, before := range []bool{false, true} {
		t.Run(fmt.Sprintf("let go of before: %v", before), func(t *testing.T) {
			t.Parallel()
			p := Pool{IdleTime: time.Hour}
			h, err := p.Get(t.Context(), true)
			if err != nil {
				t.Fatal(err)
			}
			// It does not end while a copy of our end of its socket is open.
			copied := copySocket(t, &h.helper)
			left := 0
			if before {
				p.Discard(h)
				left = 1
			}
			if got := p.Close(); got != left {
				t.Errorf("closed with %d helpers left, want %d", got, left)
			}
			if !before {
				p.Discard(h)
			}
			unix.Close(copied)
			for end := time.Now().Add(patience); h.withPidfd(func(int) error { return nil }) == nil; time.Sleep(10 * time.Millisecond) {
				if time.Now().After(end) {
					t.Fatal("nobody has reaped it")
				}
			}
		})
	}
}

// A stop that comes late, when its invocation is over and the supervisor serves another, stops
// nothing.
func TestLateStopIsNotForTheNext(t *testing.T) {
	t.Parallel()
	var p Pool
	defer p.Close()
	first := settings()
	first.ID = "first"
	h, err := p.Get(t.Context(), false)
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := runOn(h, first, "true"); err != nil {
		t.Fatal(err)
	}
	p.Put(h)
	if again, err := p.Get(t.Context(), false); err != nil || again != h {
		t.Fatalf("another helper, or none: %v", err)
	}
	second := settings()
	second.ID = "second"
	stop := time.AfterFunc(50*time.Millisecond, func() {
		_ = h.Stop(wire.StopRequest{ID: "first", Cause: outcome.CauseCanceled, Kill: true})
	})
	defer stop.Stop()
	out, done, err := runOn(h, second, "sh", "-c", "sleep 0.3; echo whole")
	if err != nil || out != "whole\n" || done.StopBegan || len(done.Cleanup.Ended) > 0 {
		t.Errorf("wrote %q, %+v, %v", out, done, err)
	}
	p.Put(h)
}

// cpuTime returns the CPU time that a process has used, all its threads included.
func cpuTime(pid int) (time.Duration, error) {
	// The ID of another process's clock, as clock_getcpuclockid computes it.
	const schedClock = 2
	var ts unix.Timespec
	err := unix.ClockGettime(int32(^pid<<3|schedClock), &ts)
	return time.Duration(ts.Nano()), err
}

// A helper that has nothing to do uses no CPU time: after one invocation, after many at once, and
// after a supervisor was lost.
func TestIdleHelpersUseNoCPUTime(t *testing.T) {
	var p Pool
	defer p.Close()
	h, err := p.Get(t.Context(), false)
	if err != nil {
		t.Fatal(err)
	}
	helpers := map[string]int{"guard": h.guard.pid, "first supervisor": h.pid}
	p.Put(h)
	rests := func(after string) {
		t.Helper()
		const watched = 500 * time.Millisecond
		before := map[string]time.Duration{}
		for name, pid := range helpers {
			if before[name], err = cpuTime(pid); err != nil {
				t.Fatalf("after %s: %s: %v", after, name, err)
			}
		}
		time.Sleep(watched)
		for name, pid := range helpers {
			now, err := cpuTime(pid)
			if used := now - before[name]; err != nil || used > watched/10 {
				t.Errorf("after %s: the %s has used %v of %v, %v", after, name, used, watched, err)
			}
		}
	}
	for range 3 {
		if _, _, pid, err := runCLI(&p, settings(), "true"); err != nil || pid != h.pid {
			t.Fatalf("on helper %d, want %d: %v", pid, h.pid, err)
		}
		rests("an invocation")
	}
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			for range 5 {
				if _, _, _, err := runCLI(&p, settings(), "sh", "-c", "true & setsid true & true"); err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
	p.mu.Lock()
	for i, h := range p.idle {
		helpers[fmt.Sprintf("idle supervisor %d", i)] = h.pid
	}
	p.mu.Unlock()
	rests("many invocations")
	lost, err := p.Get(t.Context(), false)
	if err != nil {
		t.Fatal(err)
	}
	for name, pid := range helpers {
		if pid == lost.pid {
			delete(helpers, name)
		}
	}
	if _, _, err := runOn(lost, settings(), "sh", "-c", "setsid sleep "+tooLong+" & kill -9 $PPID; sleep "+tooLong); err == nil {
		t.Fatal("the supervisor was not killed")
	}
	if _, err := lost.Swept(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	p.Discard(lost)
	rests("a supervisor was lost")
}

// A leader that is traced has exited and cannot be reaped yet. Its supervisor waits for that without
// using CPU time.
func TestTracedLeaderUsesNoCPUTime(t *testing.T) {
	t.Parallel()
	var p Pool
	defer p.Close()
	env := append(os.Environ(), roleVar+"=exits traced")
	h, held := heldRun(t, &p, settings(), env, os.Args[0])
	pid := h.pid
	used := func() time.Duration {
		cpu, err := cpuTime(pid)
		if err != nil {
			t.Fatal(err)
		}
		return cpu
	}
	const watched = 500 * time.Millisecond
	before := used()
	time.Sleep(watched)
	if cpu := used() - before; cpu > watched/10 {
		t.Errorf("the supervisor has used %v of %v", cpu, watched)
	}
	if err := h.Stop(wire.StopRequest{ID: settings().ID, Cause: outcome.CauseCanceled, Kill: true}); err != nil {
		t.Error(err)
	}
	atEOF(t, held)
	p.Discard(h)
}

// exitsTracedRole is a leader that exits while a child of it, in a session of its own, traces it.
// The tracing ends when the child is killed.
func exitsTracedRole(args []string) error {
	if len(args) == 0 {
		tracer := exec.Command(os.Args[0], strconv.Itoa(os.Getpid()))
		tracer.Env = append(os.Environ(), roleVar+"=exits traced")
		tracer.Stdout, tracer.Stderr = os.Stdout, os.Stdout
		tracer.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
		if err := tracer.Start(); err != nil {
			return err
		}
		for tracedBy := ""; tracedBy != strconv.Itoa(tracer.Process.Pid); time.Sleep(time.Millisecond) {
			status, err := os.ReadFile("/proc/self/status")
			if err != nil {
				return err
			}
			_, rest, _ := strings.Cut(string(status), "TracerPid:")
			tracedBy, _, _ = strings.Cut(strings.TrimSpace(rest), "\n")
		}
		os.Exit(0)
	}
	runtime.LockOSThread()
	pid, _ := strconv.Atoi(args[0])
	if err := unix.PtraceSeize(pid); err != nil {
		return os.NewSyscallError("PTRACE_SEIZE", err)
	}
	for end := time.Now().Add(patience); ; time.Sleep(time.Millisecond) {
		status, err := os.ReadFile("/proc/" + args[0] + "/status")
		if err != nil || time.Now().After(end) {
			return fmt.Errorf("the leader does not become a zombie: %v", err)
		}
		if strings.Contains(string(status), "\nState:\tZ") {
			break
		}
	}
	fmt.Println("ready")
	time.Sleep(50 * time.Second)
	return nil
}

// A descriptor that stands for a pidfd that could not be had is not polled: it is always ready.
func TestPollable(t *testing.T) {
	t.Parallel()
	for _, path := range []string{"/dev/null", "/"} {
		f, err := os.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		if got := pollable(int(f.Fd())); got != -1 {
			t.Errorf("%s: got %d, want -1", path, got)
		}
	}
	if fd := pidfd(t, os.Getpid()); pollable(fd) != fd {
		t.Error("a pidfd is not polled")
	}
}

// The thread of a supervisor that reaps has a short time slice and no real-time priority, with
// which it would spin in wait4 beside a reader of /proc. The CLI is scheduled as one that this
// process starts itself.
func TestScheduling(t *testing.T) { inRole(t, "is scheduled") }

func isScheduledRole([]string) error {
	attr := func(tid int) unix.SchedAttr {
		a, err := unix.SchedGetAttr(tid, 0)
		if err != nil {
			return unix.SchedAttr{}
		}
		return *a
	}
	if len(os.Args) > 1 {
		fmt.Printf("%+v", attr(0))
		return nil
	}
	var p Pool
	defer p.Close()
	runtime.LockOSThread()
	os.Setenv(roleVar, "is scheduled")
	var slice unix.SchedAttr
	for _, nice := range []int{0, 3} {
		if err := unix.Setpriority(unix.PRIO_PROCESS, 0, nice); err != nil {
			return err
		}
		want, err := exec.Command(os.Args[0], "prints").Output()
		if err != nil {
			return err
		}
		got, _, pid, err := runCLI(&p, settings(), os.Args[0], "prints")
		if err != nil || got != string(want) || got == "" {
			return fmt.Errorf("nice %d: the CLI has %q, want %q: %v", nice, got, want, err)
		}
		slice = attr(pid) // Linux 6.12 reports the slice, and lets it be set
	}
	own := attr(0)
	if own.Runtime != 0 && slice.Runtime >= own.Runtime || slice.Policy != own.Policy || slice.Priority != 0 {
		return fmt.Errorf("the supervisor has %+v, this process %+v", slice, own)
	}
	return nil
}

func frame(t testing.TB, m *wire.Message, raw []byte) []byte {
	t.Helper()
	b, err := wire.Encode(m, raw)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func runRaw(path string, args, env []string) []byte {
	raw := wire.AppendString(nil, path)
	for _, s := range append(append([]string(nil), args...), env...) {
		raw = wire.AppendString(raw, s)
	}
	return raw
}

// A helper of another version is refused, and the error names both.
func TestHelperOfAnotherVersion(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		first *wire.Message
		want  []string
	}{
		"older":      {&wire.Message{Hello: &wire.Hello{Version: wire.Version - 1}}, []string{"stub", fmt.Sprint("version ", wire.Version-1), fmt.Sprint("version ", wire.Version)}},
		"newer":      {&wire.Message{Hello: &wire.Hello{Version: wire.Version + 1}}, []string{"stub", fmt.Sprint("version ", wire.Version+1), fmt.Sprint("version ", wire.Version)}},
		"no version": {&wire.Message{Ready: &struct{}{}}, []string{"stub", "does not begin with its version"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pair, err := wire.Socketpair()
			if err != nil {
				t.Fatal(err)
			}
			defer unix.Close(pair[1])
			h := &Client{}
			stub(&h.helper, pair[0])
			defer h.Close(0)
			if err := wire.SendOn(pair[1], tt.first); err != nil {
				t.Fatal(err)
			}
			err = h.greet(t.Context())
			if !errors.Is(err, errRefused) {
				t.Fatalf("got %v", err)
			}
			for _, part := range tt.want {
				if !strings.Contains(err.Error(), part) {
					t.Errorf("%q does not contain %q", err, part)
				}
			}
		})
	}
}
