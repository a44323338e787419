package sys

import (
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// The dispositions of a signal that are no handlers.
const (
	SigDefault = 0
	SigIgnore  = 1
)

// sigaction is the kernel's struct sigaction, not that of the C library.
type sigaction struct {
	handler, flags, restorer uintptr
	mask                     uint64
}

const sigsetSize = 8

// Disposition returns SigDefault, SigIgnore or the address of a handler. It asks the kernel:
// os/signal loses track of a signal that was ignored and reset. ok is false if there is no
// such signal.
func Disposition(sig syscall.Signal) (handler uintptr, ok bool) {
	var act sigaction
	_, _, errno := unix.RawSyscall6(unix.SYS_RT_SIGACTION, uintptr(sig), 0, uintptr(unsafe.Pointer(&act)), sigsetSize, 0, 0)
	return act.handler, errno == 0
}

// SetDisposition sets a signal to SigDefault or SigIgnore, without the knowledge of os/signal.
func SetDisposition(sig syscall.Signal, handler uintptr) {
	act := sigaction{handler: handler}
	_, _, _ = unix.RawSyscall6(unix.SYS_RT_SIGACTION, uintptr(sig), uintptr(unsafe.Pointer(&act)), 0, sigsetSize, 0, 0)
}

// Ignored reports whether this process ignores sig.
func Ignored(sig syscall.Signal) bool {
	handler, ok := Disposition(sig)
	return ok && handler == SigIgnore
}
