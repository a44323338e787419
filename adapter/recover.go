package adapter

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"time"

	"curfew/internal/journal"
	"curfew/internal/scratch"
	"curfew/internal/supervisor"
	"curfew/internal/verdict"
	"curfew/internal/wire"
	"curfew/outcome"
)

// Recovered is an invocation of a caller that died before it got the outcome.
type Recovered struct {
	// Outcome is how it ended: outcome.StatusUnknown with outcome.CauseHostLost, unless
	// the CLI had ended by itself before. It has no output.
	Outcome outcome.Outcome
	Program string    // Command.Path
	Owner   string    // Command.Owner
	Session bool      // it was started by Start
	Began   time.Time // when Invoke or Start was called
}

// errNoJournal is the error of Recover without a journal.
var errNoJournal = errors.New("adapter: recover: there is no journal; set Options.StateDir")

// Recover returns the invocations that callers with the same Options.StateDir had in flight
// when they died. It returns each one once: a later Recover, also of another process, does not
// return it again. Callers that are alive are not disturbed. It waits for supervisors that are
// still ending something, at most for 30 s or until ctx ends. Where supervisor and guard are
// lost too, it sweeps for what is left, and the cleanup is outcome.CleanupUnverified.
//
// The invocations are valid also beside an error. The error joins those that could not be
// recovered yet and records that cannot be read; all of these stay in the journal.
func (a *Adapter) Recover(ctx context.Context) ([]Recovered, error) {
	caller := newCallerContext(ctx)
	defer caller.release()
	if a.journal == nil {
		return nil, errNoJournal
	}
	entries, err := a.journal.Recover(caller, recoverLimit, settleLost)
	list := make([]Recovered, 0, len(entries))
	for _, e := range entries {
		o, bad := recovered(e)
		if bad != nil {
			err = errors.Join(err, fmt.Errorf("adapter: recover %s: parse its end: %w", e.Begin.ID, bad))
		}
		list = append(list, Recovered{Outcome: o, Program: e.Begin.Program, Owner: e.Begin.Owner, Session: e.Begin.Session, Began: e.Begin.Began})
	}
	return list, err
}

// settleLost ends what is left of an invocation whose helpers are all gone.
func settleLost(e journal.Entry) journal.End {
	var done wire.Done
	began := time.Now()
	if e.End == nil {
		c := &done.Cleanup
		c.Result, c.Proof, c.HelperLost = outcome.CleanupUnverified, outcome.ProofNone, true
		c.Ended, c.Suspects = supervisor.Sweep(wire.Mark(e.Begin.ID), e.Begin.Cgroup, e.Begin.Group, e.Begin.Began, began.Add(sweepLimit))
	}
	if path := e.Begin.TempDir; path != "" {
		done.Cleanup.TempDirs = removeWithin(path, began.Add(sweepLimit+wire.RemoveLimit+ackLimit), func(until time.Time) error { return scratch.RemoveNamed(path, until) })
	}
	done.Cleanup.Elapsed = time.Since(began)
	report, err := json.Marshal(&done)
	if err != nil {
		report = nil // which cannot be: it has plain values alone
	}
	return journal.End{Writer: "recover", At: time.Now(), Report: report}
}

// recovered makes the outcome of a record.
func recovered(e journal.Entry) (outcome.Outcome, error) {
	var done wire.Done
	var bad error
	if e.End != nil {
		bad = json.Unmarshal(e.End.Report, &done)
	}
	o := outcome.Outcome{ID: e.Begin.ID, Usage: done.Usage, Cleanup: done.Cleanup}
	f := verdict.Facts{
		ExecSeen: done.Started, ExecRuledOut: done.NotExecuted, Exit: done.Exit, StopCause: outcome.CauseHostLost,
		StopBegan: done.StopBegan, SupervisorLost: done.Cleanup.HelperLost, EmptyBeforeStop: !done.StopBegan,
		ExitBeforeStop: done.Exit != nil && !done.Exit.AfterStop,
	}
	if done.StopCause != "" {
		f.StopCause = done.StopCause
	}
	o.Status, o.Cause, o.Exit = verdict.Decide(f)
	if e.End != nil {
		o.Ended = e.End.At
		o.Elapsed = max(o.Ended.Sub(e.Begin.Began), 0)
	}
	for _, d := range o.Cleanup.TempDirs {
		if _, err := os.Lstat(d.Path); errors.Is(err, os.ErrNotExist) {
			o.Cleanup.TempDirs = nil // it was removed since; an invocation has one at most
		}
	}
	o.Err = verdict.Err(&o, verdict.Why{Program: e.Begin.Program})
	return o, bad
}
