// Package verdict makes an outcome of what was observed: Decide settles the status, the
// cause and the exit, Err states the same facts as an error. Both are pure functions.
package verdict

import "curfew/outcome"

// Facts are what was observed of one invocation. The zero value of each field
// is "not observed". Where the order of two events counts, the order is a fact
// too, as the process that did or saw both reports it: clocks do not tell it.
type Facts struct {
	// ExecSeen: it is known that the CLI was executed.
	ExecSeen bool
	// ExecRuledOut: it is proven that the CLI was not executed and will not be.
	ExecRuledOut bool
	// StartFailed: an attempt to execute it was made and answered with an
	// error. Not a proof: that is ExecRuledOut.
	StartFailed bool
	// FailedBeforeRequest: the start had failed before a stop was asked for. It is
	// not read without StopCause.
	FailedBeforeRequest bool

	// Exit is how the leader ended, nil if that was not seen. Its AfterStop is
	// not read.
	Exit *outcome.Exit
	// ExitBeforeStop: Exit was seen before the first action of a stop on the
	// tree, and reported before the supervisor was lost. It is not read if there was
	// neither.
	ExitBeforeStop bool

	// StopCause is the cause of the first stop request: CauseTimeout,
	// CauseCanceled, CauseShutdown, CauseIdle, CauseOutputLimit, CauseHostLost, or
	// CauseSupervisorLost if the loss came first. It is empty if there was
	// none. CauseExit, for the ladder that ends leftovers, counts as none.
	StopCause outcome.Cause
	// StopBegan: there was an action on the tree: its stdin closed to end it,
	// or a signal sent. A request alone is not an action.
	StopBegan bool
	// SupervisorLost: the supervisor died, hung or broke the protocol. The
	// leader dies with it, so it counts as the beginning of a stop.
	SupervisorLost bool

	// SessionStop: the stop was asked for by the owner of a session, as the
	// ordinary end of it: Session.Stop, StopOwner, Shutdown, or its idle time.
	SessionStop bool

	// WaitTree: the invocation is not over before the tree is empty
	// (adapter.AfterExitWait).
	WaitTree bool
	// EmptyBeforeStop: the tree was seen empty before a stop began or the
	// supervisor was lost. It is not read without WaitTree.
	EmptyBeforeStop bool
}

// Decide returns what the facts mean. It is the one place where it is decided which one
// wins when an exit, a deadline, a cancellation, a shutdown, a limit and the
// loss of a process fall together:
//
//   - Proof that the CLI was not executed comes first. The cause is the request
//     that prevented it, if there was one before the start failed by itself.
//   - An exit seen before a stop began is the CLI's own, whatever was asked for
//     or lost later; with WaitTree only if the tree was empty by then too.
//   - A session that its owner asked to end, and whose exit was seen, is
//     StatusStopped.
//   - All else is StatusUnknown, for the first cause that there was. An exit seen is
//     attached, and no code of it makes the status better.
//
// Facts that contradict each other (executed and not executed, a code and a
// signal) mean that the protocol was broken: StatusUnknown, never an exit code of 0.
//
// The Exit returned is a copy, with AfterStop set.
func Decide(f Facts) (outcome.Status, outcome.Cause, *outcome.Exit) {
	if f.ExecRuledOut && !f.ExecSeen {
		// An exit here is that of a process which never became the CLI.
		return outcome.StatusNotStarted, f.notStartedCause(), nil
	}
	exit := f.exit()
	known := f.ExecSeen && !f.ExecRuledOut && exit != nil
	switch {
	case known && f.endedByItself() && exit.Code == 0:
		return outcome.StatusSucceeded, outcome.CauseExit, exit
	case known && f.endedByItself():
		return outcome.StatusFailed, outcome.CauseExit, exit
	case known && f.endedByItsOwner():
		return outcome.StatusStopped, f.StopCause, exit
	case f.requested():
		return outcome.StatusUnknown, f.StopCause, exit
	default:
		return outcome.StatusUnknown, outcome.CauseSupervisorLost, exit
	}
}

func (f Facts) notStartedCause() outcome.Cause {
	switch {
	case f.requested() && !(f.StartFailed && f.FailedBeforeRequest):
		return f.StopCause
	case f.SupervisorLost && !f.StartFailed:
		return outcome.CauseSupervisorLost
	default:
		return outcome.CauseStartFailed
	}
}

// stopped reports whether something began to end the tree.
func (f Facts) stopped() bool { return f.StopBegan || f.SupervisorLost }

// endedByItself reports whether the invocation was over before anything began to end it.
func (f Facts) endedByItself() bool {
	return !f.stopped() || f.ExitBeforeStop && (!f.WaitTree || f.EmptyBeforeStop)
}

// endedByItsOwner reports whether a session was ended as its owner asked.
func (f Facts) endedByItsOwner() bool {
	owner := f.StopCause == outcome.CauseCanceled || f.StopCause == outcome.CauseShutdown || f.StopCause == outcome.CauseIdle
	return f.SessionStop && f.StopBegan && owner
}

// requested reports whether StopCause is the cause of a stop request.
func (f Facts) requested() bool {
	switch f.StopCause {
	case outcome.CauseTimeout, outcome.CauseCanceled, outcome.CauseShutdown, outcome.CauseIdle, outcome.CauseOutputLimit,
		outcome.CauseSupervisorLost, outcome.CauseHostLost:
		return true
	}
	return false
}

// exit returns a copy of f.Exit, or nil if no kernel reports such an exit.
func (f Facts) exit() *outcome.Exit {
	if f.Exit == nil || !valid(*f.Exit) {
		return nil
	}
	e := *f.Exit
	e.AfterStop = f.stopped() && !f.ExitBeforeStop
	return &e
}

// valid reports whether e is a code or a signal, and not both or neither. A
// wait status has 8 bits for the one and 7 for the other.
func valid(e outcome.Exit) bool {
	if e.Signal == 0 {
		return e.Code >= 0 && e.Code <= 255 && !e.CoreDumped
	}
	return e.Signal > 0 && e.Signal <= 127 && e.Code == -1
}
