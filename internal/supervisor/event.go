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
