package supervisor

import (
	"curfew/internal/wire"
	"curfew/outcome"
)

// Request is one invocation to be.
type Request struct {
	wire.Settings
	Path string // as execve takes it; relative to Dir
	Args []string
	Env  []string
	// Dir is the descriptor of the working directory, Files are those that
	// Settings.Numbers names. They stay the caller's.
	Dir   int
	Files []int
}

// Event is one of the messages a running invocation brings.
type Event struct {
	Started     *wire.Started
	StartFailed *wire.StartFailed
	Stopping    *wire.Stopping
	Done        *wire.Done
	Exited      *outcome.Exit // the leader's exit; Done has it again
}
