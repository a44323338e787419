// Package wire is the protocol between a caller and its helpers (a guard and its
// supervisors): the messages, the connection that carries them, and the names, descriptors and
// variables that a helper is started with.
package wire

import (
	"errors"
	"fmt"
	"syscall"
	"time"

	"curfew/internal/scratch"
	"curfew/outcome"
)

// Version is the version of the protocol, which a helper sends first. A caller refuses a
// helper of another version: an installed curfew (Options.Supervisor) can be of another
// release.
const Version = 3

// Message is what is sent over the socket. Exactly one of its fields is set.
type Message struct {
	// From a helper, first: what it is, or why it cannot serve.
	Hello  *Hello  `json:"hello,omitempty"`
	Failed *Failed `json:"failed,omitempty"`

	// To a supervisor.
	Run    *Run         `json:"run,omitempty"`
	Stop   *StopRequest `json:"stop,omitempty"`
	Signal *Signal      `json:"signal,omitempty"`
	Drain  *Drain       `json:"drain,omitempty"`

	// From a supervisor, in this order.
	Started     *Started      `json:"started,omitempty"`
	StartFailed *StartFailed  `json:"start_failed,omitempty"`
	Stopping    *Stopping     `json:"stopping,omitempty"`
	Exited      *outcome.Exit `json:"exited,omitempty"`
	Done        *Done         `json:"done,omitempty"`
	Ready       *struct{}     `json:"ready,omitempty"` // it can take another invocation

	// To the guard.
	Spawn *Spawn `json:"spawn,omitempty"`
	Watch *Watch `json:"watch,omitempty"`
	Lost  *Lost  `json:"lost,omitempty"`

	// From the guard, on the socket that came with Spawn or Lost.
	Spawned *Spawned `json:"spawned,omitempty"`
	Swept   *Swept   `json:"swept,omitempty"`
}

// files returns how many descriptors come with m.
func (m *Message) files() int {
	switch {
	case m.Run != nil:
		return len(m.Run.Numbers) + 1
	case m.Spawn != nil:
		return 3
	case m.Lost != nil:
		return 1
	case m.Drain != nil:
		const most = 2 // stdout and stderr
		return min(max(m.Drain.Pipes, 0), most)
	case m.Hello != nil && m.Hello.Pidfd:
		return 1
	}
	return 0
}

// Hello is the first message of a helper that serves.
type Hello struct {
	Version int `json:"version"`
	PID     int `json:"pid"`
	// State is what the helper passes on to its CLIs, if it could read that.
	State      [StateFields]string `json:"state"`
	StateKnown bool                `json:"state_known"`
	// Pidfd: a pidfd of the helper comes with the message.
	Pidfd bool `json:"pidfd"`
}

// StateFields is how many strings describe the state of a helper.
const StateFields = 17

// Failed is the last message of a helper that cannot serve, or that got a message which it
// cannot serve.
type Failed struct {
	Text  string `json:"error"`
	Errno int    `json:"errno,omitempty"` // if the kernel has refused something
}

// Refusal returns the last message of a helper, which reports err.
func Refusal(err error) *Message {
	const longest = 1 << 10 // err can quote a message
	var errno syscall.Errno
	errors.As(err, &errno)
	text := err.Error()
	return &Message{Failed: &Failed{text[:min(len(text), longest)], int(errno)}}
}

func (m *Failed) Error() string { return m.Text }

func (m *Failed) Unwrap() error {
	if m.Errno == 0 {
		return nil
	}
	return syscall.Errno(m.Errno)
}

// StopRequest asks for the stop ladder, or shortens one that is under way.
type StopRequest struct {
	// ID names the invocation: a request that comes late must not stop the next one.
	ID    string        `json:"id"`
	Cause outcome.Cause `json:"cause"`
	// Signal replaces the polite signal if it is not 0 and none was sent yet.
	Signal int `json:"signal,omitempty"`
	// Kill goes to SIGKILL at once.
	Kill bool `json:"kill,omitempty"`
}

// Check refuses what a supervisor could not act on, or not report.
func (q *StopRequest) Check() error {
	const longest = 64 // longer than each cause there is
	if q.Signal < 0 || q.Signal > 64 || len(q.Cause) > longest {
		return fmt.Errorf("%w: a stop with signal %d and a cause of %d bytes", ErrProtocol, q.Signal, len(q.Cause))
	}
	return nil
}

// Signal sends a signal to the leader of the invocation ID.
type Signal struct {
	ID     string `json:"id"`
	Signal int    `json:"signal"`
}

// Drain gives a supervisor that has left processes alive the pipes that they may write to. It
// is the caller's last message.
type Drain struct {
	Pipes int `json:"pipes"`
}

// Started reports that the leader was executed.
type Started struct {
	PID int       `json:"pid"`
	At  time.Time `json:"at"`
}

// StartFailed reports that the leader was not executed.
type StartFailed struct {
	Op     string `json:"op"`
	Errno  int    `json:"errno"`
	Killed bool   `json:"killed,omitempty"` // because a stop came first
}

// Stopping acknowledges a stop, which begins now.
type Stopping struct {
	Cause outcome.Cause `json:"cause"`
	// CloseStdin asks the caller to close its end of the leader's stdin.
	CloseStdin bool `json:"close_stdin,omitempty"`
}

// Done is the report at the end of an invocation.
type Done struct {
	Started     bool          `json:"started"`
	NotExecuted bool          `json:"not_executed,omitempty"` // proven
	Exit        *outcome.Exit `json:"exit,omitempty"`
	// StopBegan: a stop of the invocation began, for StopCause; the ending of leftovers
	// after the leader's own exit is none.
	StopBegan bool            `json:"stop_began,omitempty"`
	StopCause outcome.Cause   `json:"stop_cause,omitempty"`
	Usage     outcome.Usage   `json:"usage"`
	Cleanup   outcome.Cleanup `json:"cleanup"`
}

// Check refuses a report without a known result of the cleanup.
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

// Spawn asks the guard to start a supervisor. With it come the supervisor's end of its socket,
// the caller's pidfd, and the supervisor's stderr while it starts.
type Spawn struct {
	ID string `json:"id"` // see NewID
}

// Spawned names the process that the guard has started as a supervisor. Only that one is
// believed from then on: another process can have taken a descriptor of the socket.
type Spawned struct {
	PID int `json:"pid"` // as the guard numbers it
}

// Watch replaces what the guard has to do if the supervisor ID dies before it has done that
// itself. No Duties mean that the invocation has ended.
type Watch struct {
	ID     string  `json:"id"`
	Duties *Duties `json:"duties,omitempty"`
}

// Duties are what has to be done when nothing is left of the invocation ID.
type Duties struct {
	ID string `json:"id"`
	// TempDir is removed, if it is not nil.
	TempDir *TempDir `json:"temp_dir,omitempty"`
	// Journal: the end is written to the record, in the directory that StateVar names.
	Journal bool `json:"journal,omitempty"`
}

// Limits of the duties.
const (
	RemoveLimit = 2 * time.Second // for a temporary directory
	WriteLimit  = time.Second     // for the end of a record
)

// TempDir is the temporary directory of an invocation, as a scratch.Dir.
type TempDir struct {
	Path  []byte `json:"path"` // need not be UTF-8
	Dev   uint64 `json:"dev"`
	Ino   uint64 `json:"ino"`
	Birth int64  `json:"birth,omitempty"`
}

// NewTempDir returns d in the form that is sent.
func NewTempDir(d scratch.Dir) *TempDir {
	return &TempDir{Path: []byte(d.Path), Dev: d.Dev, Ino: d.Ino, Birth: d.Birth}
}

// Dir returns the directory in the form that package scratch takes.
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

// Lost asks the guard about a supervisor that is lost. With it comes the socket for the
// answer, which is Swept.
type Lost struct {
	ID string `json:"id"`
}

// Swept reports that nothing is left of what a lost supervisor held, and what had to be ended.
// If two supervisors were lost at once, the report for each lists what both held.
type Swept struct {
	Ended     []outcome.Ended `json:"ended"`
	EndedMore int             `json:"ended_more,omitempty"`
	// Left: no child is left, but the cgroup is not empty.
	Left     bool              `json:"left,omitempty"`
	TempDirs []outcome.TempDir `json:"temp_dirs,omitempty"`
	Journal  string            `json:"journal,omitempty"` // why the end is not written
}

// Cleanup returns the cleanup that the guard's report amounts to.
func (s *Swept) Cleanup() outcome.Cleanup {
	c := outcome.Cleanup{
		Result: outcome.CleanupEmpty, Proof: outcome.ProofChildList, HelperLost: true,
		Ended: s.Ended, EndedMore: s.EndedMore, TempDirs: s.TempDirs, JournalError: s.Journal,
	}
	if s.Left {
		c.Result, c.Proof = outcome.CleanupUnverified, outcome.ProofNone
	}
	return c
}
