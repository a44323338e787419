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

// duties are what the supervisor has to do when nothing is left of v, and the
// guard if the supervisor is lost.
func (v *invocation) duties() wire.Duties {
	return wire.Duties{ID: v.id, TempDir: v.temp, Journal: v.a.journal != nil}
}

// enter records v, before anything of it can run, in the journal and with the guard of
// the supervisor that will take it, and makes the temporary directory in between: the
// journal has to know its name before, and the guard gets to know it by its identity.
func (v *invocation) enter(helper *supervisor.Client) *outcome.StartError {
	if j := v.a.journal; j != nil {
		b := journal.Begin{ID: v.id, Program: v.cmd.Path, Owner: v.cmd.Owner, Session: v.session != nil, Began: v.began,
			Holder: helper.PID(), Cgroup: helper.Cgroup(), Group: helper.Group(), TempDir: v.tempPath}
		if err := j.Begin(b); err != nil {
			return &outcome.StartError{Op: "write the journal for", Path: v.cmd.Path, Err: err}
		}
		v.entered = true
	}
	if v.tempPath != "" {
		d, err := scratch.Make(v.tempPath)
		if err != nil {
			return tempDirError(v.cmd.Path, err)
		}
		v.temp = wire.NewTempDir(d)
	}
	if v.watched() {
		d := v.duties()
		helper.Watch(&d)
	}
	return nil
}

// watched reports whether the guard has something to do should v's supervisor die.
func (v *invocation) watched() bool { return v.entered || v.temp != nil }

// writeEnd writes the end of v, which those who should have done so cannot, within
// its own limit and until the given time.
func (v *invocation) writeEnd(c *outcome.Cleanup, until time.Time) {
	if v.a.journal == nil {
		return
	}
	report, err := json.Marshal(&wire.Done{NotExecuted: v.helper == nil, Cleanup: *c})
	if err == nil {
		err = bounded(sooner(until, time.Now().Add(wire.WriteLimit)), func() error {
			return journal.WriteEnd(v.a.journal.Dir(), v.id, journal.End{Writer: "caller", At: time.Now(), Report: report})
		})
	}
	if err != nil {
		c.JournalError = err.Error()
	}
}

// delivered takes note that the caller gets to know the end.
func (v *invocation) delivered() {
	if !v.entered {
		return
	}
	until := time.Now().Add(wire.WriteLimit)
	if !v.limit.IsZero() {
		until = sooner(until, v.limit)
	}
	if err := bounded(until, func() error { return v.a.journal.Delivered(v.id) }); err != nil {
		v.outcome.Cleanup.JournalError = err.Error()
	}
}

func tempDirError(program string, err error) *outcome.StartError {
	return &outcome.StartError{Op: "make a temporary directory for", Path: program, Err: err}
}

// dropTempDir removes the directory of an invocation that did not begin.
func (v *invocation) dropTempDir() {
	v.outcome.Cleanup.TempDirs = removeTempDir(v.temp, time.Now().Add(wire.RemoveLimit+ackLimit))
}

// removeTempDir removes the directory of an invocation whose helpers cannot, within
// its own limit and until the given time.
func removeTempDir(temp *wire.TempDir, until time.Time) []outcome.TempDir {
	if temp == nil {
		return nil
	}
	return removeWithin(string(temp.Path), until, temp.Dir().Remove)
}

// removeWithin removes the directory path with remove, within its own limit and until
// the given time.
func removeWithin(path string, until time.Time, remove func(until time.Time) error) []outcome.TempDir {
	err := bounded(sooner(until, time.Now().Add(wire.RemoveLimit+ackLimit)), func() error {
		return remove(time.Now().Add(wire.RemoveLimit))
	})
	if err == nil {
		return nil
	}
	return []outcome.TempDir{{Path: path, Error: err.Error()}}
}

// bounded returns what do returns, unless it has not returned by the given time, or
// after 100 ms if that is later: a file system can hang.
func bounded(until time.Time, do func() error) error {
	result := make(chan error, 1)
	go func() { result <- do() }()
	select {
	case err := <-result:
		return err
	case <-time.After(max(time.Until(until), abandonAfter)):
		return errors.New("its file system does not answer")
	}
}

// Recovered is an invocation of a caller that died before it got to know the end.
type Recovered struct {
	// Outcome is how it ended: outcome.StatusUnknown with outcome.CauseHostLost, unless
	// the CLI had ended by itself before. There is no output.
	Outcome outcome.Outcome
	Program string // as it was named
	Owner   string
	Session bool
	Began   time.Time
}

// errNoJournal is what Recover returns without a journal.
var errNoJournal = errors.New("adapter: recover: there is no journal; set Options.StateDir")

// Recover returns what callers with the same StateDir had in flight when they
// died, each once: what one Recover has returned, no other will. Callers that are
// alive are not disturbed. For supervisors that are still ending something it
// waits, at most 30 s or until ctx ends; those whose supervisor and guard are
// lost too are swept for, and their cleanup is outcome.CleanupUnverified.
//
// What is returned is valid beside an error, which joins what could not be
// recovered yet and which records cannot be read. Those stay where they are.
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
			err = errors.Join(err, fmt.Errorf("adapter: recover %s: its end is not understood: %w", e.Begin.ID, bad))
		}
		list = append(list, Recovered{Outcome: o, Program: e.Begin.Program, Owner: e.Begin.Owner, Session: e.Begin.Session, Began: e.Begin.Began})
	}
	return list, err
}

// recoverLimit is how long Recover waits for supervisors that are still ending
// something: longer than the default bound, and shorter than people have patience
// at a start.
const recoverLimit = 30 * time.Second

// sweepLimit is the most that Recover takes to sweep for one invocation. It ends
// when two scans of all processes have found nothing, which on a machine under load
// can take seconds, and nobody has been promised a bound here.
const sweepLimit = 5 * time.Second

// settleLost sees to what an invocation has left whose helpers are all gone.
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
		report = nil // of plain values: it cannot be
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
			o.Cleanup.TempDirs = nil // it was removed since; there is one at most
		}
	}
	o.Err = verdict.Err(&o, verdict.Why{Program: e.Begin.Program})
	return o, bad
}
