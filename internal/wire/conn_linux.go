package wire

import (
	"encoding/binary"

	"golang.org/x/sys/unix"
)

const sendFlags = unix.MSG_NOSIGNAL | unix.MSG_DONTWAIT

// recvmsg reads bytes and descriptors, which are close-on-exec, without waiting.
func recvmsg(fd int, b, oob []byte) (got received, err error) {
	n, oobn, flags, _, err := unix.Recvmsg(fd, b, oob, unix.MSG_DONTWAIT|unix.MSG_CMSG_CLOEXEC)
	got.n, got.cut = n, flags&unix.MSG_CTRUNC != 0
	if err == nil {
		got.files, err = rights(oob[:oobn])
		got.sender = senderOf(oob[:oobn])
	}
	return got, err
}

// nameSenders makes recvmsg return the sender from now on, and reports whether it does.
func nameSenders(socket int) bool {
	return unix.SetsockoptInt(socket, unix.SOL_SOCKET, unix.SO_PASSCRED, 1) == nil
}

// senderOf returns the process that the kernel names as the sender of a message; 0 if it
// names none.
func senderOf(oob []byte) int {
	for len(oob) > 0 {
		h, data, rest, err := unix.ParseOneSocketControlMessage(oob)
		if err != nil {
			return 0
		}
		if h.Level == unix.SOL_SOCKET && h.Type == unix.SCM_CREDENTIALS && len(data) >= 4 {
			return int(int32(binary.NativeEndian.Uint32(data)))
		}
		oob = rest
	}
	return 0
}

func socketpair() ([2]int, error) {
	return unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
}
