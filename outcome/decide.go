package outcome

// Facts are what was observed of one invocation. The zero value of each field
// is "not observed". Where the order of two events counts, the order is a fact
// too, as the one who did both or saw both had it: a clock does not tell it.
type Facts struct {
	// ExecSeen: it is known that the CLI was executed.
	ExecSeen bool
	// ExecRuledOut: it is proven that the CLI was not executed and will not be.
	ExecRuledOut bool
	// StartFailed: an attempt to execute it was made and answered with an
	// error. Not a proof: that is ExecRuledOut.
	StartFailed bool
	// FailedBeforeRequest: it had failed before a stop was asked for. Not read
	// without StopCause.
	FailedBeforeRequest bool

	// Exit is how the leader ended, nil if that was not seen. Its AfterStop is
	// not read.
	Exit *Exit
	// ExitBeforeStop: Exit was seen before the first action of a stop on the
	// tree, and reported before the supervisor was lost. Not read if there was
	// neither.
	ExitBeforeStop bool

	// StopCause is the cause of the first stop request: CauseTimeout,
	// CauseCanceled, CauseShutdown, CauseIdle, CauseOutputLimit, CauseHostLost, or
	// CauseSupervisorLost if the loss was what came first. Empty if there was
	// none. CauseExit, for the ladder that ends leftovers, counts as none.
	StopCause Cause
	// StopBegan: there was an action on the tree: its stdin closed to end it,
	// or a signal sent. A request that nobody acted on is not one.
	StopBegan bool
	// SupervisorLost: the supervisor died, hung or broke the protocol. The
	// leader dies with it, so it counts as the beginning of a stop.
	SupervisorLost bool

	// SessionStop: the stop was asked for by the owner of a session, as the
	// ordinary end of it: Session.Stop, StopOwner, Shutdown, or its idle time.
	SessionStop bool

	// WaitTree: the invocation is not over before the tree is empty
	// (AfterExit: Wait).
	WaitTree bool
	// EmptyBeforeStop: the tree was seen empty before a stop began or the
	// supervisor was lost. Not read without WaitTree.
	EmptyBeforeStop bool
}

// Decide says what the facts mean. It is the one place where it is decided who
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
// The Exit returned is a copy, with AfterStop set. Decide is a pure function.
func Decide(f Facts) (Status, Cause, *Exit) {
	if f.ExecRuledOut && !f.ExecSeen {
		// An exit here is that of a process which never became the CLI.
		return StatusNotStarted, f.notStartedCause(), nil
	}

	stopped := f.StopBegan || f.SupervisorLost
	exit := f.exit(stopped && !f.ExitBeforeStop)
	known := f.ExecSeen && !f.ExecRuledOut && exit != nil
	over := !f.WaitTree || !stopped || f.EmptyBeforeStop

	switch {
	case known && !exit.AfterStop && over && exit.Code == 0:
		return StatusSucceeded, CauseExit, exit
	case known && !exit.AfterStop && over:
		return StatusFailed, CauseExit, exit
	case known && f.SessionStop && f.StopBegan && (f.StopCause == CauseCanceled || f.StopCause == CauseShutdown || f.StopCause == CauseIdle):
		return StatusStopped, f.StopCause, exit
	case f.requested():
		return StatusUnknown, f.StopCause, exit
	default:
		return StatusUnknown, CauseSupervisorLost, exit
	}
}

func (f Facts) notStartedCause() Cause {
	switch {
	case f.requested() && !(f.StartFailed && f.FailedBeforeRequest):
		return f.StopCause
	case f.SupervisorLost && !f.StartFailed:
		return CauseSupervisorLost
	default:
		return CauseStartFailed
	}
}

// requested reports whether StopCause is the cause of a stop request.
func (f Facts) requested() bool {
	switch f.StopCause {
	case CauseTimeout, CauseCanceled, CauseShutdown, CauseIdle, CauseOutputLimit, CauseSupervisorLost, CauseHostLost:
		return true
	}
	return false
}

// exit returns a copy of f.Exit, or nil if it is none that a kernel reports.
func (f Facts) exit(afterStop bool) *Exit {
	if f.Exit == nil || !f.Exit.valid() {
		return nil
	}
	e := *f.Exit
	e.AfterStop = afterStop
	return &e
}

// valid reports whether e is a code or a signal, and not both or neither. A
// wait status has 8 bits for the one and 7 for the other.
func (e Exit) valid() bool {
	if e.Signal == 0 {
		return e.Code >= 0 && e.Code <= 255 && !e.CoreDumped
	}
	return e.Signal > 0 && e.Signal <= 127 && e.Code == -1
}
