// Package wire is the protocol between a caller and its helpers (a guard and its
// supervisors): the messages, how they travel, and how a helper is told what it is.
package wire

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"syscall"
	"time"

	"curfew/internal/scratch"
	"curfew/outcome"
)

// Version is the first thing either side says. An installed curfew that
// serves as helper (Options.Supervisor) may be of another version.
const Version = 3

// Message is what goes over the socket; exactly one of its fields is set.
type Message struct {
	// To the helper.
	Run    *Run         `json:"run,omitempty"`
	Stop   *StopRequest `json:"stop,omitempty"`
	Signal *Signal      `json:"signal,omitempty"`
	Drain  *Drain       `json:"drain,omitempty"`

	// To the guard.
	Spawn *Spawn `json:"spawn,omitempty"`
	Lost  *Lost  `json:"lost,omitempty"`
	Watch *Watch `json:"watch,omitempty"`

	// From the guard, on a socket of its own for each question.
	Swept *Swept `json:"swept,omitempty"`

	// From the guard, on the socket of the supervisor that it has started.
	Spawned *Spawned `json:"spawned,omitempty"`

	// From either.
	Hello       *Hello        `json:"hello,omitempty"`
	Started     *Started      `json:"started,omitempty"`
	StartFailed *StartFailed  `json:"start_failed,omitempty"`
	Stopping    *Stopping     `json:"stopping,omitempty"`
	Exited      *outcome.Exit `json:"exited,omitempty"`
	Done        *Done         `json:"done,omitempty"`
	// Ready follows Done when the helper can take another invocation.
	Ready  *struct{} `json:"ready,omitempty"`
	Failed *Failed   `json:"failed,omitempty"`
}

// StateFields is how many strings a helper describes its state with.
const StateFields = 17

type Hello struct {
	Version int                 `json:"version"`
	PID     int                 `json:"pid"`
	State   [StateFields]string `json:"state"`
	// StateKnown is false where the state could not be read.
	StateKnown bool `json:"state_known"`
	// Pidfd: a pidfd of the helper comes with it.
	Pidfd bool `json:"pidfd"`
}

type Signal struct {
	ID     string `json:"id"`
	Signal int    `json:"signal"`
}

// Drain gives a supervisor that has left processes alive the pipes that they may
// write to. It is the caller's last word.
type Drain struct {
	Pipes int `json:"pipes"`
}

// maxDrains bounds them: stdout and stderr.
const maxDrains = 2

// Spawn asks the guard to start a supervisor. ID stands for that supervisor from
// then on; it is never used for another one, as its pid can be.
type Spawn struct {
	ID string `json:"id"`
}

// Spawned says which process the guard has started as a supervisor. Only that one
// is heard on the socket afterwards: somebody else can have taken a descriptor of it.
type Spawned struct {
	PID int `json:"pid"` // as the guard numbers it
}

// ValidID reports whether id can be that of a supervisor. It becomes a part of a name.
func ValidID(id string) bool {
	const longest = 64
	return id != "" && len(id) <= longest && strings.IndexFunc(id, func(r rune) bool {
		return (r < '0' || r > '9') && (r < 'a' || r > 'z')
	}) < 0
}

// NewID returns an id that no other supervisor has, had or will have.
func NewID() string { return fmt.Sprintf("%016x%016x", rand.Uint64(), rand.Uint64()) }

// Lost asks the guard about a supervisor that is lost. With it comes the
// socket for the answer, which the guard gives when nothing of what that
// supervisor held is left.
type Lost struct {
	ID string `json:"id"`
}

// Swept says that nothing is left of what a lost supervisor held, and what had
// to be ended. What two that were lost at once had held is told with both.
type Swept struct {
	Ended     []outcome.Ended `json:"ended"`
	EndedMore int             `json:"ended_more,omitempty"`
	// Left: there is no child left, but its cgroup is not empty.
	Left     bool              `json:"left,omitempty"`
	TempDirs []outcome.TempDir `json:"temp_dirs,omitempty"`
	Journal  string            `json:"journal,omitempty"` // why the end is not written
}

// Watch tells the guard what is left to do, should the supervisor ID die before it has
// done that itself. It replaces what the guard knew of that supervisor; without Duties
// the invocation is over.
type Watch struct {
	ID     string  `json:"id"`
	Duties *Duties `json:"duties,omitempty"`
}

// Duties are what has to be done when nothing is left of an invocation.
type Duties struct {
	ID string `json:"id"`
	// TempDir is removed, if it is not nil.
	TempDir *TempDir `json:"temp_dir,omitempty"`
	// Journal: the end is written to the record, in the directory that helpers
	// are told when they are started.
	Journal bool `json:"journal,omitempty"`
}

// TempDir is the temporary directory of an invocation, as a scratch.Dir.
type TempDir struct {
	Path  []byte `json:"path"` // need not be UTF-8
	Dev   uint64 `json:"dev"`
	Ino   uint64 `json:"ino"`
	Birth int64  `json:"birth,omitempty"`
}

// NewTempDir returns d as it is sent to helpers.
func NewTempDir(d scratch.Dir) *TempDir {
	return &TempDir{Path: []byte(d.Path), Dev: d.Dev, Ino: d.Ino, Birth: d.Birth}
}

// Dir returns the directory as package scratch removes it.
func (d *TempDir) Dir() scratch.Dir {
	return scratch.Dir{Path: string(d.Path), Dev: d.Dev, Ino: d.Ino, Birth: d.Birth}
}

// Check refuses a directory that is not known by its identity: it would be removed.
func (d *TempDir) Check() error {
	if d == nil {
		return nil
	}
	if err := d.Dir().Check(); err != nil {
		return fmt.Errorf("%w: %w", ErrProtocol, err)
	}
	return nil
}

// Limits of the duties.
const (
	RemoveLimit = 2 * time.Second // for a temporary directory
	WriteLimit  = time.Second     // for the end of a record
)

// Failed is the helper's last word when it met something it cannot
// serve, such as a malformed message.
type Failed struct {
	Text  string `json:"error"`
	Errno int    `json:"errno,omitempty"` // if it was the kernel's refusal
}

// Refusal is the last word about err.
func Refusal(err error) *Message {
	const enough = 1 << 10 // it can quote what was said
	var errno syscall.Errno
	errors.As(err, &errno)
	text := err.Error()
	return &Message{Failed: &Failed{text[:min(len(text), enough)], int(errno)}}
}

func (m *Failed) Error() string { return m.Text }

func (m *Failed) Unwrap() error {
	if m.Errno == 0 {
		return nil
	}
	return syscall.Errno(m.Errno)
}

// MarkPrefix begins the variables that say of which invocations a process is: one
// for each, so that nesting hides nothing.
const MarkPrefix = "CURFEW_INVOCATION_"

// Mark is the entry that everything in the tree of the invocation id inherits in its
// environment.
func Mark(id string) string { return MarkPrefix + id + "=1" }

// StopRequest asks for the stop ladder, or shortens one that is under way.
type StopRequest struct {
	// ID is the invocation's. One that is over is not stopped any more, and a
	// word that comes late must not stop the next.
	ID    string        `json:"id"`
	Cause outcome.Cause `json:"cause"`
	// Signal replaces the polite signal if it is not 0 and none was sent yet.
	Signal int `json:"signal,omitempty"`
	// Kill goes to SIGKILL at once.
	Kill bool `json:"kill,omitempty"`
}

// Check refuses what the helper could not act on, or not report.
func (q *StopRequest) Check() error {
	const longest = 64 // of the causes there are
	if q.Signal < 0 || q.Signal > 64 || len(q.Cause) > longest {
		return fmt.Errorf("%w: a stop with signal %d and a cause of %d bytes", ErrProtocol, q.Signal, len(q.Cause))
	}
	return nil
}

// Started says that the leader was executed.
type Started struct {
	PID int       `json:"pid"`
	At  time.Time `json:"at"`
}

// StartFailed says that the leader was not executed.
type StartFailed struct {
	Op     string `json:"op"`
	Errno  int    `json:"errno"`
	Killed bool   `json:"killed,omitempty"` // because a stop came first
}

// Stopping acknowledges that a stop begins.
type Stopping struct {
	Cause outcome.Cause `json:"cause"`
	// CloseStdin: now is the time to close the leader's stdin.
	CloseStdin bool `json:"close_stdin,omitempty"`
}

// Done is the report at the end of an invocation.
type Done struct {
	Started     bool          `json:"started"`
	NotExecuted bool          `json:"not_executed,omitempty"` // proven
	Exit        *outcome.Exit `json:"exit,omitempty"`
	// StopBegan: a stop of the invocation began (not only the ending of
	// leftovers after the leader's own exit), for StopCause.
	StopBegan bool            `json:"stop_began,omitempty"`
	StopCause outcome.Cause   `json:"stop_cause,omitempty"`
	Usage     outcome.Usage   `json:"usage"`
	Cleanup   outcome.Cleanup `json:"cleanup"`
}

// Check refuses a report that does not say what became of the tree.
func (d *Done) Check() error {
	switch d.Cleanup.Result {
	case outcome.CleanupEmpty, outcome.CleanupSurvivors, outcome.CleanupLeft, outcome.CleanupUnverified:
	default:
		return fmt.Errorf("%w: a report with the result %.20q", ErrProtocol, d.Cleanup.Result)
	}
	switch d.Cleanup.Proof {
	case outcome.ProofNoChildren, outcome.ProofChildList, outcome.ProofScans, outcome.ProofNone:
		return nil
	}
	return fmt.Errorf("%w: a report with the proof %.20q", ErrProtocol, d.Cleanup.Proof)
}

// files is how many descriptors come with m.
func (m *Message) files() int {
	switch {
	case m.Run != nil:
		return len(m.Run.Numbers) + 1
	case m.Spawn != nil:
		return 3 // the supervisor's end of its control socket, the caller's pidfd, and its stderr until it is taken over
	case m.Lost != nil:
		return 1
	case m.Drain != nil:
		return min(max(m.Drain.Pipes, 0), maxDrains)
	case m.Hello != nil && m.Hello.Pidfd:
		return 1
	}
	return 0
}

// Cleanup is what the guard's word makes of the cleanup.
func (s *Swept) Cleanup() outcome.Cleanup {
	c := outcome.Cleanup{Result: outcome.CleanupEmpty, Proof: outcome.ProofChildList, HelperLost: true, Ended: s.Ended, EndedMore: s.EndedMore,
		TempDirs: s.TempDirs, JournalError: s.Journal}
	if s.Left {
		c.Result, c.Proof = outcome.CleanupUnverified, outcome.ProofNone
	}
	return c
}
