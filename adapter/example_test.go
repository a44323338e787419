//go:build linux || darwin

package adapter_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"
	"syscall"
	"time"

	"curfew/adapter"
	"curfew/outcome"
)

// What a caller does with a result: look at the error, which states the same fact as the
// status.
func Example() {
	a, err := adapter.New(adapter.Options{})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer a.Shutdown(context.Background())

	for _, script := range []string{"echo done", "echo broken >&2; exit 3", "exec sleep 30"} {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		o, err := a.Invoke(ctx, adapter.Command{Path: "sh", Args: []string{"-c", script}})
		cancel()
		var exit *outcome.ExitError
		switch {
		case err == nil:
			fmt.Printf("it printed %q\n", o.Stdout)
		case errors.Is(err, outcome.ErrNotStarted):
			fmt.Println("it was not executed, trying again is safe:", err)
		case errors.As(err, &exit):
			fmt.Printf("it failed by itself with code %d and printed %q\n", exit.Exit.Code, o.Stderr)
		case errors.Is(err, outcome.ErrUnknown):
			fmt.Println("it was stopped, and may have done what it was asked to:", o.Cause)
		}
	}
	// Output:
	// it printed "done\n"
	// it failed by itself with code 3 and printed "broken\n"
	// it was stopped, and may have done what it was asked to: timeout
}

// A program that only calls Invoke needs no Adapter of its own.
func ExampleInvoke() {
	o, err := adapter.Invoke(context.Background(), adapter.Command{Path: "git", Args: []string{"status"}, Dir: "repository"})
	fmt.Println(o.Status, err)
}

func ExampleNew() {
	a, err := adapter.New(adapter.Options{
		Supervisor: "/usr/local/bin/curfew", // in a c-shared library, or a program with a heavy start
		Logger:     slog.Default(),
		MaxIdle:    8,
		NoCgroup:   true,
	})
	if err != nil { // it cannot be executed
		fmt.Println(err)
		return
	}
	defer a.Shutdown(context.Background())
}

// All input and output goes through the program; with files of its own the CLI would get
// those themselves.
func ExampleAdapter_Invoke() {
	var a adapter.Adapter // the zero value is one with the zero Options
	defer a.Shutdown(context.Background())
	var upper strings.Builder
	_, err := a.Invoke(context.Background(), adapter.Command{
		Path:   "tr",
		Args:   []string{"a-z", "A-Z"},
		Stdin:  strings.NewReader("hello\n"),
		Stdout: &upper,
		Stderr: os.Stderr,
	})
	fmt.Print(upper.String(), err, "\n")
	// Output:
	// HELLO
	// <nil>
}

// The head and the tail of long output are kept.
func ExampleCommand_keepOutput() {
	var a adapter.Adapter
	defer a.Shutdown(context.Background())
	o, err := a.Invoke(context.Background(), adapter.Command{
		Path:       "seq",
		Args:       []string{"100000"},
		KeepOutput: 16,
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	s := o.Output.Stdout
	fmt.Printf("%q ... %q, of %d bytes\n", o.Stdout[:s.HeadBytes], o.Stdout[s.HeadBytes:], s.Seen)
	fmt.Println(s.Seen < adapter.DefaultKeepOutput, "that the default would have kept all of it")
	// Output:
	// "1\n2\n3\n4\n" ... "\n100000\n", of 588895 bytes
	// true that the default would have kept all of it
}

// A stop has one bound, which is known before.
func ExampleCommand_Bound() {
	c := adapter.Command{
		Path: "make",
		Stop: adapter.StopPolicy{
			Signal:   syscall.SIGINT,
			Grace:    10 * time.Second,           // between SIGINT and SIGKILL
			Linger:   -1,                         // no time at all
			Audience: adapter.AudienceLeaderOnly, // make passes it on; or AudienceLeaderFirst, AudienceEveryone
		},
		AfterExit: adapter.AfterExitTerminate, // or AfterExitWait, AfterExitLeave
	}
	fmt.Println(c.Bound())
	// Output:
	// 17s
}

func ExampleAudience() {
	ask := map[string]adapter.Audience{
		"the program, then the others": adapter.AudienceLeaderFirst,
		"all at once":                  adapter.AudienceEveryone,
		"the program alone":            adapter.AudienceLeaderOnly,
	}
	p := adapter.StopPolicy{Audience: ask["all at once"], Grace: 10 * time.Second}
	fmt.Println(adapter.Command{Path: "make", Stop: p}.Bound())
	// Output:
	// 18s
}

func ExampleStopPolicy() {
	var a adapter.Adapter
	defer a.Shutdown(context.Background())
	c := adapter.Command{
		Path:    "sh",
		Args:    []string{"-c", `trap "" TERM; echo ready; sleep 30 & wait`},
		Timeout: time.Second,
		Stop:    adapter.StopPolicy{Grace: 100 * time.Millisecond, Audience: adapter.AudienceEveryone},
	}
	o, _ := a.Invoke(context.Background(), c)
	fmt.Println(o.Status, o.Cause, outcome.SignalName(o.Exit.Signal), o.Cleanup.Result)
	// Output:
	// outcome_unknown timeout SIGKILL empty
}

// The invocation lasts until its background process has ended too.
func ExampleAfterExit() {
	var a adapter.Adapter
	defer a.Shutdown(context.Background())
	choices := map[string]adapter.AfterExit{
		"end them":      adapter.AfterExitTerminate, // the default
		"wait for them": adapter.AfterExitWait,
		"leave them be": adapter.AfterExitLeave,
	}
	o, err := a.Invoke(context.Background(), adapter.Command{
		Path:      "sh",
		Args:      []string{"-c", "(sleep 0.2; echo from the background) & echo from the leader"},
		AfterExit: choices["wait for them"],
	})
	fmt.Print(string(o.Stdout), err, "\n")
	// Output:
	// from the leader
	// from the background
	// <nil>
}

// Ctrl-C in a user interface: the CLI gets SIGINT as it would in a terminal.
func ExampleStopCause() {
	var a adapter.Adapter
	defer a.Shutdown(context.Background())
	errUser := errors.New("the user pressed Ctrl-C")
	ctx, cancel := context.WithCancelCause(context.Background())
	o, err := a.Invoke(ctx, adapter.Command{
		Path:    "sleep",
		Args:    []string{"30"},
		Started: func(*adapter.Process) { cancel(adapter.StopCause{Signal: syscall.SIGINT, Reason: errUser}) },
	})
	fmt.Println(outcome.SignalName(o.Exit.Signal), errors.Is(err, errUser), errors.Is(err, context.Canceled))
	fmt.Println(err)
	// Output:
	// SIGINT true true
	// curfew: sleep: outcome unknown: canceled: the user pressed Ctrl-C (death by SIGINT seen after the stop began)
}

// A Process is what a caller has of a CLI that Invoke runs. Here the CLI is asked to reload,
// and killed a second later.
func ExampleProcess() {
	var a adapter.Adapter
	defer a.Shutdown(context.Background())
	ready, inReady := io.Pipe()
	o, _ := a.Invoke(context.Background(), adapter.Command{
		Path:    "sh",
		Timeout: 30 * time.Second,
		Args:    []string{"-c", `trap "echo reloaded" HUP; trap "" TERM; echo ready; while :; do sleep 0.05; done`},
		Stdout:  inReady,
		Started: func(p *adapter.Process) {
			lines := bufio.NewScanner(ready)
			for lines.Scan() {
				fmt.Println(lines.Text(), p.PID() > 1)
				if lines.Text() == "reloaded" {
					p.Kill() // at once, whatever the policy says
					break
				}
				if err := p.Signal(syscall.SIGHUP); err != nil {
					fmt.Println(err)
				}
			}
			_, _ = io.Copy(io.Discard, ready)
		},
	})
	inReady.Close()
	fmt.Println(o.Status, o.Cause)
	// Output:
	// ready true
	// reloaded true
	// outcome_unknown canceled
}

// A server is talked to, and stopped by the end of its input.
func ExampleAdapter_Start() {
	var a adapter.Adapter
	defer a.Shutdown(context.Background())
	s, err := a.Start(context.Background(), adapter.Command{
		Path:   "sh",
		Args:   []string{"-c", `echo up >&2; while read -r line; do echo "you said $line"; done; echo bye; exit 7`},
		Stdin:  adapter.Pipe,
		Stdout: adapter.Pipe,
		Stop:   adapter.StopPolicy{StdinGrace: time.Minute}, // it needs none of that
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	var in adapter.StdinPipe = s.Stdin()
	var out adapter.StdoutPipe = s.Stdout()
	_ = out.SetReadDeadline(time.Now().Add(time.Minute))
	fmt.Fprintln(in, "hello")
	answers := bufio.NewReader(out)
	line, _ := answers.ReadString('\n')
	fmt.Print(line)

	// Nil: nothing of it is left. The exit code is there, and no error.
	fmt.Println("stop:", s.Stop(context.Background()))
	rest, _ := io.ReadAll(answers)
	fmt.Print(string(rest))
	o, err := s.Wait()
	fmt.Println(o.Status, o.Exit, err)
	_, stderr := s.Kept()
	fmt.Printf("%q\n", stderr)
	if _, err := in.Write([]byte("late")); errors.Is(err, adapter.ErrStopped) {
		fmt.Println(err)
	}
	// Output:
	// you said hello
	// stop: <nil>
	// bye
	// stopped exit code 7 <nil>
	// "up\n"
	// adapter: session stopped
}

// What a client waits for while a server runs.
func ExampleSession() {
	var a adapter.Adapter
	defer a.Shutdown(context.Background())
	s, err := a.Start(context.Background(), adapter.Command{
		Path: "sh", Args: []string{"-c", "echo starting >&2; sleep 0.1; exit 3"}, Owner: "ann", Stderr: adapter.Pipe,
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	log := bufio.NewScanner(s.Stderr())
	log.Scan()
	fmt.Println(s.Owner(), s.ID() != "", s.PID() > 1, s.Started().IsZero(), log.Text())
	<-s.Exited() // no answer comes any more
	exit, known := s.Exit()
	fmt.Println(exit, known)
	select {
	case <-s.Done(): // nothing is left of it
		o, _ := s.Outcome()
		fmt.Println(o.Status, o.Cleanup.Result)
	case <-time.After(s.Bound()):
		s.Kill()
	}
	fmt.Println(s.Signal(syscall.SIGTERM) == os.ErrProcessDone)
	// Output:
	// ann true true false starting
	// exit code 3 true
	// failed empty
	// true
}

// A server that nobody talks to is stopped.
func ExampleErrIdle() {
	var a adapter.Adapter
	defer a.Shutdown(context.Background())
	s, err := a.Start(context.Background(), adapter.Command{
		Path: "cat", Stdin: adapter.Pipe, Stdout: adapter.Pipe, IdleTimeout: 100 * time.Millisecond,
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	o, err := s.Wait()
	fmt.Println(o.Status, o.Cause, err) // the error of one that does not end in time holds ErrIdle
	fmt.Println(adapter.ErrIdle)
	// Output:
	// stopped idle <nil>
	// adapter: session without traffic
}

// One user leaves, and what the others have started goes on.
func ExampleAdapter_StopOwner() {
	var a adapter.Adapter
	defer a.Shutdown(context.Background())
	for _, owner := range []string{"ann", "ann", "ben"} {
		if _, err := a.Start(context.Background(), adapter.Command{Path: "sleep", Args: []string{"30"}, Owner: owner}); err != nil {
			fmt.Println(err)
			return
		}
	}
	outcomes, err := a.StopOwner(context.Background(), "ann")
	for _, o := range outcomes {
		fmt.Println(o.Status, o.Cause, o.Cleanup.Result)
	}
	fmt.Println(err)
	// An Invoke of that owner would return an error that holds this:
	fmt.Println(adapter.ErrOwnerStopped)
	// Output:
	// stopped shutdown empty
	// stopped shutdown empty
	// <nil>
	// adapter: owner stopped
}

func ExampleAdapter_Shutdown() {
	var a adapter.Adapter
	s, err := a.Start(context.Background(), adapter.Command{Path: "sleep", Args: []string{"30"}})
	if err != nil {
		fmt.Println(err)
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if err := a.Shutdown(ctx); err != nil { // something is left: the error says what
		fmt.Println(err)
	}
	o, _ := s.Outcome()
	fmt.Println(o.Status, o.Cause)
	_, err = a.Invoke(ctx, adapter.Command{Path: "true"})
	fmt.Println(errors.Is(err, adapter.ErrShutdown), errors.Is(err, outcome.ErrNotStarted))
	// Output:
	// stopped shutdown
	// true true
}

// At its start a program asks what an earlier one had in flight when it was killed.
func ExampleAdapter_Recover() {
	dir, err := os.MkdirTemp("", "journal")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer os.RemoveAll(dir)
	a, err := adapter.New(adapter.Options{StateDir: dir})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer a.Shutdown(context.Background())
	var lost []adapter.Recovered
	lost, err = a.Recover(context.Background())
	for _, r := range lost {
		fmt.Println(r.Program, r.Owner, r.Session, r.Began, r.Outcome.Status, r.Outcome.Cleanup.Result)
	}
	fmt.Println(len(lost), err)
	// Output:
	// 0 <nil>
}
