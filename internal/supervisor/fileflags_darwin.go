package supervisor

import "golang.org/x/sys/unix"

// FileFlags is what all descriptors of an open file share besides its offset, and what each process
// that has one can change: the flags of fcntl's F_SETFL.
type FileFlags struct {
	known bool
	flags int
}

// ReadFileFlags returns the flags of an open file.
func ReadFileFlags(fd int) FileFlags {
	flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFL, 0)
	return FileFlags{err == nil, flags}
}

// Restore gives an open file back what it had.
func (f FileFlags) Restore(fd int) {
	if now := ReadFileFlags(fd); f.known && now.known && now != f {
		_, _ = unix.FcntlInt(uintptr(fd), unix.F_SETFL, f.flags)
	}
}
