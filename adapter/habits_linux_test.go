package adapter

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"curfew/fixtures"
	"curfew/outcome"
)

func init() {
	roles["witness"] = witnessRole
	roles["mounts"] = mountsRole
	for name, habit := range map[string]func(*habitual) error{
		"none":              func(*habitual) error { return nil },
		"execs":             func(h *habitual) error { return h.whenItStands(h.execs) },
		"returns":           func(h *habitual) error { return h.whenItStands(func() { os.Exit(0) }) },
		"own network":       ownNetwork,
		"reaps any child":   reapsAnyChild,
		"ignores SIGCHLD":   ignoresSIGCHLD,
		"first process":     firstProcess,
		"changes itself":    changesItself,
		"many descriptors":  manyDescriptors,
		"deleted":           func(h *habitual) error { return os.Remove(os.Args[0]) },
		"few descriptors":   fewDescriptors,
		"few tasks allowed": fewTasks,
	} {
		roles[name] = func(args []string) error { return haveHabit(args, habit) }
	}
}

// habitTree is the tree that callers with habits have: a leader, and a daemon
// with a session of its own whose parent is gone.
const habitTree = "double-fork"

// habitual is a caller with a habit.
type habitual struct {
	a    *Adapter
	cli  string // the executable that is a fixture
	dir  string // of the probe of the last tree
	rest []string
}

// haveHabit takes it on, has a tree ended by a timeout, and then has another one
// stand, with which it is to come to its end. What the habit itself invokes is
// before that.
func haveHabit(args []string, habit func(*habitual) error) error {
	h := &habitual{cli: args[0], dir: args[1], rest: args[2:]}
	var err error
	if h.a, err = New(Options{}); err != nil {
		return err
	}
	if err := habit(h); err != nil {
		return err
	}
	if err := h.timedOut(); err != nil {
		return err
	}
	o, err := h.a.Invoke(context.Background(), h.standing())
	time.Sleep(patience) // to be killed
	return fmt.Errorf("not ended: %s, %s, %w", o.Status, o.Cause, err)
}

// standing is the tree that the witness has a probe for.
func (h *habitual) standing() Command {
	return Command{Path: h.cli, Args: fixtures.Args(habitTree, probeOptions(h.dir)), Stop: promptly}
}

// probeOptions are those of a probe that another process has made in dir.
func probeOptions(dir string) fixtures.Options {
	return fixtures.Options{Heartbeat: filepath.Join(dir, "heartbeat"), FIFO: filepath.Join(dir, "fifo"), Ready: filepath.Join(dir, "ready")}
}

// timedOut has a tree that stands ended by a timeout: all of it is gone on return,
// and the outcome says so.
func (h *habitual) timedOut() error {
	f, _ := fixtures.Find(habitTree)
	for timeout := 250 * time.Millisecond; ; timeout *= 2 {
		dir, err := os.MkdirTemp(h.dir, "timeout-")
		if err != nil {
			return err
		}
		probe, err := fixtures.NewProbe(dir)
		if err != nil {
			return err
		}
		c := Command{Path: h.cli, Args: fixtures.Args(f.Name, probe.Options()), Stop: promptly, Timeout: timeout}
		began := time.Now()
		o, err := h.a.Invoke(context.Background(), c)
		took := time.Since(began)
		_, stood := os.Stat(probe.Options().Ready)
		bad := errors.Join(consistent(f, ended{o: o, err: err}, outcome.CauseTimeout), gone(f, probe, 0), probe.Close())
		if took > timeout+bound(promptly) {
			bad = errors.Join(bad, fmt.Errorf("took %v", took))
		}
		if o.Cleanup.Result != outcome.CleanupEmpty || o.Cleanup.Proof != outcome.ProofNoChildren || o.Cleanup.HelperLost {
			bad = errors.Join(bad, fmt.Errorf("cleanup is %+v", o.Cleanup))
		}
		switch {
		case bad != nil:
			return fmt.Errorf("a tree ended by a timeout: %w", bad)
		case stood == nil:
			return nil
		case timeout > patience/4:
			return errors.New("no tree stood")
		}
	}
}

// whenItStands does something to this caller when the tree stands that it is to
// come to its end with.
func (h *habitual) whenItStands(do func()) error {
	go func() {
		for {
			if _, err := os.Stat(probeOptions(h.dir).Ready); err == nil {
				do()
			}
			time.Sleep(time.Millisecond)
		}
	}()
	return nil
}

// execs has another program take the place of this one.
func (h *habitual) execs() {
	err := syscall.Exec("/bin/sleep", []string{"sleep", tooLong}, os.Environ())
	fmt.Fprintln(os.Stderr, "exec:", err)
	os.Exit(1)
}

// says runs a script and checks what it writes.
func (h *habitual) says(script, want string) error {
	o, err := h.a.Invoke(context.Background(), sh(script))
	if err != nil || string(o.Stdout) != want {
		return fmt.Errorf("%s: writes %q and %q, want %q, %w", script, o.Stdout, o.Stderr, want, err)
	}
	return nil
}

// A thread that is in a network namespace of its own: so are its CLIs, and those
// of other threads are not.
func ownNetwork(h *habitual) error {
	const read = "readlink /proc/self/ns/net"
	here, err := os.Readlink("/proc/thread-self/ns/net")
	if err != nil {
		return err
	}
	runtime.LockOSThread() // for ever: the tree that stands is this thread's too
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		return os.NewSyscallError("unshare", err)
	}
	there, err := os.Readlink("/proc/thread-self/ns/net")
	if err != nil {
		return err
	}
	if here == there {
		return errors.New("no namespace of its own")
	}
	for range 2 {
		if err := h.says(read, there+"\n"); err != nil {
			return err
		}
		other := make(chan error)
		go func() { other <- h.says(read, here+"\n") }()
		if err := <-other; err != nil {
			return err
		}
	}
	return nil
}

// One that waits for "any child" all the time gets neither the status of a CLI
// nor in the way of one.
func reapsAnyChild(h *habitual) error {
	const code = 77
	var mu sync.Mutex
	var stolen []syscall.WaitStatus
	reaped := 0
	if _, err := tightly(none); err != nil { // has the runtime open what it needs
		return err
	}
	before := descriptors()
	go func() {
		for {
			var status syscall.WaitStatus
			_, err := syscall.Wait4(-1, &status, syscall.WALL, nil)
			if err != nil {
				time.Sleep(time.Millisecond)
				continue
			}
			mu.Lock()
			if reaped++; status.Exited() && status.ExitStatus() == code || status.Signaled() && status.Signal() == syscall.SIGUSR1 {
				stolen = append(stolen, status)
			}
			mu.Unlock()
		}
	}()
	var all sync.WaitGroup
	failed := make(chan error, 4)
	for i := range cap(failed) {
		all.Go(func() {
			for range 4 {
				a, err := New(Options{})
				if err != nil {
					failed <- err
					return
				}
				leave := sh("sleep 0.1 >/dev/null 2>&1 & exit " + strconv.Itoa(code))
				leave.AfterExit = AfterExitLeave // its supervisor is our child
				for _, c := range []Command{sh("exit " + strconv.Itoa(code)), leave, sh("kill -USR1 $$")} {
					o, err := a.Invoke(context.Background(), c)
					byCode := o.Exit != nil && o.Exit.Code == code && o.Exit.Signal == 0
					bySignal := o.Exit != nil && o.Exit.Code == -1 && o.Exit.Signal == int(syscall.SIGUSR1)
					if o.Status != outcome.StatusFailed || o.Cause != outcome.CauseExit || !byCode && !bySignal || o.Cleanup.HelperLost {
						failed <- fmt.Errorf("worker %d: %q ends in %s, %s, %+v, %+v, %w", i, c.Args, o.Status, o.Cause, o.Exit, o.Cleanup, err)
						return
					}
				}
				if err := a.Shutdown(context.Background()); err != nil {
					failed <- err
					return
				}
			}
		})
	}
	all.Wait()
	close(failed)
	if err := <-failed; err != nil {
		return err
	}
	if after := descriptors(); !settled(before) {
		return fmt.Errorf("%d descriptors, and %d before: %s", after, before, openFiles())
	}
	mu.Lock()
	defer mu.Unlock()
	if len(stolen) > 0 || reaped == 0 {
		return fmt.Errorf("reaped %d children, %d of them with the status of a CLI", reaped, len(stolen))
	}
	return nil
}

// One that has the kernel reap its children.
func ignoresSIGCHLD(h *habitual) error {
	signal.Ignore(syscall.SIGCHLD)
	// It has no status to reap its helpers by.
	for range 2 {
		if _, err := tightly(none); err != nil {
			return err
		}
	}
	for range 2 {
		if o, err := h.a.Invoke(context.Background(), sh("(exit 3); exit $((4 + $?))")); o.Exit == nil || o.Exit.Code != 7 {
			return fmt.Errorf("exit is %+v, %w", o.Exit, err)
		}
		// A CLI that ignored it too could not wait for its own children.
		if err := h.says("grep SigIgn /proc/self/status", "SigIgn:\t0000000000000000\n"); err != nil {
			return err
		}
	}
	return nil
}

// One that is the first process of a container, to which orphans fall: none do.
func firstProcess(h *habitual) error {
	if os.Getpid() != 1 {
		return fmt.Errorf("is process %d", os.Getpid())
	}
	if err := mount("proc"); err != nil {
		return err
	}
	for range 2 {
		if err := h.timedOut(); err != nil {
			return err
		}
		// Its supervisor is killed, and what that had held falls to the guard.
		f, _ := fixtures.Find(killsSupervisor)
		dir, err := os.MkdirTemp(h.dir, "lost-")
		if err != nil {
			return err
		}
		probe, err := fixtures.NewProbe(dir)
		if err != nil {
			return err
		}
		o, err := h.a.Invoke(context.Background(), Command{Path: h.cli, Args: fixtures.Args(f.Name, probe.Options()), Stop: promptly})
		if !o.Cleanup.HelperLost || o.Cleanup.Result != outcome.CleanupEmpty || o.Cleanup.Proof != outcome.ProofChildList {
			return fmt.Errorf("a lost supervisor: %+v, %w", o.Cleanup, err)
		}
		if err := errors.Join(gone(f, probe, 0), probe.Close()); err != nil {
			return err
		}
	}
	if err := h.a.Shutdown(context.Background()); err != nil {
		return err
	}
	// In a namespace of its own /proc has every process there is, zombies too.
	all, err := filepath.Glob("/proc/[0-9]*")
	if err != nil || !slices.Equal(all, []string{"/proc/1"}) {
		return fmt.Errorf("left after Shutdown: %v, %s, %w", all, children(), err)
	}
	h.a, err = New(Options{})
	return err
}

// One that changes everything that a CLI inherits, between any two of them.
func changesItself(h *habitual) error {
	const show = `id -u; id -g; pwd -P; umask; ulimit -Sn; ulimit -Sf; ulimit -Hc; echo "$HABIT"; nice`
	limit := func(resource int, limit syscall.Rlimit) func() error {
		return func() error { return syscall.Setrlimit(resource, &limit) }
	}
	steps := map[string]func() error{
		"nothing":     func() error { return nil },
		"directory":   func() error { return os.Chdir("/usr") },
		"umask":       func() error { syscall.Umask(0o31); return nil },
		"environment": func() error { return os.Setenv("HABIT", "changed\n\xff") },
		"descriptors": limit(syscall.RLIMIT_NOFILE, syscall.Rlimit{Cur: 333, Max: 400}),
		"file size":   limit(syscall.RLIMIT_FSIZE, syscall.Rlimit{Cur: 1 << 30, Max: 1 << 31}),
		"core":        limit(syscall.RLIMIT_CORE, syscall.Rlimit{}),
		"nice":        func() error { return syscall.Setpriority(syscall.PRIO_PGRP, 0, 3) },
		"user":        func() error { return nil },
	}
	order := []string{"nothing", "directory", "umask", "environment", "descriptors", "file size", "core", "user"}
	if os.Getuid() == 0 {
		const nobody = 65534
		steps["user"] = func() error {
			return errors.Join(syscall.Setgroups(nil), syscall.Setgid(nobody), syscall.Setuid(nobody))
		}
	}
	last := ""
	for _, name := range order {
		if err := steps[name](); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		want, err := exec.Command("sh", "-c", show).Output()
		if err != nil {
			return err
		}
		if string(want) == last && name != "user" {
			return fmt.Errorf("%s: nothing has changed: %q", name, want)
		}
		last = string(want)
		for range 2 {
			if err := h.says(show, last); err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
		}
	}
	return nil
}

// One with thousands of descriptors, of which a CLI gets none and a helper keeps
// none open.
func manyDescriptors(h *habitual) error {
	quickest := func() (best time.Duration, err error) {
		best = time.Hour
		for range 10 {
			a, err := New(Options{})
			if err != nil {
				return 0, err
			}
			for range 2 { // on fresh helpers, and on those
				began := time.Now()
				if _, err := a.Invoke(context.Background(), Command{Path: "/bin/true"}); err != nil {
					return 0, err
				}
				best = min(best, time.Since(began))
			}
			if err := a.Shutdown(context.Background()); err != nil {
				return 0, err
			}
		}
		return best, nil
	}
	before, err := quickest()
	if err != nil {
		return err
	}
	count := 5000
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		return err
	}
	if limit.Max < uint64(count)+100 {
		count = int(limit.Max) - 100
		fmt.Printf("only %d descriptors are allowed\n", limit.Max)
	}
	var p [2]int
	if err := unix.Pipe2(p[:], unix.O_NONBLOCK); err != nil { // not close-on-exec
		return err
	}
	for i := range count {
		flags := unix.O_CLOEXEC
		if i%5 == 0 {
			flags = 0
		}
		if _, err := unix.FcntlInt(uintptr(p[1]), [2]int{unix.F_DUPFD, unix.F_DUPFD_CLOEXEC}[flags/unix.O_CLOEXEC], 0); err != nil {
			return err
		}
	}
	after, err := quickest()
	if err != nil {
		return err
	}
	fmt.Printf("%v with few descriptors, %v with %d more\n", before, after, count)
	if after > 10*before+20*time.Millisecond {
		return fmt.Errorf("%v with %d descriptors, %v without", after, count, before)
	}
	for range 2 {
		if err := h.says("ls /proc/self/fd", "0\n1\n2\n3\n"); err != nil { // 3 is the listing's own
			return err
		}
	}
	// With a helper that idles and one that is busy, all writing ends that there
	// are get closed.
	result := invokeAsync(context.Background(), h.a, sh("sleep 1"))
	if err := h.says("echo idle soon", "idle soon\n"); err != nil {
		return err
	}
	var st, other unix.Stat_t
	if err := unix.Fstat(p[1], &st); err != nil {
		return err
	}
	for fd := p[0] + 1; fd < int(limit.Max) && fd < 2*count; fd++ {
		if unix.Fstat(fd, &other) == nil && other.Ino == st.Ino && other.Dev == st.Dev {
			_ = unix.Close(fd) // ours, made above
		}
	}
	held := children()
	n, err := unix.Read(p[0], make([]byte, 1))
	if n != 0 || err != nil || held == "" {
		return fmt.Errorf("with the helpers %s the pipe gives %d, %v, want its end", held, n, err)
	}
	e := <-result
	return e.err
}

// mount mounts something of that type over /proc, for this process and those
// below it.
func mount(kind string) error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return os.NewSyscallError("mount", err)
	}
	return os.NewSyscallError("mount", unix.Mount(kind, "/proc", kind, 0, ""))
}

// mountsRole mounts something and executes the rest of its arguments, if any.
func mountsRole(args []string) error {
	if err := mount(args[0]); err != nil || len(args) == 1 {
		return err
	}
	return syscall.Exec(args[1], args[1:], os.Environ())
}

// descriptors counts those of this process, in a way that needs none.
func descriptors() (n int) {
	var limit unix.Rlimit
	_ = unix.Getrlimit(unix.RLIMIT_NOFILE, &limit)
	for fd := range min(int(limit.Max), 1<<14) {
		if _, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0); err == nil {
			n++
		}
	}
	return n
}

// tightly invokes something on fresh helpers while some resource is short. It may
// be refused, for that reason, and leaves nothing behind in either case.
func tightly(reason func(error) bool) (refused error, err error) {
	before := descriptors()
	a, err := New(Options{})
	if err != nil {
		return nil, err
	}
	o, err := a.Invoke(context.Background(), Command{Path: "/bin/true", Stop: promptly})
	switch {
	case o.Status == outcome.StatusNotStarted && errors.Is(err, outcome.ErrNotStarted) && reason(err) && o.Cleanup.Result == outcome.CleanupEmpty:
		refused = err
	case o.Status != outcome.StatusSucceeded:
		return nil, fmt.Errorf("%s, %s, %+v, %w", o.Status, o.Cause, o.Cleanup, err)
	}
	if err := a.Shutdown(context.Background()); err != nil {
		return refused, err
	}
	if after := descriptors(); !settled(before) {
		return refused, fmt.Errorf("%d descriptors, and %d before; %v", after, before, refused)
	}
	if _, err := unix.Wait4(-1, nil, unix.WNOHANG|unix.WALL, nil); err != unix.ECHILD {
		return refused, fmt.Errorf("a child is left: %v, %s; %v", err, children(), refused)
	}
	return refused, nil
}

func none(error) bool { return false }

// openFiles says what the descriptors of this process are.
func openFiles() string {
	var all []string
	fds, _ := os.ReadDir("/proc/self/fd")
	for _, fd := range fds {
		to, _ := os.Readlink("/proc/self/fd/" + fd.Name())
		all = append(all, fd.Name()+"="+to)
	}
	return strings.Join(all, " ")
}

// settled waits for what a pool closes when its timer has run.
func settled(before int) bool {
	for end := time.Now().Add(patience / 2); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		if descriptors() <= before {
			return true
		}
	}
	return false
}

// tightlyFrom goes from nothing free to enough. What is shared with others may turn
// out to be more, or less.
func tightlyFrom(enough, step int, shared bool, reason func(error) bool, leave func(free int) (undo func(), err error)) error {
	var refusals []string
	tries := 0
	for free := 0; free < enough; free += step {
		tries++
		undo, err := leave(free)
		if err != nil {
			return err
		}
		refused, err := tightly(reason)
		undo()
		if err != nil {
			return fmt.Errorf("with %d free: %w", free, err)
		}
		if refused != nil {
			refusals = append(refusals, fmt.Sprintf("%d free: %v", free, refused))
		}
	}
	fmt.Println(strings.Join(refusals, "\n"))
	if n := len(refusals); !shared && (n == 0 || n == tries) {
		return fmt.Errorf("%d of %d were refused", n, tries)
	}
	return nil
}

// One that may have few descriptors.
func fewDescriptors(h *habitual) error {
	const few = 40
	if _, err := tightly(none); err != nil { // has the runtime open what it needs
		return err
	}
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		return err
	}
	limit.Cur = few
	if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		return err
	}
	reason := func(err error) bool { return errors.Is(err, syscall.EMFILE) }
	err := tightlyFrom(few-descriptors(), 2, false, reason, func(free int) (func(), error) {
		var filled []int
		for {
			fd, err := unix.Open("/dev/null", unix.O_RDONLY|unix.O_CLOEXEC, 0)
			if err == unix.EMFILE {
				break
			}
			if err != nil {
				return nil, err
			}
			filled = append(filled, fd)
		}
		for range free {
			_ = unix.Close(filled[len(filled)-1])
			filled = filled[:len(filled)-1]
		}
		return func() {
			for _, fd := range filled {
				_ = unix.Close(fd)
			}
		}, nil
	})
	if err != nil {
		return err
	}
	if err := h.says("ulimit -Sn", strconv.Itoa(few)+"\n"); err != nil {
		return err
	}
	// For good, and for the helpers too.
	limit.Max = few
	return syscall.Setrlimit(syscall.RLIMIT_NOFILE, &limit)
}

// ofFewTasks is a user that nobody else is.
const ofFewTasks = 54322

// One whose user may have few tasks. The limit does not hold for root.
func fewTasks(h *habitual) error {
	haveThreads(16) // its own runtime would abort
	if _, err := tightly(none); err != nil {
		return err
	}
	var limit syscall.Rlimit
	const nproc = 6
	if err := syscall.Getrlimit(nproc, &limit); err != nil {
		return err
	}
	was := limit.Cur
	// A helper that cannot start its threads ends without a word.
	reason := func(err error) bool {
		return errors.Is(err, syscall.EAGAIN) || strings.Contains(err.Error(), "ulimit -u")
	}
	return tightlyFrom(40, 3, os.Getuid() != ofFewTasks, reason, func(free int) (func(), error) {
		n, err := tasks(os.Getuid())
		if err != nil {
			return nil, err
		}
		limit.Cur = min(uint64(n+free), was)
		return func() {
			limit.Cur = was
			_ = syscall.Setrlimit(nproc, &limit)
		}, syscall.Setrlimit(nproc, &limit)
	})
}

// tasks counts the threads that a user has.
func tasks(uid int) (n int, err error) {
	all, err := filepath.Glob("/proc/[0-9]*/status")
	if err != nil {
		return 0, err
	}
	for _, name := range all {
		b, _ := os.ReadFile(name)
		mine, threads := false, 0
		for line := range strings.Lines(string(b)) {
			switch f := strings.Fields(line); f[0] {
			case "Uid:":
				mine = f[1] == strconv.Itoa(uid)
			case "Threads:":
				threads, _ = strconv.Atoi(f[1])
			}
		}
		if mine {
			n += threads
		}
	}
	return n, nil
}

// testimony is what a witness is told.
type testimony struct {
	Argv       []string // the caller, which has a tree that stands under the probe in Dir
	Role       string
	End        string // how it ends: "killed", "returns", "execs", or "copied" and killed
	Dir        string
	Namespaces uintptr
	User       int // runs it as this user, if not 0
}

// witnessed has a caller come to an end while its tree stands, and fails if not all
// of it is gone then.
func witnessed(t *testing.T, w testimony) {
	t.Helper()
	b, err := json.Marshal(w)
	if err != nil {
		t.Fatal(err)
	}
	inRole(t, 3*time.Minute, "witness", string(b))
}

// witnessRole starts the caller. As a subreaper it adopts what that and its
// helpers leave, so that it knows from the kernel when nothing is left.
func witnessRole(args []string) error {
	var w testimony
	if err := json.Unmarshal([]byte(args[0]), &w); err != nil {
		return err
	}
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return os.NewSyscallError("prctl", err)
	}
	probe, err := fixtures.NewProbe(w.Dir)
	if err != nil {
		return err
	}
	defer probe.Close()
	f, _ := fixtures.Find(habitTree)
	caller := exec.Command(w.Argv[0], w.Argv[1:]...)
	caller.Env = append(os.Environ(), roleVar+"="+w.Role)
	caller.Stdout, caller.Stderr = os.Stdout, os.Stderr
	caller.SysProcAttr = inNamespaces(w.Namespaces)
	if w.User != 0 {
		caller.SysProcAttr.Credential = &syscall.Credential{Uid: uint32(w.User), Gid: uint32(w.User)}
		caller.Dir = w.Dir
	}
	if os.Getuid() == 0 {
		// It may change its user before it opens the FIFO.
		if err := os.Chmod(probe.Options().FIFO, 0o666); err != nil {
			return err
		}
	}
	if err := caller.Start(); err != nil {
		return err
	}
	pid, reaped := caller.Process.Pid, false
	reap := func(whom int) (int, error) {
		for {
			var status syscall.WaitStatus
			n, err := syscall.Wait4(whom, &status, syscall.WNOHANG|syscall.WALL, nil)
			if err == syscall.EINTR {
				continue
			}
			if n == pid {
				reaped = true
			}
			return n, err
		}
	}
	stands := func() bool {
		_, err := os.Stat(probe.Options().Ready)
		return err == nil
	}
	late := time.Now().Add(2 * patience)
	for ; !stands(); time.Sleep(time.Millisecond) {
		if _, _ = reap(pid); reaped && !stands() {
			return errors.New("the caller ended by itself")
		}
		if time.Now().After(late) {
			_ = caller.Process.Kill()
			return errors.New("no tree stands")
		}
	}
	var copied int
	switch w.End {
	case "copied":
		if copied, err = copyOf(w.Dir); err != nil {
			return err
		}
		fallthrough
	case "killed":
		if !probe.Beating(patience) {
			return errors.New("no heartbeat while the tree stands")
		}
		if err := caller.Process.Kill(); err != nil {
			return err
		}
	}
	began := time.Now()
	const slack = 10 * time.Second // for a machine under load
	limit := bound(promptly) + slack
	eof, err := probe.FIFOEOF(limit)
	took := time.Since(began)
	if !eof || err != nil {
		return fmt.Errorf("EOF of fifo: %v, %v, %v after the caller ended; there is %s", eof, err, took, children())
	}
	fmt.Printf("%s: the tree is gone after %v\n", w.End, took)
	if w.End == "execs" {
		exe, err := os.Readlink("/proc/" + strconv.Itoa(pid) + "/exe")
		if _, _ = reap(pid); reaped || err != nil || strings.HasSuffix(exe, ".test") {
			return fmt.Errorf("the caller is %s, reaped %v, %w: it should live on as something else", exe, reaped, err)
		}
		_ = caller.Process.Kill() // our child, and not reaped
	}
	for ; ; time.Sleep(time.Millisecond) {
		n, err := reap(-1)
		switch {
		case n > 0:
			continue
		case err == syscall.ECHILD:
			return gone(f, probe, 0)
		case copied != 0 && strings.HasPrefix(children(), strconv.Itoa(copied)+" ") && !strings.Contains(children(), ";"):
			fmt.Printf("%v after the caller there is only its copy\n", time.Since(began))
			if err := holdsSockets(copied); err != nil {
				return err
			}
			_ = syscall.Kill(copied, syscall.SIGKILL) // our child by adoption, and not reaped
			copied = 0
		case time.Since(began) > limit:
			return fmt.Errorf("%v after the caller ended there is %s", time.Since(began), children())
		}
	}
}

// copyOf has the caller fork, and returns the pid of the copy.
func copyOf(dir string) (int, error) {
	name := filepath.Join(dir, "copy")
	if err := os.WriteFile(name+".go", nil, 0o666); err != nil {
		return 0, err
	}
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(time.Millisecond) {
		if b, err := os.ReadFile(name); err == nil {
			return strconv.Atoi(strings.TrimSpace(string(b)))
		}
	}
	return 0, errors.New("the caller has not forked")
}

// holdsSockets checks that the copy is one that matters.
func holdsSockets(pid int) error {
	all, _ := filepath.Glob("/proc/" + strconv.Itoa(pid) + "/fd/*")
	for _, name := range all {
		if to, _ := os.Readlink(name); strings.HasPrefix(to, "socket:") {
			return nil
		}
	}
	return fmt.Errorf("the copy of the caller has no socket among its %d descriptors", len(all))
}

// inNamespaces makes a process in new namespaces, with a user namespace where it
// takes one.
func inNamespaces(flags uintptr) *syscall.SysProcAttr {
	attr := &syscall.SysProcAttr{Cloneflags: flags}
	if flags != 0 && os.Geteuid() != 0 {
		attr.Cloneflags |= syscall.CLONE_NEWUSER
		attr.UidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}}
		attr.GidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getgid(), Size: 1}}
	}
	return attr
}

// needNamespaces skips the test where they cannot be made, or nothing of that type
// may be mounted there.
func needNamespaces(t *testing.T, flags uintptr, kind string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), os.Args[0], kind)
	cmd.Env = append(os.Environ(), roleVar+"=mounts")
	cmd.SysProcAttr = inNamespaces(flags)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Skipf("namespaces are not permitted here: %v %s", err, out)
	}
}

// Callers of all sorts, each with a tree that is ended by a timeout and another
// with which the caller comes to its end.
func TestCallersWithHabits(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name, habit, end string
		namespaces       uintptr
		mounts           string
		root             string // why it is needed
		prefix           []string
	}{
		{name: "none", habit: "none"},
		{name: "returns meanwhile", habit: "returns", end: "returns"},
		{name: "executes something else meanwhile", habit: "execs", end: "execs"},
		{name: "thread in its own network", habit: "own network", root: "to make a network namespace"},
		{name: "reaps any child", habit: "reaps any child"},
		{name: "ignores SIGCHLD", habit: "ignores SIGCHLD", prefix: []string{"sh", "-c", `trap "" CHLD; exec "$@"`, "sh"}},
		{name: "is the first process", habit: "first process", namespaces: unix.CLONE_NEWPID | unix.CLONE_NEWNS, mounts: "proc"},
		{name: "has many descriptors", habit: "many descriptors"},
		{name: "may have few descriptors", habit: "few descriptors"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			if tt.root != "" && os.Geteuid() != 0 {
				t.Skip("root is needed " + tt.root)
			}
			if tt.namespaces != 0 {
				needNamespaces(t, tt.namespaces, tt.mounts)
			}
			if tt.end == "" {
				tt.end = "killed"
			}
			dir := t.TempDir()
			witnessed(t, testimony{Argv: append(tt.prefix, os.Args[0], os.Args[0], dir), Role: tt.habit, End: tt.end, Dir: dir, Namespaces: tt.namespaces})
		})
	}
}

// A caller whose executable is not there any more.
func TestCallerWasDeleted(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	exe := copyOfTheTest(t, dir)
	witnessed(t, testimony{Argv: []string{exe, os.Args[0], dir}, Role: "deleted", End: "killed", Dir: dir})
	if _, err := os.Stat(exe); err == nil {
		t.Error("it was not deleted")
	}
}

func copyOfTheTest(t *testing.T, dir string) string {
	t.Helper()
	b, err := os.ReadFile(os.Args[0])
	if err != nil {
		t.Fatal(err)
	}
	exe := filepath.Join(dir, "caller.test")
	if err := os.WriteFile(exe, b, 0o755); err != nil {
		t.Fatal(err)
	}
	return exe
}

// publicDir is a directory that every user can write to, and get to.
func publicDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "curfew-habits-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) }) // a temporary directory, after all
	if err := os.Chmod(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	return dir
}

// A caller that changes its user, directory, umask, limits and environment: each
// CLI has the state of its own call.
func TestCallerThatChangesItself(t *testing.T) {
	t.Parallel()
	dir := publicDir(t)
	exe := copyOfTheTest(t, dir)
	witnessed(t, testimony{Argv: []string{exe, exe, dir}, Role: "changes itself", End: "killed", Dir: dir})
}

// A caller whose user may have few tasks.
func TestCallerThatMayHaveFewTasks(t *testing.T) {
	t.Parallel()
	dir := publicDir(t)
	exe := copyOfTheTest(t, dir)
	w := testimony{Argv: []string{exe, exe, dir}, Role: "few tasks allowed", End: "killed", Dir: dir}
	if os.Getuid() == 0 {
		w.User = ofFewTasks
	}
	witnessed(t, w)
}

// programs are what the tests build, by their names. They are
// position-independent, so that they share what is compiled for the library.
var programs = map[string][]string{
	"library.so": {"-buildmode=c-shared", "./testdata/library"},
	"curfew":     {"-buildmode=pie", "curfew/cmd/curfew"},
	"caller":     {"-cover", "-buildmode=pie", "./testdata/caller"},
}

// programsVariable names a directory to which TestBuilds builds the programs, and
// from which the other tests then take them: for a user who has nothing compiled
// yet.
const programsVariable = "CURFEW_TEST_PROGRAMS"

func TestBuilds(t *testing.T) {
	dir := os.Getenv(programsVariable)
	if dir == "" {
		t.Skip("there is no " + programsVariable + " to build to")
	}
	for name := range programs {
		if _, err := os.Stat(filepath.Join(dir, name)); err != nil {
			goBuild(t, dir, name)
		}
	}
}

// built returns the path of a program, which it builds if there is none.
func built(t *testing.T, name string) string {
	t.Helper()
	exe := filepath.Join(os.Getenv(programsVariable), name)
	if _, err := os.Stat(exe); filepath.IsAbs(exe) && err == nil {
		return exe
	}
	return goBuild(t, t.TempDir(), name)
}

// goBuild builds a program into dir, or skips the test where that cannot be done.
func goBuild(t *testing.T, dir, name string) string {
	t.Helper()
	if _, err := exec.LookPath("go"); err != nil {
		t.Skip("no go command to build a caller with: ", err)
	}
	exe := filepath.Join(dir, name)
	cmd := exec.CommandContext(t.Context(), "go", append([]string{"build", "-buildvcs=false", "-o", exe}, programs[name]...)...)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=1")
	if b, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("go build %s: %v\n%s", name, err, b)
	}
	return exe
}

// A c-shared library in a C program cannot start the executable again, and says
// what to do; with an installed curfew it works, also when the program is killed,
// and when a copy of it, forked and not executed, has the sockets still open.
func TestLibraryInACProgram(t *testing.T) {
	if testing.Short() {
		t.Skip("it builds programs, which takes long")
	}
	t.Parallel()
	cc, err := exec.LookPath("cc")
	if err != nil {
		t.Skip("no C compiler: ", err)
	}
	host := filepath.Join(t.TempDir(), "host")
	if out, err := exec.CommandContext(t.Context(), cc, "-o", host, "testdata/host/host.c", "-ldl", "-lpthread").CombinedOutput(); err != nil {
		t.Fatalf("cc: %v\n%s", err, out)
	}
	library := built(t, "library.so")
	curfew := built(t, "curfew")
	f, _ := fixtures.Find(habitTree)

	t.Run("refused", func(t *testing.T) {
		probe := newProbe(t)
		out, err := exec.CommandContext(t.Context(), host, append([]string{library, "", "0", "", os.Args[0]}, fixtures.Args(f.Name, probe.Options())...)...).CombinedOutput()
		if err != nil || !strings.HasPrefix(string(out), "not_started start_failed ") || !strings.Contains(string(out), "set Options.Supervisor") {
			t.Errorf("%v, %s", err, out)
		}
		neverRan(t, probe)
	})
	t.Run("timeout", func(t *testing.T) {
		for ms := 250; ; ms *= 2 {
			probe := newProbe(t)
			out, err := exec.CommandContext(t.Context(), host, append([]string{library, curfew, strconv.Itoa(ms), "", os.Args[0]}, fixtures.Args(f.Name, probe.Options())...)...).CombinedOutput()
			isGone(t, f, probe, 0)
			if _, stood := os.Stat(probe.Options().Ready); stood != nil && ms < 10000 {
				continue
			}
			if err != nil || !strings.HasPrefix(string(out), "outcome_unknown timeout empty no_children: ") {
				t.Errorf("%v, %s", err, out)
			}
			return
		}
	})
	for _, end := range []string{"killed", "copied"} {
		t.Run(end, func(t *testing.T) {
			dir := t.TempDir()
			copied := ""
			if end == "copied" {
				copied = filepath.Join(dir, "copy")
			}
			witnessed(t, testimony{Argv: append([]string{host, library, curfew, "0", copied, os.Args[0]}, fixtures.Args(f.Name, probeOptions(dir))...), End: end, Dir: dir})
		})
	}
}

// A program that is nothing but a caller, and was built to measure its coverage:
// it writes that, its helpers do not, and nobody's stderr has a warning of theirs.
// (What is special about one that was built with -race is seen when these tests
// are.)
func TestCallerWithCoverage(t *testing.T) {
	if testing.Short() {
		t.Skip("it builds programs, which takes long")
	}
	t.Parallel()
	caller := built(t, "caller")
	f, _ := fixtures.Find(habitTree)
	const warning = "warning: GOCOVERDIR not set, no coverage data emitted\n"
	// Without /proc the program is started again by its name. The test binary
	// could not be, because of what package renames does.
	withoutProc := func(t *testing.T) (uintptr, []string) {
		needNamespaces(t, unix.CLONE_NEWNS, "tmpfs")
		return unix.CLONE_NEWNS, []string{os.Args[0], "tmpfs"}
	}
	for _, tt := range []struct {
		name, warning string
		counters      int
		noProc        bool
	}{
		{"with a directory", "", 1, false},
		{"without a directory", warning, 0, false}, // its own
		{"without proc", "", 1, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var namespaces uintptr
			var argv []string
			if tt.noProc {
				namespaces, argv = withoutProc(t)
			}
			for ms := 250; ; ms *= 2 {
				probe, dir := newProbe(t), t.TempDir()
				var stderr bytes.Buffer
				argv := append(slices.Clone(argv), caller, fmt.Sprintf("%dms", ms), os.Args[0])
				cmd := exec.CommandContext(t.Context(), argv[0], append(argv[1:], fixtures.Args(f.Name, probe.Options())...)...)
				cmd.SysProcAttr = inNamespaces(namespaces)
				cmd.Env = slices.DeleteFunc(os.Environ(), func(s string) bool { return strings.HasPrefix(s, "GOCOVERDIR=") })
				if tt.noProc {
					cmd.Env = append(cmd.Env, roleVar+"=mounts")
				}
				if tt.counters > 0 {
					cmd.Env = append(cmd.Env, "GOCOVERDIR="+dir)
				}
				cmd.Stderr = &stderr
				out, err := cmd.Output()
				isGone(t, f, probe, 0)
				if _, stood := os.Stat(probe.Options().Ready); stood != nil && ms < 10000 {
					continue
				}
				if want := `outcome_unknown timeout empty no_children, stderr "": `; err != nil || !strings.HasPrefix(string(out), want) {
					t.Errorf("%v, %s", err, out)
				}
				if stderr.String() != tt.warning {
					t.Errorf("the caller's stderr has %q, want %q", &stderr, tt.warning)
				}
				counters, err := filepath.Glob(filepath.Join(dir, "covcounters.*"))
				if err != nil || len(counters) != tt.counters {
					t.Errorf("%d files of counters, want %d, %v", len(counters), tt.counters, err)
				}
				return
			}
		})
	}
	for _, noProc := range []bool{false, true} {
		t.Run(fmt.Sprintf("killed, without proc %v", noProc), func(t *testing.T) {
			w := testimony{End: "killed", Dir: t.TempDir()}
			if noProc {
				w.Namespaces, w.Argv = withoutProc(t)
				w.Role = "mounts"
			}
			w.Argv = append(w.Argv, caller, "0s", os.Args[0])
			w.Argv = append(w.Argv, fixtures.Args(f.Name, probeOptions(w.Dir))...)
			witnessed(t, w)
		})
	}
}

// A start that is canceled is nobody else's: who is about to use the same guard
// gets another one.
func TestNeighbourOfCanceledStarts(t *testing.T) {
	t.Parallel()
	a := newAdapter(t)
	over := make(chan struct{})
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			for i := 0; ; i++ {
				select {
				case <-over:
					return
				default:
				}
				c := sh("exit 0")
				c.Timeout = time.Duration(i%12+1) * time.Millisecond
				_, _ = a.Invoke(t.Context(), c) // it may end in any way
			}
		})
	}
	for range size(8, 2, 40) {
		if o, err := run(t, a, sh("exit 0")); err != nil {
			t.Errorf("%s, %s, %v", o.Status, o.Cause, err)
			break
		}
	}
	close(over)
	all.Wait()
}
