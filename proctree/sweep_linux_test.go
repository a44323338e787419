package proctree

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// marked starts argv with a mark of its own, and a pipe of which every process
// that descends from it has the end open. It is a child of the test, as what was
// orphaned is one of an ancestor of a caller.
func marked(t *testing.T, argv ...string) (mark string, r *os.File, cmd *exec.Cmd) {
	t.Helper()
	mark = "CURFEW_INVOCATION_" + strconv.FormatInt(time.Now().UnixNano(), 36) + t.Name() + "=1"
	r, cmd = startMarked(t, mark, argv...)
	return mark, r, cmd
}

// startMarked starts argv with the mark, as marked does.
func startMarked(t *testing.T, mark string, argv ...string) (r *os.File, cmd *exec.Cmd) {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	t.Cleanup(func() { r.Close() })
	_ = r.SetReadDeadline(time.Now().Add(patience))
	cmd = exec.Command(argv[0], argv[1:]...)
	cmd.Env = append(os.Environ(), mark)
	cmd.ExtraFiles = []*os.File{w}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Wait() })
	return r, cmd
}

func ownCgroupFile(t *testing.T) string {
	t.Helper()
	b, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// A sweep that is held up returns when its time is over, and signals nothing when it goes
// on later.
func TestSweepIsHeldUp(t *testing.T) {
	t.Parallel()
	mark, _, cmd := marked(t, "sleep", tooLong)
	w := newSweep(Lost{Mark: mark, Cgroup: ownCgroupFile(t), TreeCgroup: "none", Since: time.Now().Add(-time.Second)})
	goOn, went := make(chan struct{}), make(chan struct{}, 1)
	w.interrupted = func() bool { // as reading what the process has could do
		<-goOn
		select {
		case went <- struct{}{}:
		default:
		}
		return false
	}
	returned := make(chan int, 1)
	go func() {
		ended, _ := w.run(time.Now().Add(50 * time.Millisecond))
		returned <- len(ended)
	}()
	select {
	case n := <-returned:
		if n != 0 {
			t.Errorf("ended %d although it was held up before", n)
		}
	case <-time.After(patience):
		t.Error("it does not return")
	}
	close(goOn)
	<-went
	time.Sleep(50 * time.Millisecond) // the time to do what it must not do
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Error(err)
	}
	_ = cmd.Wait()
	if ws := cmd.ProcessState.Sys().(syscall.WaitStatus); ws.Signal() != syscall.SIGTERM {
		t.Errorf("it has got %v", ws.Signal())
	}
}

func init() { roles["sweeps and is suspended"] = suspendedSweepRole }

// suspendedFor is twice what a sweep has time for in TestSweepIsSuspended. Beside all other
// tests of this package one scan takes longer than sweepLeast.
const suspendedFor = 3 * time.Second

// suspendedSweepRole sweeps for a mark, and suspends itself once in the middle.
func suspendedSweepRole(args []string) error {
	nanos, err := strconv.ParseInt(args[2], 10, 64)
	if err != nil {
		return err
	}
	w := newSweep(Lost{Mark: args[0], Cgroup: args[1], TreeCgroup: "none", Since: time.Unix(0, nanos)})
	var once sync.Once
	w.interrupted = func() bool {
		once.Do(func() { _ = syscall.Kill(syscall.Getpid(), syscall.SIGSTOP) })
		return false
	}
	if ended, suspects := w.run(time.Now().Add(suspendedFor / 2)); len(ended) != 1 || len(suspects) != 0 {
		return fmt.Errorf("ended %v, suspects %v", ended, suspects)
	}
	return nil
}

// A sweep that was suspended until its time was over sweeps on when it is resumed: it
// finds what was started meanwhile.
func TestSweepIsSuspended(t *testing.T) {
	t.Parallel()
	mark := "CURFEW_INVOCATION_" + strconv.FormatInt(time.Now().UnixNano(), 36) + t.Name() + "=1"
	role := exec.Command(os.Args[0], mark, ownCgroupFile(t), strconv.FormatInt(time.Now().UnixNano(), 10))
	role.Env = append(os.Environ(), roleVar+"=sweeps and is suspended")
	var said strings.Builder
	role.Stderr = &said
	if err := role.Start(); err != nil {
		t.Fatal(err)
	}
	var ws syscall.WaitStatus
	if _, err := syscall.Wait4(role.Process.Pid, &ws, syscall.WUNTRACED, nil); err != nil || !ws.Stopped() {
		t.Fatalf("status %#x, %v; %s", ws, err, said.String())
	}
	r, _ := startMarked(t, mark, "sleep", tooLong)
	time.Sleep(suspendedFor) // its time is over by far
	if err := role.Process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	if err := role.Wait(); err != nil {
		t.Errorf("%v: %s", err, said.String())
	}
	eof(t, r)
}

// While a process executes something, it seems to have no environment for a
// moment: one that does so all the time must be found nevertheless.
func TestSweepFindsWhatExecutes(t *testing.T) {
	t.Parallel()
	cgroup := ownCgroupFile(t)
	for range 40 {
		began := time.Now()
		mark, r, _ := marked(t, "sh", "-c", `echo x >&3; i=$1; [ $i -gt 0 ] || exit; exec sh -c "$0" "$0" $((i-1))`, `[ $1 -gt 0 ] || exit; exec sh -c "$0" "$0" $(($1-1))`, "20000")
		if _, err := r.Read(make([]byte, 1)); err != nil {
			t.Fatal(err)
		}
		ended, suspects := Sweep(Lost{Mark: mark, Cgroup: cgroup, Since: began}, time.Now().Add(patience))
		if len(ended) != 1 || len(suspects) != 0 {
			t.Fatalf("ended %v, suspects %v", ended, suspects)
		}
		eof(t, r)
	}
}

// eof fails if a process still has the other end open.
func eof(t *testing.T, r *os.File) {
	t.Helper()
	for buf := make([]byte, 64); ; {
		if n, err := r.Read(buf); err != nil || n == 0 {
			if err != nil && strings.Contains(err.Error(), "timeout") {
				t.Fatal("something is alive")
			}
			return
		}
	}
}

// All of a tree is ended, also where what is above has been ended already and
// is on its way out.
func TestSweepEndsTheTree(t *testing.T) {
	t.Parallel()
	began := time.Now()
	mark, r, _ := marked(t, "sh", "-c", `
		deep() { [ $1 -gt 0 ] && { deep $(($1-1)) & }; [ $1 -eq 0 ] && echo x >&3; sleep `+tooLong+`; }
		deep 12`)
	if _, err := r.Read(make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	ended, suspects := Sweep(Lost{Mark: mark, Cgroup: ownCgroupFile(t), Since: began}, time.Now().Add(patience))
	if len(ended) < 13 || len(suspects) != 0 {
		t.Errorf("ended %v, suspects %v", ended, suspects)
	}
	eof(t, r)
}

// A process that got the mark from a stranger is a stranger, and so is one that descends from
// it, was there before, is in another cgroup, or has another mark.
func TestSweepSparesStrangers(t *testing.T) {
	t.Parallel()
	mark := "CURFEW_INVOCATION_STRANGER=1"
	// The service has no mark, and its job has one, and a child.
	service := exec.Command("sh", "-c", `env `+mark+` sh -c 'sh -c "echo \$\$; read x" <&3; :' & wait`)
	out, err := service.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	r, hold, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	service.ExtraFiles = []*os.File{r}
	began := time.Now()
	if err := service.Start(); err != nil {
		t.Fatal(err)
	}
	r.Close()
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	if ended, suspects := Sweep(Lost{Mark: mark, Cgroup: ownCgroupFile(t), Since: began}, time.Now().Add(patience)); len(ended) != 0 || len(suspects) != 2 {
		t.Errorf("ended %v, suspects %v; want the job and its child %s", ended, suspects, line)
	}
	hold.Close() // they end
	if err := service.Wait(); err != nil {
		t.Error(err)
	}

	mark, r, cmd := marked(t, "sh", "-c", "echo x >&3; sleep "+tooLong)
	if _, err := r.Read(make([]byte, 2)); err != nil {
		t.Fatal(err)
	}
	cgroup := ownCgroupFile(t)
	for _, c := range []struct {
		name, mark, cgroup string
		since              time.Time
	}{
		{"another mark", mark + "0", cgroup, began},
		{"another cgroup", mark, cgroup + "x", began},
		{"there before", mark, cgroup, time.Now().Add(time.Second)},
	} {
		if ended, suspects := Sweep(Lost{Mark: c.mark, Cgroup: c.cgroup, Since: c.since}, time.Now().Add(patience)); len(ended)+len(suspects) != 0 {
			t.Errorf("%s: ended %v, suspects %v", c.name, ended, suspects)
		}
	}
	if err := cmd.Process.Signal(syscall.Signal(0)); err != nil {
		t.Errorf("it is gone: %v", err)
	}
	_, _ = Sweep(Lost{Mark: mark, Cgroup: cgroup, Since: began}, time.Now().Add(patience))
	eof(t, r)
}
