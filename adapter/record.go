package adapter

import (
	"encoding/json"
	"errors"
	"time"

	"curfew/internal/journal"
	"curfew/internal/scratch"
	"curfew/internal/supervisor"
	"curfew/internal/wire"
	"curfew/outcome"
)

// record is what there is of an invocation on disk.
type record struct {
	tempPath string        // of the temporary directory to be made; "" if none is wanted
	temp     *wire.TempDir // nil until it was made
	entered  bool          // there is a record in the journal
}

// watched reports whether the guard has something to do should the supervisor die.
func (r *record) watched() bool { return r.entered || r.temp != nil }

// duties returns what the supervisor has to do when the tree is empty, and the guard if the
// supervisor is lost.
func (v *invocation) duties() wire.Duties {
	return wire.Duties{ID: v.id, TempDir: v.disk.temp, Journal: v.a.journal != nil}
}

// enter records v before any process of it can run: in the journal, and with the guard of
// its supervisor. It makes the temporary directory in between: the journal needs the name
// before the directory exists, and the guard needs its identity.
func (v *invocation) enter(helper *supervisor.Client) *outcome.StartError {
	if j := v.a.journal; j != nil {
		b := journal.Begin{ID: v.id, Program: v.cmd.Path, Owner: v.cmd.Owner, Session: v.hooks.session, Began: v.began,
			Holder: helper.PID(), Cgroup: helper.Cgroup(), Group: helper.Group(), TempDir: v.disk.tempPath}
		if err := j.Begin(b); err != nil {
			return &outcome.StartError{Op: "write the journal for", Path: v.cmd.Path, Err: err}
		}
		v.disk.entered = true
	}
	if v.disk.tempPath != "" {
		d, err := scratch.Make(v.disk.tempPath)
		if err != nil {
			return tempDirError(v.cmd.Path, err)
		}
		v.disk.temp = wire.NewTempDir(d)
	}
	if v.disk.watched() {
		d := v.duties()
		helper.Watch(&d)
	}
	return nil
}

// writeEnd writes the end of v to the journal, in place of helpers that cannot. It takes at
// most WriteLimit, and not longer than until the given time.
func (v *invocation) writeEnd(c *outcome.Cleanup, until time.Time) {
	if v.a.journal == nil {
		return
	}
	report, err := json.Marshal(&wire.Done{NotExecuted: !v.control.requested(), Cleanup: *c})
	if err == nil {
		err = bounded(sooner(until, time.Now().Add(wire.WriteLimit)), func() error {
			return journal.WriteEnd(v.a.journal.Dir(), v.id, journal.End{Writer: "caller", At: time.Now(), Report: report})
		})
	}
	if err != nil {
		c.JournalError = err.Error()
	}
}

// delivered notes in the journal that the caller got the outcome.
func (v *invocation) delivered() {
	if !v.disk.entered {
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

// dropTempDir removes the directory of an invocation that was not started.
func (v *invocation) dropTempDir() {
	v.outcome.Cleanup.TempDirs = removeTempDir(v.disk.temp, time.Now().Add(wire.RemoveLimit+ackLimit))
}

// removeTempDir removes a temporary directory in place of helpers that cannot, as
// removeWithin does.
func removeTempDir(temp *wire.TempDir, until time.Time) []outcome.TempDir {
	if temp == nil {
		return nil
	}
	return removeWithin(string(temp.Path), until, temp.Dir().Remove)
}

// removeWithin removes the directory path with remove. It takes at most RemoveLimit and
// ackLimit, and not longer than until the given time.
func removeWithin(path string, until time.Time, remove func(until time.Time) error) []outcome.TempDir {
	err := bounded(sooner(until, time.Now().Add(wire.RemoveLimit+ackLimit)), func() error {
		return remove(time.Now().Add(wire.RemoveLimit))
	})
	if err == nil {
		return nil
	}
	return []outcome.TempDir{{Path: path, Error: err.Error()}}
}

// bounded runs do and returns its error. A file system can hang: if do has not returned by
// the given time, and after 100 ms, bounded returns an error and leaves it running.
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
