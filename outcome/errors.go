package outcome

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"runtime"
	"strconv"
	"strings"
	"syscall"

	"curfew/internal/text"
)

var (
	// ErrUnknown is in the error of every outcome with StatusUnknown: what
	// the CLI did elsewhere may or may not have happened.
	ErrUnknown = errors.New("outcome unknown")
	// ErrNotStarted is in the error of every outcome with StatusNotStarted:
	// the CLI was not executed, and trying again is safe.
	ErrNotStarted = errors.New("not started")
)

// ExitError says that the CLI failed by itself. It is the error of StatusFailed and of no
// other status: an exit that was seen after a stop began is evidence in the Outcome and not
// an ExitError.
type ExitError struct {
	Program string // as the caller named it
	Exit    Exit
}

func (e *ExitError) Error() string { return text.Prefix(e.Program) + e.Exit.String() }

// CopyError says that a Reader or Writer of the caller's failed: the CLI did
// not get all of its input, or the caller did not get all of the output. errors.Is
// and errors.As find the Reader's or Writer's own error in it.
type CopyError struct {
	Stream string // "stdin", "stdout" or "stderr"
	Err    error
}

func (e *CopyError) Error() string { return "incomplete " + e.Stream + ": " + text.Line(e.Err.Error()) }

// Unwrap returns Err, in which errors.Is and errors.As do not find the verdict on another
// invocation, should Err be the error of one.
func (e *CopyError) Unwrap() error { return withoutVerdict(e.Err) }

// What a StartError's Op can be, where the message depends on it.
const (
	OpLookUp = "look up" // find the name in the command's PATH
	OpChdir  = "chdir"   // enter the working directory; Path is the directory
	OpExec   = "exec"    // execute the file
)

// StartError says why the CLI could not be executed. errors.Is finds
// ErrNotStarted and what Err wraps in it, for example fs.ErrNotExist or
// syscall.ENOEXEC.
type StartError struct {
	Op   string // what failed: OpLookUp, OpChdir, OpExec, or another verb
	Path string // what it was done to, as the caller gave it
	// Interpreter is the interpreter that the first line of the file at Path names, if
	// it is known. With it, "no such file" and "no permission" from OpExec are about
	// the interpreter. It is set only for a Path that exists and is executable.
	Interpreter string
	Err         error
}

// Error names the input and, for the common cases, says what to do.
func (e *StartError) Error() string {
	s := "curfew: " + e.Op
	if e.Path != "" {
		s += " " + text.Word(e.Path)
	}
	what, advice := e.explain(runtime.GOOS)
	if what != "" {
		s += ": " + what
	}
	if advice != "" {
		s += " (" + advice + ")"
	}
	return s
}

// Is reports true for ErrNotStarted.
func (e *StartError) Is(target error) bool { return target == ErrNotStarted }

// Unwrap returns Err, in which errors.Is and errors.As do not find the verdict on another
// invocation, should Err be the error of one.
func (e *StartError) Unwrap() error { return withoutVerdict(e.Err) }

// explain returns the cause in words and what the user can do about it on the
// system goos; either may be empty.
func (e *StartError) explain(goos string) (what, advice string) {
	if e.Err == nil {
		return "", ""
	}
	if e.Op == OpExec && e.Interpreter != "" {
		if what, advice = e.explainInterpreter(); what != "" {
			return what, advice
		}
	}
	for _, x := range explanations {
		if (x.op == "" || x.op == e.Op) && errors.Is(e.Err, x.err) {
			return x.what, strings.ReplaceAll(x.advice, platform, goos+"/"+runtime.GOARCH)
		}
	}
	if errors.Is(e.Err, syscall.E2BIG) {
		return e.explainTooLong(goos)
	}
	// Op and Path are in the message already.
	err := e.Err
	if p, ok := err.(*fs.PathError); ok && p.Err != nil {
		err = p.Err
	}
	return text.Line(err.Error()), ""
}

// explanations are in order: the first one that fits counts. An empty op fits every Op.
var explanations = []struct {
	op           string
	err          error
	what, advice string
}{
	{OpLookUp, fs.ErrNotExist, "not found in PATH",
		"give the path of the executable, or add its directory to PATH in the command's environment"},
	{OpLookUp, fs.ErrPermission, "found in PATH, but permission denied", "make it executable: chmod +x"},

	{OpChdir, fs.ErrNotExist, "no such directory", "create the working directory, or name another"},
	{OpChdir, syscall.ENOTDIR, "not a directory", "the working directory must be a directory"},
	{OpChdir, fs.ErrPermission, "permission denied", "the working directory and those above it must be searchable: chmod +x"},

	{OpExec, fs.ErrNotExist, "no such file or directory",
		"check the path; if the file is there, the interpreter or loader it names is missing"},
	{OpExec, syscall.EACCES, "permission denied",
		"make it executable: chmod +x; it must be a file, in searchable directories, on a file system not mounted noexec"},
	{OpExec, syscall.ENOTDIR, "not a directory", "check the path: a part of it before the last is a file"},
	{OpExec, syscall.EINVAL, "invalid argument", "arguments, environment and paths cannot contain a NUL byte"},

	{"", syscall.ENOEXEC, "exec format error", "a script needs a first line such as #!/bin/sh; a binary must be built for " + platform},
	{"", syscall.ETXTBSY, "text file busy",
		"some process has the file open for writing: close it there, or write a new file and rename it into place"},
	{"", syscall.EAGAIN, "no more processes allowed", "raise ulimit -u or the pids limit of the cgroup, or run fewer at once"},
	{"", syscall.ENOMEM, "out of memory", "run fewer at once, or raise the memory limit"},
	{"", syscall.EMFILE, "too many open files", "raise ulimit -n, or run fewer at once"},
	{"", syscall.ENFILE, "too many open files", "raise ulimit -n, or run fewer at once"},
}

// platform stands for the system and the architecture.
const platform = "GOOS/GOARCH"

// explainInterpreter is for a file whose first line names an interpreter.
func (e *StartError) explainInterpreter() (what, advice string) {
	name := text.Word(e.Interpreter)
	switch missing := errors.Is(e.Err, fs.ErrNotExist); {
	case missing && strings.HasSuffix(e.Interpreter, "\r"):
		return "its interpreter " + name + " does not exist",
			"the first line ends in a carriage return: save the file with Unix line ends"
	case missing:
		return "its interpreter " + name + " does not exist", "install it, or correct the first line of the file"
	case errors.Is(e.Err, fs.ErrPermission):
		return "permission denied for its interpreter " + name, "the interpreter must be an executable file"
	}
	return "", ""
}

func (e *StartError) explainTooLong(goos string) (what, advice string) {
	what = "arguments and environment too long"
	if e.Err != error(syscall.E2BIG) { // it names the string
		what = strings.TrimSuffix(text.Line(e.Err.Error()), ": "+syscall.E2BIG.Error())
	}
	limit := ""
	switch goos {
	case "linux":
		limit = "one string may have at most 128 KiB, all together a quarter of the stack limit; "
	case "darwin":
		limit = "all together may have at most 1 MiB; "
	}
	return what, limit + "pass large input on stdin or in a file"
}

// foreign is an error that came from the caller: the cause of a context, or the error of a
// Reader or Writer. It can be the error of another invocation, or hold one. That verdict
// must not be taken for the one on this invocation: a program that was executed would be
// "not started". errors.Is and errors.As find everything else in it.
type foreign struct{ err error }

// withoutVerdict returns err without the verdict on another invocation.
func withoutVerdict(err error) error {
	switch err.(type) {
	case nil, syscall.Errno, *fs.PathError:
		return err
	}
	return foreign{err}
}

func (f foreign) Error() string { return f.err.Error() }

// Is reports whether errors.Is finds target, except for the verdicts.
func (f foreign) Is(target error) bool {
	return target != ErrNotStarted && target != ErrUnknown && errors.Is(f.err, target)
}

// As does what errors.As does, except for the verdicts.
func (f foreign) As(target any) bool {
	switch target.(type) {
	case **ExitError, **StartError, **CopyError, **CleanupError:
		return false
	}
	return errors.As(f.err, target)
}

// recalled returns the error for an outcome that was read from its JSON form:
// the text as it was, and behind it what Status, Cause and Exit imply. The JSON form
// does not have the caller's own cause and the *StartError.
func (o *Outcome) recalled(message string) error {
	e := &text.Error{Text: message}
	switch o.Status {
	case StatusFailed:
		e.Errs = append(e.Errs, &ExitError{Exit: *o.Exit})
		return e
	case StatusNotStarted:
		e.Errs = append(e.Errs, ErrNotStarted)
	case StatusUnknown:
		e.Errs = append(e.Errs, ErrUnknown)
	}
	switch o.Cause {
	case CauseCanceled:
		e.Errs = append(e.Errs, context.Canceled)
	case CauseTimeout:
		e.Errs = append(e.Errs, context.DeadlineExceeded)
	}
	return e
}

// CleanupError says that the tree of an invocation could not be shown to have ended.
// Session.Stop, Adapter.StopOwner and Adapter.Shutdown return it.
type CleanupError struct {
	ID      string
	Program string // as the caller named it
	Cleanup Cleanup
}

func (e *CleanupError) Error() string {
	s := text.Prefix(e.Program) + "could not be shown to have ended"
	for i, v := range e.Cleanup.Survivors {
		const enough = 3
		if i == enough {
			return s + fmt.Sprintf("; and %d more", len(e.Cleanup.Survivors)-enough)
		}
		s += fmt.Sprintf("; process %d (%s) is alive: %s", v.PID, text.Word(v.Name), text.Line(v.Reason))
	}
	switch c := e.Cleanup; {
	case c.Result != CleanupUnverified:
	case c.HelperLost:
		s += ": its supervisor was lost"
	case len(c.Suspects) > 0:
		s += fmt.Sprintf("; process %d (%s) may belong to it", c.Suspects[0].PID, text.Word(c.Suspects[0].Name))
		if more := len(c.Suspects) - 1; more > 0 {
			s += fmt.Sprintf(", and so may %d more", more)
		}
	default:
		s += ": some of its processes cannot be observed"
	}
	return s
}

// Err returns nil if the tree has ended or is alive by request, and a *CleanupError
// otherwise.
func (c Cleanup) Err(id, program string) error {
	switch c.Result {
	case CleanupSurvivors, CleanupUnverified:
		return &CleanupError{ID: id, Program: program, Cleanup: c}
	}
	return nil
}

// String returns, for example, "exit code 3" or "death by SIGSEGV, core
// dumped".
func (e Exit) String() string {
	if e.Signal == 0 {
		return "exit code " + strconv.Itoa(e.Code)
	}
	s := "death by " + SignalName(e.Signal)
	if e.CoreDumped {
		s += ", core dumped"
	}
	return s
}

// SignalName returns the name of signal n on this system, for example
// "SIGTERM", or "signal 99" where it has none.
func SignalName(n int) string {
	if s := signalName(n); s != "" {
		return s
	}
	return "signal " + strconv.Itoa(n)
}
