package adapter

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"curfew/outcome"
)

// What a loaded caller says of one end.
type loadedEnd struct {
	Status outcome.Status
	Cause  outcome.Cause
	Result outcome.CleanupResult
	Proof  outcome.Proof
	Lost   bool
	Took   time.Duration // since the cancellation
	Bound  time.Duration
}

func init() {
	// A caller of a CLI with so many members, each in a session of its own and deaf to
	// SIGTERM. It cancels when it reads a line, and says how that ended.
	roles["loaded caller"] = func(args []string) error {
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		r, w, err := os.Pipe()
		if err != nil {
			return err
		}
		c := Command{
			Path: "sh", Args: []string{"-c", `trap "" TERM; i=0; while [ $i -lt "$0" ]; do setsid sleep 50 3>&- & i=$((i+1)); done; echo >&3; wait`, args[0]},
			ExtraFiles: []*os.File{w}, Stop: StopPolicy{Grace: 300 * time.Millisecond},
		}
		var canceled time.Time
		go func() {
			_, _ = r.Read(make([]byte, 1))
			fmt.Println("ready")
			_, _ = os.Stdin.Read(make([]byte, 1))
			canceled = time.Now()
			cancel()
		}()
		o, _ := Invoke(ctx, c)
		return json.NewEncoder(os.Stdout).Encode(loadedEnd{o.Status, o.Cause, o.Cleanup.Result, o.Cleanup.Proof, o.Cleanup.HelperLost, time.Since(canceled), c.waits(false).bound()})
	}
	// Uses the CPU for so many seconds.
	roles["hog"] = func(args []string) error {
		seconds, err := strconv.Atoi(args[0])
		for end := time.Now().Add(time.Duration(seconds) * time.Second); time.Now().Before(end); {
		}
		return err
	}
	// The init of a pid namespace with so many pids: runs a loaded caller, after whose
	// word it takes all pids that are left, and whatever becomes free.
	roles["few pids"] = func(args []string) error {
		if err := unix.Mount("proc", "/proc", "proc", 0, ""); err != nil {
			return err
		}
		if err := os.WriteFile("/proc/sys/kernel/pid_max", []byte(args[0]), 0); err != nil {
			return err
		}
		cmd := exec.Command("/proc/self/exe", args[1:]...)
		cmd.Env = append(os.Environ(), roleVar+"=loaded caller")
		cmd.Stdin, cmd.Stderr = os.Stdin, os.Stderr
		out, err := cmd.StdoutPipe()
		if err != nil {
			return err
		}
		if err := cmd.Start(); err != nil {
			return err
		}
		lines := bufio.NewReader(out)
		ready, err := lines.ReadString('\n')
		if err != nil {
			return err
		}
		var taken int
		over := make(chan string, 1)
		go func() {
			rest, _ := io.ReadAll(lines)
			over <- string(rest)
		}()
		attr := &syscall.ProcAttr{Files: []uintptr{}, Sys: &syscall.SysProcAttr{}}
		for said := false; ; {
			select {
			case rest := <-over:
				fmt.Fprintln(os.Stderr, taken, "pids were taken")
				fmt.Print(rest)
				return nil
			default:
			}
			if _, err := syscall.ForkExec("/bin/sleep", []string{"sleep", "50"}, attr); err == nil {
				taken++
				continue
			}
			if !said {
				said = true
				fmt.Print(ready)
			}
			time.Sleep(100 * time.Microsecond)
		}
	}
}

// loaded starts a role that says what a loaded caller does.
func loaded(t *testing.T, role string, attr *syscall.SysProcAttr, place func(pid int), args ...string) (cancel func(), end func() loadedEnd) {
	t.Helper()
	ctx, stop := context.WithTimeout(t.Context(), 100*time.Second)
	t.Cleanup(stop)
	cmd := exec.CommandContext(ctx, os.Args[0], args...)
	cmd.Env, cmd.SysProcAttr, cmd.Stderr = append(os.Environ(), roleVar+"="+role), attr, os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if place != nil {
		place(cmd.Process.Pid)
	}
	lines := bufio.NewScanner(out)
	if !lines.Scan() || lines.Text() != "ready" {
		t.Fatalf("it says %q: %v", lines.Text(), cmd.Wait())
	}
	return func() { _, _ = in.Write([]byte("\n")) }, func() (e loadedEnd) {
		t.Helper()
		lines.Scan()
		if err := json.Unmarshal(lines.Bytes(), &e); err != nil {
			t.Fatalf("it says %q: %v", lines.Text(), err)
		}
		if err := cmd.Wait(); err != nil {
			t.Error(err)
		}
		t.Logf("%+v", e)
		if e.Status != outcome.StatusUnknown || e.Cause != outcome.CauseCanceled || e.Result != outcome.CleanupEmpty || e.Proof == outcome.ProofNone {
			t.Errorf("%+v", e)
		}
		return e
	}
}

// Ends on a machine that is short of something are proven all the same, and within the
// bound: the CPUs are taken by others, there is no pid to be had, memory is short, and
// the machine stands still in the middle (a virtual one that is suspended: caller,
// helpers and tree are frozen together, while the clock goes on).
func TestUnderLoad(t *testing.T) {
	members := size(300, 30, 3000)
	within := func(t *testing.T, e loadedEnd, more time.Duration) {
		t.Helper()
		if e.Took > e.Bound+more {
			t.Errorf("it took %v, and %v of it stood still; the bound is %v", e.Took, more, e.Bound)
		}
	}
	t.Run("hogs", func(t *testing.T) {
		members := members
		if os.Geteuid() != 0 {
			members = min(members, 300) // more can take longer than KillWait
		}
		cancel, end := loaded(t, "loaded caller", nil, nil, strconv.Itoa(members))
		var hogs []*exec.Cmd
		for range size(5, 2, 15) * runtime.NumCPU() {
			hog := exec.CommandContext(t.Context(), os.Args[0], "10")
			hog.Env = append(os.Environ(), roleVar+"=hog")
			if err := hog.Start(); err != nil {
				t.Fatal(err)
			}
			hogs = append(hogs, hog)
		}
		cancel()
		within(t, end(), 0)
		for _, hog := range hogs {
			_ = hog.Process.Kill()
			_ = hog.Wait() // killed
		}
	})
	t.Run("no pids", func(t *testing.T) {
		if os.Geteuid() != 0 {
			t.Skip("root is needed to make a pid namespace")
		}
		if !ownPIDMax() {
			t.Skip("the number of pids cannot be limited for one pid namespace: that needs Linux 6.14")
		}
		cancel, end := loaded(t, "few pids", &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWPID, Unshareflags: unix.CLONE_NEWNS, Pdeathsig: syscall.SIGKILL}, nil,
			strconv.Itoa(members+600), strconv.Itoa(members))
		cancel()
		within(t, end(), 0)
	})
	t.Run("memory", func(t *testing.T) {
		dir, err := os.MkdirTemp("/sys/fs/cgroup/memory", "curfew-test-")
		if err != nil {
			t.Skip("no memory cgroup (v1) to be had: ", err)
		}
		t.Cleanup(func() {
			for end := time.Now().Add(patience); os.Remove(dir) != nil && time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
			}
		})
		set := func(name string, value int) {
			if err := os.WriteFile(filepath.Join(dir, name), []byte(strconv.Itoa(value)), 0); err != nil {
				t.Fatal(err)
			}
		}
		few := size(50, 20, 300)
		cancel, end := loaded(t, "loaded caller", nil, func(pid int) { set("cgroup.procs", pid) }, strconv.Itoa(few))
		used, err := os.ReadFile(filepath.Join(dir, "memory.usage_in_bytes"))
		if err != nil {
			t.Fatal(err)
		}
		usage, err := strconv.Atoi(strings.TrimSpace(string(used)))
		if err != nil {
			t.Fatal(err)
		}
		set("memory.limit_in_bytes", usage+4<<20) // what is cached goes first
		cancel()
		within(t, end(), 0)
	})
	for _, at := range []time.Duration{0, 150 * time.Millisecond, 305 * time.Millisecond} {
		t.Run(fmt.Sprintf("suspended after %v", at), func(t *testing.T) {
			f := newFreezer(t)
			cancel, end := loaded(t, "loaded caller", nil, func(pid int) {
				if err := os.WriteFile(filepath.Join(f.dir, "cgroup.procs"), []byte(strconv.Itoa(pid)), 0); err != nil {
					t.Fatal(err)
				}
			}, strconv.Itoa(min(members, 300))) // which take some time to die
			if at == 0 {
				f.freeze()
				cancel()
			} else {
				cancel()
				time.Sleep(at)
				f.freeze()
			}
			frozen := time.Now()
			time.Sleep(size(3*time.Second, 2*time.Second, 20*time.Second))
			f.thaw()
			within(t, end(), time.Since(frozen))
		})
	}
}

// ownPIDMax reports whether each pid namespace has a kernel.pid_max of its own.
func ownPIDMax() bool {
	var u unix.Utsname
	if unix.Uname(&u) != nil {
		return false
	}
	var major, minor int
	_, _ = fmt.Sscanf(unix.ByteSliceToString(u.Release[:]), "%d.%d", &major, &minor)
	return major > 6 || major == 6 && minor >= 14
}
