// Package proctree starts one process, the leader, keeps hold of everything
// that descends from it, and ends that tree. It knows processes and nothing
// about commands, callers or output.
//
// It is for a process that does nothing else, and every child of which may be a
// member of the tree. A program with children of its own must not use it; it starts
// a supervisor (package curfew/internal/supervisor), which does.
//
// Tree is the contract. On Linux, the process becomes a child subreaper, so that every
// orphan of the tree becomes its child (proctree_linux.go). On macOS, where the kernel
// offers no such thing, members are found by scans of the process table
// (proctree_darwin.go and tracked.go). Ladder decides when to ask and when to kill,
// KillPhase when to strike and when to reap; neither makes a system call.
package proctree

import (
	"fmt"
	"syscall"
	"time"

	"curfew/outcome"
)

// Options are for Open.
type Options struct {
	// ID is part of the name of the tree's cgroup: letters and digits, never used
	// twice. Only Linux has cgroups.
	ID string
	// Interrupted reports whether the caller of the methods has something else to do
	// at once. The methods that look at many processes call it about once a
	// millisecond and return early if it reports true. It may be nil.
	Interrupted func() bool
	// Frozen is a directory for the records of what is suspended before it is ended,
	// where trees are tracked by scans. It is created if need be; only this user may
	// have access to it. Without it nothing is suspended, and a process that is forked
	// at the moment of a strike can get away.
	Frozen string
	// Boot identifies this run of the system in those records.
	Boot string
}

// Tree is one leader and all processes that descend from it. It serves one leader
// after another.
//
// All methods are for the one goroutine that opened the tree, which stays locked to
// its thread. None waits for a process. Those that look at many processes return early
// when Options.Interrupted reports true. During a start, between Start and the Event with
// StartDone, there is no member yet: Prepare, Signal, Terminate, Holds, Members,
// StrikeCgroup and Start must not be called then.
type Tree interface {
	Children

	// LeaderFD is readable when the leader has exited, which the next Collect
	// reports; -1 if there is no such descriptor. FD reports the same a moment later.
	LeaderFD() int
	// Prepare does what the next leader needs and what takes time. It is for when no
	// request waits, and takes at most 0.5 s. It reports whether this tree can take another
	// leader; if not, it must be closed. Nothing of the leader before may be alive.
	Prepare() bool
	// StartProgress reports what is known of a start that is under way.
	StartProgress() StartProgress
	// Signal sends sig to the leader on behalf of the caller. It is no part of a
	// stop: Summary does not list it. A leader that has exited gets no signal.
	Signal(sig syscall.Signal)
	// Terminate sends sig, followed by SIGCONT, to those recipients that have had no
	// signal yet (the leader gets it in any case), and returns how many it reached.
	// It stops at until; zero means no limit. more means that it returned early
	// because it was interrupted: call it again.
	Terminate(sig syscall.Signal, to Recipients, until time.Time) (reached int, more bool)
	// Holds reports whether a live member may still have output to write: one of
	// Spec.Given is open in it, or its stdin is another pipe, FIFO or socket. What
	// cannot be read, or not before until, counts as that.
	Holds(until time.Time) bool
	// Members lists the live members, at most limit of them. more means that it
	// returned early because it was interrupted.
	Members(limit int) (list []Member, more bool)
	// Survivors lists what is alive, with the reason as far as it can be known. It is
	// not interrupted and takes about 0.1 s at most.
	Survivors() []outcome.Survivor
	// StrikeCgroup is for when an Event reported Empty. It strikes processes in the
	// tree's cgroup that are nevertheless there: ones that entered another pid
	// namespace, whose orphans do not come back. It reports whether there are any.
	StrikeCgroup() (populated bool)
	// Disown gives up all that is left, for good: the system adopts and reaps it.
	Disown()
	// Close releases what Prepare made, which takes at most 0.5 s. The process is expected
	// to end soon after it.
	Close()
}

// SiblingTree is held by a process that starts siblings: children that are no members,
// are never struck, and do not end with this process. They hold trees of their own;
// what they leave when they die falls to this process, and is the tree.
type SiblingTree interface {
	Children

	// OnlySiblings reports whether the siblings are the only children of this
	// process. That proves that nothing is left of what any sibling that has died
	// had started. It is false while a sibling is being started.
	OnlySiblings() bool
	// Forget drops what Summary lists.
	Forget()
	// SiblingDied reports whether a sibling is dead and its exit cannot be seen,
	// because another process traces it.
	SiblingDied(pid int) bool
	// SuspendedSiblings lists the siblings that are stopped, by a signal or a tracer.
	SuspendedSiblings() []int
	// ResumeSibling sends SIGCONT to a sibling, and EndSibling SIGKILL. A pid that is
	// no sibling's is ignored.
	ResumeSibling(pid int)
	EndSibling(pid int)
	// EndCgroup strikes what is in the cgroup of a sibling that has died, by the name
	// that CgroupName returns, and removes the cgroup once it is empty.
	EndCgroup(name string) CgroupRest
}

// Children is what Tree and SiblingTree have in common.
type Children interface {
	// FD is readable when Collect has something to report. It is always the same.
	FD() int
	// Next is when Collect is due although FD is not readable; zero if never.
	Next() time.Time
	// ForkingThread is the thread whose attributes a leader inherits; 0 if it inherits
	// those of the whole process.
	ForkingThread() int
	// Start begins to start what spec describes; an Event with StartDone ends that.
	// spec must not change until then, and no other start may be under way. A leader
	// may be started only after Empty was reported for the one before. What is known
	// of that one is dropped.
	Start(spec *Spec)
	// Collect reports what has happened since the last call. It reaps what has exited,
	// unless killing: then that is left to Reap.
	Collect(killing bool) Event
	// Strike sends SIGKILL to members that are alive, in passes of a bounded length:
	// to the children of this process, and if below is set also to all that descends
	// from them. It reaps nothing: a zombie holds its place under a task limit, so
	// that a bomb cannot refill what a strike has emptied. During a start it makes the
	// start fail, or ends what was started.
	Strike(below bool) Struck
	// Reap reaps what has died, and reports it. During a start it does nothing.
	Reap() Event
	// Summary reports on this leader's tree, or since Forget.
	Summary() Summary
}

// Event is what Collect and Reap report.
type Event struct {
	// StartDone: the start has come to its end. Either StartErr is nil and PID is what
	// was started (it may have exited already), or StartErr is why it was not
	// executed.
	StartDone bool
	StartErr  *StartError
	PID       int
	// Exit is not nil if the leader's exit was seen by this call.
	Exit *outcome.Exit
	// Siblings are the pids of the siblings whose exit was seen by this call.
	Siblings []int
	// Empty: no child of this process is left, and no member that can be found. Proof
	// is how that is known; ProofNone if there are suspects.
	Empty bool
	Proof outcome.Proof
	// Died is how many deaths Reap has found: it reaped so many children, or, where only
	// the leader can be reaped, saw its exit.
	Died int
	// Silent: FD does not report the next death. Reap again soon.
	Silent bool
}

// Struck is what a strike has done.
type Struck struct {
	// Fresh is how many processes got their first SIGKILL by this strike.
	Fresh int
	// More: this strike is not complete. Strike again before reaping.
	More bool
}

// Summary is what a report has about a tree.
type Summary struct {
	// Ended lists what got a signal of ours, in the order of the first signal, and
	// EndedMore counts those for which the list has no room.
	Ended     []outcome.Ended
	EndedMore int
	// Suspects may be members and cannot be distinguished from strangers. They are
	// never signalled. There are none where the kernel gives us every member.
	Suspects []outcome.Process
	// Usage is what the reaped part of the tree has used.
	Usage outcome.Usage
}

// CgroupRest is what EndCgroup could not end or remove in its time.
type CgroupRest struct {
	// Populated: a process is still in the cgroup.
	Populated bool
	// Remove tries for longer to remove the cgroup. It is for another goroutine; nil
	// if the cgroup is gone.
	Remove func() error
}

// StartProgress is what is known of a start that is under way.
type StartProgress int

const (
	// StartPending: nothing is known yet, or no start is under way.
	StartPending StartProgress = iota
	// StartExecuted: the leader was executed. The Event with StartDone is certain to
	// come.
	StartExecuted
	// StartRuledOut: nothing was executed and nothing will be. What was forked for the
	// start was struck before.
	StartRuledOut
)

// StartError is why the leader was not executed.
type StartError struct {
	Op  string // "chdir", "fork" or "exec"
	Err error  // usually a syscall.Errno
	// Killed: a strike ended the start before the leader was executed.
	Killed bool
}

func (e *StartError) Error() string { return "proctree: " + e.Op + ": " + e.Err.Error() }
func (e *StartError) Unwrap() error { return e.Err }

// Spec is what to start. The descriptors remain the caller's; they are duplicated
// into the leader.
type Spec struct {
	Path string   // as execve takes it; relative to Dir
	Argv []string // argv[0] included
	Env  []string
	Dir  int // a directory's descriptor, O_PATH is enough
	// Files are the leader's descriptors: the index is the number in the
	// leader, -1 leaves that number closed.
	Files []int
	// Given are the names (FileName) of those files among the leader's 0, 1 and 2
	// that leftovers may still use: see Tree.Holds.
	Given []string
	// Sibling starts a sibling (see SiblingTree) in place of a leader.
	Sibling bool
	// NoCgroup starts the leader in our own cgroup although there is one for it.
	NoCgroup bool
	// Terminal makes descriptor 0, a terminal, the controlling one.
	Terminal bool
	// Mark is an entry of Env that nothing outside the tree has, and MarkPrefix is the
	// common beginning of the marks of all trees. Scans use them to find members.
	Mark, MarkPrefix string
	// IgnoreHangup and IgnoreInterrupt start the leader with SIGHUP and SIGINT
	// ignored; every other signal has its default disposition.
	IgnoreHangup, IgnoreInterrupt bool
}

// Member is a live process of the tree.
type Member struct {
	PID    int
	Parent int
	Start  uint64 // in the platform's unit
	Name   string
	State  byte
	Leader bool
	thread int // one that lives, where the main thread has exited; else 0
}

// String is for messages to people.
func (m Member) String() string { return fmt.Sprintf("%d (%s, state %c)", m.PID, m.Name, m.State) }

// Recipients are the members that get a polite signal.
type Recipients int

const (
	ToLeader Recipients = iota
	// ToFeeders: all members but the leader, and but those that other members may
	// feed: these end by themselves once nothing feeds them any more. See Tree.Holds.
	ToFeeders
	ToOthers // all members but the leader
)

// Lost is what is known of a tree whose holder is dead.
type Lost struct {
	// Mark and MarkPrefix are those of the Spec.
	Mark, MarkPrefix string
	// Since is when the holder was started, or later: members were started after it.
	Since time.Time
	// Cgroup is the content of the holder's /proc/PID/cgroup, and TreeCgroup the name of the
	// cgroup that it had made in its own for the tree. Linux only.
	Cgroup, TreeCgroup string
	// Leader is the leader's pid, 0 if it is not known. macOS only.
	Leader int
}

// Check is one thing that this package needs of the system: see Checks.
type Check struct {
	Name   string
	OK     bool
	Needed bool // without it nothing can be started
	// Without describes the difference where it is missing.
	Without string
}

// Checks tries what the ending of trees needs of this system, and changes nothing.
func Checks() []Check { return checks() }

// maxListed bounds the lists of ended and surviving processes in a report. The
// rest is counted: a report must fit into memory that was set aside before the
// tree could use it all up.
const maxListed = 512
