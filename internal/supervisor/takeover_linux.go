package supervisor

import (
	"os"

	"golang.org/x/sys/unix"

	"curfew/internal/sys"
	"curfew/internal/wire"
)

// processName returns argv[0] as the kernel has it: an init function that ran before ours can
// have changed os.Args.
func processName() string {
	var buf [64]byte
	n := 0
	fd, err := sys.Open("/proc/self/cmdline", unix.O_RDONLY, 0)
	if err == nil {
		n, err = unix.Read(fd, buf[:])
		sys.Close(fd)
	}
	if err != nil || n == 0 {
		if len(os.Args) == 0 {
			return ""
		}
		return os.Args[0]
	}
	return firstArgument(buf[:n])
}

// checkDoor returns why this process must not serve the other end of its socket: it has
// privileges that the other end may not have.
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

// denyAccess keeps other processes of this user from taking our descriptors (pidfd_getfd), tracing
// us and reading our memory, unless they have CAP_SYS_PTRACE. What we execute can be traced as
// usual: execve sets the flag again. Helpers that scan are not protected: they know each other by
// their environments, which could not be read then.
func denyAccess() {
	if !tracking() {
		_ = unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0) // it cannot fail
	}
}

// giveUpStderr replaces our stderr by /dev/null.
func giveUpStderr() { _ = unix.Dup3(0, 2, 0) }

// eachOpen calls do with each descriptor that is open. It reports false if there is no list.
func eachOpen(do func(fd int)) bool {
	dir, err := sys.Open("/proc/self/fd", unix.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		return false
	}
	defer sys.Close(dir)
	var buf [4096]byte
	list := sys.List(dir, buf[:])
	for list.Next() {
		if fd, ok := list.Number(); ok {
			do(fd)
		}
	}
	return list.Err == nil
}

// beResumedBy makes the kernel send us SIGCONT whenever something happens to our end of a socket.
// If we are suspended, the next message from the other end wakes us, or that end's being closed,
// even after our parent has died.
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
