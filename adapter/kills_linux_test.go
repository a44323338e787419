package adapter

import (
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"testing"
	"time"

	"curfew/fixtures"
)

// killsVariable has how often each fixture meets each loss in TestKills.
const killsVariable = "CURFEW_KILLS"

// TestKills has every fixture run, and the supervisor, the guard, both, the
// caller, or caller and supervisor, be killed at a random moment. The checks are
// those of TestTrees. By default half of the fixtures meet one of them each.
//
// It is not parallel to other tests: it keeps the machine busy by itself.
func TestKills(t *testing.T) {
	if testing.Short() {
		t.Skip("what it tests is in other processes")
	}
	losses := []ending{supervisorKilled, guardKilled, bothKilled, callerKilled, callerAndHelper}
	each := 0
	if v := os.Getenv(killsVariable); v != "" {
		var err error
		if each, err = strconv.Atoi(v); err != nil {
			t.Fatal(err)
		}
	}
	random := rand.New(rand.NewPCG(seed(t), 0))
	var cases []treeCase
	for _, f := range fixtures.All() {
		if f.NeedsTaskLimit || f.Name == killsSupervisor {
			continue // that one has its supervisor lost in TestPromise
		}
		for range max(each, 1) {
			for _, loss := range losses {
				if loss == bothKilled && slices.Contains(outOfReach, f.Name) {
					continue
				}
				c := treeCase{ending: loss, grace: 20 * time.Millisecond, fixture: f, ready: random.IntN(2) == 0}
				c.after = time.Duration(1+random.IntN(80)) * time.Millisecond
				if c.ready {
					c.after /= 8
				}
				cases = append(cases, c)
			}
		}
	}
	random.Shuffle(len(cases), func(i, j int) { cases[i], cases[j] = cases[j], cases[i] })
	if each == 0 {
		met := map[string]bool{}
		cases = slices.DeleteFunc(cases, func(c treeCase) bool {
			defer func() { met[c.fixture.Name] = true }()
			return met[c.fixture.Name]
		})
		cases = cases[:len(cases)/2]
	}
	crew, began := newTreeCrew(t, treeWorkers), time.Now()
	crew.run(func(i int) (treeCase, bool) {
		if i >= len(cases) {
			return treeCase{}, false
		}
		if i%1000 == 999 {
			t.Logf("%d of %d after %v", i+1, len(cases), time.Since(began).Round(time.Second))
		}
		return cases[i], true
	})
	t.Logf("in %v:\n%s", time.Since(began).Round(time.Millisecond), &crew.counts)
}

// outOfReach are the fixtures of which something can live on when guard and
// supervisor are lost at once (docs/limits.md): it has wiped its environment, or is
// never there when it is looked for.
var outOfReach = []string{"wipes-env", "comet"}
