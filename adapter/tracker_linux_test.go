package adapter

import (
	"errors"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
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

// trackerVariable makes scans of the process table hold the trees in the callers that a test
// starts.
const trackerVariable = "ADAPTER_TEST_TRACKER"

func init() {
	if os.Getenv(trackerVariable) != "" {
		supervisor.TrackTrees(true)
		emptyBy = outcome.ProofScans
	}
}

// trackTrees makes scans hold the trees until the end of the test, here and in the callers
// that it starts.
func trackTrees(t *testing.T) {
	t.Setenv(trackerVariable, "1")
	supervisor.TrackTrees(true)
	t.Cleanup(func() { supervisor.TrackTrees(false) })
}

// TestTrackedPromise is TestPromise without a subreaper and without a guard, as on
// macOS: what descends from the leader is found by scans of the process table.
func TestTrackedPromise(t *testing.T) {
	if testing.Short() {
		t.Skip("what it tests is in other processes")
	}
	trackTrees(t)
	times := 0
	if v := os.Getenv(trackedVariable); v != "" {
		var err error
		if times, err = strconv.Atoi(v); err != nil {
			t.Fatal(err)
		}
	}
	p := &promise{a: newTolerated(t), before: startCanary(t), seed: seed(t), tracked: true}
	p.plain = p.a
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

// TestTrackedTrees is TestTrees while scans hold the trees.
func TestTrackedTrees(t *testing.T) {
	if testing.Short() {
		t.Skip("what it tests is in other processes")
	}
	trackTrees(t)
	crew := newTreeCrew(t, treeWorkers)
	crew.tracked = true
	if text := os.Getenv(treeVariable); text != "" {
		crew.each(slices.Repeat([]string{text}, 20))
		return
	}
	most, span := sizeOf(t, trackedTreesVariable, 30)
	crew.random(most, span)
}

// Who was alive when scans gave up on it, and has gone since, is known to have: the
// supervisor ends with that knowledge. Suspects keep it from knowing; so there are some
// tries, for what else runs here.
func TestTrackedSurvivor(t *testing.T) {
	if testing.Short() {
		t.Skip("what it tests is in other processes")
	}
	trackTrees(t)
	f := newFreezer(t)
	for tries := 1; ; tries++ {
		a := &Adapter{}
		stuck := newHeldPipe(t)
		c := heldBy(stuck, `echo $$ >"$FREEZER"/cgroup.procs; echo up; exec sleep `+tooLong)
		c.Env = append(os.Environ(), "FREEZER="+f.dir)
		c.Stop = StopPolicy{StdinGrace: -1, Grace: -1, KillWait: 100 * time.Millisecond}
		s := startHeld(t, a, c)
		f.freeze()
		var failed *outcome.CleanupError
		if err := s.Stop(t.Context()); !errors.As(err, &failed) || len(failed.Cleanup.Survivors) != 1 {
			t.Errorf("Stop: %v", err)
		}
		f.thaw()
		stuck.isFree(patience)
		err := a.Shutdown(t.Context())
		if err == nil {
			return
		}
		if tries == 3 {
			t.Fatalf("Shutdown: %v", err)
		}
	}
}
