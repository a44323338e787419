//go:build linux || darwin

package lease

import (
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"curfew/internal/fault"
	"curfew/internal/sys"
)

const roleVar = "LEASE_TEST_FILE"

func TestMain(m *testing.M) {
	if path := os.Getenv(roleVar); path != "" {
		time.AfterFunc(30*time.Second, func() { os.Exit(3) })
		var l *Lease
		var err error
		if len(os.Args) > 1 {
			l, err = Join(path)
		} else {
			l, err = Create(path, path+".temp")
		}
		if err != nil {
			println(err.Error())
			os.Exit(1)
		}
		_, _ = os.Stdout.WriteString("ready\n")
		_, _ = os.Stdin.Read(make([]byte, 1))
		println(l.Path) // it is held until here
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// owner starts a process that creates the file, or joins it, and returns how to kill it.
func owner(t *testing.T, path string, args ...string) (kill func()) {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(exe, args...)
	cmd.Env, cmd.Stderr = append(os.Environ(), roleVar+"="+path), os.Stderr
	in, _ := cmd.StdinPipe()
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	kill = func() { _ = cmd.Process.Kill(); _ = cmd.Wait(); _ = in.Close() }
	t.Cleanup(kill)
	if n, err := out.Read(make([]byte, 8)); n == 0 {
		t.Fatal(err)
	}
	return kill
}

func TestOwnerIsKilled(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a")
	kill := owner(t, path)
	if _, err := Take(path); !errors.Is(err, ErrHeld) {
		t.Errorf("while its owner lives: %v", err)
	}
	kill()
	l, err := Take(path)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Take(path); !errors.Is(err, ErrHeld) {
		t.Errorf("taken twice: %v", err)
	}
	l.Release()
	if err := sys.Remove(path); err != nil {
		t.Error(err)
	}
	if _, err := Take(path); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("without a file: %v", err)
	}
}

// The process does not take its own file, by whatever path: that would drop the lock.
func TestOwnFile(t *testing.T) {
	dir := t.TempDir()
	path, link := filepath.Join(dir, "real", "own"), filepath.Join(dir, "link")
	if err := errors.Join(os.Mkdir(filepath.Join(dir, "real"), 0o700), os.Symlink("real", link)); err != nil {
		t.Fatal(err)
	}
	l, err := Create(path, path+".temp")
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{path, filepath.Join(link, "own")} {
		if _, err := Take(path); !errors.Is(err, ErrHeld) {
			t.Errorf("%s: %v", path, err)
		}
	}
	l.Release()
	if l, err = Take(path); err != nil {
		t.Fatalf("after Release: %v", err)
	}
	l.Release()
}

func TestJoinAndEnd(t *testing.T) {
	path := filepath.Join(t.TempDir(), "helpers")
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	first, second := owner(t, path, "join"), owner(t, path, "join")
	for _, kill := range []func(){first, second} {
		if gone, err := End(path); gone || err != nil {
			t.Errorf("End while one lives: %v, %v", gone, err)
		}
		kill()
	}
	for range 2 {
		if gone, err := End(path); !gone || err != nil {
			t.Errorf("End: %v, %v", gone, err)
		}
	}
	if _, err := Join(path); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("Join after End: %v", err)
	}
}

func TestTryLock(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lock")
	l, err := TryLock(path)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := TryLock(path); !errors.Is(err, ErrHeld) {
		t.Errorf("locked twice: %v", err)
	}
	l.Release()
	if l, err = TryLock(path); err != nil {
		t.Fatal(err)
	}
	l.Release()
}

// Between the opening and the locking by Join, End finds no process.
func TestLateJoin(t *testing.T) {
	t.Cleanup(func() { fault.Inject = nil })
	path := filepath.Join(t.TempDir(), "helpers")
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	fault.Inject = func(call fault.Call) syscall.Errno {
		if call == fault.Flock {
			fault.Inject = nil
			if gone, err := End(path); !gone || err != nil {
				t.Errorf("End: %v, %v", gone, err)
			}
		}
		return 0
	}
	if _, err := Join(path); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("Join: %v", err)
	}
}

// A failing call leaves no file, no descriptor and no claim.
func TestCreateFails(t *testing.T) {
	t.Cleanup(func() { fault.Inject = nil })
	for n := 1; ; n++ {
		dir := t.TempDir()
		path, calls := filepath.Join(dir, "a"), 0
		fault.Inject = func(fault.Call) syscall.Errno {
			if calls++; calls == n {
				return unix.EIO
			}
			return 0
		}
		l, err := Create(path, path+".temp")
		fault.Inject = nil
		if err == nil {
			l.Release()
			if n < 4 {
				t.Errorf("%d calls", n)
			}
			return
		}
		if left, _ := os.ReadDir(dir); len(left) > 0 && n > 2 || !errors.Is(err, unix.EIO) {
			t.Errorf("call %d: %v, left %v", n, err, left)
		}
		if l, err = Create(path, path+".temp2"); err != nil {
			t.Fatalf("call %d, again: %v", n, err)
		}
		l.Release()
	}
}
