package adapter

import (
	"context"
	"errors"
	"fmt"
	"os"
	"testing"
	"time"

	"curfew/fixtures"
	"curfew/fixtures/bombs"
	"curfew/outcome"
)

func init() { roles["storm"] = stormRole }

// stormsVariable has the storms of their full size, and each within a second or
// two of its grace. That is for a machine that does nothing else.
const stormsVariable = "CURFEW_STORMS"

// Many processes, and some that are never the same for long, are proven to be gone
// within the bound, with and without a cgroup.
func TestStorms(t *testing.T) {
	if testing.Short() {
		t.Skip("what it tests is in other processes")
	}
	full := os.Getenv(stormsVariable) != ""
	for i, s := range []struct {
		fixture, few, many string
		limit              int // of tasks, 0: none
		within             time.Duration
	}{
		{"comet", "8", "32", 0, time.Second},
		{"comet", "32", "100", 0, time.Second},
		{"comet", "100", "300", 0, 2 * time.Second},
		{"storm", "8", "11", 0, time.Second}, // 4095 processes
		{"chain", "100", "300", 0, time.Second},
		{"wide", "300", "2000", 0, 2 * time.Second}, // a bare loop that kills and reaps them takes 1.5 s: bench, BenchmarkCancel
		{"daemons", "50", "200", 0, time.Second},
		{"comet", "", "100", 2000, 2 * time.Second},
		{"storm", "", "11", 2000, 2 * time.Second},
		{"wide", "", "1900", 2000, 2 * time.Second},
		{"bomb", "", "", 2000, 2 * time.Second},
		{"swarm", "", "", 2000, 2 * time.Second},
		{"swarm", "", "", 8000, time.Second},
	} {
		size, within := s.few, time.Duration(0)
		if full {
			size, within = s.many, s.within
		} else if s.limit != 0 {
			continue // TestBomb has one
		}
		modes := []string{"", withoutCgroup}
		if !full { // one or the other
			modes = modes[i%2 : i%2+1]
		}
		for _, mode := range modes {
			name := s.fixture + " " + size
			if s.limit != 0 {
				name += fmt.Sprintf(" at %d tasks", s.limit)
			}
			if mode != "" {
				name += " " + mode
			}
			t.Run(name, func(t *testing.T) {
				args := []string{t.TempDir(), mode, s.fixture, size, within.String()}
				if s.limit == 0 {
					inRole(t, 3*time.Minute, "storm", args...)
					return
				}
				if os.Geteuid() != 0 {
					t.Skip("root is needed to make a cgroup with a task limit")
				}
				limit, err := bombs.NewTaskLimit(s.limit)
				if err != nil {
					t.Skip(err)
				}
				if s.limit == 8000 && mode != "" {
					args[4] = "0s" // not without a cgroup: see docs/limits.md
				}
				cmd := limit.Command(os.Args[0], args...)
				cmd.Env = append(os.Environ(), roleVar+"=storm")
				out, err := cmd.CombinedOutput()
				if err != nil {
					t.Errorf("%v\n%s", err, out)
				}
				t.Logf("%s", out)
				for end := time.Now().Add(time.Minute); ; time.Sleep(time.Second) {
					if err := limit.Close(); err == nil {
						break
					} else if time.Now().After(end) {
						t.Error("it is not empty:", err)
						break
					}
				}
			})
		}
	}
}

// stormRole stops a storm when it is ready, a while later where it builds up
// first.
func stormRole(args []string) error {
	haveThreads(16) // see bombedRole
	within, err := time.ParseDuration(args[4])
	if err != nil {
		return err
	}
	probe, err := fixtures.NewProbe(args[0])
	if err != nil {
		return err
	}
	defer probe.Close()
	f, _ := fixtures.Find(args[2])
	if args[3] != "" {
		f.Args = []string{args[3]}
	}
	a, err := New(Options{NoCgroup: args[1] == withoutCgroup})
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	c := fixtureCommand(f, probe, promptly)
	result := invokeAsync(ctx, a, c)
	ready, done := context.WithTimeout(ctx, time.Minute)
	defer done()
	if err := probe.AwaitReady(ready); err != nil {
		cancel()
		return fmt.Errorf("%w; %+v", err, <-result)
	}
	if f.NeedsTaskLimit {
		time.Sleep(2 * time.Second)
	}
	began := time.Now()
	cancel()
	e := <-result
	took := e.at.Sub(began)
	o := e.o
	fmt.Printf("%d processes signalled, gone after %v, %s\n", len(o.Cleanup.Ended)+o.Cleanup.EndedMore, took, o.Cleanup.Proof)
	switch {
	case took > bound(c.Stop):
		return fmt.Errorf("returned after %v, more than %v", took, bound(c.Stop))
	case within != 0 && took > c.Stop.Grace+within:
		return fmt.Errorf("returned after %v, more than %v after the grace", took, within)
	case o.Cleanup.HelperLost:
		return fmt.Errorf("the supervisor was lost: %+v", o.Cleanup)
	case o.Cleanup.Result == outcome.CleanupSurvivors && args[2] == "swarm" && args[1] == withoutCgroup:
		// Said honestly, and ended in the background.
		fmt.Printf("%d survivors\n", len(o.Cleanup.Survivors))
		return gone(f, probe, time.Minute)
	case o.Cleanup.Result != outcome.CleanupEmpty || o.Cleanup.Proof != outcome.ProofNoChildren:
		return fmt.Errorf("not proven empty: %+v", o.Cleanup)
	}
	return errors.Join(consistent(f, e, outcome.CauseCanceled), gone(f, probe, 0))
}
