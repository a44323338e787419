package proctree

import (
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"curfew/internal/sys"
)

// What leftovers do with their files is read from the links in /proc/PID/fd. A link is
// not followed for that: its target can be on a file system that hangs.

// fileName returns what the links in /proc call an open file of this process; "" if that
// cannot be read.
func fileName(fd int) string {
	var buf [4096]byte
	n, err := unix.Readlink("/proc/self/fd/"+strconv.Itoa(fd), buf[:])
	if err != nil {
		return ""
	}
	return string(buf[:n])
}

// holds reports whether m may still have output to write: see Tree.Holds. A process whose
// stdin is another pipe can be a filter which the leader wrote to; it ends by itself when
// it has read to the end.
func (p *procfs) holds(m Member, given []string) bool {
	dir := p.openOf(unix.O_RDONLY|unix.O_DIRECTORY, m.PID, m.thread, "/fd")
	if dir < 0 {
		return true
	}
	defer sys.RawClose(dir)
	if p.fed(dir, given) {
		return true
	}
	list := sys.List(dir, p.scan[:])
	for list.Next() {
		if p.over() {
			return true
		}
		if fd, ok := list.Number(); ok {
			switch name, err := p.link(dir, fd); {
			case err == unix.ENOENT: // it was closed meanwhile
			case err != nil || slices.Contains(given, string(name)):
				return true
			}
		}
	}
	// A filter can have been about to become one: it gets its stdin before it
	// gives up the output of its parent.
	return list.Err != nil || p.fed(dir, given)
}

// link reads the link of a descriptor in dir, a /proc/PID/fd. The name is valid until
// the next one is read.
func (p *procfs) link(dir, fd int) ([]byte, error) {
	path := append(strconv.AppendInt(p.path[:0], int64(fd), 10), 0)
	n, err := sys.RawReadlinkat(dir, path, p.buf[:])
	return p.buf[:n], err
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

// isFed reports the same of a process.
func (p *procfs) isFed(pid int, given []string) bool {
	var s stat
	if !p.stat(pid, &s) {
		return false
	}
	dir := p.openOf(unix.O_RDONLY|unix.O_DIRECTORY, pid, s.thread, "/fd")
	if dir < 0 {
		return false
	}
	defer sys.RawClose(dir)
	return p.fed(dir, given)
}
