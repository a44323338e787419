package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime"
	"strings"
	"syscall"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"curfew/adapter"
	"curfew/fixtures"
	"curfew/outcome"
)

func newSelftestCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "selftest [BEHAVIOUR...]",
		Short: "Run programs that misbehave on purpose, and show how they end on this machine",
		Long: `selftest runs one misbehaving program after another on this machine, ends it, and
prints a line for each: how it ended, how long that took, and what proves that no
process of it is alive. Each process of such a program writes a byte to a file (its
heartbeat) every few milliseconds and holds a FIFO; afterwards the heartbeat must
have stopped, and the FIFO must be at its end. A process beside them (the canary)
must never get a signal.

Without arguments selftest runs all behaviours. The exit code is 1 if one of them
was not ended, or its end not proven.`,
		RunE: func(cmd *cobra.Command, args []string) error {
			list, err := chosen(args)
			if err != nil {
				return err
			}
			ctx, stop := signal.NotifyContext(cmd.Context(), os.Interrupt, syscall.SIGTERM)
			defer stop()
			ok, err := selftest(ctx, cmd.OutOrStdout(), list)
			if err != nil {
				return err
			}
			if !ok {
				return exit(1) // the table says what was not
			}
			return nil
		},
	}
}

// chosen returns the fixtures with the given names, or all that can run
// here.
func chosen(names []string) ([]fixtures.Fixture, error) {
	var list []fixtures.Fixture
	for _, name := range names {
		f, ok := fixtures.Find(name)
		if !ok {
			return nil, fmt.Errorf("selftest: no such behaviour: %s (without arguments, selftest runs and names all of them)", name)
		}
		if f.NeedsTaskLimit {
			return nil, fmt.Errorf("selftest: %s starts as many processes as the system allows; only tests run it, below a limit", name)
		}
		list = append(list, f)
	}
	if len(names) > 0 {
		return list, nil
	}
	for _, f := range fixtures.All() {
		if !f.NeedsTaskLimit && (!f.LinuxOnly || runtime.GOOS == "linux") {
			list = append(list, f)
		}
	}
	return list, nil
}

// shown is the result of one behaviour.
type shown struct {
	fixture fixtures.Fixture
	outcome outcome.Outcome
	took    time.Duration // from the stop, or from the leader's own end
	proofs  []string
	problem string
}

func selftest(ctx context.Context, w io.Writer, list []fixtures.Fixture) (ok bool, err error) {
	exe, err := os.Executable()
	if err != nil {
		return false, fmt.Errorf("selftest: find our executable: %w", err)
	}
	dir, err := os.MkdirTemp("", "curfew-selftest-")
	if err != nil {
		return false, fmt.Errorf("selftest: %w", err)
	}
	defer os.RemoveAll(dir)
	a, err := adapter.New(adapter.Options{})
	if err != nil {
		return false, err
	}
	defer a.Shutdown(context.WithoutCancel(ctx))
	canary, err := fixtures.StartCanary(exe, dir)
	if err != nil {
		return false, fmt.Errorf("selftest: start canary: %w", err)
	}
	defer canary.Stop()

	fmt.Fprintf(w, "curfew on %s/%s: each behaviour is ended after it has come to life\n\n", runtime.GOOS, runtime.GOARCH)
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "BEHAVIOUR\tWHAT IT DOES\tOUTCOME\tENDED\tIN\tSHOWN BY")
	ok = true
	began := time.Now()
	for _, f := range list {
		if ctx.Err() != nil {
			return false, context.Cause(ctx)
		}
		s := show(ctx, a, exe, dir, f)
		if err := canary.Check(); err != nil && s.problem == "" {
			s.problem = "the canary: " + err.Error()
		}
		verdict := strings.Join(s.proofs, ", ")
		if s.problem != "" {
			ok = false
			verdict = "NOT SHOWN: " + s.problem
		}
		fmt.Fprintf(table, "%s\t%s\t%s\t%d\t%d ms\t%s\n", f.Name, brief(f.Doc), s.outcome.Status,
			len(s.outcome.Cleanup.Ended)+s.outcome.Cleanup.EndedMore, s.took.Milliseconds(), verdict)
	}
	if err := table.Flush(); err != nil {
		return false, fmt.Errorf("selftest: print: %w", err)
	}
	fmt.Fprintf(w, "\n%d behaviours in %.1f s; the canary beside them got no signal: %v\n", len(list), time.Since(began).Seconds(), canary.Check() == nil)
	return ok, nil
}

// brief shortens a description to what fits into a table.
func brief(s string) string {
	const most = 50
	if r := []rune(s); len(r) > most {
		return string(r[:most-1]) + "…"
	}
	return s
}

// The patience of show: how long a fixture may take to come to life, and how
// long a process that is alive after the end would take to write to its heartbeat. They
// bound the waiting and decide nothing else.
const (
	aliveWithin = 20 * time.Second
	beatWithin  = 300 * time.Millisecond
)

// show runs one fixture and looks for what is left of it.
func show(ctx context.Context, a *adapter.Adapter, exe, base string, f fixtures.Fixture) (s shown) {
	s.fixture = f
	dir, err := os.MkdirTemp(base, f.Name+"-")
	if err != nil {
		s.problem = err.Error()
		return s
	}
	p, err := fixtures.NewProbe(dir)
	if err != nil {
		s.problem = err.Error()
		return s
	}
	defer p.Close()
	for _, step := range []func() error{
		func() error { return s.invoke(ctx, a, exe, p) },
		s.checkOutcome,
		func() error { return s.checkGone(p) },
	} {
		if err := step(); err != nil {
			s.problem = err.Error()
			return s
		}
	}
	return s
}

// invoke runs the fixture, and stops it once it has come to life if it does not end by itself.
func (s *shown) invoke(ctx context.Context, a *adapter.Adapter, exe string, p *fixtures.Probe) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stopped := make(chan time.Time, 1)
	if !s.fixture.EndsByItself {
		go func() {
			alive, done := context.WithTimeout(ctx, aliveWithin)
			defer done()
			_ = p.AwaitReady(alive) // if it never does, it is ended all the same
			stopped <- time.Now()
			cancel()
		}()
	}
	c := adapter.Command{Path: exe, Args: fixtures.Args(s.fixture.Name, p.Options())}
	c.Stop.Grace = 500 * time.Millisecond
	s.outcome, _ = a.Invoke(ctx, c)
	now := time.Now()
	select {
	case at := <-stopped:
		s.took = now.Sub(at)
		if bound := c.Bound(); s.took > bound {
			return fmt.Errorf("returned after %v, the bound is %v", s.took, bound)
		}
	default:
		s.took = s.outcome.Elapsed
	}
	return nil
}

// checkOutcome returns an error if the outcome is not what the fixture is to have.
func (s *shown) checkOutcome() error {
	f, o := s.fixture, s.outcome
	switch {
	case f.EndsByItself && (o.Exit == nil || o.Exit.Code != f.ExitCode || o.Exit.AfterStop):
		return fmt.Errorf("%v, want exit code %d", o.Err, f.ExitCode)
	case !f.EndsByItself && !f.KillsParent && o.Status != outcome.StatusUnknown:
		return fmt.Errorf("%s after a stop: %v", o.Status, o.Err)
	case o.Cleanup.HelperLost && !f.KillsParent:
		return fmt.Errorf("the supervisor was lost: %v", o.Err)
	case o.Cleanup.Result == outcome.CleanupSurvivors:
		return fmt.Errorf("alive: %v", o.Cleanup.Survivors)
	case o.Cleanup.Proof != outcome.ProofNone:
		s.proofs = append(s.proofs, string(o.Cleanup.Proof))
	case o.Cleanup.HelperLost:
		s.proofs = append(s.proofs, "supervisor killed, tree swept")
	}
	return nil
}

// checkGone returns an error if anything of the fixture is alive.
func (s *shown) checkGone(p *fixtures.Probe) error {
	if s.fixture.KeepsHeartbeat {
		if p.Beats() == 0 {
			return errors.New("it never had a heartbeat")
		}
		if p.Beating(beatWithin) {
			return errors.New("its heart still beats")
		}
		s.proofs = append(s.proofs, "heartbeat stopped")
	}
	if s.fixture.HoldsFIFO {
		if eof, err := p.FIFOEOF(aliveWithin); err != nil || !eof {
			return fmt.Errorf("its FIFO is still held (%v)", err)
		}
		s.proofs = append(s.proofs, "FIFO at EOF")
	}
	return nil
}
