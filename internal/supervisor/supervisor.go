// Package supervisor has the helpers between a caller and its CLIs, and the caller's ends of
// them. A helper is the caller's own executable, started again: a supervisor starts a CLI, holds
// its tree and ends it; the guard starts the supervisors, and ends what a lost one held.
// Importing the package is enough: in a process that was started as a helper, the package's
// initialisation takes over and never returns.
//
// Client and Pool are the caller's side; serve and serveGuard are the helpers'.
package supervisor

import (
	"curfew/internal/wire"
	"curfew/outcome"
)

// Event is a message about a running invocation. One of its fields is set.
type Event struct {
	Started     *wire.Started
	StartFailed *wire.StartFailed
	Stopping    *wire.Stopping
	Done        *wire.Done
	Exited      *outcome.Exit // Done has it again
}
