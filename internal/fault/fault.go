// Package fault is the one seam through which tests make system calls fail: package sys, and
// what makes a call by itself, asks it first.
//
// A test sets Inject. In a program built with the tag curfew_faults, the variable
// CURFEW_FAULTS says what fails:
//
//	[PROCESS/]CALL=ERRNO[@FIRST[+COUNT]][,...]
//
// for example "supervisor/wait4=10" or "openat=24@3+5": the third to the seventh call of
// openat in each process fail with errno 24. PROCESS is supervisor, guard or caller, and
// ERRNO 0 makes a read short instead. "random=SEED/N" makes each call fail with a
// probability of N in 1000, with an error that it can meet. In any other program nothing
// fails: Enabled is a constant, and all that is left of the seam is a look at Inject.
package fault

import "syscall"

// Call names a kind of system call.
type Call uint8

const (
	Open Call = iota
	Openat
	Read
	Pread
	Getdents
	Prctl
	Eventfd
	Write
	Waitid
	Wait4
	Kill
	PidfdOpen
	PidfdSendSignal
	Fchdir
	ForkExec
	Mkdirat
	Poll
	Sendmsg
	Recvmsg
	Socketpair
	Fstat
	Fstatat
	Fchmod
	Fsync
	Mkdir
	Rmdir
	Rename
	Renameat
	Unlink
	Unlinkat
	Fcntl
	Flock
	calls
)

var names = [calls]string{
	"open", "openat", "read", "pread", "getdents", "prctl", "eventfd", "write", "waitid", "wait4", "kill", "pidfd_open",
	"pidfd_send_signal", "fchdir", "fork_exec", "mkdirat", "poll", "sendmsg", "recvmsg", "socketpair",
	"fstat", "fstatat", "fchmod", "fsync", "mkdir", "rmdir", "rename", "renameat", "unlink", "unlinkat", "fcntl", "flock",
}

func (c Call) String() string { return names[c] }

// Inject returns the error that a call fails with, 0 to make the call. It is nil unless a test
// has set it. A test sets it while no other goroutine makes calls.
var Inject func(Call) syscall.Errno

// At returns the error that the next call of that kind fails with, 0 to make the call.
func At(c Call) syscall.Errno {
	if Inject != nil {
		return Inject(c)
	}
	return due(c)
}
