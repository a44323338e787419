package proctree

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"curfew/internal/sys"
)

func init() {
	roles["backlog"] = backlogRole
	roles["kernel reaps"] = kernelReapsRole
	roles["who reaps"] = whoReapsRole
	roles["siblings vanish"] = siblingsVanishRole
	roles["main thread exits"] = mainThreadExitsRole
}

// keptExits skips where a pidfd does not keep the exit of a process that was reaped.
func keptExits(t *testing.T) {
	t.Helper()
	pidfd := -1
	cmd := exec.Command("true")
	cmd.SysProcAttr = &unix.SysProcAttr{PidFD: &pidfd}
	if err := cmd.Run(); err != nil {
		t.Fatal(err)
	}
	if pidfd < 0 {
		t.Skip("no pidfd (before Linux 5.3)")
	}
	defer unix.Close(pidfd)
	if _, ok := keptExit(pidfd); !ok {
		t.Skip("a pidfd does not keep the exit of a reaped process (before Linux 6.15)")
	}
}

// While more has died than is reaped at once, the kernel reaps, and the leader's exit is
// seen all the same.
func TestBacklog(t *testing.T)     { keptExits(t); inTree(t, "backlog") }
func TestKernelReaps(t *testing.T) { keptExits(t); inTree(t, "kernel reaps") }
func TestWhoReaps(t *testing.T)    { inTree(t, "who reaps") }

func backlogRole([]string) error {
	h, err := hold()
	if err != nil {
		return err
	}
	r, w, err := os.Pipe()
	if err != nil {
		return err
	}
	const orphans = 3 * reapAtOnce
	script := fmt.Sprintf(`read x; i=0; while [ $i -lt %d ]; do (true &); i=$((i+1)); done; read x; exit 7`, orphans)
	if err := h.run([]int{int(r.Fd()), 2, 2}, "sh", "-c", script); err != nil {
		return err
	}
	if _, err := w.WriteString("go\n"); err != nil { // nothing is reaped from here on
		return err
	}
	dead := func() (n int) {
		for _, pid := range h.kin.list() {
			if stateOf(int(pid)) == childDead {
				n++
			}
		}
		return n
	}
	for end := time.Now().Add(patience); dead() < orphans; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			return fmt.Errorf("%d of %d are dead", dead(), orphans)
		}
	}
	h.note(h.Collect(false))
	if !h.backlog.kernelReaps {
		return errors.New("the kernel does not reap although there is a backlog")
	}
	if h.Next().IsZero() {
		return errors.New("no next look is due while the kernel reaps")
	}
	if err := h.until("quiet", func() bool { return !h.backlog.kernelReaps }); err != nil {
		return err
	}
	if n := dead(); n != 0 {
		return fmt.Errorf("%d zombies are left", n)
	}
	w.Close()
	if err := h.until("empty", func() bool { return h.empty }); err != nil {
		return err
	}
	if h.exit == nil || h.exit.Code != 7 {
		return fmt.Errorf("exit %+v, want code 7", h.exit)
	}
	return nil
}

// kernelReapsRole lets the kernel reap leaders, and ends a tree of which it reaps.
func kernelReapsRole([]string) error {
	h, err := hold()
	if err != nil {
		return err
	}
	for _, tt := range []struct {
		script       string
		code, signal int
	}{
		{"exit 0", 0, 0},
		{"exit 7", 7, 0},
		{"kill -9 $$", -1, 9},
		{"(sleep 0.05 &) ; exit 3", 3, 0},
		{"exec env " + roleVar + "='main thread exits' '" + os.Args[0] + "'", 5, 0},
	} {
		r, w, err := os.Pipe()
		if err != nil {
			return err
		}
		if err := h.run([]int{int(r.Fd()), 2, 2}, "sh", "-c", "read x; "+tt.script); err != nil {
			return err
		}
		h.letKernelReap(time.Minute)
		w.Close()
		if err := h.until("empty", func() bool {
			if !h.empty {
				h.letKernelReap(time.Minute)
			}
			return h.empty
		}); err != nil {
			return err
		}
		r.Close()
		if h.exit == nil || h.exit.Code != tt.code || h.exit.Signal != tt.signal {
			return fmt.Errorf("%s: exit %+v", tt.script, h.exit)
		}
		if h.backlog.kernelReaps || h.leader.pid != 0 || h.LeaderFD() >= 0 {
			return fmt.Errorf("%s: afterwards the kernel reaps: %v, leader %d", tt.script, h.backlog.kernelReaps, h.leader.pid)
		}
	}
	if err := h.run(nil, "sh", "-c", strings.Repeat("(setsid sleep "+tooLong+" &) ;", 30)+"sleep "+tooLong); err != nil {
		return err
	}
	h.letKernelReap(time.Minute)
	return h.kill()
}

// mainThreadExitsRole exits with code 5 after its main thread has exited with 0.
func mainThreadExitsRole([]string) error {
	alone := make(chan struct{})
	go func() {
		runtime.LockOSThread()
		<-alone
		time.Sleep(10 * time.Millisecond)
		unix.RawSyscall(unix.SYS_EXIT_GROUP, 5, 0, 0)
	}()
	runtime.LockOSThread()
	close(alone)
	if unix.Gettid() != unix.Getpid() {
		return errors.New("not the main thread")
	}
	unix.RawSyscall(unix.SYS_EXIT, 0, 0, 0)
	return nil
}

// whoReapsRole checks whether the kernel reaps in a kill phase, given how many children there
// are.
func whoReapsRole([]string) error {
	h, err := hold()
	if err != nil {
		return err
	}
	over := func() { h.backlog.until, h.backlog.passes = time.Now().Add(-time.Millisecond), killPasses }
	for i, step := range []struct {
		children int
		before   func()
		want     bool
	}{
		{keptFirst, func() {}, false},
		{keptFirst + 1, func() {}, true},
		{keptFirst, over, false}, // it may be a bomb after all
		{keptFirst, func() { h.backlog.killing = false }, false},
		{keptFirst + 1, func() {}, true},
		{10, over, true}, // there are ever fewer
		{6, func() {}, true},
		{6, over, false},
		{keptAtMost, func() {}, false},
		{keptAtMost + 1, func() {}, true},
		{keptAtMost + 1, over, false},
		{keptFirst + 1, func() { h.backlog.until = time.Now().Add(-2 * keptFor) }, false},
		{keptFirst + 1, func() { h.backlog.few = true }, true}, // it was not a bomb
		{keptFirst + 1, over, false},
		{keptAtMost + 1, func() { h.siblings[1] = -1 }, false}, // whose exit could not be seen
	} {
		step.before()
		if h.whileKilling(step.children); h.backlog.kernelReaps != step.want {
			return fmt.Errorf("step %d, %d children: the kernel reaps: %v", i, step.children, h.backlog.kernelReaps)
		}
	}
	return nil
}

// The end of a sibling is seen although the kernel reaps it, and what it leaves is proven to
// be gone.
func TestSiblingsVanish(t *testing.T) { inTree(t, "siblings vanish") }

func siblingsVanishRole([]string) error {
	runtime.LockOSThread()
	sys.Survive()
	tree, err := openSubreaper(Options{}, true)
	if err != nil {
		return err
	}
	r, w, err := os.Pipe()
	if err != nil {
		return err
	}
	dir, err := unix.Open("/", unix.O_PATH, 0)
	if err != nil {
		return err
	}
	var pids []int
	var gone []int
	collect := func(what string, done func() bool) error {
		for end := time.Now().Add(patience); !done(); time.Sleep(time.Millisecond) {
			if time.Now().After(end) {
				return fmt.Errorf("still not %s", what)
			}
			ev := tree.Collect(false)
			if ev.PID != 0 {
				pids = append(pids, ev.PID)
			}
			gone = append(gone, ev.Siblings...)
		}
		return nil
	}
	sh, err := exec.LookPath("sh")
	if err != nil {
		return err
	}
	for i, script := range []string{"read x; sleep " + tooLong + " & exit 0", "exec sleep " + tooLong} {
		tree.Start(&Spec{Path: sh, Argv: []string{"sh", "-c", script}, Env: os.Environ(), Dir: dir, Files: []int{int(r.Fd()), 2, 2}, Sibling: true})
		if err := collect("started", func() bool { return len(pids) > i }); err != nil {
			return err
		}
	}
	if !tree.OnlySiblings() {
		return errors.New("there is more than siblings")
	}
	tree.letKernelReap(time.Minute)
	w.Close()
	if err := collect("gone", func() bool { return len(gone) > 0 }); err != nil {
		return err
	}
	if gone[0] != pids[0] || tree.siblings.has(pids[0]) || !tree.siblings.has(pids[1]) {
		return fmt.Errorf("gone are %v of %v", gone, pids)
	}
	if tree.OnlySiblings() {
		return errors.New("what the sibling has left is not there")
	}
	for end := time.Now().Add(patience); !tree.OnlySiblings(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			return errors.New("what the sibling has left does not end")
		}
		tree.letKernelReap(time.Minute)
		tree.Strike(false)
		tree.Reap()
	}
	if tree.backlog.kernelReaps {
		return errors.New("it is proven while siblings can vanish")
	}
	tree.EndSibling(pids[1])
	return collect("gone too", func() bool { return len(gone) == 2 })
}
