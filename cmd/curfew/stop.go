package main

import (
	"context"
	"errors"
	"io"
	"os"
	"os/signal"
	"sync/atomic"
	"syscall"
	"time"

	"curfew/adapter"
	"curfew/outcome"
)

// received is the reason of a stop by a signal to curfew.
type received struct{ sig syscall.Signal }

func (t received) Error() string { return outcome.SignalName(int(t.sig)) + " received" }

// The other reasons for which curfew itself stops the CLI.
var (
	errParentGone = errors.New("the process that started curfew has ended")
	errStdinEnded = errors.New("stdin ended")
)

// signals receives the signals sent to curfew. The first one stops the CLI with the same
// signal; a second one ends the grace.
type signals struct {
	caught chan os.Signal
	first  atomic.Int32  // the first signal, 0 if there was none
	kill   chan struct{} // closed by the second
	again  chan struct{} // receives for every signal after the first
}

// echo is the time in which a second signal counts as a repetition of the first one: when a
// terminal closes, both the kernel and the shell send SIGHUP; systemd sends
// SIGHUP right after SIGTERM; a wrapper forwards the SIGINT that the terminal
// sent to curfew as well.
const echo = 50 * time.Millisecond

func catchSignals(stop context.CancelCauseFunc, v *voice) *signals {
	s := &signals{caught: make(chan os.Signal, 8), kill: make(chan struct{}), again: make(chan struct{}, 1)}
	for _, sig := range []os.Signal{syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP, syscall.SIGQUIT} {
		// nohup ignores them, and so does a shell that starts a background job. No program
		// has a reason to ignore SIGTERM for us.
		if sig != syscall.SIGTERM && signal.Ignored(sig) {
			continue
		}
		signal.Notify(s.caught, sig)
	}
	// A closed stderr must not end curfew before the tree has ended. The CLI would inherit
	// that the signal is ignored.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)
	go s.follow(stop, v)
	return s
}

// killOnSecond kills p when the second signal comes, or has come.
func (s *signals) killOnSecond(p *adapter.Process) {
	go func() { // Started must not block
		<-s.kill
		p.Kill()
	}()
}

// hangUp acts as if curfew received SIGHUP.
func (s *signals) hangUp() {
	if signal.Ignored(syscall.SIGHUP) {
		return
	}
	select {
	case s.caught <- syscall.SIGHUP:
	default: // enough signals wait already
	}
}

func (s *signals) follow(stop context.CancelCauseFunc, v *voice) {
	var first time.Time
	killed := false
	for c := range s.caught {
		sig, _ := c.(syscall.Signal)
		switch {
		case first.IsZero():
			first = time.Now()
			s.first.Store(int32(sig))
			v.say("stopping: %v", received{sig})
			stop(adapter.StopCause{Signal: sig, Reason: received{sig}})
			continue
		case time.Since(first) < echo:
			continue
		case !killed:
			killed = true
			v.say("killing: %v", received{sig})
			close(s.kill)
		}
		select {
		case s.again <- struct{}{}:
		default:
		}
	}
}

// signal returns the first signal, 0 if there was none.
func (s *signals) signal() syscall.Signal { return syscall.Signal(s.first.Load()) }

// input reads our stdin for the CLI, and notes its end.
type input struct {
	from   io.Reader
	ended  chan struct{} // closed at the end
	moving chan struct{} // receives when bytes were read
}

func newInput(from io.Reader) *input {
	return &input{from: from, ended: make(chan struct{}), moving: make(chan struct{}, 1)}
}

// Read is for one goroutine. It must not be called after an error.
func (in *input) Read(p []byte) (int, error) {
	n, err := in.from.Read(p)
	if err != nil {
		close(in.ended)
	} else {
		select {
		case in.moving <- struct{}{}:
		default:
		}
	}
	return n, err
}

// stopAfterEnd calls stop when the CLI has not ended by itself within d after the end of
// the input. The end counts also if the CLI does not read the rest of the input: hungUp is
// closed when the other end is.
func (in *input) stopAfterEnd(d time.Duration, hungUp <-chan struct{}, stop func(error)) {
	ended := in.ended
	select {
	case <-ended:
		ended = nil
	case <-hungUp:
	}
	for timer := time.NewTimer(d); ; timer.Reset(d) {
		select {
		case <-timer.C:
			stop(errStdinEnded)
			return
		case <-ended:
			ended = nil
		case <-in.moving:
		}
	}
}
