package proctree

import (
	"encoding/binary"
	"errors"
	"syscall"
)

var errNotOurs = errors.New("proctree: signal a process: it is init or this process")

// signalChild sends sig to pid, an unreaped child of this process.
func signalChild(pid int, sig syscall.Signal) error {
	if pid <= 1 || sig <= 0 {
		panic("proctree: signal a child: the pid is not that of a single process, or there is no such signal")
	}
	return syscall.Kill(pid, sig)
}

// signal reaches the process by its version. Where the system cannot do that (before
// macOS 14.2), it is first asked which process has the pid. A pid that is given away in the
// moment between is then not noticed; for that all other pids have to be given out.
func (p *processTable) signal(r *tableRow, sig syscall.Signal) error {
	if r.PID <= 1 || r.PID == syscall.Getpid() {
		return errNotOurs
	}
	if p.able.ExactSignals {
		return signalVersion(r.PID, r.Version, sig)
	}
	if !p.is(r) {
		return syscall.ESRCH
	}
	return syscall.Kill(r.PID, sig)
}

// signalVersion sends a signal to the process that has that pid and that version.
// Of an audit token the kernel reads no more than these two.
func signalVersion(pid int, version uint32, sig syscall.Signal) error {
	var token [32]byte
	binary.NativeEndian.PutUint32(token[5*4:], uint32(pid))
	binary.NativeEndian.PutUint32(token[7*4:], version)
	_, err := procInfo(callSignalToken, 0, int(sig), 0, token[:])
	return err
}
