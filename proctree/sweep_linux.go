package proctree

import (
	"bytes"
	"slices"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"curfew/internal/sys"
	"curfew/outcome"
)

// sweepLost searches for processes that carry the mark, are in the given cgroup or in the
// one below it that the holder had made, and were started at or after Since.
//
// The mark alone is only a suspicion: at(1), service managers and build daemons
// pass environments on to strangers. So what carries it must also descend from
// no process that does not: up from it all carry the mark until one that orphans fall
// to (pid 1, or an ancestor of ours). Others are suspects. Identity is held by a pidfd,
// opened before the checks and used for the signal.
//
// A process that is executing something, or whose parent is just dying, cannot
// be judged yet; a scan that met one is followed by another.
func sweepLost(l Lost, until time.Time) (ended []outcome.Ended, suspects []outcome.Process) {
	w := newSweep(l)
	if w.fd < 0 {
		return nil, nil
	}
	return w.run(until)
}

// sweep is one Sweep.
type sweep struct {
	procfs
	Lost
	boot     time.Time
	earliest uint64
	self     int
	adopters map[int]bool
	chain    []stat // of judge

	mu        sync.Mutex // guards found and abandoned
	found     sweepFound
	abandoned bool // run has returned: nothing may be signalled any more
}

// sweepFound is what a sweep has found so far.
type sweepFound struct {
	killed   map[int]uint64 // the pids in ended, and when those were started
	ended    []outcome.Ended
	suspects map[int]outcome.Process // of this scan
}

func newSweep(l Lost) *sweep {
	w := &sweep{Lost: l, boot: bootTime(), self: unix.Getpid(), found: sweepFound{killed: map[int]uint64{}, suspects: map[int]outcome.Process{}}}
	if w.open(); w.fd < 0 {
		return w
	}
	// Start times are cut down to ticks, and boot was measured.
	w.earliest = uint64(max(l.Since.Sub(w.boot)/tick-2, 0))
	w.adopters = w.ancestors(w.self)
	return w
}

// run scans until the time is over. A process can make every reader of its environment wait
// for as long as it likes (with memory on a file system of its own). So that is done on a
// goroutine, which is abandoned when it does not end; it signals nothing then.
//
// A process of the tree can suspend this one until the time is over. So the time of
// a standstill does not count, and both scans that find nothing come after the last one.
func (w *sweep) run(until time.Time) (ended []outcome.Ended, suspects []outcome.Process) {
	now := time.Now()
	if least := now.Add(sweepLeast); until.Before(least) {
		until = least
	}
	w.begin(until)
	w.patience = maxStandstills
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer sys.RawClose(w.fd)
		for clean := 0; clean < 2 && !w.over(); {
			w.stoodStill = false
			if w.scanAll() && !w.over() && !w.stoodStill {
				clean++
			} else {
				clean = 0
			}
			time.Sleep(time.Millisecond)
		}
	}()
	w.await(done, until.Add(sweepLate))
	w.mu.Lock()
	defer w.mu.Unlock()
	w.abandoned = true
	for _, it := range w.found.suspects {
		suspects = append(suspects, it)
	}
	slices.SortFunc(suspects, func(a, b outcome.Process) int { return a.PID - b.PID })
	return slices.Clone(w.found.ended), suspects
}

const (
	// sweepLeast is the least that a sweep gets, also when its time was over before it
	// began: this process can have been suspended until then.
	sweepLeast = 200 * time.Millisecond
	// sweepLate is how long the goroutine may take to notice that the time is over.
	sweepLate = 100 * time.Millisecond
	// maxStandstills is how many standstills are not counted as time. A process that
	// suspends this one again and again does not hold it up for ever.
	maxStandstills = 3
)

// await waits for done until the given time, plus the time of standstills. A goroutine that
// waits for a read is no standstill: this one still gets its turns.
func (w *sweep) await(done <-chan struct{}, until time.Time) {
	const tick = 50 * time.Millisecond
	for standstills := 0; ; {
		before := time.Now()
		select {
		case <-done:
			return
		case <-time.After(min(tick, time.Until(until))):
		}
		gap := time.Since(before)
		if gap > standstill && standstills < maxStandstills {
			standstills++
			until = until.Add(gap)
		} else if !time.Now().Before(until) {
			return
		}
	}
}

// scanAll goes through all processes once and reports whether there was nothing to
// be done and nothing left open.
func (w *sweep) scanAll() (clean bool) {
	clean = true
	pids, _ := w.all()
	w.mu.Lock()
	clear(w.found.suspects)
	w.mu.Unlock()
	for _, pid := range pids {
		if w.over() {
			return false
		}
		if pid > 1 && pid != w.self && !w.treat(pid) {
			clean = false
		}
	}
	return clean
}

// treat judges one process and does what follows. It reports whether that was nothing.
func (w *sweep) treat(pid int) (clean bool) {
	var s stat
	if !w.stat(pid, &s) || s.start < w.earliest {
		return true
	}
	fd, err := pidfdOpen(pid)
	if err != nil {
		return true
	}
	defer sys.RawClose(fd)
	v := w.judge(pid, &s)
	switch {
	case w.over(): // what was seen can be long past
		return true
	case v == notOurs || !unreaped(fd): // then a later process was judged
		return true
	case v == ours:
		return !w.kill(fd, &s)
	case v == suspect:
		w.noteSuspect(&s)
		return true
	}
	return false
}

func (w *sweep) noteSuspect(s *stat) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.found.suspects) < maxListed {
		w.found.suspects[s.pid] = w.describe(s)
	}
}

// kill sends SIGKILL to the process of a pidfd, unless the sweep was abandoned, and notes
// it. It reports whether it did.
func (w *sweep) kill(fd int, s *stat) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.abandoned || signalPidfd(fd, syscall.SIGKILL) != nil {
		return false
	}
	f := &w.found
	if start, had := f.killed[s.pid]; (!had || start != s.start) && len(f.ended) < maxListed {
		f.killed[s.pid] = s.start
		f.ended = append(f.ended, outcome.Ended{Process: w.describe(s), LastSignal: int(syscall.SIGKILL)})
	}
	return true
}

func (w *sweep) describe(s *stat) outcome.Process {
	return outcome.Process{PID: s.pid, Start: startTime(w.boot, s.start), Name: s.name()}
}

// judge decides what pid is to the invocation, and leaves its stat in s.
func (w *sweep) judge(pid int, s *stat) verdict {
	if !w.stat(pid, s) || s.start < w.earliest || !w.sameCgroup(s) {
		return notOurs
	}
	if v := w.carries(s); v != ours {
		return v
	}
	w.chain = append(w.chain[:0], *s)
	v := w.climb()
	if v != undecided && !w.unchanged() {
		return undecided
	}
	return v
}

// climb goes up from the process in the chain as long as the mark is there, and adds each
// that it meets.
func (w *sweep) climb() verdict {
	for len(w.chain) < maxDepth && !w.over() {
		last := w.chain[len(w.chain)-1]
		if w.adopters[last.ppid] || w.struck(last.ppid) {
			return ours
		}
		var parent stat
		if !w.stat(last.ppid, &parent) {
			return undecided
		}
		v := w.carries(&parent)
		w.chain = append(w.chain, parent)
		switch v {
		case notOurs:
			return suspect
		case undecided:
			return undecided
		}
	}
	if w.over() {
		return undecided
	}
	return ours // all of so long a chain carry the mark
}

// unchanged reports whether each process in the chain is still what it was. If one is
// another process by now, or is on its way out, then those below it are about to fall to
// another process.
func (w *sweep) unchanged() bool {
	for i, was := range w.chain {
		var is stat
		if !w.stat(was.pid, &is) || is.start != was.start || is.ppid != was.ppid || i > 0 && is.dying() {
			return false
		}
	}
	return true
}

// struck reports whether pid has got its signal and is still there.
func (w *sweep) struck(pid int) bool {
	start, had := w.found.killed[pid] // which only this goroutine writes
	var s stat
	return had && w.stat(pid, &s) && s.start == start
}

// carries reports whether the process of a stat carries the mark: ours, notOurs or undecided.
//
// While a process is executing something its environment reads as empty, or
// stops in the middle. So that it is not there is only believed if what was read
// is as long as the kernel reports.
func (w *sweep) carries(of *stat) verdict {
	env, ok := w.whole(of, "/environ")
	if !ok {
		return notOurs // it is gone, or we have no right to know
	}
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

// envSize returns how long the environment of the process is, -1 if it has none at
// this moment. The stat of the thread that was asked is left in s.
func (p *procfs) envSize(of, s *stat) (size int64, known bool) {
	fd := p.openOf(unix.O_RDONLY, of.pid, of.thread, "/stat")
	if fd < 0 {
		return 0, false
	}
	b := p.buf[:sys.RawReadAll(fd, p.buf[:])]
	sys.RawClose(fd)
	if !parseStat(b, s) {
		return 0, false
	}
	// The fields 50 and 51 of proc_pid_stat(5); the first behind the name is 3.
	_, _, rest, _ := sys.StatFields(b)
	fields := bytes.Fields(rest)
	if len(fields) < 49 {
		return 0, true
	}
	from, ok1 := sys.ParseUint(fields[47])
	to, ok2 := sys.ParseUint(fields[48])
	if !ok1 || !ok2 || to == 0 || to < from {
		return -1, true
	}
	return int64(to - from), true
}

// sameCgroup reports whether the process is in the cgroup, or in the one that the lost
// holder had made in it for the tree, or below that.
func (w *sweep) sameCgroup(of *stat) bool {
	content, ok := w.whole(of, "/cgroup")
	return ok && (string(content) == w.Cgroup || string(withoutCgroup(content, w.TreeCgroup)) == w.Cgroup)
}

// withoutCgroup takes the group of that name, and what is below it, off the v2
// path in the content of a cgroup file.
func withoutCgroup(content []byte, group string) []byte {
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
