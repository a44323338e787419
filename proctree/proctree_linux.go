package proctree

// How it is done on Linux: the process is a child subreaper, so that every orphan of the
// tree becomes its child: PR_SET_CHILD_SUBREAPER, prctl(2). To end the tree it strikes its
// own children; theirs fall to it and are struck next. The tree is empty when the kernel
// answers ECHILD. Where this falls short: a process that enters another pid namespace
// leaves its orphans to the init of that namespace.
//
// This file is in the order of events: open, start, collect and reap, terminate, strike,
// and the walk below our own children.

import (
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"curfew/internal/fault"
	"curfew/internal/sys"
	"curfew/outcome"
)

// subreaper is a Tree and a SiblingTree.
type subreaper struct {
	proc      procfs
	threads   threads
	kin       kin
	leader    leader
	siblings  siblings
	cgroup    cgroup
	backlog   backlog
	signalled signalled
	usage     outcome.Usage
	scratch   stat
}

// leader is the leader that was started last.
type leader struct {
	pid   int      // 0 if there is none, or it was reaped
	fd    int      // its pidfd while it is not reaped, -1 if there is none
	given []string // of its Spec
}

func (l *leader) closeFD() {
	if l.fd >= 0 {
		sys.RawClose(l.fd)
	}
	l.fd = -1
}

// threads are the threads that may block in the kernel. The second thread forks and
// executes, which can hang on a file lease, FUSE or NFS, and awaits the next exit. It is
// the leader's parent thread, so that PR_SET_PDEATHSIG holds as long as the process lives.
// Where there are siblings a third thread awaits exits, because the next start must not
// wait for one.
type threads struct {
	start
	pidfd    int  // of what was started, -1 if there is none; written before done
	inCgroup bool // it was started in the cgroup; written before done

	orders, news int // event descriptors: to the second thread, and from it
	exits        int // event descriptor to the third thread; 0 if there is none
	ordered      atomic.Uint32
	childWaits   atomic.Bool // some child is waitable, or there is none
	awaiting     bool        // a thread awaits an exit
	forking      int         // the id of the second thread
	root         int         // descriptor of "/"
}

const (
	orderStart = 1 << iota
	orderAwait
)

func openTree(o Options) (Tree, error) { return openSubreaper(o, false) }

// OpenWithSiblings prepares this process to be the parent of siblings, and to hold what
// they leave behind. The same holds for it as for Open.
func OpenWithSiblings(o Options) (SiblingTree, error) { return openSubreaper(o, true) }

// openSubreaper makes this process a child subreaper, and starts its other threads.
func openSubreaper(o Options, siblings bool) (*subreaper, error) {
	t := &subreaper{leader: leader{fd: -1}, siblings: map[int]int{}}
	t.signalled = newSignalled(&t.proc)
	if err := becomeSubreaper(); err != nil {
		return nil, os.NewSyscallError("prctl PR_SET_CHILD_SUBREAPER", err)
	}
	// We are no child of ours. Where seccomp forbids the question, no process could be
	// shown to be ours, so that none could be signalled or listed.
	if _, errno := peek(unix.Getpid()); errno != unix.ECHILD {
		return nil, os.NewSyscallError("waitid", errno)
	}
	t.proc.open()
	t.proc.interrupted = o.Interrupted
	t.openCgroups(o.ID)
	if err := t.threads.open(); err != nil {
		return nil, err
	}
	resetIgnored()
	ready := make(chan struct{})
	setSIGCHLD(sys.SigDefault) // the Go runtime has a handler, which would run for each child that dies
	go t.second(ready)
	<-ready
	if siblings {
		// With siblings alive the next start must not wait for the next exit.
		var err error
		if t.threads.exits, err = eventfd(0); err != nil {
			return nil, err
		}
		go t.threads.third()
	}
	t.kin.open(&t.proc, &t.threads)
	return t, nil
}

func becomeSubreaper() error {
	return sys.Call(fault.Prctl, func() error { return unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) })
}

func (t *threads) open() (err error) {
	t.pidfd = -1
	if t.root, err = sys.Open("/", unix.O_PATH|unix.O_DIRECTORY, 0); err != nil {
		return os.NewSyscallError("open /", err)
	}
	if t.orders, err = eventfd(0); err != nil {
		return err
	}
	t.news, err = eventfd(unix.EFD_NONBLOCK)
	return err
}

func eventfd(flags int) (fd int, err error) {
	err = sys.Call(fault.Eventfd, func() (err error) {
		fd, err = unix.Eventfd(0, flags|unix.EFD_CLOEXEC)
		return err
	})
	return fd, os.NewSyscallError("eventfd", err)
}

// resetIgnored gives every signal that is ignored its default disposition, so
// that the leader does not inherit what our parent ignored. The Go runtime has
// handlers for most; it leaves the job-control signals as they were.
func resetIgnored() {
	for sig := syscall.Signal(1); sig <= 64; sig++ {
		if sys.Ignored(sig) {
			sys.SetDisposition(sig, sys.SigDefault)
		}
	}
}

// setSIGCHLD sets the disposition of SIGCHLD: with sys.SigDefault a child that exits
// becomes a zombie, with sys.SigIgnore the kernel reaps it.
func setSIGCHLD(handler uintptr) {
	kernelReaps = handler == sys.SigIgnore
	sys.SetDisposition(syscall.SIGCHLD, handler)
}

func (t *subreaper) FD() int            { return t.threads.news }
func (t *subreaper) LeaderFD() int      { return t.leader.fd }
func (t *subreaper) Next() time.Time    { return t.backlog.next }
func (t *subreaper) ForkingThread() int { return t.threads.forking }

// second is the second thread.
func (t *subreaper) second(ready chan<- struct{}) {
	runtime.LockOSThread()
	t.threads.forking = becomeForking()
	close(ready)
	for {
		awaitOrder(t.threads.orders)
		ordered := t.threads.ordered.Swap(0)
		if ordered&orderStart != 0 {
			t.carryOut()
			sys.RawNotify(t.threads.news)
		}
		if ordered&orderAwait != 0 {
			t.threads.awaitExit(unix.WEXITED)
		}
	}
}

// third is the third thread.
func (t *threads) third() {
	runtime.LockOSThread()
	sys.ShortenSlice(0)
	for {
		awaitOrder(t.exits)
		t.awaitExit(unix.WEXITED | unix.WSTOPPED)
	}
}

// becomeForking makes sure that what this thread forks has no signal blocked, and returns
// the thread's id.
func becomeForking() (tid int) {
	var none uint64
	unix.RawSyscall6(unix.SYS_RT_SIGPROCMASK, unix.SIG_SETMASK, uintptr(unsafe.Pointer(&none)), 0, 8, 0, 0)
	return unix.Gettid()
}

// awaitOrder blocks until an event descriptor is readable.
func awaitOrder(fd int) {
	var count [8]byte
	if _, err := unix.Read(fd, count[:]); err != nil && err != unix.EINTR {
		panic("proctree: read an event descriptor: " + err.Error())
	}
}

// awaitExit blocks until some child has exited, or what else the options
// select, and leaves it unreaped; or until there is no child.
func (t *threads) awaitExit(options uintptr) {
	for {
		var info siginfo
		errno := fault.At(fault.Waitid)
		if errno == 0 {
			_, _, errno = unix.Syscall6(unix.SYS_WAITID, unix.P_ALL, 0, uintptr(unsafe.Pointer(&info)),
				options|unix.WNOWAIT|unix.WALL, 0, 0)
		}
		if errno != unix.EINTR {
			break
		}
	}
	t.childWaits.Store(true)
	sys.RawNotify(t.news)
}

func (t *threads) order(what uint32) {
	t.ordered.Or(what)
	sys.RawNotify(t.orders)
}

// await orders a notice of the next exit.
func (t *subreaper) await() {
	if t.threads.awaiting || t.threads.underWay {
		return
	}
	t.threads.awaiting = true
	if t.threads.exits == 0 {
		t.threads.order(orderAwait)
		return
	}
	t.resumeSiblings()
	sys.RawNotify(t.threads.exits)
}

func (t *subreaper) Start(spec *Spec) {
	t.leader.closeFD() // of one that was never executed
	t.reapAgain()      // what is executed inherits that SIGCHLD is ignored
	t.threads.begin(spec)
	t.threads.inCgroup = false
	t.cgroup.used = t.cgroup.dir >= 0 && !spec.Sibling && !spec.NoCgroup
	if !spec.Sibling {
		t.leader.pid, t.leader.given = 0, spec.Given
		t.usage = outcome.Usage{}
		t.Forget()
	}
	if t.threads.exits != 0 {
		t.threads.order(orderStart)
		return
	}
	t.threads.awaiting = true // the second thread goes on to await by itself
	t.threads.order(orderStart | orderAwait)
}

func (t *subreaper) Forget() {
	t.signalled.reset()
	t.backlog.killing, t.backlog.few = false, false
}

// carryOut carries out the start on the second thread.
func (t *subreaper) carryOut() {
	t.threads.pidfd = -1
	attr := syscall.ProcAttr{Sys: &syscall.SysProcAttr{
		Setsid:      true,
		Setctty:     t.threads.spec.Terminal,
		Pdeathsig:   syscall.SIGKILL,
		PidFD:       &t.threads.pidfd,
		UseCgroupFD: t.cgroup.used,
		CgroupFD:    t.cgroup.dir,
	}}
	if t.threads.spec.Sibling {
		attr.Sys.Pdeathsig = syscall.SIGCONT // one that is suspended has to see to its tree
	}
	s := &t.threads
	s.pid, s.err = s.execute(&attr, s.root, func() bool {
		// It may be due to the cgroup: a kernel that cannot start anything in one,
		// a cgroup that may have no processes, or one that was removed.
		if !attr.Sys.UseCgroupFD || t.cgroup.proven && t.cgroup.exists() {
			return false
		}
		attr.Sys.UseCgroupFD = false
		return true
	})
	s.inCgroup = s.err == nil && attr.Sys.UseCgroupFD
	s.done.Store(true)
}

func (t *subreaper) Collect(killing bool) (ev Event) {
	var count [8]byte
	_, _, _ = unix.RawSyscall(unix.SYS_READ, uintptr(t.threads.news), uintptr(unsafe.Pointer(&count)), 8)
	if t.threads.finish() {
		t.finishStart(&ev)
	}
	if t.threads.childWaits.Swap(false) {
		t.threads.awaiting = false
	}
	if t.threads.underWay || killing {
		return ev
	}
	switch n := t.reap(&ev, reapAtOnce); {
	case ev.Empty:
		t.reapAgain()
	case n == reapAtOnce:
		t.behind(&ev)
		sys.RawNotify(t.threads.news) // there may be more, and the caller wants a turn
	case !t.caughtUp():
		t.await()
	}
	return ev
}

// reapAtOnce bounds how long one Collect takes: a storm of processes that exit
// must not keep the supervisor from hearing its caller. Among 100 chains that
// fork and exit it took 400 ms for 256, against 0.3 ms alone.
const reapAtOnce = 64

func (t *subreaper) finishStart(ev *Event) {
	s := &t.threads
	t.kin.first = s.pid
	ev.StartDone = true
	switch {
	case s.err != nil:
		ev.StartErr = s.err
	case s.struck && t.proc.neverExecuted(s.pid):
		// It is dead or has SIGKILL pending, so it never will.
		ev.StartErr = errNeverExecuted()
	case s.spec.Sibling:
		ev.PID = s.pid
		t.siblings[s.pid] = s.pidfd
		s.pidfd = -1
	default:
		ev.PID = s.pid
		t.leader.pid = s.pid
	}
	t.leader.fd = s.pidfd
	switch {
	case s.inCgroup:
		t.cgroup.proven = true
	case t.cgroup.used && s.err == nil:
		t.dropCgroup()
	}
}

// StartProgress looks at the children that the second thread has forked so far.
func (t *subreaper) StartProgress() StartProgress {
	if !t.threads.underWay {
		return StartPending
	}
	// The leader is a child of the thread that forks, which is listed last.
	own := t.kin.list()
	ruledOut := t.threads.struck && len(own) > 0 && len(own) <= startChildren
	for _, pid := range own[max(len(own)-startChildren, 0):] {
		read := t.proc.stat(int(pid), &t.scratch)
		if read && t.scratch.flags&forkNoExec == 0 {
			return StartExecuted
		}
		ruledOut = ruledOut && read
	}
	if ruledOut {
		return StartRuledOut
	}
	return StartPending
}

// startChildren bounds the look at what a start has brought about so far.
const startChildren = 1 << 10

func (t *subreaper) Reap() (ev Event) {
	if t.threads.underWay {
		return ev
	}
	ev.Died = t.reap(&ev, maxArena)
	switch {
	case ev.Empty:
		t.reapAgain()
	case t.backlog.kernelReaps || t.backlog.dying:
		ev.Silent = true
	default:
		t.await()
	}
	return ev
}

// reap reaps at most limit children and notes their exits.
func (t *subreaper) reap(ev *Event, limit int) (n int) {
	defer t.seeVanished(ev)
	for n < limit {
		var status syscall.WaitStatus
		var used syscall.Rusage
		pid, err := sys.Wait4(-1, &status, syscall.WNOHANG|unix.WALL, &used)
		switch {
		case err == syscall.ECHILD:
			ev.Empty, ev.Proof = true, outcome.ProofNoChildren
			return n
		case err != nil:
			panic("proctree: wait4: " + err.Error())
		case pid == 0:
			return n
		case status.Exited() || status.Signaled(): // a stop, which a tracer gets to see, is no exit
			n++
			t.reaped(ev, pid, status, &used)
		}
	}
	return n
}

func (t *subreaper) reaped(ev *Event, pid int, status syscall.WaitStatus, used *syscall.Rusage) {
	t.signalled.table.forget(pid)
	if t.siblings.has(pid) {
		t.siblings.gone(pid, ev)
		return
	}
	addUsage(&t.usage, used)
	if pid == t.leader.pid {
		t.leaderGone()
		ev.Exit = exitFrom(status)
	}
}

func (t *subreaper) leaderGone() {
	t.leader.pid = 0
	t.leader.closeFD()
}

func (t *subreaper) Signal(sig syscall.Signal) {
	if t.leader.pid != 0 {
		_ = signalChild(t.leader.pid, sig) // one that has exited got what it was sent
	}
}

// Terminate takes longer the larger the tree is, and the more else the machine has to do.
func (t *subreaper) Terminate(sig syscall.Signal, to Recipients, until time.Time) (reached int, more bool) {
	if to == ToLeader {
		if t.leader.pid == 0 || !t.atChild(t.leader.pid, func(m *target) bool { return t.politely(m, sig) }) {
			return 0, false
		}
		return 1, false
	}
	t.proc.begin(until)
	// A member whose parent ends while we look for it becomes our child and is
	// met in the next pass.
	for range 3 {
		n := t.walk(func(m *target) bool {
			return m.pid != t.leader.pid && (to != ToFeeders || !t.proc.isFed(m.pid, t.leader.given)) && t.politely(m, sig)
		})
		if n == 0 {
			break
		}
		reached += n
	}
	return reached, !t.proc.end() && (until.IsZero() || time.Now().Before(until))
}

// politely sends sig to m if it has had no signal yet.
func (t *subreaper) politely(m *target, sig syscall.Signal) bool {
	e := t.signalled.entry(m)
	if e != nil && e.signal != 0 && m.pid != t.leader.pid {
		return false
	}
	err := m.send(sig)
	if err == nil {
		_ = m.send(syscall.SIGCONT) // if it is gone already, so much the better
	}
	t.signalled.note(e, sig, err)
	return err == nil
}

// Strike strikes the cgroup, if there is one, and then the children.
func (t *subreaper) Strike(below bool) Struck {
	if t.threads.underWay && !t.threads.spec.Sibling {
		t.threads.strike()
	}
	struck := t.strikeCgroup()
	t.proc.begin(time.Time{})
	if below {
		struck += t.walk(t.kill)
	} else {
		struck += t.strikeChildren()
	}
	whole := t.proc.end()
	if t.whileKilling(t.kin.own); t.backlog.kernelReaps {
		return Struck{} // nothing is kept: reap, and come again
	}
	return Struck{Fresh: struck, More: !whole}
}

func (t *subreaper) strikeChildren() (struck int) {
	for i, pid := range t.kin.list() {
		if i >= inAnyCase && t.proc.over() {
			break
		}
		had := !t.backlog.kernelReaps && t.signalled.table.doomed(int(pid)) // a pass is made for each few that have died
		if !had && !t.siblings.has(int(pid)) && t.atChild(int(pid), t.kill) {
			struck++
		}
	}
	return struck
}

// kill sends SIGKILL to m, and reports whether it is the first.
func (t *subreaper) kill(m *target) bool {
	e := t.signalled.entry(m)
	err := m.send(syscall.SIGKILL)
	if e != nil && err == nil && m.own {
		e.doomed = true
	}
	return t.signalled.note(e, syscall.SIGKILL, err)
}

// atChild visits pid if it is a living child of ours, and reports what visit returns.
func (t *subreaper) atChild(pid int, visit func(*target) bool) bool {
	m := &t.kin.visited
	var err error
	if *m, err = holdChild(pid, &t.kin.spare); err != nil {
		if err == unix.ESRCH {
			t.signalled.table.doom(pid)
		}
		return false
	}
	did := visit(m)
	t.kin.release(m)
	return did
}

// inAnyCase is how many are visited although the look is over, so that each look
// achieves something.
const inAnyCase = 512

// walk visits our own children and everything below them; parents come before their
// children. It counts the visits that returned true. All are found before the first
// is visited: one that dies of its visit would take its children out of reach.
//
// What does not fit (descriptors run out, or there are too many) is left out,
// and so is what would be found, or visited as any but one of the first, after the
// end of the look.
func (t *subreaper) walk(visit func(*target) bool) (count int) {
	found := t.kin.find(t.siblings)
	for i := range found {
		m := &found[i]
		switch over := i >= inAnyCase && t.proc.over(); {
		case over:
		case m.own && t.atChild(m.pid, visit), !m.own && visit(m):
			count++
		}
		t.kin.release(m)
	}
	return count
}

// kin finds our own children, and what is below them.
type kin struct {
	proc   *procfs
	self   int
	pidMax int
	first  int   // the pid of what was started last
	lists  []int // descriptors of the children files of the two threads that have children
	root   int   // descriptor of "/"
	spare  int   // a descriptor to be given up when there is none left

	arena   []int32
	own     int // how many children the last list had
	found   []target
	visited target
	frames  []frame
	scratch stat
}

// frame is one level of the walk below our own children.
type frame struct {
	pid, pidfd int
	lo, hi     int // its children in the arena that are still to do
}

// maxArena is how many children one pass can see; a tree with more is struck
// in several passes. maxFound and maxDepth bound the walk below; what is beyond
// falls to us when what is above has died.
const (
	maxArena = 1 << 16
	maxFound = 1 << 14
	maxDepth = 256
)

// maxPID is the highest limit that a kernel can have, for when the real one
// cannot be read. Asking for all of them takes seconds, for longGap of them some
// 10 ms.
const (
	maxPID  = 1 << 22
	longGap = 1 << 15
)

func (k *kin) open(p *procfs, t *threads) {
	*k = kin{
		proc: p, self: unix.Getpid(), pidMax: maxPID, root: t.root, spare: dup(t.root),
		arena: make([]int32, maxArena), found: make([]target, 0, maxFound), frames: make([]frame, 0, maxDepth),
	}
	// Also in the /proc of another pid namespace.
	if b, err := os.ReadFile("/proc/sys/kernel/pid_max"); err == nil {
		if n, err := strconv.Atoi(strings.TrimSpace(string(b))); err == nil && n > 2 && n <= maxPID {
			k.pidMax = n
		}
	}
	for _, tid := range []int{k.self, t.forking} {
		if fd := p.openat(unix.O_RDONLY, k.self, "/task/", tid, "/children"); fd >= 0 {
			k.lists = append(k.lists, fd)
		}
	}
}

// dup duplicates a descriptor; -1 if that fails.
func dup(fd int) int {
	fd, err := sys.Dup(fd)
	if err != nil {
		return -1
	}
	return fd
}

// list lists our own children, zombies included, at the start of the
// arena. Children hang on the thread that forked them and orphans on the first
// one, so the files of these two name all; they are kept open, because a CLI
// can take away our right to open any. Should they be empty although the
// kernel knows of a child, every thread is asked, and without a usable /proc the
// kernel is, for every pid there can be.
func (k *kin) list() []int32 {
	k.own = k.listed()
	return k.arena[:k.own]
}

func (k *kin) listed() int {
	for range 2 { // a child can be forked between the first look and the question
		if n := k.read(); n > 0 || childless() {
			return n
		}
	}
	if n := k.proc.children(k.self, k.arena); n > 0 {
		return n
	}
	return k.askForAll()
}

// read reads the lists.
func (k *kin) read() (n int) {
	for _, fd := range k.lists {
		n = k.proc.readChildren(fd, k.arena, n)
	}
	return n
}

// askForAll asks the kernel for every pid. Numbers are given out upwards and start again
// at the end, so members have those that follow the leader's. Once some were found a long
// gap ends the pass; the next one begins where it is sure to find what is left.
func (k *kin) askForAll() (n int) {
	gap := 0
	base := max(k.first, k.self)
	for i := range k.pidMax {
		pid := 2 + (base-2+i)%(k.pidMax-1)
		if n == len(k.arena) || n > 0 && gap > longGap || k.proc.over() {
			break
		}
		if stateOf(pid) == childNone {
			gap++
			continue
		}
		gap = 0
		k.arena[n] = int32(pid)
		n++
	}
	return n
}

// find finds our own children but the siblings, and everything below them. Each that is
// found has to be released.
func (k *kin) find(but siblings) []target {
	k.found = k.found[:0]
	own := k.list()
	for _, pid := range own {
		if len(k.found) == cap(k.found) || k.proc.over() {
			break
		}
		if !but.has(int(pid)) {
			k.findBelow(int(pid), len(own))
		}
	}
	return k.found
}

// findBelow adds own, if it is a living child of ours, and what is below it to k.found. The
// arena from base on is free.
//
// Below our children nothing holds a pid for us, so a number proves nothing. A
// process is accepted as the child of P only if a pidfd was opened for it
// first, its stat then names P as its parent, and P, by its own pidfd, still had its
// pid after that: then the number P stood for the same process all the time.
func (k *kin) findBelow(own, base int) {
	m, err := holdChild(own, &k.spare)
	if err != nil {
		return // not ours; or dead, and its children are our own
	}
	k.found = append(k.found, target{pid: own, pidfd: -1, own: true})
	defer k.release(&m)
	if m.pidfd < 0 {
		return
	}
	k.frames = k.frames[:0]
	k.push(own, m.pidfd, base)
	for len(k.frames) > 0 {
		f := &k.frames[len(k.frames)-1]
		if f.lo == f.hi {
			k.frames = k.frames[:len(k.frames)-1]
			continue
		}
		pid := int(k.arena[f.lo])
		f.lo++
		if len(k.found) == cap(k.found) || k.proc.over() {
			return
		}
		pidfd, err := k.accept(pid, f)
		switch err {
		case nil:
			k.found = append(k.found, target{pid: pid, pidfd: pidfd})
			if len(k.frames) < cap(k.frames) {
				k.push(pid, pidfd, f.hi)
			}
		case unix.EMFILE, unix.ENFILE, unix.ENOMEM, unix.ENOSYS:
			return
		}
	}
}

// push lists the children of a process in the arena from base on.
func (k *kin) push(pid, pidfd, base int) {
	k.frames = append(k.frames, frame{pid: pid, pidfd: pidfd, lo: base, hi: base + k.proc.children(pid, k.arena[base:])})
}

// accept returns a pidfd for pid if it is a child of the process that f is of.
func (k *kin) accept(pid int, f *frame) (pidfd int, err error) {
	if pidfd, err = pidfdOpen(pid); err != nil {
		return -1, err
	}
	if !k.proc.stat(pid, &k.scratch) || k.scratch.ppid != f.pid || !unreaped(f.pidfd) {
		sys.RawClose(pidfd)
		return -1, errNotOurs
	}
	return pidfd, nil
}

// release ends the hold on m.
func (k *kin) release(m *target) {
	if m.pidfd >= 0 {
		sys.RawClose(m.pidfd)
	}
	if k.spare < 0 {
		k.spare = dup(k.root)
	}
}

// Disown ends being a subreaper: orphans fall to other processes from now on.
func (t *subreaper) Disown() {
	_ = unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0) // it cannot fail
	disown()
}
