//go:build linux || darwin

package adapter

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"

	"curfew/fixtures"
	"curfew/outcome"
)

func init() {
	roles["invokes"] = invokesRole
	roles["kills its caller"] = killsItsCallerRole
}

// patience is for what happens soon, but on a machine that has other work.
const patience = time.Minute

// promptly is a policy under which a stop is quick, and whose time for SIGKILL
// is not used up by other work of the machine.
var promptly = StopPolicy{Grace: 300 * time.Millisecond, Linger: 300 * time.Millisecond, KillWait: 10 * time.Second}

// TestPromise brings every fixture to every end: by itself, timeout,
// cancellation, and the death of the caller at a random moment. Each time all
// of it is gone on return, which a FIFO and a heartbeat show, the outcome says
// what happened, and nobody else was signalled.
//
// It is not parallel to other tests: it keeps the machine busy by itself.
func TestPromise(t *testing.T) {
	p := &promise{before: startCanary(t), seed: seed(t), tracked: emptyBy == outcome.ProofScans}
	if p.tracked {
		p.a = newTolerated(t)
		p.plain = p.a
	} else {
		p.a, p.plain = newAdapter(t), newAdapter(t, Options{NoCgroup: true})
	}
	var all []fixtures.Fixture
	for _, f := range fixtures.All() {
		if !f.NeedsTaskLimit && (!f.LinuxOnly || runtime.GOOS == "linux") && (!testing.Short() || slices.Contains(mechanisms, f.Name) || f.Name == "exits") {
			all = append(all, f)
		}
	}
	// Fewer at once than a machine with many processors could do, and more than
	// one with two would do by itself: most of the time is spent in waiting.
	next := make(chan int)
	var workers sync.WaitGroup
	for range 4 {
		workers.Go(func() {
			for i := range next {
				t.Run(all[i].Name, func(t *testing.T) { p.fixture(t, all[i], rand.New(rand.NewPCG(p.seed, uint64(i)))) })
			}
		})
	}
	for i := range all {
		next <- i
	}
	close(next)
	workers.Wait()
	if err := p.before.Check(); err != nil {
		t.Error("the canary that was there before:", err)
	}
	t.Logf("the slowest stop was %s, %v", p.slowest, p.slow)
}

// newTolerated makes an Adapter for where scans hold the trees: what may be of one is
// complained about in the end, and so is what was swept for.
func newTolerated(t *testing.T) *Adapter {
	t.Helper()
	a := &Adapter{}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		if err := shutDown(ctx, a); err != nil {
			t.Error(err)
		}
	})
	return a
}

// mechanisms are fixtures of each kind that needs something of its own to be
// ended.
var mechanisms = []string{"forks", "ignores-term", "stops-itself", "kill9-parent", "holds-pipe", "setsid", "double-fork", "wipes-env", "closes-fds", "subreaper", "respawns", "comet"}

// killsSupervisor is the fixture that kills the process which holds it.
const killsSupervisor = "kill9-parent"

// notCoverable are the fixtures of which something can get away from scans: who has
// wiped its environment and lost its parent before it was in a scan is suspected,
// and a comet is gone before it is read. See docs/limits.md.
var notCoverable = []string{"wipes-env", "comet"}

// seed is that of the random moments. It is logged; the variable repeats it.
func seed(t testing.TB) uint64 {
	t.Helper()
	const variable = "CURFEW_TEST_SEED"
	s := rand.Uint64()
	if v := os.Getenv(variable); v != "" {
		var err error
		if s, err = strconv.ParseUint(v, 10, 64); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("%s=%d", variable, s)
	return s
}

func startCanary(t *testing.T) *fixtures.Canary {
	t.Helper()
	c, err := fixtures.StartCanary(os.Args[0], t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Stop(); err != nil {
			t.Error(err)
		}
	})
	return c
}

func newProbe(t *testing.T) *fixtures.Probe {
	t.Helper()
	p, err := fixtures.NewProbe(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	})
	return p
}

// fixtureCommand runs f below p.
func fixtureCommand(f fixtures.Fixture, p *fixtures.Probe, stop StopPolicy) Command {
	return Command{Path: os.Args[0], Args: fixtures.Args(f.Name, p.Options(), f.Args...), Stop: stop}
}

// ended is what Invoke returned, and when.
type ended struct {
	o   outcome.Outcome
	err error
	at  time.Time
}

func invokeAsync(ctx context.Context, a *Adapter, c Command) <-chan ended {
	result := make(chan ended, 1)
	go func() {
		o, err := a.Invoke(ctx, c)
		result <- ended{o, err, time.Now()}
	}()
	return result
}

// promise is what the cells of TestPromise share.
type promise struct {
	a      *Adapter
	plain  *Adapter // has no cgroups
	before *fixtures.Canary
	seed   uint64

	tracked bool // scans hold the trees
	tracking

	mu      sync.Mutex
	slow    time.Duration
	slowest string
}

func (p *promise) fixture(t *testing.T, f fixtures.Fixture, random *rand.Rand) {
	switch {
	case f.EndsByItself:
		t.Run("by itself", func(t *testing.T) { p.byItself(t, f) })
	case f.Name == killsSupervisor:
		t.Run("supervisor lost", func(t *testing.T) { p.byItself(t, f) })
	}
	t.Run("timeout", func(t *testing.T) { p.timeout(t, f) })
	t.Run("canceled", func(t *testing.T) { p.canceled(t, f) })
	if p.tracked && (f.Name == killsSupervisor || slices.Contains(notCoverable, f.Name)) {
		return // who would sweep is killed too, or nobody is there to be told: see docs/limits.md
	}
	// Early is mostly before there is a tree, or while it is being built: then the
	// fixtures are much alike.
	early := time.Duration(random.Int64N(int64(400 * time.Millisecond)))
	if os.Getenv("CURFEW_LONG") != "" || slices.Contains(mechanisms, f.Name) {
		t.Run("caller killed early", func(t *testing.T) { killCaller(t, f, "started", early) })
	}
	late := time.Duration(random.Int64N(int64(50 * time.Millisecond)))
	t.Run("caller killed", func(t *testing.T) { killCaller(t, f, "ready", late) })
}

func (p *promise) byItself(t *testing.T, f fixtures.Fixture) {
	probe := newProbe(t)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	o, err := p.a.Invoke(ctx, fixtureCommand(f, probe, promptly))
	if lost := f.Name == killsSupervisor; o.Cleanup.HelperLost != lost {
		t.Errorf("helper lost: got %v, want %v", o.Cleanup.HelperLost, lost)
	}
	p.check(t, f, probe, ended{o: o, err: err}, "")
	if eof, err := probe.FIFOEOF(0); f.HoldsFIFO && (!eof || err != nil) {
		t.Errorf("EOF of fifo: got %v, %v: it was not what ran", eof, err)
	}
}

// timeout may come at any point of the building of the tree.
func (p *promise) timeout(t *testing.T, f fixtures.Fixture) {
	probe := newProbe(t)
	c := fixtureCommand(f, probe, promptly)
	c.Timeout = 700 * time.Millisecond
	began := time.Now()
	o, err := p.plain.Invoke(t.Context(), c)
	p.took(t, time.Since(began)-c.Timeout)
	p.check(t, f, probe, ended{o: o, err: err}, outcome.CauseTimeout)
}

// canceled comes when the whole tree stands.
func (p *promise) canceled(t *testing.T, f fixtures.Fixture) {
	probe := newProbe(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	result := invokeAsync(ctx, p.a, fixtureCommand(f, probe, promptly))
	awaitStanding(t, f, probe)
	beside := startCanary(t)
	began := time.Now()
	cancel()
	e := <-result
	p.took(t, e.at.Sub(began))
	p.check(t, f, probe, e, outcome.CauseCanceled)
	if eof, err := probe.FIFOEOF(0); f.HoldsFIFO && (!eof || err != nil) && !p.tracked {
		t.Errorf("EOF of fifo: got %v, %v: it was not what ran", eof, err)
	}
	for name, canary := range map[string]*fixtures.Canary{"before": p.before, "beside": beside} {
		if err := canary.Check(); err != nil {
			t.Errorf("the canary %s: %v", name, err)
		}
	}
}

// awaitStanding waits until the tree stands, and is the control for what is
// asked of the probe afterwards: the heartbeat beats, and the FIFO is held.
func awaitStanding(t *testing.T, f fixtures.Fixture, probe *fixtures.Probe) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if err := probe.AwaitReady(ctx); err != nil {
		t.Fatal(err)
	}
	if f.EndsByItself || f.Name == killsSupervisor {
		return // it may be over already
	}
	if f.KeepsHeartbeat && !probe.Beating(patience) {
		t.Error("no heartbeat while the tree stands")
	}
	if eof, err := probe.FIFOEOF(0); f.HoldsFIFO && (eof || err != nil) {
		t.Errorf("EOF of fifo while the tree stands: got %v, %v", eof, err)
	}
}

// took checks the time from the beginning of a stop to the return.
func (p *promise) took(t *testing.T, d time.Duration) {
	t.Helper()
	if bound := bound(promptly); d > bound {
		t.Errorf("returned %v after the stop, more than %v", d, bound)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if d > p.slow {
		p.slow, p.slowest = d, t.Name()
	}
}

// check checks the outcome, for a stop for that cause or, if it is empty, for
// none, and that nothing is left.
func (p *promise) check(t *testing.T, f fixtures.Fixture, probe *fixtures.Probe, e ended, stop outcome.Cause) {
	t.Helper()
	o := e.o
	if p.tracked {
		if err := consistent(f, e, stop); err != nil && !o.Cleanup.HelperLost {
			t.Error(err)
		}
		p.observed(t, f, probe, o)
		return
	}
	if o.Cleanup.HelperLost {
		// The guard has adopted the tree, ended it and seen its end.
		if f.Name != killsSupervisor || o.Status != outcome.StatusUnknown || o.Cause != outcome.CauseSupervisorLost && o.Cause != stop || o.Cleanup.Result != outcome.CleanupEmpty || o.Cleanup.Proof != outcome.ProofChildList {
			t.Errorf("got %s, %s, %+v, %v", o.Status, o.Cause, o.Cleanup, e.err)
		}
		isGone(t, f, probe, 0)
		return
	}
	if err := consistent(f, e, stop); err != nil {
		t.Error(err)
	}
	if o.Status == outcome.StatusNotStarted {
		neverRan(t, probe)
	}
	isEmpty(t, o)
	isGone(t, f, probe, 0)
}

// tracking is what a promise counts where scans hold the trees.
type tracking struct {
	counts             sync.Mutex
	ends, away, unseen map[string]int // by fixture: all, those that left something alive, and those without a suspect
}

// observed checks the end of a tree that scans held. Of some fixtures something may
// get away, which is counted.
func (p *promise) observed(t *testing.T, f fixtures.Fixture, probe *fixtures.Probe, o outcome.Outcome) {
	t.Helper()
	within := time.Duration(0)
	switch c := o.Cleanup; {
	case c.HelperLost:
		// A sweep for the mark proves nothing, and may take a moment.
		within = 5 * time.Second
		if f.Name != killsSupervisor || c.Result != outcome.CleanupUnverified || c.Proof != outcome.ProofNone {
			t.Errorf("cleanup is %+v", c)
		}
	case o.Status == outcome.StatusNotStarted && c.Result == outcome.CleanupEmpty:
	case c.Result == outcome.CleanupEmpty && c.Proof == outcome.ProofScans && len(c.Suspects) == 0:
	case c.Result == outcome.CleanupUnverified && c.Proof == outcome.ProofNone && len(c.Suspects) > 0:
		// Orphans of whatever else runs on this machine are suspects too.
	default:
		t.Errorf("cleanup is %+v", c)
	}
	err := gone(f, probe, within)
	p.counts.Lock()
	defer p.counts.Unlock()
	if p.ends == nil {
		p.ends, p.away, p.unseen = map[string]int{}, map[string]int{}, map[string]int{}
	}
	p.ends[f.Name]++
	if err == nil {
		return
	}
	if !slices.Contains(notCoverable, f.Name) {
		t.Errorf("%v; cleanup %+v", err, o.Cleanup)
		return
	}
	p.away[f.Name]++
	if len(o.Cleanup.Suspects) == 0 {
		p.unseen[f.Name]++
	}
}

// consistent checks the outcome of f, which a stop was asked for with that
// cause, if any. The supervisor was there to the end.
func consistent(f fixtures.Fixture, e ended, stop outcome.Cause) error {
	o := e.o
	bad := fmt.Errorf("after a stop for %q: got %s, %s, exit %+v, %v", stop, o.Status, o.Cause, o.Exit, e.err)
	switch {
	case o.Status == outcome.StatusNotStarted:
		if stop == "" || o.Cause != stop || o.Exit != nil || !errors.Is(e.err, outcome.ErrNotStarted) {
			return bad
		}
	case o.Cause == outcome.CauseExit:
		status := outcome.StatusSucceeded
		if f.ExitCode != 0 {
			status = outcome.StatusFailed
		}
		if !f.EndsByItself || o.Status != status || o.Exit == nil || *o.Exit != (outcome.Exit{Code: f.ExitCode}) || (e.err == nil) != (f.ExitCode == 0) {
			return bad
		}
	default:
		if stop == "" || o.Status != outcome.StatusUnknown || o.Cause != stop || o.Exit == nil || !o.Exit.AfterStop || !errors.Is(e.err, outcome.ErrUnknown) {
			return bad
		}
	}
	return nil
}

// neverRan checks that no process of the fixture has ever been.
func neverRan(t *testing.T, probe *fixtures.Probe) {
	t.Helper()
	if eof, err := probe.FIFOEOF(0); !errors.Is(err, fixtures.ErrNoWriter) || probe.Beats() > 0 {
		t.Errorf("not started, but EOF of fifo: %v, %v, and %d heartbeats", eof, err, probe.Beats())
	}
}

// quiet is how long a heartbeat that should have stopped is listened for.
const quiet = 100 * time.Millisecond

// isGone checks that no process of the fixture is left within that time.
func isGone(t *testing.T, f fixtures.Fixture, probe *fixtures.Probe, within time.Duration) {
	t.Helper()
	if err := gone(f, probe, within); err != nil {
		t.Error(err)
	}
}

func gone(f fixtures.Fixture, probe *fixtures.Probe, within time.Duration) error {
	if f.HoldsFIFO {
		if eof, err := probe.FIFOEOF(within); !eof && !errors.Is(err, fixtures.ErrNoWriter) {
			return fmt.Errorf("EOF of fifo: got %v, %v, want true: something is alive", eof, err)
		}
	}
	for end := time.Now().Add(within); probe.Beating(quiet); {
		if time.Now().After(end) {
			return errors.New("the heartbeat goes on")
		}
	}
	return nil
}

// killCaller has a caller killed, that long after it was started or the tree was
// ready.
func killCaller(t *testing.T, f fixtures.Fixture, since string, after time.Duration) {
	inRole(t, 3*time.Minute, "kills its caller", f.Name, since, after.String(), t.TempDir())
}

// killsItsCallerRole starts a caller, kills it and waits for all that remains.
// On Linux it adopts what the caller and the supervisor leave, so that it knows from
// the kernel when nothing is left, supervisors included.
func killsItsCallerRole(args []string) error {
	f, _ := fixtures.Find(args[0])
	after, err := time.ParseDuration(args[2])
	if err != nil {
		return err
	}
	if err := beNearest(); err != nil {
		return err
	}
	probe, err := fixtures.NewProbe(args[3])
	if err != nil {
		return err
	}
	defer probe.Close()
	caller := exec.Command(os.Args[0], fixtures.Args(f.Name, probe.Options(), f.Args...)...)
	// Not the first argument: that would make it the fixture itself.
	caller.Args = append([]string{caller.Args[0], "--"}, caller.Args[1:]...)
	caller.Env = append(os.Environ(), roleVar+"=invokes")
	if err := caller.Start(); err != nil {
		return err
	}
	if args[1] == "ready" {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		if err := probe.AwaitReady(ctx); err != nil {
			return err
		}
	}
	time.Sleep(after)
	if err := caller.Process.Kill(); err != nil {
		return err
	}
	began := time.Now()
	const slack = 10 * time.Second // for the start of what was being started, under load
	if err := awaitNobody(began.Add(bound(promptly) + slack)); err != nil {
		return fmt.Errorf("%v after the caller was killed: %w", time.Since(began), err)
	}
	stood := "the tree stood"
	if _, err := os.Stat(probe.Options().Ready); err != nil {
		stood = "the tree did not stand"
	}
	fmt.Printf("killed %v after it was %s, when %s: all gone %v later\n", after, args[1], stood, time.Since(began))
	return gone(f, probe, goneAfterAll)
}

// invokesRole is a caller that runs this program as args say.
func invokesRole(args []string) error {
	o, err := Invoke(context.Background(), Command{Path: os.Args[0], Args: args[1:], Stop: promptly})
	time.Sleep(patience) // to be killed
	return fmt.Errorf("not killed: %+v, %w", o, err)
}

// TestWithoutCurfew is the control of TestPromise: when fixtures are started
// without curfew and their leader is killed, the same probe says that
// something is alive. TestEndsByItself in fixtures shows that for all of them.
func TestWithoutCurfew(t *testing.T) {
	t.Parallel()
	var all sync.WaitGroup
	for _, name := range mechanisms {
		if f, _ := fixtures.Find(name); f.Descendants {
			all.Go(func() { t.Run(name, func(t *testing.T) { leak(t, f, 3*time.Second) }) })
		}
	}
	all.Wait()
}

// leak runs f for so long, or longer if the machine is too slow to have the
// tree stand after half of that time.
func leak(t *testing.T, f fixtures.Fixture, lifetime time.Duration) {
	probe := newProbe(t)
	o := probe.Options()
	o.For = lifetime
	cmd := exec.Command(os.Args[0], fixtures.Args(f.Name, o, f.Args...)...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), lifetime/2)
	defer cancel()
	err := probe.AwaitReady(ctx)
	_ = cmd.Process.Kill() // it may have exited
	_ = cmd.Wait()
	if err == nil {
		if err := gone(f, probe, 0); err == nil {
			t.Error("the probe says that nothing is alive")
		} else {
			t.Log(err)
		}
	}
	isGone(t, f, probe, patience) // they end by themselves
	switch {
	case err != nil && lifetime < 20*time.Second:
		leak(t, f, 2*lifetime)
	case err != nil:
		t.Error(err)
	}
}
