package wire

import (
	"syscall"

	"golang.org/x/sys/unix"
)

const sendFlags = unix.MSG_DONTWAIT // and no SIGPIPE: the Go runtime ignores it

// recvmsg reads bytes and descriptors without waiting. Nothing is forked before these are
// close-on-exec.
func recvmsg(fd int, b, oob []byte) (got received, err error) {
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	n, oobn, flags, _, err := unix.Recvmsg(fd, b, oob, unix.MSG_DONTWAIT)
	got.n, got.cut = n, flags&unix.MSG_CTRUNC != 0
	if err == nil {
		got.files, err = rights(oob[:oobn])
	}
	for _, fd := range got.files {
		unix.CloseOnExec(fd)
	}
	return got, err
}

// nameSenders returns false: a socket does not name senders here.
func nameSenders(int) bool { return false }

func socketpair() (pair [2]int, err error) {
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	pair, err = unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM, 0)
	if err == nil {
		unix.CloseOnExec(pair[0])
		unix.CloseOnExec(pair[1])
	}
	return pair, err
}
