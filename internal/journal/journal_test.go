//go:build linux || darwin

package journal

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"curfew/internal/fault"
	"curfew/internal/lease"
	"curfew/internal/sys"
)

func TestRoundTrip(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "deep", "state")
	a, b := open(t, dir), open(t, dir)
	want := testBegin
	if err := a.Begin(want); err != nil {
		t.Fatal(err)
	}
	if err := WriteEnd(a.Dir(), want.ID, testEnd); err != nil {
		t.Fatal(err)
	}
	if err := WriteEnd(a.Dir(), want.ID, End{Writer: "guard"}); err != nil {
		t.Errorf("a second end: %v, want it to be ignored", err)
	}
	begin(t, a, "delivered")
	for _, path := range append(slices.Collect(walk(t, dir)), dir) {
		info, err := os.Lstat(path)
		if err != nil {
			t.Fatal(err)
		}
		if mode, want := info.Mode(), fs.FileMode(0o600); mode != want && mode != fs.ModeDir|0o700 {
			t.Errorf("%s has mode %v", path, mode)
		}
	}
	if err := a.Delivered("delivered"); err != nil {
		t.Fatal(err)
	}
	if err := a.Close(); err != nil {
		t.Fatal(err)
	}
	var settled []Entry
	got, err := b.Recover(context.Background(), 0, func(e Entry) End { settled = append(settled, e); return End{Writer: "ignored"} })
	if err != nil {
		t.Fatal(err)
	}
	want.Peer, want.Boot = a.Peer(), BootID()
	if diff := cmp.Diff([]Entry{{want, &testEnd}}, got); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff(settled, got); diff != "" {
		t.Errorf("settle got another entry:\n%s", diff)
	}
	if got, err := given(t, b, 0); err != nil || len(got) > 0 {
		t.Errorf("the second time: %v, %v, want none", got, err)
	}
	if diff := cmp.Diff([]string{"delivered.journal"}, names(t, dir, endedDir)); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([]string{want.ID + ".journal"}, names(t, dir, recoveredDir)); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([]string{b.Peer() + callerSuffix, b.Peer() + helpersSuffix}, names(t, dir, peersDir)); diff != "" {
		t.Error(diff)
	}
	if BootID() == "" {
		t.Error("this system's boot is unknown")
	}
}

func walk(t *testing.T, dir string) func(func(string) bool) {
	return func(yield func(string) bool) {
		for _, name := range names(t, dir) {
			path := filepath.Join(dir, name)
			if info, err := os.Lstat(path); err == nil && info.IsDir() {
				walk(t, path)(yield)
			}
			if !yield(path) {
				return
			}
		}
	}
}

func errOf(_ func(), err error) error { return err }

func TestRefusals(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	j := open(t, dir)
	begin(t, j, "once")
	for _, test := range []struct {
		name string
		err  error
		want error // nil: any
	}{
		{"begin twice", j.Begin(Begin{ID: "once"}), fs.ErrExist},
		{"begin without an id", j.Begin(Begin{}), nil},
		{"begin with a path", j.Begin(Begin{ID: "../x"}), nil},
		{"begin with a long id", j.Begin(Begin{ID: strings.Repeat("x", 65)}), nil},
		{"begin too big", j.Begin(Begin{ID: "big", Program: strings.Repeat("x", maxRecordBytes)}), errTooBig},
		{"begin at a time that RFC 3339 does not have", j.Begin(Begin{ID: "late", Began: time.Date(12000, 1, 1, 0, 0, 0, 0, time.UTC)}), nil},
		{"delivered unknown", j.Delivered("unknown"), fs.ErrNotExist},
		{"delivered a path", j.Delivered("ended/x"), nil},
		{"end unknown", WriteEnd(dir, "unknown", End{}), fs.ErrNotExist},
		{"end a path", WriteEnd(dir, "ended/x", End{}), nil},
		{"end too big", WriteEnd(dir, "once", End{Report: []byte(`"` + strings.Repeat("x", maxRecordBytes-100) + `"`)}), errTooBig},
		{"end without JSON", WriteEnd(dir, "once", End{Report: []byte("{")}), nil},
		{"hold unknown", errOf(Hold(dir, "unknown")), fs.ErrNotExist},
		{"hold a path", errOf(Hold(dir, "../once")), nil},
	} {
		if test.err == nil || test.want != nil && !errors.Is(test.err, test.want) {
			t.Errorf("%s: %v, want %v", test.name, test.err, test.want)
		}
	}
	if diff := cmp.Diff([]string{"ended", "once.journal", "peers", "recover.lock", "recovered"}, names(t, dir)); diff != "" {
		t.Error(diff)
	}
	if err := errors.Join(j.Close(), j.Close()); err != nil {
		t.Error(err)
	}
	_, err := j.Recover(context.Background(), 0, nil)
	if !errors.Is(err, ErrClosed) || !errors.Is(j.Begin(Begin{ID: "late"}), ErrClosed) {
		t.Errorf("closed: %v", err)
	}
}

func TestDirectoriesThatAreRefused(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	with := func(name string, make func(path string) error) string {
		path := filepath.Join(dir, name)
		if err := make(path); err != nil {
			t.Fatal(err)
		}
		return path
	}
	mode := func(mode os.FileMode) func(string) error {
		return func(path string) error { return errors.Join(os.Mkdir(path, 0o700), os.Chmod(path, mode)) }
	}
	tests := []struct{ path, want string }{
		{"state", "not absolute"},
		{"", "not absolute"},
		{with("anybody", mode(0o777)), "chmod go-w"},
		{with("sticky", mode(0o777|os.ModeSticky)), "chmod go-w"},
		{with("group", mode(0o770)), "chmod go-w"},
		{with("file", func(path string) error { return os.WriteFile(path, nil, 0o600) }), "not a directory"},
		{with("inside", func(path string) error {
			return errors.Join(os.Mkdir(path, 0o700), os.Mkdir(filepath.Join(path, peersDir), 0o700), os.Chmod(filepath.Join(path, peersDir), 0o720))
		}), "chmod go-w"},
		{with("elsewhere", func(path string) error {
			return errors.Join(os.Mkdir(path, 0o700), os.Symlink(t.TempDir(), filepath.Join(path, endedDir)))
		}), "not a directory"},
	}
	if os.Geteuid() == 0 {
		tests = append(tests, struct{ path, want string }{
			with("another's", func(path string) error { return errors.Join(os.Mkdir(path, 0o700), os.Chown(path, 65534, -1)) }), "belongs to user 65534",
		})
	}
	for _, test := range tests {
		j, err := Open(test.path)
		if err == nil {
			_ = j.Close()
		}
		if err == nil || !strings.Contains(err.Error(), test.want) || !strings.Contains(err.Error(), test.path) {
			t.Errorf("%q: %v, want %q and the path", test.path, err, test.want)
		}
	}
	for _, mode := range []os.FileMode{0o700, 0o755} {
		path := filepath.Join(dir, fmt.Sprintf("fine%o", mode))
		if err := errors.Join(os.Mkdir(path, 0o700), os.Chmod(path, mode)); err != nil {
			t.Fatal(err)
		}
		open(t, path)
	}
}

// A writer that is killed leaves any part of its line behind. Then, and only then, the next
// writer's end counts.
func TestEndAfterTornEnd(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	j := open(t, dir)
	first, ends := mustEncode(t, testBegin, testEnd)
	path := recordFile(j.Dir(), testBegin.ID)
	for n := range len(ends[0]) + 1 {
		write(t, path, append(slices.Clone(first), ends[0][:n]...))
		if err := WriteEnd(j.Dir(), testBegin.ID, End{Writer: "guard"}); err != nil {
			t.Fatal(err)
		}
		entry, err := readRecord(j.Dir(), testBegin.ID)
		want := "guard"
		if n >= len(ends[0])-1 {
			want = testEnd.Writer
		}
		if err != nil || entry.End == nil || entry.End.Writer != want {
			t.Fatalf("after %d of %d bytes: %+v, %v, want the end of %s", n, len(ends[0]), entry, err, want)
		}
	}
	before, err := os.ReadFile(path)
	again := WriteEnd(j.Dir(), testBegin.ID, End{Writer: "recover"})
	after, afterErr := os.ReadFile(path)
	if err := errors.Join(err, again, afterErr); err != nil || string(before) != string(after) {
		t.Errorf("one more end: %v, the record is now %q", err, after)
	}
}

// A file that looks like a record and is not one stays where it is, and is reported. Any other
// file stays and is not reported. The records are returned.
func TestForeignFiles(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	dead := open(t, dir)
	begin(t, dead, "fine", "torn", "flipped", "newer", "older", "renamed", "big")
	if err := dead.Close(); err != nil {
		t.Fatal(err)
	}
	file := func(name string) string { return filepath.Join(dir, name) }
	edit := func(id string, edit func([]byte) []byte) {
		text, err := os.ReadFile(recordFile(dir, id))
		if err != nil {
			t.Fatal(err)
		}
		write(t, recordFile(dir, id), edit(text))
	}
	edit("torn", func(b []byte) []byte { return b[:len(b)/2] })
	edit("flipped", func(b []byte) []byte { b[len(b)/2] ^= 4; return b })
	edit("older", func([]byte) []byte { return sealed([]byte(`{"begin":{"version":1,"id":"older"}}`)) })
	edit("newer", func([]byte) []byte { return sealed([]byte(`{"begin":{"version":99,"id":"newer"}}`)) })
	for _, err := range []error{
		os.Rename(file("renamed.journal"), file("another.journal")),
		os.Truncate(file("big.journal"), maxRecordBytes+1),
		unix.Mkfifo(file("fifo.journal"), 0o600),
		os.Symlink(recordFile(dir, "elsewhere"), file("link.journal")),
		os.Symlink("/dev/zero", file("zero.journal")),
		os.Mkdir(file("dir.journal"), 0o700),
		unix.Mkfifo(filepath.Join(dir, peersDir, "fifo"+callerSuffix), 0o600),
		unix.Mkfifo(filepath.Join(dir, peersDir, "pipe"+helpersSuffix), 0o600),
		os.WriteFile(file("no-id.journal"), nil, 0o600),
		os.WriteFile(file(".journal"), nil, 0o600),
		os.WriteFile(file("notes.txt"), nil, 0o600),
		os.WriteFile(file("fine.journal.bak"), []byte("x"), 0o600),
		os.WriteFile(file("recovered/notes.txt"), nil, 0o600),
		os.WriteFile(file("peers/notes.txt"), nil, 0o600),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	text, _ := mustEncode(t, Begin{Version: version, ID: "elsewhere", Peer: "dead"})
	write(t, filepath.Join(t.TempDir(), "elsewhere.journal"), text)
	before := slices.Sorted(walk(t, dir))

	j := open(t, dir)
	start := time.Now()
	got, err := given(t, j, 0)
	if took := time.Since(start); took > tooLong {
		t.Errorf("it took %v: a FIFO must not block", took)
	}
	if diff := cmp.Diff(map[string]string{"fine": "recover"}, got); diff != "" {
		t.Error(diff)
	}
	want := map[string]error{
		"torn.journal": ErrDamaged, "flipped.journal": ErrDamaged, "newer.journal": ErrNewer, "older.journal": ErrForeign, "another.journal": ErrDamaged,
		"big.journal": errTooBig, "fifo.journal": sys.ErrNotRegular, "link.journal": unix.ELOOP, "zero.journal": unix.ELOOP,
		"dir.journal": sys.ErrNotRegular, "no-id.journal": nil, ".journal": nil,
		"peers/fifo.caller": sys.ErrNotRegular, "peers/pipe.helpers": sys.ErrNotRegular,
	}
	for _, wrong := range recordErrors(err) {
		name, relErr := filepath.Rel(dir, wrong.Path)
		cause, expected := want[name]
		if relErr != nil || !expected || cause != nil && !errors.Is(wrong, cause) || !strings.Contains(wrong.Error(), wrong.Path) {
			t.Errorf("%s: %v, want %v", name, wrong, cause)
		}
		delete(want, name)
	}
	for name := range want {
		t.Errorf("%s was not reported", name)
	}
	after := slices.Sorted(walk(t, dir))
	for _, path := range before {
		if path != recordFile(dir, "fine") && !slices.Contains(after, path) {
			t.Errorf("%s is gone", path)
		}
	}
	// Nor does a helper wait for such a file, or write to it.
	for _, id := range []string{"fifo", "link", "zero", "dir", "torn", "newer", "big"} {
		if err := WriteEnd(dir, id, testEnd); err == nil {
			t.Errorf("%s has an end now", id)
		}
	}
	if _, err := Hold(dir, "pipe"); !errors.Is(err, sys.ErrNotRegular) {
		t.Errorf("hold: %v, want %v", err, sys.ErrNotRegular)
	}
}

// recordErrors returns the RecordErrors of a joined error.
func recordErrors(err error) (all []*RecordError) {
	if many, ok := err.(interface{ Unwrap() []error }); ok {
		for _, err := range many.Unwrap() {
			all = append(all, recordErrors(err)...)
		}
		return all
	}
	var one *RecordError
	if errors.As(err, &one) {
		all = append(all, one)
	}
	return all
}

func init() {
	roles["unreadable"] = func([]string) error {
		if os.Geteuid() == 0 {
			if err := errors.Join(syscall.Setgid(65534), syscall.Setuid(65534)); err != nil {
				return err
			}
		}
		dir, err := os.MkdirTemp(os.TempDir(), "journal-test-")
		if err != nil {
			return err
		}
		defer os.RemoveAll(dir)
		dead, err := Open(dir)
		if err != nil {
			return err
		}
		path := recordFile(dir, "secret")
		if err := errors.Join(dead.Begin(Begin{ID: "secret"}), dead.Begin(Begin{ID: "fine"}), dead.Close(), os.Chmod(path, 0)); err != nil {
			return err
		}
		j, err := Open(dir)
		if err != nil {
			return err
		}
		got, err := j.Recover(context.Background(), 0, settleAs("recover"))
		wrong := recordErrors(err)
		if len(got) != 1 || got[0].Begin.ID != "fine" || len(wrong) != 1 || wrong[0].Path != path || !errors.Is(err, fs.ErrPermission) {
			return fmt.Errorf("not readable: %v, %v", got, err)
		}
		if err := os.Chmod(path, 0o600); err != nil {
			return err
		}
		if got, err = j.Recover(context.Background(), 0, settleAs("recover")); err != nil || len(got) != 1 || got[0].Begin.ID != "secret" {
			return fmt.Errorf("readable again: %v, %v", got, err)
		}
		return nil
	}
}

// In a process of its own, which gives up the superuser's rights.
func TestUnreadableRecord(t *testing.T) {
	t.Parallel()
	p := play(t, "unreadable")
	p.rest()
	if err := p.Wait(); err != nil {
		t.Error(err)
	}
}

func init() {
	// alive begins invocations with the given ids and lives until its input ends.
	roles["alive"] = func(args []string) error {
		j, err := Open(args[0])
		if err != nil {
			return err
		}
		for _, id := range args[1:] {
			if err := j.Begin(Begin{ID: id}); err != nil {
				return err
			}
		}
		say("ready", j.Peer())
		_, _ = os.Stdin.Read(make([]byte, 1))
		for _, id := range args[1:] {
			if err := j.Delivered(id); err != nil {
				return err
			}
		}
		say("delivered")
		return nil
	}
	// recover reports what Recover returns.
	roles["recover"] = func(args []string) error {
		j, err := Open(args[0])
		if err != nil {
			return err
		}
		say("ready")
		_, _ = os.Stdin.Read(make([]byte, 1))
		got, err := j.Recover(context.Background(), tooLong, settleAs("recover"))
		for _, entry := range got {
			say("given", entry.Begin.ID)
		}
		return err
	}
}

func TestLivingCallerKeepsItsRecords(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	alive, dead, j := play(t, "alive", dir, "a", "b"), open(t, dir), open(t, dir)
	alive.line(t)
	begin(t, dead, "c")
	if err := dead.Close(); err != nil {
		t.Fatal(err)
	}
	for _, want := range []map[string]string{{"c": "recover"}, {}} {
		if got, err := given(t, j, 0); err != nil || !maps.Equal(got, want) {
			t.Errorf("%v, %v, want %v", got, err, want)
		}
	}
	alive.in.Close()
	if line := alive.line(t); line != "delivered" {
		t.Error(line)
	}
}

// A Recover in the caller's own process must not open the caller's file: that would
// give up the lock, and another process would recover what is in flight.
func TestOwnRecordsStay(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	a, b := open(t, dir), open(t, dir)
	begin(t, a, "a")
	begin(t, b, "b")
	for _, j := range []*Journal{a, b} {
		if got, err := given(t, j, 0); err != nil || len(got) > 0 {
			t.Errorf("%v, %v, want nothing of one's own", got, err)
		}
	}
	other := play(t, "recover", dir)
	other.in.Close()
	if got := other.rest(); len(got) != 1 {
		t.Errorf("another process was given %v", got[1:])
	}
}

func TestCallerWhoseFilesAreMissingIsDead(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	alive, j := play(t, "alive", dir, "a"), open(t, dir)
	_, peer, _ := strings.Cut(alive.line(t), " ")
	for _, path := range []string{callerFile(dir, peer), helpersFile(dir, peer)} {
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
	}
	if got, err := given(t, j, 0); err != nil || !maps.Equal(got, map[string]string{"a": "recover"}) {
		t.Errorf("%v, %v", got, err)
	}
}

func init() {
	// inherits is a caller with a child that has all its descriptors.
	roles["inherits"] = func(args []string) error {
		j, err := Open(args[0])
		if err != nil {
			return err
		}
		if err := j.Begin(Begin{ID: "a"}); err != nil {
			return err
		}
		self, err := os.Executable()
		if err != nil {
			return err
		}
		child := exec.Command(self)
		child.Env = append(os.Environ(), roleVar+"=child")
		child.Stdin, child.Stdout = os.Stdin, os.Stdout
		child.ExtraFiles = []*os.File{os.NewFile(uintptr(j.caller.FD), "caller")}
		if err := child.Start(); err != nil {
			return err
		}
		return child.Wait()
	}
	roles["child"] = func([]string) error {
		if err := unix.Fstat(3, new(unix.Stat_t)); err != nil {
			return fmt.Errorf("the descriptor did not come through: %w", err)
		}
		say("ready")
		_, _ = os.Stdin.Read(make([]byte, 1))
		say("still here")
		return nil
	}
}

// A copy of the caller's descriptors does not keep it alive.
func TestInheritedDescriptors(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	caller, j := play(t, "inherits", dir), open(t, dir)
	caller.line(t)
	if got, err := given(t, j, 0); err != nil || len(got) > 0 {
		t.Errorf("the caller is alive: %v, %v", got, err)
	}
	if err := caller.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_, _ = caller.Process.Wait()
	if got, err := given(t, j, 0); err != nil || !maps.Equal(got, map[string]string{"a": "recover"}) {
		t.Errorf("the caller is dead: %v, %v", got, err)
	}
	caller.in.Close()
	if line := caller.line(t); line != "still here" {
		t.Error(line)
	}
}

func init() {
	// helper holds, and writes the given ends when its input ends.
	roles["helper"] = func(args []string) error {
		if _, err := Hold(args[0], args[1]); err != nil {
			return err
		}
		say("holding")
		_, _ = os.Stdin.Read(make([]byte, 1))
		for _, id := range args[2:] {
			if err := WriteEnd(args[0], id, End{Writer: "helper"}); err != nil {
				return err
			}
		}
		return nil
	}
}

func TestRecoverWaitsForHelpers(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	dead, j := open(t, dir), open(t, dir)
	begin(t, dead, "ended", "open", "lost")
	helper := play(t, "helper", dir, dead.Peer(), "open")
	helper.line(t)
	if err := errors.Join(WriteEnd(dir, "ended", End{Writer: "supervisor"}), dead.Close()); err != nil {
		t.Fatal(err)
	}
	// An invocation that has its end does not wait for helpers. The others do, for a limited time.
	const limit = 200 * time.Millisecond
	start := time.Now()
	var there []bool // whether the record with an end was in flight, each time that Recover asked its context
	entries, err := j.Recover(watched{context.Background(), func() { there = append(there, exists(recordFile(dir, "ended"))) }}, limit, settleAs("recover"))
	got := map[string]string{}
	for _, entry := range entries {
		got[entry.Begin.ID] = entry.End.Writer
	}
	if n := len(there); n < 4 || !slices.Equal(there[:n-1], slices.Repeat([]bool{true}, n-1)) {
		t.Errorf("a record is moved before the waiting is over: a process that is killed then has it: %v", there)
	}
	if took := time.Since(start); took < limit || took > tooLong {
		t.Errorf("waited for %v, want %v", took, limit)
	}
	if !maps.Equal(got, map[string]string{"ended": "supervisor"}) || !errors.Is(err, ErrEnding) || len(recordErrors(err)) != 2 {
		t.Errorf("%v, %v", got, err)
	}
	ctx, cancel := context.WithCancelCause(context.Background())
	because := errors.New("because")
	time.AfterFunc(20*time.Millisecond, func() { cancel(because) })
	if got, err := j.Recover(ctx, time.Hour, nil); len(got) > 0 || !errors.Is(err, because) {
		t.Errorf("canceled: %v, %v", got, err)
	}
	if !exists(helpersFile(dir, dead.Peer())) || !exists(callerFile(dir, dead.Peer())) {
		t.Error("the files of a peer that still has helpers are gone")
	}
	time.AfterFunc(50*time.Millisecond, func() { helper.in.Close() })
	got, err = given(t, j, time.Hour)
	if err != nil || !maps.Equal(got, map[string]string{"open": "helper", "lost": "recover"}) {
		t.Errorf("%v, %v", got, err)
	}
	if exists(helpersFile(dir, dead.Peer())) || exists(callerFile(dir, dead.Peer())) {
		t.Error("the files of a dead peer are still there")
	}
	if _, err := Hold(dir, dead.Peer()); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a late helper: %v, want %v", err, fs.ErrNotExist)
	}
}

// watched is a context that calls asked whenever Err is called.
type watched struct {
	context.Context
	asked func()
}

func (w watched) Err() error {
	w.asked()
	return w.Context.Err()
}

// Between the opening and the locking by a late helper, Recover finds no helper.
func TestLateHelperIsRefused(t *testing.T) { // not parallel: fault.Inject
	dir := t.TempDir()
	dead, j := open(t, dir), open(t, dir)
	begin(t, dead, "a")
	dead.caller.Release() // as if it was killed
	dead.closed = true
	t.Cleanup(func() { fault.Inject = nil })
	fault.Inject = func(call fault.Call) syscall.Errno {
		if call == fault.Flock {
			fault.Inject = nil
			if got, err := given(t, j, 0); err != nil || len(got) != 1 {
				t.Errorf("%v, %v", got, err)
			}
		}
		return 0
	}
	if _, err := Hold(dir, dead.Peer()); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("%v, want %v", err, fs.ErrNotExist)
	}
}

// A record can change after it was read, and before its caller is known to be dead or the
// caller's helpers are known to have ended.
func TestRecordChangesWhileRecovered(t *testing.T) { // not parallel: fault.Inject
	t.Cleanup(func() { fault.Inject = nil })
	for _, test := range []struct {
		name   string
		call   fault.Call // before which it changes
		nth    int
		change func(j *Journal) error
		want   []string
	}{
		{"ended before the caller is known to be dead", fault.Fcntl, 1, func(j *Journal) error { return WriteEnd(j.dir, "a", End{Writer: "helper"}) }, []string{"helper"}},
		// The first flock is that of recover.lock.
		{"ended before the helpers are known to have ended", fault.Flock, 2, func(j *Journal) error { return WriteEnd(j.dir, "a", End{Writer: "helper"}) }, []string{"helper"}},
		{"delivered before the caller is known to be dead", fault.Fcntl, 1, func(j *Journal) error { return j.Delivered("a") }, nil},
		{"delivered before the record is read", fault.Read, 1, func(j *Journal) error { return j.Delivered("a") }, nil},
	} {
		dir := t.TempDir()
		dead, j := open(t, dir), open(t, dir)
		begin(t, dead, "a")
		dead.caller.Release() // as if it was killed
		dead.closed = true
		calls := 0
		fault.Inject = func(call fault.Call) syscall.Errno {
			if call == test.call {
				if calls++; calls == test.nth {
					fault.Inject = nil
					if err := test.change(dead); err != nil {
						t.Errorf("%s: %v", test.name, err)
					}
				}
			}
			return 0
		}
		var settled []string
		got, err := j.Recover(context.Background(), 0, func(e Entry) End {
			if e.End == nil {
				e.End = &End{}
			}
			settled = append(settled, e.End.Writer)
			return End{Writer: "recover"}
		})
		if err != nil || !slices.Equal(settled, test.want) || len(got) != len(test.want) {
			t.Errorf("%s: settled %q, given %v, %v, want %q", test.name, settled, got, err, test.want)
		}
	}
}

// A Recover at any moment of an Open takes nothing away from the new caller.
func TestOpenWhileOthersRecover(t *testing.T) { // not parallel: fault.Inject
	dir := t.TempDir()
	open(t, dir)
	t.Cleanup(func() { fault.Inject = nil })
	calls := 0
	recover := func() {
		p := play(t, "recover", dir)
		p.in.Close()
		if got := p.rest(); len(got) != 1 {
			t.Errorf("given %v", got)
		}
	}
	fault.Inject = func(call fault.Call) syscall.Errno {
		if calls++; call == fault.Fcntl || call == fault.Rename || call == fault.Open || call == fault.Fstat {
			recover()
		}
		return 0
	}
	j := open(t, dir)
	fault.Inject = nil
	begin(t, j, "a")
	recover()
	if !exists(callerFile(dir, j.Peer())) || !exists(helpersFile(dir, j.Peer())) || !exists(recordFile(dir, "a")) {
		t.Errorf("something is gone: %v", slices.Collect(walk(t, dir)))
	}
}

// What is durable is synced before it gets its name, or before it is reported.
func TestOrderOfCalls(t *testing.T) { // not parallel: fault.Inject
	dir := t.TempDir()
	dead, j := open(t, dir), open(t, dir)
	t.Cleanup(func() { fault.Inject = nil })
	var calls []string
	record := func(do func() error) string {
		calls = nil
		fault.Inject = func(call fault.Call) syscall.Errno {
			if call != fault.Fstat && call != fault.Read && call != fault.Unlink {
				calls = append(calls, call.String())
			}
			return 0
		}
		if err := do(); err != nil {
			t.Error(err)
		}
		fault.Inject = nil
		return strings.Join(calls, " ")
	}
	end := func() error { return WriteEnd(dir, "a", End{}) }
	for _, test := range []struct {
		name string
		do   func() error
		want string
	}{
		{"begin", func() error { return dead.Begin(Begin{ID: "a"}) }, "open write fsync rename open fsync"},
		{"end", end, "open write fsync"},
		{"end, that was not synced maybe", end, "open fsync"},
		{"delivered", func() error { return dead.Delivered("a") }, "rename"},
	} {
		if got := record(test.do); got != test.want {
			t.Errorf("%s: %s, want %s", test.name, got, test.want)
		}
	}
	begin(t, dead, "b")
	_ = dead.Close()
	got := record(func() error { _, err := given(t, j, 0); return err })
	if want := "write fsync rename open fsync open fsync"; !strings.HasSuffix(got, want) {
		t.Errorf("recover: %s, want it to end with %s", got, want)
	}
}

func TestOneRecoversAtATime(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	dead, j := open(t, dir), open(t, dir)
	begin(t, dead, "a")
	_ = dead.Close()
	turn, err := lease.TryLock(filepath.Join(dir, recoverLock))
	if err != nil {
		t.Fatal(err)
	}
	const limit = 50 * time.Millisecond
	start := time.Now()
	got, err := given(t, j, limit)
	if took := time.Since(start); took < limit || took > tooLong || len(got) > 0 || !errors.Is(err, ErrRecovering) {
		t.Errorf("%v after %v, %v, want %v", got, took, err, ErrRecovering)
	}
	turn.Release()
	if got, err := given(t, j, 0); err != nil || len(got) != 1 {
		t.Errorf("%v, %v", got, err)
	}
}

// Recover reads a directory up to a limit, and reports when it reaches that.
func TestTooManyEntries(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	j := open(t, dir)
	for i := range maxEntries + 10 {
		if err := os.Symlink("none", filepath.Join(dir, strconv.Itoa(i))); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := j.Recover(t.Context(), 0, nil); err == nil || !strings.Contains(err.Error(), "too many entries") {
		t.Errorf("got %v", err)
	}
}

func TestRecoverersAtOnce(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	dead := open(t, dir)
	for i := range 100 {
		begin(t, dead, fmt.Sprint("a", i))
	}
	others := []*process{play(t, "recover", dir), play(t, "recover", dir)}
	for _, p := range others {
		p.line(t)
	}
	_ = dead.Close()
	var mu sync.Mutex
	times := map[string]int{}
	var wg sync.WaitGroup
	for range 3 {
		j := open(t, dir)
		wg.Go(func() {
			got, err := given(t, j, tooLong)
			if err != nil {
				t.Error(err)
			}
			mu.Lock()
			defer mu.Unlock()
			for id := range got {
				times[id]++
			}
		})
	}
	for _, p := range others {
		p.in.Close()
		wg.Go(func() {
			got := p.rest()
			mu.Lock()
			defer mu.Unlock()
			for _, line := range got {
				times[strings.TrimPrefix(line, "given ")]++
			}
		})
	}
	wg.Wait()
	for i := range 100 {
		if id := fmt.Sprint("a", i); times[id] != 1 {
			t.Errorf("%s was given %d times", id, times[id])
		}
	}
}

func TestPrune(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	dead, j := open(t, dir), open(t, dir)
	j.historyAge, j.historyCount = time.Hour, 3
	old := func(age time.Duration, parts ...string) {
		path := filepath.Join(append([]string{dir}, parts...)...)
		if !exists(path) {
			write(t, path, nil)
		}
		if err := os.Chtimes(path, time.Time{}, time.Now().Add(-age)); err != nil {
			t.Fatal(err)
		}
	}
	for _, part := range []string{endedDir, recoveredDir} {
		old(time.Minute, part, "b1.journal")
		old(2*time.Minute, part, "a2.journal")
		old(2*time.Hour, part, "c3.journal")
		old(48*time.Hour, part, "notes.txt")
		old(48*time.Hour, part, "no-id.journal")
	}
	old(4*time.Minute, recoveredDir, "e4.journal")
	old(3*time.Minute, recoveredDir, "f3.journal")
	begin(t, dead, "inflight", "mine")
	old(48*time.Hour, "inflight.journal")
	begin(t, j, "own")
	old(48*time.Hour, "own.journal")
	_ = dead.Close()

	if _, err := given(t, j, 0); err != nil {
		t.Fatal(err)
	}
	for part, want := range map[string][]string{
		endedDir:     {"a2.journal", "b1.journal", "no-id.journal", "notes.txt"},
		recoveredDir: {"a2.journal", "b1.journal", "f3.journal", "inflight.journal", "mine.journal", "no-id.journal", "notes.txt"},
	} {
		if diff := cmp.Diff(want, names(t, dir, part)); diff != "" {
			t.Errorf("%s:\n%s", part, diff)
		}
	}
	// And at some deliveries, before the record is moved.
	j.historyCount = 1
	j.delivered.Store(pruneEvery - 1)
	if err := j.Delivered("own"); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"b1.journal", "no-id.journal", "notes.txt", "own.journal"}, names(t, dir, endedDir)); diff != "" {
		t.Error(diff)
	}
}

func TestUnfinishedFilesAreRemovedWhenOld(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	j := open(t, dir)
	for _, name := range []string{".tmp-new", ".tmp-old", "peers/.tmp-new", "peers/.tmp-old"} {
		write(t, filepath.Join(dir, name), nil)
		if strings.HasSuffix(name, "old") {
			if err := os.Chtimes(filepath.Join(dir, name), time.Time{}, time.Now().Add(-25*time.Hour)); err != nil {
				t.Fatal(err)
			}
		}
	}
	if _, err := given(t, j, 0); err != nil {
		t.Error(err)
	}
	if got := names(t, dir); !slices.Contains(got, ".tmp-new") || slices.Contains(got, ".tmp-old") {
		t.Error(got)
	}
	if got := names(t, dir, peersDir); !slices.Contains(got, ".tmp-new") || slices.Contains(got, ".tmp-old") {
		t.Error(got)
	}
}

// life has one of each: an invocation that is delivered, one that is recovered with
// its end, and one that is recovered without.
func life(dir string) (given []string, delivered bool, err error) {
	a, err := Open(dir)
	if err != nil {
		return nil, false, err
	}
	defer func() { err = errors.Join(err, a.Close()) }()
	b, err := Open(dir)
	if err != nil {
		return nil, false, err
	}
	for _, id := range []string{"delivered", "ended", "open"} {
		if err := b.Begin(Begin{ID: id}); err != nil {
			return nil, false, errors.Join(err, b.Close())
		}
	}
	err = errors.Join(WriteEnd(dir, "delivered", End{Writer: "helper"}), WriteEnd(dir, "ended", End{Writer: "helper"}))
	deliverErr := b.Delivered("delivered")
	err = errors.Join(err, deliverErr, b.Close())
	got, recoverErr := a.Recover(context.Background(), 0, settleAs("recover"))
	for _, entry := range got {
		given = append(given, entry.Begin.ID)
	}
	return given, deliverErr == nil, errors.Join(err, recoverErr)
}

func TestInterruptedCalls(t *testing.T) { // not parallel: fault.Inject
	t.Cleanup(func() { fault.Inject = nil })
	calls := map[fault.Call]int{}
	fault.Inject = func(call fault.Call) syscall.Errno {
		if calls[call]++; calls[call]%2 == 1 {
			return unix.EINTR
		}
		return 0
	}
	got, _, err := life(t.TempDir())
	if err != nil || !slices.Equal(got, []string{"ended", "open"}) {
		t.Errorf("%v, %v", got, err)
	}
	for _, call := range []fault.Call{fault.Open, fault.Fstat, fault.Read, fault.Write, fault.Fsync, fault.Rename, fault.Unlink, fault.Mkdir, fault.Fcntl, fault.Flock} {
		if calls[call] < 2 {
			t.Errorf("%s was not made", call)
		}
	}
}

// Each call fails once. The error is reported, no descriptor stays open, and no invocation is
// returned twice or lost.
func TestFailingCalls(t *testing.T) { // not parallel: fault.Inject, descriptors
	t.Cleanup(func() { fault.Inject = nil })
	descriptors(t)
	before := descriptors(t)
	for n, failed := 1, true; failed; n++ {
		dir := filepath.Join(t.TempDir(), "state")
		calls, which := 0, ""
		fault.Inject = func(call fault.Call) syscall.Errno {
			if calls++; calls == n {
				which = call.String()
				return unix.EIO
			}
			return 0
		}
		first, delivered, err := life(dir)
		fault.Inject = nil
		if failed = which != ""; failed && !errors.Is(err, unix.EIO) {
			t.Errorf("call %d, %s: failed without an error: %v", n, which, err)
		}
		j, err := Open(dir)
		if err != nil {
			t.Fatal(err)
		}
		inFlight, _ := recordsIn(dir)
		second, err := given(t, j, 0)
		if err != nil || len(second) != len(inFlight) {
			t.Errorf("call %d, %s: in flight %v, later given %v, %v", n, which, inFlight, second, err)
		}
		for _, id := range first {
			if _, twice := second[id]; twice {
				t.Errorf("call %d, %s: %s was given twice", n, which, id)
			}
		}
		if _, again := second["delivered"]; again && delivered {
			t.Errorf("call %d, %s: given though delivered", n, which)
		}
		for _, name := range names(t, dir, peersDir) {
			if !strings.HasPrefix(name, j.Peer()) && !strings.HasPrefix(name, tempPre) {
				t.Errorf("call %d, %s: %s is still there", n, which, name)
			}
		}
		if err := j.Close(); err != nil {
			t.Error(err)
		}
		if n > 1000 {
			t.Fatal("it does not end")
		}
	}
	if after := descriptors(t); after != before {
		t.Errorf("%d descriptors, want %d", after, before)
	}
}

// descriptors returns how many descriptors this process has open.
func descriptors(t *testing.T) int {
	t.Helper()
	return len(names(t, "/dev/fd"))
}

func BenchmarkInvocation(b *testing.B) {
	j := open(b, b.TempDir())
	report := []byte(`{"exit":{"code":0},"note":"` + strings.Repeat("x", 1000) + `"}`)
	for i := 0; b.Loop(); i++ {
		id := fmt.Sprint("a", i)
		begin(b, j, id)
		if err := errors.Join(WriteEnd(j.Dir(), id, End{Writer: "supervisor", Report: report}), j.Delivered(id)); err != nil {
			b.Fatal(err)
		}
	}
}

// A file name with control characters does not reach a terminal.
func TestHostileNamesAreQuoted(t *testing.T) {
	t.Parallel()
	j := open(t, t.TempDir())
	for _, name := range []string{"\x1b[2Jgone\nall is well.journal", "\xff.journal"} {
		path := filepath.Join(j.Dir(), name)
		for _, plant := range []func() error{
			func() error { return os.WriteFile(path, nil, 0o600) },
			func() error { return os.Mkdir(path, 0o700) },
		} {
			if err := plant(); err != nil {
				t.Fatal(err)
			}
			_, err := j.Recover(t.Context(), time.Second, nil)
			if err == nil || strings.ContainsAny(err.Error(), "\x1b\n") || !utf8.ValidString(err.Error()) || !strings.Contains(err.Error(), strconv.Quote(path)) {
				t.Errorf("%q", err)
			}
			_ = os.Remove(path)
		}
	}
	if err := sys.Remove("/\x1b/x\n"); err != nil {
		t.Error(err)
	}
	if _, err := openFile("/\x1b/x\n", forReading); err == nil || strings.ContainsAny(err.Error(), "\x1b\n") || !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("%q", err)
	}
}
