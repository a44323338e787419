package proctree

import (
	"bytes"
	"encoding/binary"
	"math"
	"strconv"
	"unsafe"

	"golang.org/x/sys/unix"

	"curfew/internal/fault"
)

// procfs reads /proc through a descriptor that was opened before any CLI ran:
// whatever is mounted over /proc later does not matter. It allocates nothing
// after openProc.
type procfs struct {
	fd int // of /proc, -1 if there is none that can be used
	// noChildren: the kernel has no children files (CONFIG_PROC_CHILDREN), so
	// children are found by reading every stat.
	noChildren bool

	look

	path [64]byte
	buf  [4096]byte
	dir  [8192]byte
	scan [8192]byte
}

// stat is what we need of /proc/PID/stat.
type stat struct {
	pid   int
	comm  [16]byte
	commN int
	state byte
	ppid  int
	flags uint64
	start uint64 // clock ticks since boot

	// 0 if they cannot be read.
	session, threads int

	// thread is 0, or a thread that lives where the main thread has exited. Most files
	// of the main thread are empty then; state and exiting are that thread's.
	thread int
}

func (s *stat) name() string { return string(s.comm[:s.commN]) }

// forkNoExec is the kernel's PF_FORKNOEXEC: forked, and has not executed
// anything since. It can be read of a zombie too.
const forkNoExec = 0x40

// openProc opens /proc and checks that it is ours: in the /proc of another pid
// namespace every number is a stranger's.
func (p *procfs) open() {
	p.fd = -1
	fd, err := OpenFile("/proc", unix.O_PATH|unix.O_DIRECTORY)
	if err != nil {
		return
	}
	var fs unix.Statfs_t
	if unix.Fstatfs(fd, &fs) != nil || fs.Type != unix.PROC_SUPER_MAGIC {
		unix.Close(fd)
		return
	}
	n, err := unix.Readlinkat(fd, "self", p.buf[:])
	if err != nil || string(p.buf[:n]) != strconv.Itoa(unix.Getpid()) {
		unix.Close(fd)
		return
	}
	p.fd = fd
	if f, err := unix.Openat(fd, "thread-self/children", unix.O_RDONLY|unix.O_CLOEXEC, 0); err == nil {
		unix.Close(f)
	} else {
		p.noChildren = true
	}
}

// openat opens a file below /proc whose name is the given parts joined; -1 if
// that fails. Numbers and strings alternate: "12/stat" is (12, "/stat").
func (p *procfs) openat(flags int, pid int, mid string, tid int, tail string) int {
	b := strconv.AppendInt(p.path[:0], int64(pid), 10)
	b = append(b, mid...)
	if tid >= 0 {
		b = strconv.AppendInt(b, int64(tid), 10)
	}
	b = append(b, tail...)
	return p.openPath(b, flags)
}

func (p *procfs) openPath(b []byte, flags int) int {
	if p.fd < 0 {
		return -1
	}
	b = append(b, 0)
	for {
		fd, errno := uintptr(0), fault.At(fault.Openat)
		if errno == 0 {
			fd, _, errno = unix.RawSyscall6(unix.SYS_OPENAT, uintptr(p.fd), uintptr(unsafe.Pointer(&b[0])), uintptr(flags|unix.O_CLOEXEC), 0, 0, 0)
		}
		if errno == unix.EINTR {
			continue
		}
		if errno != 0 {
			return -1
		}
		return int(fd)
	}
}

// read fills buf from fd and returns how much there was; a short read is
// continued.
func readAll(fd int, buf []byte) int {
	n := 0
	for n < len(buf) {
		m, size, errno := uintptr(0), fault.Size(fault.Read, len(buf)-n), fault.At(fault.Read)
		if errno == 0 {
			m, _, errno = unix.RawSyscall(unix.SYS_READ, uintptr(fd), uintptr(unsafe.Pointer(&buf[n])), uintptr(size))
		}
		if errno == unix.EINTR {
			continue
		}
		if errno != 0 || m == 0 {
			break
		}
		n += int(m)
	}
	return n
}

func closeFD(fd int) { _, _, _ = unix.RawSyscall(unix.SYS_CLOSE, uintptr(fd), 0, 0) }

// dead reports whether pid is a zombie, all its threads included. Who traces it can
// keep its parent from learning that.
func (p *procfs) dead(pid int) bool {
	dir := p.openat(unix.O_RDONLY|unix.O_DIRECTORY, pid, "/task", -1, "")
	if dir < 0 {
		return false
	}
	defer closeFD(dir)
	some := false
	for {
		n, err := unix.Getdents(dir, p.scan[:])
		if err == unix.EINTR {
			continue
		}
		if err != nil || n <= 0 {
			return some && err == nil
		}
		for b := p.scan[:n]; len(b) > 0; {
			tid, ok, rest := nextDirent(b)
			b = rest
			if !ok {
				continue
			}
			var s stat
			if !p.threadStat(pid, tid, &s) {
				continue // that thread is gone
			}
			if s.state != 'Z' && s.state != 'X' {
				return false
			}
			some = true
		}
	}
}

// stat reads /proc/PID/stat; false if it cannot be read.
func (p *procfs) stat(pid int, s *stat) bool {
	fd := p.openat(unix.O_RDONLY, pid, "/stat", -1, "")
	if fd < 0 {
		return false
	}
	n := readAll(fd, p.buf[:])
	closeFD(fd)
	if !parseStat(p.buf[:n], s) {
		return false
	}
	if s.state == 'Z' && s.threads > 1 {
		p.findThread(s)
	}
	return true
}

// maxSought is how many threads are looked at for one that lives.
const maxSought = 64

// findThread looks for a thread that lives, of a process whose main thread has exited.
func (p *procfs) findThread(s *stat) {
	dir := p.openat(unix.O_RDONLY|unix.O_DIRECTORY, s.pid, "/task", -1, "")
	if dir < 0 {
		return
	}
	defer closeFD(dir)
	n, err := unix.Getdents(dir, p.dir[:])
	for err == unix.EINTR {
		n, err = unix.Getdents(dir, p.dir[:])
	}
	b := p.dir[:max(n, 0)]
	for range maxSought {
		tid, ok, rest := nextDirent(b)
		if b = rest; b == nil {
			return
		}
		var t stat
		if !ok || !p.threadStat(s.pid, tid, &t) || t.state == 'Z' || t.state == 'X' {
			continue
		}
		s.thread, s.state, s.flags = tid, t.state, s.flags&^exiting|t.flags&exiting
		return
	}
}

// threadStat reads the stat of one thread.
func (p *procfs) threadStat(pid, tid int, s *stat) bool {
	fd := p.openat(unix.O_RDONLY, pid, "/task/", tid, "/stat")
	if fd < 0 {
		return false
	}
	defer closeFD(fd)
	return parseStat(p.buf[:readAll(fd, p.buf[:])], s)
}

// openOf opens a file of pid, or of that thread of it if it is not 0.
func (p *procfs) openOf(flags, pid, thread int, name string) int {
	if thread == 0 {
		return p.openat(flags, pid, name, -1, "")
	}
	return p.openat(flags, pid, "/task/", thread, name)
}

// parseStat parses the content of /proc/PID/stat. The name stands in
// parentheses and may contain anything, also parentheses and newlines, so it
// ends at the last one.
func parseStat(b []byte, s *stat) bool {
	open, end := bytes.IndexByte(b, '('), bytes.LastIndexByte(b, ')')
	if open < 1 || end < open {
		return false
	}
	pid, ok := parseUint(bytes.TrimRight(b[:open], " "))
	if !ok {
		return false
	}
	s.pid = int(pid)
	s.commN = copy(s.comm[:], b[open+1:end])
	s.session, s.threads, s.thread = 0, 0, 0
	rest := b[end+1:]
	// Field 3 is the state, 4 the parent, 6 the session, 9 the flags, 20 the number
	// of threads, 22 the start.
	field := 2
	seen := 0
	for len(rest) > 0 {
		rest = bytes.TrimLeft(rest, " ")
		i := bytes.IndexByte(rest, ' ')
		if i < 0 {
			i = len(rest)
		}
		word := rest[:i]
		rest = rest[i:]
		field++
		switch field {
		case 3:
			if len(word) != 1 {
				return false
			}
			s.state = word[0]
			seen++
		case 6, 20:
			if n, ok := parseUint(word); ok && field == 6 {
				s.session = int(n)
			} else if ok {
				s.threads = int(n)
			}
		case 4, 9, 22:
			n, ok := parseUint(word)
			if !ok {
				return false
			}
			switch field {
			case 4:
				s.ppid = int(n)
			case 9:
				s.flags = n
			case 22:
				s.start = n
			}
			seen++
		}
		if field == 22 {
			break
		}
	}
	return seen == 4
}

// parseUint parses digits and nothing else. What has more of them than any int
// is no number of the kernel's that we need.
func parseUint(b []byte) (uint64, bool) {
	if len(b) == 0 || len(b) > 18 {
		return 0, false
	}
	var n uint64
	for _, c := range b {
		if c < '0' || c > '9' {
			return 0, false
		}
		n = n*10 + uint64(c-'0')
	}
	return n, true
}

// children appends the pids of the children of pid to list, and returns how
// many there are now; more than fit are left out. Children hang on the thread
// that forked them, so every thread is asked.
//
// A list can miss someone while members of it are being reaped. For our own
// children that is excluded, since only the calling goroutine reaps; below
// them it costs another round.
func (p *procfs) children(pid int, list []int32) int {
	if p.fd < 0 {
		return 0
	}
	if p.noChildren {
		return p.childrenByScan(pid, list)
	}
	task := p.openat(unix.O_RDONLY|unix.O_DIRECTORY, pid, "/task", -1, "")
	if task < 0 {
		return 0
	}
	n := 0
	for {
		m, errno := uintptr(0), fault.At(fault.Getdents)
		if errno == 0 {
			m, _, errno = unix.RawSyscall(unix.SYS_GETDENTS64, uintptr(task), uintptr(unsafe.Pointer(&p.dir[0])), uintptr(len(p.dir)))
		}
		if errno == unix.EINTR {
			continue
		}
		if errno != 0 || m == 0 || p.over() {
			break
		}
		for b := p.dir[:m]; len(b) > 0; {
			tid, ok, rest := nextDirent(b)
			b = rest
			if ok && n < len(list) && !p.over() {
				n = p.taskChildren(pid, tid, list, n)
			}
		}
	}
	closeFD(task)
	return n
}

// taskChildren appends the children of one thread to list[n:].
func (p *procfs) taskChildren(pid, tid int, list []int32, n int) int {
	fd := p.openat(unix.O_RDONLY, pid, "/task/", tid, "/children")
	if fd < 0 {
		return n
	}
	n = p.readChildren(fd, list, n)
	closeFD(fd)
	return n
}

// nobody stands in a list for what cannot be the pid of a child: no process has
// it. It is not left out, since a list that is shorter could be taken as proof.
const nobody = math.MaxInt32

// readChildren appends what the children file fd has, from its beginning, to
// list[n:].
func (p *procfs) readChildren(fd int, list []int32, n int) int {
	num, digits := 0, 0
	take := func() {
		if digits > 0 && n < len(list) {
			if num <= 1 {
				num = nobody
			}
			list[n] = int32(num)
			n++
		}
		num, digits = 0, 0
	}
	for off := int64(0); ; {
		m, size, errno := uintptr(0), fault.Size(fault.Pread, len(p.buf)), fault.At(fault.Pread)
		if errno == 0 {
			m, _, errno = unix.RawSyscall6(unix.SYS_PREAD64, uintptr(fd), uintptr(unsafe.Pointer(&p.buf[0])), uintptr(size), uintptr(off), 0, 0)
		}
		if errno == unix.EINTR {
			continue
		}
		if errno != 0 || m == 0 || n == len(list) {
			take()
			return n
		}
		off += int64(m)
		for _, c := range p.buf[:m] {
			if c >= '0' && c <= '9' {
				num, digits = min(num*10+int(c-'0'), nobody), digits+1
			} else {
				take()
			}
		}
	}
}

// childrenByScan does the same where there are no children files.
func (p *procfs) childrenByScan(pid int, list []int32) int {
	dir := p.openPath(append(p.path[:0], '.'), unix.O_RDONLY|unix.O_DIRECTORY)
	if dir < 0 {
		return 0
	}
	n := 0
	var s stat
	for {
		m, errno := uintptr(0), fault.At(fault.Getdents)
		if errno == 0 {
			m, _, errno = unix.RawSyscall(unix.SYS_GETDENTS64, uintptr(dir), uintptr(unsafe.Pointer(&p.scan[0])), uintptr(len(p.scan)))
		}
		if errno == unix.EINTR {
			continue
		}
		if errno != 0 || m == 0 || p.over() {
			break
		}
		for b := p.scan[:m]; len(b) > 0; {
			other, ok, rest := nextDirent(b)
			b = rest
			if ok && n < len(list) && !p.over() && p.stat(other, &s) && s.ppid == pid {
				list[n] = int32(other)
				n++
			}
		}
	}
	closeFD(dir)
	return n
}

// nextDirent takes one entry off what getdents64 returned: its name as a
// number, if it is one, and what follows.
func nextDirent(b []byte) (num int, ok bool, rest []byte) {
	name, _, _, rest := direntOf(b)
	v, ok := parseUint(name)
	return int(v), ok, rest
}

// direntOf takes one entry off what getdents64 returned, and returns its name, its
// kind, the place behind it, and what follows.
func direntOf(b []byte) (name []byte, kind byte, next int64, rest []byte) {
	const header = 19 // ino 8, off 8, reclen 2, type 1
	if len(b) < header {
		return nil, 0, 0, nil
	}
	n := int(b[16]) | int(b[17])<<8
	if n < header || n > len(b) {
		return nil, 0, 0, nil
	}
	name = b[header:n]
	if i := bytes.IndexByte(name, 0); i >= 0 {
		name = name[:i]
	}
	return name, b[18], int64(binary.NativeEndian.Uint64(b[8:])), b[n:]
}
