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

// Recover gives the invocations in flight of callers that are dead or have
// closed their journal: those that have an end, and those whose caller's helpers
// are all gone. Invocations of this process are in flight for as long as
// their journal is open, whichever it is.
//
// For each, settle is called, to clean up. If the entry has no end, the one that
// settle returns is written, else what it returns is ignored. Then the record is
// moved to recovered/, and is given: the oldest first, with its end. settle can
// be called again for the same invocation, by a later Recover, if this one is
// killed or fails in between. It must not call Recover.
//
// An invocation is given at most once, by all who ever recover. A process that is
// killed after the moving and before Recover has returned has been given what
// nobody will be given again; it stays readable in recovered/.
//
// Recover waits for helpers that are still ending something, and for another
// Recover, at most for limit in all. What is not ready then is left for the
// next one and reported: ErrEnding, ErrRecovering. When ctx is done, the rest is
// left as well. What is damaged, foreign, of a newer version or not readable is
// left where it is and reported with a *RecordError. The errors are joined, and
// what is given is valid beside them.
func (j *Journal) Recover(ctx context.Context, limit time.Duration, settle func(Entry) End) ([]Entry, error) {
	if j.isClosed() {
		return nil, fmt.Errorf("journal: recover: %w", ErrClosed)
	}
	r := &recovery{
		j: j, settle: settle, wait: waiter{ctx: ctx, until: time.Now().Add(limit)},
		dead: map[string]bool{}, left: map[string]string{},
	}
	unlock, err := r.lock()
	if err != nil {
		return nil, fmt.Errorf("journal: recover: %w", err)
	}
	defer unlock()
	// Before anything is moved: what is given now is there until the next time,
	// however old it is.
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
		r.failed(fmt.Errorf("journal: recover: %d records are left: %w", len(pending), context.Cause(ctx)))
		pending = nil
	}
	for _, id := range pending {
		r.failed(&RecordError{recordFile(j.dir, id), ErrEnding})
	}
	r.moveAll()
	if len(r.given) > 0 {
		// Or a crash of the system brings them back, to be given once more.
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
	ready  []Entry // they have an end
	given  []Entry
	errs   []error

	dead map[string]bool   // of each peer that was asked for: whether its caller is dead
	left map[string]string // the peer of each record that is still in flight, by id
}

func (r *recovery) failed(err error) {
	if err != nil {
		r.errs = append(r.errs, err)
	}
}

// lock waits for its turn to recover: one at a time, in all processes.
func (r *recovery) lock() (unlock func(), err error) {
	path := pathpkg.Join(r.j.dir, recoverLock)
	wait := r.wait // with a back-off of its own
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

// take deals with one record that is in flight, and reports whether that is
// done: false means that helpers are still at it.
func (r *recovery) take(id string) (done bool) {
	entry, err := readRecord(r.j.dir, id)
	if errors.Is(err, fs.ErrNotExist) {
		return true // it was delivered meanwhile
	}
	if err != nil {
		r.failed(err)
		return true
	}
	peer := entry.Begin.Peer
	r.left[id] = peer
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
	// Again: what was read before these two were known may have changed since.
	if entry, err = readRecord(r.j.dir, id); errors.Is(err, fs.ErrNotExist) {
		delete(r.left, id)
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
		end = End{} // not written, and must not be a reason to fail
	}
	// In any case: the end that is there may not be durable yet.
	entry, err := writeEnd(path, id, end)
	if err != nil {
		return Entry{}, &RecordError{path, err}
	}
	return entry, nil
}

// moveAll moves the records that are ready to where nobody takes them again. That
// is done at last, when there is nothing more to wait for: who is killed while
// waiting has been given nothing.
func (r *recovery) moveAll() {
	for _, entry := range r.ready {
		id := entry.Begin.ID
		path := recordFile(r.j.dir, id)
		if err := sys.Rename(path, recordFile(pathpkg.Join(r.j.dir, recoveredDir), id)); err != nil {
			r.failed(&RecordError{path, err})
			continue
		}
		delete(r.left, id)
		r.given = append(r.given, entry)
	}
}

// removePeers removes the files of dead callers whose helpers are gone, unless a
// record refers to them that was left in flight. One that such a caller made
// after the directory was read does not count: without the files its caller is
// just as dead.
func (r *recovery) removePeers() error {
	entries, err := readDir(pathpkg.Join(r.j.dir, peersDir))
	if err != nil && len(entries) == 0 {
		return err
	}
	errs := []error{err}
	referred := map[string]bool{}
	for _, peer := range r.left {
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

// waiter waits between attempts, longer each time, until the time is over.
type waiter struct {
	ctx   context.Context
	until time.Time
	delay time.Duration
}

const (
	minDelay = time.Millisecond
	maxDelay = 50 * time.Millisecond
)

// next waits, and reports whether there is to be another attempt.
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

// maxEntries bounds how much of a directory is read: whoever runs as the same user can
// put anything there.
const maxEntries = 1 << 16

// readDir lists a directory as os.ReadDir does. One that is too large is an error, and
// a part of it is listed.
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
		err = fmt.Errorf("journal: %s has too many entries: %d were read; remove what is not of a journal", dir, maxEntries)
	case err == io.EOF:
		err = nil
	}
	return entries, err
}

// recordsIn returns the ids of the records in dir, as their files are named.
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

// prune removes what is too old or too much from a part of the history.
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
		// One that is gone was pruned by somebody else.
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

// removeUnfinished removes what writers left behind that were killed. One that
// was suspended for so long fails when it goes on.
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
			continue // also one that just got its name
		}
		if err := sys.Remove(pathpkg.Join(dir, entry.Name())); err != nil {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}
