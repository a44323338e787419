//go:build unix

package outcome

import (
	"syscall"

	"golang.org/x/sys/unix"
)

func signalName(n int) string { return unix.SignalName(syscall.Signal(n)) }
