package proctree

import (
	"testing"
	"time"
)

// bombTree is a model of a bomb at its task limit: each of its processes that has not
// been struck takes a place as soon as there is one, below itself. A look below misses
// some, who are just falling to us.
type bombTree struct {
	below int // processes that were not struck, all below our own children
	dead  int
	reaps int
	early int // reaps while somebody was there who had not been struck
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

// A crowd is struck, all of it, before anybody in it is reaped.
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
