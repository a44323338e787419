package adapter

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"curfew/fixtures"
	"curfew/outcome"
)

// A pid that a member of a tree has left is given to another process. These tests
// make that happen as often as they can, and in the middle of a stop: in a pid
// namespace with few numbers, whatever is free is soon a canary's.

func init() {
	roles["first of few"] = firstOfFewRole
	roles["reuse"] = reuseRole
	roles["flock"] = flockRole
	roles["brood"] = broodRole
	roles["invokes below"] = func(args []string) error {
		if err := os.Setenv(roleVar, os.Getenv(belowVar)); err != nil {
			return err
		}
		return invokesRole(args)
	}
	roles["takeover"] = takeoverRole
	roles["successors"] = successorsRole
	roles["mortals"] = mortalsRole
}

// fewPIDs is the limit in the namespace. Those below 300 are given out only once;
// some 300 are in use at a time, with the threads of the helpers.
const fewPIDs = 1200

// amongFew runs a role in a pid namespace of its own with few numbers.
func amongFew(t *testing.T, role string, args ...string) {
	t.Helper()
	// The limit is one of the namespace's since Linux 6.14. Before, it would be
	// the machine's.
	var name unix.Utsname
	if err := unix.Uname(&name); err != nil {
		t.Fatal(err)
	}
	var major, minor int
	if _, err := fmt.Sscanf(unix.ByteSliceToString(name.Release[:]), "%d.%d", &major, &minor); err != nil || major < 6 || major == 6 && minor < 14 {
		t.Skipf("Linux %s has no limit of pids for a namespace: 6.14 has", unix.ByteSliceToString(name.Release[:]))
	}
	const flags = unix.CLONE_NEWPID | unix.CLONE_NEWNS
	needNamespaces(t, flags, "proc")
	ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
	defer cancel()
	cmd := exec.CommandContext(ctx, os.Args[0], append([]string{role, t.TempDir()}, args...)...)
	cmd.Env = append(os.Environ(), roleVar+"=first of few")
	cmd.SysProcAttr = inNamespaces(flags)
	before, _ := os.ReadFile("/proc/sys/kernel/pid_max")
	out, err := cmd.CombinedOutput()
	if after, _ := os.ReadFile("/proc/sys/kernel/pid_max"); string(after) != string(before) {
		t.Errorf("the limit of pids here was %q and is %q", before, after)
	}
	if cmd.ProcessState.ExitCode() == exitSkip {
		t.Skipf("%s", out)
	}
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	t.Logf("%s", out)
}

// exitSkip is the exit code of a role that cannot do here what it is for.
const exitSkip = 77

// firstOfFewRole is the init of the namespace: it runs a role and reaps whatever
// falls to it.
func firstOfFewRole(args []string) error {
	if err := mount("proc"); err != nil {
		return err
	}
	if err := os.WriteFile("/proc/sys/kernel/pid_max", []byte(strconv.Itoa(fewPIDs)), 0); err != nil {
		fmt.Println("the limit of pids cannot be set:", err)
		os.Exit(exitSkip)
	}
	cmd := exec.Command(os.Args[0], args[1:]...)
	cmd.Env = append(os.Environ(), roleVar+"="+args[0])
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	if err := cmd.Start(); err != nil {
		return err
	}
	for {
		var status syscall.WaitStatus
		pid, err := syscall.Wait4(-1, &status, 0, nil)
		switch {
		case err == syscall.EINTR:
		case err != nil:
			return os.NewSyscallError("wait4", err)
		case pid == cmd.Process.Pid && status.Exited():
			os.Exit(status.ExitStatus())
		case pid == cmd.Process.Pid:
			return fmt.Errorf("%s ended with status %#x", args[0], status)
		}
	}
}

// cloneArgs is the kernel's struct clone_args.
type cloneArgs struct {
	flags, pidfd, childTID, parentTID, exitSignal, stack, stackSize, tls uint64
	setTID                                                               *int32
	setTIDSize, cgroup                                                   uint64
}

// bird is a canary that is forked and not executed: it has all signals blocked,
// so that those it gets are pending when it ends. SIGKILL and SIGSTOP show in its
// status. It naps until the time is over, or until end is set.
type bird struct {
	clone   cloneArgs
	pid     [1]int32 // that it is to have, if clone says so
	nap     syscall.Timespec
	naps    int
	end     *byte // shared
	pending uint64

	// What follows is for a member of a tree.
	orphan  bool // its parent, a process in between, exits
	session bool // has one of its own
	mortal  bool // dies of SIGTERM
	below   int  // how many more there are, each the child of the one before
	action  [4]uint64
}

// exitSignalled is the exit code of a canary that got a signal.
const exitSignalled = 9

// hatch forks a canary and returns its pid. As in package fixtures, nothing of the
// Go runtime is entered in the child.
func (b *bird) hatch() (int, error) {
	const setmask = 2
	var all, old uint64 = ^uint64(0), 0
	unix.RawSyscall6(unix.SYS_RT_SIGPROCMASK, setmask, uintptr(unsafe.Pointer(&all)), uintptr(unsafe.Pointer(&old)), 8, 0, 0)
	pid, errno := b.fork()
	unix.RawSyscall6(unix.SYS_RT_SIGPROCMASK, setmask, uintptr(unsafe.Pointer(&old)), 0, 8, 0, 0)
	if errno != 0 {
		return 0, errno
	}
	return pid, nil
}

//go:nosplit
//go:norace
//go:nocheckptr
func (b *bird) fork() (int, syscall.Errno) {
	r, _, errno := syscall.RawSyscall(unix.SYS_CLONE3, uintptr(unsafe.Pointer(&b.clone)), unsafe.Sizeof(b.clone), 0)
	if errno != 0 || r != 0 {
		return int(r), errno
	}
	if b.orphan {
		if r, _, _ := syscall.RawSyscall(unix.SYS_CLONE3, uintptr(unsafe.Pointer(&b.clone)), unsafe.Sizeof(b.clone), 0); r != 0 {
			b.exit(0)
		}
	}
	for b.below > 0 {
		b.below--
		if r, _, _ := syscall.RawSyscall(unix.SYS_CLONE3, uintptr(unsafe.Pointer(&b.clone)), unsafe.Sizeof(b.clone), 0); r != 0 {
			break
		}
	}
	if b.session {
		syscall.RawSyscall(syscall.SYS_SETSID, 0, 0, 0)
	}
	if b.mortal {
		syscall.RawSyscall6(syscall.SYS_RT_SIGACTION, uintptr(syscall.SIGTERM), uintptr(unsafe.Pointer(&b.action)), 0, 8, 0, 0)
		syscall.RawSyscall6(syscall.SYS_RT_SIGPROCMASK, 2, uintptr(unsafe.Pointer(&b.pending)), 0, 8, 0, 0)
	}
	for i := 0; i < b.naps && *b.end == 0; i++ {
		syscall.RawSyscall(syscall.SYS_NANOSLEEP, uintptr(unsafe.Pointer(&b.nap)), 0, 0)
	}
	syscall.RawSyscall(syscall.SYS_RT_SIGPENDING, uintptr(unsafe.Pointer(&b.pending)), 8, 0)
	code := uintptr(0)
	if b.pending != 0 {
		code = exitSignalled
	}
	b.exit(code)
	return 0, 0
}

//go:nosplit
//go:norace
//go:nocheckptr
func (b *bird) exit(code uintptr) {
	for {
		syscall.RawSyscall(syscall.SYS_EXIT_GROUP, code, 0, 0)
	}
}

func newBird() (*bird, error) {
	shared, err := syscall.Mmap(-1, 0, 1, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_SHARED|syscall.MAP_ANON)
	if err != nil {
		return nil, os.NewSyscallError("mmap", err)
	}
	b := &bird{nap: syscall.NsecToTimespec(int64(5 * time.Millisecond)), naps: 1, end: &shared[0]}
	b.clone.exitSignal = uint64(syscall.SIGCHLD)
	return b, nil
}

// buried is what is known of a canary when it has ended, or was stopped.
type buried struct {
	pid    int
	status syscall.WaitStatus
}

func (b buried) signalled() bool { return !b.status.Exited() || b.status.ExitStatus() != 0 }

// bury reaps a canary, if there is one. It sees also one that was stopped.
func bury() (buried, bool) {
	for {
		var status syscall.WaitStatus
		pid, err := syscall.Wait4(-1, &status, syscall.WNOHANG|syscall.WUNTRACED|syscall.WCONTINUED, nil)
		if err != syscall.EINTR {
			return buried{pid, status}, pid > 0
		}
	}
}

// flockRole keeps a hundred canaries, of which one after another ends and is
// replaced, until its stdin ends. It says which number is a canary's as soon as it
// is, a line for each.
func flockRole([]string) error {
	const most = 100
	runtime.LockOSThread()
	over := make(chan struct{})
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin) // any end is the end
		close(over)
	}()
	b, err := newBird()
	if err != nil {
		return err
	}
	out := bufio.NewWriter(os.Stdout)
	var bad []string
	for alive, ending := 0, false; !ending || alive > 0; {
		select {
		case <-over:
			ending = true
		default:
		}
		for {
			dead, ok := bury()
			if !ok {
				break
			}
			if dead.signalled() {
				bad = append(bad, fmt.Sprintf("%d: status %#x", dead.pid, dead.status))
			}
			if dead.status.Exited() || dead.status.Signaled() {
				alive--
			}
		}
		for range 8 {
			if alive == most || ending {
				break
			}
			b.nap = syscall.NsecToTimespec(int64(rand.N(150 * time.Millisecond)))
			pid, err := b.hatch()
			if err != nil {
				break // the numbers are all in use: in a moment
			}
			alive++
			fmt.Fprintln(out, pid)
		}
		if err := out.Flush(); err != nil {
			return err
		}
		time.Sleep(time.Millisecond)
	}
	if len(bad) > 0 {
		return fmt.Errorf("%d canaries got a signal: %s", len(bad), strings.Join(bad[:min(len(bad), 10)], ", "))
	}
	return nil
}

// reuseVariable raises the number of pids that have to be freed by the end of a
// stop.
const reuseVariable = "CURFEW_REUSE"

// Trees of all kinds come to all ends while a hundred canaries take over the pids
// that their members leave. No canary gets a signal.
func TestReusedPIDs(t *testing.T) {
	if testing.Short() {
		t.Skip("what it tests is in other processes")
	}
	t.Parallel()
	count := "150"
	if s := os.Getenv(reuseVariable); s != "" {
		count = s
	}
	amongFew(t, "reuse", count)
}

// broodRole is a leader with so many members, of a shape that the first argument
// has. They cost little: each sleeps until it is ended.
func broodRole(args []string) error {
	n, err := strconv.Atoi(args[1])
	if err != nil {
		return err
	}
	signal.Notify(make(chan os.Signal, 1), syscall.SIGTERM) // outlives it
	time.AfterFunc(50*time.Second, func() { os.Exit(fixtures.ExitDeadline) })
	fifo, err := syscall.Open(args[2], syscall.O_WRONLY, 0) // which all inherit
	if err != nil {
		return err
	}
	if _, err := syscall.Write(fifo, []byte("w")); err != nil {
		return err
	}
	runtime.LockOSThread()
	b, err := newBird()
	if err != nil {
		return err
	}
	b.nap = syscall.NsecToTimespec(int64(50 * time.Second))
	shape := args[0]
	for i := 0; i < n; i++ {
		b.session, b.mortal = i%2 == 0, i%3 == 0
		b.orphan = shape == "orphans" || shape == "mixed" && i%4 < 2
		if b.below = 0; shape == "chains" {
			b.below = min(9, n-i-1)
			i += b.below
		}
		pid, err := b.hatch()
		if err != nil {
			return err
		}
		if b.orphan {
			if _, err := syscall.Wait4(pid, nil, 0, nil); err != nil {
				return err
			}
		}
	}
	if err := os.WriteFile(args[3], nil, 0o600); err != nil {
		return err
	}
	if shape == "mixed" {
		return nil // leaves them
	}
	select {}
}

// reusers are the fixtures whose pids are taken over, and broods.
var reusers = []struct{ name, arg string }{
	{"wide", "100"}, {"orphans", "100"}, {"comet", "1"}, {"mixed", "100"}, {"chains", "100"}, {"ignores-term", ""},
	{"orphans", "100"}, {"chain", "30"}, {"mixed", "100"}, {killsSupervisor, ""}, {"wide", "100"}, {"chains", "100"}, {"respawns", ""},
	{"orphans", "100"}, {"wide", "100"}, {"leaves", ""}, {"chains", "100"}, {"mixed", "100"}, {"double-fork", ""},
}

// reuser makes the command of such a tree.
func reuser(i int, probe *fixtures.Probe) (fixtures.Fixture, Command) {
	kind := reusers[i%len(reusers)]
	c := Command{Path: os.Args[0], Stop: StopPolicy{Grace: 60 * time.Millisecond, Linger: 50 * time.Millisecond, KillWait: patience}}
	if f, ok := fixtures.Find(kind.name); ok && kind.name != "wide" {
		c.Args = fixtures.Args(f.Name, probe.Options(), slices.DeleteFunc([]string{kind.arg}, func(s string) bool { return s == "" })...)
		return f, c
	}
	c.Args = []string{kind.name, kind.arg, probe.Options().FIFO, probe.Options().Ready}
	c.Env = append(os.Environ(), roleVar+"=brood")
	return fixtures.Fixture{Name: kind.name, HoldsFIFO: true, EndsByItself: kind.name == "mixed"}, c
}

// reuse is the state of reuseRole.
type reuse struct {
	dir    string
	a      *Adapter
	target int

	mu      sync.Mutex
	free    map[int]bool // numbers that members have had, and no canary since
	ended   int          // members
	taken   int          // how many of their numbers have become a canary's
	hatched int
	trees   map[string]int
	problem error
}

func (r *reuse) enough() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.ended >= r.target && r.taken >= r.target/4 || r.problem != nil
}

func (r *reuse) fail(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.problem = errors.Join(r.problem, err)
}

// startRole starts a role that is talked to.
func startRole(name string) (cmd *exec.Cmd, in io.WriteCloser, out io.ReadCloser, err error) {
	cmd = exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), roleVar+"="+name)
	cmd.Stderr = os.Stderr
	if in, err = cmd.StdinPipe(); err != nil {
		return nil, nil, nil, err
	}
	if out, err = cmd.StdoutPipe(); err != nil {
		return nil, nil, nil, err
	}
	return cmd, in, out, cmd.Start()
}

func reuseRole(args []string) error {
	target, err := strconv.Atoi(args[1])
	if err != nil {
		return err
	}
	flock, stdin, stdout, err := startRole("flock")
	if err != nil {
		return err
	}
	r := &reuse{dir: args[0], target: target, trees: map[string]int{}, free: map[int]bool{}}
	heard := make(chan error, 1)
	go func() { heard <- r.hear(stdout) }()
	if r.a, err = New(Options{}); err != nil {
		return err
	}
	began := time.Now()
	var workers sync.WaitGroup
	var next atomic.Int32
	for range 3 {
		workers.Go(func() {
			for !r.enough() {
				end := r.tree
				i := int(next.Add(1)) - 1
				if i%6 == 5 {
					end = r.killCaller
				}
				if err := end(i); err != nil {
					r.fail(err)
				}
			}
		})
	}
	workers.Wait()
	took := time.Since(began)
	if err := r.a.Shutdown(context.Background()); err != nil {
		return err
	}
	_ = stdin.Close() // which ends the flock
	if err := errors.Join(r.problem, <-heard, flock.Wait()); err != nil {
		return err
	}
	fmt.Printf("%d members ended in %v, of %v; %d canaries, of which %d got the number of a member that had just ended\n", r.ended, took, r.trees, r.hatched, r.taken)
	return alone()
}

// hear hears which numbers are a canary's.
func (r *reuse) hear(flock io.Reader) error {
	lines := bufio.NewScanner(flock)
	for lines.Scan() {
		pid, err := strconv.Atoi(lines.Text())
		if err != nil {
			return err
		}
		r.mu.Lock()
		r.hatched++
		if r.free[pid] {
			r.taken++
			delete(r.free, pid)
		}
		r.mu.Unlock()
	}
	return lines.Err()
}

// belowVar is the role of what is invoked by a caller that is to be killed.
const belowVar = "ADAPTER_TEST_BELOW"

// alone waits until there is nothing in this namespace but its first process and
// this one.
func alone() error {
	for end := time.Now().Add(patience); ; time.Sleep(10 * time.Millisecond) {
		all, err := filepath.Glob("/proc/[0-9]*")
		if err != nil || len(all) <= 2 {
			return err
		}
		if time.Now().After(end) {
			var names []string
			for _, p := range all {
				b, _ := os.ReadFile(p + "/stat")
				names = append(names, string(b[:min(len(b), 40)]))
			}
			return fmt.Errorf("there is still %q", names)
		}
	}
}

// tree has a tree ended in one way or another.
func (r *reuse) tree(i int) error {
	dir, err := os.MkdirTemp(r.dir, "tree-")
	if err != nil {
		return err
	}
	probe, err := fixtures.NewProbe(dir)
	if err != nil {
		return err
	}
	defer probe.Close()
	f, c := reuser(i, probe)
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	end := i % 3
	kill := func() {}
	cause := outcome.CauseCanceled
	if end == 0 {
		c.Timeout, cause = 50*time.Millisecond+rand.N(150*time.Millisecond), outcome.CauseTimeout
	} else {
		kill = killer(&c)
	}
	result := invokeAsync(ctx, r.a, c)
	if end > 0 {
		standing, done := context.WithTimeout(ctx, patience)
		defer done()
		if err := probe.AwaitReady(standing); err != nil {
			cancel()
			e := <-result
			return fmt.Errorf("%s: %w: %s, %w", f.Name, err, e.o.Stderr, e.err)
		}
		time.Sleep(rand.N(20 * time.Millisecond))
		if end == 1 {
			cancel()
		} else {
			kill()
		}
	}
	e := <-result
	got := e.o.Cleanup
	within := time.Duration(0)
	switch {
	case f.Name == killsSupervisor:
		// The guard ends the rest, and goes on after the time that Invoke has for
		// this, which it can need on a machine with other work.
		within = patience
	case got.Result != outcome.CleanupEmpty || got.HelperLost:
		return fmt.Errorf("%s: cleanup is %+v, %w", f.Name, got, e.err)
	default:
		if err := consistent(f, e, cause); err != nil {
			return fmt.Errorf("%s: %w", f.Name, err)
		}
	}
	if eof, err := probe.FIFOEOF(within); f.HoldsFIFO && !eof && !errors.Is(err, fixtures.ErrNoWriter) {
		return fmt.Errorf("%s: EOF of fifo: %v, %v", f.Name, eof, err)
	}
	r.note(f.Name, got)
	return nil
}

// note notes whose numbers are free now.
func (r *reuse) note(name string, c outcome.Cleanup) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.trees[name]++
	r.ended += len(c.Ended) + c.EndedMore
	for _, e := range c.Ended {
		r.free[e.PID] = true
	}
}

// killCaller has a tree ended by the death of its caller.
func (r *reuse) killCaller(i int) error {
	dir, err := os.MkdirTemp(r.dir, "caller-")
	if err != nil {
		return err
	}
	probe, err := fixtures.NewProbe(dir)
	if err != nil {
		return err
	}
	defer probe.Close()
	f, c := reuser(i, probe)
	caller := exec.Command(os.Args[0], append([]string{"--"}, c.Args...)...)
	caller.Env = append(os.Environ(), roleVar+"=invokes below")
	if c.Env != nil {
		caller.Env = append(caller.Env, belowVar+"=brood")
	}
	if err := caller.Start(); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	err = probe.AwaitReady(ctx)
	_ = caller.Process.Kill() // our child, and not reaped
	_ = caller.Wait()
	if err != nil {
		return fmt.Errorf("%s of a caller that is killed: %w", f.Name, err)
	}
	if eof, err := probe.FIFOEOF(patience); f.HoldsFIFO && !eof {
		return fmt.Errorf("%s of a caller that was killed: EOF of fifo: %v, %v", f.Name, eof, err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.trees["killed caller"]++
	return nil
}

// The very pid of a member that has died, and was reaped, is a canary's in the
// next moment, while the stop goes on: 200 times. No canary gets a signal.
//
// The kernel is asked for a process with that pid (clone3, set_tid), which is what
// writing ns_last_pid would be for, without the race against every other fork.
func TestPIDIsTakenOver(t *testing.T) {
	if testing.Short() {
		t.Skip("what it tests is in other processes")
	}
	t.Parallel()
	amongFew(t, "takeover", "200")
}

// mortalsEach is how many members of either kind a tree has for canaries to
// succeed.
const mortalsEach = 5

// mortalsRole is a leader that outlives SIGTERM. It has children that do not, whom
// it reaps, and grandchildren that fall to the supervisor. It says their pids.
func mortalsRole([]string) error {
	signal.Notify(make(chan os.Signal, 1), syscall.SIGTERM)
	time.AfterFunc(50*time.Second, func() { os.Exit(1) })
	var line strings.Builder
	for range mortalsEach {
		cmd := exec.Command("sleep", tooLong)
		cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
		if err := cmd.Start(); err != nil {
			return err
		}
		fmt.Fprint(&line, cmd.Process.Pid, " ")
		go func() { _ = cmd.Wait() }()
	}
	orphans, err := exec.Command("sh", "-c", `i=0; while [ $i -lt $0 ]; do sleep `+tooLong+` >/dev/null 2>&1 & echo $!; i=$((i+1)); done`, strconv.Itoa(mortalsEach)).Output()
	if err != nil {
		return err
	}
	fmt.Println(line.String() + strings.Join(strings.Fields(string(orphans)), " "))
	select {}
}

// successorsRole reads lines of pids. As soon as one of them is free, a canary has
// it, until the next line, which is empty, has them end. Then it says how many it
// had when the empty line came, and which got a signal.
func successorsRole([]string) error {
	runtime.LockOSThread()
	lines := make(chan string)
	go func() {
		in := bufio.NewScanner(os.Stdin)
		for in.Scan() {
			lines <- in.Text()
		}
		close(lines)
	}()
	b, err := newBird()
	if err != nil {
		return err
	}
	const forever = 10000 // 50 s
	b.naps = forever
	b.clone.setTID, b.clone.setTIDSize = &b.pid[0], 1
	for line := range lines {
		var left []int
		for _, s := range strings.Fields(line) {
			pid, err := strconv.Atoi(s)
			if err != nil {
				return err
			}
			left = append(left, pid)
		}
		fmt.Println("watching")
		taken, bad := 0, 0
		for over := false; !over; {
			select {
			case <-lines:
				over = true
				continue
			default:
			}
			for i := 0; i < len(left); i++ {
				if syscall.Kill(left[i], 0) != syscall.ESRCH {
					continue
				}
				b.pid[0] = int32(left[i])
				switch pid, err := b.hatch(); {
				case err == syscall.EEXIST:
					continue // somebody else was faster
				case err != nil:
					fmt.Println("a process with a certain pid cannot be had:", err)
					os.Exit(exitSkip)
				case pid != left[i]:
					return fmt.Errorf("asked for %d and got %d", left[i], pid)
				}
				taken++
				left = slices.Delete(left, i, i+1)
				i--
			}
			for dead, ok := bury(); ok; dead, ok = bury() {
				fmt.Fprintf(os.Stderr, "canary %d has status %#x while the stop goes on\n", dead.pid, dead.status)
				bad++
			}
			runtime.Gosched()
		}
		*b.end = 1
		for range taken - bad {
			var status syscall.WaitStatus
			pid, err := syscall.Wait4(-1, &status, syscall.WUNTRACED|syscall.WCONTINUED, nil)
			if dead := (buried{pid, status}); err != nil || dead.signalled() {
				fmt.Fprintf(os.Stderr, "canary %d has status %#x, %v\n", pid, status, err)
				bad++
			}
		}
		*b.end = 0
		fmt.Println(taken, bad)
	}
	return nil
}

func takeoverRole(args []string) error {
	target, err := strconv.Atoi(args[1])
	if err != nil {
		return err
	}
	successors, in, pipe, err := startRole("successors")
	if err != nil {
		return err
	}
	out := bufio.NewReader(pipe)
	hear := func(format string, into ...any) error {
		line, err := out.ReadString('\n')
		if err != nil {
			if _ = successors.Wait(); successors.ProcessState.ExitCode() == exitSkip {
				os.Exit(exitSkip)
			}
			return fmt.Errorf("the canaries ended: %w", err)
		}
		if _, err := fmt.Sscanf(line, format, into...); err != nil {
			fmt.Print(line)
			return err
		}
		return nil
	}
	a, err := New(Options{})
	if err != nil {
		return err
	}
	began, rounds, total := time.Now(), 0, 0
	for ; total < target; rounds++ {
		if rounds == target {
			return fmt.Errorf("only %d were taken over in %d rounds", total, rounds)
		}
		c := Command{Path: os.Args[0], Env: append(os.Environ(), roleVar+"=mortals"), Stop: StopPolicy{Grace: 100 * time.Millisecond, KillWait: patience, Audience: AudienceEveryone}}
		r, w := io.Pipe()
		c.Stdout = w
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		result := invokeAsync(ctx, a, c)
		line, err := bufio.NewReader(r).ReadString('\n')
		if err != nil {
			return err
		}
		if _, err := io.WriteString(in, line); err != nil {
			return err
		}
		if err := hear("watching\n"); err != nil {
			return err
		}
		cancel()
		e := <-result
		if _, err := io.WriteString(in, "\n"); err != nil {
			return err
		}
		var taken, bad int
		if err := hear("%d %d\n", &taken, &bad); err != nil {
			return err
		}
		if bad > 0 {
			return fmt.Errorf("round %d: of %d canaries with the pid of a member %d got a signal; %+v", rounds, taken, bad, e.o.Cleanup)
		}
		if o := e.o; o.Cleanup.Result != outcome.CleanupEmpty || o.Cleanup.Proof != outcome.ProofNoChildren || o.Status != outcome.StatusUnknown || o.Cause != outcome.CauseCanceled {
			return fmt.Errorf("round %d: %s, %s, %+v, %w", rounds, o.Status, o.Cause, o.Cleanup, e.err)
		}
		total += taken
	}
	fmt.Printf("%d pids taken over during a stop in %d rounds, %v\n", total, rounds, time.Since(began))
	if err := a.Shutdown(context.Background()); err != nil {
		return err
	}
	_ = in.Close() // which ends the canaries' process
	if err := successors.Wait(); err != nil {
		return err
	}
	return alone()
}
