package proctree

import (
	"encoding/binary"
	"syscall"
)

// Signal reaches the process by its version. A system that cannot do that (before
// macOS 14.2) is asked who it is first; a pid that is given away in the moment
// between is then not noticed, for which all other pids have to be given out.
func (p *processTable) Signal(r *Row, sig syscall.Signal) error {
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
