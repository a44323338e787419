package supervisor

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"curfew/internal/wire"
	"curfew/outcome"
)

func init() {
	roles["has a thief"] = hasAThiefRole
	roles["takes sockets"] = takesSocketsRole
	roles["speaks for its supervisor"] = speaksRole
}

// A CLI of the same user can neither take a descriptor of its supervisor or of the guard, nor trace
// them. It can itself be traced.
func TestHelpersAreNotDumpable(t *testing.T) { inRole(t, "has a thief") }

func hasAThiefRole([]string) error {
	if os.Geteuid() == 0 { // root may trace every process
		if err := errors.Join(syscall.Setgroups(nil), syscall.Setgid(65534), syscall.Setuid(65534)); err != nil {
			return err
		}
	}
	var p Pool
	defer p.Close()
	h, err := p.Get(context.Background(), false)
	if err != nil {
		return err
	}
	defer p.Put(h)
	// The executable can lie in a directory that this user cannot search; the supervisor's link works.
	os.Setenv(roleVar, "takes sockets")
	out, done, err := runOn(h, settings(), "/proc/self/exe", strconv.Itoa(h.pid), strconv.Itoa(h.guard.pid))
	if err != nil || out != "nothing\n" || done.Exit == nil || done.Exit.Code != 0 {
		return fmt.Errorf("%q, %+v, %v", out, done, err)
	}
	return nil
}

// takesSocketsRole prints what it is able to do to the processes that its arguments name.
func takesSocketsRole(args []string) error {
	var can []string
	for _, arg := range args {
		pid, err := strconv.Atoi(arg)
		if err != nil {
			return err
		}
		pidfd, err := unix.PidfdOpen(pid, 0)
		if err != nil {
			return err
		}
		if fd, err := unix.PidfdGetfd(pidfd, wire.ControlFD, 0); err != unix.EPERM {
			can = append(can, fmt.Sprintf("take the socket of %d: %d, %v", pid, fd, err))
		}
		if err := unix.PtraceSeize(pid); err != unix.EPERM {
			can = append(can, fmt.Sprintf("trace %d: %v", pid, err))
		}
		if f, err := os.Open(fmt.Sprintf("/proc/%d/fd/%d", pid, wire.ControlFD)); !errors.Is(err, os.ErrPermission) {
			can = append(can, fmt.Sprintf("read the descriptors of %d: %v, %v", pid, f, err))
		}
	}
	if own, err := unix.PrctlRetInt(unix.PR_GET_DUMPABLE, 0, 0, 0, 0); own != 1 || err != nil {
		can = append(can, fmt.Sprintf("not be traced itself: %d, %v", own, err))
	}
	if can == nil {
		can = []string{"nothing"}
	}
	fmt.Println(strings.Join(can, "; "))
	return nil
}

// What a CLI sends over its supervisor's socket is not believed to come from the supervisor, if the
// CLI may take that socket.
func TestCLISpeaksForItsSupervisor(t *testing.T) {
	needsRoot(t)
	t.Parallel()
	for _, says := range []string{"a message", "half a message"} {
		t.Run(says, func(t *testing.T) {
			t.Parallel()
			var p Pool
			defer p.Close()
			env := append(os.Environ(), roleVar+"=speaks for its supervisor")
			h, held := heldRun(t, &p, settings(), env, "/proc/self/exe", says)
			h.Interrupt(time.Now().Add(patience))
			for {
				ev, err := h.Next()
				if err != nil {
					if !errors.Is(err, wire.ErrOtherSender) {
						t.Errorf("the caller gets %v", err)
					}
					break
				}
				if ev.Exited != nil || ev.Done != nil {
					t.Fatalf("the caller believes %+v, %+v", ev.Exited, ev.Done)
				}
			}
			h.Kill()
			if _, err := h.Swept(time.Now().Add(patience)); err != nil {
				t.Error(err)
			}
			atEOF(t, held)
			p.Discard(h)
		})
	}
}

func speaksRole(args []string) error {
	pidfd, err := unix.PidfdOpen(os.Getppid(), 0)
	if err != nil {
		return err
	}
	socket, err := unix.PidfdGetfd(pidfd, wire.ControlFD, 0)
	if err != nil {
		return err
	}
	fmt.Println("ready")
	time.Sleep(100 * time.Millisecond) // the supervisor has sent Started
	done, err := wire.Encode(&wire.Message{Done: &wire.Done{Started: true, Exit: &outcome.Exit{}, Cleanup: outcome.Cleanup{Result: outcome.CleanupEmpty, Proof: outcome.ProofNoChildren}}}, nil)
	if err != nil {
		return err
	}
	if args[0] == "half a message" {
		// The supervisor's next message would be its raw part.
		done[7] = 1
	}
	if _, err := unix.Write(socket, done); err != nil {
		return err
	}
	if args[0] == "half a message" {
		return nil
	}
	time.Sleep(time.Minute)
	return nil
}

// A supervisor is the process that its guard has started. Another process that has its socket while
// it is being started is not accepted, nor is the pidfd that it sends.
func TestAnotherGreets(t *testing.T) {
	t.Parallel()
	self := os.Getpid()
	for name, tt := range map[string]struct {
		order   []string
		spawned int
		ok      bool
	}{
		"first the guard":      {[]string{"spawned", "hello"}, self, true},
		"first the supervisor": {[]string{"hello", "spawned"}, self, true},
		"another":              {[]string{"spawned", "hello"}, self + 1, false},
		"another, first":       {[]string{"hello", "spawned"}, self + 1, false},
		"twice":                {[]string{"hello", "hello"}, self, false},
		"without the guard":    {[]string{"hello"}, self, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pair, err := wire.Socketpair()
			if err != nil {
				t.Fatal(err)
			}
			h := &Client{}
			stub(&h.helper, pair[0])
			other, err := wire.Socketpair()
			if err != nil {
				t.Fatal(err)
			}
			defer closeAll(other[1:])
			h.guard = &guardClient{}
			stub(&h.guard.helper, other[0])
			defer h.guard.conn.Close()
			h.guard.pid = self
			h.guard.conn.SetPeer(self)
			greeted := make(chan error, 1)
			go func() { greeted <- h.greet(t.Context()) }()
			for _, what := range tt.order {
				for h.Pending() { // one recvmsg returns the bytes of one process
					time.Sleep(time.Millisecond)
				}
				m, files := &wire.Message{Spawned: &wire.Spawned{PID: tt.spawned}}, []int(nil)
				if what == "hello" {
					m, files = &wire.Message{Hello: &wire.Hello{Version: wire.Version, PID: self, Pidfd: true}}, []int{pidfd(t, self)}
				}
				if err := wire.SendOn(pair[1], m, files...); err != nil {
					t.Fatal(err)
				}
			}
			unix.Close(pair[1])
			err = <-greeted
			if (err == nil) != tt.ok || (h.pidfd >= 0) != tt.ok {
				t.Errorf("%v, pidfd %d", err, h.pidfd)
			}
			h.conn.Close()
			h.dropPidfd()
		})
	}
}

func init() { roles["has no waitid"] = noWaitidRole }

// Where waitid is forbidden no process can be shown to be ours: nothing is started, and the error has
// the reason. A tree would be reported as survivors, with an empty list.
func TestWithoutWaitid(t *testing.T) { inRole(t, "has no waitid") }

func noWaitidRole([]string) error {
	// Load the number of the call; waitid fails with EPERM, the rest is allowed.
	filter := []unix.SockFilter{
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS},
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: unix.SYS_WAITID, Jf: 1},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ERRNO | uint32(unix.EPERM)},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ALLOW},
	}
	program := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return err
	}
	if _, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, unix.SECCOMP_FILTER_FLAG_TSYNC, uintptr(unsafe.Pointer(&program))); errno != 0 {
		return os.NewSyscallError("seccomp", errno)
	}
	var p Pool
	_, err := p.Get(context.Background(), false)
	if err == nil || !errors.Is(err, unix.EPERM) || !strings.Contains(err.Error(), "waitid") {
		return fmt.Errorf("got %v", err)
	}
	if left := p.Close(); left != 0 {
		return fmt.Errorf("%d helpers are left", left)
	}
	return nil
}

// A survivor is not listed among the processes that have ended.
func TestSurvivorsHaveNotEnded(t *testing.T) {
	t.Parallel()
	at := time.Now()
	process := func(pid int, start time.Time) outcome.Process { return outcome.Process{PID: pid, Start: start} }
	ended := []outcome.Ended{{Process: process(1, at)}, {Process: process(2, at)}, {Process: process(3, at.Add(-time.Second))}}
	survivors := []outcome.Survivor{{Process: process(2, at.Add(10*time.Millisecond))}, {Process: process(3, at)}}
	if got := withoutSurvivors(ended, survivors); len(got) != 2 || got[0].PID != 1 || got[1].PID != 3 {
		t.Errorf("got %+v", got)
	}
}

// If a helper's pid is another process's by now, that one's being suspended is not the helper's.
func TestSuspendedIsAboutTheHelper(t *testing.T) {
	t.Parallel()
	dead, other := exec.Command("true"), exec.Command("sleep", tooLong)
	if err := errors.Join(dead.Start(), other.Start()); err != nil {
		t.Fatal(err)
	}
	defer other.Wait()
	defer other.Process.Kill()
	h := &process{pidfd: pidfd(t, dead.Process.Pid), pid: other.Process.Pid}
	if err := errors.Join(dead.Wait(), other.Process.Signal(syscall.SIGSTOP)); err != nil {
		t.Fatal(err)
	}
	of := &process{pidfd: pidfd(t, other.Process.Pid), pid: other.Process.Pid}
	for end := time.Now().Add(patience); !of.Suspended(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("the other one is not suspended")
		}
	}
	if h.Suspended() {
		t.Error("it is taken for the other one")
	}
}
