package main

import (
	"errors"
	"fmt"
	"strings"
	"syscall"

	"curfew/outcome"
)

// sayOutcome says what the exit code does not: why the CLI could not be started, that
// it was stopped, which processes were ended, and what is not known.
func (v *voice) sayOutcome(o outcome.Outcome) {
	if o.Err != nil && !saysItself(o) {
		v.say("%v", o.Err)
	}
	v.sayCleanup(o.Cleanup)
	if o.Output.DrainIncomplete {
		v.say("the end of the output may be missing")
	}
}

// saysItself reports whether the CLI failed in a way that its exit code tells, or that shells
// are silent about.
func saysItself(o outcome.Outcome) bool {
	if o.Status != outcome.StatusFailed {
		return false
	}
	if o.Exit.Signal == int(syscall.SIGPIPE) && errors.Is(o.Err, syscall.EPIPE) {
		return true // the reader of our output has closed it, and the CLI noticed
	}
	whole := o.Output.Stdout.WriteError == "" && o.Output.Stderr.WriteError == ""
	return whole && (o.Exit.Signal == 0 || quietDeath[o.Exit.Signal])
}

// quietDeath are the signals that shells say nothing about either: Ctrl-C, and a
// reader that has closed its end.
var quietDeath = map[int]bool{2: true, 13: true}

func (v *voice) sayCleanup(c outcome.Cleanup) {
	if n := len(c.Ended) + c.EndedMore; n > 0 {
		v.say("ended %s", list(n, c.Ended, func(e outcome.Ended) string {
			return fmt.Sprintf("%s (%s)", processName(e.Process), outcome.SignalName(e.LastSignal))
		}))
	}
	for _, s := range c.Survivors {
		v.say("still alive: %s: %s", processName(s.Process), s.Reason)
	}
	if n := len(c.LeftAlive); n > 0 {
		v.say("left alive %s", list(n, c.LeftAlive, processName))
	}
	if n := len(c.Suspects); n > 0 {
		v.say("perhaps left, and not touched: %s", list(n, c.Suspects, processName))
	}
	if c.Result == outcome.CleanupUnverified {
		v.say("it could not be verified that nothing is left")
	}
	for _, d := range c.TempDirs {
		v.say("temporary directory %s: %s", d.Path, d.Error)
	}
	if c.JournalError != "" {
		v.say("not in the journal: %s", c.JournalError)
	}
}

func processName(p outcome.Process) string { return fmt.Sprintf("%q %d", p.Name, p.PID) }

// list names some of n processes in a line.
func list[T any](n int, some []T, name func(T) string) string {
	const most = 6
	var names []string
	for _, p := range some[:min(len(some), most)] {
		names = append(names, name(p))
	}
	plural := "es"
	if n == 1 {
		plural = ""
	}
	s := fmt.Sprintf("%d process%s: %s", n, plural, strings.Join(names, ", "))
	if more := n - len(names); more > 0 {
		s += fmt.Sprintf(" and %d more", more)
	}
	return s
}
