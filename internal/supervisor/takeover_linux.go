package supervisor

import (
	"os"
	"strconv"

	"golang.org/x/sys/unix"

	"curfew/internal/wire"
)

// processName is argv[0] as the kernel has it: os.Args can have been changed by
// an init function that ran before.
func processName() string {
	var buf [64]byte
	b, err := readSmallPart("/proc/self/cmdline", buf[:])
	if err != nil || len(b) == 0 {
		if len(os.Args) == 0 {
			return ""
		}
		return os.Args[0]
	}
	return firstArgument(b)
}

// checkDoor says why this process must not serve the other end of its socket:
// it has privileges that the other end may not have.
func checkDoor() string {
	const atSecure = 23
	auxv, err := unix.Auxv()
	if err != nil {
		return "the auxiliary vector cannot be read: " + err.Error()
	}
	secure := true
	for _, e := range auxv {
		if e[0] == atSecure {
			secure = e[1] != 0
		}
	}
	if secure {
		return "the executable gives privileges (setuid, setgid or file capabilities)"
	}
	cred, err := unix.GetsockoptUcred(wire.ControlFD, unix.SOL_SOCKET, unix.SO_PEERCRED)
	if err != nil {
		return "the peer's credentials cannot be read: " + err.Error()
	}
	if int(cred.Uid) != unix.Getuid() || int(cred.Uid) != unix.Geteuid() {
		return "the peer has another uid"
	}
	return ""
}

// denyAccess keeps other processes of this user from taking our descriptors
// (pidfd_getfd), tracing us and reading our memory, unless they have CAP_SYS_PTRACE. What
// we execute can be traced as usual: execve sets the flag again. Helpers that scan do
// without: they know each other by their environments, which could not be read.
func denyAccess() {
	if !tracking() {
		_ = unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0) // it cannot fail
	}
}

// giveUpStderr puts /dev/null in the place of our stderr.
func giveUpStderr() { _ = unix.Dup3(0, 2, 0) }

// eachOpen calls do with each descriptor that is open. False where there is no list.
func eachOpen(do func(fd int)) bool {
	dir, err := unix.Open("/proc/self/fd", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return false
	}
	defer unix.Close(dir)
	var buf [4096]byte
	for {
		n, err := unix.Getdents(dir, buf[:])
		if err != nil || n <= 0 {
			return true
		}
		_, _, names := unix.ParseDirent(buf[:n], -1, nil)
		for _, name := range names {
			if fd, err := strconv.Atoi(name); err == nil {
				do(fd)
			}
		}
	}
}

// beResumedBy makes the kernel send us SIGCONT whenever something happens to our end of a
// socket, its hanging up included: if we are suspended, the next message from the other end,
// or its end, wakes us, even after our parent has died.
func beResumedBy(socket int) {
	flags, err := unix.FcntlInt(uintptr(socket), unix.F_GETFL, 0)
	for _, set := range [...]struct{ cmd, arg int }{
		{unix.F_SETOWN, unix.Getpid()}, {unix.F_SETSIG, int(unix.SIGCONT)}, {unix.F_SETFL, flags | unix.O_ASYNC},
	} {
		if err == nil {
			_, err = unix.FcntlInt(uintptr(socket), set.cmd, set.arg)
		}
	}
}
