// Package outcome says how an invocation of an external command-line program
// (a CLI) ended. It holds plain values, their JSON form and the errors that
// state the same facts for errors.Is and errors.As. It is for programs that use
// package adapter, and for those that read the reports of the command curfew.
// The package does no I/O.
package outcome

import "time"

// Status answers in one word what happened, and whether it is safe to try again.
type Status string

const (
	// StatusNotStarted: it is proven that the CLI was not executed. Safe to retry.
	StatusNotStarted Status = "not_started"
	// StatusSucceeded: the leader exited with code 0, seen before a stop began.
	StatusSucceeded Status = "succeeded"
	// StatusFailed: the leader exited with another code, or died by a signal that
	// was not ours, seen before a stop began.
	StatusFailed Status = "failed"
	// StatusUnknown: a stop began before the exit was seen, or the helpers were
	// lost. What the CLI did elsewhere may or may not have happened,
	// so it is not safe to retry.
	StatusUnknown Status = "outcome_unknown"
	// StatusStopped: a session ended because its caller asked for it.
	StatusStopped Status = "stopped"
)

// Cause is why an invocation ended.
type Cause string

const (
	CauseExit           Cause = "exit"            // the leader ended by itself
	CauseTimeout        Cause = "timeout"         // the command's timeout or the context's deadline
	CauseCanceled       Cause = "canceled"        // the context was canceled, or Session.Stop called
	CauseShutdown       Cause = "shutdown"        // the adapter was shut down, or the owner stopped
	CauseIdle           Cause = "idle"            // a session without traffic for its idle time
	CauseOutputLimit    Cause = "output_limit"    // more output than was allowed
	CauseSupervisorLost Cause = "supervisor_lost" // the helper died, hung or broke the protocol
	CauseHostLost       Cause = "host_lost"       // the caller died
	CauseStartFailed    Cause = "start_failed"    // the CLI could not be executed
)

// Outcome says how one invocation ended. Package adapter always returns one, also beside
// an error; the error states the same fact and nothing more.
type Outcome struct {
	ID     string // unique, also in the environment mark CURFEW_INVOCATION_<ID>
	Status Status
	Cause  Cause
	Exit   *Exit // nil: how the leader ended is not known

	Stdout, Stderr []byte // what was kept: the head and the tail of each stream; nil: not captured
	Output         Output // how much the CLI wrote

	Started time.Time // when the leader was started; zero if it was not
	Ended   time.Time // when the invocation was over
	Elapsed time.Duration

	Usage   Usage // of the whole tree, as far as it was reaped by the supervisor
	Cleanup Cleanup

	// Err is the error returned beside this outcome. It is nil if Status is
	// StatusSucceeded or StatusStopped and no Reader or Writer of the caller's failed.
	Err error `json:"-"`
}

// Exit is how the leader ended. Code and Signal are what the kernel reported;
// neither is derived from the other. The zero value is an exit with code 0: an exit
// that was not seen is a nil *Exit.
type Exit struct {
	Code       int  // 0-255, or -1 if the leader died by a signal
	Signal     int  // the number of the signal the leader died by, or 0
	CoreDumped bool // it left a core dump
	// AfterStop: the exit was seen after the stop began. It is evidence, not the result:
	// a CLI that traps SIGTERM and exits with 0 may have cut its work short.
	AfterStop bool
}

// Output counts what the CLI wrote.
type Output struct {
	Stdout, Stderr Stream
	// DrainIncomplete: the drain limit ran out before the streams ended: a process
	// outside the tree, or a blocked Writer, held them. The end of what the CLI wrote
	// may be missing.
	DrainIncomplete bool
	// StdinError is why the input was not written to its end, for example "broken
	// pipe" when the CLI did not read all of it. It ends nothing. If it is the Reader's
	// own error, Err has it too, as a *CopyError.
	StdinError string
	// Abandoned counts the goroutines that are still in code of the caller's that
	// does not return: a Reader, a Writer, a Logger, a context or its cause.
	Abandoned int
}

// Stream counts one stream. Seen and Kept are in bytes and zero for a stream
// that went directly to a file of the caller's.
type Stream struct {
	Seen, Kept int64
	// Truncated: bytes between the kept head and the kept tail were dropped, after the
	// first HeadBytes of the kept bytes.
	Truncated bool
	HeadBytes int64
	// WriteError is why a Writer of the caller's did not get everything. The CLI's
	// pipe was closed then. Err has the Writer's own error, as a *CopyError.
	WriteError string
}

// Usage is what the tree used, as the kernel counts it for reaped processes.
type Usage struct {
	User, System time.Duration
	MaxRSSBytes  int64 // of the largest single process
}

// CleanupResult says whether the tree has ended.
type CleanupResult string

const (
	CleanupEmpty      CleanupResult = "empty"      // no process of the invocation is alive
	CleanupSurvivors  CleanupResult = "survivors"  // some processes could not be ended; they are listed
	CleanupLeft       CleanupResult = "left"       // processes are alive by request (adapter.AfterExitLeave)
	CleanupUnverified CleanupResult = "unverified" // it is not known
)

// Proof says how the cleanup result is known.
type Proof string

const (
	// ProofNoChildren: the kernel answered ECHILD to the supervisor, which every orphan
	// of the tree falls to, and the tree's cgroup is empty, if there is one. It
	// does not cover a process outside that cgroup that forked in a pid namespace
	// which it entered (setns(2)) from outside.
	ProofNoChildren Proof = "no_children"
	// ProofChildList: the guard's list of children showed supervisors alone.
	ProofChildList Proof = "child_list"
	// ProofScans: two scans of the process table showed no member.
	ProofScans Proof = "scans"
	// ProofNone: the result is not proven.
	ProofNone Proof = "none"
)

// Cleanup says what was done to end the tree, and what is known of the result.
// In the zero value there was no tree.
type Cleanup struct {
	Result CleanupResult
	Proof  Proof
	// HelperLost: the supervisor died, hung or broke the protocol.
	HelperLost bool
	Steps      []Step     // of the stop; nil if there was none
	Ended      []Ended    // the processes that had to be ended, in order of the last signal
	EndedMore  int        // how many more there were, not listed
	Survivors  []Survivor // the processes that were alive when the bound ran out
	LeftAlive  []Process  // with adapter.AfterExitLeave: the leftovers
	Suspects   []Process  // macOS: processes that may be members; never signalled
	TempDirs   []TempDir  // the temporary directories that were not removed
	// JournalError is why the end is not in the journal; "" if it is, or if there is
	// no journal.
	JournalError string
	Elapsed      time.Duration // from the first step to the end of the cleanup
}

// StepName names a rung of the stop ladder.
type StepName string

// The rungs, in the order in which they are climbed. StepEmpty or StepGiveUp is the last.
const (
	StepCloseStdin    StepName = "close_stdin"
	StepSignalLeader  StepName = "signal_leader"
	StepSignalMembers StepName = "signal_members"
	StepKill          StepName = "kill"
	StepEmpty         StepName = "empty"
	StepGiveUp        StepName = "give_up"
)

// Step is one rung of the ladder.
type Step struct {
	Name   StepName
	Signal int           // which signal, 0 for none
	After  time.Duration // since the stop began
}

// Process identifies a process for people and for the record. It is not an
// identity to signal by.
type Process struct {
	PID   int
	Start time.Time // when the process started
	Name  string    // as the kernel has it; at most 15 bytes on Linux
}

// Ended is a process that did not end by itself.
type Ended struct {
	Process
	LastSignal int // the last signal that it was sent
}

// Survivor is a process that did not end within the bound.
type Survivor struct {
	Process
	State  string // the kernel's letter for the state, for example "D"
	Reason string // for example "operation not permitted: it runs as uid 0"
}

// TempDir is a temporary directory that was not removed, and why.
type TempDir struct {
	Path  string `json:"path"`
	Error string `json:"error"`
}
