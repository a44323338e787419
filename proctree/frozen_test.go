//go:build linux || darwin

package proctree

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"curfew/fixtures"
	"curfew/internal/sys"
)

func init() {
	roles["suspends and dies"] = suspendsAndDiesRole
	roles["ends what is suspended"] = endsSuspendedRole
	roles["does not suspend"] = func(args []string) error { return trackedRole(args, "") }
	roles["suspends"] = func(args []string) error { return trackedRole(args, args[1]) }
}

// runRole starts this program in a role and returns how it has ended.
func runRole(t *testing.T, role string, args ...string) error {
	t.Helper()
	cmd := exec.Command(os.Args[0], args...)
	cmd.Env = append(os.Environ(), roleVar+"="+role)
	// Not a pipe, which would be waited for as long as a suspended process has it.
	out, err := os.Create(filepath.Join(t.TempDir(), "out"))
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	cmd.Stdout, cmd.Stderr = out, out
	err = cmd.Run()
	if text, _ := os.ReadFile(out.Name()); len(text) > 0 {
		t.Logf("%s: %s", role, text)
	}
	return err
}

// options are those of a probe, for a role.
func options(t *testing.T, p *fixtures.Probe) string {
	t.Helper()
	b, err := json.Marshal(p.Options())
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// A holder that is killed when it has suspended a tree, and not ended it yet, leaves a record
// by which the next start ends the tree. A record of another run of the system is dropped.
func TestSuspendedIsEndedLater(t *testing.T) {
	t.Parallel()
	probe, err := fixtures.NewProbe(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer probe.Close()
	dir := filepath.Join(t.TempDir(), "frozen")
	var exit *exec.ExitError
	if err := runRole(t, "suspends and dies", options(t, probe), dir); !errors.As(err, &exit) || exit.ExitCode() != -1 {
		t.Fatalf("it should have killed itself: %v", err)
	}
	if probe.Beating(300 * time.Millisecond) {
		t.Error("a process beats: not all are suspended")
	}
	if eof, err := probe.FIFOEOF(0); eof || err != nil {
		t.Fatalf("EOF of fifo: %v, %v: nothing is there to be ended", eof, err)
	}
	notes, err := os.ReadDir(dir)
	if err != nil || len(notes) != 1 {
		t.Fatalf("records: %v, %v", notes, err)
	}
	// On a busy machine one start may not come to the end of it; the next one goes on.
	for end := time.Now().Add(patience); time.Now().Before(end); {
		if err := runRole(t, "ends what is suspended", dir, "this run"); err != nil {
			t.Error(err)
		}
		if _, err := os.Stat(dir); err != nil {
			break
		}
	}
	if eof, err := probe.FIFOEOF(patience); !eof || err != nil {
		t.Errorf("EOF of fifo: %v, %v: something is left", eof, err)
	}
	if err := os.Mkdir(dir, 0o700); err != nil { // it was removed with the last record
		t.Fatal(err)
	}
	old := filepath.Join(dir, "old")
	if err := os.WriteFile(old, []byte(fmt.Sprintf(`{"boot":"another","pid":%d,"start":1}`+"\n", os.Getpid())), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := runRole(t, "ends what is suspended", dir, "this run"); err != nil {
		t.Error(err)
	}
}

// A tree is ended with and without being suspended first, and no record is left.
func TestTrackedTreeIsEnded(t *testing.T) {
	t.Parallel()
	for _, role := range []string{"suspends", "does not suspend"} {
		t.Run(role, func(t *testing.T) {
			t.Parallel()
			probe, err := fixtures.NewProbe(t.TempDir())
			if err != nil {
				t.Fatal(err)
			}
			defer probe.Close()
			dir := filepath.Join(t.TempDir(), "frozen")
			if err := runRole(t, role, options(t, probe), dir); err != nil {
				t.Error(err)
			}
			if eof, err := probe.FIFOEOF(0); !eof || err != nil {
				t.Errorf("EOF of fifo: %v, %v: something is left", eof, err)
			}
			if notes, err := os.ReadDir(dir); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("records are left: %v, %v", notes, err)
			}
		})
	}
}

// standing starts a fixture and waits until all of it is there.
func standing(options, dir string) (*tracked, error) {
	runtime.LockOSThread()
	var o fixtures.Options
	if err := json.Unmarshal([]byte(options), &o); err != nil {
		return nil, err
	}
	t, err := openTracked(Options{Frozen: dir, Boot: "this run"})
	if err != nil {
		return nil, err
	}
	root, err := sys.Open("/", unix.O_RDONLY, 0)
	if err != nil {
		return nil, err
	}
	f, _ := fixtures.Find("daemons")
	o.For = 40 * time.Second
	argv := append([]string{os.Args[0]}, fixtures.Args(f.Name, o, f.Args...)...)
	const prefix = "CURFEW_TEST_MARK="
	mark := prefix + o.FIFO
	t.Start(&Spec{Path: os.Args[0], Argv: argv, Env: append(os.Environ(), mark), Dir: root, Files: []int{0, 1, 2}, Mark: mark, MarkPrefix: prefix})
	for end := time.Now().Add(patience); ; time.Sleep(time.Millisecond) {
		if ev := t.Collect(false); ev.StartErr != nil || ev.Exit != nil || time.Now().After(end) {
			return nil, fmt.Errorf("it does not run: %+v", ev)
		}
		if _, err := os.Stat(o.Ready); err == nil {
			t.scan()
			return t, nil
		}
	}
}

func suspendsAndDiesRole(args []string) error {
	t, err := standing(args[0], args[1])
	if err != nil {
		return err
	}
	if !t.Strike(false).found() {
		return errors.New("there is nothing to strike")
	}
	for end := time.Now().Add(patience); ; t.scan() {
		all := true
		for _, e := range t.tracker.members {
			all = all && e.Suspended
		}
		if all {
			break
		}
		if time.Now().After(end) {
			return errors.New("they are not suspended")
		}
	}
	return syscall.Kill(os.Getpid(), syscall.SIGKILL)
}

func endsSuspendedRole(args []string) error {
	runtime.LockOSThread()
	if _, err := OpenTracked(Options{Frozen: args[0], Boot: args[1]}); err != nil {
		return err
	}
	for end := time.Now().Add(patience); ; time.Sleep(time.Millisecond) {
		left, err := os.ReadDir(args[0])
		if errors.Is(err, os.ErrNotExist) || err == nil && len(left) == 0 {
			return nil
		}
		if time.Now().After(end) {
			return fmt.Errorf("still there: %v", left)
		}
	}
}

func trackedRole(args []string, dir string) error {
	t, err := standing(args[0], dir)
	if err != nil {
		return err
	}
	for end := time.Now().Add(patience); ; {
		for t.Strike(false).found() {
		}
		if t.Reap().Empty {
			return nil
		}
		if time.Now().After(end) {
			return fmt.Errorf("not empty: %+v", t.tracker.live())
		}
	}
}
