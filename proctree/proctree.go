// Package proctree starts one process, the leader, keeps hold of everything
// that descends from it, and ends that tree. It knows processes and nothing
// about commands, callers or output.
//
// It is meant for a process that does nothing else. On Linux that becomes a child
// subreaper and treats every child that it has as a member of the tree (Tree); where
// the kernel does not give us what is orphaned, on macOS, the tree is found by scans
// of the process table (Tracked, Tracker). A program that has children of its own must
// not use it; it starts the supervisor (package curfew/internal/supervisor), which
// does.
package proctree

import (
	"fmt"

	"curfew/outcome"
)

// Event tells what Collect found.
type Event struct {
	// StartDone: the start that Start began has come to its end. Then either
	// StartErr is nil and the leader runs (or has already ended), or StartErr
	// says why it was not executed.
	StartDone bool
	StartErr  *StartError
	// Exit is not nil if the leader's exit was seen by this call.
	Exit *outcome.Exit
	// Ward is the pid of the ward that Start has started.
	Ward int
	// Wards are the pids of the wards whose exit was seen.
	Wards []int
	// Empty: nothing of the tree is left, as proven by the kernel.
	Empty bool
	// Unheard: FD reports no death now. Look again soon.
	Unheard bool
}

// StartError is why the leader was not executed.
type StartError struct {
	Op  string // "chdir", "fork" or "exec"
	Err error  // usually a syscall.Errno
	// Killed: it was ended on our request before it was executed.
	Killed bool
}

func (e *StartError) Error() string { return "proctree: " + e.Op + ": " + e.Err.Error() }
func (e *StartError) Unwrap() error { return e.Err }

// Spec says what to start. The descriptors stay the caller's; they are
// duplicated into the leader.
type Spec struct {
	Path string   // as execve takes it; relative to Dir
	Argv []string // argv[0] included
	Env  []string
	Dir  int // a directory's descriptor, O_PATH is enough
	// Files are the leader's descriptors: the index is the number in the
	// leader, -1 leaves that number closed.
	Files []int
	// Given are the names (FileName) of those files among the leader's 0, 1 and 2
	// that what is left when it has exited may still use: see Holds.
	Given []string
	// Ward starts no leader but a ward: a child that is not of the tree, is never
	// struck, and does not end with us.
	Ward bool
	// NoGroup starts the leader in our own cgroup although there is one for it.
	NoGroup bool
	// Terminal makes descriptor 0, a terminal, the controlling one.
	Terminal bool
	// Mark is an entry of Env that nothing outside the tree has, and MarkPrefix what
	// those of all trees begin with. They are for where scans have to find the tree.
	Mark, MarkPrefix string
	// IgnoreHangup and IgnoreInterrupt start the leader with SIGHUP and SIGINT
	// ignored; everything else has its default disposition.
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

// Who is to get a signal.
type Who int

const (
	TheLeader Who = iota
	// Feeders are all members but the leader, and those that other members may feed:
	// these end by themselves when nobody feeds them any more. See Holds.
	Feeders
	AllOthers // all members but the leader
)

// String is for messages to people.
func (m Member) String() string { return fmt.Sprintf("%d (%s, state %c)", m.PID, m.Name, m.State) }

// Check is something that this package wants of the system: see Checks.
type Check struct {
	Name   string
	OK     bool
	Needed bool // nothing can be started without it
	// Without says what is different where it is not there.
	Without string
}

// maxListed bounds the lists of ended and surviving processes in a report. The
// rest is counted: a report must fit into memory that was set aside before the
// tree could use it all up.
const maxListed = 512
