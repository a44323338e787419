package verdict

import (
	"context"
	"fmt"
	"time"

	"curfew/internal/text"
	"curfew/outcome"
)

// Why is what the error of an outcome states besides the outcome. What is zero is not in it.
type Why struct {
	Program string // as the caller named it
	// Start is why the CLI could not be executed. It is used with CauseStartFailed.
	Start *outcome.StartError
	// Cause is context.Cause of the context whose end was the stop request, or
	// the error for a shutdown. It has to be read when the request is made: the
	// context can end later while a stop for another cause is under way. It is used
	// with CauseCanceled, CauseTimeout, CauseShutdown and CauseIdle.
	Cause error
	// Detail is what else is known, for example how the supervisor was
	// lost. It is used with all other causes of a stop.
	Detail error
	// Timeout is the span that ran out. It is used with CauseTimeout.
	Timeout time.Duration
	// Incomplete are the streams that were not copied to their end. It is not used with
	// StatusNotStarted.
	Incomplete []*outcome.CopyError
}

// Err returns the error that states what Status, Cause and Exit of o state:
//
//	StatusSucceeded, StatusStopped  nil
//	StatusFailed                    an *ExitError
//	StatusNotStarted                ErrNotStarted; a *StartError with CauseStartFailed
//	StatusUnknown                   ErrUnknown
//
// StatusNotStarted and StatusUnknown also hold context.Canceled with CauseCanceled,
// context.DeadlineExceeded with CauseTimeout, and the cause given in w. All but
// StatusNotStarted hold a *CopyError for each stream that was not copied to its end; with one
// the error of StatusSucceeded and StatusStopped is not nil.
//
// Status, Cause and Exit have to be as Decide returned them: Err panics if they contradict
// each other.
func Err(o *outcome.Outcome, w Why) error {
	switch o.Status {
	case outcome.StatusSucceeded, outcome.StatusStopped:
		if len(w.Incomplete) == 0 {
			return nil
		}
		ended := string(o.Status)
		if o.Exit != nil {
			ended = o.Exit.String()
		}
		return w.incomplete(text.Prefix(w.Program) + ended)
	case outcome.StatusFailed:
		if o.Exit == nil {
			panic("verdict: status failed without an exit")
		}
		exit := &outcome.ExitError{Program: w.Program, Exit: *o.Exit}
		if len(w.Incomplete) == 0 {
			return exit
		}
		return w.incomplete(exit.Error(), exit)
	case outcome.StatusNotStarted:
		return w.notStarted(o.Cause)
	case outcome.StatusUnknown:
		return w.unknown(o)
	}
	panic(fmt.Sprintf("verdict: no such status: %q", o.Status))
}

// incomplete returns an error with the streams that were not copied to their end.
func (w Why) incomplete(message string, errs ...error) error {
	for _, c := range w.Incomplete {
		message += "; " + c.Error()
		errs = append(errs, c)
	}
	return &text.Error{Text: message, Errs: errs}
}

func (w Why) notStarted(c outcome.Cause) error {
	switch {
	case c != outcome.CauseStartFailed:
		words, errs := w.cause(c)
		return &text.Error{
			Text: text.Prefix(w.Program) + outcome.ErrNotStarted.Error() + ": " + words,
			Errs: append([]error{outcome.ErrNotStarted}, errs...),
		}
	case w.Start != nil:
		return w.Start
	}
	return &outcome.StartError{Op: "start", Path: w.Program, Err: w.Detail}
}

func (w Why) unknown(o *outcome.Outcome) error {
	words, errs := w.cause(o.Cause)
	if o.Exit != nil {
		if o.Exit.AfterStop {
			words += " (" + o.Exit.String() + " seen after the stop began)"
		} else {
			words += " (" + o.Exit.String() + " seen, but the invocation was not over)"
		}
	}
	return w.incomplete(text.Prefix(w.Program)+outcome.ErrUnknown.Error()+": "+words, append([]error{outcome.ErrUnknown}, errs...)...)
}

// cause returns c in words, and as errors to be found by errors.Is.
func (w Why) cause(c outcome.Cause) (words string, errs []error) {
	var kind error // what errors.Is finds whatever the caller's own cause
	detail := w.Detail
	switch c {
	case outcome.CauseCanceled:
		words, kind, detail = "canceled", context.Canceled, w.Cause
	case outcome.CauseTimeout:
		words, kind, detail = "timed out", context.DeadlineExceeded, w.Cause
		if w.Timeout > 0 {
			words += " after " + w.Timeout.String()
		}
	case outcome.CauseShutdown:
		words, detail = "shut down", w.Cause
	case outcome.CauseIdle:
		words, detail = "idle", w.Cause
	case outcome.CauseOutputLimit:
		words = "output limit reached"
	case outcome.CauseSupervisorLost:
		words = "supervisor lost"
	case outcome.CauseHostLost:
		words = "caller lost"
	default:
		words = text.Word(string(c))
	}
	if kind != nil {
		errs = append(errs, kind)
	}
	// The bare context error repeats the words.
	if detail != nil && detail != kind {
		// As in a CopyError: the verdict on another invocation is not found in it.
		errs = append(errs, (&outcome.CopyError{Err: detail}).Unwrap())
		words += ": " + text.Line(detail.Error())
	}
	return words, errs
}
