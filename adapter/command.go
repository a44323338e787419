package adapter

import (
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"syscall"
	"time"

	"curfew/internal/wire"
	"curfew/outcome"
	"curfew/proctree"
)

// Command says what to run and how to end it. The zero value of every field but
// Path has a meaning, so that Command{Path: "git", Args: []string{"status"}} is
// complete. Invoke and Start copy the Command and do not change it, so that it can be
// used again; the Readers, Writers and files in it are used until the end.
type Command struct {
	// Path is the executable: a path, relative to Dir, or a name without a slash,
	// which is looked up in the PATH of Env.
	Path string
	// Args are the arguments after the program name.
	Args []string
	// Arg0 is the program name that the CLI gets as its argv[0]. "" means Path.
	Arg0 string
	// Env is the environment, as a list of NAME=value. Nil means the caller's, with
	// PWD set if Dir is. Of two values for one name the last counts. An entry without
	// '=' is passed on, an empty one is not. A variable that names the invocation,
	// CURFEW_INVOCATION_<id>=1, is added.
	Env []string
	// Dir is the working directory. "" means the caller's.
	Dir string

	// Stdin is what the CLI reads. Nil means empty input. The CLI gets an *os.File
	// itself. From any other Reader a goroutine copies to a pipe, until the end of the
	// input, an error or a panic of the Reader, or the end of the CLI; an error of the
	// Reader is an *outcome.CopyError in the error of Invoke. With Pipe the caller
	// writes: see Session.Stdin. The Reader is never closed. Nothing of it is read after
	// Invoke has returned, but by a Read that was under way and did not return
	// (outcome.Output.Abandoned).
	Stdin io.Reader
	// Stdout and Stderr get what the CLI writes. Nil means that it is kept in the
	// Outcome, up to KeepOutput bytes of each. The CLI gets an *os.File itself. To any
	// other Writer a goroutine copies everything from a pipe. With Pipe the caller
	// reads: see Session.Stdout. The Writers are never closed.
	//
	// If Stdout and Stderr are the same comparable Writer, at most one goroutine at a
	// time writes to it. A Writer that blocks holds up the CLI's output and nothing
	// else. A Writer that fails or panics is not called again: the CLI's pipe is closed,
	// so that its next write gets SIGPIPE, and the error of Invoke has an
	// *outcome.CopyError, also if the CLI succeeds.
	Stdout, Stderr io.Writer
	// ExtraFiles are the CLI's descriptors 3, 4 and so on; nil leaves a number out.
	// The caller may close its files as soon as Invoke or Start returns.
	ExtraFiles []*os.File
	// Terminal, if not nil, is the terminal side of a pty. It becomes the CLI's
	// controlling terminal and its descriptors 0, 1 and 2. Stdin, Stdout and Stderr
	// must be nil then.
	Terminal *os.File
	// KeepOutput is how many bytes of a stream are kept where Stdout or Stderr is nil:
	// the first half of them from its beginning, the second from its end. 0 means
	// DefaultKeepOutput, a negative number none.
	KeepOutput int64
	// OutputLimit stops the invocation when the CLI has written more than this many
	// bytes to those of Stdout and Stderr that are not files. 0 means no limit;
	// a negative number is refused.
	OutputLimit int64

	// Timeout is how long the invocation, or the session, may take. 0 means no limit;
	// a negative time is refused. The supervisor keeps it too, so that it holds while
	// the caller is suspended.
	Timeout time.Duration
	// IdleTimeout ends a session that has no traffic for so long: nothing was written
	// to or read from its pipes, and no Write is under way. 0 means never; a negative
	// time is refused, and so is one without a Pipe, and one in Invoke. What a server
	// works on is no traffic, so the time must be longer than its longest answer takes.
	IdleTimeout time.Duration
	// Stop says how the invocation is stopped.
	Stop StopPolicy
	// AfterExit says what becomes of processes that are alive when the CLI itself has
	// exited.
	AfterExit AfterExit

	// Started, if not nil, is called once, when the CLI was executed, on a goroutine
	// of its own. Nothing waits for it, but the end: what has not returned 100 ms after
	// that is counted in outcome.Output.Abandoned. A panic in it is recovered and
	// dropped. The Process may be kept and used after Started has returned.
	Started func(*Process)
	// Owner is a label for StopOwner. "" means that no StopOwner ends it.
	Owner string
	// TempDir gives the CLI a private directory as its TMPDIR, made in the caller's
	// os.TempDir. It is removed with all that is in it when no process of the
	// invocation is alive any more, also if the caller is dead by then. A directory
	// that cannot be removed, or not within 2 s, is reported in
	// outcome.Cleanup.TempDirs. It is refused with AfterExitLeave: the processes that
	// are left could use it.
	TempDir bool
}

// DefaultKeepOutput is how many bytes of each stream are kept if KeepOutput is 0.
const DefaultKeepOutput = 1 << 20

// Pipe as a Stdin, Stdout or Stderr of Start means that the caller has the other end
// of a pipe: Session.Stdin, Session.Stdout or Session.Stderr. Invoke refuses it.
// Stdout and Stderr get a pipe each. Pipe itself cannot be read from or written to.
const Pipe = pipeMark("adapter.Pipe")

type pipeMark string

var errPipeMark = errors.New("adapter: Pipe is not a Reader or a Writer; it asks Start for a pipe")

func (pipeMark) Read([]byte) (int, error)  { return 0, errPipeMark }
func (pipeMark) Write([]byte) (int, error) { return 0, errPipeMark }

// piped reports whether f, a Stdin, Stdout or Stderr, is Pipe.
func piped(f any) bool {
	_, ok := f.(pipeMark)
	return ok
}

// hasPipe reports whether one of the streams is Pipe.
func (c *Command) hasPipe() bool { return piped(c.Stdin) || piped(c.Stdout) || piped(c.Stderr) }

// AfterExit says what becomes of processes that are alive when the leader has
// exited by itself.
type AfterExit int

const (
	// AfterExitTerminate lets a leftover go on for Linger if it still holds one of
	// the files that the CLI was given as 0, 1 or 2, or has a pipe, a FIFO or a
	// socket as its stdin, as a filter of the leader's output has. Then it stops all
	// leftovers. The status is the leader's all the same.
	AfterExitTerminate = AfterExit(wire.AfterExitTerminate)
	// AfterExitWait makes the invocation last until no process of it is alive.
	AfterExitWait = AfterExit(wire.AfterExitWait)
	// AfterExitLeave leaves them alive, and lists them in outcome.Cleanup.LeftAlive.
	// What they write to a pipe of the invocation is read and dropped by their
	// supervisor, as long as they have it open.
	AfterExitLeave = AfterExit(wire.AfterExitLeave)
)

// Audience says which processes get the polite signal of a stop.
type Audience int

const (
	// AudienceLeaderFirst signals the leader at once, and every other member of the
	// tree when the leader has exited or after a third of Grace.
	AudienceLeaderFirst = Audience(proctree.LeaderFirst)
	// AudienceEveryone signals all members at once.
	AudienceEveryone = Audience(proctree.Everyone)
	// AudienceLeaderOnly signals no other member before SIGKILL.
	AudienceLeaderOnly = Audience(proctree.LeaderOnly)
)

// StopPolicy says how an invocation is stopped: close stdin and wait StdinGrace,
// send Signal and wait Grace, send SIGKILL and wait KillWait. Every wait ends the
// moment no process is alive. The zero value of a field means its default. A negative
// duration means no time at all, so that Grace: -1 sends SIGKILL at once. Command.Bound
// is the sum.
type StopPolicy struct {
	// Signal is the polite signal. The default is SIGTERM. A StopCause can replace it.
	Signal syscall.Signal
	// StdinGrace is the time between the end of the CLI's stdin and Signal. The
	// default is 2 s for a command with a Pipe, since a server saves its state when
	// its input ends, and none for others.
	StdinGrace time.Duration
	// Grace is the time between Signal and SIGKILL. The default is 3 s.
	Grace time.Duration
	// KillWait is the time that SIGKILL may take. The default is 2 s.
	KillWait time.Duration
	// Drain is how long the output is read on when no process is alive and something
	// outside the tree still holds a pipe. The default is 1 s.
	Drain time.Duration
	// Linger is how long leftovers that may have output to write may go on after the
	// leader has exited by itself. The default is none for a command with a Pipe, since
	// what a server leaves is of no use any more, and 1 s for others.
	Linger time.Duration
	// Audience says who gets Signal.
	Audience Audience
}

// stopPolicy returns the policy of c: what is 0 has its default, and what is negative
// is 0.
func (c *Command) stopPolicy() StopPolicy {
	p := c.Stop
	if p.Signal == 0 {
		p.Signal = syscall.SIGTERM
	}
	stdinGrace, linger := time.Duration(0), time.Second
	if c.hasPipe() {
		stdinGrace, linger = 2*time.Second, 0
	}
	for _, f := range []struct {
		d        *time.Duration
		standard time.Duration
	}{{&p.StdinGrace, stdinGrace}, {&p.Grace, 3 * time.Second}, {&p.KillWait, 2 * time.Second}, {&p.Drain, time.Second}, {&p.Linger, linger}} {
		switch {
		case *f.d == 0:
			*f.d = f.standard
		case *f.d < 0:
			*f.d = 0
		case *f.d > maxWait:
			*f.d = maxWait
		}
	}
	return p
}

// ladder returns what the supervisor gets of p. With stdin, there is a stdin to close.
func (p StopPolicy) ladder(stdin bool) proctree.Policy {
	return proctree.Policy{Signal: int(p.Signal), StdinGrace: p.StdinGrace, Grace: p.Grace, KillWait: p.KillWait, Audience: proctree.Audience(p.Audience), Stdin: stdin}
}

// check returns an error that names the first thing in the command that is refused.
func (c *Command) check(session bool) error {
	for _, err := range []error{c.checkStrings(), c.checkStop(), c.checkStreams(session)} {
		if err != nil {
			return &outcome.StartError{Op: "check the command", Path: c.Path, Err: err}
		}
	}
	return nil
}

// bad is an error about a field, whose text begins with the field's name.
func bad(format string, args ...any) error { return fmt.Errorf(format, args...) }

// checkStrings refuses what no program can be given.
func (c *Command) checkStrings() error {
	hasNUL := func(s string) bool { return strings.IndexByte(s, 0) >= 0 }
	switch {
	case c.Path == "":
		return bad("Path is empty; it must name an executable")
	case hasNUL(c.Path):
		return bad("Path %q contains a NUL byte", c.Path)
	case hasNUL(c.Arg0):
		return bad("Arg0 %q contains a NUL byte", c.Arg0)
	case hasNUL(c.Dir):
		return bad("Dir %q contains a NUL byte", c.Dir)
	}
	if i := slices.IndexFunc(c.Args, hasNUL); i >= 0 {
		return bad("argument %d contains a NUL byte, which no program can be given", i+1)
	}
	if i := slices.IndexFunc(c.Env, hasNUL); i >= 0 {
		return bad("environment entry %q contains a NUL byte", c.Env[i])
	}
	return nil
}

// checkStop refuses what does not say how and when to stop.
func (c *Command) checkStop() error {
	switch {
	case c.Timeout < 0:
		return bad("Timeout %v is negative; 0 means none", c.Timeout)
	case c.IdleTimeout < 0:
		return bad("IdleTimeout %v is negative; 0 means none", c.IdleTimeout)
	case c.Stop.Signal < 0 || c.Stop.Signal > maxSignal:
		return bad("Stop.Signal %d is no signal", int(c.Stop.Signal))
	case c.Stop.Audience < AudienceLeaderFirst || c.Stop.Audience > AudienceLeaderOnly:
		return bad("Stop.Audience %d is none of AudienceLeaderFirst, AudienceEveryone and AudienceLeaderOnly", int(c.Stop.Audience))
	case c.AfterExit < AfterExitTerminate || c.AfterExit > AfterExitLeave:
		return bad("AfterExit %d is none of AfterExitTerminate, AfterExitWait and AfterExitLeave", int(c.AfterExit))
	case c.AfterExit == AfterExitLeave && c.TempDir:
		return bad("TempDir is set with AfterExitLeave; the processes that are left could use the directory, so make one that is yours")
	}
	return nil
}

// checkStreams refuses what cannot be connected.
func (c *Command) checkStreams(session bool) error {
	switch {
	case c.OutputLimit < 0:
		return bad("OutputLimit %d is negative; 0 means none", c.OutputLimit)
	case c.Terminal != nil && (c.Stdin != nil || c.Stdout != nil || c.Stderr != nil):
		return bad("Terminal is set beside Stdin, Stdout or Stderr; a terminal is all three")
	case !session && c.hasPipe():
		return bad("Stdin, Stdout or Stderr is Pipe; Invoke has nobody at the other end, use Start")
	case !session && c.IdleTimeout > 0:
		return bad("IdleTimeout is set; Invoke has no traffic to observe, use Start or Timeout")
	case c.IdleTimeout > 0 && !c.hasPipe():
		return bad("IdleTimeout is set without a Pipe; there is no traffic to observe")
	case len(c.ExtraFiles) > maxExtraFiles:
		return bad("%d extra files; at most %d can be passed on", len(c.ExtraFiles), maxExtraFiles)
	}
	return nil
}

// maxExtraFiles bounds the numbers in the CLI, not only how many there are.
const maxExtraFiles = 1 << 15

// maxSignal is the highest number of a signal.
const maxSignal = 64
