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
	"time"
	"unicode"
)

var (
	// ErrUnknown is in the error of every outcome with StatusUnknown: what
	// the CLI did elsewhere may or may not have happened.
	ErrUnknown = errors.New("outcome unknown")
	// ErrNotStarted is in the error of every outcome with StatusNotStarted:
	// the CLI was not executed, and trying again is safe.
	ErrNotStarted = errors.New("not started")
)

// ExitError says that the CLI failed by itself. It is the error of the status
// StatusFailed and of no other: an exit that was seen after a stop began is evidence
// in the Outcome and not an ExitError.
type ExitError struct {
	Program string // as the caller named it
	Exit    Exit
}

func (e *ExitError) Error() string { return prefix(e.Program) + e.Exit.String() }

// CopyError says that a Reader or Writer of the caller's failed, so that the CLI did
// not get all of its input, or the caller did not get all of the output. errors.Is
// and errors.As find the Reader's or Writer's own error in it.
type CopyError struct {
	Stream string // "stdin", "stdout" or "stderr"
	Err    error
}

func (e *CopyError) Error() string { return "incomplete " + e.Stream + ": " + line(e.Err.Error()) }

// Unwrap returns what errors.Is and errors.As find Err's own errors in. They do not find
// the verdict on another invocation in it, if Err is the error of one.
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
	// Interpreter is the interpreter that the file at Path names, as its first
	// line has it, if it is known. With it, "no such file" and "no permission"
	// from OpExec are about the interpreter. Set it only for a Path that is
	// there and is executable.
	Interpreter string
	Err         error
}

// Error names the input and, for the common cases, says what to do.
func (e *StartError) Error() string {
	s := "curfew: " + e.Op
	if e.Path != "" {
		s += " " + word(e.Path)
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

// Unwrap returns Err, or what stands for it if that is the error of another invocation,
// whose verdict is not found in this one.
func (e *StartError) Unwrap() error { return withoutVerdict(e.Err) }

// explain returns the cause in words and what the user can do about it on the
// system goos; either may be empty.
func (e *StartError) explain(goos string) (what, advice string) {
	is := func(target error) bool { return errors.Is(e.Err, target) }
	exec := e.Op == OpExec
	switch {
	case e.Err == nil:
		return "", ""

	case e.Op == OpLookUp && is(fs.ErrNotExist):
		return "not found in PATH",
			"give the path of the executable, or add its directory to PATH in the command's environment"
	case e.Op == OpLookUp && is(fs.ErrPermission):
		return "found in PATH, but permission denied", "make it executable: chmod +x"

	case e.Op == OpChdir && is(fs.ErrNotExist):
		return "no such directory", "create the working directory, or name another"
	case e.Op == OpChdir && is(syscall.ENOTDIR):
		return "not a directory", "the working directory must be a directory"
	case e.Op == OpChdir && is(fs.ErrPermission):
		return "permission denied", "the working directory and those above it must be searchable: chmod +x"

	case exec && e.Interpreter != "" && is(fs.ErrNotExist):
		what = "its interpreter " + word(e.Interpreter) + " does not exist"
		if strings.HasSuffix(e.Interpreter, "\r") {
			return what, "the first line ends in a carriage return: save the file with Unix line ends"
		}
		return what, "install it, or correct the first line of the file"
	case exec && e.Interpreter != "" && is(fs.ErrPermission):
		return "permission denied for its interpreter " + word(e.Interpreter),
			"the interpreter must be an executable file"
	case exec && is(fs.ErrNotExist):
		return "no such file or directory",
			"check the path; if the file is there, the interpreter or loader it names is missing"
	case exec && is(syscall.EACCES):
		return "permission denied",
			"make it executable: chmod +x; it must be a file, in searchable directories, on a file system not mounted noexec"
	case exec && is(syscall.ENOTDIR):
		return "not a directory", "check the path: a part of it before the last is a file"
	case is(syscall.ENOEXEC):
		return "exec format error",
			"a script needs a first line such as #!/bin/sh; a binary must be built for " + goos + "/" + runtime.GOARCH
	case is(syscall.E2BIG):
		limit := ""
		switch goos {
		case "linux":
			limit = "one string may have at most 128 KiB, all together a quarter of the stack limit; "
		case "darwin":
			limit = "all together may have at most 1 MiB; "
		}
		what = "arguments and environment too long"
		if e.Err != error(syscall.E2BIG) {
			// It says which one.
			what = strings.TrimSuffix(line(e.Err.Error()), ": "+syscall.E2BIG.Error())
		}
		return what, limit + "pass large input on stdin or in a file"
	case is(syscall.ETXTBSY):
		return "text file busy",
			"some process has the file open for writing: close it there, or write a new file and rename it into place"
	case exec && is(syscall.EINVAL):
		return "invalid argument", "arguments, environment and paths cannot contain a NUL byte"
	case is(syscall.EAGAIN):
		return "no more processes allowed", "raise ulimit -u or the pids limit of the cgroup, or run fewer at once"
	case is(syscall.ENOMEM):
		return "out of memory", "run fewer at once, or raise the memory limit"
	case is(syscall.EMFILE), is(syscall.ENFILE):
		return "too many open files", "raise ulimit -n, or run fewer at once"
	}
	// Op and Path are said already.
	err := e.Err
	if p, ok := err.(*fs.PathError); ok && p.Err != nil {
		err = p.Err
	}
	return line(err.Error()), ""
}

// Why is what SetErr is told besides the outcome. What is zero is not in the
// error.
type Why struct {
	Program string // as the caller named it
	// Start is why the CLI could not be executed. Used with CauseStartFailed.
	Start *StartError
	// Cause is context.Cause of the context whose end was the stop request, or
	// the error for a shutdown. It has to be read when the request is made: the
	// context can end later while a stop for another cause is under way. Used
	// with CauseCanceled, CauseTimeout, CauseShutdown and CauseIdle.
	Cause error
	// Detail is what is known besides, for example how the supervisor was
	// lost. Used with all other causes of a stop.
	Detail error
	// Timeout is the span that ran out. Used with CauseTimeout.
	Timeout time.Duration
	// Incomplete are the streams that were not copied whole. Not used with StatusNotStarted.
	Incomplete []*CopyError
}

// SetErr sets o.Err to the error that states what Status, Cause and Exit state:
//
//	StatusSucceeded, StatusStopped  nil
//	StatusFailed                    an *ExitError
//	StatusNotStarted                ErrNotStarted; a *StartError with CauseStartFailed
//	StatusUnknown                   ErrUnknown
//
// StatusNotStarted and StatusUnknown also hold context.Canceled with CauseCanceled,
// context.DeadlineExceeded with CauseTimeout, and the cause given in w. All but
// StatusNotStarted hold a *CopyError for each stream that was not copied whole; with one
// the error of StatusSucceeded and StatusStopped is not nil.
// It is for whoever makes the outcome, after Status, Cause and Exit are set
// as Decide returned them; it panics if they contradict each other.
func (o *Outcome) SetErr(w Why) {
	switch o.Status {
	case StatusSucceeded, StatusStopped:
		o.Err = nil
		if len(w.Incomplete) > 0 {
			text := string(o.Status)
			if o.Exit != nil {
				text = o.Exit.String()
			}
			o.Err = &statusError{text: prefix(w.Program) + text}
		}
	case StatusFailed:
		if o.Exit == nil {
			panic("outcome: status failed without an exit")
		}
		exit := &ExitError{Program: w.Program, Exit: *o.Exit}
		o.Err = exit
		if len(w.Incomplete) > 0 {
			o.Err = &statusError{text: exit.Error(), errs: []error{exit}}
		}
	case StatusNotStarted:
		if o.Cause == CauseStartFailed {
			o.Err = startError(w)
			return
		}
		text, errs := w.cause(o.Cause)
		o.Err = &statusError{
			text: prefix(w.Program) + ErrNotStarted.Error() + ": " + text,
			errs: append([]error{ErrNotStarted}, errs...),
		}
	case StatusUnknown:
		text, errs := w.cause(o.Cause)
		if o.Exit != nil {
			if o.Exit.AfterStop {
				text += " (" + o.Exit.String() + " seen after the stop began)"
			} else {
				text += " (" + o.Exit.String() + " seen, but the invocation was not over)"
			}
		}
		o.Err = &statusError{
			text: prefix(w.Program) + ErrUnknown.Error() + ": " + text,
			errs: append([]error{ErrUnknown}, errs...),
		}
	default:
		panic(fmt.Sprintf("outcome: no such status: %q", o.Status))
	}
	if e, ok := o.Err.(*statusError); ok && o.Status != StatusNotStarted {
		for _, c := range w.Incomplete {
			e.text += "; " + c.Error()
			e.errs = append(e.errs, c)
		}
	}
}

func startError(w Why) *StartError {
	if w.Start != nil {
		return w.Start
	}
	return &StartError{Op: "start", Path: w.Program, Err: w.Detail}
}

// cause says c in words, and as errors to be found by errors.Is.
func (w Why) cause(c Cause) (string, []error) {
	var text string
	var kind error // what errors.Is finds whatever the caller's own cause
	detail := w.Detail
	switch c {
	case CauseCanceled:
		text, kind, detail = "canceled", context.Canceled, w.Cause
	case CauseTimeout:
		text, kind, detail = "timed out", context.DeadlineExceeded, w.Cause
		if w.Timeout > 0 {
			text += " after " + w.Timeout.String()
		}
	case CauseShutdown:
		text, detail = "shut down", w.Cause
	case CauseIdle:
		text, detail = "idle", w.Cause
	case CauseOutputLimit:
		text = "output limit reached"
	case CauseSupervisorLost:
		text = "supervisor lost"
	case CauseHostLost:
		text = "caller lost"
	default:
		text = word(string(c))
	}
	var errs []error
	if kind != nil {
		errs = append(errs, kind)
	}
	// The bare context error says in other words what text says already.
	if detail != nil && detail != kind {
		errs = append(errs, withoutVerdict(detail))
		text += ": " + line(detail.Error())
	}
	return text, errs
}

// foreign is an error that came from outside: the cause of a context, or the error of a
// Reader or Writer. It can be the error of another invocation, or hold one. What that
// says of the other invocation must not be taken for what happened to this one: a
// program that was executed would be "not started". Everything else is found in it.
type foreign struct{ err error }

// withoutVerdict returns err as it can stand behind the error of an invocation that is
// not its own.
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

// statusError is a text, and what errors.Is and errors.As find behind it.
type statusError struct {
	text string
	errs []error
}

func (e *statusError) Error() string   { return e.text }
func (e *statusError) Unwrap() []error { return e.errs }

// recalled returns the error for an outcome that was read from its JSON form:
// the text as it was, and behind it what Status, Cause and Exit imply. The
// caller's own cause and the *StartError are not to be had any more.
func (o *Outcome) recalled(text string) error {
	e := &statusError{text: text}
	switch o.Status {
	case StatusFailed:
		e.errs = append(e.errs, &ExitError{Exit: *o.Exit})
		return e
	case StatusNotStarted:
		e.errs = append(e.errs, ErrNotStarted)
	case StatusUnknown:
		e.errs = append(e.errs, ErrUnknown)
	}
	switch o.Cause {
	case CauseCanceled:
		e.errs = append(e.errs, context.Canceled)
	case CauseTimeout:
		e.errs = append(e.errs, context.DeadlineExceeded)
	}
	return e
}

// CleanupError says that the tree of an invocation is not shown to be gone. It
// is what the end of a session, of an owner's work or of an Adapter returns, whose
// outcomes alone would not tell.
type CleanupError struct {
	ID      string
	Program string // as the caller named it
	Cleanup Cleanup
}

func (e *CleanupError) Error() string {
	s := prefix(e.Program) + "not shown to be gone"
	for i, v := range e.Cleanup.Survivors {
		const enough = 3
		if i == enough {
			return s + fmt.Sprintf("; and %d more", len(e.Cleanup.Survivors)-enough)
		}
		s += fmt.Sprintf("; process %d (%s) is alive: %s", v.PID, word(v.Name), line(v.Reason))
	}
	switch c := e.Cleanup; {
	case c.Result != CleanupUnverified:
	case c.HelperLost:
		s += ": those who watched it were lost"
	case len(c.Suspects) > 0:
		s += fmt.Sprintf("; process %d (%s) may be of it", c.Suspects[0].PID, word(c.Suspects[0].Name))
		if more := len(c.Suspects) - 1; more > 0 {
			s += fmt.Sprintf(", and so may %d more", more)
		}
	default:
		s += ": some of it is where it cannot be seen"
	}
	return s
}

// Err returns a *CleanupError if the tree is neither gone nor left alive by
// request, and nil otherwise.
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

func prefix(program string) string {
	if program == "" {
		return "curfew: "
	}
	return "curfew: " + word(program) + ": "
}

// word returns s as it can stand in a line: quoted if it is empty, has spaces
// at its ends, or has anything that does not print.
func word(s string) string {
	if s == "" || strings.TrimSpace(s) != s {
		return strconv.Quote(s)
	}
	for _, r := range s {
		// A byte that is not UTF-8 comes as U+FFFD.
		if !strconv.IsPrint(r) || r == '\uFFFD' {
			return strconv.Quote(s)
		}
	}
	return s
}

// line makes one line of an error's text: errors.Join puts each on its own.
func line(s string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsControl(r) || r == '\u2028' || r == '\u2029' {
			return ' '
		}
		return r
	}, strings.ReplaceAll(strings.TrimSpace(s), "\n", "; "))
}
