package adapter

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

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
	s.is(t, outcome.Stopped, outcome.CauseCanceled)
}
