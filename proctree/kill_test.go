package proctree

import (
	"testing"
	"time"

	"curfew/outcome"
)

// bombTree is a model of a bomb at its task limit: each of its processes that has not
// been struck takes a place as soon as there is one, below itself. A look below misses
// some, which are just falling to us.
type bombTree struct {
	below int // processes that were not struck, all below our own children
	dead  int
	reaps int
	early int // reaps while one was there that had not been struck
}

func (b *bombTree) Strike(below bool) Struck {
	if !below {
		return Struck{}
	}
	n := b.below - b.below/10
	b.below -= n
	b.dead += n
	return Struck{Fresh: n}
}

func (b *bombTree) Reap() Event {
	n := b.dead
	b.dead = 0
	b.reaps++
	if b.below > 0 {
		b.early++
		b.below += n // all the room that there is
	}
	return Event{Died: n, Empty: b.below == 0}
}

// A crowd is struck, all of it, before any process in it is reaped.
func TestCrowdIsStruckFirst(t *testing.T) {
	b := &bombTree{below: 1900}
	var k KillPhase
	now, over := time.Now(), false
	for range 50 {
		if over = k.Step(b, now, Quickly).Empty; over {
			break
		}
		now = now.Add(time.Second) // that much later it is struck again
		k.looked = time.Time{}
	}
	if !over || b.early > crowded {
		t.Errorf("over %v after %d reaps, %d of them early, want at most %d", over, b.reaps, b.early, crowded)
	}
}

// scriptedTree returns what a test wants.
type scriptedTree struct {
	strikes []Struck
	reaps   []Event
	calls   string
}

func (s *scriptedTree) Strike(below bool) (struck Struck) {
	if s.calls += "s"; below {
		s.calls += "b"
	}
	if len(s.strikes) > 0 {
		struck, s.strikes = s.strikes[0], s.strikes[1:]
	}
	return struck
}

func (s *scriptedTree) Reap() (ev Event) {
	s.calls += "r"
	if len(s.reaps) > 0 {
		ev, s.reaps = s.reaps[0], s.reaps[1:]
	}
	return ev
}

func TestKillPhaseSteps(t *testing.T) {
	exit := &outcome.Exit{Code: 7}
	for _, tt := range []struct {
		name   string
		tree   scriptedTree
		asked  bool // interrupted
		calls  string
		exit   *outcome.Exit
		within time.Duration // when the next step is due
	}{
		{name: "nothing is left", calls: "sr", within: killStall},
		{name: "a strike that is not complete is repeated", tree: scriptedTree{strikes: []Struck{{More: true}, {Fresh: 1}}}, calls: "sssr", within: killStall},
		{name: "reaping makes room", tree: scriptedTree{reaps: []Event{{Died: 3}}}, calls: "srsr", within: killStall},
		{name: "an exit is reported at once", tree: scriptedTree{reaps: []Event{{Died: 3, Exit: exit}}}, calls: "sr", exit: exit},
		{name: "no death is reported by the descriptor", tree: scriptedTree{reaps: []Event{{Silent: true}}}, calls: "sr", within: killSilent},
		{name: "the caller has something else to do", tree: scriptedTree{strikes: []Struck{{Fresh: 1}, {Fresh: 1}}}, asked: true, calls: "s"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			k := KillPhase{Interrupted: func() bool { return tt.asked }}
			began := time.Now()
			ev := k.Step(&tt.tree, began, Quickly)
			latest := time.Now().Add(tt.within)
			if tt.tree.calls != tt.calls || ev.Exit != tt.exit {
				t.Errorf("calls %s, exit %v; want %s, %v", tt.tree.calls, ev.Exit, tt.calls, tt.exit)
			}
			if next := k.Next(); next.Before(began.Add(tt.within)) || next.After(latest) {
				t.Errorf("the next step is due after %v, want %v", next.Sub(began), tt.within)
			}
		})
	}
}

// What does not die is struck less and less often, below our own children too.
func TestKillPhaseSlowsDown(t *testing.T) {
	var k KillPhase
	var s scriptedTree
	now := time.Now()
	for _, pace := range []Pace{Quickly, Slowly} {
		for range 20 {
			k.Step(&s, now, pace)
			now = k.Next()
		}
		if k.backoff != time.Duration(pace) {
			t.Errorf("the pause is %v, want %v", k.backoff, time.Duration(pace))
		}
	}
	if s.calls[:7] != "srsbrsb" {
		t.Errorf("calls %s", s.calls)
	}
}
