package proctree

import (
	"errors"
	"math"
	"strconv"

	"golang.org/x/sys/unix"

	"curfew/internal/sys"
)

// procfs reads /proc through a descriptor that was opened before any CLI ran:
// whatever is mounted over /proc later does not matter. After open it allocates nothing,
// but for what it returns.
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

var (
	errNoProc   = errors.New("proctree: read the process table: /proc is not mounted, or is that of another pid namespace")
	errNotWhole = errors.New("proctree: read the process table: a process is there and cannot be read")
)

// open opens /proc and checks that it is ours: in the /proc of another pid
// namespace every number is a stranger's.
func (p *procfs) open() {
	p.fd = -1
	fd, err := sys.Open("/proc", unix.O_PATH|unix.O_DIRECTORY, 0)
	if err != nil {
		return
	}
	var fs unix.Statfs_t
	n, err := unix.Readlinkat(fd, "self", p.buf[:])
	if unix.Fstatfs(fd, &fs) != nil || fs.Type != unix.PROC_SUPER_MAGIC || err != nil || string(p.buf[:n]) != strconv.Itoa(unix.Getpid()) {
		sys.Close(fd)
		return
	}
	p.fd = fd
	children := p.openPath(append(p.path[:0], "thread-self/children"...), unix.O_RDONLY)
	if p.noChildren = children < 0; !p.noChildren {
		sys.Close(children)
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
	return p.openPath(append(b, tail...), flags)
}

// openOf opens a file of pid, or of that thread of it if it is not 0.
func (p *procfs) openOf(flags, pid, thread int, name string) int {
	if thread == 0 {
		return p.openat(flags, pid, name, -1, "")
	}
	return p.openat(flags, pid, "/task/", thread, name)
}

// openAll opens the directory of all processes.
func (p *procfs) openAll() int {
	return p.openPath(append(p.path[:0], '.'), unix.O_RDONLY|unix.O_DIRECTORY)
}

func (p *procfs) openTask(pid int) int {
	return p.openat(unix.O_RDONLY|unix.O_DIRECTORY, pid, "/task", -1, "")
}

func (p *procfs) openPath(b []byte, flags int) int {
	if p.fd < 0 {
		return -1
	}
	return sys.RawOpenat(p.fd, append(b, 0), flags)
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

// Flags of a process in its stat.
const (
	// exiting is the kernel's PF_EXITING: it is on its way out.
	exiting = 0x4
	// forkNoExec is the kernel's PF_FORKNOEXEC: forked, and has not executed
	// anything since. It can be read of a zombie too.
	forkNoExec = 0x40
	// kernelThread is PF_KTHREAD.
	kernelThread = 0x200000
)

func (s *stat) name() string { return string(s.comm[:s.commN]) }

func (s *stat) dead() bool { return s.state == 'Z' || s.state == 'X' }

// dying reports whether the process is on its way out, or dead.
func (s *stat) dying() bool { return s.dead() || s.flags&exiting != 0 }

// stat reads /proc/PID/stat; false if it cannot be read.
func (p *procfs) stat(pid int, s *stat) bool {
	if !p.statFile(p.openat(unix.O_RDONLY, pid, "/stat", -1, ""), s) {
		return false
	}
	if s.state == 'Z' && s.threads > 1 {
		p.findThread(s)
	}
	return true
}

// threadStat reads the stat of one thread.
func (p *procfs) threadStat(pid, tid int, s *stat) bool {
	return p.statFile(p.openat(unix.O_RDONLY, pid, "/task/", tid, "/stat"), s)
}

// statFile reads and closes a stat file, if there is one.
func (p *procfs) statFile(fd int, s *stat) bool {
	if fd < 0 {
		return false
	}
	n := sys.RawReadAll(fd, p.buf[:])
	sys.RawClose(fd)
	return parseStat(p.buf[:n], s)
}

// parseStat parses the content of /proc/PID/stat: proc_pid_stat(5).
func parseStat(b []byte, s *stat) bool {
	pid, name, rest, ok := sys.StatFields(b)
	if !ok {
		return false
	}
	*s = stat{pid: pid}
	s.commN = copy(s.comm[:], name)
	var word []byte
	for field := 3; field <= 22; field++ {
		word, rest = sys.NextField(rest)
		if !s.parse(field, word) {
			return false
		}
	}
	return true
}

// parse parses one field of a stat. It reports false if one that is needed is not there.
func (s *stat) parse(field int, word []byte) bool {
	n, ok := sys.ParseUint(word)
	switch field {
	case 3:
		if len(word) != 1 {
			return false
		}
		s.state = word[0]
	case 4:
		s.ppid = int(n)
		return ok
	case 6:
		s.session = int(n)
	case 9:
		s.flags = n
		return ok
	case 20:
		s.threads = int(n)
	case 22:
		s.start = n
		return ok
	}
	return true
}

// maxSought is how many threads are looked at for one that lives.
const maxSought = 64

// findThread looks for a thread that lives, of a process whose main thread has exited.
func (p *procfs) findThread(s *stat) {
	dir := p.openTask(s.pid)
	if dir < 0 {
		return
	}
	defer sys.RawClose(dir)
	list := sys.RawList(dir, p.dir[:])
	for range maxSought {
		if !list.Next() {
			return
		}
		var t stat
		tid, ok := list.Number()
		if ok && p.threadStat(s.pid, tid, &t) && !t.dead() {
			s.thread, s.state, s.flags = tid, t.state, s.flags&^exiting|t.flags&exiting
			return
		}
	}
}

// dead reports whether pid is a zombie, all its threads included. A tracer can
// keep its parent from learning that.
func (p *procfs) dead(pid int) bool {
	dir := p.openTask(pid)
	if dir < 0 {
		return false
	}
	defer sys.RawClose(dir)
	some := false
	list := sys.RawList(dir, p.scan[:])
	for list.Next() {
		var s stat
		tid, ok := list.Number()
		if !ok || !p.threadStat(pid, tid, &s) {
			continue // that thread is gone
		}
		if !s.dead() {
			return false
		}
		some = true
	}
	return some && list.Err == nil
}

// suspended reports whether pid is stopped, by a signal or by a tracer.
func (p *procfs) suspended(pid int) bool {
	var s stat
	return p.stat(pid, &s) && (s.state == 'T' || s.state == 't')
}

// children appends the pids of the children of pid to list, and returns how
// many there are now; more than fit are left out. Children hang on the thread
// that forked them, so every thread is asked.
//
// A list can lack one while members of it are being reaped. For our own
// children that is excluded, since only the calling goroutine reaps; below
// them it costs another round.
func (p *procfs) children(pid int, list []int32) (n int) {
	if p.noChildren {
		return p.childrenByScan(pid, list)
	}
	task := p.openTask(pid)
	if task < 0 {
		return 0
	}
	for threads := sys.RawList(task, p.dir[:]); threads.Next() && n < len(list) && !p.over(); {
		if tid, ok := threads.Number(); ok {
			n = p.taskChildren(pid, tid, list, n)
		}
	}
	sys.RawClose(task)
	return n
}

// taskChildren appends the children of one thread to list[n:].
func (p *procfs) taskChildren(pid, tid int, list []int32, n int) int {
	fd := p.openat(unix.O_RDONLY, pid, "/task/", tid, "/children")
	if fd < 0 {
		return n
	}
	n = p.readChildren(fd, list, n)
	sys.RawClose(fd)
	return n
}

// childrenByScan is children where there are no children files.
func (p *procfs) childrenByScan(pid int, list []int32) (n int) {
	dir := p.openAll()
	if dir < 0 {
		return 0
	}
	var s stat
	for all := sys.RawList(dir, p.scan[:]); all.Next() && n < len(list) && !p.over(); {
		if other, ok := all.Number(); ok && p.stat(other, &s) && s.ppid == pid {
			list[n] = int32(other)
			n++
		}
	}
	sys.RawClose(dir)
	return n
}

// noPID stands in a list for what cannot be the pid of a child: no process has
// it. It is not left out, since a list that is shorter could be taken as proof.
const noPID = math.MaxInt32

// readChildren appends what the children file fd has, from its beginning, to
// list[n:].
func (p *procfs) readChildren(fd int, list []int32, n int) int {
	num, digits := 0, 0
	take := func() {
		if digits > 0 && n < len(list) {
			if num <= 1 {
				num = noPID
			}
			list[n] = int32(num)
			n++
		}
		num, digits = 0, 0
	}
	for off := int64(0); n < len(list); {
		got := sys.RawPread(fd, p.buf[:], off)
		if got == 0 {
			break
		}
		off += int64(got)
		for _, c := range p.buf[:got] {
			if c >= '0' && c <= '9' {
				num, digits = min(num*10+int(c-'0'), noPID), digits+1
			} else {
				take()
			}
		}
	}
	take()
	return n
}

// all lists every pid there is. On an error some are missing.
func (p *procfs) all() (list []int, err error) {
	if p.fd < 0 {
		return nil, errNoProc
	}
	dir := p.openAll()
	if dir < 0 {
		return nil, errNotWhole
	}
	defer sys.RawClose(dir)
	entries := sys.List(dir, p.scan[:])
	for entries.Next() {
		if pid, ok := entries.Number(); ok {
			list = append(list, pid)
		}
	}
	return list, entries.Err
}

// ancestors returns pid, its ancestors, and 1: those that orphans can fall to.
func (p *procfs) ancestors(pid int) map[int]bool {
	set := map[int]bool{1: true}
	var s stat
	for pid > 1 && !set[pid] && p.stat(pid, &s) {
		set[pid] = true
		pid = s.ppid
	}
	return set
}

// maxWhole is how much of a file readWhole reads.
const maxWhole = 8 << 20

// whole reads a file of a process, of any size.
func (p *procfs) whole(of *stat, name string) ([]byte, bool) {
	fd := p.openOf(unix.O_RDONLY, of.pid, of.thread, name)
	if fd < 0 {
		return nil, false
	}
	defer sys.RawClose(fd)
	return readWhole(fd, p.buf[:]), true
}

// readWhole reads fd, which can be of any size, through buf.
func readWhole(fd int, buf []byte) (all []byte) {
	for len(all) < maxWhole {
		n := sys.RawReadAll(fd, buf)
		if n == 0 {
			break
		}
		all = append(all, buf[:n]...)
	}
	return all
}
