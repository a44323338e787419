package adapter

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"curfew/outcome"
)

func init() {
	roles["other uid"] = otherUIDRole
	roles["other uid CLI"] = otherUIDCLIRole
}

// heldPipe is one of which the CLI's tree has the end open.
type heldPipe struct {
	t *testing.T
	r *os.File
	w *os.File
}

func newHeldPipe(t *testing.T) *heldPipe {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.Close(); w.Close() })
	return &heldPipe{t, r, w}
}

// says waits for the tree to write a line.
func (h *heldPipe) says(want string) {
	h.t.Helper()
	_ = h.r.SetReadDeadline(time.Now().Add(patience))
	buf := make([]byte, len(want)+1)
	if _, err := io.ReadFull(h.r, buf); err != nil || string(buf) != want+"\n" {
		h.t.Fatalf("the tree said %q, %v, want %q", buf, err, want)
	}
}

// atOnce is what isFree waits in a test with others beside it: whatever they start
// has a copy of all our descriptors until it has executed its program. It is less
// than what survives lives.
const atOnce = 2 * time.Second

// isFree fails if somebody has the end open still after that time.
func (h *heldPipe) isFree(within time.Duration) {
	h.t.Helper()
	h.w.Close()
	raw, err := h.r.SyscallConn()
	if err != nil {
		h.t.Fatal(err)
	}
	for end := time.Now().Add(within); ; time.Sleep(time.Millisecond) {
		// A Read whose deadline has passed would not look at all.
		n, failed := 0, error(nil)
		if err := raw.Control(func(fd uintptr) { n, failed = readNow(int(fd), make([]byte, 1)) }); err != nil {
			h.t.Fatal(err)
		}
		if n == 0 && failed == nil {
			return // its end
		}
		if n > 0 || !again(failed) || !time.Now().Before(end) {
			h.t.Errorf("%d bytes, %v: something is alive", n, failed)
			return
		}
	}
}

// inGroup matches what a CLI that has a cgroup of its own reads of itself.
var inGroup = regexp.MustCompile(`(?m)^0::(.*/curfew-\d+-\d+-[^/\n]+)$`)

// groupDir is where the cgroup of a CLI is, from what it has read of itself.
func groupDir(t *testing.T, content []byte) string {
	t.Helper()
	m := inGroup.FindSubmatch(content)
	if m == nil {
		return ""
	}
	for _, mount := range []string{"/sys/fs/cgroup", "/sys/fs/cgroup/unified"} {
		dir := mount + string(m[1])
		if _, err := os.Stat(dir + "/cgroup.kill"); err == nil {
			return dir
		}
	}
	t.Fatalf("%s is nowhere", m[1])
	return ""
}

// needsGroups skips where no cgroup can be made for a CLI.
func needsGroups(t *testing.T, a *Adapter) {
	t.Helper()
	o, err := run(t, a, sh("cat /proc/self/cgroup"))
	if err != nil {
		t.Fatal(err)
	}
	if !inGroup.Match(o.Stdout) {
		t.Skip("no cgroup (v2) can be made here below the own one")
	}
}

// A CLI has a cgroup of its own where that can be had, a new one each time, and
// none is left behind, also where the supervisor was killed.
func TestGroup(t *testing.T) {
	t.Parallel()
	a := newAdapter(t)
	needsGroups(t, a)
	isRemoved := func(dir string, which string) {
		t.Helper()
		for end := time.Now().Add(patience); ; time.Sleep(time.Millisecond) {
			if _, err := os.Stat(dir); errors.Is(err, os.ErrNotExist) {
				return
			} else if time.Now().After(end) {
				t.Fatalf("%s: %s stays", which, dir)
			}
		}
	}
	// isNew looks into a group between two invocations.
	isNew := func(dir string) {
		t.Helper()
		for end := time.Now().Add(patience); ; time.Sleep(time.Millisecond) {
			if _, err := os.Stat(dir + "/a"); errors.Is(err, os.ErrNotExist) {
				return
			} else if time.Now().After(end) {
				t.Fatalf("%s is the old one", dir)
			}
		}
	}
	own := func(a *Adapter, script string) (string, outcome.Outcome) {
		t.Helper()
		h := newHeldPipe(t)
		c := sh("cat /proc/self/cgroup; " + script)
		c.ExtraFiles = []*os.File{h.w}
		var dir string
		c.Stop = promptly
		c.Stdout = writerFunc(func(p []byte) (int, error) {
			if dir == "" {
				dir = groupDir(t, p)
			}
			return len(p), nil
		})
		o, _ := run(t, a, c)
		h.isFree(atOnce)
		return dir, o
	}

	// What a tree does to its group is not the next one's: here it makes two below
	// it, and goes into one.
	dir, _ := own(a, `d=/sys/fs/cgroup/unified; [ -d $d ] || d=/sys/fs/cgroup
		d=$d$(sed -n s/^0:://p /proc/self/cgroup); mkdir -p $d/a/b && echo $$ >$d/a/b/cgroup.procs; sleep `+tooLong+` & echo frozen; exit 0`)
	if dir == "" {
		t.Fatal("the CLI has no group")
	}
	isNew(dir)
	next, _ := own(a, "exit 0")
	if next == "" {
		t.Error("the next one has no group")
	}
	dir, o := own(a, "setsid sleep "+tooLong+" & kill -KILL $PPID; sleep "+tooLong)
	if o.Cleanup.Proof != outcome.ProofChildList || dir == "" {
		t.Errorf("the supervisor was killed: %+v", o.Cleanup)
	}
	isRemoved(dir, "killed")

	// Somebody removes it.
	careless := newAdapter(t)
	next, _ = own(careless, "exit 0")
	if err := os.Remove(next); err != nil {
		t.Log(err) // the supervisor was about to
	}
	if _, o := own(careless, "exit 3"); o.Exit == nil || o.Exit.Code != 3 {
		t.Errorf("without its group: %+v", o)
	}

	if dir, _ := own(newAdapter(t, Options{NoCgroup: true}), "exit 0"); dir != "" {
		t.Errorf("got %s although none was wanted", dir)
	}
	other, err := New(Options{})
	if err != nil {
		t.Fatal(err)
	}
	dir, _ = own(other, "exit 0")
	if err := other.Shutdown(t.Context()); err != nil {
		t.Error(err)
	}
	isRemoved(dir, "shut down")
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }

// A process that enters another pid namespace is out of the supervisor's reach
// when it becomes an orphan: it falls to that namespace's init. With a cgroup it
// is ended all the same; without, it stays (docs/limits.md).
func TestEntersAnotherNamespace(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("root is needed to make a pid namespace and to enter it")
	}
	init := exec.Command("sleep", tooLong)
	init.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID}
	if err := init.Start(); err != nil {
		t.Skip("no pid namespace can be made:", err)
	}
	defer func() {
		_ = init.Process.Kill()
		_ = init.Wait()
	}()
	script := fmt.Sprintf(`rm -f said; nsenter --pid=/proc/%d/ns/pid -- sh -c '
		(trap "" TERM; exec setsid sh -c "echo there >&3; : >said; exec sleep %s") & while [ ! -e said ]; do sleep 0.01; done'; exit 0`, init.Process.Pid, tooLong)
	dir := t.TempDir()
	const leaves = `d=/sys/fs/cgroup/unified; [ -d $d ] || d=/sys/fs/cgroup
		g=$(sed -n s/^0:://p /proc/self/cgroup); echo $$ >$d${g%/*}/cgroup.procs || exit 1; `
	for _, how := range []struct{ left, plain bool }{{false, false}, {true, false}, {false, true}} {
		a := newAdapter(t, Options{NoCgroup: how.plain})
		if !how.plain {
			needsGroups(t, a)
		}
		h := newHeldPipe(t)
		c := sh(script)
		if how.left {
			c = sh(leaves + script)
		}
		c.ExtraFiles, c.Dir = []*os.File{h.w}, dir
		c.Stop = promptly
		o, err := run(t, a, c)
		h.says("there")
		if err != nil || o.Cleanup.Result != outcome.CleanupEmpty {
			t.Errorf("%+v: %+v, %v", how, o.Cleanup, err)
		}
		if !how.plain && !how.left {
			h.isFree(atOnce)
			if len(o.Cleanup.Ended) == 0 {
				t.Error("it is not listed as ended")
			}
			continue
		}
		// The control, and the limit.
		h.w.Close()
		_ = h.r.SetReadDeadline(time.Now().Add(quiet))
		if _, err := h.r.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("%+v: it is gone without a cgroup: %v", how, err)
		}
		// It fell to the namespace's init, which reaps nobody.
		fallen, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%[1]d/children", init.Process.Pid))
		if err != nil {
			t.Fatal(err)
		}
		for _, pid := range strings.Fields(string(fallen)) {
			if n, err := strconv.Atoi(pid); err == nil {
				_ = syscall.Kill(n, syscall.SIGKILL)
			}
		}
		h.isFree(patience)
	}
}

// A process in another pid namespace that cannot be ended, because it is frozen, is no
// child of the guard of a lost supervisor. Its cgroup says that it is there.
func TestLostWhileFrozenInAnotherNamespace(t *testing.T) {
	t.Parallel()
	f := newFreezer(t)
	a := newAdapter(t)
	needsGroups(t, a)
	init := exec.Command("sleep", tooLong)
	init.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID}
	if err := init.Start(); err != nil {
		t.Skip("no pid namespace can be made:", err)
	}
	defer func() {
		_ = init.Process.Kill()
		_ = init.Wait()
	}()
	h := newHeldPipe(t)
	dir := t.TempDir()
	c := sh(fmt.Sprintf(`nsenter --pid=/proc/%d/ns/pid -- sh -c '(setsid sh -c "echo 0 >$0/cgroup.procs; echo there >&3; exec sleep %s") &' "$FREEZER"
		while [ ! -e go ]; do sleep 0.01; done; kill -9 $PPID; sleep %[2]s`, init.Process.Pid, tooLong))
	c.Env = append(os.Environ(), "FREEZER="+f.dir)
	c.ExtraFiles, c.Dir, c.Stop = []*os.File{h.w}, dir, promptly
	result := invokeAsync(t.Context(), a, c)
	h.says("there")
	f.freeze()
	if err := os.WriteFile(filepath.Join(dir, "go"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	e := <-result
	if o := e.o; o.Cleanup.Result != outcome.CleanupUnverified || o.Cause != outcome.CauseSupervisorLost {
		t.Errorf("%s, %s, %+v", o.Status, o.Cause, o.Cleanup)
	}
	f.thaw()
	h.isFree(patience)
}

// With guard and supervisor lost at once, who has wiped its environment and has a
// session of its own is out of reach (docs/limits.md), except in a cgroup.
func TestBothLostAndEnvironmentWiped(t *testing.T) {
	t.Parallel()
	for _, plain := range []bool{false, true} {
		if !plain && os.Geteuid() != 0 {
			continue // mostly there are no cgroups to be had
		}
		if !plain {
			needsGroups(t, newAdapter(t))
		}
		a := newAdapterLeft(t, 1, Options{NoCgroup: plain})
		h := newHeldPipe(t)
		c := sh(`env -i setsid sh -c "echo there >&3; sleep 10" & while [ ! -s there ]; do sleep 0.01; done
			guard=$(cut -d" " -f4 /proc/$PPID/stat); kill -KILL $guard $PPID; sleep ` + tooLong)
		c.Dir = t.TempDir()
		c.ExtraFiles = []*os.File{h.w}
		go func() { // the one that tells the script is this test: nothing else could be waited for
			_ = h.r.SetReadDeadline(time.Now().Add(patience))
			_, _ = io.ReadFull(h.r, make([]byte, len("there\n")))
			_ = os.WriteFile(filepath.Join(c.Dir, "there"), []byte("x"), 0o600)
		}()
		began := time.Now()
		o, _ := run(t, a, c)
		if took := time.Since(began); o.Cleanup.Result != outcome.CleanupUnverified || o.Cause != outcome.CauseSupervisorLost {
			t.Errorf("after %v: %s, %s, %+v", took, o.Status, o.Cause, o.Cleanup)
		}
		if !plain {
			h.isFree(atOnce)
			continue
		}
		h.w.Close()
		_ = h.r.SetReadDeadline(time.Now().Add(quiet))
		if _, err := h.r.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("it is gone: %v", err)
		}
		h.isFree(patience) // by itself
	}
}

// shortKill gives up soon after SIGKILL.
var shortKill = StopPolicy{Grace: 200 * time.Millisecond, KillWait: 500 * time.Millisecond}

// survived checks a cleanup with survivors: that one is listed, with the reason,
// and that nothing but its process is.
func survived(o outcome.Outcome, took time.Duration, stop StopPolicy, reason string) error {
	s := o.Cleanup.Survivors
	switch {
	case took > bound(stop):
		return fmt.Errorf("returned after %v, more than %v", took, bound(stop))
	case o.Status != outcome.StatusUnknown || o.Cleanup.Result != outcome.CleanupSurvivors || o.Cleanup.Proof != outcome.ProofNone:
		return fmt.Errorf("%s, %s, %+v", o.Status, o.Cause, o.Cleanup)
	case len(s) != 1 || s[0].PID <= 1 || s[0].Start.IsZero() || s[0].Name == "" || s[0].State == "" || !strings.Contains(s[0].Reason, reason):
		return fmt.Errorf("the survivors are %+v, want one with the reason %q", s, reason)
	}
	for _, e := range o.Cleanup.Ended {
		if e.PID == s[0].PID || e.Name == "" || e.Start.IsZero() {
			return fmt.Errorf("%+v has ended, and %+v survived", e, s[0])
		}
	}
	return nil
}

// freezer is a cgroup (v1) that can be frozen.
type freezer struct {
	t   *testing.T
	dir string
}

func newFreezer(t *testing.T) *freezer {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("root is needed to make a cgroup")
	}
	dir, err := os.MkdirTemp("/sys/fs/cgroup/freezer", "curfew-test-")
	if err != nil {
		t.Skip("no freezer of cgroup v1 to be had:", err)
	}
	f := &freezer{t, dir}
	t.Cleanup(func() {
		f.thaw()
		for end := time.Now().Add(patience); os.Remove(dir) != nil; time.Sleep(time.Millisecond) {
			if time.Now().After(end) {
				t.Error("somebody is in the freezer still")
				return
			}
		}
	})
	return f
}

func (f *freezer) thaw() { f.write("THAWED") }

// freeze returns when all are frozen.
func (f *freezer) freeze() {
	f.t.Helper()
	f.write("FROZEN")
	for end := time.Now().Add(patience); ; time.Sleep(time.Millisecond) {
		if b, err := os.ReadFile(filepath.Join(f.dir, "freezer.state")); err != nil || time.Now().After(end) {
			f.t.Fatal("it does not freeze", err)
		} else if string(b) == "FROZEN\n" {
			return
		}
	}
}

func (f *freezer) write(state string) {
	f.t.Helper()
	if err := os.WriteFile(filepath.Join(f.dir, "freezer.state"), []byte(state), 0); err != nil {
		f.t.Error(err)
	}
}

// A member that is frozen (cgroup v1) has SIGKILL pending and cannot act on it.
// What is below it is ended, the outcome tells of it within the bound, the next
// invocation is not held up, and when it is thawed it is gone without anybody
// asking.
func TestFrozenMember(t *testing.T) {
	t.Parallel()
	f := newFreezer(t)
	for _, plain := range []bool{false, true} {
		a := newAdapter(t, Options{NoCgroup: plain})
		whole, below := newHeldPipe(t), newHeldPipe(t)
		// The one that is frozen has a child outside of the freezer, which ignores
		// TERM, and none of the descriptor that the child has.
		c := sh(`sh -c '
			(exec 3>&-; trap "" TERM; echo below >&4; sleep ` + tooLong + `) &
			exec 4>&-; echo $$ >"$0"/cgroup.procs; echo frozen >&3; exec sleep ` + tooLong + `' "$FREEZER" & wait`)
		c.Env = append(os.Environ(), "FREEZER="+f.dir)
		c.ExtraFiles = []*os.File{whole.w, below.w}
		c.Stop = shortKill
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		result := invokeAsync(ctx, a, c)
		below.says("below")
		whole.says("frozen")
		if plain {
			// Where it sleeps already it stays when it is frozen.
			for end := time.Now().Add(patience); !sleepsIn(t, f.dir); time.Sleep(time.Millisecond) {
				if time.Now().After(end) {
					t.Fatal("it does not come to sleep")
				}
			}
		}
		f.freeze()
		began := time.Now()
		cancel()
		e := <-result
		if err := survived(e.o, e.at.Sub(began), c.Stop, "frozen"); err != nil {
			t.Error(err)
		}
		below.isFree(atOnce)
		if o, err := run(t, a, sh("exit 0")); err != nil || o.Cleanup.Proof != outcome.ProofNoChildren {
			t.Errorf("the next invocation: %+v, %v", o, err)
		}
		whole.w.Close()
		_ = whole.r.SetReadDeadline(time.Now().Add(time.Millisecond))
		if _, err := whole.r.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("the frozen one is gone already: %v", err)
		}
		f.thaw()
		whole.isFree(patience)
	}
}

// sleepsIn reports whether the one process in a cgroup is asleep as the program
// "sleep".
func sleepsIn(t *testing.T, group string) bool {
	t.Helper()
	pid, err := os.ReadFile(filepath.Join(group, "cgroup.procs"))
	if err != nil {
		t.Fatal(err)
	}
	wchan, err := os.ReadFile("/proc/" + strings.TrimSpace(string(pid)) + "/wchan")
	if err != nil {
		t.Fatal(err)
	}
	return strings.Contains(string(wchan), "nanosleep")
}

// A member that waits in the kernel and cannot be killed, here for a frozen file
// system, is told and left to the supervisor.
func TestUninterruptibleMember(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("root is needed to mount a file system")
	}
	dir := t.TempDir()
	image, mount := filepath.Join(dir, "image"), filepath.Join(dir, "mount")
	for _, argv := range [][]string{
		{"truncate", "-s", "8M", image}, {"mkfs.ext4", "-q", image}, {"mkdir", mount}, {"mount", "-o", "loop", image, mount},
	} {
		if out, err := exec.Command(argv[0], argv[1:]...).CombinedOutput(); err != nil {
			t.Skipf("no file system to freeze: %q: %v, %s", argv, err, out)
		}
	}
	const freeze, thaw = 0xc0045877, 0xc0045878 // FIFREEZE and FITHAW
	top, err := os.Open(mount)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		top.Close()
		if err := unix.Unmount(mount, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	}()
	if err := unix.IoctlSetInt(int(top.Fd()), freeze, 0); err != nil {
		t.Skip("the file system cannot be frozen:", err)
	}
	thawed := false
	defer func() {
		if !thawed {
			_ = unix.IoctlSetInt(int(top.Fd()), thaw, 0)
		}
	}()
	a := newAdapter(t)
	h := newHeldPipe(t)
	c := sh(`sh -c 'echo writing >&3; echo x >"$0"/file' ` + mount + ` & wait`)
	c.ExtraFiles = []*os.File{h.w}
	c.Stop = shortKill
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	result := invokeAsync(ctx, a, c)
	h.says("writing")
	began := time.Now()
	cancel()
	e := <-result
	if e.o.Cleanup.Result == outcome.CleanupEmpty {
		t.Skip("this kernel's wait for a frozen file system can be killed")
	}
	if err := survived(e.o, e.at.Sub(began), c.Stop, "uninterruptible"); err != nil {
		t.Error(err)
	}
	if err := unix.IoctlSetInt(int(top.Fd()), thaw, 0); err != nil {
		t.Fatal(err)
	}
	thawed = true
	h.isFree(patience)
}

// A member that has become another user cannot be signalled. It is told, what is
// below it is ended, and when it ends by itself the supervisor does too. In a
// cgroup of the caller's own it is ended like any other.
func TestMemberOfAnotherUser(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("root is needed to make an executable setuid")
	}
	const nobodyElse = 54322
	dir, err := os.MkdirTemp("", "curfew-uid-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) }) // a temporary directory, after all
	b, err := os.ReadFile(os.Args[0])
	if err != nil {
		t.Fatal(err)
	}
	caller, cli := filepath.Join(dir, "caller"), filepath.Join(dir, "cli")
	for _, err := range []error{
		os.Chmod(dir, 0o755), os.WriteFile(caller, b, 0o755), os.WriteFile(cli, b, 0o755), os.Chmod(cli, 0o755|os.ModeSetuid),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	group, err := os.MkdirTemp("/sys/fs/cgroup/unified", "curfew-test-")
	if err != nil {
		group, err = os.MkdirTemp("/sys/fs/cgroup", "curfew-test-")
	}
	if err == nil {
		t.Cleanup(func() {
			for end := time.Now().Add(patience); os.Remove(group) != nil; time.Sleep(time.Millisecond) {
				if time.Now().After(end) {
					t.Error("somebody is in the cgroup still")
					return
				}
			}
		})
		for _, name := range []string{".", "cgroup.procs"} {
			if err := os.Chown(filepath.Join(group, name), nobodyElse, nobodyElse); err != nil {
				t.Fatal(err)
			}
		}
	}
	for name, group := range map[string]string{"without cgroup": "", "with cgroup": group} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if name == "with cgroup" && group == "" {
				t.Skip("no cgroup (v2) can be made here")
			}
			script := `exec "$0" "$@"`
			if group != "" {
				script = "echo $$ >" + group + "/cgroup.procs && " + script
			}
			cmd := exec.CommandContext(t.Context(), "sh", "-c", script, "setpriv", fmt.Sprintf("--reuid=%d", nobodyElse), fmt.Sprintf("--regid=%d", nobodyElse), "--clear-groups",
				caller, cli, name)
			cmd.Env = append(os.Environ(), roleVar+"=other uid")
			cmd.Dir = dir
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Fatalf("%v\n%s", err, out)
			}
		})
	}
}

func otherUIDRole(args []string) error {
	grouped := args[1] == "with cgroup"
	a, err := New(Options{NoCgroup: !grouped})
	if err != nil {
		return err
	}
	whole, w, err := os.Pipe()
	if err != nil {
		return err
	}
	below, belowW, err := os.Pipe()
	if err != nil {
		return err
	}
	release, hold, err := os.Pipe()
	if err != nil {
		return err
	}
	c := Command{Path: args[0], Env: append(os.Environ(), roleVar+"=other uid CLI"), ExtraFiles: []*os.File{w, belowW, release}, Stop: shortKill}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	result := invokeAsync(ctx, a, c)
	_ = whole.SetReadDeadline(time.Now().Add(patience))
	if _, err := io.ReadFull(whole, make([]byte, 1)); err != nil {
		cancel()
		return fmt.Errorf("the CLI does not come to life: %w, %+v", err, <-result)
	}
	began := time.Now()
	cancel()
	e := <-result
	w.Close()
	belowW.Close()
	release.Close()
	eof := func(r *os.File, within time.Duration) error {
		_ = r.SetReadDeadline(time.Now().Add(within))
		_, err := r.Read(make([]byte, 1))
		return err
	}
	if err := eof(below, time.Millisecond); err != io.EOF {
		return fmt.Errorf("what is below is alive: %w", err)
	}
	if grouped {
		if e.o.Cleanup.Result != outcome.CleanupEmpty || e.o.Cleanup.Proof != outcome.ProofNoChildren {
			return fmt.Errorf("with a cgroup: %+v", e.o.Cleanup)
		}
		if err := eof(whole, time.Millisecond); err != io.EOF {
			return fmt.Errorf("with a cgroup it is alive: %w", err)
		}
	} else {
		if err := survived(e.o, e.at.Sub(began), c.Stop, "operation not permitted: it runs as uid 0"); err != nil {
			return err
		}
		if err := eof(whole, time.Millisecond); !errors.Is(err, os.ErrDeadlineExceeded) {
			return fmt.Errorf("it is gone already: %w", err)
		}
		hold.Close() // it ends by itself
		if err := eof(whole, patience); err != io.EOF {
			return fmt.Errorf("it is alive: %w", err)
		}
	}
	if o, err := a.Invoke(context.Background(), sh("exit 0")); err != nil {
		return fmt.Errorf("the next invocation: %+v, %w", o, err)
	}
	shut, done := context.WithTimeout(context.Background(), patience)
	defer done()
	return a.Shutdown(shut)
}

// otherUIDCLIRole is a setuid executable: it becomes its owner for good, has a
// child that is again who called it, and stays until it is released.
func otherUIDCLIRole([]string) error {
	below := exec.Command("sh", "-c", `trap "" TERM; echo up; exec sleep `+tooLong)
	below.ExtraFiles = []*os.File{nil, os.NewFile(4, "below")}
	up, err := below.StdoutPipe()
	if err != nil {
		return err
	}
	uid := uint32(os.Getuid())
	if err := syscall.Setresuid(0, 0, 0); err != nil {
		return err
	}
	below.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}}
	if err := below.Start(); err != nil {
		return err
	}
	unix.Close(4)
	if _, err := up.Read(make([]byte, 3)); err != nil {
		return err
	}
	if _, err := os.NewFile(3, "whole").WriteString("x"); err != nil {
		return err
	}
	time.AfterFunc(patience, func() { os.Exit(1) })
	_, _ = os.NewFile(5, "release").Read(make([]byte, 1))
	return nil
}
