package adapter

import (
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"curfew/internal/wire"
	"curfew/outcome"
)

// Command says what to run. The zero value of every field but Path has a
// meaning, so that Command{Path: "git", Args: []string{"status"}} is complete.
type Command struct {
	// Path is the executable: a path, relative to Dir, or a name without a
	// slash, which is looked up in the command's own PATH.
	Path string
	// Args are the arguments after the program name. The program name itself
	// is Path as it stands here.
	Args []string
	// Env is the environment. Nil is the caller's, with PWD set if Dir is. Of
	// two values for one name the last counts. A mark that names the
	// invocation, CURFEW_INVOCATION_<id>=1, is added. An entry without '=' is passed
	// on as it is, an empty one is not.
	Env []string
	// Dir is the working directory; "" is the caller's.
	Dir string
	// Stdin is what the CLI reads. Nil is empty. An *os.File goes to the CLI
	// itself; anything else is copied by a goroutine. If that fails or panics, the
	// CLI's input ends, and the error holds an *outcome.CopyError.
	Stdin io.Reader
	// Stdout and Stderr get everything the CLI writes. Nil keeps it in the
	// Outcome, up to KeepOutput bytes each. An *os.File goes to the CLI itself.
	// If both are the same, comparable writer, at most one goroutine at a time
	// writes to it. A writer that blocks holds up the CLI's output and nothing
	// else. One that fails or panics is not called again: the CLI's pipe is closed,
	// so that its next write gets SIGPIPE, and the error holds an
	// *outcome.CopyError, also if the CLI succeeds.
	Stdout, Stderr io.Writer
	// ExtraFiles are the CLI's descriptors 3, 4 and so on; nil leaves one out.
	ExtraFiles []*os.File
	// Terminal, if not nil, is the terminal side of a pty. It becomes the
	// CLI's controlling terminal and its descriptors 0, 1 and 2; Stdin, Stdout
	// and Stderr must be nil then.
	Terminal *os.File
	// Timeout is how long the invocation may take; 0 is no limit. The
	// supervisor keeps it as well, so it holds while the caller is stopped.
	Timeout time.Duration
	// Stop says how the invocation is ended.
	Stop StopPolicy
	// Kill, if not nil, ends the grace of a stop when it is closed or sends:
	// what is alive then gets SIGKILL at once. It begins a stop if there is
	// none, as a cancellation would.
	Kill <-chan struct{}
	// AfterExit says what becomes of leftovers.
	AfterExit AfterExit
	// TempDir gives the CLI a private directory for temporary files, as its TMPDIR,
	// which is removed with all that is in it when the tree is empty, also if the
	// caller is dead by then. One that cannot be removed within 2 s, or at all, is
	// reported in Cleanup.TempDirs. It is made in the caller's os.TempDir. Not with
	// AfterExitLeave: who is left could use it.
	TempDir bool
	// KeepOutput is how many bytes of each stream are kept in the Outcome: its
	// head and its tail, half and half. 0 means DefaultKeepOutput, negative
	// means none.
	KeepOutput int64
	// Owner is a label for StopOwner; "" is one too.
	Owner string
	// OutputLimit stops the invocation once the CLI has written more than this
	// many bytes to those of Stdout and Stderr that are not files; 0 is no
	// limit.
	OutputLimit int64
}

// DefaultKeepOutput is what is kept of each stream.
const DefaultKeepOutput = 1 << 20

// AfterExit says what becomes of processes that are alive when the leader has
// exited by itself.
type AfterExit int

const (
	// AfterExitTerminate lets leftovers finish within Linger while one still holds one
	// of the files that the CLI was given as 0, 1 or 2, or has a pipe, a FIFO or
	// a socket as its stdin, as a filter of the leader's output has; and then
	// stops them. The outcome is the leader's all the same.
	AfterExitTerminate AfterExit = iota
	// AfterExitWait has the invocation last until the tree is empty.
	AfterExitWait
	// AfterExitLeave leaves them alive, and lists them. Where their output goes through a
	// pipe to the caller, their supervisor reads on from it, and drops what it
	// reads, as long as they have it open; nobody waits for that.
	AfterExitLeave
)

// Audience says who gets the polite signal of a stop.
type Audience int

const (
	// AudienceLeaderFirst signals the leader at once, and every other member of the
	// tree when the leader has exited or after a third of Grace.
	AudienceLeaderFirst Audience = iota
	// AudienceEveryone signals all members at once.
	AudienceEveryone
	// AudienceLeaderOnly signals nobody else before SIGKILL.
	AudienceLeaderOnly
)

// StopPolicy says how an invocation is ended: close stdin and wait StdinGrace,
// send Signal and wait Grace, send SIGKILL and wait KillWait. Every wait ends
// the moment the tree is empty. If the cause of the context that is canceled has a method
// StopSignal() syscall.Signal, what that returns is sent instead of Signal, if it is
// one. The zero value of a field means its default; a
// negative duration means no time at all, so that Grace: -1 kills at once.
type StopPolicy struct {
	Signal     syscall.Signal // default SIGTERM
	StdinGrace time.Duration  // default none; 2 s for a session
	Grace      time.Duration  // default 3 s
	KillWait   time.Duration  // default 2 s
	// Drain is how long the output is read on when the tree is empty and
	// something outside it still holds a pipe. Default 1 s.
	Drain time.Duration
	// Linger is how long leftovers that may have output to write may go on
	// after the leader exited by itself. Default 1 s; none for a session.
	Linger   time.Duration
	Audience Audience
}

// boundSlack is the part of the bound that the policy does not name: what a supervisor
// that is slow, and the end of one that is lost, take in all. deadlines says how it is
// spent.
const boundSlack = 3 * time.Second

// Bound is the longest time from a cancellation to the return of Invoke,
// whatever the CLI does: the sum of the waits, and 3 s.
func (p StopPolicy) Bound() time.Duration {
	p = p.withDefaults()
	return p.StdinGrace + p.Grace + p.KillWait + p.Drain + p.Linger + boundSlack
}

// Bound is the longest time from a cancellation of c to the return of Invoke,
// whatever the CLI does.
func (c Command) Bound() time.Duration {
	if c.TempDir {
		return c.Stop.Bound() + wire.RemoveLimit
	}
	return c.Stop.Bound()
}

func (p StopPolicy) withDefaults() StopPolicy {
	if p.Signal == 0 {
		p.Signal = syscall.SIGTERM
	}
	for _, f := range []struct {
		d        *time.Duration
		standard time.Duration
	}{{&p.StdinGrace, 0}, {&p.Grace, 3 * time.Second}, {&p.KillWait, 2 * time.Second}, {&p.Drain, time.Second}, {&p.Linger, time.Second}} {
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

// maxWait is what a longer time counts as: sums of times must not overflow.
const maxWait = 10 * 365 * 24 * time.Hour

// check returns an error that names what in the command cannot be.
func (c *Command) check() error {
	bad := func(what string, args ...any) error {
		return &outcome.StartError{Op: "check the command", Path: c.Path, Err: fmt.Errorf(what, args...)}
	}
	if c.Path == "" {
		return bad("Path is empty; it must name an executable")
	}
	if strings.IndexByte(c.Path, 0) >= 0 {
		return bad("Path %q contains a NUL byte", c.Path)
	}
	if strings.IndexByte(c.Dir, 0) >= 0 {
		return bad("Dir %q contains a NUL byte", c.Dir)
	}
	for i, s := range c.Args {
		if strings.IndexByte(s, 0) >= 0 {
			return bad("argument %d contains a NUL byte, which no program can be given", i+1)
		}
	}
	for _, s := range c.Env {
		if strings.IndexByte(s, 0) >= 0 {
			return bad("environment entry %q contains a NUL byte", s)
		}
	}
	switch {
	case c.Timeout < 0:
		return bad("Timeout %v is negative; 0 means none", c.Timeout)
	case c.Stop.Signal < 0 || c.Stop.Signal > maxSignal:
		return bad("Stop.Signal %d is no signal", int(c.Stop.Signal))
	case c.AfterExit < AfterExitTerminate || c.AfterExit > AfterExitLeave:
		return bad("AfterExit %d is none of AfterExitTerminate, AfterExitWait and AfterExitLeave", int(c.AfterExit))
	case c.AfterExit == AfterExitLeave && c.TempDir:
		return bad("TempDir is set with AfterExitLeave; the processes that are left could use the directory, so make one that is yours")
	case c.Stop.Audience < AudienceLeaderFirst || c.Stop.Audience > AudienceLeaderOnly:
		return bad("Stop.Audience %d is none of AudienceLeaderFirst, AudienceEveryone and AudienceLeaderOnly", int(c.Stop.Audience))
	case c.OutputLimit < 0:
		return bad("OutputLimit %d is negative; 0 means none", c.OutputLimit)
	case c.Terminal != nil && (c.Stdin != nil || c.Stdout != nil || c.Stderr != nil):
		return bad("Terminal is set beside Stdin, Stdout or Stderr; a terminal is all three")
	case len(c.ExtraFiles) > maxExtraFiles:
		return bad("%d extra files; at most %d can be passed on", len(c.ExtraFiles), maxExtraFiles)
	}
	return nil
}

// maxExtraFiles bounds the numbers in the CLI, not only how many there are.
const maxExtraFiles = 1 << 15

// maxString is the kernel's limit for one argument or variable, with the NUL at
// its end: 32 pages (execve(2), MAX_ARG_STRLEN).
const maxString = 32 * 4096

// checkSizes finds what the kernel would refuse without saying which it is.
func checkSizes(path string, args, env []string) error {
	for i, s := range args {
		if len(s) >= maxString {
			return &outcome.StartError{Op: outcome.OpExec, Path: path,
				Err: fmt.Errorf("argument %d has %d bytes: %w", i, len(s), syscall.E2BIG)}
		}
	}
	for _, s := range env {
		if len(s) >= maxString {
			name, _, _ := strings.Cut(s, "=")
			return &outcome.StartError{Op: outcome.OpExec, Path: path,
				Err: fmt.Errorf("environment variable %s has %d bytes: %w", name, len(s), syscall.E2BIG)}
		}
	}
	return nil
}

// environ returns the command's environment with the mark of invocation id.
func (c *Command) environ(id string) []string {
	env := c.Env
	if env == nil {
		env = os.Environ()
		if c.Dir != "" {
			// A program that trusts PWD would think it is where the caller is.
			if dir, err := filepath.Abs(c.Dir); err == nil {
				env = append(env, "PWD="+dir)
			}
		}
	}
	return append(lastOfEach(env), wire.Mark(id))
}

// lastOfEach drops all values of a name but the last, and empty entries, and keeps the
// order. An entry without '=' has no name.
func lastOfEach(env []string) []string {
	last := make(map[string]int, len(env))
	for i, s := range env {
		if name, _, ok := strings.Cut(s, "="); ok {
			last[name] = i
		}
	}
	kept := make([]string, 0, len(env)+1)
	for i, s := range env {
		if name, _, ok := strings.Cut(s, "="); ok && last[name] == i || !ok && s != "" {
			kept = append(kept, s)
		}
	}
	return kept
}

// standardPath is where execvp(3) looks when there is no PATH at all.
const standardPath = "/bin:/usr/bin"

// lookUp finds the executable in the PATH of env. The result is relative to
// dir, or absolute.
func lookUp(name, dir string, env []string) (string, error) {
	if strings.Contains(name, "/") {
		return name, nil
	}
	path := standardPath
	for _, s := range env {
		if v, ok := strings.CutPrefix(s, "PATH="); ok {
			path = v
		}
	}
	failed := &outcome.StartError{Op: outcome.OpLookUp, Path: name, Err: exec.ErrNotFound}
	if name == "." || name == ".." {
		// Joined to an entry they would name that, or what it is in.
		failed.Err = syscall.EACCES
		return "", failed
	}
	for _, d := range filepath.SplitList(path) {
		file := filepath.Join(d, name)
		there := file
		if !filepath.IsAbs(there) {
			file = "./" + file
			there = filepath.Join(dir, file)
		}
		found, err := executable(there)
		switch {
		case !found: // or not to be seen: a directory that may not be entered
		case err == nil && there != file:
			// A program that happens to lie in the working directory must not
			// be run by accident.
			failed.Err = fmt.Errorf("found as %s, relative to the working directory, which is not run unless it is named with a path: %w", file, exec.ErrDot)
			return "", failed
		case err == nil:
			return file, nil
		default:
			failed.Err = err
		}
	}
	if failed.Err == exec.ErrNotFound {
		failed.Err = fmt.Errorf("%w: %w", exec.ErrNotFound, fs.ErrNotExist)
	}
	return "", failed
}

// executable reports whether there is a file, and why it cannot be executed.
func executable(file string) (found bool, err error) {
	fi, err := os.Stat(file)
	switch {
	case err != nil:
		return false, err
	case !fi.Mode().IsRegular():
		return true, syscall.EACCES // as execve says of a directory, a FIFO or a device
	}
	return true, mayExecute(file)
}

// startError puts the kernel's answer to the start into words that name the
// input.
func (c *Command) startError(op string, errno syscall.Errno, file string) *outcome.StartError {
	e := &outcome.StartError{Op: op, Path: c.Path, Err: errno}
	if op == outcome.OpChdir {
		e.Path = c.Dir
		return e
	}
	if !filepath.IsAbs(file) {
		file = filepath.Join(c.Dir, file)
	}
	if _, err := executable(file); err == nil {
		e.Interpreter = interpreterOf(file)
	}
	return e
}

// interpreterOf returns the interpreter that a script's first line names.
func interpreterOf(file string) string {
	// A regular file can make an open wait too, if it is under a lease.
	f, err := os.OpenFile(file, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return ""
	}
	defer f.Close()
	buf := make([]byte, 256) // the kernel reads no more either
	n, _ := io.ReadFull(f, buf)
	line, _, _ := strings.Cut(string(buf[:n]), "\n")
	line, ok := strings.CutPrefix(line, "#!")
	if !ok {
		return ""
	}
	line = strings.TrimLeft(line, " \t")
	if i := strings.IndexAny(line, " \t"); i >= 0 {
		line = line[:i]
	}
	return line
}
