package proctree

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"curfew/internal/sys"
	"curfew/outcome"
)

// tooLong is longer than any test and ends by itself.
const tooLong = "55"

func init() {
	roles["orphans"] = func([]string) error { return endOrphans(func(*subreaper) {}) }
	roles["no children files"] = func([]string) error {
		return endOrphans(func(t *subreaper) { t.kin.lists, t.proc.noChildren = nil, true })
	}
	roles["no proc"] = func([]string) error { return endOrphans(func(t *subreaper) { t.kin.lists, t.proc.fd = nil, -1 }) }
	roles["no descriptors"] = func([]string) error {
		// As a CLI could do it to its supervisor, which then can open nothing.
		return endOrphans(func(t *subreaper) {
			if t.kin.first != 0 {
				_ = unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 3, Max: limitMax()})
			}
		})
	}
	roles["childless"] = childlessRole
	roles["start"] = startRole
	roles["lease"] = leaseRole
	roles["polite"] = politeRole
	roles["deep"] = deepRole
	roles["stranger"] = strangerRole
	roles["holds"] = holdsRole
	roles["long look"] = longLookRole
	roles["ignored"] = ignoredRole
	roles["storm"] = stormRole
	roles["untold start"] = untoldStartRole
}

// inTree runs a role in a process of its own and fails with its error.
func inTree(t *testing.T, role string, args ...string) {
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

func TestEndsOrphans(t *testing.T)          { inTree(t, "orphans") }
func TestWithoutChildrenFiles(t *testing.T) { inTree(t, "no children files") }
func TestWithoutProc(t *testing.T)          { inTree(t, "no proc") }
func TestWithoutDescriptors(t *testing.T)   { inTree(t, "no descriptors") }
func TestNothingToStrike(t *testing.T)      { inTree(t, "childless") }
func TestPoliteSignal(t *testing.T)         { inTree(t, "polite", t.TempDir()) }
func TestStrikesBelow(t *testing.T)         { inTree(t, "deep") }
func TestStart(t *testing.T)                { inTree(t, "start", t.TempDir()) }
func TestHolds(t *testing.T)                { inTree(t, "holds", t.TempDir()) }
func TestLongLook(t *testing.T)             { inTree(t, "long look") }
func TestForkAndExitChains(t *testing.T)    { inTree(t, "storm") }
func TestStartUnderALease(t *testing.T)     { inTree(t, "lease", t.TempDir()) }

// The leader must not inherit what our parent ignored.
func TestIgnoredSignals(t *testing.T) {
	t.Parallel()
	cmd := exec.CommandContext(t.Context(), "sh", "-c", `trap "" TSTP TTIN TTOU USR1 PIPE RTMIN; exec "$0" "$@"`, os.Args[0])
	cmd.Env = append(os.Environ(), roleVar+"=ignored")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
}

// A process that is no child of ours is not signalled, whatever number is
// listed for it. The stranger is our sibling, and a child of this test.
func TestStrangerIsRefused(t *testing.T) {
	stranger := exec.Command("sleep", tooLong)
	if err := stranger.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := stranger.Process.Signal(syscall.Signal(0)); err != nil {
			t.Errorf("the stranger is gone: %v", err)
		}
		_ = stranger.Process.Kill()
		_ = stranger.Wait()
	})
	t.Run("refused", func(t *testing.T) { inTree(t, "stranger", strconv.Itoa(stranger.Process.Pid)) })
}

// held is a tree in a role, and what was seen of it.
type held struct {
	*subreaper
	given    []string
	exit     *outcome.Exit
	empty    bool
	started  bool
	startErr *StartError
}

func hold() (*held, error) {
	runtime.LockOSThread()
	sys.Survive()
	time.Sleep(time.Nanosecond) // as the supervisor does: the runtime opens what it needs for timers
	t, err := openSubreaper(Options{ID: "test"}, false)
	return &held{subreaper: t}, err
}

// run starts argv and waits until it was executed or not.
func (h *held) run(files []int, argv ...string) error {
	dir, err := unix.Open("/", unix.O_PATH, 0)
	if err != nil {
		return err
	}
	path, err := exec.LookPath(argv[0])
	if err != nil {
		path = argv[0]
	}
	h.exit, h.empty, h.started, h.startErr = nil, false, false, nil
	h.Start(&Spec{Path: path, Argv: argv, Env: os.Environ(), Dir: dir, Files: files, Given: h.given})
	err = h.until("started", func() bool { return h.started || h.startErr != nil })
	unix.Close(dir)
	return err
}

// until collects until done reports true.
func (h *held) until(what string, done func() bool) error {
	for end := time.Now().Add(patience); !done(); {
		if time.Now().After(end) {
			return fmt.Errorf("still not %s after %v; alive: %v", what, patience, h.alive())
		}
		fds := []unix.PollFd{{Fd: int32(h.FD()), Events: unix.POLLIN}}
		_, _ = unix.Poll(fds, 20)
		h.note(h.Collect(false))
	}
	return nil
}

func (h *held) note(ev Event) {
	if ev.StartDone {
		h.started, h.startErr = ev.StartErr == nil, ev.StartErr
	}
	if ev.Exit != nil {
		h.exit = ev.Exit
	}
	h.empty = h.empty || ev.Empty
}

func (h *held) summary() ([]outcome.Ended, int) {
	s := h.Summary()
	return s.Ended, s.EndedMore
}

// alive lists some of the members.
func (h *held) alive() []Member {
	list, _ := h.Members(100)
	return list
}

// kill ends the tree as the supervisor does.
func (h *held) kill() error {
	for end := time.Now().Add(patience); !h.empty; {
		if time.Now().After(end) {
			return fmt.Errorf("not empty after %v; alive: %v", patience, h.alive())
		}
		if h.Strike(false).found() {
			continue
		}
		ev := h.Reap()
		h.note(ev)
		if ev.Died == 0 && !h.empty {
			time.Sleep(100 * time.Microsecond)
		}
	}
	return nil
}

// endOrphans ends daemons that the leader has left, and starts another tree
// afterwards.
func endOrphans(change func(*subreaper)) error {
	h, err := hold()
	if err != nil {
		return err
	}
	change(h.subreaper)
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		return err
	}
	for range 2 {
		if err := h.run(nil, "sh", "-c", `for i in 1 2 3; do setsid sh -c "trap '' TERM; sleep 0.1; sleep `+tooLong+`" & done; exit 3`); err != nil {
			return err
		}
		if err := h.until("exited", func() bool { return h.exit != nil }); err != nil {
			return err
		}
		if h.exit.Code != 3 || h.exit.Signal != 0 {
			return fmt.Errorf("the leader's exit is %+v", h.exit)
		}
		if h.empty {
			return errors.New("empty while three daemons live")
		}
		change(h.subreaper)
		if err := h.kill(); err != nil {
			return err
		}
		_ = unix.Setrlimit(unix.RLIMIT_NOFILE, &limit) // back to what it was
		if s := h.Summary(); len(s.Ended) < 3 || s.EndedMore != 0 {
			return fmt.Errorf("ended %v and %d more", s.Ended, s.EndedMore)
		}
	}
	if _, err := unix.Wait4(-1, nil, unix.WNOHANG, nil); err != unix.ECHILD {
		return fmt.Errorf("wait4 returns %v after Empty", err)
	}
	return nil
}

// childlessRole strikes where there is nothing: that must not cost a question for
// every pid there can be, which takes seconds.
func childlessRole([]string) error {
	h, err := hold()
	if err != nil {
		return err
	}
	began := time.Now()
	const strikes = 1000
	for range strikes {
		if n := h.Strike(false); n.found() {
			return fmt.Errorf("struck %+v", n)
		}
	}
	if each := time.Since(began) / strikes; each > 100*time.Millisecond {
		return fmt.Errorf("a strike at nothing takes %v", each)
	}
	return nil
}

func limitMax() uint64 {
	var l unix.Rlimit
	_ = unix.Getrlimit(unix.RLIMIT_NOFILE, &l)
	return l.Max
}

func startRole(args []string) error {
	dir := args[0]
	write := func(name, content string, mode os.FileMode) string {
		file := filepath.Join(dir, name)
		if err := os.WriteFile(file, []byte(content), mode); err != nil {
			panic(err)
		}
		return file
	}
	h, err := hold()
	if err != nil {
		return err
	}
	for _, tt := range []struct {
		path string
		want error
	}{
		{filepath.Join(dir, "missing"), unix.ENOENT},
		{write("no permission", "#!/bin/sh\n", 0o644), unix.EACCES},
		{write("no interpreter", "#!/does/not/exist\n", 0o755), unix.ENOENT},
		{write("no shebang", "echo hi\n", 0o755), unix.ENOEXEC},
		{dir, unix.EACCES},
	} {
		if err := h.run(nil, tt.path); err != nil {
			return err
		}
		if h.startErr == nil || !errors.Is(h.startErr, tt.want) || h.startErr.Killed {
			return fmt.Errorf("%s: got %v, want %v", tt.path, h.startErr, tt.want)
		}
		if err := h.until("empty", func() bool { return h.empty }); err != nil {
			return err
		}
	}
	return h.run(nil, "true")
}

// leaseRole starts a file that execve waits for, and strikes.
func leaseRole(args []string) error {
	file := filepath.Join(args[0], "leased")
	b, err := os.ReadFile("/bin/true")
	if err != nil {
		return err
	}
	if err := os.WriteFile(file, b, 0o755); err != nil {
		return err
	}
	fd, err := unix.Open(file, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	// The signal that asks for the lease back is caught by the runtime.
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_SETLEASE, unix.F_WRLCK); err != nil {
		return fmt.Errorf("fcntl F_SETLEASE: %w", err)
	}
	h, err := hold()
	if err != nil {
		return err
	}
	dir, err := unix.Open("/", unix.O_PATH, 0)
	if err != nil {
		return err
	}
	h.Start(&Spec{Path: file, Argv: []string{file}, Dir: dir})
	for end := time.Now().Add(300 * time.Millisecond); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		if ev := h.Collect(false); ev.StartDone {
			return fmt.Errorf("it started under the lease: %+v", ev)
		}
	}
	for end := time.Now().Add(patience); ; time.Sleep(time.Millisecond) {
		h.Strike(false)
		if h.note(h.Collect(true)); h.startErr != nil || h.started {
			break
		}
		if time.Now().After(end) {
			return errors.New("the start does not come to its end")
		}
	}
	if h.startErr == nil || !h.startErr.Killed {
		return fmt.Errorf("got %+v, want a start that was killed before it executed anything", h.startErr)
	}
	return h.kill()
}

// politeRole signals members of every kind and checks which got what.
func politeRole(args []string) error {
	log := filepath.Join(args[0], "log")
	member := func(name string) string {
		return `sh -c 'trap "echo ` + name + ` >>` + log + `; exit" TERM; echo ready-` + name + ` >>` + log + `; while :; do sleep 0.02; done'`
	}
	h, err := hold()
	if err != nil {
		return err
	}
	script := member("plain") + ` & setsid ` + member("session") + ` & (` + member("orphan") + ` &); ` +
		`trap "echo leader >>` + log + `; exit" TERM; echo ready-leader >>` + log + `; while :; do sleep 0.02; done`
	if err := h.run(nil, "sh", "-c", script); err != nil {
		return err
	}
	lines := func() []string {
		b, _ := os.ReadFile(log)
		return strings.Fields(string(b))
	}
	count := func(prefix string) int {
		n := 0
		for _, l := range lines() {
			if strings.HasPrefix(l, prefix) {
				n++
			}
		}
		return n
	}
	if err := h.until("ready", func() bool { return count("ready-") == 4 }); err != nil {
		return err
	}
	if n, _ := h.Terminate(syscall.SIGTERM, ToLeader, time.Time{}); n != 1 {
		return fmt.Errorf("%d leaders", n)
	}
	if err := h.until("exited", func() bool { return h.exit != nil }); err != nil {
		return err
	}
	for _, l := range lines() {
		if l == "plain" || l == "session" || l == "orphan" {
			return fmt.Errorf("%s was signalled with the leader", l)
		}
	}
	if n, _ := h.Terminate(syscall.SIGTERM, ToOthers, time.Now()); n != 0 {
		return fmt.Errorf("%d members were signalled when there was no time left", n)
	}
	h.Terminate(syscall.SIGTERM, ToOthers, time.Now().Add(patience))
	if err := h.until("empty", func() bool { return h.empty }); err != nil {
		return err
	}
	for _, name := range []string{"leader", "plain", "session", "orphan"} {
		if n := count(name); n != 1 {
			return fmt.Errorf("%s got SIGTERM %d times: %v", name, n, lines())
		}
	}
	return nil
}

// deepRole strikes a chain from the middle up: with below, one pass reaches all
// of it.
func deepRole([]string) error {
	h, err := hold()
	if err != nil {
		return err
	}
	const depth = 30
	script := `d() { if [ $1 -gt 0 ]; then ( d $(($1-1)); : ); else sleep ` + tooLong + `; fi; }; d ` + strconv.Itoa(depth) + `; :`
	if err := h.run(nil, "sh", "-c", script); err != nil {
		return err
	}
	if err := h.until("deep", func() bool { return len(h.alive()) == depth+2 }); err != nil {
		return err
	}
	// There may be no memory to be had. The runtime allocates a little by itself.
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	n := h.Strike(true).Fresh
	runtime.ReadMemStats(&after)
	if n != depth+2 || after.Mallocs-before.Mallocs >= depth {
		return fmt.Errorf("one strike reached %d of %d and allocated %d times", n, depth+2, after.Mallocs-before.Mallocs)
	}
	return h.kill()
}

func strangerRole(args []string) error {
	pid, err := strconv.Atoi(args[0])
	if err != nil {
		return err
	}
	h, err := hold()
	if err != nil {
		return err
	}
	if err := h.run(nil, "sleep", tooLong); err != nil {
		return err
	}
	if err := signalChild(pid, syscall.SIGKILL); err != errNotOurs {
		return fmt.Errorf("signal to a stranger: %v", err)
	}
	if err := h.kill(); err != nil {
		return err
	}
	list := h.Summary().Ended
	if i := slices.IndexFunc(list, func(e outcome.Ended) bool { return e.PID == pid }); i >= 0 {
		return fmt.Errorf("the stranger is among the ended: %v", list)
	}
	return nil
}

func holdsRole(args []string) error {
	f, err := os.Create(filepath.Join(args[0], "out"))
	if err != nil {
		return err
	}
	null, err := unix.Open("/dev/null", unix.O_RDWR, 0)
	if err != nil {
		return err
	}
	h, err := hold()
	if err != nil {
		return err
	}
	h.given = []string{FileName(int(f.Fd()))}
	for script, want := range map[string]bool{
		"sleep " + tooLong + " & exit 0":                                true,
		"sleep " + tooLong + " >/dev/null & exit 0":                     false,
		"setsid sleep " + tooLong + " 5>&1 >/dev/null & exit 0":         true,
		"(exec >/dev/null; sleep 0.01; exec sleep " + tooLong + ") & :": false,
		// What reads from the leader may have to write what it has read.
		"mkfifo fifo; cat <fifo >/dev/null & exec 5>fifo; sleep " + tooLong + " >/dev/null & exit 0": true,
		"{ sleep " + tooLong + "; } 2>/dev/null | cat >/dev/null & exec >/dev/null; exit 0":          true,
	} {
		if err := h.run([]int{null, int(f.Fd()), null}, "sh", "-c", script); err != nil {
			return err
		}
		if err := h.until("exited", func() bool { return h.exit != nil }); err != nil {
			return err
		}
		// A shell takes a moment to redirect.
		if err := h.until("holding as it should", func() bool { return h.Holds(time.Now().Add(patience)) == want }); err != nil {
			return fmt.Errorf("%s: %w", script, err)
		}
		if err := h.kill(); err != nil {
			return err
		}
	}
	return nil
}

// longLookRole has a member with thousands of descriptors, which takes several times
// betweenEars to look at.
func longLookRole([]string) error {
	null, err := unix.Open("/dev/null", unix.O_RDWR, 0)
	if err != nil {
		return err
	}
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		return err
	}
	limit.Cur = limit.Max
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		return err
	}
	h, err := hold()
	if err != nil {
		return err
	}
	files := slices.Repeat([]int{null}, int(min(limit.Max/2-100, 9000))) // a start needs each twice
	if err := h.run(files, "sleep", tooLong); err != nil || h.startErr != nil {
		return fmt.Errorf("%v, %v", err, h.startErr)
	}
	look := func() bool { return h.Holds(time.Now().Add(patience)) }
	if err := h.until("looked at as a whole", func() bool { return !look() }); err != nil {
		return err
	}
	asked := 0
	h.proc.interrupted = func() bool { asked++; return true }
	if !look() || asked != 1 {
		return fmt.Errorf("Interrupted was asked %d times, and the look went on", asked)
	}
	h.proc.interrupted = nil
	if !h.Holds(time.Now()) {
		return errors.New("a look without any time reports that nothing is held")
	}
	return h.kill()
}

func ignoredRole([]string) error {
	h, err := hold()
	if err != nil {
		return err
	}
	r, w, err := os.Pipe()
	if err != nil {
		return err
	}
	if err := h.run([]int{-1, int(w.Fd()), -1}, "cat", "/proc/self/status"); err != nil {
		return err
	}
	w.Close()
	buf := make([]byte, 8192)
	n, _ := r.Read(buf)
	for line := range strings.Lines(string(buf[:n])) {
		if v, ok := strings.CutPrefix(line, "SigIgn:"); ok && strings.Trim(v, "0 \t\n") != "" {
			return fmt.Errorf("the leader ignores %s", v)
		}
		if v, ok := strings.CutPrefix(line, "SigBlk:"); ok && strings.Trim(v, "0 \t\n") != "" {
			return fmt.Errorf("the leader blocks %s", v)
		}
	}
	return h.until("empty", func() bool { return h.empty })
}

// stormRole ends chains of processes that each start a successor in a new session
// and exit.
func stormRole([]string) error {
	h, err := hold()
	if err != nil {
		return err
	}
	script := `end=$(($(date +%s)+40)); export end; export c='[ $(date +%s) -lt $end ] && setsid sh -c "$c" &'; for i in 1 2 3 4; do eval "$c"; done; sleep 0.3; exit 0`
	if err := h.run(nil, "sh", "-c", script); err != nil {
		return err
	}
	if err := h.until("exited", func() bool { return h.exit != nil }); err != nil {
		return err
	}
	if h.empty {
		return errors.New("the chains ended by themselves")
	}
	return h.kill()
}

// That a leader runs is known before Collect has reported it.
func TestExecutedBeforeTold(t *testing.T) { inTree(t, "untold start") }

func untoldStartRole([]string) error {
	h, err := hold()
	if err != nil {
		return err
	}
	if h.StartProgress() == StartExecuted {
		return fmt.Errorf("executed before the start")
	}
	var p [2]int
	if err := unix.Pipe2(p[:], unix.O_CLOEXEC); err != nil {
		return err
	}
	dir, err := unix.Open("/", unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	sh, err := exec.LookPath("sh")
	if err != nil {
		return err
	}
	h.Start(&Spec{Path: sh, Argv: []string{"sh", "-c", "echo ready; exec sleep " + tooLong}, Env: os.Environ(), Dir: dir, Files: []int{dir, p[1], 2}})
	if _, err := unix.Read(p[0], make([]byte, 8)); err != nil {
		return err
	}
	if h.StartProgress() != StartExecuted {
		return fmt.Errorf("it has written something, and counts as not executed")
	}
	h.subreaper.Strike(false)
	return nil
}

// Without siblings the kernel has the answer at once. Asking it for every pid there
// can be takes seconds, in which a guard would outlive its caller.
func TestOnlySiblingsWithoutAny(t *testing.T) {
	tree := &subreaper{kin: kin{pidMax: maxPID, arena: make([]int32, 1)}, siblings: map[int]int{}}
	quickest := time.Hour
	for range 3 {
		began := time.Now()
		tree.OnlySiblings()
		quickest = min(quickest, time.Since(began))
	}
	if quickest > 100*time.Millisecond {
		t.Errorf("took %v", quickest)
	}
}

func init() { roles["names its group"] = namesGroupRole }

// The cgroup of a process is named for its pid namespace too: a process with the same
// number in another one has another cgroup.
func TestGroupNameInNamespaces(t *testing.T) {
	t.Parallel()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), roleVar+"=names its group")
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWPID | unix.CLONE_NEWNS}
	if os.Geteuid() != 0 {
		cmd.SysProcAttr.Cloneflags |= unix.CLONE_NEWUSER
		cmd.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}}
	}
	out, err := cmd.Output()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Skipf("no pid namespace can be made here: %v", err)
	}
	if err != nil {
		t.Skipf("/proc cannot be mounted in a namespace here: %s", exit.Stderr)
	}
	if here := CgroupName(7, "test"); string(out) == here || !strings.HasPrefix(string(out), "curfew-") {
		t.Errorf("%q in another pid namespace, and %q here", out, here)
	}
}

func namesGroupRole([]string) error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return err
	}
	if err := unix.Mount("proc", "/proc", "proc", 0, ""); err != nil {
		return err
	}
	fmt.Print(CgroupName(7, "test"))
	return nil
}

// What was gone before anything could be read of it is counted, and not listed without
// a name.
func TestEndedHaveNames(t *testing.T) {
	t.Parallel()
	cmd := exec.Command("true")
	if err := cmd.Run(); err != nil {
		t.Fatal(err)
	}
	var tree subreaper
	tree.proc.open()
	tree.signalled = newSignalled(&tree.proc)
	defer sys.Close(tree.proc.fd)
	for _, pid := range []int{cmd.Process.Pid, os.Getpid()} {
		tree.signalled.note(tree.signalled.entry(&target{pid: pid, pidfd: -1}), syscall.SIGKILL, nil)
	}
	s := tree.Summary()
	list, more := s.Ended, s.EndedMore
	if len(list) != 1 || list[0].PID != os.Getpid() || list[0].Name == "" || list[0].Start.IsZero() || more != 1 {
		t.Errorf("got %+v and %d more", list, more)
	}
}
