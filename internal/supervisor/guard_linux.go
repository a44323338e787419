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

// warden is the guard's main loop. The guard is the caller's only child and the
// parent of its supervisors. It is a subreaper: when a supervisor dies, the tree
// that it held falls to the guard, and a child of the guard that is no
// supervisor can only be such an orphan. It is ended.
type warden struct {
	tree    proctree.SiblingTree
	conn    *wire.Conn
	control int // descriptors: the socket of conn, and what tells of the caller's end
	caller  int
	null    int
	root    int

	exe, callerPID string // to start supervisors from, and for people to see
	env            []string

	callerGone bool
	spawns     []spawnOrder // waiting; the first one is being carried out
	starting   bool
	kill       proctree.KillPhase
	peeling    bool          // there is a child that is no supervisor
	fallen     []*supervised // that have died, until nothing is left of what they held
	questions  []question
	errands    errands

	supervisors map[string]*supervised // by id
	living      map[int]*supervised    // by pid: those that are not reaped
	swept       []*supervised          // of which nothing is left, in the order of their end

	// What can hang, and does not happen here: nil where it is not done at all.
	remove   func(*wire.TempDir) error
	writeEnd func(id string, report *wire.Done) error
}

type spawnOrder struct {
	supervisor             *supervised
	socket, caller, stderr int
}

type question struct {
	supervisor *supervised
	socket     int
}

// supervised is what the guard knows of one supervisor. The id, which the caller has
// chosen, stands for that one and never for another. Its pid does only until it is
// reaped: something of its tree can be there for longer.
type supervised struct {
	id     string
	pid    int    // 0 before its start
	group  string // the name of its cgroup
	asleep int    // how often it was found suspended
	dead   bool   // it has died; somebody who traces it can keep it from being reaped
	swept  bool   // nothing is left of what it held
	busy   int    // with how much of what it had left to do
	duties *wire.Duties
	// groupUntil is how long what is in its cgroup, and is no child of ours, has to end.
	groupUntil time.Time
	report     wire.Swept
}

// keepSwept is for how many supervisors it is remembered what their end left to
// do. The caller asks at once when it finds one lost.
const keepSwept = 256

// serveGuard returns the exit code, which is not 0 if it is not known whether what a lost
// supervisor held has gone.
func serveGuard() (code int) {
	err := prepareHelper()
	g := &warden{conn: wire.NewHelperConn(wire.ControlFD), control: wire.ControlFD, caller: watchCaller(), exe: "/proc/self/exe", callerPID: strconv.Itoa(unix.Getppid()), env: os.Environ(),
		supervisors: map[string]*supervised{}, living: map[int]*supervised{}, remove: removeTempDir}
	dir := ""
	if err == nil {
		dir, _, err = holdState()
	}
	g.writeEnd = func(id string, report *wire.Done) error { return writeEnd(dir, "guard", id, report) }
	if len(os.Args) > 2 {
		g.callerPID = os.Args[1]
		if _, noProc := os.Stat(g.exe); noProc != nil {
			g.exe = os.Args[2] // which can have been given to another program by now
		}
	}
	if err == nil {
		g.tree, err = proctree.OpenWithSiblings(proctree.Options{Interrupted: g.interrupted})
	}
	if err == nil {
		g.root, err = sys.Open("/", unix.O_PATH, 0)
	}
	if err != nil {
		_ = g.conn.Send(wire.Refusal(err))
		return 0
	}
	if g.null, err = sys.Open("/dev/null", unix.O_RDWR, 0); err != nil {
		g.null = g.root // gives and takes nothing either
	}
	state, err := readState(g.tree.ForkingThread())
	if hello(g.conn, state, err == nil) != nil {
		return 0
	}
	shortenSlice(g.tree.ForkingThread(), &state)
	for g.step() {
	}
	for _, s := range g.swept {
		if s.report.Left && g.tree.EndGroup(s.group).Populated {
			return exitUnknown
		}
	}
	return 0
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
	if g.peeling && (until.IsZero() || g.kill.Next().Before(until)) {
		until = g.kill.Next()
	}
	if next := g.tree.Next(); !next.IsZero() && (until.IsZero() || next.Before(until)) {
		until = next
	}
	if g.callerGone {
		if look := time.Now().Add(lookEvery); until.IsZero() || look.Before(until) {
			until = look
		}
	}
	if len(g.questions) > 0 || len(g.fallen) > 0 {
		if look := time.Now().Add(lookSoon); until.IsZero() || look.Before(until) {
			until = look
		}
	}
	wait(fds[:n], until)
	if g.callerGone {
		g.wakeWards()
	}
	g.seeDead()
	if n == 4 {
		gone := fds[3].Revents&unix.POLLIN != 0
		if fds[2].Revents != 0 && !g.listen() || gone {
			// The supervisors see the same and end by themselves.
			g.callerGone = true
		}
	}
	over := g.news(g.tree.Collect(g.peeling))
	// A supervisor that is being started must not be taken for an orphan.
	if !g.peeling && !g.starting && len(g.fallen) > 0 && !g.tree.OnlySiblings() {
		g.peeling, g.kill = true, proctree.KillPhase{Interrupted: g.interrupted}
	}
	if g.peeling && !g.starting {
		over = g.news(g.kill.Step(g.tree, time.Now(), proctree.Slowly)) || over
		g.peeling = !g.tree.OnlySiblings()
	}
	g.errands.step()
	if !g.peeling && !g.starting {
		g.settleUp()
	}
	g.spawnNext()
	if g.callerGone && !g.starting && len(g.spawns) == 0 && !over {
		over = g.news(g.tree.Reap())
	}
	return !(g.callerGone && over && !g.starting && len(g.spawns) == 0 && len(g.fallen) == 0 && !g.errands.left())
}

// lookSoon is how often the guard looks what has become of a supervisor that it was
// asked about.
const lookSoon = 10 * time.Millisecond

// seeDead finds supervisors that have died without our being told. Who traces one
// keeps it as a zombie; what it had held has fallen to us all the same.
func (g *warden) seeDead() {
	look := func(s *supervised) {
		if !s.dead && g.living[s.pid] == s && g.tree.SiblingDied(s.pid) {
			g.died(s)
		}
	}
	if g.callerGone {
		for _, s := range g.living {
			look(s)
		}
	}
	for _, q := range g.questions {
		look(q.supervisor)
	}
}

// died notes that a supervisor has died, so that what it held falls to us.
func (g *warden) died(s *supervised) {
	if !s.dead {
		s.dead = true
		g.fallen = append(g.fallen, s)
	}
}

// wakeWards resumes supervisors that somebody has suspended, and ends those that
// do not stay awake; their trees fall to us.
func (g *warden) wakeWards() {
	for _, pid := range g.tree.SuspendedSiblings() {
		s := g.living[pid]
		if s == nil {
			continue // it has ended
		}
		if s.asleep++; s.asleep > suspendedFor {
			g.tree.EndSibling(pid)
		} else {
			g.tree.ResumeSibling(pid)
		}
	}
}

// news handles what was seen of the children, and reports whether there is none.
func (g *warden) news(ev proctree.Event) (none bool) {
	if ev.StartDone {
		g.starting = false
		order := g.spawns[0]
		g.spawns = g.spawns[1:]
		s := order.supervisor
		if ev.StartErr != nil {
			_ = wire.SendOn(order.socket, wire.Refusal(ev.StartErr))
			s.dead, s.swept = true, true
			delete(g.supervisors, s.id)
		} else {
			s.pid, s.group = ev.PID, proctree.GroupName(ev.PID, s.id)
			g.living[s.pid] = s
			_ = wire.SendOn(order.socket, &wire.Message{Spawned: &wire.Spawned{PID: s.pid}}) // a caller that is gone needs no supervisor
		}
		closeAll([]int{order.socket, order.caller, order.stderr})
	}
	for _, pid := range ev.Siblings {
		s := g.living[pid]
		delete(g.living, pid)
		g.tree.EndGroup(s.group)
		g.died(s)
	}
	return ev.Empty
}

// settleUp notes what the supervisors that have died had left, now that nothing
// of it is there any more, and answers who has asked.
func (g *warden) settleUp() {
	if len(g.fallen) > 0 {
		var report wire.Swept
		var waiting []*supervised
		tree := g.tree.Summary()
		report.Ended, report.EndedMore = tree.Ended, tree.EndedMore
		for _, s := range g.fallen {
			rest := g.tree.EndGroup(s.group) // now that it can be removed
			report.Left = rest.Populated
			if s.groupUntil.IsZero() {
				s.groupUntil = time.Now().Add(groupLimit)
			}
			if report.Left && time.Now().Before(s.groupUntil) {
				waiting = append(waiting, s)
				continue
			}
			if rest.Remove != nil {
				g.errands.run(wire.RemoveLimit, rest.Remove, func(error) {})
			}
			s.report, s.swept = report, true
			g.swept = append(g.swept, s)
			g.carryOut(s)
		}
		if g.fallen = waiting; len(waiting) == 0 {
			g.tree.Forget()
		}
		for len(g.swept) > keepSwept {
			delete(g.supervisors, g.swept[0].id)
			g.swept = g.swept[1:]
		}
	}
	g.questions = slices.DeleteFunc(g.questions, func(q question) bool {
		if s := q.supervisor; !s.swept || s.busy > 0 {
			return false
		}
		s := q.supervisor
		s.report.Left = s.report.Left && g.tree.EndGroup(s.group).Populated
		_ = wire.SendOn(q.socket, &wire.Message{Swept: &s.report}) // who does not listen need not know
		unix.Close(q.socket)
		return true
	})
}

// carryOut does what a supervisor, of which nothing else is left, has left to do.
func (g *warden) carryOut(s *supervised) {
	d := s.duties
	if s.duties = nil; d == nil {
		return
	}
	s.busy++
	write := func() {
		if !d.Journal || g.writeEnd == nil {
			s.busy--
			return
		}
		report := &wire.Done{Cleanup: s.report.Cleanup()}
		g.errands.run(wire.WriteLimit, func() error { return g.writeEnd(d.ID, report) }, func(err error) {
			if err != nil {
				s.report.Journal = err.Error()
			}
			s.busy--
		})
	}
	if d.TempDir == nil || g.remove == nil {
		write()
		return
	}
	if s.report.Left {
		s.report.TempDirs = append(s.report.TempDirs, keptTempDir(d.TempDir, errInUse))
		write()
		return
	}
	g.errands.run(wire.RemoveLimit, func() error { return g.remove(d.TempDir) }, func(err error) {
		if err != nil {
			s.report.TempDirs = append(s.report.TempDirs, keptTempDir(d.TempDir, err))
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
		Path: g.exe, Argv: []string{wire.SupervisorName, g.callerPID, g.exe}, Env: append(slices.Clip(g.env), wire.IDVar+"="+order.supervisor.id), Dir: g.root,
		Files: []int{g.null, g.null, order.stderr, order.socket, order.caller}, Sibling: true,
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
	return listenTo(g.conn, g.handle, func(*wire.Message) error {
		return nil // who asked finds its socket closed
	})
}

func (g *warden) handle(m *wire.Message, _ []byte, files []int) error {
	switch {
	case m.Spawn != nil:
		if !isSocket(files[0]) {
			// With anything else as its control socket the copy of the program
			// would not see that it is a helper, and go on as the program.
			closeAll(files)
			return fmt.Errorf("%w: a supervisor without a socket", wire.ErrProtocol)
		}
		id := m.Spawn.ID
		if !wire.ValidID(id) || g.supervisors[id] != nil {
			closeAll(files)
			return fmt.Errorf("%w: a supervisor with the id %.20q", wire.ErrProtocol, id)
		}
		s := &supervised{id: id}
		g.supervisors[id] = s
		g.spawns = append(g.spawns, spawnOrder{s, files[0], files[1], files[2]})
	case m.Watch != nil:
		if m.Watch.Duties != nil {
			if err := m.Watch.Duties.TempDir.Check(); err != nil {
				return err
			}
		}
		s := g.supervisors[m.Watch.ID]
		if s == nil {
			return nil // it is long gone, which the caller has yet to find out
		}
		if len(g.errands.all) > keepSwept {
			return fmt.Errorf("%w: more than %d supervisors that are not there", wire.ErrProtocol, keepSwept)
		}
		s.duties = m.Watch.Duties
		if s.swept {
			g.carryOut(s) // it has died meanwhile
		}
	case m.Lost != nil:
		s := g.supervisors[m.Lost.ID]
		if s == nil {
			s = &supervised{swept: true} // long ago, or there was none
		}
		g.questions = append(g.questions, question{s, files[0]})
	default:
		closeAll(files)
		return fmt.Errorf("%w: a message that is not for the guard", wire.ErrProtocol)
	}
	return nil
}
