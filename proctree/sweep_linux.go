package proctree

import (
	"bytes"
	"slices"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"curfew/outcome"
)

// Sweep is for when those who held a tree are lost, and dead: their children have
// fallen to others. It sends SIGKILL to every process that carries the mark in
// its environment, was started at or after since, and is in the given cgroup
// (the content of /proc/PID/cgroup), or in the one below it that is called group, until two scans running find none or the time is over. What has wiped its environment is not found, so the result is no
// proof of anything.
//
// The mark alone is only a suspicion: at(1), service managers and build daemons
// hand environments on to strangers. So what carries it must also descend from
// nobody who does not: up from it all carry the mark until one that orphans fall
// to (pid 1, or an ancestor of ours). Others are returned as suspects and not
// signalled. Identity is held by a pidfd, opened before the checks and used
// for the signal.
//
// A process that is executing something, or whose parent is just dying, cannot
// be told yet; a scan that met one is followed by another.
func Sweep(l Lost, until time.Time) (ended []outcome.Ended, suspects []outcome.Process) {
	w := newSweep(l)
	if w.fd < 0 {
		return nil, nil
	}
	return w.sweep(until)
}

func newSweep(l Lost) *sweep {
	w := &sweep{Lost: l, boot: bootTime(), known: map[int]uint64{}, suspected: map[int]outcome.Process{}}
	if w.open(); w.fd < 0 {
		return w
	}
	// Start times are cut down to ticks, and boot was measured.
	w.earliest = uint64(max(l.Since.Sub(w.boot)/tick-2, 0))
	w.self = unix.Getpid()
	w.adopters = w.ancestors(w.self)
	return w
}

// sweep scans until the time is over. A process can make who reads its environment wait
// for as long as it likes (with memory on a file system of its own). So that is done on a
// goroutine, which is left to itself when it does not end; it signals nobody then.
func (w *sweep) sweep(until time.Time) (ended []outcome.Ended, suspects []outcome.Process) {
	w.begin(until)
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer closeFD(w.fd)
		for clean := 0; clean < 2 && !w.over(); {
			if w.scan() {
				clean++
			} else {
				clean = 0
			}
			time.Sleep(time.Millisecond)
		}
	}()
	select {
	case <-done:
	case <-time.After(time.Until(until) + sweepLate):
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, it := range w.suspected {
		suspects = append(suspects, it)
	}
	slices.SortFunc(suspects, func(a, b outcome.Process) int { return a.PID - b.PID })
	return slices.Clone(w.ended), suspects
}

// sweepLate is how long the goroutine may take to notice that the time is over.
const sweepLate = 100 * time.Millisecond

// tick is the unit of start times in /proc.
const tick = time.Second / 100

// sweep is one Sweep.
type sweep struct {
	procfs
	Lost
	boot     time.Time
	earliest uint64
	self     int
	adopters map[int]bool

	known map[int]uint64 // the pids in ended, and when those were started

	mu        sync.Mutex // guards what follows
	ended     []outcome.Ended
	suspected map[int]outcome.Process
	chain     []stat // of judge
}

// scan goes through all processes once and reports whether there was nothing to
// be done and nothing left open.
func (w *sweep) scan() (clean bool) {
	clean = true
	pids, _ := w.all()
	w.mu.Lock()
	clear(w.suspected)
	w.mu.Unlock()
	for _, pid := range pids {
		if w.over() {
			return false
		}
		var s stat
		if pid <= 1 || pid == w.self || !w.stat(pid, &s) || s.start < w.earliest {
			continue
		}
		fd, err := pidfdOpen(pid)
		if err != nil {
			continue
		}
		switch verdict := w.judge(pid, &s); {
		case w.over(): // what was seen can be long past
		case verdict == notOurs || !unreaped(fd): // then it was judged who came after it
		case verdict == undecided:
			clean = false
		case verdict == suspect:
			w.mu.Lock()
			if len(w.suspected) < maxListed {
				w.suspected[pid] = w.describe(&s)
			}
			w.mu.Unlock()
		case signalPidfd(fd, syscall.SIGKILL) == nil:
			clean = false
			w.mu.Lock()
			if start, had := w.known[pid]; (!had || start != s.start) && len(w.ended) < maxListed {
				w.known[pid] = s.start
				w.ended = append(w.ended, outcome.Ended{Process: w.describe(&s), LastSignal: int(syscall.SIGKILL)})
			}
			w.mu.Unlock()
		}
		closeFD(fd)
	}
	return clean
}

func (w *sweep) describe(s *stat) outcome.Process {
	return outcome.Process{PID: s.pid, Start: startTime(w.boot, s.start), Name: s.name()}
}

// judge says what pid is to the invocation, and leaves its stat in s. It goes up
// from pid as long as the mark is there.
func (w *sweep) judge(pid int, s *stat) verdict {
	if !w.stat(pid, s) || s.start < w.earliest || !w.sameCgroup(s) {
		return notOurs
	}
	if v := w.carries(s); v != ours {
		return v
	}
	chain := append(w.chain[:0], *s)
	v := undecided
	for len(chain) < maxDepth {
		if w.over() {
			return undecided
		}
		last := chain[len(chain)-1]
		if w.adopters[last.ppid] || w.struck(last.ppid) {
			v = ours
			break
		}
		var parent stat
		if !w.stat(last.ppid, &parent) {
			return undecided
		}
		if v = w.carries(&parent); v == notOurs {
			v = suspect
		}
		chain = append(chain, parent)
		if v != ours {
			break
		}
	}
	w.chain = chain
	// If one of them was somebody else meanwhile, or is on its way out, then
	// those below it are about to fall to somebody.
	for i, was := range chain {
		var is stat
		if !w.stat(was.pid, &is) || is.start != was.start || is.ppid != was.ppid || i > 0 && is.dying() {
			return undecided
		}
	}
	return v
}

// struck reports whether pid has got its signal and is still there.
func (w *sweep) struck(pid int) bool {
	start, had := w.known[pid]
	var s stat
	return had && w.stat(pid, &s) && s.start == start
}

// dying reports whether the process is on its way out, or dead.
func (s *stat) dying() bool { return s.state == 'Z' || s.state == 'X' || s.flags&exiting != 0 }

// carries reports whether the process of a stat carries the mark: ours, notOurs or undecided.
//
// While a process is executing something its environment reads as empty, or
// stops in the middle. So that it is not there is only believed if what was read
// is as long as the kernel says that it is.
func (w *sweep) carries(of *stat) verdict {
	fd := w.openOf(unix.O_RDONLY, of.pid, of.thread, "/environ")
	if fd < 0 {
		return notOurs // it is gone, or we have no right to know
	}
	env := readWhole(fd, w.buf[:])
	closeFD(fd)
	for entry := range bytes.SplitSeq(env, []byte{0}) {
		if string(entry) == w.Mark {
			return ours
		}
	}
	var s stat
	size, known := w.envSize(of, &s)
	switch {
	case !known || s.dying() || s.flags&kernelThread != 0:
		return notOurs // and will not do anything any more
	case size == int64(len(env)) || size > maxWhole:
		return notOurs
	}
	return undecided
}

// Flags of the kernel's that tell a process on its way out (PF_EXITING) and one
// of the kernel itself (PF_KTHREAD).
const (
	exiting      = 0x4
	kernelThread = 0x200000
)

// envSize returns how long the environment of the process is, -1 if it has none at
// this moment. The stat of the thread that was asked is left in s.
func (p *procfs) envSize(of, s *stat) (size int64, known bool) {
	fd := p.openOf(unix.O_RDONLY, of.pid, of.thread, "/stat")
	if fd < 0 {
		return 0, false
	}
	b := p.buf[:readAll(fd, p.buf[:])]
	closeFD(fd)
	if !parseStat(b, s) {
		return 0, false
	}
	// The fields 50 and 51 of proc_pid_stat(5); the first behind the name is 3.
	fields := bytes.Fields(b[bytes.LastIndexByte(b, ')')+1:])
	if len(fields) < 49 {
		return 0, true
	}
	from, ok1 := parseUint(fields[47])
	to, ok2 := parseUint(fields[48])
	if !ok1 || !ok2 || to == 0 || to < from {
		return -1, true
	}
	return int64(to - from), true
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

// all lists every pid there is. On an error some are missing.
func (p *procfs) all() (list []int, err error) {
	if p.fd < 0 {
		return nil, errNoProc
	}
	dir := p.openPath(append(p.path[:0], '.'), unix.O_RDONLY|unix.O_DIRECTORY)
	if dir < 0 {
		return nil, errNotWhole
	}
	defer closeFD(dir)
	for {
		n, err := unix.Getdents(dir, p.scan[:])
		if err == unix.EINTR {
			continue
		}
		if err != nil || n <= 0 {
			return list, err
		}
		for b := p.scan[:n]; len(b) > 0; {
			pid, ok, rest := nextDirent(b)
			b = rest
			if ok {
				list = append(list, pid)
			}
		}
	}
}

// maxWhole is how much of a file readWhole reads.
const maxWhole = 8 << 20

// readWhole reads fd, which can be of any size, through buf.
func readWhole(fd int, buf []byte) (all []byte) {
	for len(all) < maxWhole {
		n := readAll(fd, buf)
		if n == 0 {
			break
		}
		all = append(all, buf[:n]...)
	}
	return all
}

// sameCgroup reports whether the process is in the cgroup, or in the one that the lost
// holder had made in it for the tree, or below that.
func (w *sweep) sameCgroup(of *stat) bool {
	fd := w.openOf(unix.O_RDONLY, of.pid, of.thread, "/cgroup")
	if fd < 0 {
		return false
	}
	defer closeFD(fd)
	content := readWhole(fd, w.buf[:])
	return string(content) == w.Cgroup || string(withoutGroup(content, w.Group)) == w.Cgroup
}

// withoutGroup takes the group of that name, and what is below it, off the v2
// path in the content of a cgroup file.
func withoutGroup(content []byte, group string) []byte {
	const v2 = "0::/"
	at := bytes.Index(content, []byte("\n"+v2)) + 1
	if at == 0 && !bytes.HasPrefix(content, []byte(v2)) {
		return content
	}
	line := content[at:]
	if end := bytes.IndexByte(line, '\n'); end >= 0 {
		line = line[:end]
	}
	rest := content[at+len(line):]
	path := append(line[len(v2)-1:len(line):len(line)], '/') // a copy
	cut := bytes.Index(path, []byte("/"+group+"/"))
	if cut < 0 {
		return content
	}
	path = path[:max(cut, 1)]
	return slices.Concat(content[:at], []byte(v2[:len(v2)-1]), path, rest)
}
