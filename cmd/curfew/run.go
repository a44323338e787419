package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"curfew/adapter"
	"curfew/internal/supervisor"
)

// runFlags are the flags of curfew run.
type runFlags struct {
	timeout     span
	signal      signalFlag
	grace       span
	killWait    span
	drain       span
	linger      span
	afterExit   *choice[adapter.AfterExit]
	audience    *choice[adapter.Audience]
	report      string
	json        bool
	maxOutput   size
	outputLimit size
	dir         string
	env         variables
	clearEnv    bool
	tempDir     bool
	stateDir    string
	withParent  parentFlag
	stdinEOF    span
	onStdinEOF  bool // --stdin-eof was given; 0 then stops the CLI at once
}

const runLong = `Run the program CLI with its arguments. When CLI has ended or is stopped, end
everything that it started.

CLI gets the input and output of curfew. If stdin, stdout and stderr are the same
terminal, CLI gets a terminal of its own, and curfew copies between the two;
everything that is typed, Ctrl-C too, goes to CLI alone. There is no job control:
Ctrl-Z goes to CLI and does not suspend curfew. Open descriptors from 3 on are
passed on as well. With --output-limit the output goes through a pipe, with
--stdin-eof the input does, and with --json curfew prints the outcome and nothing
else.

A time is written like 5 (seconds), 0.5, 300ms, 1m30s or 2d.

The first SIGINT, SIGTERM, SIGHUP or SIGQUIT to curfew stops CLI with that signal.
A second one, at least 50 ms later, kills at once. If curfew is started with
SIGINT or SIGHUP ignored (nohup), both stay ignored.

Exit codes, the first that applies:
  125    used wrongly, or failed before the start
  127    CLI was not found
  126    CLI was found, but cannot be executed
  122    some process of CLI may be alive: its end could not be shown
  128+N  signal N stopped curfew
  124    the timeout ran out
  123    stopped for another reason (--output-limit, --with-parent, --stdin-eof),
         or CLI's exit code is 0 and its output, or the outcome, was lost
  128+N  CLI died by signal N
  else   the exit code of CLI`

func newRunCommand() *cobra.Command {
	f := &runFlags{
		signal: 15, grace: span(3 * time.Second), killWait: span(2 * time.Second), drain: span(time.Second), linger: span(time.Second),
		maxOutput: adapter.DefaultKeepOutput, afterExit: afterExitFlag(), audience: audienceFlag(),
	}
	cmd := &cobra.Command{
		Use:                   "run [flags] -- CLI [ARG...]",
		DisableFlagsInUseLine: true,
		Short:                 "Run a program, and end everything that it starts",
		Long:                  runLong,
		Example: `  curfew run --timeout 30s -- make test
  curfew run --with-parent --stdin-eof 2s -- some-stdio-server
  curfew run --timeout 5 --json -- git status | jq .status`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 {
				return errors.New("no program to run is given; usage: curfew run [flags] -- CLI [ARG...]")
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			f.onStdinEOF = cmd.Flags().Changed("stdin-eof")
			for _, name := range []string{"report", "dir", "state-dir"} {
				if flag := cmd.Flags().Lookup(name); flag.Changed && flag.Value.String() == "" {
					return fmt.Errorf("--%s is empty", name) // often an unset variable
				}
			}
			if code := f.run(args); code != 0 {
				return exit(code)
			}
			return nil
		},
	}
	cmd.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return fmt.Errorf("%w (see %s --help)", err, cmd.CommandPath())
	})
	flags := cmd.Flags()
	flags.SetInterspersed(false) // flags after the CLI's name are the CLI's
	flags.SortFlags = false
	flags.VarP(&f.timeout, "timeout", "t", "stop CLI after this time; 0 is no limit")
	flags.VarP(&f.signal, "signal", "s", "the signal that a stop begins with: TERM, SIGTERM or 15")
	flags.VarP(&f.grace, "grace", "g", "time between that signal and SIGKILL")
	flags.Var(&f.killWait, "kill-wait", "how long to wait for the end after SIGKILL")
	flags.Var(&f.drain, "drain", "how long to wait for the end of the output after all processes\nhave ended")
	flags.Var(&f.linger, "linger", "after CLI has ended by itself, how long processes that it left may\ngo on: while they hold its input or output, or read from a pipe")
	flags.Var(f.afterExit, "after-exit", "what to do with processes that CLI left when it ended by itself:\nterminate, wait for them, or leave them")
	flags.Var(f.audience, "audience", "which processes get the signal: leader-first (the others after a\nthird of the grace, or when CLI has ended), everyone, or\nleader-only")
	flags.StringVar(&f.report, "report", "", "write the outcome as JSON to `FILE`, which is replaced in one step;\n/dev/stderr, /dev/fd/N and what is not a regular file are written\nto as they are")
	flags.BoolVar(&f.json, "json", false, "print the outcome, with the output in it, as JSON on stdout, and\nnothing else")
	flags.Var(&f.maxOutput, "max-output", "how many bytes of each stream --json keeps: 1048576, 1024K or 1M")
	flags.Var(&f.outputLimit, "output-limit", "stop CLI when it writes more bytes than this; 0 is no limit")
	flags.StringVar(&f.dir, "dir", "", "run CLI in the directory `DIR`")
	flags.Var(&f.env, "env", "set a variable in CLI's environment; can be repeated")
	flags.BoolVar(&f.clearEnv, "clear-env", false, "start CLI with an empty environment, but for --env")
	flags.BoolVar(&f.tempDir, "temp-dir", false, "give CLI a private TMPDIR, which is removed at the end")
	flags.StringVar(&f.stateDir, "state-dir", "", "keep a journal of what runs and how it ended in the directory `DIR`")
	flags.Var(&f.withParent, "with-parent", "stop CLI when the process that started curfew has ended;\n--with-parent=PID (with the =) works also if process PID ended\nbefore curfew could check")
	flags.Lookup("with-parent").NoOptDefVal = "true"
	flags.Var(&f.stdinEOF, "stdin-eof", "when stdin ends, give CLI this time to end by itself, then stop it")
	return cmd
}

// startThreads is how many threads curfew needs while the first helper starts: to copy, and
// to wait for signals and for our parent. The library adds more.
const startThreads = 4

// run runs the CLI and returns the exit code.
func (f *runFlags) run(argv []string) int {
	runtime.GOMAXPROCS(2) // with more, the runtime can want more threads
	supervisor.IdleThreads(startThreads)
	v := newVoice(os.Stderr)
	defer v.close()
	var rep *report
	if f.report != "" {
		var err error
		if rep, err = newReport(f.report); err != nil {
			v.say("%v", err)
			return exitFailed
		}
	}
	ctx, cancel := context.WithCancelCause(context.Background())
	defer cancel(nil)
	sigs := catchSignals(cancel, v)
	stop := func(cause error) {
		v.say("stopping: %v", cause)
		cancel(cause)
	}
	if f.withParent.on {
		gone, err := followParent(f.withParent.pid)
		if err != nil {
			v.say("%v", err)
			return exitFailed
		}
		select {
		case <-gone: // before the start
			stop(f.withParent.gone())
		default:
			go func() {
				<-gone
				stop(errParentGone)
			}()
		}
	}

	c := f.command(argv)
	c.Started = sigs.killOnSecond
	term := f.connect(&c, v, stop, sigs.hangUp)
	if term != nil {
		defer term.restore()
	}
	a, err := adapter.New(adapter.Options{StateDir: f.stateDir})
	if err == nil && rep != nil {
		err = rep.removeOld()
	}
	if err != nil {
		v.say("%v", err)
		return exitFailed
	}
	o, _ := a.Invoke(ctx, c)
	if term != nil {
		term.close(time.Duration(f.drain))
	}
	v.sayOutcome(o)
	code := exitCode(o, sigs.signal())
	undelivered := func(err error) {
		if err != nil {
			v.say("%v", err)
			if code == 0 {
				code = exitStopped // the outcome is lost
			}
		}
	}
	if rep != nil {
		undelivered(rep.write(o))
	}
	if f.json {
		undelivered(printJSON(o, sigs.again))
	}
	release(a)
	return code
}

// release lets the helper end before curfew does, so that a process that waits for curfew
// finds no helper.
func release(a *adapter.Adapter) {
	ctx, cancel := context.WithTimeout(context.Background(), releaseLimit)
	defer cancel()
	_ = a.Shutdown(ctx) // a helper with survivors goes on without curfew
}

const releaseLimit = time.Second

// command returns the command to run, without its descriptors.
func (f *runFlags) command(argv []string) adapter.Command {
	c := adapter.Command{
		Path: argv[0], Args: argv[1:], Dir: f.dir, Timeout: time.Duration(f.timeout),
		AfterExit: f.afterExit.value, KeepOutput: int64(f.maxOutput), OutputLimit: int64(f.outputLimit),
		Stop: adapter.StopPolicy{
			Signal: syscall.Signal(f.signal), Grace: f.grace.wait(), KillWait: f.killWait.wait(), Drain: f.drain.wait(),
			Linger: f.linger.wait(), Audience: f.audience.value,
		},
		ExtraFiles: inherited, TempDir: f.tempDir,
	}
	if f.maxOutput == 0 {
		c.KeepOutput = -1
	}
	switch {
	case f.clearEnv:
		c.Env = append([]string{}, f.env...)
	case len(f.env) > 0:
		c.Env = os.Environ()
		if f.dir != "" {
			if dir, err := filepath.Abs(f.dir); err == nil {
				c.Env = append(c.Env, "PWD="+dir)
			}
		}
		c.Env = append(c.Env, f.env...)
	}
	return c
}

// connect gives the CLI its input and output. The caller closes the terminal, if connect
// returns one.
func (f *runFlags) connect(c *adapter.Command, v *voice, stop func(error), hangUp func()) *terminal {
	if !f.json && !f.onStdinEOF && f.outputLimit == 0 && onTerminal() {
		term, err := openTerminal(v, hangUp)
		if err == nil {
			c.Terminal = term.cli
			return term
		}
		v.say("no terminal for the CLI: %v", err)
	}
	switch {
	case f.onStdinEOF:
		in := newInput(os.Stdin)
		go in.stopAfterEnd(time.Duration(f.stdinEOF), hangup(os.Stdin), stop)
		c.Stdin = in
	case isTerminal(os.Stdin) && inBackground():
		// The CLI, in a session of its own, would not be suspended when it reads, as
		// curfew would be: it would take what is typed for the shell.
	default:
		c.Stdin = os.Stdin
	}
	switch {
	case f.json: // the outcome has the output
	case f.outputLimit > 0:
		c.Stdout, c.Stderr = &through{os.Stdout}, &through{os.Stderr}
		if sameFile(os.Stdout, os.Stderr) {
			c.Stderr = c.Stdout // one pipe, so that the order is kept
		}
	default:
		c.Stdout, c.Stderr = os.Stdout, os.Stderr
	}
	return nil
}

// through hides that the Writer is a file: a file would go to the CLI and not be counted.
type through struct{ io.Writer }

func sameFile(a, b *os.File) bool {
	one, err := a.Stat()
	if err != nil {
		return false
	}
	other, err := b.Stat()
	return err == nil && os.SameFile(one, other)
}
