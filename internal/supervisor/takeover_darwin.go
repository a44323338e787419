package supervisor

import (
	"bytes"
	"os"

	"golang.org/x/sys/unix"

	"curfew/internal/wire"
)

// processName returns argv[0] as the kernel has it: an init function that ran before ours can
// have changed os.Args.
func processName() string {
	b, err := unix.SysctlRaw("kern.procargs2", unix.Getpid())
	if err != nil || len(b) < 4 {
		if len(os.Args) == 0 {
			return ""
		}
		return os.Args[0]
	}
	// The number of arguments, the path of the executable, zero bytes, the arguments.
	_, rest, _ := bytes.Cut(b[4:], []byte{0})
	return firstArgument(bytes.TrimLeft(rest, "\x00"))
}

// checkDoor returns why this process must not serve the other end of its socket: it has
// privileges that the other end may not have.
func checkDoor() string {
	if unix.Issetugid() {
		return "the executable gives privileges (setuid or setgid)"
	}
	cred, err := unix.GetsockoptXucred(wire.ControlFD, unix.SOL_LOCAL, unix.LOCAL_PEERCRED)
	if err != nil {
		return "the peer's credentials cannot be read: " + err.Error()
	}
	if int(cred.Uid) != unix.Getuid() || int(cred.Uid) != unix.Geteuid() {
		return "the peer has another uid"
	}
	return ""
}

// giveUpStderr replaces our stderr by /dev/null.
func giveUpStderr() { _ = unix.Dup2(0, 2) }

// denyAccess does nothing: no process can take descriptors of another one here.
func denyAccess() {}

// eachOpen returns false: a list cannot be had without a name for each descriptor.
func eachOpen(func(fd int)) bool { return false }

// beResumedBy does nothing: the signal that the kernel can send cannot be chosen here.
func beResumedBy(int) {}
