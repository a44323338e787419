package proctree

// How it is done on Linux: the process is a child subreaper, so every orphan of
// the tree becomes its child (prctl(2), PR_SET_CHILD_SUBREAPER). To end the
// tree it strikes its own children; theirs fall to it and are struck next. It
// is empty when the kernel answers ECHILD. Where it falls short: a process that
// enters another pid namespace leaves its orphans to that namespace's init.

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
	"curfew/outcome"
)

// Tree is the leader that this process started and everything that descends
// from it. All methods are for the one goroutine that called Open, which stays
// locked to its thread. A Tree serves one leader after another: Start may be
// called again once it was Empty.
type subreaper struct {
	proc   procfs
	self   int
	pidMax int

	// The second thread does what may block in the kernel: it forks and
	// executes (which can hang on a file lease, FUSE or NFS) and it awaits the
	// next exit. It is the leader's parent thread, so PR_SET_PDEATHSIG holds as
	// long as the process lives.
	orders, news int // event descriptors: to that thread, and from it
	watch        int // event descriptor to the third thread, where there are siblings; else 0
	wanted       atomic.Uint32
	startDone    atomic.Bool
	childWaits   atomic.Bool // some child is waitable, or there is none
	cancelStart  atomic.Bool
	spec         *Spec // for that thread from the order to startDone
	startedPID   int   // written before startDone
	grouped      bool  // it was started in the group; written before startDone
	first        int   // the pid of the leader started last
	startErr     *StartError
	startedFD    int  // its pidfd, -1 if there is none; written before startDone
	leaderFD     int  // the same, while the leader is not reaped
	root         int  // descriptor of "/"
	spare        int  // a descriptor to be given up when there is none left
	pidfs        bool // the inode of a pidfd tells the process (Linux 6.9)
	forkingTID   int
	lists        []int // descriptors of the children files of the two threads
	startKilled  bool
	awaiting     bool // the second thread awaits an exit
	starting     bool
	leader       int      // its pid; 0 if there is none, or it was reaped
	given        []string // of its Spec
	usage        outcome.Usage

	backlog  backlog
	group    group
	siblings map[int]int // children that are not of the tree: pid and pidfd, -1 if there is none
	struck   pidTable
	ended    []record
	more     int
	arena    []int32
	seen     int // how many children the last strike or walk found
	found    []target
	visited  target // a child of ours, by atChild
	frames   []frame
	scratch  stat
}

// record is what the report will say of a process we had to end.
type record struct {
	pid    int
	start  uint64
	name   [16]byte
	nameN  int
	signal syscall.Signal
}

// frame is one level of the walk below our own children.
type frame struct {
	pid, pidfd int
	lo, hi     int // its children in the arena that are still to do
}

const (
	orderStart = 1 << iota
	orderAwait
)

// maxArena is how many children one pass can see; a tree with more is struck
// in several passes. maxFound and maxDepth bound the walk below; what is beyond
// falls to us when what is above has died.
const (
	maxArena = 1 << 16
	maxFound = 1 << 14
	maxDepth = 256
)

// inAnyCase is how many a walk visits although the look is over, so that each has
// come to something.
const inAnyCase = 512

// Open prepares this process to hold a tree: it becomes a child subreaper and
// starts a second thread. The calling goroutine must be locked to the main
// thread, which never ends. The process must have no children.
func Open(o Options) (Tree, error) { return openTree(o) }

// OpenWithSiblings prepares this process in the same way to be the parent of siblings,
// and to hold what they leave behind.
func OpenWithSiblings(o Options) (SiblingTree, error) { return openWithSiblings(o) }

func openTree(o Options) (*subreaper, error)         { return open(o, false) }
func openWithSiblings(o Options) (*subreaper, error) { return open(o, true) }

func open(o Options, siblings bool) (*subreaper, error) {
	t := &subreaper{
		self:     unix.Getpid(),
		siblings: map[int]int{},

		startedFD: -1,
		leaderFD:  -1,
		ended:     make([]record, 0, maxListed),
		arena:     make([]int32, maxArena),
		found:     make([]target, 0, maxFound),
		frames:    make([]frame, 0, maxDepth),
	}
	if err := becomeSubreaper(); err != nil {
		return nil, os.NewSyscallError("prctl PR_SET_CHILD_SUBREAPER", err)
	}
	// We are no child of ours. Where seccomp forbids to ask, no process could be shown to
	// be ours, so that none could be signalled or listed.
	if _, errno := peek(t.self); errno != unix.ECHILD {
		return nil, os.NewSyscallError("waitid", errno)
	}
	t.proc.open()
	t.proc.ear = o.Interrupted
	t.openGroups(o.ID)
	t.pidMax = maxPID
	// Also in the /proc of another pid namespace.
	if b, err := os.ReadFile("/proc/sys/kernel/pid_max"); err == nil {
		if n, err := strconv.Atoi(strings.TrimSpace(string(b))); err == nil && n > 2 && n <= maxPID {
			t.pidMax = n
		}
	}
	var err error
	if t.root, err = OpenFile("/", unix.O_PATH|unix.O_DIRECTORY); err != nil {
		return nil, os.NewSyscallError("open /", err)
	}
	t.spare = dup(t.root)
	t.pidfs = pidfdsTell()
	if t.orders, err = eventfd(0); err != nil {
		return nil, os.NewSyscallError("eventfd", err)
	}
	if t.news, err = eventfd(unix.EFD_NONBLOCK); err != nil {
		return nil, os.NewSyscallError("eventfd", err)
	}
	resetIgnored()
	ready := make(chan struct{})
	setSIGCHLD(sigDfl) // the Go runtime has a handler, which would run for each child that dies
	go t.second(ready)
	<-ready
	if siblings {
		// With siblings alive the next start must not wait for the next exit.
		if t.watch, err = eventfd(0); err != nil {
			return nil, os.NewSyscallError("eventfd", err)
		}
		go t.third()
	}
	for _, tid := range []int{t.self, t.forkingTID} {
		if fd := t.proc.openat(unix.O_RDONLY, t.self, "/task/", tid, "/children"); fd >= 0 {
			t.lists = append(t.lists, fd)
		}
	}
	return t, nil
}

func becomeSubreaper() error {
	if errno := fault.At(fault.Prctl); errno != 0 {
		return errno
	}
	return unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
}

// dup duplicates a descriptor; -1 if that fails.
func dup(fd int) int {
	fd, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return -1
	}
	return fd
}

// pidfdsTell reports whether each process has an inode of its own, which its pidfds
// show. Before, all have the same.
func pidfdsTell() bool {
	fd, err := pidfdOpen(unix.Getpid())
	if err != nil {
		return false
	}
	defer closeFD(fd)
	var fs unix.Statfs_t
	return unix.Fstatfs(fd, &fs) == nil && fs.Type == unix.PID_FS_MAGIC
}

func eventfd(flags int) (int, error) {
	if errno := fault.At(fault.Eventfd); errno != 0 {
		return -1, errno
	}
	return unix.Eventfd(0, flags|unix.EFD_CLOEXEC)
}

// resetIgnored gives every signal that is ignored its default disposition, so
// that the leader does not inherit what our parent ignored. The Go runtime has
// handlers for most; it leaves the job-control signals as they were.
func resetIgnored() {
	for sig := 1; sig <= 64; sig++ {
		var old, dfl sigaction
		_, _, errno := unix.RawSyscall6(unix.SYS_RT_SIGACTION, uintptr(sig), 0, uintptr(unsafe.Pointer(&old)), 8, 0, 0)
		if errno == 0 && old.handler == sigIgn {
			unix.RawSyscall6(unix.SYS_RT_SIGACTION, uintptr(sig), uintptr(unsafe.Pointer(&dfl)), 0, 8, 0, 0)
		}
	}
}

// sigaction is the kernel's struct sigaction.
type sigaction struct {
	handler, flags, restorer uintptr
	mask                     uint64
}

const (
	sigDfl = 0
	sigIgn = 1
)

// setSIGCHLD sets the disposition of SIGCHLD: with sigDfl a child that exits becomes a
// zombie, with sigIgn the kernel reaps it.
func setSIGCHLD(handler uintptr) {
	act := sigaction{handler: handler}
	kernelReaps = handler == sigIgn
	unix.RawSyscall6(unix.SYS_RT_SIGACTION, uintptr(unix.SIGCHLD), uintptr(unsafe.Pointer(&act)), 0, 8, 0, 0)
}

// FD is readable when Collect has something to tell.
func (t *subreaper) FD() int { return t.news }

// LeaderFD is readable when the leader has exited, which Collect then tells; -1 if
// there is none. FD tells the same, one hand-over between threads later.
func (t *subreaper) LeaderFD() int { return t.leaderFD }

func (t *subreaper) closeLeaderFD() {
	if t.leaderFD >= 0 {
		closeFD(t.leaderFD)
	}
	t.leaderFD = -1
}

// Start begins to start the leader; Collect tells when that is done. spec must
// not be changed until then.
func (t *subreaper) Start(spec *Spec) {
	t.closeLeaderFD() // of one that was never executed
	t.reapAgain()     // what is executed inherits that SIGCHLD is ignored
	t.spec, t.startErr, t.startedPID = spec, nil, 0
	t.starting, t.startKilled = true, false
	t.cancelStart.Store(false)
	t.grouped = false
	t.group.used = t.group.dir >= 0 && !spec.Sibling && !spec.NoGroup
	if !spec.Sibling {
		t.leader, t.given = 0, spec.Given
		t.usage = outcome.Usage{}
		t.Forget()
	}
	disposition(syscall.SIGHUP, spec.IgnoreHangup)
	disposition(syscall.SIGINT, spec.IgnoreInterrupt)
	if t.watch != 0 {
		t.order(orderStart)
		return
	}
	t.awaiting = true // the second thread goes on to await by itself
	t.order(orderStart | orderAwait)
}

// Forget drops what is known of processes that were signalled.
func (t *subreaper) Forget() {
	t.struck.reset()
	t.ended, t.more = t.ended[:0], 0
	t.backlog.killing, t.backlog.few = false, false
}

func (t *subreaper) order(what uint32) {
	t.wanted.Or(what)
	wakeup(t.orders)
}

func wakeup(fd int) {
	one := [8]byte{1}
	for {
		errno := fault.At(fault.Write)
		if errno == 0 {
			_, _, errno = unix.RawSyscall(unix.SYS_WRITE, uintptr(fd), uintptr(unsafe.Pointer(&one[0])), 8)
		}
		if errno != unix.EINTR {
			return
		}
	}
}

// second is the second thread.
func (t *subreaper) second(ready chan<- struct{}) {
	runtime.LockOSThread()
	t.forkingTID = becomeForking()
	close(ready)
	var buf [8]byte
	for {
		if _, err := unix.Read(t.orders, buf[:]); err != nil && err != unix.EINTR {
			panic("proctree: read an event descriptor: " + err.Error())
		}
		wanted := t.wanted.Swap(0)
		if wanted&orderStart != 0 {
			t.startedPID, t.startErr = t.start(t.spec)
			t.startDone.Store(true)
			wakeup(t.news)
		}
		if wanted&orderAwait != 0 {
			awaitAnyChild(unix.WEXITED)
			t.childWaits.Store(true)
			wakeup(t.news)
		}
	}
}

// becomeForking has what this thread forks have no signal blocked, and returns the
// thread.
func becomeForking() (tid int) {
	var none uint64
	unix.RawSyscall6(unix.SYS_RT_SIGPROCMASK, unix.SIG_SETMASK, uintptr(unsafe.Pointer(&none)), 0, 8, 0, 0)
	return unix.Gettid()
}

// Pause lets d pass, or less, without the help of the Go runtime, which may be unable
// to start a thread.
func Pause(d time.Duration) {
	ts := unix.NsecToTimespec(int64(d))
	_ = unix.Nanosleep(&ts, nil)
}

// third is the third thread, where there are siblings.
func (t *subreaper) third() {
	runtime.LockOSThread()
	ShortenSlice(0)
	var buf [8]byte
	for {
		if _, err := unix.Read(t.watch, buf[:]); err != nil && err != unix.EINTR {
			panic("proctree: read an event descriptor: " + err.Error())
		}
		awaitAnyChild(unix.WEXITED | unix.WSTOPPED)
		t.childWaits.Store(true)
		wakeup(t.news)
	}
}

// awaitAnyChild blocks until some child has exited (or what else the options
// say), and leaves it unreaped, or until there is none.
func awaitAnyChild(what uintptr) {
	for {
		var info siginfo
		errno := fault.At(fault.Waitid)
		if errno == 0 {
			_, _, errno = unix.Syscall6(unix.SYS_WAITID, unix.P_ALL, 0, uintptr(unsafe.Pointer(&info)),
				what|unix.WNOWAIT|unix.WALL, 0, 0)
		}
		if errno != unix.EINTR {
			return
		}
	}
}

// start executes spec on the second thread.
func (t *subreaper) start(spec *Spec) (int, *StartError) {
	if err := fchdir(spec.Dir); err != nil {
		return 0, &StartError{Op: "chdir", Err: err}
	}
	defer unix.Fchdir(t.root)
	attr := syscall.ProcAttr{Env: spec.Env, Sys: &syscall.SysProcAttr{
		Setsid:  true,
		Setctty: spec.Terminal,
	}}
	t.startedFD = -1
	if spec.Sibling {
		attr.Sys.Pdeathsig = syscall.SIGCONT // one that is suspended has to see to its tree
	} else {
		attr.Sys.Pdeathsig = syscall.SIGKILL
	}
	attr.Sys.PidFD = &t.startedFD
	for _, fd := range spec.Files {
		attr.Files = append(attr.Files, uintptr(fd))
	}
	attr.Sys.UseCgroupFD, attr.Sys.CgroupFD = t.group.used, t.group.dir
	pid, err := execute(spec, &attr, &t.cancelStart, func() bool {
		// It may be the group's fault: a kernel that cannot start anything in one,
		// a group that may have no processes, or that somebody has removed.
		if !attr.Sys.UseCgroupFD || t.group.proven && t.group.there() {
			return false
		}
		attr.Sys.UseCgroupFD = false
		return true
	})
	t.grouped = err == nil && attr.Sys.UseCgroupFD
	return pid, err
}

// Collect takes the news: whether the start is done, whether the leader exited,
// whether the tree is empty. It reaps what has exited, unless the tree is being
// killed: then Strike and Reap decide when. It does not block.
func (t *subreaper) Collect(killing bool) Event {
	var buf [8]byte
	_, _, _ = unix.RawSyscall(unix.SYS_READ, uintptr(t.news), uintptr(unsafe.Pointer(&buf[0])), 8)
	var ev Event
	if t.startDone.Swap(false) {
		t.finishStart(&ev)
	}
	if t.childWaits.Swap(false) {
		t.awaiting = false
	}
	if t.starting || killing {
		return ev
	}
	switch n := t.reap(&ev, reapAtOnce); {
	case ev.Empty:
		t.reapAgain()
	case n == reapAtOnce:
		t.behind(&ev)
		wakeup(t.news) // there may be more, and the caller wants a turn
	default:
		if !t.caughtUp() {
			t.await()
		}
	}
	return ev
}

// reapAtOnce bounds how long one Collect takes: a storm of processes that exit
// must not keep the supervisor from hearing its caller. Among 100 chains that
// fork and exit it took 400 ms for 256, against 0.3 ms alone.
const reapAtOnce = 64

// finishStart looks at what became of the start.
func (t *subreaper) finishStart(ev *Event) {
	t.starting = false
	t.first = t.startedPID
	ev.StartDone = true
	switch {
	case t.startErr != nil:
		ev.StartErr = t.startErr
	case t.startKilled && t.proc.neverExecuted(t.startedPID):
		// It is dead or has SIGKILL pending, so it never will.
		ev.StartErr = &StartError{Op: "exec", Err: syscall.ECANCELED, Killed: true}
	case t.spec.Sibling:
		t.siblings[t.startedPID] = t.startedFD
		t.startedFD = -1
		ev.PID = t.startedPID
	default:
		t.leader = t.startedPID
		ev.PID = t.leader
	}
	t.leaderFD = t.startedFD
	switch {
	case t.grouped:
		t.group.proven = true
	case t.group.used && t.startErr == nil:
		t.dropGroup()
	}
}

// neverExecuted reports whether pid, an unreaped child, is still what it was
// when it was forked.
func (p *procfs) neverExecuted(pid int) bool {
	var s stat
	return p.stat(pid, &s) && s.flags&forkNoExec != 0
}

// StartProgress looks at the children that the second thread has forked so far.
func (t *subreaper) StartProgress() StartProgress {
	if !t.starting {
		return StartPending
	}
	// The leader is a child of the thread that forks, which is listed last.
	n := t.ownChildren()
	ruledOut := t.startKilled && n > 0 && n <= startChildren
	for _, pid := range t.arena[max(n-startChildren, 0):n] {
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

// await has the second thread tell of the next exit.
func (t *subreaper) await() {
	if t.awaiting || t.starting {
		return
	}
	t.awaiting = true
	if t.watch != 0 {
		t.resumeSiblings()
		wakeup(t.watch)
	} else {
		t.order(orderAwait)
	}
}

// resumeSiblings has those siblings go on that somebody has stopped: whom they hold, or
// who is about to be given to them, would have nobody. Looking takes the news, so
// that it does not come again.
func (t *subreaper) resumeSiblings() {
	for range reapAtOnce { // who is stopped again and again must not keep us
		var info siginfo
		errno := fault.At(fault.Waitid)
		if errno == 0 {
			_, _, errno = unix.RawSyscall6(unix.SYS_WAITID, unix.P_ALL, 0, uintptr(unsafe.Pointer(&info)),
				unix.WSTOPPED|unix.WNOHANG|unix.WALL, 0, 0)
		}
		switch {
		case errno == unix.EINTR:
		case errno != 0 || info.pid == 0:
			return
		default:
			t.ResumeSibling(int(info.pid))
		}
	}
}

// reap reaps at most limit children and notes the leader's exit.
func (t *subreaper) reap(ev *Event, limit int) int {
	defer t.seeVanished(ev)
	for n := 0; ; {
		if n >= limit {
			return n
		}
		var ws syscall.WaitStatus
		var ru syscall.Rusage
		pid, err := wait4(&ws, &ru)
		switch {
		case err == syscall.EINTR:
			continue
		case err == syscall.ECHILD:
			ev.Empty, ev.Proof = true, outcome.ProofNoChildren
			return n
		case err != nil:
			panic("proctree: wait4: " + err.Error())
		case pid == 0:
			return n
		case !ws.Exited() && !ws.Signaled():
			continue // somebody traces; a stop is no exit
		}
		n++
		t.struck.forget(pid)
		if t.isSibling(pid) {
			t.siblingGone(pid, ev)
			continue
		}
		t.usage.User += time.Duration(ru.Utime.Nano())
		t.usage.System += time.Duration(ru.Stime.Nano())
		t.usage.MaxRSSBytes = max(t.usage.MaxRSSBytes, ru.Maxrss<<10)
		if pid == t.leader {
			t.leader = 0
			t.closeLeaderFD()
			ev.Exit = exitFrom(ws)
		}
	}
}

// wait4 reaps a child that has exited, if there is one.
func wait4(ws *syscall.WaitStatus, ru *syscall.Rusage) (int, error) {
	if errno := fault.At(fault.Wait4); errno != 0 {
		return 0, errno
	}
	return syscall.Wait4(-1, ws, syscall.WNOHANG|unix.WALL, ru)
}

// Terminate sends sig to those members that have not had it, each followed by
// SIGCONT so that one that is stopped acts on it. It returns how many it
// reached. The time it takes grows with the tree and with what else the machine
// has to do; it stops at until, when SIGKILL is due. It also stops for the ear:
// then there is more to do.
func (t *subreaper) Terminate(sig syscall.Signal, to Recipients, until time.Time) (reached int, more bool) {
	if to == ToLeader {
		if t.leader == 0 || !t.atChild(t.leader, func(m *target) bool { return t.politely(m, sig) }) {
			return 0, false
		}
		return 1, false
	}
	t.proc.begin(until)
	// A member whose parent ends while we look for it becomes our child and is
	// met in the next pass.
	for range 3 {
		n := t.walk(func(m *target) bool {
			return m.pid != t.leader && (to != ToFeeders || !t.proc.isFed(m.pid, t.given)) && t.politely(m, sig)
		})
		if n == 0 {
			break
		}
		reached += n
	}
	return reached, !t.proc.end() && time.Now().Before(until)
}

// politely sends sig to m if it has had no signal yet.
func (t *subreaper) politely(m *target, sig syscall.Signal) bool {
	e := t.entry(m)
	if e != nil && e.signal != 0 && m.pid != t.leader {
		return false
	}
	err := m.send(sig)
	if err == nil {
		_ = m.send(syscall.SIGCONT) // if it is gone already, so much the better
	}
	t.note(e, sig, err)
	return err == nil
}

// Strike strikes the cgroup, if there is one, and then the children.
func (t *subreaper) Strike(below bool) Struck {
	if t.starting && !t.spec.Sibling {
		t.cancelStart.Store(true)
		t.startKilled = true
	}
	struck := t.strikeGroup()
	t.proc.begin(time.Time{})
	strike := func(m *target) bool {
		e := t.entry(m)
		err := m.send(syscall.SIGKILL)
		if e != nil && err == nil && m.own {
			e.doomed = true
		}
		return t.note(e, syscall.SIGKILL, err)
	}
	if below {
		struck += t.walk(strike)
	} else {
		t.seen = t.ownChildren()
		for i, pid := range t.arena[:t.seen] {
			if i >= inAnyCase && t.proc.over() {
				break
			}
			had := !t.backlog.kernelReaps && t.struck.doomed(int(pid)) // a pass is made for each few that have died
			if !had && !t.isSibling(int(pid)) && t.atChild(int(pid), strike) {
				struck++
			}
		}
	}
	whole := t.proc.end()
	if t.whileKilling(t.seen); t.backlog.kernelReaps {
		return Struck{} // nothing is kept: reap, and come again
	}
	return Struck{Fresh: struck, More: !whole}
}

// Reap reaps what has died. It lets FD report the next death if something is left.
func (t *subreaper) Reap() (ev Event) {
	if t.starting {
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

// atChild visits pid if it is a living child of ours, and reports what visit says.
func (t *subreaper) atChild(pid int, visit func(*target) bool) bool {
	var err error
	if t.visited, err = holdChild(pid, &t.spare); err != nil {
		if err == unix.ESRCH {
			t.struck.doom(pid)
		}
		return false
	}
	did := visit(&t.visited)
	t.letGo(&t.visited)
	return did
}

// letGo ends the hold on m.
func (t *subreaper) letGo(m *target) {
	if m.pidfd >= 0 {
		closeFD(m.pidfd)
	}
	if t.spare < 0 {
		t.spare = dup(t.root)
	}
}

// walk visits our own children and everything below them; parents come before their
// children. It counts the visits that returned true. All are found before the first
// is visited: one that dies of its visit would take its children out of reach.
//
// Below our children nobody holds a pid for us, so a number proves nothing. A
// process is accepted as the child of P only if a pidfd was opened for it
// first, its stat then names P as its parent, and P, by its own pidfd, still had its
// pid after that: then the number P stood for the same process all the time.
//
// What does not fit (descriptors run out, or there are too many) is left out,
// and so is what would be found, or visited as any but one of the first, after the
// end of the look.
func (t *subreaper) walk(visit func(*target) bool) (count int) {
	own := t.ownChildren()
	t.seen = own
	t.found = t.found[:0]
	for i := range own {
		if len(t.found) == cap(t.found) || t.proc.over() {
			break
		}
		if pid := int(t.arena[i]); !t.isSibling(pid) {
			t.find(pid, own)
		}
	}
	for i := range t.found {
		m := &t.found[i]
		switch over := i >= inAnyCase && t.proc.over(); {
		case over:
		case m.own && t.atChild(m.pid, visit), !m.own && visit(m):
			count++
		}
		t.letGo(m)
	}
	return count
}

// find adds own, if it is a living child of ours, and what is below it to t.found. The
// arena from base on is free.
func (t *subreaper) find(own, base int) {
	m, err := holdChild(own, &t.spare)
	if err != nil {
		return // not ours; or dead, and its children are our own
	}
	t.found = append(t.found, target{pid: own, pidfd: -1, own: true})
	defer t.letGo(&m)
	if m.pidfd < 0 {
		return
	}
	t.frames = append(t.frames[:0], frame{pid: own, pidfd: m.pidfd, lo: base, hi: base + t.proc.children(own, t.arena[base:])})
	for len(t.frames) > 0 {
		f := &t.frames[len(t.frames)-1]
		if f.lo == f.hi {
			t.frames = t.frames[:len(t.frames)-1]
			continue
		}
		pid := int(t.arena[f.lo])
		f.lo++
		if len(t.found) == cap(t.found) || t.proc.over() {
			return
		}
		pidfd, err := pidfdOpen(pid)
		if err == unix.EMFILE || err == unix.ENFILE || err == unix.ENOMEM || err == unix.ENOSYS {
			return
		}
		if err != nil {
			continue
		}
		if !t.proc.stat(pid, &t.scratch) || t.scratch.ppid != f.pid || !unreaped(f.pidfd) {
			closeFD(pidfd)
			continue
		}
		t.found = append(t.found, target{pid: pid, pidfd: pidfd})
		if len(t.frames) < cap(t.frames) {
			t.frames = append(t.frames, frame{pid: pid, pidfd: pidfd, lo: f.hi, hi: f.hi + t.proc.children(pid, t.arena[f.hi:])})
		}
	}
}

// ownChildren lists our own children, zombies included, at the start of the
// arena. Children hang on the thread that forked them and orphans on the first
// one, so the files of these two tell of all; they are kept open, because a CLI
// can take away our right to open any. Should they say nothing although the
// kernel knows of a child, every thread is asked, and without a usable /proc the
// kernel is, for every pid there can be.
func (t *subreaper) ownChildren() int {
	n := 0
	for range 2 { // a child can be forked between the first look and the question
		for _, fd := range t.lists {
			n = t.proc.readChildren(fd, t.arena, n)
		}
		if n > 0 || childless() {
			return n
		}
	}
	if n = t.proc.children(t.self, t.arena); n > 0 {
		return n
	}
	// Numbers are given out upwards and start again at the end, so members
	// have those that follow the leader's. Once some were found a long gap ends
	// the pass; the next one begins where it is sure to find what is left.
	gap := 0
	base := max(t.first, t.self)
	for i := range t.pidMax {
		pid := 2 + (base-2+i)%(t.pidMax-1)
		if t.proc.over() {
			break
		}
		if stateOf(pid) == childNone {
			if gap++; n > 0 && gap > longGap {
				break
			}
			continue
		}
		gap = 0
		if n == len(t.arena) {
			break
		}
		t.arena[n] = int32(pid)
		n++
	}
	return n
}

// childless asks the kernel whether we have any child, dead or alive.
func childless() bool {
	_, errno := waitFor(unix.P_ALL, 0, unix.WEXITED|unix.WNOHANG|unix.WNOWAIT)
	return errno == unix.ECHILD
}

// maxPID is the highest limit that a kernel can have, for when the real one
// cannot be read. Asking for all of them takes seconds, for longGap of them some
// 10 ms.
const (
	maxPID  = 1 << 22
	longGap = 1 << 15
)

// entry returns what is known of m, which is about to be signalled, and lists it if
// there is room: afterwards it may be gone, and its number somebody else's. nil if the
// table is full.
func (t *subreaper) entry(m *target) *pidEntry {
	var id uint32
	seen := false
	switch {
	case !t.pidfs:
		if seen = t.proc.stat(m.pid, &t.scratch); seen {
			id = uint32(t.scratch.start)
		}
	case m.pidfd >= 0:
		var st unix.Stat_t
		if unix.Fstat(m.pidfd, &st) == nil {
			id = uint32(st.Ino)
		}
	}
	e := t.struck.at(m.pid, id)
	if e == nil || e.index != notListed {
		return e
	}
	if len(t.ended) == cap(t.ended) {
		e.index = tooMany
		return e
	}
	seen = seen || t.proc.stat(m.pid, &t.scratch)
	if !seen && !m.there() {
		e.index = tooMany // it is gone, and can only be counted
		return e
	}
	e.index = int16(len(t.ended))
	t.ended = append(t.ended, record{pid: m.pid})
	if seen {
		r := &t.ended[e.index]
		r.start, r.name, r.nameN = t.scratch.start, t.scratch.comm, t.scratch.commN
	}
	return e
}

// note notes that sig was sent to whom the entry is of, or with what error it was not,
// and reports whether this is the first SIGKILL it got.
func (t *subreaper) note(e *pidEntry, sig syscall.Signal, err error) bool {
	switch {
	case e == nil:
		if err == nil {
			t.more++
		}
		return false // more than the table holds: reap, and go on
	case err != nil:
		if e.signal == 0 && int(e.index) == len(t.ended)-1 {
			t.ended, e.index = t.ended[:e.index], notListed
		}
		return false
	case e.index >= 0:
		t.ended[e.index].signal = sig
	case e.signal == 0:
		t.more++
	}
	fresh := sig == syscall.SIGKILL && e.signal != int8(sig)
	e.signal = int8(sig)
	return fresh
}

// Summary has no suspects: the kernel has given us every member.
func (t *subreaper) Summary() Summary {
	s := Summary{EndedMore: t.more, Usage: t.usage}
	boot := bootTime()
	for i := range t.ended {
		r := &t.ended[i]
		s.Ended = append(s.Ended, outcome.Ended{
			Process:    outcome.Process{PID: r.pid, Start: startTime(boot, r.start), Name: string(r.name[:r.nameN])},
			LastSignal: int(r.signal),
		})
	}
	return s
}

// Members lists the live members of the tree, at most limit. more: it stopped for the
// ear, and there may be others.
func (t *subreaper) Members(limit int) (list []Member, more bool) {
	t.proc.begin(time.Time{})
	list = t.members(limit)
	return list, !t.proc.end()
}

// members does that within a look.
func (t *subreaper) members(limit int) []Member {
	var list []Member
	t.walk(func(m *target) bool {
		s := &t.scratch
		if len(list) >= limit || !t.proc.stat(m.pid, s) || !m.there() || !m.own && (s.state == 'Z' || s.state == 'X') {
			return false
		}
		list = append(list, Member{PID: m.pid, Parent: s.ppid, Start: s.start, Name: s.name(), State: s.state, Leader: m.pid == t.leader, thread: s.thread})
		return true
	})
	return list
}

// survivorsFor is how long the look for survivors may take, which hears nobody: the
// report is due.
const survivorsFor = 50 * time.Millisecond

// Survivors lists what is alive, with the reason as far as it can be told: at most
// maxListed, and as many as can be found in survivorsFor.
func (t *subreaper) Survivors() []outcome.Survivor {
	t.proc.beginDeaf(time.Now().Add(survivorsFor))
	var list []outcome.Survivor
	own := t.ownChildren()
	for _, pid := range t.arena[:own] {
		if len(list) == maxListed || t.proc.over() {
			break
		}
		// A zombie that only its tracer can see is dead and still there.
		if pid := int(pid); t.proc.stat(pid, &t.scratch) && t.scratch.state == 'Z' && stateOf(pid) == childAlive {
			m := Member{PID: pid, Start: t.scratch.start, Name: t.scratch.name(), State: 'Z'}
			list = append(list, outcome.Survivor{Process: m.Describe(), State: "Z", Reason: t.proc.reason(m)})
		}
	}
	t.proc.beginDeaf(time.Now().Add(survivorsFor))
	defer t.proc.end()
	for _, m := range t.members(maxListed - len(list)) {
		if m.State != 'Z' {
			list = append(list, outcome.Survivor{Process: m.Describe(), State: string(m.State), Reason: t.proc.reason(m)})
		}
	}
	return list
}

// reason says why SIGKILL has not ended m.
func (p *procfs) reason(m Member) string {
	var tracer, uid string
	for line := range strings.Lines(p.file(m, "/status")) {
		key, value, _ := strings.Cut(line, ":")
		switch key {
		case "TracerPid":
			tracer = strings.TrimSpace(value)
		case "Uid":
			uid, _, _ = strings.Cut(strings.TrimSpace(value), "\t")
		}
	}
	own := strconv.Itoa(unix.Getuid())
	switch {
	case m.State == 'Z' && tracer != "" && tracer != "0":
		return "traced by " + tracer
	case uid != "" && uid != own && unix.Geteuid() != 0:
		return "operation not permitted: it runs as uid " + uid
	case m.State == 'D':
		// Where it waits in the kernel; 0 if we have no right to know.
		where := p.file(m, "/wchan")
		switch {
		case strings.Contains(where, "refrigerator"), freezerIsOn(p.file(m, "/cgroup")):
			return "frozen: SIGKILL acts when it is thawed"
		case where == "" || where == "0":
			return "uninterruptible or frozen: SIGKILL is pending"
		}
		return "uninterruptible in " + where + ": SIGKILL is pending"
	}
	return "SIGKILL has not taken effect yet"
}

// freezerIsOn reports whether one of the cgroups in the content of a
// /proc/PID/cgroup is frozen. Since Linux 6.1 the freezer of cgroup v1 leaves who
// sleeps where it is, so that the place alone does not tell. What cgroup v2
// freezes can be killed.
func freezerIsOn(cgroups string) bool {
	for line := range strings.Lines(cgroups) {
		_, named, _ := strings.Cut(line, ":")
		if path, ok := strings.CutPrefix(strings.TrimSpace(named), "freezer:"); ok {
			fd, err := OpenFile("/sys/fs/cgroup/freezer"+path+"/freezer.state", unix.O_RDONLY)
			if err != nil {
				return false
			}
			defer closeFD(fd)
			var b [2]byte
			n, _ := unix.Read(fd, b[:])
			return string(b[:max(n, 0)]) == "FR" // FROZEN, or FREEZING
		}
	}
	return false
}

// file reads a small file in the directory of m; "" if it cannot be read.
func (p *procfs) file(m Member, name string) string {
	fd := p.openOf(unix.O_RDONLY, m.PID, m.thread, name)
	if fd < 0 {
		return ""
	}
	defer closeFD(fd)
	return string(p.buf[:readAll(fd, p.buf[:])])
}

// bootTime is when the clock that start times count from began.
func bootTime() time.Time {
	var up unix.Timespec
	if unix.ClockGettime(unix.CLOCK_BOOTTIME, &up) != nil {
		return time.Time{}
	}
	return time.Now().Add(-time.Duration(up.Nano()))
}

func startedAt(start uint64) time.Time { return startTime(bootTime(), start) }

// startTime converts clock ticks since boot, of which Linux always reports 100
// a second to user space.
func startTime(boot time.Time, ticks uint64) time.Time {
	if ticks == 0 || boot.IsZero() {
		return time.Time{}
	}
	return boot.Add(time.Duration(ticks) * (time.Second / 100)).Truncate(10 * time.Millisecond)
}

// Signal sends sig to the leader, on the caller's behalf and outside the
// ladder. It is no part of a stop.
func (t *subreaper) Signal(sig syscall.Signal) {
	if t.leader != 0 {
		_ = signalChild(t.leader, sig) // one that has exited got what it was sent
	}
}

// Next is when to call Collect although FD reports nothing; zero if never.
func (t *subreaper) Next() time.Time { return t.backlog.next }

// ForkingThread is the thread that leaders inherit from.
func (t *subreaper) ForkingThread() int { return t.forkingTID }

// OnlySiblings reports whether the siblings are the only children that this process
// has, dead or alive. That is a proof that nothing else is left which descends
// from us and from no sibling:
//
// Whoever loses its parent below us becomes our child before the exit of that
// parent can be seen, or its number be free (the kernel does both under one lock), so
// the topmost of any such process and its ancestors that live is in our list, behind
// all who were there. The list is read from its beginning to its end. Who is in it
// when the read begins is met, or has vanished before (CLONE_AUTOREAP) and left who was
// below it further down, where the read has not been yet. None that was met makes room
// that the read could slip through: those are siblings, and stay until this thread reaps
// them. So that this does not rest on how the kernel makes up the file, two whole reads
// have to say the same.
//
// Without /proc the kernel is asked for every pid there can be, which takes its
// time; then nothing is known where a child can vanish behind the question. False
// while a sibling is being started: it is none yet.
func (t *subreaper) OnlySiblings() bool {
	if t.starting {
		return false
	}
	for range 2 {
		n := 0
		for _, fd := range t.lists {
			n = t.proc.readChildren(fd, t.arena, n)
		}
		if n == len(t.arena) {
			return false // there may be more
		}
		for _, pid := range t.arena[:n] {
			if !t.isSibling(int(pid)) {
				return false
			}
		}
		if len(t.lists) != 2 || n != len(t.siblings) {
			return n == 0 && t.onlySiblingsAsked()
		}
		meanwhile("read", 0)
	}
	if t.backlog.kernelReaps {
		// Then a sibling could vanish during the reads. Read again when none can.
		t.reapAgain()
		t.await()
		return t.OnlySiblings()
	}
	return true
}

// onlySiblingsAsked is for when nothing could be read.
func (t *subreaper) onlySiblingsAsked() bool {
	if len(t.siblings) == 0 {
		return childless()
	}
	if childrenVanish() {
		return false
	}
	for pid := 2; pid < t.pidMax; pid++ {
		if !t.isSibling(pid) && stateOf(pid) != childNone {
			return false
		}
	}
	return true
}

// Disown lets go of all that is left, for good: who is orphaned from now on falls to
// others, and what is our child already is reaped by the kernel.
func (t *subreaper) Disown() {
	_ = unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0) // it cannot fail
	disown()
}

// isSibling reports whether pid is a sibling whose exit was not seen yet.
func (t *subreaper) isSibling(pid int) bool {
	_, is := t.siblings[pid]
	return is
}

// siblingGone notes the exit of a sibling.
func (t *subreaper) siblingGone(pid int, ev *Event) {
	if fd := t.siblings[pid]; fd >= 0 {
		closeFD(fd)
	}
	delete(t.siblings, pid)
	ev.Siblings = append(ev.Siblings, pid)
}

// SuspendedSiblings lists the siblings that are stopped, by a signal or by a tracer.
func (t *subreaper) SuspendedSiblings() (list []int) {
	for pid := range t.siblings {
		if t.proc.suspended(pid) {
			list = append(list, pid)
		}
	}
	return list
}

// Suspended reports whether the process is stopped, by a signal or by a tracer.
func Suspended(pid int) bool {
	var p procfs
	p.open()
	defer closeFD(p.fd)
	return p.suspended(pid)
}

func (p *procfs) suspended(pid int) bool {
	var s stat
	return p.stat(pid, &s) && (s.state == 'T' || s.state == 't')
}

// SiblingDied reports whether a sibling has died, also where its exit cannot be seen because
// somebody traces it.
func (t *subreaper) SiblingDied(pid int) bool { return t.isSibling(pid) && t.proc.dead(pid) }

// Dead reports whether the process is a zombie, all its threads included.
func Dead(pid int) bool {
	var p procfs
	p.open()
	defer closeFD(p.fd)
	return p.dead(pid)
}

// ResumeSibling sends SIGCONT to a sibling, and EndSibling sends it SIGKILL.
func (t *subreaper) ResumeSibling(pid int) { t.signalSibling(pid, syscall.SIGCONT) }
func (t *subreaper) EndSibling(pid int)    { t.signalSibling(pid, syscall.SIGKILL) }

func (t *subreaper) signalSibling(pid int, sig syscall.Signal) {
	if t.isSibling(pid) {
		_ = signalChild(pid, sig) // one that has ended needs neither
	}
}
