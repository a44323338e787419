//go:build linux || darwin

package supervisor

import (
	"time"

	"curfew/proctree"
)

// Back-off of the kill phase. When nothing has died for killStall, the strike
// goes below our own children too: a process with much memory takes some 100 ms
// per GB to die, and only then do its children fall to us. From there on it
// strikes less and less often, and a survivor at last every killSlow.
const (
	killStall = 5 * time.Millisecond
	killMax   = 100 * time.Millisecond
	killSlow  = 5 * time.Second
	// killUnheard is the pause while nothing reports a death.
	killUnheard = 2 * time.Millisecond
)

// killer ends what is left of a tree, pass by pass. The zero value is ready.
type killer struct {
	wait time.Duration // back-off between two strikes that found nothing
	next time.Time     // when to strike again if nothing is heard before

	reaped  bool      // since somebody new was found
	refills int       // how often somebody new was found after reaping
	looked  time.Time // when a crowd was last looked through
	clear   bool      // nobody is known who has not been struck, below our own children either
}

// Of a crowd nobody is reaped as long as somebody below has not been struck: under a
// task limit a bomb grows downwards faster than it is peeled from above, if reaping
// gives it room (without this, 3 of 11 ones of 2000 lived for 10 s). A tree is a
// crowd if so many were struck at once, or if reaping has made room so often for ones
// that had not been there before. It takes CPU time to look through it, and to die;
// so there is a pause between two looks.
const (
	crowd        = 200
	crowded      = 2
	betweenLooks = 40 * time.Millisecond
)

// strike strikes as long as there is progress, and then sets when to strike
// again, at most slowest later. Striking comes first and reaping only when a
// pass finds nothing new, and in a crowd when a pass below does not either: a
// zombie keeps its place under a task limit. What reaping brings is told to news,
// which says whether to go on; interrupted is asked between two passes.
func (k *killer) strike(tree tree, now time.Time, slowest time.Duration, news func(proctree.Event) bool, interrupted func() bool) {
	if k.clear && now.Before(k.next) {
		return
	}
	// Nothing died in all that time. To look through a crowd takes the time that it
	// needs to die.
	below := k.wait > 0 && !now.Before(k.next) && (!k.clear || k.wait >= killMax)
	for {
		struck := tree.Strike(below)
		if struck >= crowd {
			k.refills = crowded
		}
		if struck == 0 && k.refills >= crowded && !k.clear {
			if again := k.looked.Add(betweenLooks); time.Now().Before(again) {
				k.wait, k.next = betweenLooks, again
				return
			}
			if struck = tree.Strike(true); struck == 0 {
				struck = tree.Strike(false) // who has fallen to us meanwhile
			}
			k.clear, k.looked = struck == 0, time.Now()
		}
		if struck > 0 {
			if k.clear = false; k.reaped {
				k.refills++
				k.reaped = false
			}
		} else {
			n, ev := tree.Reap()
			if !news(ev) {
				return
			}
			if n == 0 {
				if ev.Unheard {
					k.next = time.Now().Add(killUnheard)
					return
				}
				break
			}
			if k.reaped = true; k.clear {
				k.wait = 0
				break // they need the time to die
			}
		}
		k.wait, below = 0, false
		if interrupted() {
			k.next = now
			return
		}
	}
	k.wait = min(max(2*k.wait, killStall), slowest)
	k.next = time.Now().Add(k.wait)
}
