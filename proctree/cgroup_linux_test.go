package proctree

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"curfew/internal/sys"
)

func init() {
	roles["mounted group"] = mountedGroupRole
	roles["headless elsewhere"] = headlessElsewhereRole
	roles["headless"] = headlessRole
	roles["headless child"] = headlessChildRole
}

// aGroup makes a group in our own one, and returns that one's descriptor, the name and
// the path.
func aGroup() (base int, name, path string, err error) {
	var p procfs
	p.open()
	defer sys.Close(p.fd)
	if base = openOwnCgroup(&p); base < 0 {
		return -1, "", "", errors.New("the own cgroup (v2) is not to be found")
	}
	name = "test-" + strconv.Itoa(os.Getpid()) + "-" + strconv.FormatInt(time.Now().UnixNano(), 36)
	if err := unix.Mkdirat(base, name, 0o755); err != nil {
		return -1, "", "", fmt.Errorf("no cgroup can be made here: %w", err)
	}
	path, err = os.Readlink("/proc/self/fd/" + strconv.Itoa(base))
	return base, name, filepath.Join(path, name), err
}

// A tree nests its groups as deep as it likes, and makes as many side by side: all are
// removed, in several steps if the time is short.
func TestGroupsBelow(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name       string
		deep, wide int
	}{{"nested", 150, 0}, {"side by side", 0, 2500}, {"both", 8, 20}} {
		t.Run(tt.name, func(t *testing.T) {
			base, name, path, err := aGroup()
			if err != nil {
				t.Skip(err)
			}
			t.Cleanup(func() {
				if !removeCgroup(base, name, time.Now().Add(patience), nil) {
					t.Errorf("%s is left", path)
				}
				unix.Close(base)
			})
			for at, left := path, tt.deep; ; left-- {
				for i := range tt.wide {
					if err := os.Mkdir(filepath.Join(at, strconv.Itoa(i)), 0o755); err != nil {
						t.Fatal(err)
					}
				}
				if left == 0 {
					break
				}
				if at = filepath.Join(at, "d"); os.Mkdir(at, 0o755) != nil {
					t.Fatal(err)
				}
			}
			for range 3 {
				began := time.Now()
				gone := removeCgroup(base, name, began.Add(time.Millisecond), nil)
				if took := time.Since(began); took > patience/10 {
					t.Errorf("took %v of 1 ms", took)
				}
				if gone && tt.wide != 20 {
					t.Fatal("it is gone within a millisecond: this tests nothing")
				}
			}
			if !removeCgroup(base, name, time.Now().Add(patience), nil) {
				t.Error("it is not gone")
			}
		})
	}
}

// What is mounted over a cgroup is no cgroup, and is left alone.
func TestMountedGroup(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("root is needed to mount")
	}
	base, name, path, err := aGroup()
	if err != nil {
		t.Skip(err)
	}
	t.Cleanup(func() { removeCgroup(base, name, time.Now().Add(patience), nil); unix.Close(base) })
	cmd := exec.Command(os.Args[0], path)
	cmd.Env = append(os.Environ(), roleVar+"=mounted group")
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNS}
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

func mountedGroupRole(args []string) error {
	over := filepath.Join(args[0], "over")
	theirs := filepath.Join(over, "theirs")
	if err := errors.Join(unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""), os.Mkdir(over, 0o755),
		unix.Mount("tmpfs", over, "tmpfs", 0, ""), os.Mkdir(theirs, 0o755)); err != nil {
		return err
	}
	dir, err := unix.Open(filepath.Dir(args[0]), unix.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		return err
	}
	if removeCgroup(dir, filepath.Base(args[0]), time.Now().Add(patience), nil) {
		return errors.New("a group with a mount below it is gone")
	}
	if _, err := os.Stat(theirs); err != nil {
		return fmt.Errorf("what was mounted there was touched: %w", err)
	}
	return unix.Unmount(over, 0)
}

// A process that went into another pid namespace and lets its main thread exit is not
// below us, and cgroup.kill does not end it.
func TestHeadlessElsewhere(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("root is needed to make a pid namespace and to enter it")
	}
	if _, err := exec.LookPath("nsenter"); err != nil {
		t.Skip("there is no nsenter")
	}
	base, name, _, err := aGroup()
	if err != nil {
		t.Skip(err)
	}
	removeCgroup(base, name, time.Now().Add(patience), nil)
	unix.Close(base)
	init := exec.Command("sleep", tooLong)
	init.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID}
	if err := init.Start(); err != nil {
		t.Skip("no pid namespace can be made:", err)
	}
	t.Cleanup(func() {
		_ = init.Process.Kill()
		_ = init.Wait()
	})
	t.Run("ended", func(t *testing.T) { inTree(t, "headless elsewhere", strconv.Itoa(init.Process.Pid)) })
}

// A child of ours without a main thread counts as struck with its group, and is not; a
// pass below ends it.
func TestHeadlessChild(t *testing.T) { inTree(t, "headless child") }

func headlessChildRole([]string) error {
	h, err := hold()
	if err != nil {
		return err
	}
	h.Prepare()
	defer h.Close()
	os.Setenv(roleVar, "headless")
	if err := h.run(nil, os.Args[0]); err != nil {
		return err
	}
	if err := h.until("without a main thread", func() bool {
		var s stat
		return h.proc.stat(h.leader.pid, &s) && s.thread != 0
	}); err != nil {
		return err
	}
	h.Strike(false)
	h.Strike(true)
	return h.until("empty", func() bool { return h.empty })
}

func headlessElsewhereRole(args []string) error {
	h, err := hold()
	if err != nil {
		return err
	}
	h.Prepare()
	defer h.Close()
	if h.cgroup.dir < 0 {
		return errors.New("there is no group")
	}
	r, w, err := os.Pipe()
	if err != nil {
		return err
	}
	if err := unix.Mkdirat(h.cgroup.dir, "below", 0o755); err != nil {
		return err
	}
	below, err := os.Readlink("/proc/self/fd/" + strconv.Itoa(h.cgroup.dir))
	if err != nil {
		return err
	}
	below = filepath.Join(below, "below")
	script := `echo $$ >"$1"/cgroup.procs; exec nsenter --pid=/proc/"$2"/ns/pid -- sh -c '"$0" & exit 0' "$3"`
	os.Setenv(roleVar, "headless")
	if err := h.run([]int{h.threads.root, int(w.Fd()), 2}, "sh", "-c", script, "sh", below, args[0], os.Args[0]); err != nil {
		return err
	}
	w.Close()
	if err := h.until("without children", func() bool { return h.empty }); err != nil {
		return err
	}
	procs, err := sys.Open(filepath.Join(below, "cgroup.procs"), unix.O_RDONLY, 0)
	if err != nil {
		return err
	}
	for end := time.Now().Add(patience); ; time.Sleep(time.Millisecond) {
		var s stat
		if n := h.proc.readChildren(procs, h.kin.arena, 0); n == 1 && h.proc.stat(int(h.kin.arena[0]), &s) && s.thread != 0 {
			break
		}
		if time.Now().After(end) {
			return errors.New("no process without a main thread is in the cgroup")
		}
	}
	sys.Close(procs)
	if err := h.until("empty", func() bool { return !h.StrikeCgroup() }); err != nil {
		return err
	}
	if n, err := r.Read(make([]byte, 1)); n != 0 || err == nil {
		return fmt.Errorf("a process has the pipe: %d, %v", n, err)
	}
	if !h.cgroup.remove() {
		return errors.New("the group is left")
	}
	return nil
}

// headlessRole lets its main thread exit, and sleeps.
func headlessRole([]string) error {
	time.AfterFunc(50*time.Second, func() { os.Exit(0) })
	var onMain func()
	onMain = func() {
		runtime.LockOSThread()
		if unix.Gettid() == unix.Getpid() {
			// Syscall, unlike RawSyscall, lets other goroutines go on meanwhile.
			_, _, _ = syscall.Syscall(unix.SYS_EXIT, 0, 0, 0)
		}
		go onMain() // on another thread, as long as this one is taken
		select {}
	}
	onMain()
	return nil
}
