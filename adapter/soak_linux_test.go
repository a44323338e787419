package adapter

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"curfew/fixtures"
	"curfew/outcome"
)

// soakVariable is for how long TestSoak runs: `make soak` sets it.
const soakVariable = "CURFEW_SOAK"

// soakAtOnce is the most that runs at once, and soakDens how many of those have
// callers of their own to kill.
const (
	soakAtOnce = 10
	soakDens   = 3
)

// TestSoak is one caller that runs one thing after the other, and up to ten at
// once: quick commands, fixtures, floods, random trees with all their endings, and
// callers of their own that are killed. In the end it says what was seen. Nothing
// may grow: what is held is measured when a tenth, half and all of the time is
// over and every Adapter was shut down.
//
// It is not parallel to other tests: it counts what the process holds.
func TestSoak(t *testing.T) {
	span := size(time.Second, time.Second, 10*time.Second)
	if v := os.Getenv(soakVariable); v != "" {
		var err error
		if span, err = time.ParseDuration(v); err != nil {
			t.Fatal(err)
		}
	}
	s := &soak{crew: newTreeCrew(t, soakAtOnce), random: rand.New(rand.NewPCG(seed(t), 0)), counts: map[string]int{}}
	for _, w := range s.crew.workers[:soakDens] {
		var err error
		if w.den, err = startDen(); err != nil {
			t.Fatal(err)
		}
	}
	began := time.Now()
	var held [3]held
	for i, until := range []time.Duration{span / 10, span / 2, span} {
		s.shared = &Adapter{}
		for time.Since(began) < until && len(s.failures) == 0 {
			s.round()
		}
		var err error
		if held[i], err = s.measure(); err != nil {
			t.Fatal(err)
		}
	}
	for _, failure := range s.failures {
		t.Error(failure)
	}
	t.Logf("after %v:\n%s%s", time.Since(began).Round(time.Millisecond), s, table(held))
	for _, later := range held[1:] {
		if what := held[0].grown(later); what != "" {
			t.Error("it grew: " + what)
		}
	}
	canary := "alive, no signal"
	if err := s.crew.canary.Check(); err != nil {
		canary = err.Error()
		t.Error(err)
	}
	t.Logf("the canary: %s", canary)
}

// soak is what is counted.
type soak struct {
	crew   *treeCrew
	shared *Adapter
	random *rand.Rand // of the round alone
	base   *usage     // with nothing running, when a tenth was over

	mu                            sync.Mutex
	counts                        map[string]int // by what is counted, in words
	invocations, ended, survivors int
	unverified, callers           int
	stops                         int
	total, slowest, slowestBound  time.Duration
	slow                          string
	nearest                       float64 // the greatest part of its bound that a stop took
	failures                      []string
}

// round runs some workers at once, each with some things in a row.
func (s *soak) round() {
	var wg sync.WaitGroup
	for _, w := range s.crew.workers[:1+s.random.IntN(soakAtOnce)] {
		random := rand.New(rand.NewPCG(s.random.Uint64(), 0))
		w.shared = s.shared
		wg.Go(func() {
			for range 1 + random.IntN(4) {
				s.one(w, random)
			}
		})
	}
	wg.Wait()
}

// one runs one thing.
func (s *soak) one(w *treeWorker, random *rand.Rand) {
	switch random.IntN(5) {
	case 0:
		for range 5 {
			o, err := s.shared.Invoke(context.Background(), Command{Path: "true"})
			if o.Status != outcome.StatusSucceeded || o.Cleanup.Proof != outcome.ProofNoChildren {
				err = fmt.Errorf("true: %s, %s, %+v, %w", o.Status, o.Cause, o.Cleanup, err)
			}
			s.add("true", treeResult{o: o}, 0, err)
		}
	case 1, 2:
		s.fixture(w, random)
	default:
		c := treeCases.Example(random.Int())
		for c.killsCaller() && w.den == nil {
			c = treeCases.Example(random.Int())
		}
		r, err := w.run(c)
		if err != nil {
			err = fmt.Errorf("%w\n%s='%s'", err, treeVariable, c)
		}
		if c.killsCaller() {
			s.callerKilled(c, r, err)
			return
		}
		bound := bound(c.policy())
		if c.ending == byItself || r.o.Cause == outcome.CauseExit {
			bound = 0
		}
		s.add(c.String(), r, bound, err)
	}
}

// soakFixtures are those that need no limit around them.
var soakFixtures = slices.DeleteFunc(fixtures.All(), func(f fixtures.Fixture) bool { return f.NeedsTaskLimit })

func (s *soak) fixture(w *treeWorker, random *rand.Rand) {
	f := soakFixtures[random.IntN(len(soakFixtures))]
	dir, err := os.MkdirTemp(w.dir, "fixture")
	if err != nil {
		s.add(f.Name, treeResult{}, 0, err)
		return
	}
	defer os.RemoveAll(dir)
	probe, err := fixtures.NewProbe(dir)
	if err != nil {
		s.add(f.Name, treeResult{}, 0, err)
		return
	}
	defer probe.Close()
	c := fixtureCommand(f, probe, StopPolicy{Grace: 60 * time.Millisecond, Linger: treeLinger, KillWait: promptly.KillWait})
	c.KeepOutput = 64 << 10
	a := s.shared
	if f.Name == killsSupervisor {
		a = w.a
	}
	after := moments[random.IntN(len(moments))] * 2
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	cause := outcome.CauseCanceled
	switch {
	case strings.HasPrefix(f.Name, "floods") && random.IntN(2) == 0:
		c.OutputLimit, cause = 1<<20, outcome.CauseOutputLimit
		after = 0
	case random.IntN(2) == 0:
		c.Timeout, cause = after+1, outcome.CauseTimeout
	default:
		time.AfterFunc(after, cancel)
	}
	began := time.Now()
	o, err := a.Invoke(ctx, c)
	r := treeResult{o: o, took: time.Since(began) - after}
	bound := bound(c.Stop)
	if o.Cause == outcome.CauseExit || cause == outcome.CauseOutputLimit {
		bound = 0 // when it began is not known
	}
	lost := f.Name == killsSupervisor && o.Cleanup.HelperLost
	switch {
	case lost && (o.Status != outcome.StatusUnknown || o.Cause != outcome.CauseSupervisorLost && o.Cause != cause || o.Cleanup.Proof != outcome.ProofChildList),
		!lost && (o.Cleanup.Result != outcome.CleanupEmpty || o.Cleanup.Proof != outcome.ProofNoChildren):
		err = fmt.Errorf("%s, %s, %+v: %w", o.Status, o.Cause, o.Cleanup, err)
	case lost:
		bound, err = 0, nil
	default:
		err = consistent(f, ended{o: o, err: err}, cause)
	}
	if err = errors.Join(err, gone(f, probe, 0)); err != nil {
		err = fmt.Errorf("%s, ended for %s after %v: %w", f.Name, cause, after, err)
	}
	s.add(f.Name, r, bound, err)
}

// add counts an invocation. bound is 0 where how long its stop took is not known.
func (s *soak) add(name string, r treeResult, bound time.Duration, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err != nil {
		s.failures = append(s.failures, err.Error())
	}
	o := r.o
	s.invocations++
	s.counts[fmt.Sprintf("outcome %s, %s", o.Status, o.Cause)]++
	s.counts[fmt.Sprintf("cleanup %s by %s", o.Cleanup.Result, o.Cleanup.Proof)]++
	s.ended += len(o.Cleanup.Ended) + o.Cleanup.EndedMore
	s.survivors += len(o.Cleanup.Survivors)
	if o.Cleanup.Result == outcome.CleanupUnverified {
		s.unverified++
	}
	if o.Status == outcome.StatusUnknown {
		s.counts[fmt.Sprintf("stop for %s", o.Cause)]++
	}
	if bound == 0 || r.miss {
		return
	}
	if r.took > bound {
		s.failures = append(s.failures, fmt.Sprintf("%s: returned %v after the stop, more than %v", name, r.took, bound))
	}
	s.timed(name, r.took, bound)
}

// timed notes how long a stop took. s.mu is held.
func (s *soak) timed(name string, took, bound time.Duration) {
	s.stops++
	s.total += max(took, 0)
	if part := float64(took) / float64(bound); part > s.nearest {
		s.nearest, s.slowest, s.slowestBound, s.slow = part, took, bound, name
	}
}

// callerKilled counts a caller of its own.
func (s *soak) callerKilled(c treeCase, r treeResult, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err != nil {
		s.failures = append(s.failures, err.Error())
		return
	}
	s.callers++
	s.timed(c.String(), r.took, bound(c.policy()))
}

func (s *soak) String() string {
	var b strings.Builder
	line := func(what string, value any) { fmt.Fprintf(&b, "%-44s %10v\n", what, value) }
	line("invocations", s.invocations)
	for _, what := range slices.Sorted(maps.Keys(s.counts)) {
		line("  "+what, s.counts[what])
	}
	line("callers killed", s.callers)
	line("processes ended, as far as reported", s.ended)
	line("survivors", s.survivors)
	line("cleanups unverified (both helpers killed)", s.unverified)
	line("stops timed", s.stops)
	if s.stops > 0 {
		line("  on average", (s.total / time.Duration(s.stops)).Round(10*time.Microsecond))
		line("  the slowest against its bound", s.slowest.Round(10*time.Microsecond))
		line("    its bound", s.slowestBound)
		fmt.Fprintf(&b, "    it was %s\n", s.slow)
	}
	return b.String()
}

// held is what the caller holds when it runs nothing and has no helpers, and the
// most memory that one of its helpers had before.
type held struct {
	files, goroutines, threads, zombies int
	callerKB                            int // resident
	guardKB, supervisorKB               int // private
	helpers                             int
}

// measure looks at the helpers, shuts every Adapter down and looks at the rest.
func (s *soak) measure() (h held, err error) {
	if _, err := s.shared.Invoke(context.Background(), Command{Path: "true"}); err != nil { // so that there are some
		return h, err
	}
	for _, guard := range childrenOf(os.Getpid()) {
		if name(guard) != "curfew-guard" {
			continue
		}
		h.helpers++
		h.guardKB = max(h.guardKB, privateKB(guard))
		for _, pid := range childrenOf(guard) {
			h.helpers++
			h.supervisorKB = max(h.supervisorKB, privateKB(pid))
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	err = shutDown(ctx, s.shared)
	for _, w := range s.crew.workers {
		err = errors.Join(err, shutDown(ctx, w.a))
		w.a = &Adapter{}
	}
	if err != nil {
		return h, err
	}
	// A goroutine that has done its work may not have come to its end.
	for end := time.Now().Add(5 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		debug.FreeOSMemory()
		u, err := measure()
		if err != nil {
			return h, err
		}
		if s.base == nil {
			s.base = &u
		}
		h.files, h.goroutines, h.threads, h.zombies = u.files, u.goroutines, u.threads, u.zombies
		if u.zombies == 0 && u.files <= s.base.files && u.goroutines <= s.base.goroutines || time.Now().After(end) {
			break
		}
	}
	h.callerKB = statusKB(os.Getpid(), "status", "VmRSS:")
	return h, nil
}

func name(pid int) string {
	b, _ := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "cmdline"))
	first, _, _ := bytes.Cut(b, []byte{0})
	return string(first)
}

func privateKB(pid int) int { return statusKB(pid, "smaps_rollup", "Private_Clean:", "Private_Dirty:") }

// statusKB adds up lines of a file of /proc that give kB.
func statusKB(pid int, file string, fields ...string) (kb int) {
	b, _ := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), file))
	for line := range strings.Lines(string(b)) {
		if f := strings.Fields(line); len(f) == 3 && slices.Contains(fields, f[0]) {
			n, _ := strconv.Atoi(f[1])
			kb += n
		}
	}
	return kb
}

// Growth that is no leak: the runtime's threads, the heap and what its owner
// keeps between two collections.
const (
	moreThreads  = 12
	moreCallerKB = 24 << 10
	moreHelperKB = 3 << 10
)

// grown says what has grown beyond that.
func (h held) grown(later held) string {
	var what []string
	for _, row := range h.rows(later) {
		if row.now > row.was+row.allowed {
			what = append(what, fmt.Sprintf("%s from %d to %d", row.name, row.was, row.now))
		}
	}
	return strings.Join(what, ", ")
}

type heldRow struct {
	name              string
	was, now, allowed int
}

func (h held) rows(later held) []heldRow {
	rows := []heldRow{
		{"descriptors", h.files, later.files, 0},
		{"goroutines", h.goroutines, later.goroutines, 0},
		{"threads", h.threads, later.threads, moreThreads},
		{"zombies", 0, later.zombies, 0},
		{"RSS of the caller, KB", h.callerKB, later.callerKB, moreCallerKB},
	}
	if h.helpers > 0 && later.helpers > 0 {
		rows = append(rows,
			heldRow{"private memory of a guard, KB", h.guardKB, later.guardKB, moreHelperKB},
			heldRow{"private memory of a supervisor, KB", h.supervisorKB, later.supervisorKB, moreHelperKB})
	}
	return rows
}

func table(all [3]held) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%-38s %8s %8s %8s %8s\n", "held with nothing running", "start", "middle", "end", "allowed")
	middle, end := all[0].rows(all[1]), all[0].rows(all[2])
	for i := range min(len(middle), len(end)) {
		fmt.Fprintf(&b, "%-38s %8d %8d %8d %+8d\n", end[i].name, end[i].was, middle[i].now, end[i].now, end[i].allowed)
	}
	fmt.Fprintf(&b, "%-38s %8d %8d %8d\n", "helpers that were looked at", all[0].helpers, all[1].helpers, all[2].helpers)
	return b.String()
}
