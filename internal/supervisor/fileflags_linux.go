package supervisor

import (
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// FileFlags is what all descriptors of an open file share besides its offset, and what each process
// that has one can change: the flags of fcntl's F_SETFL, and which process the kernel signals
// about the file.
type FileFlags struct {
	known  bool
	flags  int
	owner  fileOwner
	signal int
}

// fileOwner is the kernel's f_owner_ex. (F_GETOWN answers a group with a negative
// number, which looks like an error.)
type fileOwner struct{ kind, pid int32 }

const (
	ownerIsPID   = 1 // F_OWNER_PID
	ownerIsGroup = 2 // F_OWNER_PGRP
)

// ReadFileFlags returns the flags of an open file.
func ReadFileFlags(fd int) (f FileFlags) {
	var err error
	if f.flags, err = unix.FcntlInt(uintptr(fd), unix.F_GETFL, 0); err != nil || f.flags&unix.O_PATH != 0 {
		return f
	}
	if err := fcntlOwner(fd, unix.F_GETOWN_EX, &f.owner); err != nil {
		return f
	}
	if f.owner.pid == 0 {
		f.owner.kind = 0 // no process, of no kind
	}
	f.signal, err = unix.FcntlInt(uintptr(fd), unix.F_GETSIG, 0)
	f.known = err == nil
	return f
}

// Restore gives an open file back what it had. A pid that is not ours can be another process's by
// now: if the owner has changed, and was not this process, the file has none afterwards.
func (f FileFlags) Restore(fd int) {
	now := ReadFileFlags(fd)
	if !f.known || !now.known {
		return
	}
	if now.flags != f.flags {
		_, _ = unix.FcntlInt(uintptr(fd), unix.F_SETFL, f.flags) // those that cannot be changed are ignored
	}
	if now.signal != f.signal {
		_, _ = unix.FcntlInt(uintptr(fd), unix.F_SETSIG, f.signal)
	}
	if now.owner != f.owner {
		if f.owner != (fileOwner{ownerIsPID, int32(os.Getpid())}) && f.owner != (fileOwner{ownerIsGroup, int32(unix.Getpgrp())}) {
			f.owner = fileOwner{}
		}
		_ = fcntlOwner(fd, unix.F_SETOWN_EX, &f.owner)
	}
}

func fcntlOwner(fd, cmd int, owner *fileOwner) error {
	_, _, errno := unix.Syscall(unix.SYS_FCNTL, uintptr(fd), uintptr(cmd), uintptr(unsafe.Pointer(owner)))
	if errno != 0 {
		return errno
	}
	return nil
}
