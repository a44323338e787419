package supervisor

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"curfew/internal/wire"
	"curfew/outcome"
)

func init() {
	roles["suspends"] = suspendsRole
	roles["traces"] = tracesRole
}

// lostRun starts a CLI with a daemon below it on a supervisor of the pool, and returns when
// both run. Each of them holds the pipe as long as it lives.
func lostRun(t *testing.T, p *Pool) (h *Client, held *os.File) {
	t.Helper()
	sh, err := exec.LookPath("sh")
	if err != nil {
		t.Fatal(err)
	}
	script := "trap '' TERM; env -i setsid sh -c 'echo ready; sleep " + tooLong + "' & sleep " + tooLong
	return heldRun(t, p, settings(), os.Environ(), sh, "-c", script)
}

// heldRun runs a CLI until it has written something to its stdout, which is held by
// everything that it starts.
func heldRun(t *testing.T, p *Pool, s wire.Settings, env []string, path string, args ...string) (h *Client, held *os.File) {
	t.Helper()
	h, err := p.Get(t.Context(), false)
	if err != nil {
		t.Fatal(err)
	}
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.Close() })
	dir, err := os.Open("/")
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	err = h.Run(t.Context(), &wire.Request{Settings: s, Path: path, Args: append([]string{path}, args...), Env: env, Dir: int(dir.Fd()), Files: []int{int(w.Fd())}})
	w.Close()
	if err != nil {
		t.Fatal(err)
	}
	_ = r.SetReadDeadline(time.Now().Add(patience))
	if n, err := r.Read(make([]byte, 16)); n == 0 {
		t.Fatalf("the CLI does not come to life: %v", err)
	}
	return h, r
}

func atEOF(t *testing.T, r *os.File) {
	t.Helper()
	_ = r.SetReadDeadline(time.Now().Add(patience))
	if n, err := r.Read(make([]byte, 16)); err != io.EOF {
		t.Errorf("%d bytes, %v: something still holds the pipe", n, err)
	}
}

func pidfd(t *testing.T, pid int) int {
	t.Helper()
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(fd) })
	return fd
}

// The guard ends what a killed supervisor held, and proves it, also where a process has wiped
// its environment and begun a session.
func TestSupervisorIsKilled(t *testing.T) {
	t.Parallel()
	for name, sig := range map[string]syscall.Signal{"killed": syscall.SIGKILL, "suspended": syscall.SIGSTOP} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var p Pool
			defer p.Close()
			h, held := lostRun(t, &p)
			if err := unix.PidfdSendSignal(h.pidfd, sig, nil, 0); err != nil {
				t.Fatal(err)
			}
			h.Kill()
			swept, err := h.Swept(time.Now().Add(patience))
			if err != nil {
				t.Fatal(err)
			}
			raw, err := held.SyscallConn()
			if err != nil {
				t.Fatal(err)
			}
			_ = raw.Control(func(fd uintptr) {
				// It must be at its end already, but for processes that tests beside this
				// one have forked and not executed yet.
				fds := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
				if n, err := unix.Poll(fds, 2000); n != 1 || fds[0].Revents != unix.POLLHUP {
					t.Errorf("swept, and the pipe is held: %d, %v, %#x", n, err, fds[0].Revents)
				}
			})
			if c := swept.Cleanup(); c.Proof != outcome.ProofChildList || len(c.Ended) == 0 {
				t.Errorf("cleanup is %+v", c)
			}
			p.Discard(h)
		})
	}
}

// A guard that is to start no more supervisors still answers for those that it has.
func TestDismissedGuardAnswers(t *testing.T) {
	t.Parallel()
	var p Pool
	defer p.Close()
	h, held := lostRun(t, &p)
	p.dismiss(h.guard)
	other, err := p.Get(t.Context(), false)
	if err != nil {
		t.Fatal(err)
	}
	if other.guard == h.guard {
		t.Error("it has started another one")
	}
	h.Kill()
	if _, err := h.Swept(time.Now().Add(patience)); err != nil {
		t.Error(err)
	}
	atEOF(t, held)
	old := h.guard
	p.Discard(h)
	for end := time.Now().Add(patience); !old.ended(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("it is not let go of after the last")
		}
	}
	p.Discard(other)
}

// The guard resumes a suspended supervisor at once, whether it serves or is idle.
func TestSupervisorIsSuspended(t *testing.T) {
	t.Parallel()
	var p Pool
	defer p.Close()
	h, held := lostRun(t, &p)
	for range 3 {
		if err := unix.PidfdSendSignal(h.pidfd, syscall.SIGSTOP, nil, 0); err != nil {
			t.Fatal(err)
		}
	}
	if err := h.Stop(wire.StopRequest{ID: settings().ID, Cause: outcome.CauseCanceled, Kill: true}); err != nil {
		t.Fatal(err)
	}
	h.Interrupt(time.Now().Add(patience))
	for done := false; !done; {
		ev, err := h.Next()
		if err != nil {
			t.Fatal(err)
		}
		if done = ev.Done != nil; done && ev.Done.Cleanup.Proof != outcome.ProofNoChildren {
			t.Errorf("cleanup is %+v", ev.Done.Cleanup)
		}
	}
	h.Interrupt(time.Time{})
	atEOF(t, held)
	p.Put(h)
	if err := unix.PidfdSendSignal(h.pidfd, syscall.SIGSTOP, nil, 0); err != nil {
		t.Fatal(err)
	}
	out, done, _, err := runCLI(&p, settings(), "echo", "served")
	if err != nil || out != "served\n" || done.Cleanup.Proof != outcome.ProofNoChildren {
		t.Errorf("%q, %+v, %v", out, done, err)
	}
}

// A suspended guard is resumed when it is needed: for what a lost supervisor held, and for the
// next supervisor.
func TestGuardIsSuspended(t *testing.T) {
	t.Parallel()
	var p Pool
	defer p.Close()
	h, held := lostRun(t, &p)
	suspend := func() {
		t.Helper()
		if err := unix.PidfdSendSignal(h.guard.pidfd, syscall.SIGSTOP, nil, 0); err != nil {
			t.Fatal(err)
		}
	}
	suspend()
	other, err := p.Get(t.Context(), false)
	if err != nil {
		t.Fatalf("start another: %v", err)
	}
	p.Discard(other)
	if other.guard != h.guard {
		t.Error("the other has another guard")
	}
	suspend()
	h.Kill()
	swept, err := h.Swept(time.Now().Add(patience))
	if err != nil {
		t.Fatal(err)
	}
	if c := swept.Cleanup(); c.Proof != outcome.ProofChildList {
		t.Errorf("cleanup is %+v", c)
	}
	atEOF(t, held)
	p.Discard(h)
}

// Of two supervisors that are lost at once both trees are ended; a third one is left alone.
func TestTwoSupervisorsAreKilled(t *testing.T) {
	t.Parallel()
	var p Pool
	defer p.Close()
	one, heldByOne := lostRun(t, &p)
	two, heldByTwo := lostRun(t, &p)
	neighbour, err := p.Get(t.Context(), false)
	if err != nil {
		t.Fatal(err)
	}
	if one.guard != two.guard || one.guard != neighbour.guard {
		t.Fatal("they have different guards")
	}
	one.Kill()
	two.Kill()
	for _, h := range []*Client{one, two} {
		if _, err := h.Swept(time.Now().Add(patience)); err != nil {
			t.Error(err)
		}
	}
	atEOF(t, heldByOne)
	atEOF(t, heldByTwo)
	if out, _, err := runOn(neighbour, settings(), "echo", "untouched"); err != nil || out != "untouched\n" {
		t.Errorf("the neighbour: %q, %v", out, err)
	}
	p.Discard(one)
	p.Discard(two)
	p.Put(neighbour)
}

// A guard that is killed is replaced, and its supervisors keep running.
func TestGuardIsKilled(t *testing.T) {
	t.Parallel()
	var p Pool
	defer p.Close()
	h, held := lostRun(t, &p)
	guard := h.guard
	guard.Kill()
	fds := []unix.PollFd{{Fd: int32(guard.pidfd), Events: unix.POLLIN}}
	if wait(fds, time.Now().Add(patience)); fds[0].Revents == 0 {
		t.Fatal("the guard lives on")
	}
	other, err := p.Get(t.Context(), false)
	if err != nil {
		t.Fatal(err)
	}
	if other.guard == guard {
		t.Error("a supervisor of the dead guard was given out")
	}
	if out, _, err := runOn(other, settings(), "echo", "on"); err != nil || out != "on\n" {
		t.Errorf("on the new one: %q, %v", out, err)
	}
	p.Put(other)
	if _, err := h.Swept(time.Now().Add(time.Millisecond)); !errors.Is(err, errGuardLost) {
		t.Errorf("the dead guard's word: %v", err)
	}
	// The running one still stops its tree, and proves it.
	if err := h.Stop(wire.StopRequest{ID: "test", Cause: outcome.CauseCanceled, Kill: true}); err != nil {
		t.Fatal(err)
	}
	h.Interrupt(time.Now().Add(patience))
	for {
		ev, err := h.Next()
		if err != nil {
			t.Fatal(err)
		}
		if ev.Done != nil {
			if ev.Done.Cleanup.Proof != outcome.ProofNoChildren {
				t.Errorf("cleanup is %+v", ev.Done.Cleanup)
			}
			break
		}
	}
	atEOF(t, held)
	p.Discard(h)
}

// The supervisor of a lost guard is not used again, also when the pool has dropped the guard in
// the meantime: no process would adopt what the supervisor leaves.
func TestSupervisorOfALostGuardIsNotReused(t *testing.T) {
	t.Parallel()
	var p Pool
	defer p.Close()
	h, held := lostRun(t, &p)
	guard := h.guard
	guard.Kill()
	guard.awaitEnd(time.Now().Add(patience))
	if err := h.Stop(wire.StopRequest{ID: "test", Cause: outcome.CauseCanceled, Kill: true}); err != nil {
		t.Fatal(err)
	}
	h.Interrupt(time.Now().Add(patience))
	for done := false; !done; {
		ev, err := h.Next()
		if err != nil {
			t.Fatal(err)
		}
		done = ev.Done != nil
	}
	atEOF(t, held)
	h.Interrupt(time.Time{})
	p.Put(h)
	p.expire()
	if guard.alive() {
		t.Error("a dead guard that was let go of counts as alive")
	}
	other, err := p.Get(t.Context(), false)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Put(other)
	if other == h || other.guard == guard {
		t.Error("the supervisor of a dead guard was given out")
	}
}

// A supervisor that was killed while it was idle is not given out: its invocation would not be
// started.
func TestDeadIdleSupervisorIsNotReused(t *testing.T) {
	t.Parallel()
	for _, readyBefore := range []bool{false, true} {
		var p Pool
		defer p.Close()
		h, err := p.Get(t.Context(), false)
		if err != nil {
			t.Fatal(err)
		}
		if out, _, err := runOn(h, settings(), "echo", "first"); err != nil || out != "first\n" {
			t.Fatalf("first: %q, %v", out, err)
		}
		// It reports that it is ready after it has reported the end. It is killed when the
		// caller has read that, or most likely after it was sent.
		if !readyBefore {
			time.Sleep(50 * time.Millisecond)
		}
		if readyBefore && !h.awaitReady(t.Context()) {
			t.Fatal("it is not ready")
		}
		p.Put(h)
		h.Kill()
		h.awaitEnd(time.Now().Add(patience))
		other, err := p.Get(t.Context(), false)
		if err != nil {
			t.Fatal(err)
		}
		if other == h {
			t.Errorf("ready before: %v: the dead one was given out", readyBefore)
		}
		if out, _, err := runOn(other, settings(), "echo", "second"); err != nil || out != "second\n" {
			t.Errorf("ready before: %v: %q, %v", readyBefore, out, err)
		}
		p.Put(other)
	}
}

// Many supervisors are started while others run.
func TestManySupervisors(t *testing.T) {
	t.Parallel()
	var p Pool
	defer p.Close()
	var wg sync.WaitGroup
	var all [24]*Client
	for i := range all {
		wg.Go(func() {
			var err error
			if all[i], err = p.Get(t.Context(), false); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	for _, h := range all {
		if h == nil {
			continue
		}
		if h.guard != all[0].guard {
			t.Error("more than one guard for one state")
		}
		p.Put(h)
	}
}

// The death of a traced helper is not reported to its parent before the tracer detaches. The
// guard ends what such a supervisor held all the same; if the guard is traced, the caller
// sweeps.
func TestHelperIsTraced(t *testing.T) {
	needsRoot(t) // other users cannot trace a helper
	t.Parallel()
	for _, traced := range []string{"supervisor", "guard"} {
		t.Run(traced, func(t *testing.T) {
			t.Parallel()
			var p Pool
			defer p.Close()
			env := append(os.Environ(), roleVar+"=traces", wire.Mark(settings().ID))
			s := settings()
			s.NoCgroup = true // a cgroup would end it without the guard
			h, held := heldRun(t, &p, s, env, os.Args[0], traced)
			h.Kill()
			swept, err := h.Swept(time.Now().Add(patience))
			switch {
			case traced == "supervisor":
				if err != nil || swept.Cleanup().Proof != outcome.ProofChildList {
					t.Errorf("got %+v, %v", swept, err)
				}
			case err == nil:
				t.Error("a guard that is traced has answered")
			default:
				h.Sweep(wire.Mark(settings().ID), 0, time.Now().Add(-patience), time.Now().Add(2*time.Second))
			}
			atEOF(t, held)
			p.Discard(h)
		})
	}
}

// tracesRole is a leader. Its child, in a session of its own, does not die with the supervisor;
// it stops every thread of the supervisor, or of the guard, and keeps them stopped.
func tracesRole(args []string) error {
	signal.Ignore(syscall.SIGTERM)
	if len(args) == 2 {
		return hold(args[1])
	}
	pid := os.Getppid()
	if args[0] == "guard" {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if err != nil {
			return err
		}
		if _, err := fmt.Sscanf(string(stat[bytes.LastIndexByte(stat, ')')+2:]), "S %d", &pid); err != nil {
			return fmt.Errorf("%q: %w", stat, err)
		}
	}
	tracer := exec.Command(os.Args[0], args[0], strconv.Itoa(pid))
	tracer.Env = append(os.Environ(), roleVar+"=traces")
	tracer.Stdout, tracer.Stderr = os.Stdout, os.Stdout
	tracer.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	return tracer.Run()
}

func hold(process string) error {
	runtime.LockOSThread()
	tasks, err := os.ReadDir("/proc/" + process + "/task")
	if err != nil {
		return err
	}
	for _, task := range tasks {
		tid, _ := strconv.Atoi(task.Name())
		if err := unix.PtraceSeize(tid); err != nil {
			return os.NewSyscallError("PTRACE_SEIZE", err)
		}
		if err := unix.PtraceInterrupt(tid); err != nil {
			return os.NewSyscallError("PTRACE_INTERRUPT", err)
		}
	}
	fmt.Println("ready")
	time.Sleep(50 * time.Second)
	return nil
}

// A caller is killed while its CLI suspends its supervisor again and again: the guard ends
// both. It does so too if it was suspended itself, with a supervisor that is suspended or dead:
// the caller's end resumes it. The caller's end also resumes a supervisor whose guard is dead.
func TestSuspendedSupervisorOfADeadCaller(t *testing.T) {
	t.Parallel()
	for _, how := range []string{"again and again", "guard too", "guard, and the supervisor killed", "after the guard was killed"} {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			suspendedSupervisor(t, how)
		})
	}
}

func suspendedSupervisor(t *testing.T, how string) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	cmd := exec.Command(os.Args[0], how)
	cmd.Env = append(os.Environ(), roleVar+"=suspends")
	cmd.ExtraFiles = []*os.File{w}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	w.Close()
	buf := make([]byte, 32)
	n, _ := out.Read(buf)
	var supervisor, guard int
	if _, err := fmt.Sscan(string(buf[:n]), &supervisor, &guard); err != nil {
		t.Fatal(err)
	}
	fd, guardFD := pidfd(t, supervisor), pidfd(t, guard)
	_ = r.SetReadDeadline(time.Now().Add(patience))
	if _, err := r.Read(buf[:1]); err != nil {
		t.Fatalf("the CLI does not come to life: %v", err)
	}
	switch how {
	case "again and again":
	case "after the guard was killed":
		if err := unix.PidfdSendSignal(guardFD, syscall.SIGKILL, nil, 0); err != nil {
			t.Fatal(err)
		}
		// Its end resumes the supervisor, which is suspended only then.
		wait([]unix.PollFd{{Fd: int32(guardFD), Events: unix.POLLIN}}, time.Now().Add(patience))
		time.Sleep(20 * time.Millisecond)
		if err := unix.PidfdSendSignal(fd, syscall.SIGSTOP, nil, 0); err != nil {
			t.Fatal(err)
		}
	default:
		sig := syscall.SIGSTOP
		if how != "guard too" {
			sig = syscall.SIGKILL
		}
		if err := errors.Join(unix.PidfdSendSignal(guardFD, syscall.SIGSTOP, nil, 0), unix.PidfdSendSignal(fd, sig, nil, 0)); err != nil {
			t.Fatal(err)
		}
	}
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
	for name, fd := range map[string]int{"supervisor": fd, "guard": guardFD} {
		fds := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
		if wait(fds, time.Now().Add(patience)); fds[0].Revents == 0 {
			t.Errorf("the %s outlives its caller", name)
		}
	}
	for end := time.Now().Add(patience); ; {
		_ = r.SetReadDeadline(end)
		if _, err := r.Read(buf); err == io.EOF {
			break
		} else if err != nil {
			t.Fatalf("something still holds the pipe: %v", err)
		}
	}
}

func suspendsRole(args []string) error {
	var p Pool
	h, err := p.Get(context.Background(), false)
	if err != nil {
		return err
	}
	fmt.Println(h.pid, h.guard.pid)
	dir, err := os.Open("/")
	if err != nil {
		return err
	}
	sh, err := exec.LookPath("sh")
	if err != nil {
		return err
	}
	script := "echo x >&3; exec sleep " + tooLong
	if args[0] == "again and again" {
		script = "i=0; while [ $i -lt 2000 ]; do kill -STOP $PPID; echo x >&3; sleep 0.02; i=$((i+1)); done"
	}
	s := settings()
	s.Numbers = []int{3}
	if err := h.Run(context.Background(), &wire.Request{Settings: s, Path: sh, Args: []string{"sh", "-c", script}, Env: os.Environ(), Dir: int(dir.Fd()), Files: []int{3}}); err != nil {
		return err
	}
	unix.Close(3)
	_, err = h.Next()
	for err == nil {
		_, err = h.Next()
	}
	return err
}

// Duties that arrive before the guard has seen the start of their supervisor are kept: the
// supervisor does not count as dead.
func TestDutiesOfASupervisorThatIsBeingStarted(t *testing.T) {
	t.Parallel()
	pair, err := wire.Socketpair()
	if err != nil {
		t.Fatal(err)
	}
	null := nullDescriptor()
	defer unix.Close(null)
	tree := newStubTree(t, polite)
	tree.gone = func() bool { return false }
	done := func(*wire.TempDir) error { t.Error("the duties are carried out"); return nil }
	g := newGuard(loop{null: null, removeDir: done}, "/proc/self/exe", "1", nil)
	g.tree, g.root = tree, null
	if err := g.handle(&wire.Message{Spawn: &wire.Spawn{ID: "1"}}, nil, []int{pair[1], nullDescriptor(), nullDescriptor()}); err != nil {
		t.Fatal(err)
	}
	g.startNext()
	watch := wire.Watch{ID: "1", Duties: &wire.Duties{TempDir: &wire.TempDir{Path: []byte("/tmp/curfew-1"), Ino: 1}}}
	if err := g.handle(&wire.Message{Watch: &watch}, nil, nil); err != nil {
		t.Fatal(err)
	}
	g.see(tree.Collect(false))
	g.sweep()
	g.answer()
	if s := g.supervisors["1"]; s.dead || s.pid == 0 || s.duties == nil || g.calls.pending() {
		t.Errorf("got %+v", s)
	}
	// A directory without an identity is never removed.
	watch.Duties.TempDir.Ino = 0
	if err := g.handle(&wire.Message{Watch: &watch}, nil, nil); !errors.Is(err, wire.ErrProtocol) {
		t.Errorf("a directory that is known by its name alone: %v", err)
	}
	// No id is used twice.
	if err := g.handle(&wire.Message{Spawn: &wire.Spawn{ID: "1"}}, nil, []int{pair[0]}); !errors.Is(err, wire.ErrProtocol) {
		t.Errorf("an id that is used again: %v", err)
	}
}

// A CLI that suspends its supervisor and the guard at once, or a supervisor without a guard,
// and exits: the caller resumes them, and gets the report of the exit.
func TestHelpersAreSuspendedAtOnce(t *testing.T) {
	t.Parallel()
	for _, alone := range []bool{false, true} {
		t.Run(fmt.Sprintf("without a guard: %v", alone), func(t *testing.T) {
			t.Parallel()
			var p Pool
			defer p.Close()
			h, err := p.Get(t.Context(), alone)
			if err != nil {
				t.Fatal(err)
			}
			pids := strconv.Itoa(h.pid)
			if !alone {
				pids = strconv.Itoa(h.guard.pid) + " " + pids
			}
			_, done, err := runOn(h, settings(), "sh", "-c", "kill -STOP "+pids+"; exit 7")
			if err != nil || done.Exit == nil || done.Exit.Code != 7 {
				t.Errorf("%+v, %v", done, err)
			}
			p.Discard(h)
		})
	}
}
