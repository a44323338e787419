package outcome_test

import (
	"errors"
	"fmt"
	"io"
	"time"

	"curfew/outcome"
)

// What a program can say to people about why an invocation ended.
func ExampleCause() {
	why := map[outcome.Cause]string{
		outcome.CauseExit:           "it ended by itself",
		outcome.CauseTimeout:        "it took too long",
		outcome.CauseCanceled:       "you stopped it",
		outcome.CauseShutdown:       "this program ends",
		outcome.CauseIdle:           "nobody used it",
		outcome.CauseOutputLimit:    "it printed too much",
		outcome.CauseSupervisorLost: "the helper that watched it was killed",
		outcome.CauseHostLost:       "an earlier run of this program was killed",
		outcome.CauseStartFailed:    "it could not be executed",
	}
	fmt.Println(why[outcome.CauseOutputLimit])
	// Output:
	// it printed too much
}

// What a program can say to people about the end of the tree.
func ExampleCleanup() {
	result := map[outcome.CleanupResult]string{
		outcome.CleanupEmpty:      "nothing is left",
		outcome.CleanupSurvivors:  "some processes could not be ended",
		outcome.CleanupLeft:       "the daemon was left alive, as asked",
		outcome.CleanupUnverified: "it could not be seen whether something is left",
	}
	proof := map[outcome.Proof]string{
		outcome.ProofNoChildren: "the kernel says so",
		outcome.ProofChildList:  "the guard says so",
		outcome.ProofScans:      "two scans have found nothing",
		outcome.ProofNone:       "without a proof",
	}
	step := map[outcome.StepName]string{
		outcome.StepCloseStdin:    "its input was closed",
		outcome.StepSignalLeader:  "it was signalled",
		outcome.StepSignalMembers: "what it had started was signalled",
		outcome.StepKill:          "all that was left was killed",
		outcome.StepEmpty:         "all had ended",
		outcome.StepGiveUp:        "the time was over",
	}
	c := outcome.Cleanup{
		Result: outcome.CleanupSurvivors,
		Proof:  outcome.ProofNone,
		Steps:  []outcome.Step{{Name: outcome.StepSignalLeader, Signal: 15}, {Name: outcome.StepKill, Signal: 9, After: 3 * time.Second}, {Name: outcome.StepGiveUp, After: 5 * time.Second}},
		Ended:  []outcome.Ended{{Process: outcome.Process{PID: 17, Name: "make"}, LastSignal: 15}},
		Survivors: []outcome.Survivor{
			{Process: outcome.Process{PID: 23, Name: "ld"}, State: "D", Reason: "it waits for a disk"},
		},
		TempDirs: []outcome.TempDir{{Path: "/tmp/x", Error: "its processes are still alive"}},
	}
	for _, s := range c.Steps {
		fmt.Println(s.After, step[s.Name])
	}
	for _, e := range c.Ended {
		fmt.Println("ended:", e.Name, outcome.SignalName(e.LastSignal))
	}
	for _, s := range c.Survivors {
		fmt.Println("alive:", s.Name, s.PID, s.Reason)
	}
	for _, d := range c.TempDirs {
		fmt.Println("not removed:", d.Path, d.Error)
	}
	fmt.Println(result[c.Result], "-", proof[c.Proof])
	// Output:
	// 0s it was signalled
	// 3s all that was left was killed
	// 5s the time was over
	// ended: make SIGTERM
	// alive: ld 23 it waits for a disk
	// not removed: /tmp/x its processes are still alive
	// some processes could not be ended - without a proof
}

// What Shutdown and Session.Stop return if something is left.
func ExampleCleanupError() {
	c := outcome.Cleanup{Result: outcome.CleanupSurvivors, Survivors: []outcome.Survivor{
		{Process: outcome.Process{PID: 23, Name: "ld"}, State: "D", Reason: "it waits for a disk"},
	}}
	err := c.Err("an id", "make")
	var left *outcome.CleanupError
	if errors.As(err, &left) {
		fmt.Println(left.Program, len(left.Cleanup.Survivors))
	}
	fmt.Println(outcome.Cleanup{Result: outcome.CleanupEmpty}.Err("an id", "make"))
	// Output:
	// make 1
	// <nil>
}

// A Writer of the caller's that fails is found in the error, also if the CLI succeeds.
func ExampleCopyError() {
	var err error = &outcome.CopyError{Stream: "stdout", Err: io.ErrShortWrite}
	fmt.Println(err, errors.Is(err, io.ErrShortWrite))
	// Output:
	// incomplete stdout: short write true
}

// The operation that failed tells a wrong directory from a program that is missing.
func ExampleStartError_op() {
	advice := map[string]string{
		outcome.OpLookUp: "install the program, or set PATH",
		outcome.OpChdir:  "choose another directory",
		outcome.OpExec:   "is it built for this system?",
	}
	err := &outcome.StartError{Op: outcome.OpChdir, Path: "/nowhere"}
	fmt.Println(advice[err.Op])
	// Output:
	// choose another directory
}

func ExampleUsage() {
	u := outcome.Usage{User: 2 * time.Second, System: time.Second, MaxRSSBytes: 64 << 20}
	fmt.Println(u.User+u.System, u.MaxRSSBytes>>20, "MiB; JSON form", outcome.JSONVersion)
	// Output:
	// 3s 64 MiB; JSON form 1
}
