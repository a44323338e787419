package adapter

import (
	"context"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"curfew/fixtures"
	"curfew/internal/supervisor"
	"curfew/outcome"
)

// trackedVariable is how often each fixture is brought to each end while trees are
// held by scans of the process table; not set: some fixtures, once.
const trackedVariable = "CURFEW_TRACKED"

// trackedTreesVariable is how many random trees are, or for how long (30m).
const trackedTreesVariable = "CURFEW_TRACKED_TREES"

// alwaysTracked are of each kind that needs something of its own to be found.
var alwaysTracked = []string{"exits", "ignores-term", "stops-itself", "kill9-parent", "setsid", "leaves", "double-fork", "subreaper", "respawns", "zombie-leader", "hostile-comm"}

// notCoverable are the fixtures of which something can get away from scans: who has
// wiped its environment and lost its parent before it was in a scan is suspected,
// and a comet is gone before it is read. See docs/limits.md.
var notCoverable = []string{"wipes-env", "comet", "storm"}

// TestTrackedPromise is TestPromise without a subreaper and without a guard, as on
// macOS: what descends from the leader is found by scans of the process table.
func TestTrackedPromise(t *testing.T) {
	if testing.Short() {
		t.Skip("what it tests is in other processes")
	}
	t.Setenv(supervisor.TrackerVariable, "1")
	times := 0
	if v := os.Getenv(trackedVariable); v != "" {
		var err error
		if times, err = strconv.Atoi(v); err != nil {
			t.Fatal(err)
		}
	}
	a := &Adapter{}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		if err := shutDown(ctx, a); err != nil {
			t.Error(err)
		}
	})
	p := &promise{a: a, plain: a, before: startCanary(t), seed: seed(t), tracked: true}
	for _, f := range fixtures.All() {
		if f.NeedsTaskLimit || times == 0 && !slices.Contains(alwaysTracked, f.Name) {
			continue
		}
		t.Run(f.Name, func(t *testing.T) {
			for i := range max(times, 1) {
				p.fixture(t, f, rand.New(rand.NewPCG(p.seed, uint64(i))))
			}
		})
		if n := p.away[f.Name]; n > 0 {
			t.Logf("%s: %d of %d ends left something alive, %d of them without a suspect", f.Name, n, p.ends[f.Name], p.unseen[f.Name])
		}
	}
	if err := p.before.Check(); err != nil {
		t.Error("the canary that was there before:", err)
	}
	t.Logf("the slowest stop was %s, %v", p.slowest, p.slow)
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
		if f.Name != killsSupervisor || c.Result != outcome.Unverified || c.Proof != outcome.NoProof {
			t.Errorf("cleanup is %+v", c)
		}
	case o.Status == outcome.NotStarted && c.Result == outcome.Empty:
	case c.Result == outcome.Empty && c.Proof == outcome.Scans && len(c.Suspects) == 0:
	case c.Result == outcome.Unverified && c.Proof == outcome.NoProof && len(c.Suspects) > 0:
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

// TestTrackedTrees is TestTrees while scans hold the trees.
func TestTrackedTrees(t *testing.T) {
	if testing.Short() {
		t.Skip("what it tests is in other processes")
	}
	t.Setenv(supervisor.TrackerVariable, "1")
	crew := newTreeCrew(t, treeWorkers)
	crew.tracked = true
	if text := os.Getenv(treeVariable); text != "" {
		crew.each(slices.Repeat([]string{text}, 20))
		return
	}
	most, span := sizeOf(t, trackedTreesVariable, 30)
	crew.random(most, span)
}
