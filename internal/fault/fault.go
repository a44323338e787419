// Package fault is the seam through which tests make system calls fail. Every
// call of the helper that can fail asks it first. In an ordinary build nothing
// is there to be asked: Enabled is a constant, and the compiler drops the
// question. With the build tag curfew_faults the variable CURFEW_FAULTS says
// what fails:
//
//	[PROCESS/]CALL=ERRNO[@FIRST[+COUNT]][,...]
//
// for example "supervisor/wait4=10" or "openat=24@3+5": the third to the seventh
// call of openat in each process fail with errno 24. PROCESS is supervisor,
// guard or caller, and ERRNO 0 makes a read short instead. "random=SEED/N" makes
// each call fail with a probability of N in 1000, as it may.
package fault

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
	calls
)

var names = [calls]string{
	"open", "openat", "read", "pread", "getdents", "prctl", "eventfd", "write", "waitid", "wait4", "kill", "pidfd_open",
	"pidfd_send_signal", "fchdir", "fork_exec", "mkdirat", "poll", "sendmsg", "recvmsg", "socketpair",
}

func (c Call) String() string { return names[c] }
