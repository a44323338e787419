package proctree

import "time"

// look limits one look at what other processes decide the size of: how many they are, how
// many threads and files each has, how long its environment is. A look ends early when
// its time is over, and when the caller of the tree's methods has something else to do.
// What was not seen by then is unknown, and counts as that. The zero value has no limit.
type look struct {
	interrupted func() bool // Options.Interrupted; may be nil
	on          bool
	deaf        bool      // interrupted is not asked
	until       time.Time // zero: no limit
	asked       time.Time // when interrupted was asked
	cut         bool      // the look ended early
	seen        time.Time // when over was called last
	patience    int       // how many standstills may move until
	stoodStill  bool      // there was one, also if until did not move
}

// standstill is a time in which a process that is not suspended gets a turn.
const standstill = 250 * time.Millisecond

// betweenQuestions is the longest time in which a caller has to wait.
const betweenQuestions = time.Millisecond

// begin begins a look that ends at the given time at the latest.
func (l *look) begin(until time.Time) {
	now := time.Now()
	*l = look{interrupted: l.interrupted, on: true, until: until, asked: now, seen: now}
}

// beginUninterrupted begins a look that only the time ends.
func (l *look) beginUninterrupted(until time.Time) {
	l.begin(until)
	l.deaf = true
}

// end ends it, and reports whether everything was seen.
func (l *look) end() (whole bool) {
	whole = !l.cut
	l.on, l.cut = false, false
	return whole
}

// over reports whether the look that is under way has to end.
func (l *look) over() bool {
	if !l.on || l.cut {
		return l.cut
	}
	now := time.Now()
	if gap := now.Sub(l.seen); gap > standstill {
		l.stoodStill = true
		if l.patience > 0 {
			l.patience--
			l.until = l.until.Add(gap)
		}
	}
	l.seen = now
	switch {
	case !l.until.IsZero() && !now.Before(l.until):
		l.cut = true
	case !l.deaf && l.interrupted != nil && now.Sub(l.asked) >= betweenQuestions:
		l.cut = l.interrupted()
		l.asked = time.Now()
	}
	return l.cut
}
