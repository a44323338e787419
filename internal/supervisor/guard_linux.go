package supervisor

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"curfew/internal/sys"
	"curfew/internal/wire"
	"curfew/proctree"
)

// guard is the guard's main loop. The guard is the caller's only child and the parent of
// its supervisors. It is a subreaper: when a supervisor dies, the tree that the supervisor
// held falls to the guard. A child of the guard that is not a supervisor can only be such
// an orphan, and the guard ends it.
type guard struct {
	loop
	tree proctree.SiblingTree
	root int // a descriptor of "/"

	// What supervisors are started with: the executable, the caller's pid (for people to
	// see), and the environment.
	exe, callerPID string
	env            []string

	orders   []spawnOrder // the first is being carried out if starting
	starting bool

	striking bool // there is a child that is not a supervisor
	kill     proctree.KillPhase

	supervisors map[string]*supervisor // all that are remembered, by id
	alive       map[int]*supervisor    // those that are not reaped, by pid
	fallen      []*supervisor          // those that have died and are not swept
	swept       []*supervisor          // in the order in which they were swept
	questions   []question
}

type spawnOrder struct {
	supervisor             *supervisor
	socket, caller, stderr int
}

// question is what the caller wants to know of a supervisor that it has lost. The answer
// goes to the socket, once the supervisor is swept.
type question struct {
	supervisor *supervisor
	socket     int
}

// supervisor is what the guard knows of one supervisor. The id, which the caller has
// chosen, is never used for another one. The pid can be, once the supervisor is reaped,
// although processes of its tree may still exist.
type supervisor struct {
	id        string
	pid       int    // 0 before its start
	cgroup    string // the name of its cgroup
	suspended int    // how many times it was found suspended
	dead      bool   // it has died; a tracer can keep it from being reaped
	swept     bool   // nothing of what it held is left
	calls     int    // how many calls for its duties have not returned
	duties    *wire.Duties
	// cgroupUntil is until when processes in its cgroup that are not our children may take
	// to end.
	cgroupUntil time.Time
	report      wire.Swept
}

// keepSwept is for how many swept supervisors the guard remembers their reports. The caller
// asks as soon as it finds a supervisor lost.
const keepSwept = 256

// lookSoon is how often the guard checks on a supervisor that the caller has asked about.
const lookSoon = 10 * time.Millisecond

// serveGuard returns the exit code, which is not 0 if the guard cannot serve, or does not
// know whether what a lost supervisor held has ended.
func serveGuard() (code int) {
	g := newGuard(newLoop(), "/proc/self/exe", strconv.Itoa(unix.Getppid()), os.Environ())
	if len(os.Args) > 2 {
		g.callerPID = os.Args[1]
		if _, noProc := os.Stat(g.exe); noProc != nil {
			g.exe = os.Args[2] // by now this path may name another program
		}
	}
	if _, _, _, err := g.start("guard", g.open); err != nil {
		return exitRefused
	}
	for g.step() {
	}
	for _, s := range g.swept {
		if s.report.Left && g.tree.EndCgroup(s.cgroup).Populated {
			return exitUnknown
		}
	}
	return 0
}

func newGuard(l loop, exe, callerPID string, env []string) *guard {
	return &guard{loop: l, exe: exe, callerPID: callerPID, env: env, supervisors: map[string]*supervisor{}, alive: map[int]*supervisor{}}
}

// open opens what the guard needs of the system.
func (g *guard) open() (forking int, err error) {
	if g.tree, err = proctree.OpenWithSiblings(proctree.Options{Interrupted: g.callerWaits}); err != nil {
		return 0, err
	}
	if g.root, err = sys.Open("/", unix.O_PATH, 0); err != nil {
		return 0, err
	}
	if g.null, err = sys.Open("/dev/null", unix.O_RDWR, 0); err != nil {
		g.null = g.root // neither gives anything
	}
	return g.tree.ForkingThread(), nil
}

// step waits for the next thing to happen and handles it. It returns false when the guard
// has nothing left to do.
func (g *guard) step() bool {
	g.await(g.next(), g.tree.FD(), -1)
	if g.callerGone {
		g.resumeSupervisors()
	}
	g.findDead()
	// Without a caller the supervisors see the same and end by themselves.
	g.hear(g.handle, func(*wire.Message) error {
		return nil // the caller finds the socket that it has sent closed
	})
	none := g.see(g.tree.Collect(g.striking))
	none = g.strike() || none
	g.calls.finish()
	if !g.striking && !g.starting {
		g.sweep()
		g.answer()
	}
	g.startNext()
	if !g.callerGone || g.starting || len(g.orders) > 0 {
		return true
	}
	none = none || g.see(g.tree.Reap())
	return !none || len(g.fallen) > 0 || g.calls.pending()
}

// next is when the clock alone makes something due; zero if never.
func (g *guard) next() time.Time {
	at := earlier(g.calls.next(), g.tree.Next())
	if g.striking {
		at = earlier(at, g.kill.Next())
	}
	if g.callerGone {
		at = earlier(at, time.Now().Add(lookEvery))
	}
	if len(g.questions) > 0 || len(g.fallen) > 0 {
		at = earlier(at, time.Now().Add(lookSoon))
	}
	return at
}

// findDead finds supervisors whose death is not reported. A tracer keeps such a supervisor
// as a zombie, but what it held has fallen to the guard.
func (g *guard) findDead() {
	look := func(s *supervisor) {
		if !s.dead && g.alive[s.pid] == s && g.tree.SiblingDied(s.pid) {
			g.noteDeath(s)
		}
	}
	if g.callerGone {
		for _, s := range g.alive {
			look(s)
		}
	}
	for _, q := range g.questions {
		look(q.supervisor)
	}
}

// noteDeath notes that a supervisor has died, so that what it held falls to the guard.
func (g *guard) noteDeath(s *supervisor) {
	if !s.dead {
		s.dead = true
		g.fallen = append(g.fallen, s)
	}
}

// resumeSupervisors resumes supervisors that are suspended, and ends those that are
// suspended again and again; their trees fall to the guard.
func (g *guard) resumeSupervisors() {
	for _, pid := range g.tree.SuspendedSiblings() {
		s := g.alive[pid]
		if s == nil {
			continue // it has ended
		}
		if s.suspended++; s.suspended > suspendedFor {
			g.tree.EndSibling(pid)
		} else {
			g.tree.ResumeSibling(pid)
		}
	}
}

// see handles what was seen of the children, and reports whether there is none.
func (g *guard) see(ev proctree.Event) (none bool) {
	if ev.StartDone {
		g.finishStart(ev.PID, ev.StartErr)
	}
	for _, pid := range ev.Siblings {
		s := g.alive[pid]
		delete(g.alive, pid)
		g.tree.EndCgroup(s.cgroup)
		g.noteDeath(s)
	}
	return ev.Empty
}

// finishStart answers the order that was being carried out.
func (g *guard) finishStart(pid int, startErr *proctree.StartError) {
	g.starting = false
	order := g.orders[0]
	g.orders = g.orders[1:]
	s := order.supervisor
	if startErr != nil {
		_ = wire.SendOn(order.socket, wire.Refusal(startErr))
		s.dead, s.swept = true, true
		delete(g.supervisors, s.id)
	} else {
		s.pid, s.cgroup = pid, proctree.CgroupName(pid, s.id)
		g.alive[pid] = s
		_ = wire.SendOn(order.socket, &wire.Message{Spawned: &wire.Spawned{PID: pid}}) // a caller that is gone needs no supervisor
	}
	closeAll([]int{order.socket, order.caller, order.stderr})
}

// strike ends children that are not supervisors, when supervisors have died. It reports
// whether there is no child at all. It waits for a start that is under way: the new
// supervisor must not be taken for an orphan.
func (g *guard) strike() (none bool) {
	if g.starting {
		return false
	}
	if !g.striking && len(g.fallen) > 0 && !g.tree.OnlySiblings() {
		g.striking, g.kill = true, proctree.KillPhase{Interrupted: g.callerWaits}
	}
	if g.striking {
		none = g.see(g.kill.Step(g.tree, time.Now(), proctree.Slowly))
		g.striking = !g.tree.OnlySiblings()
	}
	return none
}

// sweep writes the reports on the supervisors that have died, now that no child is left of
// what they held, and begins their duties.
func (g *guard) sweep() {
	if len(g.fallen) == 0 {
		return
	}
	tree := g.tree.Summary()
	var waiting []*supervisor
	for _, s := range g.fallen {
		rest := g.tree.EndCgroup(s.cgroup) // it can be removed now
		if s.cgroupUntil.IsZero() {
			s.cgroupUntil = time.Now().Add(cgroupLimit)
		}
		if rest.Populated && time.Now().Before(s.cgroupUntil) {
			waiting = append(waiting, s)
			continue
		}
		if rest.Remove != nil {
			g.calls.run(wire.RemoveLimit, rest.Remove, func(error) {})
		}
		s.report, s.swept = wire.Swept{Ended: tree.Ended, EndedMore: tree.EndedMore, Left: rest.Populated}, true
		g.swept = append(g.swept, s)
		g.doDuties(s)
	}
	if g.fallen = waiting; len(waiting) == 0 {
		g.tree.Forget()
	}
	for len(g.swept) > keepSwept {
		delete(g.supervisors, g.swept[0].id)
		g.swept = g.swept[1:]
	}
}

// answer answers the questions about supervisors that are swept and whose duties are done.
func (g *guard) answer() {
	g.questions = slices.DeleteFunc(g.questions, func(q question) bool {
		s := q.supervisor
		if !s.swept || s.calls > 0 {
			return false
		}
		s.report.Left = s.report.Left && g.tree.EndCgroup(s.cgroup).Populated
		_ = wire.SendOn(q.socket, &wire.Message{Swept: &s.report}) // a caller that stopped reading does not need it
		unix.Close(q.socket)
		return true
	})
}

// doDuties begins what a supervisor has left to do; it is swept.
func (g *guard) doDuties(s *supervisor) {
	d := s.duties
	if s.duties = nil; d == nil {
		return
	}
	s.calls++
	switch {
	case d.TempDir == nil || g.removeDir == nil:
		g.writeRecord(s, d)
	case s.report.Left:
		s.report.TempDirs = append(s.report.TempDirs, keptTempDir(d.TempDir, errInUse))
		g.writeRecord(s, d)
	default:
		g.calls.run(wire.RemoveLimit, func() error { return g.removeDir(d.TempDir) }, func(err error) {
			if err != nil {
				s.report.TempDirs = append(s.report.TempDirs, keptTempDir(d.TempDir, err))
			}
			g.writeRecord(s, d)
		})
	}
}

// writeRecord writes the end of the record, which is the last of the duties.
func (g *guard) writeRecord(s *supervisor, d *wire.Duties) {
	if !d.Journal || g.writeEnd == nil {
		s.calls--
		return
	}
	report := &wire.Done{Cleanup: s.report.Cleanup()}
	g.calls.run(wire.WriteLimit, func() error { return g.writeEnd(d.ID, report) }, func(err error) {
		if err != nil {
			s.report.Journal = err.Error()
		}
		s.calls--
	})
}

// startNext starts the next supervisor that was ordered.
func (g *guard) startNext() {
	if g.starting || len(g.orders) == 0 {
		return
	}
	order := g.orders[0]
	g.starting = true
	g.tree.Start(&proctree.Spec{
		Path: g.exe, Argv: []string{wire.SupervisorName, g.callerPID, g.exe}, Env: append(slices.Clip(g.env), wire.IDVar+"="+order.supervisor.id), Dir: g.root,
		Files: []int{g.null, g.null, order.stderr, order.socket, order.caller}, Sibling: true,
	})
}

func (g *guard) handle(m *wire.Message, _ []byte, files []int) error {
	switch {
	case m.Spawn != nil:
		return g.order(m.Spawn, files)
	case m.Watch != nil:
		return g.watch(m.Watch)
	case m.Lost != nil:
		s := g.supervisors[m.Lost.ID]
		if s == nil {
			s = &supervisor{swept: true} // it was swept long ago, or never existed
		}
		g.questions = append(g.questions, question{s, files[0]})
		return nil
	}
	closeAll(files)
	return fmt.Errorf("%w: a message that is not for the guard", wire.ErrProtocol)
}

// order notes that a supervisor is to be started.
func (g *guard) order(m *wire.Spawn, files []int) error {
	if !isSocket(files[0]) {
		// With another file as its control socket the copy of the program would not see
		// that it is a helper, and would run as the program.
		closeAll(files)
		return fmt.Errorf("%w: a supervisor without a socket", wire.ErrProtocol)
	}
	if !wire.ValidID(m.ID) || g.supervisors[m.ID] != nil {
		closeAll(files)
		return fmt.Errorf("%w: a supervisor with the id %.20q", wire.ErrProtocol, m.ID)
	}
	s := &supervisor{id: m.ID}
	g.supervisors[m.ID] = s
	g.orders = append(g.orders, spawnOrder{s, files[0], files[1], files[2]})
	return nil
}

// watch replaces the duties of a supervisor.
func (g *guard) watch(m *wire.Watch) error {
	if m.Duties != nil {
		if err := m.Duties.TempDir.Check(); err != nil {
			return err
		}
	}
	s := g.supervisors[m.ID]
	if s == nil {
		return nil // it was swept long ago, which the caller has yet to find out
	}
	if len(g.calls.all) > keepSwept {
		return fmt.Errorf("%w: duties of more than %d supervisors that have ended", wire.ErrProtocol, keepSwept)
	}
	if s.duties = m.Duties; s.swept {
		g.doDuties(s) // it has died in the meantime
	}
	return nil
}
