package proctree

import (
	"slices"
	"strconv"
	"strings"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// What leftovers do with their files is read from the links in /proc/PID/fd. A link is
// not followed for that: what it leads to can be on a file system that hangs.

// FileName returns what the links in /proc call an open file of this process; "" if that
// cannot be read.
func FileName(fd int) string {
	var buf [4096]byte
	n, err := unix.Readlink("/proc/self/fd/"+strconv.Itoa(fd), buf[:])
	if err != nil {
		return ""
	}
	return string(buf[:n])
}

// Bounds of one look at who holds a file.
const (
	holdsMembers = 512
	holdsFor     = 50 * time.Millisecond
)

// Holds reports whether a live member may still have output to write: it has one of the
// Given files open, or its stdin is another pipe, FIFO or socket. A process of the second
// kind can be a filter which the leader wrote to; it ends by itself when it has read to
// the end. A member whose files cannot be read counts, and so does what cannot be looked
// at before until, quickly, or before the ear is needed.
func (t *subreaper) Holds(until time.Time) bool {
	limit := time.Now().Add(holdsFor)
	if until.Before(limit) {
		limit = until
	}
	t.proc.begin(limit)
	defer t.proc.end()
	members := t.members(holdsMembers)
	return t.proc.cut || len(members) == holdsMembers ||
		slices.ContainsFunc(members, func(m Member) bool { return t.proc.holds(m, t.given) })
}

func (p *procfs) holds(m Member, given []string) bool {
	dir := p.openOf(unix.O_RDONLY|unix.O_DIRECTORY, m.PID, m.thread, "/fd")
	if dir < 0 {
		return true
	}
	defer closeFD(dir)
	if p.fed(dir, given) {
		return true
	}
	for {
		n, err := unix.Getdents(dir, p.scan[:])
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return true
		}
		if n <= 0 {
			// A filter can have been about to become one: it gets its stdin before it
			// gives up the output of its parent.
			return p.fed(dir, given)
		}
		for b := p.scan[:n]; len(b) > 0; {
			fd, ok, rest := nextDirent(b)
			b = rest
			if p.over() {
				return true
			}
			if !ok {
				continue
			}
			switch name, err := p.link(dir, fd); {
			case err == unix.ENOENT: // it was closed meanwhile
			case err != nil || slices.Contains(given, string(name)):
				return true
			}
		}
	}
}

// link reads the link of a descriptor in dir, a /proc/PID/fd. The name is valid until
// the next one is read.
func (p *procfs) link(dir, fd int) ([]byte, error) {
	b := append(strconv.AppendInt(p.path[:0], int64(fd), 10), 0)
	for {
		n, _, errno := unix.RawSyscall6(unix.SYS_READLINKAT, uintptr(dir), uintptr(unsafe.Pointer(&b[0])), uintptr(unsafe.Pointer(&p.buf[0])), uintptr(len(p.buf)), 0, 0)
		switch errno {
		case 0:
			return p.buf[:n], nil
		case unix.EINTR:
			continue
		}
		return nil, errno
	}
}

// fed reports whether the stdin in dir, a /proc/PID/fd, is a pipe, a FIFO or a socket, and
// was not given.
func (p *procfs) fed(dir int, given []string) bool {
	name, err := p.link(dir, 0)
	if err != nil {
		return err != unix.ENOENT
	}
	switch s := string(name); {
	case slices.Contains(given, s):
		return false
	case strings.HasPrefix(s, "pipe:["), strings.HasPrefix(s, "socket:["):
		return true
	case !strings.HasPrefix(s, "/"), strings.HasPrefix(s, "/dev/"):
		return false
	}
	var st unix.Statx_t
	return unix.Statx(dir, "0", unix.AT_STATX_DONT_SYNC, unix.STATX_TYPE, &st) == nil && st.Mode&unix.S_IFMT == unix.S_IFIFO
}

// isFed does that for a process.
func (p *procfs) isFed(pid int, given []string) bool {
	var s stat
	if !p.stat(pid, &s) {
		return false
	}
	dir := p.openOf(unix.O_RDONLY|unix.O_DIRECTORY, pid, s.thread, "/fd")
	if dir < 0 {
		return false
	}
	defer closeFD(dir)
	return p.fed(dir, given)
}
