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

// There are no helpers on this system. What would start one returns errSystem, which makes every
// invocation a not_started.

var errSystem = fmt.Errorf("supervisor: %s is not supported, only Linux and macOS are: %w", runtime.GOOS, errors.ErrUnsupported)

// Client is the caller's end of a supervisor.
type Client struct{}

func (c *Client) Run(context.Context, *wire.Request) error { return errSystem }
func (c *Client) Next() (Event, error)                     { return Event{}, errSystem }
func (c *Client) Interrupt(time.Time)                      {}
func (c *Client) Pending() bool                            { return false }
func (c *Client) Stop(wire.StopRequest) error              { return errSystem }
func (c *Client) Signal(string, syscall.Signal) error      { return errSystem }
func (c *Client) Drain([]int) error                        { return errSystem }
func (c *Client) Kill()                                    {}
func (c *Client) Suspended() bool                          { return false }
func (c *Client) PID() int                                 { return 0 }
func (c *Client) Cgroup() string                           { return "" }
func (c *Client) Group() string                            { return "" }
func (c *Client) Watch(*wire.Duties)                       {}
func (c *Client) Swept(time.Time) (*wire.Swept, error)     { return nil, errSystem }
func (c *Client) Gone(time.Time) bool                      { return false }

func (c *Client) Sweep(string, int, time.Time, time.Time) ([]outcome.Ended, []outcome.Process) {
	return nil, nil
}

// Sweep finds nothing to end.
func Sweep(mark, cgroup, group string, since, until time.Time) ([]outcome.Ended, []outcome.Process) {
	return nil, nil
}

// Pool has no helpers.
type Pool struct {
	Executable     string
	BuildMode      string
	IdleTime       time.Duration
	MaxIdle        int
	StateDir, Peer string
}

func (p *Pool) Get(context.Context, bool) (*Client, error) { return nil, errSystem }
func (p *Pool) Put(*Client)                                {}
func (p *Pool) Discard(*Client)                            {}
func (p *Pool) Close() int                                 { return 0 }

// Ignored reports whether this process ignores sig.
func Ignored(syscall.Signal) bool { return false }

// Check returns an error if helpers cannot be started from the executable at path.
func Check(path string) error {
	if path == "" {
		return nil // not every program that imports adapter invokes anything
	}
	return errSystem
}

// FileFlags is nothing here.
type FileFlags struct{}

func ReadFileFlags(int) FileFlags { return FileFlags{} }

func (FileFlags) Restore(int) {}

// IdleThreads does nothing: no helper takes threads.
func IdleThreads(int) {}
