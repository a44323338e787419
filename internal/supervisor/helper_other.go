//go:build !linux && !darwin

package supervisor

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"syscall"
	"time"

	"curfew/internal/wire"
	"curfew/outcome"
)

// There is no supervisor for this system. Everything that would start one
// says so, which makes every invocation a not_started.

// TrackerVariable has no meaning here.
const TrackerVariable = "CURFEW_TRACKER"

var errSystem = fmt.Errorf("supervisor: %s is not supported, only Linux and macOS are: %w", runtime.GOOS, errors.ErrUnsupported)

// Helper is the caller's end of one helper process.
type Helper struct{}

func (h *Helper) Run(context.Context, *wire.Request) error   { return errSystem }
func (h *Helper) Next() (Event, error)                       { return Event{}, errSystem }
func (h *Helper) Interrupt(time.Time)                        {}
func (h *Helper) Stop(wire.StopRequest) error                { return errSystem }
func (h *Helper) Drain([]int) error                          { return errSystem }
func (h *Helper) Signal(id string, sig syscall.Signal) error { return errSystem }
func (h *Helper) Kill()                                      {}

func (h *Helper) Sweep(mark string, leader int, since, until time.Time) ([]outcome.Ended, []outcome.Process) {
	return nil, nil
}

func (h *Helper) Watch(*wire.Duties)  {}
func (h *Helper) PID() int            { return 0 }
func (h *Helper) Cgroup() string      { return "" }
func (h *Helper) Group() string       { return "" }
func (h *Helper) Gone(time.Time) bool { return false }

func (h *Helper) Suspended() bool { return false }

func (h *Helper) Pending() bool { return false }

func (h *Helper) Swept(until time.Time) (*wire.Swept, error) { return nil, errSystem }

// Sweep ends what carries the mark of an invocation that is lost.
func Sweep(mark, cgroup, group string, since, until time.Time) ([]outcome.Ended, []outcome.Process) {
	return nil, nil
}

// Pool keeps idle helpers for the next invocation.
type Pool struct {
	Executable string
	BuildMode  string
	IdleTime   time.Duration
	MaxIdle    int

	StateDir, Peer string
}

func (p *Pool) Get(context.Context, bool) (*Helper, error) { return nil, errSystem }
func (p *Pool) Put(*Helper)                                {}
func (p *Pool) Discard(*Helper)                            {}
func (p *Pool) Close() int                                 { return 0 }

// Ignored reports whether this process ignores sig.
func Ignored(syscall.Signal) bool { return false }

// Check reports whether helpers can be started from the executable at path.
func Check(path string) error {
	if path == "" {
		return nil // told when it is used
	}
	return errSystem
}

// FileFlags is nothing here.
type FileFlags struct{}

func ReadFileFlags(int) FileFlags { return FileFlags{} }

func (FileFlags) Restore(int) {}

// IdleThreads does nothing: there are no CLIs.
func IdleThreads(int) {}
