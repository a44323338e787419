package supervisor

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"curfew/internal/wire"
	"curfew/outcome"
	"curfew/proctree"
)

// scriptedTree is a made-up tree: it reports what a test has put into it, and complains
// about a call that the contract does not allow at this time.
type scriptedTree struct {
	proctree.Tree // nil: a method that is not here is not to be called
	t             *testing.T
	fd            int

	news      proctree.Event // not reported yet
	starting  bool
	progress  proctree.StartProgress
	empty     bool // reported again and again
	held      bool // what Holds returns
	populated bool // what StrikeCgroup returns
	more      bool // what Members returns
	signals   []string
	strikes   int
}

func (s *scriptedTree) notDuringStart(method string) {
	if s.starting {
		s.t.Errorf("%s is called during a start", method)
	}
}

func (s *scriptedTree) FD() int                 { return s.fd }
func (s *scriptedTree) LeaderFD() int           { s.notDuringStart("LeaderFD"); return -1 }
func (s *scriptedTree) Next() (never time.Time) { return never }
func (s *scriptedTree) Start(*proctree.Spec)    { s.starting = true }

func (s *scriptedTree) StartProgress() proctree.StartProgress {
	if s.starting && s.progress == proctree.StartExecuted {
		s.news.StartDone, s.news.PID = true, 4711 // which the next Collect reports
	}
	return s.progress
}

func (s *scriptedTree) Summary() (none proctree.Summary) { return none }
func (s *scriptedTree) Survivors() []outcome.Survivor    { return make([]outcome.Survivor, 1) }

func (s *scriptedTree) Holds(time.Time) bool { s.notDuringStart("Holds"); return s.held }

func (s *scriptedTree) Members(int) ([]proctree.Member, bool) {
	s.notDuringStart("Members")
	return make([]proctree.Member, 1), s.more
}

func (s *scriptedTree) StrikeCgroup() bool {
	if !s.empty {
		s.t.Error("the cgroup is struck before the tree is empty")
	}
	return s.populated
}

func (s *scriptedTree) Signal(syscall.Signal) {
	s.notDuringStart("Signal")
	s.signals = append(s.signals, "caller's")
}

func (s *scriptedTree) Terminate(_ syscall.Signal, to proctree.Recipients, _ time.Time) (int, bool) {
	s.notDuringStart("Terminate")
	s.signals = append(s.signals, map[proctree.Recipients]string{proctree.ToLeader: "leader", proctree.ToFeeders: "feeders", proctree.ToOthers: "others"}[to])
	return 1, false
}

func (s *scriptedTree) Strike(bool) (none proctree.Struck) { s.strikes++; return none }

func (s *scriptedTree) Collect(killing bool) (ev proctree.Event) {
	ev.StartDone, ev.StartErr, ev.PID = s.news.StartDone, s.news.StartErr, s.news.PID
	s.news.StartDone = false
	s.starting = s.starting && !ev.StartDone
	if !killing {
		ev.Exit, ev.Empty, ev.Proof = s.news.Exit, s.empty, s.news.Proof
		s.news.Exit = nil
	}
	return ev
}

func (s *scriptedTree) Reap() (ev proctree.Event) {
	if !s.starting {
		ev = s.Collect(false)
	}
	return ev
}

// scriptedRun is a run over a scripted tree. Its calls last until the test ends them.
type scriptedRun struct {
	*run
	tree             *scriptedTree
	caller           *wire.Conn
	removed, written chan error
	words            string // what the caller was sent, a letter for each message
	report           *wire.Done
}

const (
	runTimeout = time.Second // shorter than all that follows
	runPause   = time.Minute // Linger, Grace and KillWait
)

func runScript(t *testing.T, change func(*wire.Run), events string, each func(event string, r *scriptedRun)) {
	synctest.Test(t, func(t *testing.T) {
		pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer closeAll(pair[:])
		null := nullDescriptor() // always readable
		defer unix.Close(null)
		r := &scriptedRun{tree: &scriptedTree{t: t, fd: null}, caller: wire.NewHelperConn(pair[0]), removed: make(chan error, 1), written: make(chan error, 1)}
		l := &loop{conn: wire.NewHelperConn(pair[1]), control: pair[1], caller: -1,
			removeDir: func(*wire.TempDir) error { return <-r.removed },
			writeEnd:  func(string, *wire.Done) error { return <-r.written }}
		m := &wire.Run{Settings: settings()}
		m.Timeout, m.Linger, m.Grace, m.KillWait = runTimeout, runPause, runPause, runPause
		m.Journal, m.TempDir, m.Numbers = true, &wire.TempDir{}, nil
		if change != nil {
			change(m)
		}
		r.run = newRun(l, r.tree, m, &wire.Request{Dir: -1}, 0)
		for event := range strings.FieldsSeq(events) {
			r.happen(t, event)
			each(event, r)
		}
		close(r.removed)
		close(r.written)
		synctest.Wait()
		if l.calls.opened {
			unix.Close(l.calls.fd)
		}
	})
}

// happen makes one event happen, or several at once.
func (r *scriptedRun) happen(t *testing.T, events string) {
	for event := range strings.SplitSeq(events, "+") {
		tree := r.tree
		switch event {
		case "executed":
			tree.news.StartDone, tree.news.PID = true, 4711
		case "failed":
			tree.news.StartDone, tree.news.StartErr = true, &proctree.StartError{Op: "exec", Err: syscall.ENOENT}
		case "exit":
			tree.news.Exit = &outcome.Exit{}
		case "empty":
			tree.empty, tree.news.Proof = true, outcome.ProofNoChildren
		case "suspects":
			tree.empty, tree.news.Proof = true, outcome.ProofNone
		case "known":
			tree.progress = proctree.StartExecuted
		case "ruled-out":
			tree.progress = proctree.StartRuledOut
		case "held":
			tree.held = true
		case "free": // for the next look
			tree.held = false
			time.Sleep(50 * time.Millisecond)
		case "populated":
			tree.populated = true
		case "vacated":
			tree.populated = false
		case "crowd":
			tree.more = true
		case "stop":
			r.stop(&wire.StopRequest{Cause: outcome.CauseCanceled})
		case "kill":
			r.stop(&wire.StopRequest{Cause: outcome.CauseCanceled, Kill: true})
		case "other-stop":
			r.stop(&wire.StopRequest{Cause: outcome.CauseShutdown})
		case "lost":
			r.loop.callerGone = true
			r.stop(&wire.StopRequest{Cause: outcome.CauseHostLost})
		case "signal":
			r.signal(syscall.SIGHUP)
		case "removed":
			r.removed <- nil
		case "kept":
			r.removed <- errors.New("busy")
		case "written":
			r.written <- nil
		case "timeout":
			time.Sleep(runTimeout)
		case "pause":
			time.Sleep(runPause)
		case "group-limit":
			time.Sleep(cgroupLimit)
		case "leave-limit":
			time.Sleep(leaveLimit)
		case "third":
			time.Sleep(runPause / 3)
		case "remove-limit":
			time.Sleep(wire.RemoveLimit)
		case "write-limit":
			time.Sleep(wire.WriteLimit)
		default:
			t.Fatalf("no such event: %s", event)
		}
	}
	synctest.Wait() // for calls
	r.step()
	r.loop.calls.finish()
	r.descriptors()
	next := r.next()
	if !next.IsZero() && !next.After(time.Now()) && !r.tree.more {
		t.Errorf("after %s, %s, the loop would spin", events, r.state())
	}
	limit := runPause
	if r.phase == phaseEmptying {
		limit = cgroupEvery
	}
	if r.phase > phaseRunning && r.phase < phaseCleaning && (next.IsZero() || next.After(time.Now().Add(limit))) {
		t.Errorf("after %s, %s, the next step is at %v", events, r.state(), next)
	}
	for {
		err := r.caller.Fill()
		if err == wire.ErrEmpty {
			return
		} else if err != nil {
			t.Fatal(err)
		}
		for {
			m, _, _, err := r.caller.Next()
			if err != nil {
				t.Fatal(err)
			}
			if m == nil {
				break
			}
			r.words += words(t, []*wire.Message{m})
			if m.Done != nil {
				r.report = m.Done
			}
		}
	}
}

var phaseNames = []string{"starting", "running", "lingering", "stopping", "killing", "background", "emptying", "cleaning", "reporting", "ended"}

func (r *scriptedRun) state() string {
	if r.ended() {
		return "ended"
	}
	return phaseNames[r.phase]
}

// TestRunPhases is the table of phase: for each, how a run comes to it and what leads on from
// it. Everything else that can happen in it leaves it as it is.
func TestRunPhases(t *testing.T) {
	always := []string{"stop", "kill", "lost", "timeout", "signal", "removed", "written"}
	for _, tt := range []struct {
		phase, reached string
		next           map[string]string
		stays          string // further events that change nothing
	}{
		{"starting", "ruled-out", map[string]string{"executed": "running", "failed": "running", "failed+empty": "cleaning", "stop": "killing", "kill": "killing", "lost": "killing", "timeout": "killing"}, ""},
		{"running", "executed", map[string]string{"exit": "stopping", "held+exit": "lingering", "exit+empty": "cleaning", "empty": "cleaning", "stop": "stopping", "kill": "killing", "lost": "stopping", "timeout": "stopping"}, "held"},
		{"lingering", "executed held+exit", map[string]string{"free": "stopping", "pause": "stopping", "stop": "stopping", "kill": "killing", "lost": "stopping", "empty": "cleaning"}, ""},
		{"stopping", "executed stop", map[string]string{"kill": "killing", "pause": "killing", "empty": "cleaning"}, "exit third"},
		{"killing", "executed kill", map[string]string{"pause": "background", "empty": "cleaning"}, "exit"},
		{"killing", "kill", map[string]string{"pause": "background", "failed+empty": "cleaning"}, "executed failed"},
		{"background", "executed kill pause", map[string]string{"empty": "cleaning"}, "exit pause populated"},
		{"emptying", "executed populated+exit+empty", map[string]string{"vacated": "cleaning", "group-limit": "reporting", "timeout": "reporting"}, ""},
		{"cleaning", "executed exit+empty", map[string]string{"removed": "reporting", "kept": "reporting", "remove-limit": "reporting"}, ""},
		{"reporting", "executed exit+empty removed", map[string]string{"written": "ended", "write-limit": "ended", "timeout": "ended"}, ""},
	} {
		for _, event := range append(append([]string(nil), always...), strings.Fields(tt.stays)...) {
			if tt.next[event] == "" {
				tt.next[event] = tt.phase
			}
		}
		for event, want := range tt.next {
			t.Run(tt.phase+"/"+event, func(t *testing.T) {
				last := ""
				runScript(t, nil, tt.reached+" "+event, func(_ string, r *scriptedRun) {
					if last = r.state(); r.phase > phaseStarting && r.phase < phaseKilling && r.tree.strikes > 0 {
						t.Error("it strikes before it kills")
					}
				})
				if last != want {
					t.Errorf("%s leads to %s, want %s", event, last, want)
				}
			})
		}
	}
}

// TestRunReports tells whole runs, by their events: what the caller is sent, which signals the
// tree gets, and what the report says.
func TestRunReports(t *testing.T) {
	leave := func(m *wire.Run) { m.AfterExit = wire.AfterExitLeave }
	wait := func(m *wire.Run) { m.AfterExit = wire.AfterExitWait }
	type want struct {
		words, signals, state string
		result                outcome.CleanupResult
		stopped               outcome.Cause
		check                 func(d *wire.Done) bool
	}
	for name, tt := range map[string]struct {
		change func(*wire.Run)
		events string
		want   want
	}{
		"the leader exits": {nil, "executed exit+empty removed written", want{"SED", "", "ended", outcome.CleanupEmpty, "", func(d *wire.Done) bool {
			return d.Started && !d.Exit.AfterStop && len(d.Cleanup.Steps) == 0 && len(d.Cleanup.TempDirs) == 0
		}}},
		"nothing is executed": {nil, "failed+empty removed written", want{"ND", "", "ended", outcome.CleanupEmpty, "", func(d *wire.Done) bool { return d.NotExecuted && !d.Started }}},
		"a stop":              {nil, "executed stop third exit+empty removed written", want{"STED", "leader others", "ended", outcome.CleanupEmpty, outcome.CauseCanceled, func(d *wire.Done) bool { return d.Exit.AfterStop }}},
		"a stop is acknowledged once, and the first counts": {nil, "executed lost+stop kill exit+empty removed written", want{"S", "leader", "ended", "", "", nil}},
		"two stops":                                       {nil, "executed stop kill stop exit+empty removed written", want{"STED", "leader", "ended", outcome.CleanupEmpty, outcome.CauseCanceled, nil}},
		"a stop during the start is not polite":           {nil, "stop failed+empty removed written", want{"TND", "", "ended", outcome.CleanupEmpty, outcome.CauseCanceled, nil}},
		"a stop of a leader that is known to run":         {nil, "known+stop exit+empty removed written", want{"STED", "leader", "ended", outcome.CleanupEmpty, outcome.CauseCanceled, nil}},
		"an exit that is there at the stop was before it": {nil, "executed exit+stop empty removed written", want{"SETD", "feeders", "ended", outcome.CleanupEmpty, "", func(d *wire.Done) bool { return !d.Exit.AfterStop }}},
		"an empty tree at the stop":                       {nil, "executed exit+empty+stop removed written", want{"SETD", "", "ended", outcome.CleanupEmpty, "", nil}},
		"the timeout":                                     {nil, "executed timeout exit+empty removed written", want{"STED", "leader", "ended", outcome.CleanupEmpty, outcome.CauseTimeout, nil}},
		"the timeout is not for leftovers":                {nil, "executed held+exit timeout free empty removed written", want{"SED", "feeders", "ended", outcome.CleanupEmpty, "", nil}},
		"leftovers that others feed get the signal later": {nil, "executed exit third empty removed written", want{"SED", "feeders others", "ended", outcome.CleanupEmpty, "", nil}},
		"a late signal of the caller":                     {nil, "executed signal stop signal kill signal exit+empty signal removed written", want{"STED", "caller's leader caller's", "ended", outcome.CleanupEmpty, outcome.CauseCanceled, nil}},
		"survivors": {nil, "executed kill pause written exit stop empty removed", want{"STD", "", "ended", outcome.CleanupSurvivors, outcome.CauseCanceled, func(d *wire.Done) bool {
			return len(d.Cleanup.Survivors) == 1 && d.Exit == nil && len(d.Cleanup.TempDirs) == 1
		}}},
		"survivors that end before they are reported":       {nil, "executed kill pause exit+empty kept stop written", want{"STD", "", "ended", outcome.CleanupSurvivors, outcome.CauseCanceled, func(d *wire.Done) bool { return len(d.Cleanup.TempDirs) == 1 }}},
		"a start that cannot be ended":                      {nil, "kill ruled-out+pause written", want{"TD", "", "background", outcome.CleanupSurvivors, outcome.CauseCanceled, func(d *wire.Done) bool { return d.NotExecuted }}},
		"a stop after survivors of leftovers were reported": {nil, "executed exit pause pause stop written", want{"SED", "feeders", "background", outcome.CleanupSurvivors, "", nil}},
		"the first cause counts":                            {wait, "executed stop other-stop exit+empty removed written", want{"STED", "leader", "ended", outcome.CleanupEmpty, outcome.CauseCanceled, nil}},
		"the timeout comes when nothing was executed":       {nil, "failed+empty timeout removed written", want{"ND", "", "ended", outcome.CleanupEmpty, "", nil}},
		"a kill while the cgroup is not empty":              {nil, "executed populated+exit+empty kill vacated removed written", want{"SETD", "", "ended", outcome.CleanupEmpty, "", func(d *wire.Done) bool { return len(d.Cleanup.Steps) == 0 }}},
		"left":                                              {leave, "executed exit written", want{"SED", "", "ended", outcome.CleanupLeft, "", func(d *wire.Done) bool { return len(d.Cleanup.LeftAlive) == 1 && len(d.Cleanup.TempDirs) == 1 }}},
		"the list of what is left takes long":               {leave, "crowd executed exit leave-limit written", want{"SED", "", "ended", outcome.CleanupLeft, "", nil}},
		"a stop while it is listed":                         {leave, "crowd executed exit stop written", want{"SETD", "", "ended", outcome.CleanupLeft, "", nil}},
		"nothing is left of what is stopped": {leave, "executed stop exit kill empty removed written", want{"STED", "leader others", "ended", outcome.CleanupEmpty, outcome.CauseCanceled, func(d *wire.Done) bool {
			return slices.ContainsFunc(d.Cleanup.Steps, func(s outcome.Step) bool { return s.Name == outcome.StepKill })
		}}},
		"the whole tree is awaited":              {wait, "executed exit held empty removed written", want{"SED", "", "ended", outcome.CleanupEmpty, "", nil}},
		"a stop while the rest is awaited":       {wait, "executed exit stop empty removed written", want{"SETD", "others", "ended", outcome.CleanupEmpty, outcome.CauseCanceled, nil}},
		"the timeout is for all that is awaited": {wait, "executed exit timeout empty removed written", want{"SETD", "others", "ended", outcome.CleanupEmpty, outcome.CauseTimeout, nil}},
		"suspects":                               {nil, "executed exit+suspects written", want{"SED", "", "ended", outcome.CleanupUnverified, "", func(d *wire.Done) bool { return d.Cleanup.Proof == outcome.ProofNone && len(d.Cleanup.TempDirs) == 1 }}},
		"the cgroup is not empty":                {nil, "executed populated+exit+empty group-limit written", want{"SED", "", "ended", outcome.CleanupUnverified, "", nil}},
		"the cgroup becomes empty":               {nil, "executed populated+exit+empty vacated removed written", want{"SED", "", "ended", outcome.CleanupEmpty, "", nil}},
		"the directory is kept":                  {nil, "executed exit+empty kept written", want{"SED", "", "ended", outcome.CleanupEmpty, "", func(d *wire.Done) bool { return d.Cleanup.TempDirs[0].Error == "busy" }}},
		"the removal hangs":                      {nil, "executed exit+empty remove-limit written", want{"SED", "", "ended", outcome.CleanupEmpty, "", func(d *wire.Done) bool { return strings.Contains(d.Cleanup.TempDirs[0].Error, "goes on") }}},
		"the record hangs":                       {nil, "executed exit+empty removed stop write-limit", want{"SETD", "", "ended", outcome.CleanupEmpty, "", func(d *wire.Done) bool { return d.Cleanup.JournalError == errLate.Error() }}},
		"a stop after the report":                {nil, "executed exit+empty removed written stop", want{"SED", "", "ended", outcome.CleanupEmpty, "", nil}},
	} {
		t.Run(name, func(t *testing.T) {
			var got want
			var report *wire.Done
			runScript(t, tt.change, tt.events, func(_ string, r *scriptedRun) {
				got.words, got.signals, got.state, report = r.words, strings.Join(r.tree.signals, " "), r.state(), r.report
			})
			if report != nil {
				got.result, got.stopped = report.Cleanup.Result, report.StopCause
				if tt.want.check != nil && !tt.want.check(report) {
					t.Errorf("the report is %+v", report)
				}
				if report.StopBegan != (report.StopCause != "") {
					t.Errorf("a stop began: %v, for %q", report.StopBegan, report.StopCause)
				}
			}
			got.check, tt.want.check = nil, nil
			if fmt.Sprint(got) != fmt.Sprint(tt.want) {
				t.Errorf("got %+v, want %+v", got, tt.want)
			}
		})
	}
}
