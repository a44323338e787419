package supervisor

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"curfew/proctree"
)

// warden is the guard's main loop. The guard is the caller's only child and the
// parent of its supervisors. It is a subreaper: when a supervisor dies, the tree
// that it held falls to the guard, and a child of the guard that is no
// supervisor can only be such an orphan. It is ended.
type warden struct {
	tree    wardTree
	control int // descriptors: the socket to the caller, and what tells of its end
	caller  int
	in      inbox
	null    int
	root    int

	exe, callerPID string // to start supervisors from, and for people to see
	env            []string

	callerGone bool
	spawns     []spawnOrder // waiting; the first one is being carried out
	starting   bool
	killer     killer
	peeling    bool // there is a child that is no supervisor
	fallen     []int
	swept      []*sweptWard // what is known of supervisors that are gone
	questions  []question
	asleep     map[int]int     // how often a supervisor was found suspended
	duties     map[int]*Duties // of supervisors, should they die
	errands    errands

	// What can hang, and does not happen here: nil where it is not done at all.
	remove   func(*TempDir) error
	writeEnd func(id string, report *Done) error

	buf [4 << 10]byte
	oob [1024]byte
}

// wardTree is what a guard asks of a proctree.Tree.
type wardTree interface {
	tree
	EndWardGroup(pid int)
	OnlyWards() bool
	IsWard(pid int) bool
	Suspended() []int
	ResumeWard(pid int)
	EndWard(pid int)
}

type spawnOrder struct{ socket, caller int }

type question struct{ pid, socket int }

type sweptWard struct {
	pid    int
	report Swept
	busy   bool // with what is to be done when nothing is left
}

// keepSwept is for how many supervisors it is remembered what their end left to
// do. The caller asks at once when it finds one lost.
const keepSwept = 256

func serveGuard() {
	settle()
	g := &warden{control: controlFD, caller: callerFD, exe: "/proc/self/exe", callerPID: strconv.Itoa(unix.Getppid()), env: os.Environ(), asleep: map[int]int{},
		duties: map[int]*Duties{}, remove: (*TempDir).removal}
	dir, err := holdState()
	g.writeEnd = func(id string, report *Done) error { return writeEnd(dir, "guard", id, report) }
	if len(os.Args) > 2 {
		g.callerPID, g.exe = os.Args[1], os.Args[2]
	}
	if err == nil {
		g.tree, err = proctree.OpenForWards()
	}
	if err == nil {
		g.root, err = proctree.OpenFile("/", unix.O_PATH)
	}
	if err != nil {
		_ = sendOn(controlFD, failed(err), nil)
		return
	}
	if g.null, err = proctree.OpenFile("/dev/null", unix.O_RDWR); err != nil {
		g.null = g.root // gives and takes nothing either
	}
	state, err := readState(unix.Gettid())
	if hello(state, err == nil) != nil {
		return
	}
	for g.step() {
	}
}

// step waits for the next thing to happen and handles it. False ends the guard.
func (g *warden) step() bool {
	fds := [4]unix.PollFd{
		{Fd: int32(g.tree.FD()), Events: unix.POLLIN},
		g.errands.pollFD(),
		{Fd: int32(g.control), Events: unix.POLLIN},
		{Fd: int32(g.caller), Events: unix.POLLIN},
	}
	n := 4
	if g.callerGone {
		n = 2
	}
	until := g.errands.next()
	if g.peeling && (until.IsZero() || g.killer.next.Before(until)) {
		until = g.killer.next
	}
	if g.callerGone {
		if look := time.Now().Add(lookEvery); until.IsZero() || look.Before(until) {
			until = look
		}
	}
	wait(fds[:n], until)
	if g.callerGone {
		g.wakeWards()
	}
	if n == 4 {
		gone := fds[3].Revents&unix.POLLIN != 0 && !isNull(g.caller)
		if fds[2].Revents != 0 && !g.listen() || gone {
			// The supervisors see the same and end by themselves.
			g.callerGone = true
		}
	}
	over := g.news(g.tree.Collect(g.peeling))
	// A ward that is being started must not be taken for an orphan.
	if !g.peeling && !g.starting && len(g.fallen) > 0 && !g.tree.OnlyWards() {
		g.peeling, g.killer = true, killer{}
	}
	if g.peeling && !g.starting {
		g.killer.strike(g.tree, time.Now(), killSlow, func(ev proctree.Event) bool {
			over = g.news(ev) || over
			g.peeling = !g.tree.OnlyWards()
			return g.peeling
		}, g.interrupted)
	}
	g.errands.step()
	if !g.peeling && !g.starting {
		g.settleUp()
	}
	g.spawnNext()
	if g.callerGone && !g.starting && len(g.spawns) == 0 && !over {
		_, ev := g.tree.Reap()
		over = g.news(ev)
	}
	return !(g.callerGone && over && !g.starting && len(g.spawns) == 0 && len(g.fallen) == 0 && !g.errands.left())
}

// lookEvery is how often the guard looks after its supervisors when the caller
// is gone, and suspendedFor is how many looks in a row one may be found
// suspended: nobody else would notice that it cannot end its tree.
const (
	lookEvery    = 100 * time.Millisecond
	suspendedFor = 10
)

// wakeWards resumes supervisors that somebody has suspended, and ends those that
// do not stay awake; their trees fall to us.
func (g *warden) wakeWards() {
	for _, pid := range g.tree.Suspended() {
		g.asleep[pid]++
		if g.asleep[pid] > suspendedFor {
			g.tree.EndWard(pid)
		} else {
			g.tree.ResumeWard(pid)
		}
	}
}

// news handles what was seen of the children, and reports whether there is none.
func (g *warden) news(ev proctree.Event) (none bool) {
	if ev.StartDone {
		g.starting = false
		order := g.spawns[0]
		g.spawns = g.spawns[1:]
		if ev.StartErr != nil {
			_ = sendOn(order.socket, failed(ev.StartErr), nil)
		}
		closeAll([]int{order.socket, order.caller})
	}
	for _, pid := range ev.Wards {
		g.tree.EndWardGroup(pid)
	}
	g.fallen = append(g.fallen, ev.Wards...)
	return ev.Empty
}

// settleUp notes what the supervisors that have died had left, now that nothing
// of it is there any more, and answers who has asked.
func (g *warden) settleUp() {
	if len(g.fallen) > 0 {
		var report Swept
		report.Ended, report.EndedMore = g.tree.Ended()
		for _, pid := range g.fallen {
			g.tree.EndWardGroup(pid) // now that it can be removed
			s := &sweptWard{pid: pid, report: report}
			g.swept = append(g.swept, s)
			if d := g.duties[pid]; d != nil {
				delete(g.duties, pid)
				g.carryOut(d, s)
			}
		}
		g.fallen = nil
		g.tree.Forget()
		if more := len(g.swept) - keepSwept; more > 0 {
			g.swept = slices.Delete(g.swept, 0, more)
		}
	}
	g.questions = slices.DeleteFunc(g.questions, func(q question) bool {
		if g.tree.IsWard(q.pid) {
			return false
		}
		var report Swept
		for _, s := range g.swept {
			if s.pid != q.pid {
				continue
			}
			if s.busy {
				return false
			}
			report = s.report // the last one, should the number have come again
		}
		_ = sendOn(q.socket, &message{Swept: &report}, nil) // who does not listen need not know
		unix.Close(q.socket)
		return true
	})
}

// carryOut does what the supervisor of s has left to do.
func (g *warden) carryOut(d *Duties, s *sweptWard) {
	s.busy = true
	write := func() {
		if !d.Journal || g.writeEnd == nil {
			s.busy = false
			return
		}
		report := &Done{Cleanup: s.report.Cleanup()}
		g.errands.run(WriteLimit, func() error { return g.writeEnd(d.ID, report) }, func(err error) {
			if err != nil {
				s.report.Journal = err.Error()
			}
			s.busy = false
		})
	}
	if d.TempDir == nil || g.remove == nil {
		write()
		return
	}
	g.errands.run(RemoveLimit, func() error { return g.remove(d.TempDir) }, func(err error) {
		if err != nil {
			s.report.TempDirs = append(s.report.TempDirs, d.TempDir.kept(err))
		}
		write()
	})
}

// spawnNext starts the next supervisor that was ordered.
func (g *warden) spawnNext() {
	if g.starting || len(g.spawns) == 0 {
		return
	}
	order := g.spawns[0]
	g.starting = true
	g.tree.Start(&proctree.Spec{
		Path: g.exe, Argv: []string{helperName, g.callerPID, g.exe}, Env: g.env, Dir: g.root,
		Files: []int{g.null, g.null, g.null, order.socket, order.caller}, Ward: true,
	})
}

// interrupted reports whether somebody wants a turn.
func (g *warden) interrupted() bool {
	fds := [1]unix.PollFd{{Fd: int32(g.control), Events: unix.POLLIN}}
	n, _ := unix.Poll(fds[:], 0)
	return n > 0 && !g.callerGone
}

// listen hears the caller. False if it is gone, or said what cannot be served.
func (g *warden) listen() bool {
	return listenTo(g.control, &g.in, g.buf[:], g.oob[:], g.handle, func(*message) error {
		return nil // who asked finds its socket closed
	})
}

func (g *warden) handle(m *message, _ []byte, files []int) error {
	switch {
	case m.Spawn != nil:
		if !isSocket(files[0]) {
			// With anything else as its control socket the copy of the program
			// would not see that it is a helper, and go on as the program.
			closeAll(files)
			return fmt.Errorf("%w: a supervisor without a socket", errProtocol)
		}
		g.spawns = append(g.spawns, spawnOrder{files[0], files[1]})
	case m.Watch != nil:
		if err := m.Watch.TempDir.check(); err != nil {
			return err
		}
		if len(g.errands.all) > keepSwept {
			return fmt.Errorf("%w: more than %d supervisors that are not there", errProtocol, keepSwept)
		}
		g.duties[m.Watch.PID] = &m.Watch.Duties
		if !g.tree.IsWard(m.Watch.PID) {
			g.fallen = append(g.fallen, m.Watch.PID) // it has died meanwhile
		}
	case m.Lost != nil:
		g.questions = append(g.questions, question{m.Lost.PID, files[0]})
	default:
		closeAll(files)
		return fmt.Errorf("%w: a message that is not for the guard", errProtocol)
	}
	return nil
}

// Guard is the caller's end of a guard.
type Guard struct {
	*Helper        // for its socket, its state and its end
	helpers   int  // how many of its supervisors the Pool has given out or keeps
	dismissed bool // it is to start no more of them
}

// spawnGuard starts a guard. The calling goroutine must be locked to its thread:
// the guard, its supervisors and their CLIs inherit from it.
func spawnGuard(exe string, journal []string) (*Guard, error) {
	h, err := start(guardName, exe, journal)
	if err != nil {
		return nil, err
	}
	return &Guard{Helper: h}, nil
}

// spawn has the guard start a supervisor. The supervisor has to be greeted.
func (g *Guard) spawn() (*Helper, error) {
	pair, err := socketpair()
	if err != nil {
		return nil, os.NewSyscallError("socketpair", err)
	}
	defer unix.Close(pair[1])
	caller := callerDescriptor()
	defer unix.Close(caller)
	h := newHelper(g.exe, pair[0])
	h.guard, h.cgroup, h.noFile = g, g.cgroup, g.noFile
	if err := g.tellWith(&message{Spawn: &struct{}{}}, []int{pair[1], caller}); err != nil {
		_ = h.conn.Close()
		return nil, fmt.Errorf("%w: ask the guard: %w", errRefused, err)
	}
	return h, nil
}

// Watch has the guard know what there is to do for the invocation that h is about
// to take, should h die. A guard that cannot be told is lost: then the caller has
// to see to it, or who recovers its journal.
func (h *Helper) Watch(d Duties) {
	if h.guard != nil {
		_ = h.guard.tell(&message{Watch: &Watch{PID: h.pid, Duties: d}})
	}
}

// errGuardLost means that the guard cannot answer for its supervisor.
var errGuardLost = errors.New("supervisor: the guard is lost too")

// Swept waits until nothing is left of what the helper, which is lost, had held,
// as its guard knows it, at most until the given time.
func (h *Helper) Swept(until time.Time) (*Swept, error) {
	if h.guard == nil || h.pid == 0 {
		return nil, errGuardLost
	}
	pair, err := socketpair()
	if err != nil {
		return nil, os.NewSyscallError("socketpair", err)
	}
	answer := newHelper(h.exe, pair[0])
	defer answer.Close(0) // with what came with the answer
	err = h.guard.tellWith(&message{Lost: &lostMessage{PID: h.pid}}, []int{pair[1]})
	unix.Close(pair[1])
	if err != nil {
		return nil, errGuardLost
	}
	var m *message
	err = h.guard.awake(until, func(look time.Time) error {
		answer.Interrupt(look)
		m, _, err = answer.read()
		return err
	})
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded):
		return nil, err
	case err != nil || m.Swept == nil:
		return nil, errGuardLost
	}
	return m.Swept, nil
}

// awake waits for what the guard does, by calling read with a time limit again
// and again until that is not its error or until has come. In between it looks
// whether somebody has suspended the guard, and resumes it: nobody else would,
// and its supervisors' trees fall to it. A guard that does not stay awake is
// lost.
func (g *Guard) awake(until time.Time, read func(look time.Time) error) error {
	for asleep := 0; ; {
		look := time.Now().Add(lookEvery)
		if look.After(until) {
			look = until
		}
		err := read(look)
		if !errors.Is(err, os.ErrDeadlineExceeded) || !time.Now().Before(until) {
			return err
		}
		if g.pid != 0 && proctree.Suspended(g.pid) {
			if asleep++; asleep > suspendedFor/2 || g.withPidfd(proctree.ResumePidfd) != nil {
				return errGuardLost
			}
		}
	}
}

// alive reports whether the guard can be asked. It says nothing unasked: what can
// be read is its end.
func (g *Guard) alive() bool { return !g.Pending() }
