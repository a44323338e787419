package supervisor

import (
	"curfew/internal/wire"
	"curfew/outcome"
)

// Event is one of the messages a running invocation brings.
type Event struct {
	Started     *wire.Started
	StartFailed *wire.StartFailed
	Stopping    *wire.Stopping
	Done        *wire.Done
	Exited      *outcome.Exit // the leader's exit; Done has it again
}
