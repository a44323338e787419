package adapter

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"curfew/fixtures"
	"curfew/fixtures/bombs"
	"curfew/outcome"
)

func init() {
	roles["bombed"] = bombedRole
	roles["heavy"] = heavyRole
	roles["outer namespace"] = outerNamespaceRole
	roles["inner namespace"] = innerNamespaceRole
}

// A fork bomb below a limit on tasks that the caller and its helpers share.
func TestBomb(t *testing.T) {
	if testing.Short() {
		t.Skip("what it tests is in other processes")
	}
	t.Run("limit of a cgroup", func(t *testing.T) {
		limit, err := bombs.NewTaskLimit(2000)
		if err != nil {
			t.Skip(err)
		}
		if os.Geteuid() != 0 {
			t.Skip("root is needed to make a cgroup")
		}
		modes := []string{""} // a user has no cgroups in any case
		if os.Getenv(stormsVariable) != "" {
			modes = append(modes, withoutCgroup)
		}
		for _, mode := range modes {
			bombed(t, limit.Command(os.Args[0], t.TempDir(), mode))
		}
		if err := limit.Close(); err != nil {
			t.Error("it is not empty:", err)
		}
	})
	t.Run("limit of a user", func(t *testing.T) {
		if os.Geteuid() != 0 {
			limit, err := bombs.NewTaskLimit(300)
			if err != nil {
				t.Skip(err)
			}
			bombed(t, limit.Command(os.Args[0], t.TempDir(), ""))
			return
		}
		// The limit does not hold for root, so it is set on a user of which
		// there is nothing else; and the test binary is where only root gets.
		const nobodyElse = 54321
		dir, err := os.MkdirTemp("", "curfew-bomb-")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = os.RemoveAll(dir) }) // a temporary directory, after all
		b, err := os.ReadFile(os.Args[0])
		if err != nil {
			t.Fatal(err)
		}
		exe := filepath.Join(dir, "caller")
		if err := errors.Join(os.WriteFile(exe, b, 0o755), os.Chown(dir, nobodyElse, nobodyElse)); err != nil {
			t.Fatal(err)
		}
		cmd := exec.Command("/bin/sh", "-c", `{ ulimit -u 300 2>/dev/null || ulimit -p 300; } && exec "$0" "$@"`, exe, dir, "")
		cmd.Dir = dir
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobodyElse, Gid: nobodyElse}}
		bombed(t, cmd)
	})
}

func bombed(t *testing.T, cmd *exec.Cmd) {
	t.Helper()
	cmd.Env = append(os.Environ(), roleVar+"=bombed")
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Errorf("%v\n%s", err, out)
	}
	t.Logf("%s", out)
}

// withoutCgroup has a role's Adapter do without.
const withoutCgroup = "without cgroup"

func bombedRole(args []string) error {
	// The caller is a Go program too, which aborts when it cannot start a
	// thread. That would be its own end, and not what is tested here.
	haveThreads(16)
	probe, err := fixtures.NewProbe(args[0])
	if err != nil {
		return err
	}
	f, _ := fixtures.Find("bomb")
	c := fixtureCommand(f, probe, promptly)
	c.Timeout = 2 * time.Second
	a, err := New(Options{NoCgroup: args[1] == withoutCgroup})
	if err != nil {
		return err
	}
	began := time.Now()
	o, err := a.Invoke(context.Background(), c)
	took := time.Since(began) - c.Timeout
	fmt.Printf("%d processes ended in %v: %v\n", len(o.Cleanup.Ended)+o.Cleanup.EndedMore, took, err)
	if o.Cleanup.HelperLost || o.Cleanup.Result != outcome.CleanupEmpty || o.Cleanup.Proof != outcome.ProofNoChildren {
		return fmt.Errorf("not proven empty: %s, %s, %+v", o.Status, o.Cause, o.Cleanup.Survivors)
	}
	if bound := bound(c.Stop); took > bound {
		return fmt.Errorf("returned %v after the timeout, more than %v", took, bound)
	}
	if probe.Beats() == 0 {
		return fmt.Errorf("no bomb went off: %s", o.Stderr)
	}
	const aborted = 2 // the exit code of the Go runtime
	if o.Cause == outcome.CauseExit && o.Exit.Code == aborted {
		// The bomb is a Go program as well, and its leader can be the one that aborts.
		return gone(f, probe, 0)
	}
	return errors.Join(consistent(f, ended{o: o, err: err}, outcome.CauseTimeout), gone(f, probe, 0))
}

// haveThreads makes the runtime start threads while it can. Those that are all
// blocked at once are all different; afterwards they idle.
func haveThreads(n int) {
	var ready, over sync.WaitGroup
	release := make(chan struct{})
	for range n {
		ready.Add(1)
		over.Go(func() {
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			ready.Done()
			<-release
		})
	}
	ready.Wait()
	close(release)
	over.Wait()
}

// Each of a chain of processes has so much memory that the kernel takes long to
// end it, and until then its child is out of reach.
func TestHeavyChain(t *testing.T) {
	if heavyBytes() == 0 {
		t.Skip("takes much memory: set " + bigVariable + " to the MB for each of 18 processes to run it")
	}
	var info unix.Sysinfo_t
	if err := unix.Sysinfo(&info); err != nil {
		t.Fatal(err)
	}
	free := (uint64(info.Freeram) + uint64(info.Bufferram)) * uint64(info.Unit)
	length := min(18, int(free/heavyBytes()*4/5))
	if length < 2 {
		t.Skipf("%d MB are free, two processes need %d", free>>20, heavyBytes()*2>>20)
	}
	probe := newProbe(t)
	c := Command{Path: os.Args[0], Args: []string{strconv.Itoa(length), probe.Options().Heartbeat, probe.Options().FIFO, probe.Options().Ready, strconv.Itoa(length)},
		Env: append(os.Environ(), roleVar+"=heavy")}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	result := invokeAsync(ctx, newAdapter(t), c)
	awaitStanding(t, fixtures.Fixture{HoldsFIFO: true}, probe)
	began := time.Now()
	cancel()
	e := <-result
	took := e.at.Sub(began)
	t.Logf("%d processes of %d MB ended in %v", length, heavyBytes()>>20, took)
	if bound := bound(c.Stop); took > bound {
		t.Errorf("returned after %v, more than %v", took, bound)
	}
	isEmpty(t, e.o)
	isGone(t, fixtures.Fixture{HoldsFIFO: true}, probe, 0)
}

// bigVariable has the MB that each process of the heavy chain takes: with 1024 the
// kernel needs some 100 ms to end one. A slow machine cannot fill that much
// before the fixture's time is over.
const bigVariable = "CURFEW_BIG_TEST"

func heavyBytes() uint64 {
	mb, _ := strconv.Atoi(os.Getenv(bigVariable))
	return uint64(mb) << 20
}

// heavyRole takes memory and has a child, in its own session, that does the
// same. All ignore TERM, and end by themselves.
func heavyRole(args []string) error {
	n, err := strconv.Atoi(args[0])
	if err != nil {
		return err
	}
	ignorePolite()
	time.AfterFunc(55*time.Second, func() { os.Exit(fixtures.ExitDeadline) })
	fifo, err := os.OpenFile(args[2], os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	if _, err := fifo.WriteString("w"); err != nil {
		return err
	}
	if n > 1 { // first, so that all fill their memory at the same time
		below := exec.Command(os.Args[0], append([]string{strconv.Itoa(n - 1)}, args[1:]...)...)
		below.Env = append(os.Environ(), roleVar+"=heavy")
		below.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
		if err := below.Start(); err != nil {
			return err
		}
	}
	memory, err := unix.Mmap(-1, 0, int(heavyBytes()), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		return err
	}
	_ = unix.Madvise(memory, unix.MADV_NOHUGEPAGE) // else it would end too soon
	for i := 0; i < len(memory); i += os.Getpagesize() {
		memory[i] = 1
	}
	filled, err := os.OpenFile(args[3]+".filled", os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	if _, err := filled.WriteString("x"); err != nil {
		return err
	}
	if fi, err := filled.Stat(); err == nil && strconv.FormatInt(fi.Size(), 10) == args[4] { // the last one
		if err := os.WriteFile(args[3], nil, 0o600); err != nil {
			return err
		}
	}
	time.Sleep(patience)
	runtime.KeepAlive(fifo)
	return nil
}

// A caller in a pid namespace of its own that sees the /proc of another one:
// every number in it is a stranger's. Here the numbers that /proc has for the
// tree are, in the caller's namespace, those of processes that are not ours.
func TestProcOfAnotherNamespace(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("root is needed to make a pid namespace")
	}
	cmd := exec.CommandContext(t.Context(), os.Args[0], t.TempDir())
	cmd.Env = append(os.Environ(), roleVar+"=outer namespace")
	// In a namespace of its own numbers are low, so that little is needed to
	// get to a certain one.
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID | syscall.CLONE_NEWNS}
	out, err := cmd.CombinedOutput()
	if errors.Is(err, syscall.EPERM) {
		t.Skip("no pid namespace can be made:", err)
	}
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	t.Logf("%s", out)
}

func outerNamespaceRole(args []string) error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return os.NewSyscallError("mount", err)
	}
	if err := unix.Mount("proc", "/proc", "proc", 0, ""); err != nil {
		return os.NewSyscallError("mount", err)
	}
	inner := exec.Command(os.Args[0], args...)
	inner.Env = append(os.Environ(), roleVar+"=inner namespace")
	inner.Stdout, inner.Stderr = os.Stdout, os.Stderr
	inner.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID}
	return inner.Run()
}

func innerNamespaceRole(args []string) (err error) {
	fail := func(e error) { err = errors.Join(err, e) }
	probeDir, canaryDir, chainDir := filepath.Join(args[0], "probe"), filepath.Join(args[0], "canary"), filepath.Join(args[0], "chain")
	if err := errors.Join(os.Mkdir(probeDir, 0o755), os.Mkdir(canaryDir, 0o755), os.Mkdir(chainDir, 0o755)); err != nil {
		return err
	}
	probe, err := fixtures.NewProbe(probeDir)
	if err != nil {
		return err
	}
	defer probe.Close()
	canary, err := fixtures.StartCanary(os.Args[0], canaryDir)
	if err != nil {
		return err
	}
	defer func() { fail(canary.Stop()) }()
	var strangers []*exec.Cmd
	stranger := func() (int, error) {
		cmd := exec.Command("sleep", tooLong)
		strangers = append(strangers, cmd)
		if err := cmd.Start(); err != nil {
			return 0, err
		}
		return cmd.Process.Pid, nil
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	readyBy, done := context.WithTimeout(ctx, patience)
	defer done()
	// The supervisor's own number is, in /proc, that of a process which was
	// started shortly before. Here that is one with a child.
	chainProbe, err := fixtures.NewProbe(chainDir)
	if err != nil {
		return err
	}
	defer chainProbe.Close()
	chain := exec.Command(os.Args[0], fixtures.Args("chain", chainProbe.Options(), "50")...)
	if err := errors.Join(chain.Start(), chainProbe.AwaitReady(readyBy)); err != nil {
		return err
	}

	f, _ := fixtures.Find("sessions")
	f.Args = []string{"20"}
	a, err := New(Options{})
	if err != nil {
		return err
	}
	result := invokeAsync(ctx, a, fixtureCommand(f, probe, promptly))
	if err := probe.AwaitReady(readyBy); err != nil {
		return err
	}
	// As many strangers more as it takes to have the numbers that /proc shows.
	shown, err := shownFor(probe.Options().Heartbeat)
	if err != nil {
		return err
	}
	for {
		pid, err := stranger()
		if err != nil {
			return err
		}
		if pid > slices.Max(shown) {
			break
		}
	}
	same := 0
	for _, cmd := range strangers {
		if slices.Contains(shown, cmd.Process.Pid) {
			same++
		}
	}
	if same == 0 {
		return fmt.Errorf("no stranger has one of the numbers %v", shown)
	}
	began := time.Now()
	cancel()
	e := <-result
	fmt.Printf("%d strangers, %d with a number that /proc has for the tree; ended in %v\n", len(strangers), same, e.at.Sub(began))
	if o := e.o; o.Cleanup.Result != outcome.CleanupEmpty || o.Cleanup.Proof != outcome.ProofNoChildren {
		fail(fmt.Errorf("cleanup is %+v", o.Cleanup))
	}
	fail(consistent(f, e, outcome.CauseCanceled))
	fail(gone(f, probe, 0))
	fail(canary.Check())
	for _, cmd := range strangers {
		var status unix.WaitStatus
		if pid, err := unix.Wait4(cmd.Process.Pid, &status, unix.WNOHANG|unix.WUNTRACED|unix.WCONTINUED, nil); pid != 0 || err != nil {
			fail(fmt.Errorf("stranger %d: status %#x, %v", cmd.Process.Pid, status, err))
			continue
		}
		_ = cmd.Process.Kill() // a child of ours that is not reaped
		_ = cmd.Wait()
	}
	chained, _ := shownFor(chainProbe.Options().Heartbeat) // it ends with this namespace
	if len(chained) != 51 {
		fail(fmt.Errorf("of the chain of 51 strangers there are %d", len(chained)))
	}
	fail(a.Shutdown(context.Background()))
	return err
}

// shownFor returns the numbers that /proc has for the processes whose command
// line has that word.
func shownFor(word string) ([]int, error) {
	lines, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		return nil, err
	}
	var pids []int
	for _, line := range lines {
		if b, err := os.ReadFile(line); err != nil || !bytes.Contains(b, []byte(word)) {
			continue
		}
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(line)))
		if err != nil {
			return nil, err
		}
		pids = append(pids, pid)
	}
	if len(pids) == 0 {
		return nil, errors.New("/proc does not show the tree")
	}
	return pids, nil
}

// A CLI below a tracer: what the tracer holds must die all the same.
func TestTraced(t *testing.T) {
	t.Parallel()
	strace, err := exec.LookPath("strace")
	if err != nil {
		t.Skip("no strace")
	}
	a := newAdapter(t)
	for _, name := range []string{"sleeps", "ignores-term", "setsid", "double-fork"} {
		t.Run(name, func(t *testing.T) {
			f, _ := fixtures.Find(name)
			probe := newProbe(t)
			c := fixtureCommand(f, probe, promptly)
			c.Args = append([]string{"-f", "-o", os.DevNull, c.Path}, c.Args...)
			c.Path = strace
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			result := invokeAsync(ctx, a, c)
			awaitStanding(t, f, probe)
			began := time.Now()
			cancel()
			e := <-result
			if took := e.at.Sub(began); took > bound(c.Stop) {
				t.Errorf("returned after %v, more than %v", took, bound(c.Stop))
			}
			if err := consistent(f, e, outcome.CauseCanceled); err != nil {
				t.Error(err)
			}
			isEmpty(t, e.o)
			isGone(t, f, probe, 0)
		})
	}
}

// An exec that waits in the kernel, here for somebody to give back a lease on
// the file, holds up nothing.
func TestExecThatHangs(t *testing.T) {
	t.Parallel()
	a := newAdapter(t)
	file := filepath.Join(t.TempDir(), "leased")
	b, err := os.ReadFile("/bin/true")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, b, 0o755); err != nil {
		t.Fatal(err)
	}
	fd, err := unix.Open(file, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Close(fd) }() // gives back the lease
	// A fork elsewhere in the test has the file open until it executes.
	for end := time.Now().Add(patience); ; time.Sleep(time.Millisecond) {
		// The signal that asks for the lease back is caught by the runtime.
		if _, err = unix.FcntlInt(uintptr(fd), unix.F_SETLEASE, unix.F_WRLCK); err != unix.EAGAIN || time.Now().After(end) {
			break
		}
	}
	if err != nil {
		t.Skip("no lease can be had:", err)
	}
	c := Command{Path: file, Timeout: 300 * time.Millisecond, Stop: promptly}
	began := time.Now()
	o, err := run(t, a, c)
	took := time.Since(began) - c.Timeout
	t.Logf("%v after the timeout: %v", took, err)
	if bound := bound(c.Stop); took > bound {
		t.Errorf("returned %v after the timeout, more than %v", took, bound)
	}
	if o.Status != outcome.StatusNotStarted || o.Cause != outcome.CauseTimeout || o.Exit != nil || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %s, %s, %+v, %v", o.Status, o.Cause, o.Exit, err)
	}
	isEmpty(t, o)
}

// A path that cannot be executed is not opened either: that would wait for a
// writer.
func TestPathIsAFIFO(t *testing.T) {
	t.Parallel()
	a := newAdapter(t)
	file := filepath.Join(t.TempDir(), "fifo")
	if err := unix.Mkfifo(file, 0o777); err != nil {
		t.Fatal(err)
	}
	result := invokeAsync(t.Context(), a, Command{Path: file, Stop: promptly})
	select {
	case e := <-result:
		if e.o.Status != outcome.StatusNotStarted || e.o.Cause != outcome.CauseStartFailed || !errors.Is(e.err, syscall.EACCES) {
			t.Errorf("got %s, %s, %v", e.o.Status, e.o.Cause, e.err)
		}
	case <-time.After(bound(promptly)):
		t.Error("it does not return")
		w, err := os.OpenFile(file, os.O_WRONLY, 0) // what it waits for
		if err != nil {
			t.Fatal(err)
		}
		_ = w.Close() // nothing was written
		e := <-result
		t.Logf("with a writer: %v", e.err)
	}
}

// A wrapper that forwards SIGTERM does not make it two, and one that does not
// forward it does not matter.
func TestWrappers(t *testing.T) {
	t.Parallel()
	a := newAdapter(t)
	for _, tt := range []struct {
		name, want string
		exit       outcome.Exit
		signalled  int
	}{
		{"wrapper", "terminated\n", outcome.Exit{AfterStop: true}, 1},
		{"deaf-wrapper", "", outcome.Exit{Code: -1, Signal: 15, AfterStop: true}, 2},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			f, _ := fixtures.Find(tt.name)
			probe := newProbe(t)
			counts := filepath.Join(t.TempDir(), "signals")
			f.Args = []string{counts}
			// Nobody is killed: a third of the grace is far longer than needed.
			c := fixtureCommand(f, probe, StopPolicy{Grace: 3 * patience})
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			result := invokeAsync(ctx, a, c)
			awaitStanding(t, f, probe)
			cancel()
			e := <-result
			if err := consistent(f, e, outcome.CauseCanceled); err != nil {
				t.Error(err)
			} else if *e.o.Exit != tt.exit {
				t.Errorf("exit: got %+v, want %+v", *e.o.Exit, tt.exit)
			}
			for _, p := range e.o.Cleanup.Ended {
				if p.LastSignal != int(syscall.SIGTERM) {
					t.Errorf("it had to be killed: %+v", p)
				}
			}
			if n := len(e.o.Cleanup.Ended); n != tt.signalled {
				t.Errorf("%d got a signal of ours, want %d", n, tt.signalled)
			}
			if got, _ := os.ReadFile(counts); string(got) != tt.want {
				t.Errorf("the child got %q, want %q", got, tt.want)
			}
			isEmpty(t, e.o)
			isGone(t, f, probe, 0)
		})
	}
}

// Many invocations end all at once.
func TestAllAtOnce(t *testing.T) {
	a := newAdapter(t)
	kinds := []fixtures.Fixture{}
	for _, f := range fixtures.All() {
		if slices.Contains(mechanisms, f.Name) && !f.EndsByItself && f.Name != killsSupervisor && f.Name != "comet" {
			kinds = append(kinds, f)
		}
	}
	for _, name := range []string{"sessions", "chain", "wide"} {
		f, _ := fixtures.Find(name)
		f.Args = []string{"10"}
		kinds = append(kinds, f)
	}
	runs := size(16, 8, 32)
	type one struct {
		f      fixtures.Fixture
		probe  *fixtures.Probe
		result <-chan ended
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	canary := startCanary(t)
	var all []one
	for i := range runs {
		f := kinds[i%len(kinds)]
		if i == 0 {
			f, _ = fixtures.Find("comet") // one is enough: it takes a processor
		}
		probe := newProbe(t)
		all = append(all, one{f, probe, invokeAsync(ctx, a, fixtureCommand(f, probe, promptly))})
	}
	for _, r := range all {
		awaitStanding(t, r.f, r.probe)
	}
	began := time.Now()
	cancel()
	var last time.Duration
	for _, r := range all {
		e := <-r.result
		last = max(last, e.at.Sub(began))
		if err := consistent(r.f, e, outcome.CauseCanceled); err != nil {
			t.Errorf("%s: %v", r.f.Name, err)
		}
		isEmpty(t, e.o)
		isGone(t, r.f, r.probe, 0)
	}
	t.Logf("%d ended in %v", runs, last)
	if last > bound(promptly) {
		t.Errorf("the last returned after %v, more than %v", last, bound(promptly))
	}
	if err := canary.Check(); err != nil {
		t.Error(err)
	}
}

// A cancellation at a random moment, mostly while the tree is being started:
// each outcome is consistent with what was seen of the tree.
func TestCanceledAnytime(t *testing.T) {
	a := newAdapter(t)
	runs := size(40, 12, 200)
	s := seed(t)
	stop := promptly
	stop.Grace = 50 * time.Millisecond
	names := []string{"sessions", "comet", "wide"}
	count := map[string]int{}
	var mu sync.Mutex
	next := make(chan int)
	var workers sync.WaitGroup
	for range 4 {
		workers.Go(func() {
			for i := range next {
				f, _ := fixtures.Find(names[i%len(names)])
				random := rand.New(rand.NewPCG(s, uint64(i)))
				t.Run(fmt.Sprintf("%s %d", f.Name, i), func(t *testing.T) {
					result := canceledAnytime(t, a, f, stop, time.Duration(random.Int64N(int64(100*time.Millisecond))))
					mu.Lock()
					defer mu.Unlock()
					count[result]++
				})
			}
		})
	}
	for i := range runs {
		next <- i
	}
	close(next)
	workers.Wait()
	t.Logf("%v", count)
}

// canceledAnytime says what was found of the tree.
func canceledAnytime(t *testing.T, a *Adapter, f fixtures.Fixture, stop StopPolicy, after time.Duration) string {
	probe := newProbe(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	result := invokeAsync(ctx, a, fixtureCommand(f, probe, stop))
	time.Sleep(after)
	began := time.Now()
	cancel()
	e := <-result
	if took := e.at.Sub(began); took > bound(stop) {
		t.Errorf("canceled after %v: returned %v later, more than %v", after, took, bound(stop))
	}
	if err := consistent(f, e, outcome.CauseCanceled); err != nil {
		t.Errorf("canceled after %v: %v", after, err)
	}
	isEmpty(t, e.o)
	isGone(t, f, probe, 0)
	_, err := os.Stat(probe.Options().Ready)
	switch {
	case e.o.Status == outcome.StatusNotStarted:
		neverRan(t, probe)
		return "not started"
	case err == nil:
		return "standing"
	case probe.Beats() > 0:
		return "building"
	}
	return "executed"
}

// ignorePolite makes this process outlive the signals that ask for its end.
func ignorePolite() {
	signal.Ignore(syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP, syscall.SIGQUIT)
}

// What is outside the tree and holds the pipe, writing or not, costs the drain
// limit and no more; what was written is there.
func TestStrangerHoldsTheOutput(t *testing.T) {
	t.Parallel()
	a := newAdapter(t)
	dir := t.TempDir()
	fifo := filepath.Join(dir, "fifo")
	if err := syscall.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	// A process of the test's own opens the CLI's pipe through /proc.
	stranger := exec.Command("sh", "-c", `read pid <"$0"; exec >/proc/$pid/fd/1; echo held >"$0.ready"; i=0; while [ $i -lt 1000 ]; do echo noise; sleep 0.02; i=$((i+1)); done`, fifo)
	if err := stranger.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = stranger.Process.Kill()
		_ = stranger.Wait()
	}()
	// In a subshell: a shell that redirects a builtin of its own has the FIFO as
	// its descriptor 1 for a moment.
	c := sh("(echo $$ >" + fifo + "); while [ ! -s " + fifo + ".ready ]; do sleep 0.01; done; echo done; exit 6")
	c.Stop.Drain = 300 * time.Millisecond
	o, _ := run(t, a, c)
	if o.Exit == nil || o.Exit.Code != 6 || !o.Output.DrainIncomplete || !bytes.Contains(o.Stdout, []byte("done\n")) || o.Output.Abandoned != 0 {
		t.Errorf("%+v, %q, %+v", o.Exit, o.Stdout, o.Output)
	}
	isEmpty(t, o)
}

// The timeout is the cause when it was there before the supervisor was lost, which
// dies in the stop that it began.
func TestTimeoutBeforeTheSupervisorIsLost(t *testing.T) {
	t.Parallel()
	a := newAdapter(t)
	c := sh("trap 'kill -KILL $PPID; sleep " + tooLong + "' TERM; sleep " + tooLong + " & wait")
	c.Stop.Grace = time.Minute
	var o outcome.Outcome
	var err error
	// A machine with much else to do may not get so far in time.
	for c.Timeout = 250 * time.Millisecond; !o.Cleanup.HelperLost && c.Timeout < 20*time.Second; c.Timeout *= 2 {
		o, err = run(t, a, c)
	}
	if o.Status != outcome.StatusUnknown || o.Cause != outcome.CauseTimeout || !o.Cleanup.HelperLost || o.Cleanup.Proof != outcome.ProofChildList {
		t.Errorf("got %s, %s, %+v, %v", o.Status, o.Cause, o.Cleanup, err)
	}
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("%v is no DeadlineExceeded", err)
	}
}

// What a CLI moves into its own cgroup, where it has one and may, is ended with it.
func TestStrangerInTheCgroup(t *testing.T) {
	t.Parallel()
	a := newAdapter(t)
	stranger := exec.Command("sleep", tooLong)
	if err := stranger.Start(); err != nil {
		t.Fatal(err)
	}
	dead := make(chan error, 1)
	go func() { dead <- stranger.Wait() }()
	o, err := run(t, a, sh(fmt.Sprintf(`p=$(sed -n 's/^0:://p' /proc/self/cgroup)
		case $p in */curfew-*) ;; *) exit 0 ;; esac
		for m in /sys/fs/cgroup /sys/fs/cgroup/unified; do
			[ -e $m$p/cgroup.procs ] && echo %d >$m$p/cgroup.procs && echo moved
		done`, stranger.Process.Pid)))
	defer func() {
		_ = stranger.Process.Kill() // again is no harm
	}()
	if err != nil || string(o.Stdout) != "moved\n" {
		t.Skipf("no cgroup can be made here, or nobody moved into it: %v, %q", err, o.Stderr)
	}
	select {
	case <-dead:
	case <-time.After(patience):
		t.Error("it lives: docs/limits.md says that it does not")
	}
	if len(o.Cleanup.Ended) != 1 || o.Cleanup.Ended[0].PID != stranger.Process.Pid {
		t.Errorf("ended %+v, want %d", o.Cleanup.Ended, stranger.Process.Pid)
	}
}
