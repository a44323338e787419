package adapter

import (
	"errors"
	"syscall"

	"curfew/outcome"
)

// Process is the leader of an invocation: the CLI itself. Command.Started gets it, and
// a Session has its methods. They may be called at any time and from several goroutines.
type Process struct {
	v   *invocation
	pid int
}

// PID returns the process ID. It may be another process's once the invocation has ended:
// to send a signal use Signal, which cannot reach another process.
func (p *Process) PID() int { return p.pid }

// Signal sends a signal to the leader. It does not wait, and does not stop the
// invocation. The error is os.ErrProcessDone if the leader has exited.
func (p *Process) Signal(sig syscall.Signal) error { return p.v.control.signal(sig) }

// Kill ends the grace of a stop at once: every process of the invocation that is alive
// gets SIGKILL. If no stop is under way it begins one, with outcome.CauseCanceled. It
// does not wait for the end.
func (p *Process) Kill() { p.v.control.kill() }

// StopCause is an error that says how a stop is to be done. As the cause with which the
// context of Invoke or Start is canceled (context.WithCancelCause), in place or anywhere
// in the chain of that error, it sends Signal instead of StopPolicy.Signal.
type StopCause struct {
	// Signal is the polite signal of this stop. 0, and what is no signal, means
	// StopPolicy.Signal.
	Signal syscall.Signal
	// Kill means that there is no grace: SIGKILL at once.
	Kill bool
	// Reason, if not nil, is why. errors.Is and errors.As find it in the error of the
	// invocation.
	Reason error
}

// Error returns the text of Reason.
func (s StopCause) Error() string {
	switch {
	case s.Reason != nil:
		return s.Reason.Error()
	case s.Kill:
		return "killed"
	case s.Signal > 0:
		return "stopped with " + outcome.SignalName(int(s.Signal))
	}
	return "stopped"
}

// Unwrap returns Reason.
func (s StopCause) Unwrap() error { return s.Reason }

// stopCause returns the StopCause in the chain of err; the zero value if there is none.
func stopCause(err error) (s StopCause) {
	var p *StopCause
	if !errors.As(err, &s) && errors.As(err, &p) && p != nil {
		s = *p
	}
	return s
}
