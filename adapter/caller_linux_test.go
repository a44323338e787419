package adapter

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"curfew/outcome"
)

func init() {
	roles["inherits"] = inheritsRole
	roles["ignores"] = ignoresRole
	roles["row"] = rowRole
	roles["crowd"] = crowdRole
	roles["too many sent"] = tooManySentRole
	roles["no /dev/null"] = noDevNullRole
}

// What the CLI inherits through us is what os/exec would have let it inherit,
// except for its session, its descriptors, and which signals are ignored or
// blocked.
func TestInherits(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	// The caller has a signal blocked, some ignored, a descriptor that is not
	// close-on-exec, and a low soft limit.
	script := `trap "" HUP INT USR1 TSTP PIPE; umask 027; ulimit -Sn 200; exec 7</dev/null; exec env --block-signal=TERM,USR2 "$@"`
	cmd := exec.CommandContext(t.Context(), "sh", "-c", script, "sh", os.Args[0], dir)
	cmd.Env = append(os.Environ(), roleVar+"=inherits")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
}

func inheritsRole(args []string) error {
	a, err := New(Options{})
	if err != nil {
		return err
	}
	defer a.Shutdown(context.Background())
	for range 2 { // on a fresh helper and on one that was used
		for _, tt := range []struct {
			argv []string
			want string // "": what os/exec gives
		}{
			{[]string{"sh", "-c", "ulimit -Sn; ulimit -Hn; ulimit -Sc; umask; pwd -P"}, ""},
			{[]string{"cat", "/proc/self/cgroup", "/proc/self/limits", "/proc/self/oom_score_adj"}, ""}, // see ownGroup
			{[]string{"ls", "/proc/self/fd"}, "0\n1\n2\n3\n"},                                           // 3 is the listing's own
			// HUP and INT; with os/exec TSTP would be ignored too.
			{[]string{"grep", "SigIgn", "/proc/self/status"}, "SigIgn:\t0000000000000003\n"},
			{[]string{"grep", "SigBlk", "/proc/self/status"}, "SigBlk:\t0000000000000000\n"},
			{[]string{"sh", "-c", "(: </dev/tty) 2>/dev/null || echo no terminal"}, "no terminal\n"},
			{[]string{"sh", "-c", "set -- $(cat /proc/self/stat); [ $1 = $5 ] && [ $1 = $6 ] || [ $$ = $5 ] && [ $$ = $6 ] && echo own session"}, "own session\n"},
		} {
			if tt.want == "" {
				cmd := exec.Command(tt.argv[0], tt.argv[1:]...)
				cmd.Dir = args[0]
				out, err := cmd.Output()
				if err != nil {
					return err
				}
				tt.want = string(out)
			}
			o, err := a.Invoke(context.Background(), Command{Path: tt.argv[0], Args: tt.argv[1:], Dir: args[0]})
			if err != nil || string(ownGroup.ReplaceAll(o.Stdout, []byte("$1"))) != strings.Replace(tt.want, "0::/\n", "0::\n", 1) {
				return fmt.Errorf("%q writes %q, want %q, %v", tt.argv, o.Stdout, tt.want, err)
			}
		}
	}
	return nil
}

// ownGroup is a line of /proc/PID/cgroup with the cgroup that a CLI has of its
// own, if there is one for it.
var ownGroup = regexp.MustCompile(`(?m)^(0::.*?)(/curfew-\d+-\d+-[0-9a-f]+|/)$`)

// HUP and INT are ignored in the CLI while the caller ignores them, and not
// after.
func TestIgnoredByTheCaller(t *testing.T) {
	t.Parallel()
	inRole(t, time.Minute, "ignores")
}

func ignoresRole([]string) error {
	a, err := New(Options{})
	if err != nil {
		return err
	}
	defer a.Shutdown(context.Background())
	for i, do := range []func(){
		func() {},
		func() { signal.Ignore(syscall.SIGHUP) },
		func() { signal.Ignore(syscall.SIGINT) },
		func() { signal.Reset(syscall.SIGHUP) },
		func() { signal.Notify(make(chan os.Signal, 1), syscall.SIGINT) },
	} {
		do()
		want, err := exec.Command("grep", "SigIgn", "/proc/self/status").Output()
		if err != nil {
			return err
		}
		o, err := a.Invoke(context.Background(), Command{Path: "grep", Args: []string{"SigIgn", "/proc/self/status"}})
		if err != nil {
			return err
		}
		if got, want := hangupAndInterrupt(o.Stdout), hangupAndInterrupt(want); got != want {
			return fmt.Errorf("step %d: the CLI ignores %#x of HUP and INT, with os/exec %#x", i, got, want)
		}
	}
	return nil
}

// hangupAndInterrupt takes the bits of these two from a SigIgn line. Whoever runs
// the tests may ignore others.
func hangupAndInterrupt(line []byte) uint64 {
	f := strings.Fields(string(line))
	mask, err := strconv.ParseUint(f[len(f)-1], 16, 64)
	if err != nil {
		panic(err)
	}
	return mask & 3
}

// Arguments, environment, directory and path are bytes.
func TestBytes(t *testing.T) {
	t.Parallel()
	a := newAdapter(t)
	dir := filepath.Join(t.TempDir(), "d\xff\xfe é\n")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	var all []byte
	for b := 1; b < 256; b++ {
		all = append(all, byte(b))
	}
	script := filepath.Join(dir, "cli\xfd")
	if err := os.WriteFile(script, []byte("#!/bin/sh\nprintf %s \"$1\"; printf '|%s|' \"$V\"; pwd -P\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	for name, path := range map[string]string{"absolute": script, "relative to the directory": "./cli\xfd"} {
		t.Run(name, func(t *testing.T) {
			o, err := run(t, a, Command{Path: path, Args: []string{string(all)}, Env: []string{"V=old", "V=\xc3\x28" + string(all), "PATH=/bin:/usr/bin"}, Dir: dir})
			if want := string(all) + "|\xc3\x28" + string(all) + "|" + dir + "\n"; err != nil || string(o.Stdout) != want {
				t.Errorf("got %q\nwant %q\n%v", o.Stdout, want, err)
			}
		})
	}
}

func TestEnvironment(t *testing.T) {
	t.Setenv("CURFEW_TEST_VARIABLE", "inherited")
	a := newAdapter(t)
	o, err := run(t, a, Command{Path: "env", Dir: "/usr"})
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"CURFEW_TEST_VARIABLE=inherited\n", "\nPWD=/usr\n", "\nCURFEW_INVOCATION_" + o.ID + "=1\n"} {
		if !strings.Contains("\n"+string(o.Stdout), want) {
			t.Errorf("no %q in %q", want, o.Stdout)
		}
	}
	o, err = run(t, a, Command{Path: "env", Env: []string{}})
	if want := "CURFEW_INVOCATION_" + o.ID + "=1\n"; err != nil || string(o.Stdout) != want {
		t.Errorf("an empty environment: %q, %v", o.Stdout, err)
	}
	// As os/exec does: what has no name is passed on, and is no value of that name.
	o, err = run(t, a, Command{Path: "cat", Args: []string{"/proc/self/environ"}, Env: []string{"NAME", "NAME=1", "", "NAME=2", "NAME"}})
	if want := "NAME\x00NAME=2\x00NAME\x00CURFEW_INVOCATION_" + o.ID + "=1\x00"; err != nil || string(o.Stdout) != want {
		t.Errorf("entries without a name: %q, %v", o.Stdout, err)
	}
}

func TestLookUp(t *testing.T) {
	t.Parallel()
	a := newAdapter(t)
	dir := t.TempDir()
	for _, d := range []string{"first", "second", "third"} {
		if err := os.Mkdir(filepath.Join(dir, d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(dir, "first", "tool"), []byte("#!/bin/sh\necho first\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "second", "tool"), []byte("#!/bin/sh\necho second $0\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	path := func(dirs ...string) []string {
		for i, d := range dirs {
			if d != "" && d != "." {
				dirs[i] = filepath.Join(dir, d)
			}
		}
		return []string{"PATH=" + strings.Join(dirs, ":")}
	}
	o, err := run(t, a, Command{Path: "tool", Env: path("third", "first", "second")})
	if err != nil || string(o.Stdout) != "second "+filepath.Join(dir, "second", "tool")+"\n" {
		t.Errorf("%q, %v", o.Stdout, err)
	}
	_, err = run(t, a, Command{Path: "tool", Env: path("first")})
	if !errors.Is(err, os.ErrPermission) {
		t.Errorf("not executable: %v", err)
	}
	// A directory that may not be entered has nothing in it (root may enter all).
	if err := os.Mkdir(filepath.Join(dir, "closed"), 0); err != nil {
		t.Fatal(err)
	}
	if _, err = run(t, a, Command{Path: "tool", Env: path("closed", "third")}); !errors.Is(err, exec.ErrNotFound) {
		t.Errorf("a closed directory: %v", err)
	}
	for _, in := range []string{"", "."} {
		_, err = run(t, a, Command{Path: "tool", Env: path(in, "third"), Dir: filepath.Join(dir, "second")})
		if !errors.Is(err, exec.ErrDot) {
			t.Errorf("PATH=%q: %v, want exec.ErrDot", in, err)
		}
	}
}

func TestExtraFiles(t *testing.T) {
	t.Parallel()
	a := newAdapter(t)
	var files []*os.File
	for i := range 3 {
		f, err := os.Create(filepath.Join(t.TempDir(), "f"))
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		fmt.Fprintf(f, "file %d\n", i)
		_, _ = f.Seek(0, 0)
		files = append(files, f)
	}
	many := make([]*os.File, 400)
	for i := range many {
		many[i] = files[0]
	}
	for name, tt := range map[string]struct {
		extra  []*os.File
		script string
		want   string
	}{
		"three":        {files, "cat <&3; cat <&4; cat <&5; ls /proc/self/fd | wc -l", "file 0\nfile 1\nfile 2\n7\n"},
		"with a hole":  {[]*os.File{nil, nil, files[2]}, "ls -x /proc/self/fd", "0  1  2  3  5\n"},
		"far up":       {append(make([]*os.File, 60), files[1]), "bash -c 'cat <&63'", "file 1\n"},
		"four hundred": {many, "ls /proc/self/fd | wc -l", "404\n"},
	} {
		t.Run(name, func(t *testing.T) {
			for _, f := range files {
				_, _ = f.Seek(0, 0)
			}
			c := sh(tt.script)
			c.ExtraFiles = tt.extra
			if o, err := run(t, a, c); err != nil || string(o.Stdout) != tt.want {
				t.Errorf("got %q, want %q, %v %s", o.Stdout, tt.want, err, o.Stderr)
			}
		})
	}
}

// usage is what a caller holds.
type usage struct{ files, goroutines, threads, zombies, helperKB int }

func measure() (u usage, err error) {
	runtime.GC()
	files, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return u, err
	}
	tasks, err := os.ReadDir("/proc/self/task")
	if err != nil {
		return u, err
	}
	u = usage{files: len(files), goroutines: runtime.NumGoroutine(), threads: len(tasks)}
	for _, task := range tasks {
		b, _ := os.ReadFile("/proc/self/task/" + task.Name() + "/children")
		for _, pid := range strings.Fields(string(b)) {
			status, _ := os.ReadFile("/proc/" + pid + "/status")
			if bytes.Contains(status, []byte("State:\tZ")) {
				u.zombies++
			}
			for line := range strings.Lines(string(status)) {
				if f := strings.Fields(line); len(f) == 3 && f[0] == "VmRSS:" {
					kb, _ := strconv.Atoi(f[1])
					u.helperKB = max(u.helperKB, kb)
				}
			}
		}
	}
	return u, nil
}

// Many invocations in a row, a third of which fail to start.
func TestInARow(t *testing.T) {
	t.Parallel()
	inRole(t, 5*time.Minute, "row", size("400", "200", "2000"))
}

func rowRole(args []string) error {
	n, err := strconv.Atoi(args[0])
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "curfew-row-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	bad := filepath.Join(dir, "bad")
	if err := os.WriteFile(bad, []byte("#!/no/such/interpreter\n"), 0o755); err != nil {
		return err
	}
	a, err := New(Options{})
	if err != nil {
		return err
	}
	var before, after usage
	for i := range n {
		if i == n/10 {
			if before, err = measure(); err != nil {
				return err
			}
		}
		c := Command{Path: "/bin/echo", Args: []string{"hi"}}
		want := outcome.StatusSucceeded
		if i%3 == 0 {
			c.Path, want = bad, outcome.StatusNotStarted
		}
		if o, err := a.Invoke(context.Background(), c); o.Status != want {
			return fmt.Errorf("run %d: %s, %w", i, o.Status, err)
		}
	}
	if after, err = measure(); err != nil {
		return err
	}
	if err := flat(before, after, 1); err != nil {
		return err
	}
	if err := a.Shutdown(context.Background()); err != nil {
		return err
	}
	if _, err := unix.Wait4(-1, nil, unix.WNOHANG, nil); err != unix.ECHILD {
		return fmt.Errorf("a child is left after Shutdown: %v", err)
	}
	fmt.Printf("%+v, then %+v\n", before, after)
	return nil
}

// flat reports what has grown. The runtime of the caller may start a thread or
// two of its own, or one for each of those that run at once, and a helper's memory
// moves between two collections.
func flat(before, after usage, atOnce int) error {
	const someThreads, someKB = 4, 2048
	if after.files > before.files || after.goroutines > before.goroutines || after.zombies > 0 ||
		after.threads > max(before.threads, atOnce)+someThreads || after.helperKB > before.helperKB+someKB {
		return fmt.Errorf("grew from %+v to %+v", before, after)
	}
	return nil
}

// 64 at once for some time.
func TestManyAtOnce(t *testing.T) {
	inRole(t, 5*time.Minute, "crowd", size("1s", "500ms", "10s"))
}

func crowdRole(args []string) error {
	span, err := time.ParseDuration(args[0])
	if err != nil {
		return err
	}
	a, err := New(Options{})
	if err != nil {
		return err
	}
	var before, after usage
	var mu sync.Mutex
	count, failed := 0, error(nil)
	round := func(span time.Duration) {
		end := time.Now().Add(span)
		var wg sync.WaitGroup
		for i := range 64 {
			wg.Go(func() {
				for time.Now().Before(end) {
					want := fmt.Sprintf("worker %d", i)
					o, err := a.Invoke(context.Background(), Command{Path: "/bin/echo", Args: []string{want}})
					mu.Lock()
					count++
					if err != nil || string(o.Stdout) != want+"\n" {
						failed = fmt.Errorf("worker %d got %q, stderr %q, %s, %+v, started %v, ended %v: %w", i, o.Stdout, o.Stderr, o.Status, o.Output, o.Started, o.Ended, err)
					}
					mu.Unlock()
				}
			})
		}
		wg.Wait()
		// Helpers beyond the idle ones are being reaped.
		for deadline := time.Now().Add(20 * time.Second); time.Now().Before(deadline); time.Sleep(100 * time.Millisecond) {
			if u, err := measure(); err == nil && u.zombies == 0 {
				break
			}
		}
	}
	// All 64 before each measurement: those that were idle too long meanwhile, on a
	// machine under load, have ended.
	count64 := func() (u usage, err error) {
		if err := all64(a); err != nil {
			return u, err
		}
		return measure()
	}
	round(span / 5)
	if before, err = count64(); err != nil {
		return err
	}
	round(span)
	if after, err = count64(); err != nil {
		return err
	}
	if failed != nil {
		return failed
	}
	for deadline := time.Now().Add(20 * time.Second); flat(before, after, 64) != nil && time.Now().Before(deadline); time.Sleep(100 * time.Millisecond) {
		if after, err = measure(); err != nil { // those let go of are being reaped
			return err
		}
	}
	if err := flat(before, after, 64); err != nil {
		return err
	}
	fmt.Printf("%d invocations, %+v, then %+v\n", count, before, after)
	if err := a.Shutdown(context.Background()); err != nil {
		return err
	}
	if _, err := unix.Wait4(-1, nil, unix.WNOHANG, nil); err != unix.ECHILD {
		return fmt.Errorf("a child is left after Shutdown: %v", err)
	}
	return nil
}

// all64 has as many CLIs run at the same moment, so that there are as many helpers.
func all64(a *Adapter) error {
	r, w, err := os.Pipe()
	if err != nil {
		return err
	}
	defer r.Close()
	defer w.Close()
	var up atomic.Int32
	var wg sync.WaitGroup
	failed := make(chan error, 64)
	for range 64 {
		wg.Go(func() {
			c := sh("echo up; read x")
			c.Stdin = r
			c.Stdout = onWrite(func() {
				if up.Add(1) == 64 {
					_, _ = w.WriteString(strings.Repeat("\n", 64))
				}
			})
			c.Timeout = patience
			if _, err := a.Invoke(context.Background(), c); err != nil {
				failed <- err
			}
		})
	}
	wg.Wait()
	select {
	case err := <-failed:
		return err
	default:
		return nil
	}
}

// With both helpers killed the leader dies with its supervisor and the rest is
// swept for: the cleanup says that this is no proof.
func TestBothHelpersAreKilled(t *testing.T) {
	t.Parallel()
	a := newAdapterLeft(t, 1)
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	// The guard is the parent of the supervisor, which is the leader's parent.
	c := sh("setsid sleep " + tooLong + " & sleep 0.1; guard=$(cut -d' ' -f4 /proc/$PPID/stat); kill -KILL $guard $PPID; sleep " + tooLong)
	c.ExtraFiles = []*os.File{w}
	began := time.Now()
	o, err := run(t, a, c)
	w.Close()
	if took := time.Since(began); took > bound(c.Stop) {
		t.Errorf("took %v, more than %v", took, bound(c.Stop))
	}
	if o.Status != outcome.StatusUnknown || o.Cause != outcome.CauseSupervisorLost || o.Cleanup.Result != outcome.CleanupUnverified || o.Cleanup.Proof != outcome.ProofNone {
		t.Errorf("got %s, %s, %+v, %v", o.Status, o.Cause, o.Cleanup, err)
	}
	_ = r.SetReadDeadline(time.Now().Add(20 * time.Second))
	if n, err := r.Read(make([]byte, 1)); err != io.EOF {
		t.Errorf("%d bytes, %v: something is alive", n, err)
	}
	// The next invocation has helpers of its own.
	if o, err := run(t, a, sh("exit 0")); err != nil {
		t.Errorf("afterwards: %s, %v", o.Status, err)
	}
}

// A CLI without input reads the end of it, also where there is no /dev/null.
func TestWithoutDevNull(t *testing.T) {
	t.Parallel()
	cmd := exec.CommandContext(t.Context(), os.Args[0])
	cmd.Env = append(os.Environ(), roleVar+"=no /dev/null")
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:  syscall.CLONE_NEWUSER | syscall.CLONE_NEWNS,
		UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getgid(), Size: 1}},
	}
	switch out, err := cmd.CombinedOutput(); {
	case errors.Is(err, syscall.EPERM) || errors.Is(err, syscall.ENOSPC) || strings.Contains(string(out), errNoMounts.Error()):
		t.Skipf("there is no mount namespace to be had: %v %s", err, out)
	case err != nil:
		t.Fatalf("%v\n%s", err, out)
	}
}

var errNoMounts = errors.New("/dev cannot be covered")

func noDevNullRole([]string) error {
	if err := unix.Mount("none", "/dev", "tmpfs", 0, ""); err != nil {
		return fmt.Errorf("%w: %w", errNoMounts, err)
	}
	a, err := New(Options{})
	if err != nil {
		return err
	}
	defer a.Shutdown(context.Background())
	for range 2 { // with a new helper, and with the same one
		o, err := a.Invoke(context.Background(), sh("cat; ls /proc/self/fd"))
		if want := "0\n1\n2\n3\n"; err != nil || string(o.Stdout) != want { // 3 is the listing's own
			return fmt.Errorf("%q, %q, %v; want %q", o.Stdout, o.Stderr, err, want)
		}
	}
	return nil
}

// The descriptors that all processes of a user have sent, and nobody has received
// yet, are counted together. Another program's are no reason not to start ours.
func TestTooManySent(t *testing.T) {
	t.Parallel()
	if os.Getuid() != 0 {
		t.Skip("to be a user whose other programs are not disturbed takes root")
	}
	dir := publicDir(t)
	const ofItsOwn = 61234
	cmd := exec.CommandContext(t.Context(), copyOfTheTest(t, dir))
	cmd.Env, cmd.Dir = append(os.Environ(), roleVar+"=too many sent", "TMPDIR="+dir), dir
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: ofItsOwn, Gid: ofItsOwn}}
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
}

func tooManySentRole([]string) error {
	const most = 64
	limit := unix.Rlimit{Cur: most, Max: most}
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		return err
	}
	a, err := New(Options{NoCgroup: true})
	if err != nil {
		return err
	}
	defer a.Shutdown(context.Background())
	for range 5 { // with new helpers, and with those that there are
		pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		for sent := 0; ; sent++ {
			err := unix.Sendmsg(pair[0], []byte{0}, unix.UnixRights(0), nil, unix.MSG_DONTWAIT)
			if err == unix.ETOOMANYREFS {
				break
			} else if err != nil || sent > 4*most {
				return fmt.Errorf("after %d descriptors: %v", sent, err)
			}
			if sent%8 == 7 { // the queue of a socket is short
				other, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
				if err != nil {
					return err
				}
				defer unix.Close(other[1])
				unix.Close(pair[0])
				defer unix.Close(pair[1])
				pair = other
			}
		}
		result := make(chan error, 1)
		go func() {
			_, err := a.Invoke(context.Background(), Command{Path: "true"})
			result <- err
		}()
		select {
		case err = <-result:
			return fmt.Errorf("it ended although nothing more could be sent: %v", err)
		case <-time.After(100 * time.Millisecond):
		}
		unix.Close(pair[0])
		unix.Close(pair[1])
		if err := <-result; err != nil {
			return err
		}
	}
	return nil
}
