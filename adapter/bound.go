package adapter

import (
	"time"

	"curfew/internal/wire"
)

// This file has every limit of the package, with its reason, and the one sum that
// the bound of a stop is.
//
// The bound of a stop is one absolute time, fixed when the stop is asked for. With L
// as the time that the ladder may take, and D as Drain, it is spent like this:
//
//	1 s           the supervisor acknowledges the stop
//	2 s           ... if it is not suspended: a machine under load may give it no turn
//	L + 1 s       it reports
//	L + 1.5 s     ... if it is not suspended
//	L + 2.5 s     the guard, or a sweep, has ended what a lost supervisor has left
//	L + D + 2.5 s the output is drained
//	L + D + 2.8 s code of the caller's that does not return is abandoned
//	L + D + 3 s   Invoke returns
//
// Each wait is cut to what is left. A step that is early leaves its time to the steps
// after it, and nothing adds.
const (
	// ackLimit is how long a supervisor may take to acknowledge a stop, and how
	// much longer than its ladder it may take to report. A supervisor that takes
	// longer is lost: it is killed.
	ackLimit = time.Second
	// ackSpare and reportSpare are added for a supervisor that is not suspended.
	ackSpare    = time.Second
	reportSpare = time.Second / 2
	// loseLimit is the least time that the guard has to end what a lost supervisor
	// has left, and the most that a sweep may take.
	loseLimit = time.Second
	// turnLimit is how long a goroutine that nothing holds up may take to get its
	// turn on the processor, and lastTurn the part of it that is never cut.
	turnLimit = time.Second
	lastTurn  = 300 * time.Millisecond
	// jitter is how late the caller itself may be without having been suspended.
	jitter = ackLimit / 4
	// boundSlack is what all of the above adds to the waits of the policy.
	boundSlack = 3 * time.Second
)

// Limits that are not part of the sum, because something else bounds them or no
// bound was promised.
const (
	// abandonAfter is how long code of the caller's that is under way at the end may
	// take before its goroutine is abandoned. It only has to tell code that is about
	// to return from code that never will.
	abandonAfter = 100 * time.Millisecond
	// dyingLimit is how long Session.Stop waits for the exit of a CLI whose output has
	// ended. The kernel closes the descriptors of a dying process microseconds before
	// it tells the parent, on an idle machine.
	dyingLimit = 100 * time.Millisecond
	// retryLimit bounds another look at a tree that was not shown to be empty. Its
	// supervisor strikes what is left in the background, at least every 5 s.
	retryLimit = 6 * time.Second
	// recoverLimit is how long Recover waits for supervisors that are still ending
	// something: longer than the default bound, and shorter than people are patient
	// at a start.
	recoverLimit = 30 * time.Second
	// sweepLimit is the most that Recover takes to sweep for one invocation. A sweep
	// ends after two scans of all processes that have found nothing, which can take
	// seconds on a machine under load.
	sweepLimit = 5 * time.Second
	// maxWait is what any longer time counts as: sums of times must not overflow.
	maxWait = 10 * 365 * 24 * time.Hour
)

// waits are the parts of a bound that differ between commands.
type waits struct {
	ladder time.Duration // from the beginning of the stop to the report
	linger time.Duration // from the leader's own exit to the beginning of the ladder for leftovers
	drain  time.Duration // from the empty tree to the end of the output
}

// waits returns the waits of c. With journal, the end is written to disk before it is
// reported.
func (c *Command) waits(journal bool) waits {
	p := c.stopPolicy()
	w := waits{ladder: p.StdinGrace + p.Grace + p.KillWait, linger: p.Linger, drain: p.Drain}
	if c.TempDir {
		w.ladder += wire.RemoveLimit
	}
	if journal {
		w.ladder += wire.WriteLimit
	}
	return w
}

// bound is the sum.
func (w waits) bound() time.Duration { return w.ladder + w.linger + w.drain + boundSlack }

// Bound returns the longest time from the request to stop c, by whatever means, to
// the return of Invoke, or to the end of the session: the sum of the waits of c.Stop
// and 4 s, of which one is for the disk of Options.StateDir, and 2 s with TempDir.
// Nothing that the CLI, a reader, a writer or a lost helper does makes it longer.
func (c Command) Bound() time.Duration { return c.waits(true).bound() }
