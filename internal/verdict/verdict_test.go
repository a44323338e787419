package verdict

import (
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"

	. "curfew/outcome"
)

func code(n int) *Exit  { return &Exit{Code: n} }
func death(n int) *Exit { return &Exit{Code: -1, Signal: n} }

func afterStop(e *Exit) *Exit {
	c := *e
	c.AfterStop = true
	return &c
}

func TestDecide(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name   string
		facts  Facts
		status Status
		cause  Cause
		exit   *Exit
	}{
		// The leader ends by itself.
		{"exit 0", Facts{ExecSeen: true, Exit: code(0)}, StatusSucceeded, CauseExit, code(0)},
		{"exit 3", Facts{ExecSeen: true, Exit: code(3)}, StatusFailed, CauseExit, code(3)},
		{"death by a signal", Facts{ExecSeen: true, Exit: death(11)}, StatusFailed, CauseExit, death(11)},
		{"death with a core dump", Facts{ExecSeen: true, Exit: &Exit{Code: -1, Signal: 6, CoreDumped: true}},
			StatusFailed, CauseExit, &Exit{Code: -1, Signal: 6, CoreDumped: true}},
		{"after_stop as given is not read", Facts{ExecSeen: true, Exit: afterStop(code(0))}, StatusSucceeded, CauseExit, code(0)},

		// An exit and a stop.
		{"exit 0 just before the timeout was acted on",
			Facts{ExecSeen: true, Exit: code(0), ExitBeforeStop: true, StopCause: CauseTimeout, StopBegan: true},
			StatusSucceeded, CauseExit, code(0)},
		{"exit 0 before a cancellation without effect",
			Facts{ExecSeen: true, Exit: code(0), StopCause: CauseCanceled},
			StatusSucceeded, CauseExit, code(0)},
		{"exit 1 before the output limit was acted on",
			Facts{ExecSeen: true, Exit: code(1), ExitBeforeStop: true, StopCause: CauseOutputLimit, StopBegan: true},
			StatusFailed, CauseExit, code(1)},
		{"exit 0 after the timeout: SIGTERM trapped",
			Facts{ExecSeen: true, Exit: code(0), StopCause: CauseTimeout, StopBegan: true},
			StatusUnknown, CauseTimeout, afterStop(code(0))},
		{"exit 3 after a cancellation",
			Facts{ExecSeen: true, Exit: code(3), StopCause: CauseCanceled, StopBegan: true},
			StatusUnknown, CauseCanceled, afterStop(code(3))},
		{"death by our SIGTERM",
			Facts{ExecSeen: true, Exit: death(15), StopCause: CauseShutdown, StopBegan: true},
			StatusUnknown, CauseShutdown, afterStop(death(15))},
		{"the output limit, then death by SIGPIPE",
			Facts{ExecSeen: true, Exit: death(13), StopCause: CauseOutputLimit, StopBegan: true},
			StatusUnknown, CauseOutputLimit, afterStop(death(13))},
		{"the caller dies",
			Facts{ExecSeen: true, Exit: death(15), StopCause: CauseHostLost, StopBegan: true},
			StatusUnknown, CauseHostLost, afterStop(death(15))},
		{"the caller dies after the exit",
			Facts{ExecSeen: true, Exit: code(0), ExitBeforeStop: true, StopCause: CauseHostLost, StopBegan: true},
			StatusSucceeded, CauseExit, code(0)},
		{"a leader that survives the stop",
			Facts{ExecSeen: true, StopCause: CauseTimeout, StopBegan: true},
			StatusUnknown, CauseTimeout, nil},
		{"a stop before it was known whether it executed",
			Facts{StopCause: CauseCanceled, StopBegan: true},
			StatusUnknown, CauseCanceled, nil},
		{"a stop asked for that never began, and no exit",
			Facts{ExecSeen: true, StopCause: CauseCanceled},
			StatusUnknown, CauseCanceled, nil},

		// Leftovers.
		{"leftovers get the ladder",
			Facts{ExecSeen: true, Exit: code(0), ExitBeforeStop: true, StopCause: CauseExit, StopBegan: true},
			StatusSucceeded, CauseExit, code(0)},
		{"a cancellation while leftovers linger",
			Facts{ExecSeen: true, Exit: code(4), ExitBeforeStop: true, StopCause: CauseCanceled, StopBegan: true},
			StatusFailed, CauseExit, code(4)},
		{"the supervisor is lost while leftovers linger",
			Facts{ExecSeen: true, Exit: code(0), ExitBeforeStop: true, SupervisorLost: true},
			StatusSucceeded, CauseExit, code(0)},

		// AfterExit: Wait.
		{"wait: exit and an empty tree",
			Facts{ExecSeen: true, Exit: code(0), WaitTree: true},
			StatusSucceeded, CauseExit, code(0)},
		{"wait: a stop when the leader had exited and the tree was not empty",
			Facts{ExecSeen: true, Exit: code(0), ExitBeforeStop: true, WaitTree: true, StopCause: CauseTimeout, StopBegan: true},
			StatusUnknown, CauseTimeout, code(0)},
		{"wait: a stop before the exit",
			Facts{ExecSeen: true, Exit: code(0), WaitTree: true, StopCause: CauseTimeout, StopBegan: true},
			StatusUnknown, CauseTimeout, afterStop(code(0))},
		{"wait: the tree was empty just before the stop was acted on",
			Facts{ExecSeen: true, Exit: code(2), ExitBeforeStop: true, WaitTree: true, EmptyBeforeStop: true, StopCause: CauseTimeout, StopBegan: true},
			StatusFailed, CauseExit, code(2)},
		{"wait: the supervisor is lost before the tree is empty",
			Facts{ExecSeen: true, Exit: code(0), ExitBeforeStop: true, WaitTree: true, SupervisorLost: true},
			StatusUnknown, CauseSupervisorLost, code(0)},

		// The supervisor is lost.
		{"lost before it was known whether it executed",
			Facts{SupervisorLost: true},
			StatusUnknown, CauseSupervisorLost, nil},
		{"lost before the CLI could be executed",
			Facts{ExecRuledOut: true, SupervisorLost: true},
			StatusNotStarted, CauseSupervisorLost, nil},
		{"lost while the CLI runs",
			Facts{ExecSeen: true, SupervisorLost: true},
			StatusUnknown, CauseSupervisorLost, nil},
		{"lost, and the guard reaps a leader with exit 0",
			Facts{ExecSeen: true, Exit: code(0), SupervisorLost: true},
			StatusUnknown, CauseSupervisorLost, afterStop(code(0))},
		{"lost during a stop",
			Facts{ExecSeen: true, StopCause: CauseTimeout, StopBegan: true, SupervisorLost: true},
			StatusUnknown, CauseTimeout, nil},
		{"a cancellation that the supervisor does not answer",
			Facts{ExecSeen: true, StopCause: CauseCanceled, SupervisorLost: true},
			StatusUnknown, CauseCanceled, nil},
		{"lost, and then canceled",
			Facts{ExecSeen: true, StopCause: CauseSupervisorLost, StopBegan: true, SupervisorLost: true},
			StatusUnknown, CauseSupervisorLost, nil},
		{"lost after a stop and the exit it led to",
			Facts{ExecSeen: true, Exit: death(9), StopCause: CauseShutdown, StopBegan: true, SupervisorLost: true},
			StatusUnknown, CauseShutdown, afterStop(death(9))},

		// The start.
		{"no such file", Facts{ExecRuledOut: true, StartFailed: true}, StatusNotStarted, CauseStartFailed, nil},
		{"no such file, and then a cancellation",
			Facts{ExecRuledOut: true, StartFailed: true, FailedBeforeRequest: true, StopCause: CauseCanceled},
			StatusNotStarted, CauseStartFailed, nil},
		{"a cancellation, and then no such file",
			Facts{ExecRuledOut: true, StartFailed: true, StopCause: CauseCanceled},
			StatusNotStarted, CauseCanceled, nil},
		{"canceled before the start", Facts{ExecRuledOut: true, StopCause: CauseCanceled}, StatusNotStarted, CauseCanceled, nil},
		{"timed out before the start", Facts{ExecRuledOut: true, StopCause: CauseTimeout}, StatusNotStarted, CauseTimeout, nil},
		{"shut down before the start", Facts{ExecRuledOut: true, StopCause: CauseShutdown}, StatusNotStarted, CauseShutdown, nil},
		{"an exec that hangs is killed before it took place",
			Facts{ExecRuledOut: true, StopCause: CauseTimeout, StopBegan: true},
			StatusNotStarted, CauseTimeout, nil},
		{"canceled before the start, the supervisor lost",
			Facts{ExecRuledOut: true, StopCause: CauseCanceled, SupervisorLost: true},
			StatusNotStarted, CauseCanceled, nil},
		{"no such file, the supervisor lost afterwards",
			Facts{ExecRuledOut: true, StartFailed: true, SupervisorLost: true},
			StatusNotStarted, CauseStartFailed, nil},
		{"the exit of a child that could not execute",
			Facts{ExecRuledOut: true, StartFailed: true, Exit: code(0)},
			StatusNotStarted, CauseStartFailed, nil},
		{"a start error that proves nothing", Facts{StartFailed: true}, StatusUnknown, CauseSupervisorLost, nil},

		// Sessions.
		{"session: stopped by its owner",
			Facts{ExecSeen: true, Exit: death(15), SessionStop: true, StopCause: CauseCanceled, StopBegan: true},
			StatusStopped, CauseCanceled, afterStop(death(15))},
		{"session: stopped by a shutdown",
			Facts{ExecSeen: true, Exit: code(0), SessionStop: true, StopCause: CauseShutdown, StopBegan: true},
			StatusStopped, CauseShutdown, afterStop(code(0))},
		{"session: idle",
			Facts{ExecSeen: true, Exit: death(15), SessionStop: true, StopCause: CauseIdle, StopBegan: true},
			StatusStopped, CauseIdle, afterStop(death(15))},
		{"session: asked to stop, and no exit seen",
			Facts{ExecSeen: true, SessionStop: true, StopCause: CauseShutdown, StopBegan: true},
			StatusUnknown, CauseShutdown, nil},
		{"session: asked to stop, the supervisor lost",
			Facts{ExecSeen: true, SessionStop: true, StopCause: CauseShutdown, StopBegan: true, SupervisorLost: true},
			StatusUnknown, CauseShutdown, nil},
		{"session: ended by itself just before the stop was acted on",
			Facts{ExecSeen: true, Exit: code(1), ExitBeforeStop: true, SessionStop: true, StopCause: CauseShutdown, StopBegan: true},
			StatusFailed, CauseExit, code(1)},
		{"session: timed out first, then asked to stop",
			Facts{ExecSeen: true, Exit: death(15), SessionStop: true, StopCause: CauseTimeout, StopBegan: true},
			StatusUnknown, CauseTimeout, afterStop(death(15))},
		{"session: its context is canceled",
			Facts{ExecSeen: true, Exit: death(15), StopCause: CauseCanceled, StopBegan: true},
			StatusUnknown, CauseCanceled, afterStop(death(15))},
		{"session: the caller dies during its stop",
			Facts{ExecSeen: true, Exit: death(15), SessionStop: true, StopCause: CauseHostLost, StopBegan: true},
			StatusUnknown, CauseHostLost, afterStop(death(15))},

		// Facts that cannot be, and facts that are missing.
		{"nothing", Facts{}, StatusUnknown, CauseSupervisorLost, nil},
		{"executed, and nothing more", Facts{ExecSeen: true}, StatusUnknown, CauseSupervisorLost, nil},
		{"exit 0 of what is not known to have been executed", Facts{Exit: code(0)}, StatusUnknown, CauseSupervisorLost, code(0)},
		{"executed and not executed", Facts{ExecSeen: true, ExecRuledOut: true, Exit: code(0)}, StatusUnknown, CauseSupervisorLost, code(0)},
		{"a code and a signal", Facts{ExecSeen: true, Exit: &Exit{Signal: 9}}, StatusUnknown, CauseSupervisorLost, nil},
		{"neither code nor signal", Facts{ExecSeen: true, Exit: code(-1)}, StatusUnknown, CauseSupervisorLost, nil},
		{"no such code", Facts{ExecSeen: true, Exit: code(256)}, StatusUnknown, CauseSupervisorLost, nil},
		{"a stop without a cause", Facts{ExecSeen: true, Exit: code(0), StopBegan: true}, StatusUnknown, CauseSupervisorLost, afterStop(code(0))},
		{"the ladder for leftovers before the exit",
			Facts{ExecSeen: true, Exit: code(0), StopCause: CauseExit, StopBegan: true},
			StatusUnknown, CauseSupervisorLost, afterStop(code(0))},
		{"an unknown cause", Facts{ExecRuledOut: true, StopCause: "boredom"}, StatusNotStarted, CauseStartFailed, nil},
	}
	seen := map[string]bool{}
	for _, tt := range tests {
		if seen[tt.name] {
			t.Errorf("two rows have the name %q", tt.name)
		}
		seen[tt.name] = true
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			status, cause, exit := Decide(tt.facts)
			if status != tt.status || cause != tt.cause {
				t.Errorf("got %s, %s, want %s, %s", status, cause, tt.status, tt.cause)
			}
			if d := cmp.Diff(tt.exit, exit); d != "" {
				t.Errorf("exit (-want +got):\n%s", d)
			}
		})
	}
}

func TestDecideLeavesTheFactsAlone(t *testing.T) {
	t.Parallel()
	e := code(0)
	_, _, got := Decide(Facts{ExecSeen: true, Exit: e, StopCause: CauseTimeout, StopBegan: true})
	if *e != (Exit{}) {
		t.Errorf("the exit given was changed: %+v", *e)
	}
	if got == e {
		t.Error("the exit returned is not a copy")
	}
}

// allFacts calls f with every combination of the booleans, of the causes and
// of exits that are possible and that are not.
func allFacts(f func(Facts)) {
	exits := []*Exit{nil, code(0), code(3), code(255), death(15), death(9),
		{Code: -1, Signal: 6, CoreDumped: true}, {AfterStop: true},
		code(-1), code(256), {Signal: 9}, {Code: 3, Signal: 9}, {CoreDumped: true}, {Code: -1, Signal: -9}}
	causes := []Cause{"", CauseExit, CauseTimeout, CauseCanceled, CauseShutdown, CauseIdle, CauseOutputLimit,
		CauseSupervisorLost, CauseHostLost, CauseStartFailed, "boredom"}
	for bits := range 1 << 10 {
		facts := Facts{}
		for i, b := range facts.bools() {
			*b = bits&(1<<i) != 0
		}
		for _, facts.Exit = range exits {
			for _, facts.StopCause = range causes {
				f(facts)
			}
		}
	}
}

func (f *Facts) bools() []*bool {
	return []*bool{&f.ExecSeen, &f.ExecRuledOut, &f.StartFailed, &f.FailedBeforeRequest, &f.ExitBeforeStop,
		&f.StopBegan, &f.SupervisorLost, &f.SessionStop, &f.WaitTree, &f.EmptyBeforeStop}
}

func TestDecideInvariants(t *testing.T) {
	t.Parallel()
	counts := map[Status]int{}
	allFacts(func(f Facts) {
		status, cause, exit := Decide(f)
		counts[status]++
		stopped := f.StopBegan || f.SupervisorLost

		broken := ""
		check := func(ok bool, invariant string) {
			if !ok {
				broken = invariant
			}
		}
		switch status {
		case StatusSucceeded:
			check(exit != nil && *exit == Exit{}, "succeeded only with exit code 0, not after a stop")
		case StatusFailed:
			check(exit != nil && exit.Code != 0 && !exit.AfterStop, "failed only with another exit, not after a stop")
		case StatusNotStarted:
			check(f.ExecRuledOut && !f.ExecSeen, "not started only if that is proven")
			check(exit == nil, "what was not started has no exit")
			check(cause != CauseExit, "what was not started did not exit")
		case StatusStopped:
			check(f.SessionStop && f.StopBegan, "stopped only if a session's owner asked for it")
			check(exit != nil, "stopped only if it ended")
			check(cause == CauseCanceled || cause == CauseShutdown || cause == CauseIdle, "stopped only by its owner")
		case StatusUnknown:
			check(cause != CauseExit && cause != CauseStartFailed, "unknown has the cause of a stop or a loss")
		default:
			check(false, "no such status")
		}
		own := status == StatusSucceeded || status == StatusFailed
		check(own == (cause == CauseExit), "the cause is exit for succeeded and failed, and for no other")
		if own {
			check(f.Exit != nil, "losing an exit is never a result")
			check(f.ExecSeen && !f.ExecRuledOut, "no exit without execution")
			check(!stopped || f.ExitBeforeStop, "unknown whenever a stop began before the exit was seen")
			check(!stopped || !f.WaitTree || f.EmptyBeforeStop, "not over before the tree is empty")
		}
		if exit != nil {
			check(f.Exit != nil && exit.Code == f.Exit.Code && exit.Signal == f.Exit.Signal, "an exit is never derived")
			check(valid(*exit), "an exit is a code or a signal")
			check(exit.AfterStop == (stopped && !f.ExitBeforeStop), "after_stop is the order of exit and stop")
		}
		if f.requested() && cause != CauseExit && cause != CauseStartFailed {
			check(cause == f.StopCause, "the first request is the cause")
		}
		if broken != "" {
			t.Fatalf("%s:\n%+v, exit %+v\ngot %s, %s, %+v", broken, f, f.Exit, status, cause, exit)
		}
	})
	for _, s := range []Status{StatusNotStarted, StatusSucceeded, StatusFailed, StatusUnknown, StatusStopped} {
		if counts[s] == 0 {
			t.Errorf("no combination of facts leads to %s", s)
		}
	}
}

// Bad news never turns an outcome that claims less into one that claims more.
func TestDecideBadNewsNeverHelps(t *testing.T) {
	t.Parallel()
	worsen := []struct {
		name string
		f    func(*Facts)
	}{
		{"a stop began", func(f *Facts) { f.StopBegan = true }},
		{"the supervisor was lost", func(f *Facts) { f.SupervisorLost = true }},
		{"the exit was not seen", func(f *Facts) { f.Exit = nil }},
		{"the exit came after the stop", func(f *Facts) { f.ExitBeforeStop = false }},
		{"the tree was not empty", func(f *Facts) { f.EmptyBeforeStop = false }},
		{"it is not known to have been executed", func(f *Facts) { f.ExecSeen = f.ExecSeen && f.ExecRuledOut }},
	}
	claims := func(f Facts) string {
		s, _, e := Decide(f)
		if s == StatusUnknown || s == StatusStopped {
			return ""
		}
		return fmt.Sprint(s, e)
	}
	allFacts(func(before Facts) {
		was := claims(before)
		for _, w := range worsen {
			after := before
			w.f(&after)
			if is := claims(after); is != "" && is != was {
				t.Fatalf("%s: from %q to %q:\n%+v", w.name, was, is, before)
			}
		}
	})
}
