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

var errSystem = fmt.Errorf("supervisor: %s is not supported, only Linux and macOS are: %w", runtime.GOOS, errors.ErrUnsupported)

// Client is the caller's end of one helper process.
type Client struct{}

func (h *Client) Run(context.Context, *wire.Request) error   { return errSystem }
func (h *Client) Next() (Event, error)                       { return Event{}, errSystem }
func (h *Client) Interrupt(time.Time)                        {}
func (h *Client) Stop(wire.StopRequest) error                { return errSystem }
func (h *Client) Drain([]int) error                          { return errSystem }
func (h *Client) Signal(id string, sig syscall.Signal) error { return errSystem }
func (h *Client) Kill()                                      {}

func (h *Client) Sweep(mark string, leader int, since, until time.Time) ([]outcome.Ended, []outcome.Process) {
	return nil, nil
}

func (h *Client) Watch(*wire.Duties)  {}
func (h *Client) PID() int            { return 0 }
func (h *Client) Cgroup() string      { return "" }
func (h *Client) Group() string       { return "" }
func (h *Client) Gone(time.Time) bool { return false }

func (h *Client) Suspended() bool { return false }

func (h *Client) Pending() bool { return false }

func (h *Client) Swept(until time.Time) (*wire.Swept, error) { return nil, errSystem }

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

func (p *Pool) Get(context.Context, bool) (*Client, error) { return nil, errSystem }
func (p *Pool) Put(*Client)                                {}
func (p *Pool) Discard(*Client)                            {}
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
