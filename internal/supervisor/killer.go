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
)

// killer ends what is left of a tree, pass by pass. The zero value is ready.
type killer struct {
	wait time.Duration // back-off between two strikes that found nothing
	next time.Time     // when to strike again if nothing is heard before
}

// strike strikes as long as there is progress, and then sets when to strike
// again, at most slowest later. Striking comes first and reaping only when a
// pass finds nothing new: a zombie keeps its place under a task limit. What
// reaping brings is told to news, which says whether to go on; interrupted is
// asked between two passes.
func (k *killer) strike(tree tree, now time.Time, slowest time.Duration, news func(proctree.Event) bool, interrupted func() bool) {
	below := k.wait > 0 && !now.Before(k.next) // nothing died in all that time
	for {
		if tree.Strike(below) == 0 {
			n, ev := tree.Reap()
			if !news(ev) {
				return
			}
			if n == 0 {
				break
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
