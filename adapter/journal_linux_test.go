package adapter

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"curfew/outcome"
)

// A CLI's temporary directory is private, and gone when it is.
func TestTempDir(t *testing.T) {
	parent := t.TempDir()
	t.Setenv("TMPDIR", parent)
	a := newAdapter(t)
	c := sh(`set -e; echo "$TMPDIR"; stat -c %a "$TMPDIR"; mkdir -p "$TMPDIR/a/b"; echo x >"$TMPDIR/a/b/c"; chmod 0 "$TMPDIR/a"`)
	c.TempDir = true
	for range 2 {
		o, err := run(t, a, c)
		dir, rest, _ := strings.Cut(string(o.Stdout), "\n")
		if err != nil || filepath.Dir(dir) != parent || rest != "700\n" || len(o.Cleanup.TempDirs) != 0 {
			t.Errorf("%v: %q, %+v", err, o.Stdout, o.Cleanup.TempDirs)
		}
		if left, err := os.ReadDir(parent); err != nil || len(left) != 0 {
			t.Errorf("%v is left, %v", left, err)
		}
	}
	// Also if nothing is executed.
	if _, err := run(t, a, Command{Path: "there is no such program", TempDir: true}); err == nil {
		t.Error("it succeeded")
	}
	if _, err := run(t, a, Command{Path: "/there is no such program", TempDir: true}); err == nil {
		t.Error("it succeeded")
	}
	if left, err := os.ReadDir(parent); err != nil || len(left) != 0 {
		t.Errorf("%v is left, %v", left, err)
	}
}

// What has ended is in the journal, and not to be recovered.
func TestJournal(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	a := newAdapter(t, Options{StateDir: dir})
	for range 3 {
		o, err := run(t, a, sh("exit 3"))
		if o.Cleanup.JournalError != "" {
			t.Error(err, o.Cleanup.JournalError)
		}
		b, err := os.ReadFile(filepath.Join(dir, "ended", o.ID+".journal"))
		if err != nil || strings.Count(string(b), "\n") != 2 || !strings.Contains(string(b), `"writer":"supervisor"`) {
			t.Errorf("%v: %s", err, b)
		}
	}
	s := start(t, a, Command{Path: "cat"})
	if list, err := a.Recover(t.Context()); len(list) != 0 || err != nil {
		t.Errorf("recovered %+v, %v", list, err)
	}
	began := time.Now()
	if err := s.Stop(t.Context()); err != nil || time.Since(began) > s.Bound() {
		t.Error(err)
	}
	s.is(t, outcome.StatusStopped, outcome.CauseCanceled)
}

func init() { roles["loses its temporary directory's name"] = losesNameRole }

// givesNameAway is what a CLI does that gives the name of its temporary directory to $0,
// a directory that is not its own.
var givesNameAway = map[string]string{
	"renames it": `mv "$TMPDIR" "$TMPDIR.was" && mv "$0" "$TMPDIR"`,
	"removes it": `rmdir "$TMPDIR" && mv "$0" "$TMPDIR"`,
	"links it":   `mv "$TMPDIR" "$TMPDIR.was" && ln -s "$0" "$TMPDIR"`,
	"mounts":     `mount --bind "$0" "$TMPDIR"`,
}

// What has the name of a temporary directory and is another one stays as it is, however
// the invocation ends and whoever cleans up after it.
func TestTempDirOfAnother(t *testing.T) {
	t.Parallel()
	for how, script := range givesNameAway {
		for end, rest := range map[string]string{
			"exits": "", "kills its supervisor": "; kill -9 $PPID; sleep " + tooLong, "outlives its caller": "; kill -9 %d; sleep " + tooLong,
		} {
			t.Run(how+" and "+end, func(t *testing.T) {
				t.Parallel()
				if how == "mounts" && os.Geteuid() != 0 {
					t.Skip("mounting needs root")
				}
				dir := t.TempDir()
				canary := filepath.Join(dir, "canary")
				if err := errors.Join(os.Mkdir(canary, 0o700), os.WriteFile(filepath.Join(canary, "keep"), nil, 0o600)); err != nil {
					t.Fatal(err)
				}
				cmd := exec.Command(os.Args[0], canary, script+rest)
				cmd.Env = append(os.Environ(), roleVar+"=loses its temporary directory's name", "TMPDIR="+dir)
				if os.Geteuid() == 0 {
					cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS}
				}
				// Its guard is the last that holds on to it.
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
				said := bufio.NewReader(out)
				if line, err := said.ReadString('\n'); line != "ready\n" {
					t.Errorf("%q, %v", line, err)
				}
				guards := childrenOf(cmd.Process.Pid)
				var fds []int
				for _, guard := range guards {
					if fd, err := openChild(guard, cmd.Process.Pid); err == nil {
						fds = append(fds, fd)
					}
				}
				if len(fds) != 1 {
					t.Errorf("%d guards of %v", len(fds), guards)
				}
				in.Close()
				report, _ := io.ReadAll(said)
				_ = cmd.Wait() // it may be killed
				for _, fd := range fds {
					poll := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
					if n, err := unix.Poll(poll, 30_000); n != 1 {
						t.Errorf("the guard is there still: %v", err)
					}
					unix.Close(fd)
				}
				found := 0
				_ = filepath.WalkDir(dir, func(path string, e os.DirEntry, err error) error {
					if e != nil && e.Name() == "keep" {
						found++
					}
					return err
				})
				if found != 1 {
					t.Errorf("what was in the other directory is gone; the caller reported %q", report)
				}
				if end == "exits" && !strings.Contains(string(report), "Error:scratch: remove") {
					t.Errorf("the caller reported %q", report)
				}
			})
		}
	}
}

// losesNameRole is the caller of such a CLI. It starts it when its guard is known.
func losesNameRole(args []string) error {
	a, err := New(Options{})
	if err == nil {
		_, err = a.Invoke(context.Background(), Command{Path: "true"})
	}
	if err != nil {
		return err
	}
	fmt.Println("ready")
	_, _ = io.ReadAll(os.Stdin)
	c := Command{Path: "sh", Args: []string{"-c", strings.ReplaceAll(args[1], "%d", strconv.Itoa(os.Getpid())), args[0]}, TempDir: true, Env: os.Environ()}
	o, err := a.Invoke(context.Background(), c)
	fmt.Printf("%v %q %+v\n", err, o.Stderr, o.Cleanup.TempDirs)
	// With the last supervisor and the guard ends what they have left to do.
	return a.Shutdown(context.Background())
}
