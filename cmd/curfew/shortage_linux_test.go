package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"curfew/adapter"
	"curfew/fixtures"
	"curfew/fixtures/bombs"
	"curfew/outcome"
)

// When the CLI has started every process that the limit allows, curfew has the threads that it
// needs, also while everything that it reads and writes blocks: it ends in time, and reports.
func TestNoProcessToBeHad(t *testing.T) {
	if testing.Short() {
		t.Skip("a bomb disturbs what runs beside it")
	}
	limit, err := bombs.NewTaskLimit(120)
	if err != nil {
		t.Skip(err)
	}
	defer func() {
		if err := limit.Close(); err != nil {
			t.Error(err)
		}
	}()
	exe, err := exec.LookPath("curfew")
	if err != nil {
		t.Fatal(err)
	}
	// dash ends when it cannot fork, so from then on the script uses only what is built in.
	script := `"$@" & while ! test -e ready; do :; done; while :; do echo out; echo err >&2; done`
	for range 3 {
		args := append([]string{"run", "-t", "2", "-g", "1", "--report", "r.json", "--output-limit", "1T", "--stdin-eof", "1", "--with-parent", "--", "sh", "-c", script, "sh", exe},
			fixtures.Args("bomb", fixtures.Options{For: 40 * time.Second, Ready: "ready"})...)
		cmd := limit.Command(exe, args...)
		cmd.Dir = t.TempDir()
		in, _ := pipeOf(t)
		_, out := pipeOf(t)
		_, errs := pipeOf(t)
		fill(t, out)
		fill(t, errs)
		cmd.Stdin, cmd.Stdout, cmd.Stderr = in, out, errs
		began := time.Now()
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		code := waitFor(t, cmd)
		bound := 2*time.Second + adapter.Command{Stop: adapter.StopPolicy{Grace: time.Second}}.Bound()
		if took := time.Since(began); took > bound+soon/4 {
			t.Errorf("it took %v, the bound is %v", took, bound)
		}
		o := readReport(t, filepath.Join(cmd.Dir, "r.json"))
		if code != exitTimeout && code != exitNotEmpty || o.Cause != outcome.CauseTimeout {
			t.Errorf("exit code %d, %s, %s, %+v", code, o.Status, o.Cause, o.Cleanup)
		}
		if _, err := os.Stat(filepath.Join(cmd.Dir, "ready")); err != nil {
			t.Error("there was no bomb:", err)
		}
	}
}

func pipeOf(t *testing.T) (r, w *os.File) {
	t.Helper()
	var p [2]int
	if err := unix.Pipe2(p[:], unix.O_CLOEXEC); err != nil {
		t.Fatal(err)
	}
	r, w = os.NewFile(uintptr(p[0]), "pipe"), os.NewFile(uintptr(p[1]), "pipe")
	t.Cleanup(func() { r.Close(); w.Close() })
	return r, w
}

// fill makes the next write to a pipe block.
func fill(t *testing.T, w *os.File) {
	t.Helper()
	size, err := unix.FcntlInt(w.Fd(), unix.F_GETPIPE_SZ, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.WriteString(strings.Repeat("x", size)); err != nil {
		t.Fatal(err)
	}
}
