package proctree

import "time"

// KillPhase ends what is left of a tree, pass by pass: it decides when to strike below
// our own children too, when to reap, and how long to wait in between. It makes no
// system call. The zero value is ready for one kill phase.
//
// Striking comes first and reaping only when a pass finds nothing new, and in a crowd
// when a pass below does not either: a zombie keeps its place under a task limit.
type KillPhase struct {
	// Interrupted reports whether the caller has something else to do at once. It is
	// asked between two passes.
	Interrupted func() bool

	backoff time.Duration // between two strikes that found nothing
	next    time.Time     // when to strike again if FD reports nothing before

	reaped  bool      // something was reaped since a strike found a process
	refills int       // how often a strike found one after reaping
	looked  time.Time // when a crowd was last looked through
	done    bool      // all that is known was struck, below our own children too
}

// Pace is how often a kill phase strikes when nothing dies any more.
type Pace time.Duration

const (
	Quickly Pace = Pace(100 * time.Millisecond) // while the caller waits
	Slowly  Pace = Pace(5 * time.Second)        // in the background
)

// Back-off of the kill phase. When nothing has died for killStall, the strike
// goes below our own children too: a process with much memory takes some 100 ms
// per GB to die, and only then do its children fall to us. From there on it
// strikes less and less often.
const (
	killStall = 5 * time.Millisecond
	// killSilent is the pause while FD reports no death.
	killSilent = 2 * time.Millisecond
)

// In a crowd nothing is reaped as long as a process below was not struck: under a
// task limit a bomb grows downwards faster than it is peeled from above, if reaping
// gives it room (without this, 3 of 11 bombs of 2000 lived for 10 s). A tree is a
// crowd if so many were struck at once, or if a strike found new processes so often
// after reaping. It takes CPU time to look through a crowd, and a crowd needs CPU time to
// die; so there is a pause between two looks.
const (
	crowd        = 200
	crowded      = 2
	betweenLooks = 40 * time.Millisecond
)

// striker is the part of a tree that a kill phase uses.
type striker interface {
	Strike(below bool) Struck
	Reap() Event
}

// Next is when Step is due although FD is not readable.
func (k *KillPhase) Next() time.Time { return k.next }

// Step strikes and reaps until there is something to report, nothing more to do now,
// or an interruption. It returns what the last Reap reported. Call it again when FD
// is readable, and at Next.
func (k *KillPhase) Step(tree striker, now time.Time, pace Pace) Event {
	if k.done && now.Before(k.next) {
		return Event{}
	}
	// Nothing died in all that time. To look through a crowd takes the time that it
	// needs to die.
	below := k.backoff > 0 && !now.Before(k.next) && (!k.done || k.backoff >= time.Duration(Quickly))
	for {
		found, wait := k.strike(tree, below)
		if wait {
			return Event{}
		}
		if !found {
			if ev, again := k.reap(tree, now, pace); !again {
				return ev
			}
		}
		k.backoff, below = 0, false
		if k.Interrupted != nil && k.Interrupted() {
			k.next = now
			return Event{}
		}
	}
}

// reap reaps, and reports whether to strike again at once.
func (k *KillPhase) reap(tree striker, now time.Time, pace Pace) (ev Event, again bool) {
	ev = tree.Reap()
	k.reaped = k.reaped || ev.Died > 0
	switch {
	case ev.Died == 0 && ev.Silent:
		k.next = time.Now().Add(killSilent)
	case ev.Died == 0:
		k.rest(2*k.backoff, pace)
	case k.done:
		k.rest(0, pace) // the others need the time to die
	case ev.reports():
		k.backoff, k.next = 0, now
	default:
		return ev, true
	}
	return ev, false
}

// rest sets when to strike again.
func (k *KillPhase) rest(backoff time.Duration, pace Pace) {
	k.backoff = min(max(backoff, killStall), time.Duration(pace))
	k.next = time.Now().Add(k.backoff)
}

// reports reports whether there is something in ev that the caller has to know.
func (ev *Event) reports() bool {
	return ev.StartDone || ev.Exit != nil || len(ev.Siblings) > 0 || ev.Empty
}

// strike makes one pass, and in a crowd one below. It reports whether it found a process
// that had not been struck, or that it is too early to look through the crowd again.
func (k *KillPhase) strike(tree striker, below bool) (found, wait bool) {
	struck := tree.Strike(below)
	if struck.Fresh >= crowd {
		k.refills = crowded
	}
	if !struck.found() && k.refills >= crowded && !k.done {
		if again := k.looked.Add(betweenLooks); time.Now().Before(again) {
			k.backoff, k.next = betweenLooks, again
			return false, true
		}
		if struck = tree.Strike(true); !struck.found() {
			struck = tree.Strike(false) // what has fallen to us meanwhile
		}
		k.done, k.looked = !struck.found(), time.Now()
	}
	if !struck.found() {
		return false, false
	}
	if k.done = false; k.reaped {
		k.refills++
		k.reaped = false
	}
	return true, false
}

func (s Struck) found() bool { return s.Fresh > 0 || s.More }
