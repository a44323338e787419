package journal

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	pathpkg "path"
	"slices"
	"strings"
	"time"

	"curfew/internal/lease"
	"curfew/internal/sys"
)

// Recover returns the invocations in flight of callers that are dead or have
// closed their journal: those that have an end, and those whose caller's helpers
// have all ended. It does not return invocations of this process whose journal is
// open.
//
// For each invocation Recover calls settle, which cleans up. If the entry has no end, the
// end that settle returns is written; else it is ignored. Then the record moves to
// recovered/. The invocations are returned with their ends, the oldest first. If Recover
// fails or is killed in between, a later Recover may call settle for the same invocation
// again. settle must not call Recover.
//
// All Recovers together return an invocation at most once. If a process is killed after it
// moved a record and before Recover returned, no other Recover returns that invocation;
// its record stays in recovered/.
//
// Recover waits for helpers that are still ending something, and for another
// Recover, at most for limit in all. What is not ready then stays in flight for a
// later Recover; the error wraps ErrEnding or ErrRecovering. The same holds when ctx is
// done. A record that is damaged, foreign, of a newer version or not readable stays where
// it is; the error holds a *RecordError for it. The errors are joined, and the invocations
// that are returned beside them are valid.
func (j *Journal) Recover(ctx context.Context, limit time.Duration, settle func(Entry) End) ([]Entry, error) {
	if j.isClosed() {
		return nil, fmt.Errorf("journal: recover: %w", ErrClosed)
	}
	r := &recovery{
		j: j, settle: settle, wait: waiter{ctx: ctx, until: time.Now().Add(limit)},
		dead: map[string]bool{}, inFlight: map[string]string{},
	}
	unlock, err := r.lock()
	if err != nil {
		return nil, fmt.Errorf("journal: recover: %w", err)
	}
	defer unlock()
	// Before any record moves: what this call returns stays until the next call, however old
	// it is.
	r.failed(j.prune(endedDir))
	r.failed(j.prune(recoveredDir))
	r.failed(j.removeUnfinished(j.dir))
	r.failed(j.removeUnfinished(pathpkg.Join(j.dir, peersDir)))

	pending, err := recordsIn(j.dir)
	r.failed(err)
	for {
		pending = slices.DeleteFunc(pending, func(id string) bool { return ctx.Err() == nil && r.take(id) })
		if len(pending) == 0 || !r.wait.next() {
			break
		}
	}
	if ctx.Err() != nil {
		r.failed(fmt.Errorf("journal: recover: %d records are not recovered: %w", len(pending), context.Cause(ctx)))
		pending = nil
	}
	for _, id := range pending {
		r.failed(&RecordError{recordFile(j.dir, id), ErrEnding})
	}
	r.moveAll()
	if len(r.given) > 0 {
		// Otherwise a crash of the system brings them back, and they are returned once more.
		r.failed(syncDir(pathpkg.Join(j.dir, recoveredDir)))
		r.failed(syncDir(j.dir))
	}
	if ctx.Err() == nil {
		r.failed(r.removePeers())
	}
	slices.SortStableFunc(r.given, func(a, b Entry) int { return a.Begin.Began.Compare(b.Begin.Began) })
	return r.given, errors.Join(r.errs...)
}

type recovery struct {
	j      *Journal
	settle func(Entry) End
	wait   waiter
	ready  []Entry // settled; each has an end
	given  []Entry // to be returned
	errs   []error

	dead     map[string]bool   // whether the caller is dead, by peer
	inFlight map[string]string // the peer of each record that is still in flight, by id
}

func (r *recovery) failed(err error) {
	if err != nil {
		r.errs = append(r.errs, err)
	}
}

// lock waits until no other process recovers.
func (r *recovery) lock() (unlock func(), err error) {
	path := pathpkg.Join(r.j.dir, recoverLock)
	wait := r.wait // a copy, with a back-off of its own
	for {
		turn, err := lease.TryLock(path)
		switch {
		case err == nil:
			return turn.Release, nil
		case !errors.Is(err, lease.ErrHeld):
			return nil, err
		case wait.next():
		case r.wait.ctx.Err() != nil:
			return nil, context.Cause(r.wait.ctx)
		default:
			return nil, ErrRecovering
		}
	}
}

// take settles one record in flight, if it is to be recovered. It reports false if helpers
// are still ending the invocation.
func (r *recovery) take(id string) (done bool) {
	entry, err := readRecord(r.j.dir, id)
	if errors.Is(err, fs.ErrNotExist) {
		return true // it was delivered in the meantime
	}
	if err != nil {
		r.failed(err)
		return true
	}
	peer := entry.Begin.Peer
	r.inFlight[id] = peer
	dead, known := r.dead[peer]
	if !known {
		dead, err = callerDead(r.j.dir, peer)
		r.failed(err)
		r.dead[peer] = dead
	}
	if !dead {
		return true
	}
	gone, err := helpersGone(r.j.dir, peer)
	if err != nil {
		r.failed(err)
		return true
	}
	// Once more: the record may have changed before these two were known.
	if entry, err = readRecord(r.j.dir, id); errors.Is(err, fs.ErrNotExist) {
		delete(r.inFlight, id)
		return true
	}
	if err == nil && entry.End == nil && !gone {
		return false
	}
	if err == nil {
		entry, err = r.finish(entry)
	}
	if err != nil {
		r.failed(err)
		return true
	}
	r.ready = append(r.ready, entry)
	return true
}

// finish settles an invocation and writes its end.
func (r *recovery) finish(entry Entry) (Entry, error) {
	id := entry.Begin.ID
	path := recordFile(r.j.dir, id)
	end := r.settle(entry)
	if entry.End != nil {
		end = End{} // it is not written, and must not make writeEnd fail
	}
	// Also with an end: it may not be durable yet.
	entry, err := writeEnd(path, id, end)
	if err != nil {
		return Entry{}, &RecordError{path, err}
	}
	return entry, nil
}

// moveAll moves the records that are ready to recovered/. It comes last, when nothing is
// waited for any more: a process that is killed while it waits has taken no record.
func (r *recovery) moveAll() {
	for _, entry := range r.ready {
		id := entry.Begin.ID
		path := recordFile(r.j.dir, id)
		if err := sys.Rename(path, recordFile(pathpkg.Join(r.j.dir, recoveredDir), id)); err != nil {
			r.failed(&RecordError{path, err})
			continue
		}
		delete(r.inFlight, id)
		r.given = append(r.given, entry)
	}
}

// removePeers removes the files of dead callers whose helpers have ended, unless a record
// in flight refers to them. A record that such a caller made after the directory was read
// does not count: without files its caller is dead as well.
func (r *recovery) removePeers() error {
	entries, err := readDir(pathpkg.Join(r.j.dir, peersDir))
	if err != nil && len(entries) == 0 {
		return err
	}
	errs := []error{err}
	referred := map[string]bool{}
	for _, peer := range r.inFlight {
		referred[peer] = true
	}
	for _, entry := range entries {
		peer, isCaller := strings.CutSuffix(entry.Name(), callerSuffix)
		if !isCaller {
			var isHelpers bool
			if peer, isHelpers = strings.CutSuffix(entry.Name(), helpersSuffix); !isHelpers {
				continue
			}
		}
		if !validName(peer) || referred[peer] {
			continue
		}
		dead, err := callerDead(r.j.dir, peer)
		gone := false
		if dead && err == nil {
			gone, err = helpersGone(r.j.dir, peer)
		}
		if gone && err == nil {
			err = sys.Remove(callerFile(r.j.dir, peer))
		}
		if err != nil {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// waiter waits between attempts, longer each time, until a deadline.
type waiter struct {
	ctx   context.Context
	until time.Time
	delay time.Duration
}

const (
	minDelay = time.Millisecond
	maxDelay = 50 * time.Millisecond
)

// next waits, and reports whether there is time for another attempt.
func (w *waiter) next() bool {
	left := time.Until(w.until)
	if left <= 0 || w.ctx.Err() != nil {
		return false
	}
	w.delay = min(max(2*w.delay, minDelay), maxDelay)
	timer := time.NewTimer(min(w.delay, left))
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-w.ctx.Done():
		return false
	}
}

// maxEntries bounds how much of a directory is read: any program of this user can
// put files there.
const maxEntries = 1 << 16

// readDir lists a directory as os.ReadDir does. If the directory is too large, it returns a
// part of the list and an error.
func readDir(dir string) ([]fs.DirEntry, error) {
	f, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	entries, err := f.ReadDir(maxEntries)
	slices.SortFunc(entries, func(a, b fs.DirEntry) int { return strings.Compare(a.Name(), b.Name()) })
	switch {
	case len(entries) == maxEntries:
		err = fmt.Errorf("journal: %s has too many entries: %d were read; remove what does not belong to a journal", dir, maxEntries)
	case err == io.EOF:
		err = nil
	}
	return entries, err
}

// recordsIn returns the ids of the records in dir, taken from the names of their files.
func recordsIn(dir string) ([]string, error) {
	entries, err := readDir(dir)
	var ids []string
	for _, entry := range entries {
		if id, ok := strings.CutSuffix(entry.Name(), suffix); ok {
			ids = append(ids, id)
		}
	}
	return ids, err
}

// prune removes the records of a part of the history that are too old or too many.
func (j *Journal) prune(part string) error {
	dir := pathpkg.Join(j.dir, part)
	ids, err := recordsIn(dir)
	if err != nil && len(ids) == 0 {
		return err
	}
	errs := []error{err}
	type record struct {
		path  string
		wrote time.Time
	}
	var records []record
	for _, id := range ids {
		path := recordFile(dir, id)
		// One that does not exist was pruned by another process.
		if info, err := os.Lstat(path); err == nil && info.Mode().IsRegular() && validName(id) {
			records = append(records, record{path, info.ModTime()})
		}
	}
	slices.SortFunc(records, func(a, b record) int {
		return cmp.Or(b.wrote.Compare(a.wrote), strings.Compare(a.path, b.path))
	})
	oldest := time.Now().Add(-j.historyAge)
	for i, record := range records {
		if i < j.historyCount && !record.wrote.Before(oldest) {
			continue
		}
		if err := sys.Remove(record.path); err != nil {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// removeUnfinished removes the unfinished files of writers that were killed. A writer that
// was suspended for so long fails when it is resumed.
func (j *Journal) removeUnfinished(dir string) error {
	entries, err := readDir(dir)
	if err != nil && len(entries) == 0 {
		return err
	}
	errs := []error{err}
	oldest := time.Now().Add(-j.unfinishedAge)
	for _, entry := range entries {
		if !strings.HasPrefix(entry.Name(), tempPre) || !entry.Type().IsRegular() {
			continue
		}
		if info, err := entry.Info(); err != nil || !info.ModTime().Before(oldest) {
			continue // also if it was renamed in the meantime
		}
		if err := sys.Remove(pathpkg.Join(dir, entry.Name())); err != nil {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}
