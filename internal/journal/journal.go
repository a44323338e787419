// Package journal keeps on disk which invocations are in flight, so that the end of each
// becomes known even if the caller is killed. The caller writes a record before an
// invocation starts. The supervisor adds the end before it reports it; if the
// supervisor died, the guard does, or else Recover in a later caller. One process writes
// at a time, and a crash of any process, or of the system, loses nothing that was written.
//
// Several callers share a directory and do not disturb each other, also from different
// containers: locks tell which of them live (package lease), never a pid.
//
//	<id>.journal            in flight, as far as is known
//	ended/<id>.journal      the caller received the end
//	recovered/<id>.journal  Recover returned it
//	peers/<peer>.caller     held by the caller for as long as it lives
//	peers/<peer>.helpers    held by each of its helpers
//	recover.lock            held by a Recover
//	.tmp-*                  unfinished; abandoned once its writer has ended
//
// A rename moves a record from the first place to one of the other two, and nowhere else:
// the process whose rename succeeds owns the record. Files with other names are not touched.
package journal

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	pathpkg "path"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"curfew/internal/lease"
	"curfew/internal/sys"
)

// Begin is what is known about an invocation before its start.
type Begin struct {
	Version int    // set by the package
	ID      string // letters and digits, at most 64; never used twice
	// Program is what is executed, without arguments. Like the other names here
	// it need not be UTF-8, and is kept byte for byte.
	Program string
	Owner   string
	Session bool
	Began   time.Time
	Peer    string // the caller; set by the package
	Boot    string // names the run of the system, "" if unknown; set by the package
	Holder  int    // the pid of the supervisor
	Cgroup  string // of the supervisor
	Group   string // the name of the cgroup that the supervisor made in it for the tree
	TempDir string // the path: the directory is made after the record is written
}

// End is how an invocation ended, as its writer knew it.
type End struct {
	Writer string
	At     time.Time
	// Report has no meaning for this package, which keeps it but for space between its
	// tokens. Nil is kept too.
	Report json.RawMessage
}

// Errors that callers tell apart with errors.Is.
var (
	ErrDamaged = errors.New("damaged")
	ErrNewer   = errors.New("of a newer version")
	ErrForeign = errors.New("of a form that is not read here")
	// ErrEnding: helpers of the dead caller live and have not written the end yet. A
	// later Recover returns the invocation.
	ErrEnding = errors.New("still being ended")
	// ErrRecovering: another Recover did not finish in time.
	ErrRecovering = errors.New("another recovery is under way")
	ErrClosed     = errors.New("journal is closed")
)

// RecordError says what is wrong with one file, which stays where it is.
type RecordError struct {
	Path string
	Err  error
}

func (e *RecordError) Error() string {
	var path *fs.PathError
	if errors.As(e.Err, &path) && path.Path == sys.Printable(e.Path) {
		return "journal: " + e.Err.Error()
	}
	return "journal: " + sys.Printable(e.Path) + ": " + e.Err.Error()
}
func (e *RecordError) Unwrap() error { return e.Err }

const (
	suffix  = ".journal"
	tempPre = ".tmp-"

	endedDir     = "ended"
	recoveredDir = "recovered"
	peersDir     = "peers"
	recoverLock  = "recover.lock"
)

// pruneEvery is the number of deliveries between two prunings of the history: to read the
// directory costs about as much as a few deliveries.
const pruneEvery = 256

// Journal is one caller's access to a directory. Its methods are safe for concurrent use.
type Journal struct {
	dir, peer, boot string

	mu     sync.RWMutex // held for reading while a record is made; guards closed
	closed bool
	caller *lease.Lease

	delivered atomic.Int64

	// Tests make these smaller.
	historyAge    time.Duration // of records that ended or were recovered
	historyCount  int           // of records, in each of the two directories
	unfinishedAge time.Duration // after which an unfinished file counts as abandoned
}

// Open joins the journal in dir as a new caller, until Close or the end of the process. It
// makes the directory if there is none. The path must be absolute: a relative one would
// mean another journal to a caller that starts elsewhere. Open refuses a directory that
// other users may write to, because a record says what Recover cleans up.
//
// Nothing else in this process may open the files in peers/, for example to copy them:
// to close such a file gives up the caller's lock. The file system must have locks
// that all callers see, which some network file systems do not have.
func Open(dir string) (*Journal, error) {
	if err := supported(); err != nil {
		return nil, fmt.Errorf("journal: %w", err)
	}
	if !pathpkg.IsAbs(dir) {
		return nil, fmt.Errorf("journal: open %q: the path is not absolute", dir)
	}
	dir = pathpkg.Clean(dir)
	if err := makeDir(dir); err != nil {
		return nil, fmt.Errorf("journal: %w", err)
	}
	if err := checkDir(dir, os.Stat); err != nil {
		return nil, fmt.Errorf("journal: %w", err)
	}
	for _, name := range []string{endedDir, recoveredDir, peersDir} {
		sub := pathpkg.Join(dir, name)
		if err := makeDir(sub); err != nil {
			return nil, fmt.Errorf("journal: %w", err)
		}
		if err := checkDir(sub, os.Lstat); err != nil {
			return nil, fmt.Errorf("journal: %w", err)
		}
	}
	fd, err := openFile(pathpkg.Join(dir, recoverLock), forLocking|orCreate)
	if err != nil {
		return nil, fmt.Errorf("journal: %w", err)
	}
	sys.Close(fd)
	j := &Journal{
		dir: dir, peer: randomName(), boot: BootID(),
		historyAge: 30 * 24 * time.Hour, historyCount: 1000, unfinishedAge: 24 * time.Hour,
	}
	if j.caller, err = join(dir, j.peer); err != nil {
		return nil, fmt.Errorf("journal: %w", err)
	}
	return j, nil
}

// Dir returns the absolute path of the directory.
func (j *Journal) Dir() string { return j.dir }

// Peer returns the name of this caller in the journal, for its helpers.
func (j *Journal) Peer() string { return j.peer }

// Begin writes the record of an invocation that is about to start. The record is
// durable when Begin returns nil. After an error the invocation must not start;
// there is no record then, unless it could not be removed.
func (j *Journal) Begin(b Begin) error {
	if !validName(b.ID) {
		return fmt.Errorf("journal: begin %q: an id has 1 to %d letters and digits", b.ID, maxName)
	}
	b.Version, b.Peer, b.Boot = version, j.peer, j.boot
	text, err := encodeBegin(b)
	if err != nil {
		return fmt.Errorf("journal: begin %s: %w", b.ID, err)
	}
	// After Close, Recover would take the record for that of a dead caller.
	j.mu.RLock()
	defer j.mu.RUnlock()
	if j.closed {
		return fmt.Errorf("journal: begin %s: %w", b.ID, ErrClosed)
	}
	path := recordFile(j.dir, b.ID)
	if _, err := os.Lstat(path); err == nil {
		return fmt.Errorf("journal: begin %s: %w", b.ID, sys.PathError("create", path, fs.ErrExist))
	}
	if err := writeRecord(j.dir, path, text); err != nil {
		return fmt.Errorf("journal: begin %s: %w", b.ID, err)
	}
	return nil
}

// writeRecord makes the record in one durable step: if the writer is killed, the record is
// complete or does not exist.
func writeRecord(dir, path string, text []byte) error {
	temp := pathpkg.Join(dir, tempPre+randomName())
	fd, err := openFile(temp, forAppending|mustCreate)
	if err != nil {
		return err
	}
	defer sys.Close(fd)
	if err := writeAll(fd, temp, text); err != nil {
		return errors.Join(err, sys.Remove(temp))
	}
	if err := syncFile(fd, temp); err != nil {
		return errors.Join(err, sys.Remove(temp))
	}
	if err := sys.Rename(temp, path); err != nil {
		return errors.Join(err, sys.Remove(temp))
	}
	if err := syncDir(dir); err != nil {
		return errors.Join(err, sys.Remove(path))
	}
	return nil
}

// Delivered moves the record of an invocation to the history, because the caller received
// the end. The move is not durable: after a crash of the system (not of the caller alone),
// Recover may return an invocation that was delivered. The error wraps fs.ErrNotExist if
// the record is not in flight.
func (j *Journal) Delivered(id string) error {
	if !validName(id) {
		return fmt.Errorf("journal: delivered %q: not an id", id)
	}
	// Pruning comes first: a caller that is killed after the move has not told its own
	// caller of the end yet, and Recover does not return it.
	if j.delivered.Add(1)%pruneEvery == 0 {
		_ = j.prune(endedDir) // a later delivery prunes again
	}
	if err := sys.Rename(recordFile(j.dir, id), recordFile(pathpkg.Join(j.dir, endedDir), id)); err != nil {
		return fmt.Errorf("journal: delivered %s: %w", id, err)
	}
	return nil
}

// Close gives up the caller's lock and files. From then on the caller counts as dead, and
// its records in flight can be recovered. As long as helpers live, the files stay, so
// that Recover waits for them. A second Close does nothing.
func (j *Journal) Close() error {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.closed {
		return nil
	}
	j.closed = true
	gone, err := helpersGone(j.dir, j.peer)
	if gone {
		err = errors.Join(err, sys.Remove(callerFile(j.dir, j.peer)))
	}
	j.caller.Release()
	if err != nil {
		return fmt.Errorf("journal: close: %w", err)
	}
	return nil
}

func (j *Journal) isClosed() bool {
	j.mu.RLock()
	defer j.mu.RUnlock()
	return j.closed
}

// Hold makes this process count as a living helper of the caller, until it ends or calls
// release. A helper calls Hold once, before it takes an invocation. After an error it must
// not start any: the caller is dead or has closed its journal, and another caller may
// have recovered its records. The error then wraps fs.ErrNotExist.
func Hold(dir, peer string) (release func(), err error) {
	if !validName(peer) {
		return nil, fmt.Errorf("journal: hold %q: not a peer", peer)
	}
	helper, err := lease.Join(helpersFile(dir, peer))
	if err != nil {
		return nil, fmt.Errorf("journal: hold: %w", err)
	}
	return helper.Release, nil
}

// WriteEnd adds the end to the record of an invocation in flight, unless the record has
// one: the first end counts. It is durable when WriteEnd returns nil. Two processes must
// not write the same record at a time. The error wraps fs.ErrNotExist if the
// record is not in flight, or no longer.
func WriteEnd(dir, id string, e End) error {
	if !validName(id) {
		return fmt.Errorf("journal: end %q: not an id", id)
	}
	if _, err := writeEnd(recordFile(dir, id), id, e); err != nil {
		return fmt.Errorf("journal: end %s: %w", id, err)
	}
	return nil
}

// writeEnd adds the end and returns the record as it is then.
func writeEnd(path, id string, e End) (Entry, error) {
	text, err := encodeEnd(e)
	if err != nil {
		return Entry{}, err
	}
	fd, err := openFile(path, forAppending)
	if err != nil {
		return Entry{}, err
	}
	defer sys.Close(fd)
	old, err := readAll(fd, path, maxRecordBytes)
	if err != nil {
		return Entry{}, err
	}
	entry, err := parseRecord(old, id)
	if err != nil {
		return Entry{}, sys.PathError("read", path, err)
	}
	if entry.End != nil {
		// Its writer may have been killed before it synced the file.
		return entry, syncFile(fd, path)
	}
	if old[len(old)-1] != '\n' {
		text = append([]byte{'\n'}, text...) // ends the line of a writer that was killed
	}
	if len(old)+len(text) > maxRecordBytes {
		return Entry{}, fmt.Errorf("%w: with its end", errTooBig)
	}
	if err := writeAll(fd, path, text); err != nil {
		return Entry{}, err
	}
	if err := syncFile(fd, path); err != nil {
		return Entry{}, err
	}
	return parseRecord(append(old, text...), id)
}

// makeDir makes the directory, and those above it, durably.
func makeDir(dir string) error {
	err := mkdir(dir)
	if errors.Is(err, fs.ErrNotExist) && pathpkg.Dir(dir) != dir {
		if err := makeDir(pathpkg.Dir(dir)); err != nil {
			return err
		}
		err = mkdir(dir)
	}
	if errors.Is(err, fs.ErrExist) {
		return nil
	}
	if err != nil {
		return err
	}
	return syncDir(pathpkg.Dir(dir))
}

// checkDir returns an error unless dir is a directory that only this user may write to.
func checkDir(dir string, stat func(string) (fs.FileInfo, error)) error {
	info, err := stat(dir)
	if err != nil {
		return err
	}
	if !info.IsDir() {
		return fmt.Errorf("%s is not a directory", dir)
	}
	if mode := info.Mode().Perm(); mode&0o022 != 0 {
		return fmt.Errorf("other users may write to %s (mode %04o): run `chmod go-w` on it, or use another directory", dir, mode)
	}
	if uid := ownerOf(info); uid != os.Geteuid() {
		return fmt.Errorf("%s belongs to user %d, and this process runs as user %d: use a directory of that user", dir, uid, os.Geteuid())
	}
	return nil
}

// randomName returns a name that no other process uses. (Package crypto/rand would be
// initialised too late: see package supervisor.)
func randomName() string { return fmt.Sprintf("%016x%016x", rand.Uint64(), rand.Uint64()) }

func recordFile(dir, id string) string    { return pathpkg.Join(dir, id+suffix) }
func callerFile(dir, peer string) string  { return pathpkg.Join(dir, peersDir, peer+callerSuffix) }
func helpersFile(dir, peer string) string { return pathpkg.Join(dir, peersDir, peer+helpersSuffix) }

const maxName = 64

// validName reports whether s may be an id or a peer: it becomes the name of a file.
func validName(s string) bool {
	return s != "" && len(s) <= maxName && strings.IndexFunc(s, func(r rune) bool {
		return (r < '0' || r > '9') && (r < 'A' || r > 'Z') && (r < 'a' || r > 'z')
	}) < 0
}
