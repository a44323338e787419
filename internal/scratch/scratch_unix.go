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
	// open at each, and what is deeper is moved up. Three more descriptors are
	// open at most: of the parent, of the directory that is moved up, and of the
	// same without the right to read.
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
		_ = unix.Rmdir(path) // it is empty, and the error to report is the other
	}
	return d, err
}

// fresh returns the directory that was just made. Where others may rename it, the name
// can be that of another one by now.
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

// become makes d the directory that fd, with the status st, stands for.
func (d *Dir) become(fd int, st *unix.Stat_t) error {
	if !isDir(st) || !ours(st) {
		return errOther
	}
	d.Dev, d.Ino, d.Birth = uint64(st.Dev), st.Ino, birth(fd, st)
	return nil
}

// is returns an error unless fd, with the status st, is d.
func (d *Dir) is(fd int, st *unix.Stat_t) error {
	if uint64(st.Dev) != d.Dev || st.Ino != d.Ino || !isDir(st) || !ours(st) || birth(fd, st) != d.Birth {
		return errOther
	}
	return nil
}

// isEmpty reports whether a listing of the directory fd, from where it stands, has no
// entries but the two that every directory has.
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

// find returns the directory that has the name now. A mount point is refused.
func find(path string) (d Dir, err error) {
	// For a mount point the system answers EBUSY, also if what is mounted is not empty.
	err = sys.Call(fault.Rmdir, func() error { return unix.Rmdir(path) })
	if err == nil {
		return d, fs.ErrNotExist // and with that the work is done
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
	r.finish(at, append([]byte(name), 0), root, 0)
	return r.err()
}

// remover is one run of Remove. It holds all the memory that is needed.
type remover struct {
	until time.Time
	late  bool // until has come: everything returns

	root     int // the Dir, which keeps its inode as long as this is open
	dev, ino uint64

	fresh string // begins the names of what is moved up to the root
	moved int    // how many that were

	missed misses
	names  [levels]string // of the directories that are being cleared, below the root
	chunks [levels][chunkBytes]byte
}

// misses is what could not be removed.
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

// miss counts an entry of the directory at a level as not to be removed. The
// directories that it keeps from being empty are not counted.
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

// finish removes what is in the directory fd at a level, and then the directory
// itself, which is called name in at. It reports whether it did.
func (r *remover) finish(at int, name []byte, fd, level int) bool {
	// Not empty although nothing was found in it: somebody has put something
	// there since. Twice in a row: a file system that does not tell.
	for idle := 0; ; {
		before := r.missed.n
		if r.clear(fd, level) {
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

// stillThere returns an error unless the name is that of the Dir, which can have
// been renamed while it was cleared.
func (r *remover) stillThere(at int, name []byte) error {
	var st unix.Stat_t
	err := fstatat(at, text(name), &st)
	if err == nil && (uint64(st.Dev) != r.dev || st.Ino != r.ino) {
		err = errOther
	}
	return err
}

// clear removes what is in the directory fd at a level, as far as it can be, and
// reports whether anything was.
func (r *remover) clear(fd, level int) (some bool) {
	for {
		before, moved := r.missed, r.moved
		gone := r.pass(fd, level)
		some = some || gone
		again := gone || level == 0 && r.moved > moved
		if !again || r.late {
			return some
		}
		// A listing need not show everything while entries are removed, and what
		// could not be removed before may be by now. So the last pass is one
		// that removes nothing, and its misses are those that count.
		r.missed = before
	}
}

// pass goes once through the directory fd at a level. It reports whether
// anything in it was removed.
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
// reports whether it did.
func (r *remover) entry(at, level int, name []byte, kind byte) bool {
	flags := 0
	if kind == unix.DT_DIR || kind == unix.DT_UNKNOWN {
		flags = unix.AT_REMOVEDIR
	}
	var err error
	for range 3 { // it can become something else between two calls
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
			// For a mount point it had been EBUSY, whatever is in it: only what
			// the system would remove once it is empty is ever entered.
			return r.subdirectory(at, level, name)
		default:
			r.miss(level, name, "unlinkat", err)
			return false
		}
	}
	r.miss(level, name, "unlinkat", err)
	return false
}

// subdirectory removes the directory name with what is in it, or moves it up to
// the root if it is too deep. It reports whether it is gone from here.
func (r *remover) subdirectory(at, level int, name []byte) bool {
	fd, err := openDir(at, text(name), r.sameDevice)
	switch err {
	case nil:
	case unix.ENOENT, unix.ENOTDIR, unix.ELOOP: // it became something else: for the next pass
		return false
	default:
		r.miss(level, name, "openat", err)
		return false
	}
	defer unix.Close(fd)
	if level+1 < levels {
		r.names[level] = text(name)
		return r.finish(at, name, fd, level+1)
	}

	// The opening was for the right to write in it, which the renaming needs. A
	// pass through the root finds it again.
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

// sameDevice refuses what is mounted, should the unlinkat before not have told.
func (r *remover) sameDevice(_ int, st *unix.Stat_t) error {
	if uint64(st.Dev) != r.dev {
		return unix.EXDEV
	}
	return nil
}

func text(name []byte) string { return string(name[:len(name)-1]) }

// openDir opens the directory name in at to be listed and changed. One that
// lacks the right and is ours is given it. ok has seen it before anything is
// changed. No link is followed.
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
		// If that fails, so does the removal of the entries, which tells why.
		_ = sys.Call(fault.Fchmod, func() error { return unix.Fchmod(fd, mode&0o7777|0o700) })
	}
	return fd, nil
}

func ours(st *unix.Stat_t) bool { return int(st.Uid) == os.Geteuid() }

func isDir(st *unix.Stat_t) bool { return st.Mode&unix.S_IFMT == unix.S_IFDIR }

func fstatat(at int, name string, st *unix.Stat_t) error {
	return sys.Call(fault.Fstatat, func() error { return unix.Fstatat(at, name, st, unix.AT_SYMLINK_NOFOLLOW) })
}
