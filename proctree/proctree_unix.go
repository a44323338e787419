//go:build linux || darwin

package proctree

import (
	"syscall"
	"time"

	"curfew/outcome"
)

// What both systems share beside the methods of a tree.

// Open prepares this process to hold a tree. The calling goroutine must be locked to the
// main thread, which never ends. The process must have no children.
func Open(o Options) (Tree, error) { return openTree(o) }

// OpenTracked does the same for a tree that is tracked by scans of the process table. That
// is what Open does on macOS, and what a Linux without subreapers would need.
func OpenTracked(o Options) (Tree, error) { return openTracked(o) }

// Sweep is for when the process that held a tree is dead: its children have fallen to
// others. It sends SIGKILL to what can only be of that tree, until two scans running find
// nothing, or until the given time. It finds members by Lost.Mark in their environments,
// and on macOS by the leader's session too. A process that hides both is not found, so
// the result is no proof of anything. suspects may be of the tree and were not signalled.
func Sweep(l Lost, until time.Time) (ended []outcome.Ended, suspects []outcome.Process) {
	return sweepLost(l, until)
}

// FileName returns a name for an open file of this process, for Spec.Given; "" if it has
// none.
func FileName(fd int) string { return fileName(fd) }

// Suspended reports whether a process is stopped, by a signal or by a tracer.
func Suspended(pid int) bool { return suspended(pid) }

func exitFrom(status syscall.WaitStatus) *outcome.Exit {
	if status.Exited() {
		return &outcome.Exit{Code: status.ExitStatus()}
	}
	return &outcome.Exit{Code: -1, Signal: int(status.Signal()), CoreDumped: status.CoreDump()}
}

func addUsage(sum *outcome.Usage, used *syscall.Rusage) {
	sum.User += time.Duration(used.Utime.Nano())
	sum.System += time.Duration(used.Stime.Nano())
	sum.MaxRSSBytes = max(sum.MaxRSSBytes, used.Maxrss*rssUnit)
}

// Describe returns m in the form of an outcome.
func (m Member) Describe() outcome.Process {
	return outcome.Process{PID: m.PID, Start: startedAt(m.Start), Name: m.Name}
}
