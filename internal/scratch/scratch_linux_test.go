package scratch

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

const (
	copiesNames      = false // for each system call
	tellsDirectories = true  // unlinkat returns EISDIR for one
)

// A mounted directory survives, with everything in it. The mounts
// are in a namespace of the inner process: they end with it.
func TestRemoveEntersNoMount(t *testing.T) {
	if !inner(t) {
		if os.Geteuid() != 0 {
			t.Skip("mounting needs root")
		}
		attr := &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS}
		rerun(t, tempDir(t), attr)
		return
	}
	parent := os.Getenv(dirVar)
	canary := filepath.Join(parent, "canary")
	plant(t, canary)
	d := makeIn(t, parent)
	in := func(elem ...string) string { return filepath.Join(append([]string{d.Path}, elem...)...) }
	deep := in(strings.Repeat("d/", 2*levels))
	must(t, os.MkdirAll(deep, 0o700))
	mounts := []struct{ source, target, fstype string }{
		{"none", in("tmpfs"), "tmpfs"},
		{"none", in("a", "tmpfs"), "tmpfs"},
		{canary, in("bind"), ""},
		{canary, in("a", "bind"), ""},
		{canary, filepath.Join(deep, "bind"), ""},
	}
	for _, m := range mounts {
		must(t, os.MkdirAll(m.target, 0o700))
		must(t, os.WriteFile(filepath.Join(filepath.Dir(m.target), "beside"), nil, 0o600))
		flags := uintptr(unix.MS_BIND)
		if m.fstype != "" {
			flags = 0
		}
		must(t, unix.Mount(m.source, m.target, m.fstype, flags, ""))
		defer unix.Unmount(m.target, unix.MNT_DETACH)
		if m.fstype != "" {
			plant(t, m.target)
		}
	}
	must(t, os.WriteFile(in("a", "file"), nil, 0o600))
	must(t, unix.Mount(filepath.Join(canary, "file"), in("a", "file"), "", unix.MS_BIND, ""))
	defer unix.Unmount(in("a", "file"), unix.MNT_DETACH)
	before := picture(t, canary)
	mounted := picture(t, in("tmpfs"))

	// The device is checked as well, should the system not report the mount.
	r := &remover{dev: d.Dev}
	if fd, err := openDir(unix.AT_FDCWD, in("tmpfs"), r.sameDevice); err != unix.EXDEV {
		t.Errorf("opening what is on another device: descriptor %d, %v, want EXDEV", fd, err)
	}

	err := removed(t, d)
	t.Log(err)
	if !errors.Is(err, unix.EBUSY) || !strings.Contains(err.Error(), "6 entries in it cannot be removed") {
		t.Errorf("%v; want EBUSY for 6 entries", err)
	}
	if after := picture(t, canary); after != before {
		t.Errorf("before:\n%s\nafter:\n%s", before, after)
	}
	for _, dir := range []string{in("tmpfs"), in("a", "tmpfs")} {
		if after := picture(t, dir); after != mounted {
			t.Errorf("%s before:\n%s\nafter:\n%s", dir, mounted, after)
		}
	}
	if _, err := os.Lstat(in("a", "beside")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("beside the mounts: %v", err)
	}

	// Everything can be removed after the mounts have ended.
	left, err := os.ReadFile("/proc/self/mountinfo")
	must(t, err)
	for line := range strings.Lines(string(left)) {
		if target := strings.Fields(line)[4]; strings.HasPrefix(target, d.Path) {
			must(t, unix.Unmount(target, 0))
		}
	}
	gone(t, d)
	wipe(canary)
}

// The directory itself may be a mount point: of another, or of itself.
func TestRemoveMountedOver(t *testing.T) {
	if !inner(t) {
		if os.Geteuid() != 0 {
			t.Skip("mounting needs root")
		}
		rerun(t, tempDir(t), &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS})
		return
	}
	parent := os.Getenv(dirVar)
	canary := filepath.Join(parent, "canary")
	plant(t, canary)
	before := picture(t, canary)
	for _, source := range []string{canary, "itself"} {
		d := makeIn(t, parent)
		if source == "itself" {
			source = d.Path
		}
		must(t, unix.Mount(source, d.Path, "", unix.MS_BIND, ""))
		err := removed(t, d)
		t.Log(err)
		if err == nil {
			t.Error("Remove returned nil")
		}
		if err := RemoveNamed(d.Path, time.Now().Add(tooLong)); !errors.Is(err, unix.EBUSY) {
			t.Errorf("RemoveNamed returned %v, want EBUSY", err)
		}
		must(t, unix.Unmount(d.Path, 0))
		gone(t, d)
	}
	if after := picture(t, canary); after != before {
		t.Errorf("before:\n%s\nafter:\n%s", before, after)
	}
	wipe(canary)
}

func TestRemoveImmutable(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("making a file immutable needs root")
	}
	d := makeIn(t, t.TempDir())
	stays := map[string]bool{}
	for _, name := range []string{"a/file", "b/file", "dir", "full/dir"} {
		path := filepath.Join(d.Path, name)
		must(t, os.MkdirAll(filepath.Dir(path), 0o700))
		if strings.HasSuffix(name, "file") {
			must(t, os.WriteFile(path, nil, 0o600))
		} else {
			must(t, os.Mkdir(path, 0o700))
		}
		plant(t, filepath.Dir(path))
		if err := setImmutable(path, true); err != nil {
			t.Skipf("the file system knows no immutable files: %v", err)
		}
		defer setImmutable(path, false)
		stays[path] = true
	}
	err := removed(t, d)
	t.Log(err)
	if !errors.Is(err, unix.EPERM) || !strings.Contains(err.Error(), "4 entries in it cannot be removed") {
		t.Errorf("%v; want EPERM for 4 entries", err)
	}
	must(t, filepath.WalkDir(d.Path, func(path string, e fs.DirEntry, err error) error {
		for stay := range stays {
			if strings.HasPrefix(stay, path) {
				return err
			}
		}
		t.Errorf("%s is still there", path)
		return err
	}))

	// One entry alone, and the time runs out as well.
	for stay := range stays {
		if !strings.HasSuffix(stay, "a/file") {
			must(t, setImmutable(stay, false))
		}
	}
	if err := removed(t, d); err == nil || !strings.Contains(err.Error(), `"a/file" in it cannot be removed: unlinkat: operation not permitted`) {
		t.Errorf("%v; want it to name a/file", err)
	}
	must(t, setImmutable(filepath.Join(d.Path, "a/file"), false))
	gone(t, d)
}

// Nothing at the top can be removed, and a directory that is moved there need not appear in
// the listing that is being read (on tmpfs it does not).
func TestRemoveComesBackToWhatItMoved(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("making a file immutable needs root")
	}
	d := makeIn(t, tempDirIn(t, memory))
	stay := filepath.Join(d.Path, "a", "stay")
	must(t, os.MkdirAll(filepath.Join(d.Path, "a", strings.Repeat("d/", 2*levels)), 0o700))
	must(t, os.WriteFile(stay, nil, 0o600))
	if err := setImmutable(stay, true); err != nil {
		t.Skipf("the file system knows no immutable files: %v", err)
	}
	defer setImmutable(stay, false)
	if err := removed(t, d); !errors.Is(err, unix.EPERM) {
		t.Errorf("%v; want EPERM", err)
	}
	if got, want := picture(t, d.Path), 3; strings.Count(got, "\n") != want {
		t.Errorf("left:\n%s\nwant the directory, a and a/stay", got)
	}
	must(t, setImmutable(stay, false))
	gone(t, d)
}

const immutable = 0x10 // FS_IMMUTABLE_FL of linux/fs.h

func setImmutable(path string, on bool) error {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	flags, err := unix.IoctlGetUint32(fd, unix.FS_IOC_GETFLAGS)
	if err != nil {
		return err
	}
	if flags &^= immutable; on {
		flags |= immutable
	}
	return unix.IoctlSetPointerInt(fd, unix.FS_IOC_SETFLAGS, int(flags))
}

// Another process replaces a directory by a link that leads out, and the link by the directory,
// as fast as the system can.
func TestRemoveFollowsNoLinkThatComesLater(t *testing.T) {
	parent := t.TempDir()
	canary := filepath.Join(parent, "canary")
	plant(t, canary)
	before := picture(t, canary)
	for range 100 {
		d := makeIn(t, parent)
		dir, link := filepath.Join(d.Path, "dir"), filepath.Join(d.Path, "link")
		plant(t, dir)
		must(t, os.Symlink(canary, link))
		swapping, stop, stopped := make(chan struct{}), make(chan struct{}), make(chan struct{})
		go func() {
			defer close(stopped)
			for n := 0; unix.Renameat2(unix.AT_FDCWD, dir, unix.AT_FDCWD, link, unix.RENAME_EXCHANGE) == nil; n++ {
				if n == 10 {
					close(swapping)
				}
				select {
				case <-stop:
					return
				default:
				}
			}
		}()
		select {
		case <-swapping:
		case <-stopped:
			t.Skip("the file system exchanges no names")
		}
		if err := removed(t, d); err != nil {
			t.Log(err)
		}
		close(stop)
		<-stopped
		gone(t, d)
		if after := picture(t, canary); after != before {
			t.Fatalf("before:\n%s\nafter:\n%s", before, after)
		}
	}
}

func TestRemoveAnyName(t *testing.T) {
	d := makeIn(t, t.TempDir())
	names := []string{"\xff\xfe", "a\nb", " ", "...", "..a", "-rf", "*", "\\", "\"", strings.Repeat("\xc3", 255), "ä", "\x01", "\u202e"}
	for b := 1; b < 256; b++ {
		if b != '/' && b != '.' {
			names = append(names, string([]byte{byte(b)})+"!", string([]byte{byte(b)}))
		}
	}
	slices.Sort(names)
	for i, name := range slices.Compact(names) {
		var err error
		if i%2 == 0 {
			err = os.WriteFile(filepath.Join(d.Path, name), nil, 0o600)
		} else {
			err = os.MkdirAll(filepath.Join(d.Path, name, name), 0o700)
		}
		must(t, err)
	}
	gone(t, d)
}

// Directories from several places are moved up, and there are others beside them.
func TestRemoveDeepInSeveralPlaces(t *testing.T) {
	d := makeIn(t, t.TempDir())
	for i := range 20 {
		path := filepath.Join(d.Path, fmt.Sprint(i), strings.Repeat("d/", 5*levels))
		must(t, os.MkdirAll(path, 0o700))
		for dir := path; dir != d.Path; dir = filepath.Dir(dir) {
			must(t, os.WriteFile(filepath.Join(dir, "file"), nil, 0o600))
			must(t, os.Mkdir(filepath.Join(dir, "empty"), 0o700))
		}
	}
	gone(t, d)
}

// descriptors lists the open descriptors of this process, but for that of the listing.
func descriptors(t *testing.T) []byte {
	t.Helper()
	found, err := os.ReadDir("/proc/self/fd")
	must(t, err)
	var open []byte
	for _, e := range found {
		target, err := os.Readlink("/proc/self/fd/" + e.Name())
		if err == nil {
			open = append(open, e.Name()+" "+target+"\n"...)
		}
	}
	return open
}

// ownBinary can be started by another user too, who need not have access to its path.
func ownBinary(*testing.T) string { return "/proc/self/exe" }
