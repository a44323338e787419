package outcome_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"syscall"
	"time"

	"curfew/outcome"
)

// A caller looks at the status of an outcome first.
func Example() {
	describe := func(o outcome.Outcome) string {
		switch o.Status {
		case outcome.StatusSucceeded:
			return "done"
		case outcome.StatusFailed:
			return "it failed: " + o.Exit.String()
		case outcome.StatusNotStarted:
			return "nothing happened, try again"
		case outcome.StatusUnknown:
			return "look there before trying again: " + string(o.Cause)
		case outcome.StatusStopped:
			return "ended as asked"
		}
		panic("unreachable")
	}
	fmt.Println(describe(outcome.Outcome{Status: outcome.StatusSucceeded, Cause: outcome.CauseExit, Exit: &outcome.Exit{}}))
	fmt.Println(describe(outcome.Outcome{Status: outcome.StatusFailed, Cause: outcome.CauseExit, Exit: &outcome.Exit{Code: 3}}))
	fmt.Println(describe(outcome.Outcome{Status: outcome.StatusUnknown, Cause: outcome.CauseTimeout}))
	// Output:
	// done
	// it failed: exit code 3
	// look there before trying again: timeout
}

func ExampleErrUnknown() {
	// As adapter.Invoke returns it, or as a report has it.
	var o outcome.Outcome
	report := `{"version": 1, "status": "outcome_unknown", "cause": "supervisor_lost", "error": "curfew: deploy: outcome unknown: supervisor lost"}`
	if err := json.Unmarshal([]byte(report), &o); err != nil {
		panic(err)
	}
	if errors.Is(o.Err, outcome.ErrUnknown) {
		fmt.Println("not safe to try again:", o.Err)
	}
	// Output:
	// not safe to try again: curfew: deploy: outcome unknown: supervisor lost
}

func ExampleErrNotStarted() {
	var o outcome.Outcome
	report := `{"version": 1, "status": "not_started", "cause": "shutdown", "error": "curfew: deploy: not started: shut down"}`
	if err := json.Unmarshal([]byte(report), &o); err != nil {
		panic(err)
	}
	if errors.Is(o.Err, outcome.ErrNotStarted) {
		fmt.Println("safe to try again:", o.Err)
	}
	// Output:
	// safe to try again: curfew: deploy: not started: shut down
}

func ExampleExitError() {
	var err error = &outcome.ExitError{Program: "grep", Exit: outcome.Exit{Code: 1}}

	var exit *outcome.ExitError
	if errors.As(err, &exit) && exit.Exit.Code == 1 {
		fmt.Println("no match")
	}
	fmt.Println(err)
	// Output:
	// no match
	// curfew: grep: exit code 1
}

func ExampleStartError() {
	var err error = &outcome.StartError{
		Op:          outcome.OpExec,
		Path:        "./report.py",
		Interpreter: "/usr/bin/python4",
		Err:         syscall.ENOENT,
	}
	fmt.Println(err)
	fmt.Println(errors.Is(err, outcome.ErrNotStarted), errors.Is(err, fs.ErrNotExist))
	// Output:
	// curfew: exec ./report.py: its interpreter /usr/bin/python4 does not exist (install it, or correct the first line of the file)
	// true true
}

func ExampleExit_String() {
	fmt.Println(outcome.Exit{Code: 3})
	// Output:
	// exit code 3
}

func ExampleSignalName() {
	fmt.Println(outcome.SignalName(126))
	// Output:
	// signal 126
}

func ExampleOutcome_MarshalJSON() {
	o := outcome.Outcome{
		ID:      "0f3a",
		Status:  outcome.StatusSucceeded,
		Cause:   outcome.CauseExit,
		Exit:    &outcome.Exit{Code: 0},
		Stdout:  []byte("hello\n"),
		Output:  outcome.Output{Stdout: outcome.Stream{Seen: 6, Kept: 6, HeadBytes: 6}},
		Started: time.Date(2025, 6, 1, 12, 0, 0, 0, time.UTC),
		Ended:   time.Date(2025, 6, 1, 12, 0, 0, 1500000, time.UTC),
		Elapsed: 1500 * time.Microsecond,
		Cleanup: outcome.Cleanup{Result: outcome.CleanupEmpty, Proof: outcome.ProofNoChildren},
	}
	enc := json.NewEncoder(os.Stdout)
	enc.SetIndent("", "  ")
	if err := enc.Encode(o); err != nil {
		fmt.Println(err)
	}
	// Output:
	// {
	//   "version": 1,
	//   "id": "0f3a",
	//   "status": "succeeded",
	//   "cause": "exit",
	//   "exit": {
	//     "code": 0,
	//     "signal": null,
	//     "core_dumped": false,
	//     "after_stop": false
	//   },
	//   "stdout": "hello\n",
	//   "output": {
	//     "stdout": {
	//       "seen_bytes": 6,
	//       "kept_bytes": 6,
	//       "truncated": false,
	//       "head_bytes": 6
	//     },
	//     "stderr": {
	//       "seen_bytes": 0,
	//       "kept_bytes": 0,
	//       "truncated": false,
	//       "head_bytes": 0
	//     },
	//     "drain_incomplete": false,
	//     "abandoned": 0
	//   },
	//   "started": "2025-06-01T12:00:00Z",
	//   "ended": "2025-06-01T12:00:00.0015Z",
	//   "elapsed_ms": 1.5,
	//   "usage": {
	//     "user_ms": 0,
	//     "system_ms": 0,
	//     "max_rss_bytes": 0
	//   },
	//   "cleanup": {
	//     "result": "empty",
	//     "proof": "no_children",
	//     "helper_lost": false,
	//     "steps": [],
	//     "ended": [],
	//     "ended_more": 0,
	//     "survivors": [],
	//     "left_alive": [],
	//     "suspects": [],
	//     "temp_dirs": [],
	//     "elapsed_ms": 0
	//   }
	// }
}

func ExampleOutcome_UnmarshalJSON() {
	var o outcome.Outcome
	err := json.Unmarshal([]byte(`{"version": 1, "status": "outcome_unknown", "cause": "host_lost", "elapsed_ms": 2500}`), &o)
	fmt.Println(o.Status, o.Cause, o.Elapsed, err)

	err = json.Unmarshal([]byte(`{"version": 1, "status": "succeeded", "cause": "exit", "exit": {"code": null, "signal": null}}`), &o)
	fmt.Println(err)
	// Output:
	// outcome_unknown host_lost 2.5s <nil>
	// outcome: read exit: neither code nor signal
}
