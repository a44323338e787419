//go:build unix

package sys

import (
	"os"
	"os/signal"
	"syscall"
)

// caught gets the signals that this process catches. It is never read.
var caught = make(chan os.Signal, 1)

// Survive makes the process outlive the signals that a CLI, or a person at a terminal,
// may send it. They are caught, not ignored: what is executed would inherit that.
func Survive() {
	signal.Notify(caught, syscall.SIGHUP, syscall.SIGINT, syscall.SIGQUIT, syscall.SIGTERM)
}

// SetIgnored makes this process ignore a signal, or catch it.
func SetIgnored(sig os.Signal, ignore bool) {
	switch {
	case ignore == signal.Ignored(sig):
	case ignore:
		signal.Ignore(sig)
	default:
		signal.Notify(caught, sig)
	}
}
