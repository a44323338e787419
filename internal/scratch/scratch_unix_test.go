//go:build linux || darwin

package scratch

import (
	"bytes"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"pgregory.net/rapid"

	"curfew/internal/fault"
	"curfew/internal/sys"
)

// The tests of this package do not run in parallel: they count the descriptors
// of the process.

const (
	tooLong = 10 * time.Minute

	innerVar = "SCRATCH_TEST_INNER" // the test that this process was started for
	dirVar   = "SCRATCH_TEST_DIR"

	ordinary = 65534 // a user without rights
)

func TestMake(t *testing.T) {
	parent := t.TempDir()
	t.Chdir(filepath.Dir(parent))
	t.Setenv("TMPDIR", parent)
	for _, from := range []string{parent, "", filepath.Base(parent)} {
		path, err := Name(from, rand.Text())
		must(t, err)
		removeNamed := func() error { return RemoveNamed(path, time.Now().Add(tooLong)) }
		if err := removeNamed(); err != nil {
			t.Errorf("RemoveNamed of what is not made yet: %v", err)
		}
		if err := removed(t, Dir{Path: path}); err == nil {
			t.Error("Remove of what has no identity returned nil")
		}
		d, err := Make(path)
		if err != nil {
			t.Fatalf("Make(%q): %v", path, err)
		}
		if err := d.Check(); err != nil {
			t.Errorf("Make(%q) returned what Check refuses: %v", path, err)
		}
		if _, err := Make(path); !errors.Is(err, fs.ErrExist) {
			t.Errorf("Make of what is there: %v", err)
		}
		if got, want := resolve(t, filepath.Dir(d.Path)), resolve(t, parent); got != want {
			t.Errorf("Make(%q) made %s, want it in %s", from, d.Path, want)
		}
		info, err := os.Lstat(d.Path)
		if err != nil {
			t.Fatal(err)
		}
		if info.Mode() != fs.ModeDir|0o700 {
			t.Errorf("mode %v, want drwx------", info.Mode())
		}
		if st := info.Sys().(*syscall.Stat_t); st.Ino != d.Ino || uint64(st.Dev) != d.Dev {
			t.Errorf("%+v is device %d, inode %d", d, st.Dev, st.Ino)
		}
		gone(t, d)
		if err := removed(t, d); err != nil {
			t.Errorf("Remove of what is gone: %v", err)
		}
		// By the name alone, which was recorded before.
		d, err = Make(path)
		must(t, err)
		must(t, os.WriteFile(filepath.Join(d.Path, "x"), nil, 0o600))
		must(t, removeNamed())
		_, err = Make(path)
		must(t, err)
		must(t, removeNamed())
		if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("after RemoveNamed: %v", err)
		}
	}
	if _, err := Make(filepath.Join(parent, "missing", "curfew-1")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("Make in a directory that is not there: %v", err)
	}
	d := Dir{filepath.Join(parent, "missing", "curfew-1"), 1, 1, 0}
	if err := removed(t, d); err != nil {
		t.Errorf("Remove of what was in a directory that is gone: %v", err)
	}
}

// A umask takes the user's own rights too. A process has one umask, so this test
// has a process of its own.
func TestMakeUnderAUmask(t *testing.T) {
	if !inner(t) {
		ordinaryUser(t, tempDir(t))
		return
	}
	defer syscall.Umask(syscall.Umask(0o777))
	d, err := Make(filepath.Join(os.Getenv(dirVar), "curfew-1"))
	if err != nil {
		t.Fatal(err)
	}
	info, err := os.Lstat(d.Path)
	if err != nil || info.Mode() != fs.ModeDir|0o700 {
		t.Errorf("%v, %v; want drwx------", info.Mode(), err)
	}
	gone(t, d)
}

// Another directory that has the name now is not removed.
func TestRemoveLeavesAnother(t *testing.T) {
	const stranger = 54325
	asRoot := func(t *testing.T) {
		if os.Geteuid() != 0 {
			t.Skip("giving a directory to another user needs root")
		}
	}
	tests := []struct {
		name string
		swap func(t *testing.T, d *Dir, canary string) error
	}{
		{"directory", func(t *testing.T, d *Dir, canary string) error {
			return errors.Join(os.Rename(d.Path, d.Path+"-was"), os.Rename(canary, d.Path))
		}},
		{"link to another", func(t *testing.T, d *Dir, canary string) error {
			return errors.Join(os.Rename(d.Path, d.Path+"-was"), os.Symlink(canary, d.Path))
		}},
		{"link to itself", func(t *testing.T, d *Dir, canary string) error {
			return errors.Join(os.Rename(d.Path, d.Path+"-was"), os.Symlink(d.Path+"-was", d.Path))
		}},
		{"file", func(t *testing.T, d *Dir, canary string) error {
			return errors.Join(os.Rename(d.Path, d.Path+"-was"), os.WriteFile(d.Path, nil, 0o600))
		}},
		{"file of that inode", func(t *testing.T, d *Dir, canary string) error {
			path := d.Path + "-file"
			if err := os.WriteFile(path, nil, 0o600); err != nil {
				return err
			}
			*d = identify(t, path)
			return nil
		}},
		{"another device", func(t *testing.T, d *Dir, canary string) error { d.Dev++; return nil }},
		{"another time of birth", func(t *testing.T, d *Dir, canary string) error {
			if d.Birth == 0 {
				t.Skip("the file system does not know it")
			}
			d.Birth--
			return nil
		}},
		{"another inode", func(t *testing.T, d *Dir, canary string) error { d.Ino++; return nil }},
		{"another user", func(t *testing.T, d *Dir, canary string) error {
			asRoot(t)
			return os.Chown(d.Path, stranger, stranger)
		}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			parent := t.TempDir()
			canary := filepath.Join(parent, "canary")
			plant(t, canary)
			d := makeIn(t, parent)
			plant(t, d.Path)
			if err := test.swap(t, &d, canary); err != nil {
				t.Fatal(err)
			}
			before := picture(t, parent)
			err := removed(t, d)
			if err == nil {
				t.Error("Remove returned nil")
			}
			t.Log(err)
			if after := picture(t, parent); after != before {
				t.Errorf("before:\n%s\nafter:\n%s", before, after)
			}
		})
	}
}

// Between mkdir and the check of the new directory, another one gets the name.
func TestMakeTakesNoOther(t *testing.T) {
	path := filepath.Join(t.TempDir(), "curfew-1")
	plant(t, path)
	if d, err := fresh(path); err != errOther {
		t.Errorf("%+v, %v; want that it is another", d, err)
	}
	must(t, os.RemoveAll(path))
	must(t, os.Mkdir(path, 0o700))
	if d, err := fresh(path); err != nil || d.Check() != nil {
		t.Errorf("%+v, %v", d, err)
	}
}

// The name alone leads to a directory of this user, and to nothing else.
func TestRemoveNamed(t *testing.T) {
	parent := t.TempDir()
	canary, path := filepath.Join(parent, "canary"), filepath.Join(parent, "curfew-1")
	plant(t, canary)
	remove := func() error { return RemoveNamed(path, time.Now().Add(tooLong)) }
	for name, give := range map[string]func() error{
		"link": func() error { return os.Symlink(canary, path) },
		"file": func() error { return os.WriteFile(path, nil, 0o600) },
		"directory of another user": func() error {
			if os.Geteuid() != 0 {
				return nil
			}
			plant(t, path)
			return os.Chown(path, ordinary, ordinary)
		},
	} {
		must(t, give())
		before := picture(t, parent)
		err := remove()
		if _, there := os.Lstat(path); err == nil && there == nil {
			t.Errorf("%s: RemoveNamed returned nil", name)
		}
		if after := picture(t, parent); after != before {
			t.Errorf("%s: before:\n%s\nafter:\n%s", name, before, after)
		}
		wipe(path)
		_ = os.Remove(path)
	}
	plant(t, path)
	must(t, remove())
	if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("after RemoveNamed: %v", err)
	}
}

// The directory is renamed while it is emptied, and another one gets its name.
func TestRemoveLeavesAnotherThatComesLater(t *testing.T) {
	parent := t.TempDir()
	d := makeIn(t, parent)
	plant(t, d.Path)
	root, err := sys.Openat(unix.AT_FDCWD, d.Path, dirFlags)
	must(t, err)
	defer unix.Close(root)
	must(t, os.Rename(d.Path, d.Path+"-was"))
	must(t, os.Mkdir(d.Path, 0o700))
	r := &remover{until: time.Now().Add(tooLong), root: root, dev: d.Dev, ino: d.Ino}
	if r.removeDir(unix.AT_FDCWD, append([]byte(d.Path), 0), root, 0) || !errors.Is(r.err(), errOther) {
		t.Errorf("%v; want that it is another", r.err())
	}
	if _, err := os.Lstat(d.Path); err != nil {
		t.Errorf("the other: %v", err)
	}
}

func TestRemoveFollowsNoLink(t *testing.T) {
	parent := t.TempDir()
	canary := filepath.Join(parent, "canary")
	plant(t, canary)
	before := picture(t, canary)
	d := makeIn(t, parent)
	deep := filepath.Join(d.Path, "a", "b")
	must(t, os.MkdirAll(deep, 0o700))
	for i, target := range []string{canary, filepath.Join(canary, "file"), "../../../canary", "../../../canary/", "..", ".", "/", "missing", d.Path, "loop"} {
		must(t, os.Symlink(target, filepath.Join(deep, fmt.Sprint("link", i))))
		must(t, os.Symlink(target, filepath.Join(d.Path, fmt.Sprint("link", i))))
	}
	must(t, os.Symlink("loop", filepath.Join(deep, "loop")))
	must(t, os.Link(filepath.Join(canary, "file"), filepath.Join(deep, "hard")))
	must(t, unix.Mkfifo(filepath.Join(deep, "fifo"), 0o600))
	must(t, unix.Mkfifo(filepath.Join(d.Path, "fifo"), 0))
	gone(t, d)
	if after := picture(t, canary); after != before {
		t.Errorf("before:\n%s\nafter:\n%s", before, after)
	}
}

// Modes do not bind root, so this is for another user. A cache of Go
// modules has directories of mode 0555.
func TestRemoveOpensWhatIsClosed(t *testing.T) {
	if !inner(t) {
		ordinaryUser(t, tempDir(t))
		return
	}
	for mode := os.FileMode(0); mode <= 0o700; mode += 0o100 {
		for _, of := range []string{".", "a", "a/b", "all", "deep"} {
			parent := t.TempDir()
			canary := filepath.Join(parent, "canary")
			plant(t, canary)
			must(t, os.Chmod(canary, mode))
			d := makeIn(t, parent)
			below := filepath.Join(d.Path, "a", "b", strings.Repeat("c/", 2*levels))
			must(t, os.MkdirAll(below, 0o700))
			must(t, os.Symlink(canary, filepath.Join(d.Path, "link")))
			must(t, os.WriteFile(filepath.Join(below, "file"), nil, 0))
			must(t, os.WriteFile(filepath.Join(d.Path, "a/b/file"), nil, 0))
			switch {
			case of == "all" || of == "deep": // from the bottom, while the directories above are accessible
				for dir := below; len(dir) >= len(d.Path); dir = filepath.Dir(dir) {
					if of == "all" || strings.Contains(dir, "/c/c") {
						must(t, os.Chmod(dir, mode))
					}
				}
			default:
				must(t, os.Chmod(filepath.Join(d.Path, of), mode))
			}
			if err := removed(t, d); err != nil {
				t.Errorf("mode %o of %s: %v", mode, of, err)
			}
			if info, err := os.Lstat(canary); err != nil || info.Mode().Perm() != mode {
				t.Errorf("mode %o of %s: the directory outside has %v, %v", mode, of, info.Mode(), err)
			}
			must(t, os.Chmod(canary, 0o700))
		}
	}
}

// What the user cannot remove stays, and nothing else does.
func TestRemoveTellsWhatItCannot(t *testing.T) {
	if !inner(t) {
		if os.Geteuid() != 0 {
			t.Skip("giving directories to another user needs root")
		}
		parent := tempDir(t)
		d := makeIn(t, parent)
		for _, of := range []string{"a", "b", strings.Repeat("c/", 3*levels)} {
			dir := filepath.Join(d.Path, of)
			must(t, os.MkdirAll(filepath.Join(dir, "sticky"), 0o700))
			must(t, os.MkdirAll(filepath.Join(dir, "closed"), 0o700))
			must(t, os.MkdirAll(filepath.Join(dir, "empty"), 0o700))
			plant(t, filepath.Join(dir, "mine"))
			must(t, os.WriteFile(filepath.Join(dir, "sticky", "theirs"), nil, 0o666))
			must(t, os.WriteFile(filepath.Join(dir, "closed", "theirs"), nil, 0o666))
			for i := range 500 { // more than one chunk of a listing, before and after
				must(t, os.WriteFile(filepath.Join(dir, fmt.Sprint("file", i)), nil, 0o600))
			}
		}
		must(t, filepath.WalkDir(d.Path, func(path string, e fs.DirEntry, err error) error {
			if err != nil || strings.Contains(path, "/sticky") || strings.Contains(path, "/closed") {
				return err
			}
			return os.Lchown(path, ordinary, ordinary)
		}))
		for _, of := range []string{"a", "b", strings.Repeat("c/", 3*levels)} {
			must(t, os.Chmod(filepath.Join(d.Path, of, "sticky"), 0o777|os.ModeSticky))
			must(t, os.Chmod(filepath.Join(d.Path, of, "closed"), 0o711))
		}
		ordinaryUser(t, parent)
		var left []string
		must(t, filepath.WalkDir(d.Path, func(path string, e fs.DirEntry, err error) error {
			if !e.IsDir() {
				left = append(left, path)
			}
			return err
		}))
		if len(left) != 6 {
			t.Errorf("left: %q, want what is theirs in three sticky and three closed directories", left)
		}
		return
	}
	found, err := filepath.Glob(filepath.Join(os.Getenv(dirVar), prefix+"*"))
	if err != nil || len(found) != 1 {
		t.Fatal(found, err)
	}
	d := identify(t, found[0])
	for range 2 { // once more when there is nothing else
		err := removed(t, d)
		if err == nil {
			t.Fatal("Remove returned nil")
		}
		t.Log(err)
		// Three files in sticky directories, and three directories that do not open.
		if want := "6 entries in it cannot be removed, the first is "; !strings.Contains(err.Error(), want) {
			t.Errorf("%v; want %q", err, want)
		}
		if !errors.Is(err, unix.EPERM) && !errors.Is(err, unix.EACCES) {
			t.Errorf("%v; want it to wrap EPERM or EACCES", err)
		}
		_, rest, _ := strings.Cut(err.Error(), `the first is "`)
		first, _, _ := strings.Cut(rest, `"`)
		if _, err := os.Lstat(filepath.Join(d.Path, first)); err != nil {
			t.Errorf("the first that stays: %v", err)
		}
	}
}

// Everything in the directory is removed, although its parent cannot be changed.
func TestRemoveTellsOfTheDirectoryItself(t *testing.T) {
	if !inner(t) {
		ordinaryUser(t, tempDir(t))
		return
	}
	parent := t.TempDir()
	d := makeIn(t, parent)
	plant(t, filepath.Join(d.Path, "a"))
	must(t, os.Chmod(parent, 0o500))
	defer os.Chmod(parent, 0o700)
	err := removed(t, d)
	if !errors.Is(err, unix.EACCES) || !strings.Contains(err.Error(), "the directory itself") {
		t.Errorf("%v; want EACCES for the directory itself", err)
	}
	if left, err := os.ReadDir(d.Path); len(left) > 0 || err != nil {
		t.Errorf("left: %v, %v", left, err)
	}
	must(t, os.Chmod(parent, 0o300)) // it cannot be listed, which is not needed on Linux
	if err := removed(t, d); err != nil && !errors.Is(err, unix.EACCES) {
		t.Error(err)
	}
}

// The chain is longer than a path can be, and deeper than the number of descriptors.
func TestRemoveDeep(t *testing.T) {
	const depth = 20000
	if !inner(t) {
		rerun(t, tempDirIn(t, memory), &syscall.SysProcAttr{})
		return
	}
	d := makeIn(t, os.Getenv(dirVar))
	at, err := unix.Open(d.Path, dirFlags, 0)
	must(t, err)
	for range depth {
		must(t, unix.Mkdirat(at, "d", 0o700))
		below, err := unix.Openat(at, "d", dirFlags, 0)
		must(t, err)
		must(t, unix.Close(at))
		at = below
	}
	file, err := unix.Openat(at, "file", unix.O_CREAT|unix.O_CLOEXEC, 0o600)
	must(t, err)
	must(t, unix.Close(file))
	must(t, unix.Close(at))

	var limit unix.Rlimit
	must(t, unix.Getrlimit(unix.RLIMIT_NOFILE, &limit))
	limit.Cur = uint64(highest(t) + 1 + 16)
	must(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &limit))
	if allocated := allocates(func() { gone(t, d) }); allocated > 8<<20 {
		t.Errorf("%d bytes allocated", allocated)
	}
}

// Remove allocates nothing for an entry, and does not keep the listing.
func TestRemoveWide(t *testing.T) {
	const files = 100_000
	d := makeIn(t, tempDirIn(t, memory))
	at, err := unix.Open(d.Path, dirFlags, 0)
	must(t, err)
	for i := range files {
		// Links are cheaper than files. One entry in ten is a directory.
		name := fmt.Sprintf("an entry with a name of some length %d", i)
		if i%10 == 0 {
			must(t, unix.Mkdirat(at, name, 0o700))
		} else {
			must(t, unix.Symlinkat("nowhere", at, name))
		}
	}
	must(t, unix.Close(at))
	began := time.Now()
	allocated := allocates(func() { gone(t, d) })
	t.Logf("%d entries in %v, %d bytes allocated", files, time.Since(began), allocated)
	if allocated > 1<<20 && !copiesNames {
		t.Errorf("%d bytes allocated for %d entries", allocated, files)
	}
}

func TestRemoveEndsInTime(t *testing.T) {
	d := makeIn(t, t.TempDir())
	plant(t, filepath.Join(d.Path, "a"))
	before := picture(t, d.Path)
	for _, until := range []time.Time{{}, time.Now().Add(-time.Hour), time.Now()} {
		err := d.Remove(until)
		if !errors.Is(err, os.ErrDeadlineExceeded) || !strings.Contains(err.Error(), "not finished in time") {
			t.Errorf("%v; want os.ErrDeadlineExceeded", err)
		}
	}
	if after := picture(t, d.Path); after != before {
		t.Errorf("before:\n%s\nafter:\n%s", before, after)
	}
	gone(t, d)
	if err := d.Remove(time.Time{}); err != nil {
		t.Errorf("gone, and the time is over: %v", err)
	}
}

// The directory is filled faster than it can be emptied.
func TestRemoveEndsInTimeWhileItIsFilled(t *testing.T) {
	const within = 200 * time.Millisecond
	for range 10 {
		d := makeIn(t, t.TempDir())
		stop, stopped := make(chan struct{}), make(chan struct{}, 4)
		for i := range cap(stopped) {
			go func() {
				defer func() { stopped <- struct{}{} }()
				for n := 0; ; n++ {
					select {
					case <-stop:
						return
					default:
					}
					_ = os.Symlink("nowhere", filepath.Join(d.Path, fmt.Sprint(i, "-", n)))
					_ = os.MkdirAll(filepath.Join(d.Path, "sub", fmt.Sprint(i, "-", n)), 0o700)
				}
			}()
		}
		for entries := 0; entries < 100; time.Sleep(time.Millisecond) {
			found, _ := os.ReadDir(d.Path)
			entries = len(found)
		}
		timer := time.AfterFunc(10*time.Second, func() { close(stop) }) // in case Remove does not end by itself
		began := time.Now()
		err := d.Remove(began.Add(within))
		took := time.Since(began)
		if timer.Stop() {
			close(stop)
		}
		for range cap(stopped) {
			<-stopped
		}
		if took > 5*time.Second {
			t.Fatalf("Remove returned after %v, want it after %v at most", took, within)
		}
		os.RemoveAll(d.Path) // whatever has the name now
		if errors.Is(err, os.ErrDeadlineExceeded) {
			return
		}
		t.Log("it was emptied before it was filled:", err) // rare: try again
	}
	t.Error("never filled fast enough")
}

// A listing need not have the kind of an entry, and the kind can have changed.
func TestRemoveWhateverTheListingSays(t *testing.T) {
	for _, kind := range []byte{unix.DT_UNKNOWN, unix.DT_DIR, unix.DT_REG, unix.DT_LNK} {
		d := makeIn(t, t.TempDir())
		plant(t, filepath.Join(d.Path, "full"))
		must(t, os.Mkdir(filepath.Join(d.Path, "empty"), 0o700))
		must(t, os.Symlink("full", filepath.Join(d.Path, "link")))
		must(t, os.WriteFile(filepath.Join(d.Path, "file"), nil, 0o600))
		root, err := openDir(unix.AT_FDCWD, d.Path, func(int, *unix.Stat_t) error { return nil })
		must(t, err)
		r := &remover{until: time.Now().Add(tooLong), root: root, dev: d.Dev}
		for _, name := range []string{"link", "file", "empty", "full"} {
			isDir := name == "empty" || name == "full"
			if isDir && kind != unix.DT_DIR && kind != unix.DT_UNKNOWN && !tellsDirectories {
				continue
			}
			if !r.entry(root, 0, append([]byte(name), 0), kind) {
				t.Errorf("%s, listed as %d: not removed: %v", name, kind, r.err())
			}
		}
		if r.entry(root, 0, []byte("missing\x00"), kind) || r.missed.n > 0 {
			t.Errorf("missing, listed as %d: %v", kind, r.err())
		}
		must(t, unix.Close(root))
		gone(t, d)
	}
}

// A signal can interrupt every call.
func TestRemoveWhenInterrupted(t *testing.T) { // not parallel: fault.Inject
	t.Cleanup(func() { fault.Inject = nil })
	d := makeIn(t, t.TempDir())
	plant(t, filepath.Join(d.Path, "a"))
	calls := map[fault.Call]int{}
	fault.Inject = func(call fault.Call) syscall.Errno {
		if calls[call]++; calls[call]%2 == 1 {
			return unix.EINTR
		}
		return 0
	}
	gone(t, d)
	for _, call := range []fault.Call{fault.Openat, fault.Fstat, fault.Fstatat, fault.Getdents, fault.Unlinkat} {
		if calls[call] < 2 {
			t.Errorf("%s was not made", call)
		}
	}
}

// Each call fails once. The error is reported, or the directory is gone; nothing else is.
func TestRemoveWhenACallFails(t *testing.T) { // not parallel: fault.Inject
	t.Cleanup(func() { fault.Inject = nil })
	for n, failed := 1, fault.Call(0); ; n++ {
		parent := t.TempDir()
		d := makeIn(t, parent)
		plant(t, filepath.Join(d.Path, "a"))
		plant(t, filepath.Join(parent, "other"))
		other := picture(t, filepath.Join(parent, "other"))
		calls := 0
		fault.Inject = func(call fault.Call) syscall.Errno {
			if calls++; calls == n {
				failed = call
				return unix.EIO
			}
			return 0
		}
		err := removed(t, d)
		fault.Inject = nil
		_, there := os.Lstat(d.Path)
		if (err == nil) != errors.Is(there, fs.ErrNotExist) || err != nil && !errors.Is(err, unix.EIO) {
			t.Errorf("call %d, %s: %v, and the directory: %v", n, failed, err, there)
		}
		if after := picture(t, filepath.Join(parent, "other")); after != other {
			t.Errorf("call %d, %s: what was beside it has changed:\n%s", n, failed, after)
		}
		if calls < n {
			return
		}
	}
}

// No program that is executed may inherit one of our descriptors.
func TestDescriptorsAreClosedOnExec(t *testing.T) {
	if !inner(t) {
		ordinaryUser(t, tempDir(t))
		return
	}
	d := makeIn(t, t.TempDir())
	must(t, os.Mkdir(filepath.Join(d.Path, "closed"), 0))
	any := func(int, *unix.Stat_t) error { return nil }
	for _, opened := range []func() (int, error){
		func() (int, error) { return sys.Openat(unix.AT_FDCWD, d.Path, parentFlags) },
		func() (int, error) { return openDir(unix.AT_FDCWD, d.Path, any) },
		func() (int, error) { return openDir(unix.AT_FDCWD, filepath.Join(d.Path, "closed"), any) },
	} {
		fd, err := opened()
		must(t, err)
		flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0)
		if err != nil || flags&unix.FD_CLOEXEC == 0 {
			t.Errorf("descriptor flags %#x, %v; want FD_CLOEXEC", flags, err)
		}
		must(t, unix.Close(fd))
	}
	gone(t, d)
}

// A user can remove any tree that the user can make.
func TestRemoveAnyTree(t *testing.T) {
	if !inner(t) {
		ordinaryUser(t, tempDirIn(t, memory))
		return
	}
	parent := t.TempDir()
	canary := filepath.Join(parent, "canary")
	plant(t, canary)
	before := picture(t, canary)
	rapid.Check(t, func(rt *rapid.T) {
		d := makeIn(t, parent)
		dirs := []string{d.Path}
		for range rapid.IntRange(0, 40).Draw(rt, "steps") {
			in := rapid.SampledFrom(dirs).Draw(rt, "in")
			path := filepath.Join(in, rapid.StringMatching(`[a-c]{1,2}`).Draw(rt, "name"))
			switch rapid.SampledFrom([]string{"dir", "chain", "file", "link", "hard", "fifo", "many"}).Draw(rt, "kind") {
			case "dir":
				if os.Mkdir(path, 0o700) == nil {
					dirs = append(dirs, path)
				}
			case "chain":
				for range rapid.IntRange(1, 3*levels).Draw(rt, "depth") {
					if os.Mkdir(path, 0o700) != nil {
						break // the name can be a link that leads out
					}
					dirs = append(dirs, path)
					path = filepath.Join(path, "d")
				}
			case "file":
				if f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL, 0); err == nil { // not through a link
					_ = f.Close()
				}
			case "link":
				target := rapid.SampledFrom([]string{canary, canary + "/file", "..", d.Path, parent}).Draw(rt, "target")
				_ = os.Symlink(target, path)
			case "hard":
				_ = os.Link(filepath.Join(canary, "file"), path)
			case "fifo":
				_ = unix.Mkfifo(path, 0o600)
			case "many":
				for i := range rapid.SampledFrom([]int{3, 400}).Draw(rt, "count") {
					_ = os.Symlink(canary, fmt.Sprint(path, i))
				}
			}
		}
		for i := len(dirs) - 1; i >= 0; i-- { // each after the directories below it
			if rapid.Bool().Draw(rt, "close") {
				_ = os.Chmod(dirs[i], os.FileMode(rapid.IntRange(0, 7).Draw(rt, "mode"))<<6)
			}
		}
		if err := removed(t, d); err != nil {
			rt.Errorf("%v", err)
		}
		if left, err := os.ReadDir(parent); len(left) != 1 || err != nil {
			rt.Errorf("left: %v, %v; want only the canary", left, err)
		}
		if after := picture(t, canary); after != before {
			rt.Fatalf("before:\n%s\nafter:\n%s", before, after)
		}
	})
}

// gone removes a directory, and fails if it still exists.
func gone(t *testing.T, d Dir) {
	t.Helper()
	if err := removed(t, d); err != nil {
		t.Error(err)
	}
	if _, err := os.Lstat(d.Path); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("Lstat after Remove: %v, want that it does not exist", err)
	}
}

// removed calls Remove, and fails if that leaves a descriptor open.
func removed(t *testing.T, d Dir) error {
	t.Helper()
	before := descriptors(t)
	err := d.Remove(time.Now().Add(tooLong))
	if after := descriptors(t); !bytes.Equal(after, before) {
		t.Errorf("descriptors before: %v, after: %v", before, after)
	}
	return err
}

// makeIn makes a directory, which is removed after the test, whatever happens.
func makeIn(t *testing.T, parent string) Dir {
	t.Helper()
	path, err := Name(parent, rand.Text())
	must(t, err)
	d, err := Make(path)
	must(t, err)
	t.Cleanup(func() { wipe(d.Path) })
	return d
}

// memory is a file system in memory: on a disk, large trees are slow.
const memory = "/dev/shm"

// tempDir is like t.TempDir, and accessible to other users.
func tempDir(t *testing.T) string { t.Helper(); return tempDirIn(t, "") }

// tempDirIn does the same below a parent, if that exists.
func tempDirIn(t *testing.T, parent string) string {
	t.Helper()
	if _, err := os.Stat(parent); err != nil {
		parent = ""
	}
	dir, err := os.MkdirTemp(parent, "scratch-test-")
	must(t, err)
	t.Cleanup(func() { wipe(dir) })
	must(t, os.Chmod(dir, 0o777|os.ModeSticky))
	return dir
}

// wipe removes the directory if the package under test did not. (os.RemoveAll
// runs out of descriptors.)
func wipe(dir string) {
	if info, err := os.Lstat(dir); err == nil && info.IsDir() {
		_ = exec.Command("chmod", "-R", "u+rwx", dir).Run()
		_ = exec.Command("rm", "-rf", dir).Run()
	}
}

// plant makes a small tree.
func plant(t *testing.T, dir string) {
	t.Helper()
	must(t, os.MkdirAll(filepath.Join(dir, "sub", "sub"), 0o700))
	must(t, os.WriteFile(filepath.Join(dir, "file"), []byte("content"), 0o640))
	must(t, os.WriteFile(filepath.Join(dir, "sub", "sub", "file"), []byte("content"), 0o600))
}

// picture describes everything below a directory, with modes and contents.
func picture(t *testing.T, dir string) string {
	t.Helper()
	var b strings.Builder
	must(t, filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := e.Info()
		if err != nil {
			return err
		}
		content := ""
		switch {
		case info.Mode().IsRegular():
			read, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			content = string(read)
		case info.Mode()&fs.ModeSymlink != 0:
			content, _ = os.Readlink(path)
		}
		_, err = fmt.Fprintf(&b, "%v %s %q\n", info.Mode(), strings.TrimPrefix(path, dir), content)
		return err
	}))
	return b.String()
}

func identify(t *testing.T, path string) Dir {
	t.Helper()
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	must(t, err)
	defer unix.Close(fd)
	var st unix.Stat_t
	must(t, unix.Fstat(fd, &st))
	return Dir{path, uint64(st.Dev), st.Ino, birth(fd, &st)}
}

func resolve(t *testing.T, path string) string {
	t.Helper()
	resolved, err := filepath.EvalSymlinks(path)
	must(t, err)
	return resolved
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// inner reports whether this process was started to run this test.
func inner(t *testing.T) bool { return os.Getenv(innerVar) == t.Name() }

// ordinaryUser runs the test once more, in a process of a user whom modes bind.
func ordinaryUser(t *testing.T, dir string) {
	t.Helper()
	attr := &syscall.SysProcAttr{}
	if os.Geteuid() == 0 {
		attr.Credential = &syscall.Credential{Uid: ordinary, Gid: ordinary}
	}
	rerun(t, dir, attr)
}

// rerun runs the test once more, in a process of its own, which is given dir.
func rerun(t *testing.T, dir string, attr *syscall.SysProcAttr) {
	t.Helper()
	timeout := tooLong // it must not outlive this process
	if deadline, ok := t.Deadline(); ok {
		timeout = time.Until(deadline) * 9 / 10
	}
	cmd := exec.Command(ownBinary(t), "-test.run=^"+t.Name()+"$", "-test.v", "-test.timeout="+timeout.String(), "-rapid.nofailfile")
	cmd.Env = append(os.Environ(), innerVar+"="+t.Name(), dirVar+"="+dir, "TMPDIR="+dir)
	cmd.Dir = "/"
	cmd.SysProcAttr = attr
	out, err := cmd.CombinedOutput()
	t.Logf("%s", out)
	if err != nil || !bytes.Contains(out, []byte("--- PASS: "+t.Name())) {
		t.Fatalf("the test in another process: %v", err)
	}
}

// highest returns the highest descriptor that is open.
func highest(t *testing.T) int {
	t.Helper()
	highest := 0
	for line := range strings.Lines(string(descriptors(t))) {
		fd := 0
		if _, err := fmt.Sscan(line, &fd); err == nil {
			highest = max(highest, fd)
		}
	}
	return highest
}

// allocates returns how many bytes all goroutines allocate while f runs.
func allocates(f func()) uint64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	f()
	runtime.ReadMemStats(&after)
	return after.TotalAlloc - before.TotalAlloc
}
