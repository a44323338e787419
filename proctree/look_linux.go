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
}

// betweenQuestions is the longest time in which a caller has to wait.
const betweenQuestions = time.Millisecond

// begin begins a look that ends at the given time at the latest.
func (l *look) begin(until time.Time) {
	l.on, l.deaf, l.until, l.asked, l.cut = true, false, until, time.Now(), false
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
	switch {
	case !l.until.IsZero() && !now.Before(l.until):
		l.cut = true
	case !l.deaf && l.interrupted != nil && now.Sub(l.asked) >= betweenQuestions:
		l.cut = l.interrupted()
		l.asked = time.Now()
	}
	return l.cut
}
