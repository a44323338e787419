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
	onStdinEOF  bool // --stdin-eof was given; its 0 is no time at all
}

const runLong = `Run the program CLI with its arguments and, when it has ended or is stopped, see
to it that nothing which it started is left.

Its input and output are those of curfew. In a terminal (stdin, stdout and stderr
are the same one) CLI gets a terminal of its own, which curfew passes on; what is
typed there, Ctrl-C too, goes to CLI alone. There is no job control between the
two: Ctrl-Z goes to CLI, and curfew itself is not suspended by it. Open
descriptors from 3 on are passed on as well. With --output-limit the output goes
through a pipe, with --stdin-eof the input does, and with --json there is none but
the outcome.

A time is written like 5 (seconds), 0.5, 300ms, 1m30s or 2d.

The first SIGINT, SIGTERM, SIGHUP or SIGQUIT to curfew stops CLI with that signal.
A second one, not in the same moment, kills what is left at once. SIGINT and
SIGHUP stay ignored where curfew was started so (nohup).

Exit codes, the first that applies:
  125    used wrongly, or failed before the start
  127    CLI was not found
  126    CLI was found, but cannot be executed
  122    it is not shown that nothing is left
  128+N  curfew was told to stop by signal N
  124    the timeout ran out
  123    stopped for another reason (--output-limit, --with-parent, --stdin-eof),
         or CLI's exit code is 0 and its output, or the outcome, is lost
  128+N  CLI died by signal N
  else   that of CLI`

func newRunCommand() *cobra.Command {
	f := &runFlags{
		signal: 15, grace: span(3 * time.Second), killWait: span(2 * time.Second), drain: span(time.Second), linger: span(time.Second),
		maxOutput: adapter.DefaultKeepOutput, afterExit: afterExitFlag(), audience: audienceFlag(),
	}
	cmd := &cobra.Command{
		Use:                   "run [flags] -- CLI [ARG...]",
		DisableFlagsInUseLine: true,
		Short:                 "Run a program, and leave nothing of it behind",
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
					return fmt.Errorf("--%s is given and empty", name) // a variable that is not set
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
	flags.SetInterspersed(false) // what follows the CLI's name is the CLI's
	flags.SortFlags = false
	flags.VarP(&f.timeout, "timeout", "t", "stop CLI after this time; 0 is no limit")
	flags.VarP(&f.signal, "signal", "s", "the signal that a stop begins with: TERM, SIGTERM or 15")
	flags.VarP(&f.grace, "grace", "g", "time between that signal and SIGKILL")
	flags.Var(&f.killWait, "kill-wait", "how long to wait for the end after SIGKILL")
	flags.Var(&f.drain, "drain", "how long to wait for the end of the output when all have ended")
	flags.Var(&f.linger, "linger", "how long what is left may go on when CLI has ended by itself,\nwhile it still holds CLI's input or output or reads from a pipe")
	flags.Var(f.afterExit, "after-exit", "what is left when CLI has ended by itself: terminate it, wait for\nit, or leave it")
	flags.Var(f.audience, "audience", "who gets the signal: leader-first (the others after a third of the\ngrace, or when CLI has ended), everyone, or leader-only")
	flags.StringVar(&f.report, "report", "", "write the outcome as JSON into `FILE`, which is replaced: it is\nthere whole or not at all; /dev/stderr or /dev/fd/N, and what is\nno regular file, is written to as it is")
	flags.BoolVar(&f.json, "json", false, "print the outcome, with the output in it, as JSON on stdout and\nnothing else")
	flags.Var(&f.maxOutput, "max-output", "how many bytes of each stream --json keeps: 1048576, 1024K or 1M")
	flags.Var(&f.outputLimit, "output-limit", "stop CLI when it has written more bytes than this; 0 is no limit")
	flags.StringVar(&f.dir, "dir", "", "run CLI in the directory `DIR`")
	flags.Var(&f.env, "env", "set a variable in CLI's environment; can be repeated")
	flags.BoolVar(&f.clearEnv, "clear-env", false, "begin with an empty environment")
	flags.BoolVar(&f.tempDir, "temp-dir", false, "give CLI a private TMPDIR, which is removed in the end")
	flags.StringVar(&f.stateDir, "state-dir", "", "keep a journal of what runs, and how it ended, in the directory\n`DIR`")
	flags.Var(&f.withParent, "with-parent", "stop when the process that started curfew is gone; --with-parent=PID\n(with the =) also if process PID was gone before curfew could look")
	flags.Lookup("with-parent").NoOptDefVal = "true"
	flags.Var(&f.stdinEOF, "stdin-eof", "when stdin ends, give CLI this time to end by itself, then stop it")
	return cmd
}

// startThreads is for what begins while the first helper is being started: copying, and
// waiting for signals and for our parent. The library adds more.
const startThreads = 4

// run runs the CLI and returns the exit code.
func (f *runFlags) run(argv []string) int {
	runtime.GOMAXPROCS(2) // the more, the more threads can be wanted
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
			stop(errParentGone)
		default:
			go func() {
				<-gone
				stop(errParentGone)
			}()
		}
	}

	c := f.command(argv)
	c.Kill = sigs.kill
	term := f.connect(&c, v, stop, sigs.hangUp)
	if term != nil {
		defer term.restore()
	}
	a, err := adapter.New(adapter.Options{StateDir: f.stateDir})
	if err == nil && rep != nil {
		err = rep.clear()
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
				code = exitStopped // nobody has the outcome
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

// release lets the helper end before we do, so that whoever waits for us finds
// nothing left.
func release(a *adapter.Adapter) {
	ctx, cancel := context.WithTimeout(context.Background(), releaseLimit)
	defer cancel()
	_ = a.Shutdown(ctx) // one with survivors goes on without us
}

const releaseLimit = time.Second

// command is what is run, but for its descriptors.
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

// connect gives the CLI its input and output. The terminal, if there is one,
// belongs to the caller.
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
		// The CLI, in a session of its own, would not be stopped as we would,
		// but take what is typed for the shell.
	default:
		c.Stdin = os.Stdin
	}
	switch {
	case f.json: // kept for the outcome
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

// through hides that it is a file, which would go to the CLI uncounted.
type through struct{ io.Writer }

func sameFile(a, b *os.File) bool {
	one, err := a.Stat()
	if err != nil {
		return false
	}
	other, err := b.Stat()
	return err == nil && os.SameFile(one, other)
}
