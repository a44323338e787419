package verdict_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"curfew/internal/verdict"
	"curfew/outcome"
)

// The deadline passed and SIGTERM was sent; then the CLI exited with 0. It may
// have cut its work short, so that is no success.
func ExampleDecide() {
	status, cause, exit := verdict.Decide(verdict.Facts{
		ExecSeen:  true,
		Exit:      &outcome.Exit{Code: 0},
		StopCause: outcome.CauseTimeout,
		StopBegan: true,
	})
	fmt.Println(status, cause, exit, exit.AfterStop)

	// The same, but the exit was seen before the signal was sent.
	status, cause, exit = verdict.Decide(verdict.Facts{
		ExecSeen:       true,
		Exit:           &outcome.Exit{Code: 0},
		ExitBeforeStop: true,
		StopCause:      outcome.CauseTimeout,
		StopBegan:      true,
	})
	fmt.Println(status, cause, exit, exit.AfterStop)
	// Output:
	// outcome_unknown timeout exit code 0 true
	// succeeded exit exit code 0 false
}

// The supervisor died before it reported that the CLI was executed. Without
// proof of the contrary it may have been.
func ExampleFacts() {
	fmt.Println(verdict.Decide(verdict.Facts{SupervisorLost: true}))
	fmt.Println(verdict.Decide(verdict.Facts{SupervisorLost: true, ExecRuledOut: true}))
	// Output:
	// outcome_unknown supervisor_lost <nil>
	// not_started supervisor_lost <nil>
}

func ExampleErr() {
	errUser := errors.New("user closed the window")
	ctx, cancel := context.WithCancelCause(context.Background())
	cancel(errUser)

	o := outcome.Outcome{Status: outcome.StatusUnknown, Cause: outcome.CauseCanceled}
	o.Err = verdict.Err(&o, verdict.Why{Program: "deploy", Cause: context.Cause(ctx)})

	fmt.Println(o.Err)
	fmt.Println(errors.Is(o.Err, outcome.ErrUnknown), errors.Is(o.Err, context.Canceled), errors.Is(o.Err, errUser))
	// Output:
	// curfew: deploy: outcome unknown: canceled: user closed the window
	// true true true
}

// Why has the program's name and the timeout, which an Outcome does not have.
func ExampleWhy() {
	o := outcome.Outcome{Status: outcome.StatusUnknown, Cause: outcome.CauseTimeout}
	o.Err = verdict.Err(&o, verdict.Why{Program: "sleep", Timeout: time.Second})
	fmt.Println(o.Err)
	fmt.Println(errors.Is(o.Err, context.DeadlineExceeded))
	// Output:
	// curfew: sleep: outcome unknown: timed out after 1s
	// true
}
