//go:build linux || darwin

package scratch

import (
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	pathpkg "path"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"curfew/internal/fault"
	"curfew/internal/sys"
)

const (
	// levels bounds the descriptors, the stack and the memory: one directory is
	// open at each level, and a deeper one is moved up. At most three more descriptors
	// are open: of the parent, of the directory that is moved up, and of the
	// same directory without the right to read it.
	levels = 12

	chunkBytes = 8 << 10 // of a listing, at each level

	dirFlags = unix.O_RDONLY | unix.O_DIRECTORY | unix.O_NOFOLLOW
)

func makeDir(path string) (Dir, error) {
	if err := os.Mkdir(path, 0o700); err != nil {
		return Dir{}, err
	}
	d, err := fresh(path)
	if err != nil && err != errOther {
		_ = unix.Rmdir(path) // it is empty; the other error is reported
	}
	return d, err
}

// fresh returns the directory that was just made. Where other users may rename it, another
// directory can have its name by now.
func fresh(path string) (Dir, error) {
	d := Dir{Path: path}
	fd, err := openDir(unix.AT_FDCWD, path, d.become)
	if err != nil {
		return Dir{}, err
	}
	defer unix.Close(fd)
	if !isEmpty(fd) {
		return Dir{}, errOther
	}
	return d, nil
}

// become makes d the directory of the descriptor fd, whose status is st.
func (d *Dir) become(fd int, st *unix.Stat_t) error {
	if !isDir(st) || !ours(st) {
		return errOther
	}
	d.Dev, d.Ino, d.Birth = uint64(st.Dev), st.Ino, birth(fd, st)
	return nil
}

// is returns an error unless fd, whose status is st, is a descriptor of d.
func (d *Dir) is(fd int, st *unix.Stat_t) error {
	if uint64(st.Dev) != d.Dev || st.Ino != d.Ino || !isDir(st) || !ours(st) || birth(fd, st) != d.Birth {
		return errOther
	}
	return nil
}

// isEmpty reports whether the directory fd has no entries but the two that every directory
// has.
func isEmpty(fd int) bool {
	var chunk [1 << 10]byte
	list := sys.List(fd, chunk[:])
	for list.Next() {
		if !list.IsDot() {
			return false
		}
	}
	return list.Err == nil
}

// find returns the directory that has the name path now. It refuses a mount point.
func find(path string) (d Dir, err error) {
	// For a mount point the system answers EBUSY, also if the mounted directory is not empty.
	err = sys.Call(fault.Rmdir, func() error { return unix.Rmdir(path) })
	if err == nil {
		return d, fs.ErrNotExist // it was empty, and is removed
	}
	if err != unix.ENOTEMPTY && err != unix.EEXIST {
		return d, os.NewSyscallError("rmdir", err)
	}
	d.Path = path
	fd, err := openDir(unix.AT_FDCWD, path, d.become)
	if err != nil {
		return d, because("open", err)
	}
	unix.Close(fd)
	return d, nil
}

func remove(d Dir, until time.Time) error {
	parent, name := pathpkg.Split(d.Path)
	at, err := sys.Openat(unix.AT_FDCWD, parent, parentFlags)
	if err == unix.ENOENT {
		return nil
	}
	if err != nil {
		return os.NewSyscallError("open", err)
	}
	defer unix.Close(at)

	root, err := openDir(at, name, d.is)
	if err == unix.ENOENT {
		return nil
	}
	if err != nil {
		return because("openat", err)
	}
	defer unix.Close(root)

	r := &remover{until: until, root: root, ino: d.Ino, dev: d.Dev, fresh: fmt.Sprintf("%s%016x-", prefix, rand.Uint64())}
	r.removeDir(at, append([]byte(name), 0), root, 0)
	return r.err()
}

// remover is one run of Remove. It holds all the memory that the run needs.
type remover struct {
	until time.Time
	late  bool // until has passed: everything returns

	root     int // the Dir, which keeps its inode as long as this descriptor is open
	dev, ino uint64

	fresh string // begins the names of the directories that are moved up to the root
	moved int    // how many they are

	missed misses
	names  [levels]string // of the directories that are being cleared, below the root
	chunks [levels][chunkBytes]byte
}

// misses are the entries that could not be removed.
type misses struct {
	n     int
	first string // the path of the first, from the root
	err   error  // why it is still there
}

func (r *remover) err() error {
	var missed error
	switch m := r.missed; {
	case m.first == ".":
		missed = fmt.Errorf("the directory itself: %w", m.err)
	case m.n == 1:
		missed = fmt.Errorf("%q in it cannot be removed: %w", m.first, m.err)
	case m.n > 1:
		missed = fmt.Errorf("%d entries in it cannot be removed, the first is %q: %w", m.n, m.first, m.err)
	}
	switch {
	case !r.late:
		return missed
	case missed == nil:
		return fmt.Errorf("not finished in time: %w", os.ErrDeadlineExceeded)
	default:
		return fmt.Errorf("not finished in time: %w; by then %w", os.ErrDeadlineExceeded, missed)
	}
}

// miss counts an entry of the directory at a level that cannot be removed. The
// directories above it, which stay for that reason, are not counted.
func (r *remover) miss(level int, name []byte, call string, err error) {
	if r.missed.n++; r.missed.n == 1 {
		path := pathpkg.Join(r.names[:level]...)
		r.missed.first = pathpkg.Join(path, text(name))
		r.missed.err = because(call, err)
	}
}

// because names the call, if the error is the system's.
func because(call string, err error) error {
	if err == errOther {
		return err
	}
	return os.NewSyscallError(call, err)
}

// removeDir removes what is in the directory fd at a level, and then the directory
// itself, which is called name in at. It reports whether it removed the directory.
func (r *remover) removeDir(at int, name []byte, fd, level int) bool {
	// A directory that is not empty, although nothing was found in it, got an entry in the
	// meantime. If that happens twice in a row, the file system does not list the entry.
	for idle := 0; ; {
		before := r.missed.n
		if r.emptyDir(fd, level) {
			idle = 0
		} else {
			idle++
		}
		if r.late || r.missed.n > before {
			return false
		}
		err := error(nil)
		if level == 0 {
			err = r.stillThere(at, name)
		}
		if err == nil {
			err = unlinkat(at, name, unix.AT_REMOVEDIR)
		}
		switch {
		case err == nil:
			return true
		case err == unix.ENOENT:
			return false
		case (err == unix.ENOTEMPTY || err == unix.EEXIST) && idle < 2:
			continue
		case level == 0:
			r.miss(0, []byte(".\x00"), "unlinkat", err)
		default:
			r.miss(level-1, name, "unlinkat", err)
		}
		return false
	}
}

// stillThere returns an error unless the Dir has the name. It can have been renamed in the
// meantime.
func (r *remover) stillThere(at int, name []byte) error {
	var st unix.Stat_t
	err := fstatat(at, text(name), &st)
	if err == nil && (uint64(st.Dev) != r.dev || st.Ino != r.ino) {
		err = errOther
	}
	return err
}

// emptyDir removes what is in the directory fd at a level, as far as that is possible, and
// reports whether it removed anything.
func (r *remover) emptyDir(fd, level int) (some bool) {
	for {
		before, moved := r.missed, r.moved
		gone := r.pass(fd, level)
		some = some || gone
		again := gone || level == 0 && r.moved > moved
		if !again || r.late {
			return some
		}
		// A listing need not show everything while entries are removed, and an entry that
		// could not be removed before may be removable now. So the last pass is one
		// that removes nothing, and only its misses count.
		r.missed = before
	}
}

// pass goes through the directory fd at a level once. It reports whether
// it removed anything.
func (r *remover) pass(fd, level int) (some bool) {
	if _, err := unix.Seek(fd, 0, io.SeekStart); err != nil {
		r.miss(level, []byte(".\x00"), "lseek", err)
		return false
	}
	list := sys.List(fd, r.chunks[level][:])
	for list.Next() {
		if list.IsDot() {
			continue
		}
		if r.late = r.late || !time.Now().Before(r.until); r.late {
			return some
		}
		if r.entry(fd, level, list.Name[:len(list.Name)+1], list.Kind) { // with its NUL
			some = true
		}
	}
	if list.Err != nil && list.Err != unix.ENOENT { // ENOENT: the directory itself is gone
		r.miss(level, []byte(".\x00"), "getdents", list.Err)
	}
	return some
}

// entry removes one entry of the directory at, which is open at a level, and
// reports whether it succeeded.
func (r *remover) entry(at, level int, name []byte, kind byte) bool {
	flags := 0
	if kind == unix.DT_DIR || kind == unix.DT_UNKNOWN {
		flags = unix.AT_REMOVEDIR
	}
	var err error
	for range 3 { // it can become a file or a directory between two calls
		switch err = unlinkat(at, name, flags); {
		case err == nil:
			return true
		case err == unix.ENOENT:
			return false
		case err == unix.ENOTDIR:
			flags = 0
		case err == unix.EISDIR:
			flags = unix.AT_REMOVEDIR
		case flags != 0 && (err == unix.ENOTEMPTY || err == unix.EEXIST):
			// For a mount point the error would be EBUSY, whatever is in it. So Remove
			// enters only directories that the system would remove once they are empty.
			return r.subdirectory(at, level, name)
		default:
			r.miss(level, name, "unlinkat", err)
			return false
		}
	}
	r.miss(level, name, "unlinkat", err)
	return false
}

// subdirectory removes the directory name with everything in it, or moves it up to
// the root if it is too deep. It reports whether at has lost the entry.
func (r *remover) subdirectory(at, level int, name []byte) bool {
	fd, err := openDir(at, text(name), r.sameDevice)
	switch err {
	case nil:
	case unix.ENOENT, unix.ENOTDIR, unix.ELOOP: // it is no directory any more: for the next pass
		return false
	default:
		r.miss(level, name, "openat", err)
		return false
	}
	defer unix.Close(fd)
	if level+1 < levels {
		r.names[level] = text(name)
		return r.removeDir(at, name, fd, level+1)
	}

	// openDir has given us the right to write to it, which the renaming needs. A
	// pass through the root finds it there.
	fresh := r.fresh + strconv.Itoa(r.moved)
	err = sys.Call(fault.Renameat, func() error { return unix.Renameat(at, text(name), r.root, fresh) })
	if err == nil {
		r.moved++
		return true
	}
	if err != unix.ENOENT {
		r.miss(level, name, "renameat", err)
	}
	return false
}

// sameDevice refuses a directory of another file system, should unlinkat not have refused
// it before.
func (r *remover) sameDevice(_ int, st *unix.Stat_t) error {
	if uint64(st.Dev) != r.dev {
		return unix.EXDEV
	}
	return nil
}

func text(name []byte) string { return string(name[:len(name)-1]) }

// openDir opens the directory name in at, to be listed and changed. It follows no link. If
// the directory is ours and its mode forbids that, openDir changes the mode, after ok has
// accepted the directory.
func openDir(at int, name string, ok func(fd int, st *unix.Stat_t) error) (int, error) {
	fd, err := sys.Openat(at, name, dirFlags)
	if err == unix.EACCES {
		fd, err = openClosed(at, name, ok)
	}
	if err != nil {
		return -1, err
	}
	var st unix.Stat_t
	if err = sys.Fstat(fd, &st); err == nil {
		err = ok(fd, &st)
	}
	if err != nil {
		unix.Close(fd)
		return -1, err
	}
	if mode := uint32(st.Mode); mode&0o700 != 0o700 && ours(&st) {
		// If that fails, the removal of the entries fails too, and its error is reported.
		_ = sys.Call(fault.Fchmod, func() error { return unix.Fchmod(fd, mode&0o7777|0o700) })
	}
	return fd, nil
}

func ours(st *unix.Stat_t) bool { return int(st.Uid) == os.Geteuid() }

func isDir(st *unix.Stat_t) bool { return st.Mode&unix.S_IFMT == unix.S_IFDIR }

func fstatat(at int, name string, st *unix.Stat_t) error {
	return sys.Call(fault.Fstatat, func() error { return unix.Fstatat(at, name, st, unix.AT_SYMLINK_NOFOLLOW) })
}
