package proctree

import "time"

// look limits one look at what other processes decide the size of: how many they are, how
// many threads and files each has, how long its environment is. A look ends early when
// its time is over, and when somebody whom this process must hear has something to say.
// What was not seen by then is unknown, and counts as that. The zero value has no limit.
type look struct {
	ear   func() bool // whether somebody has something to say; may be nil
	on    bool
	deaf  bool      // the ear is not asked
	until time.Time // zero: no limit
	asked time.Time // when the ear was asked
	cut   bool      // it ended early
}

// betweenEars is the longest time in which nobody is heard.
const betweenEars = time.Millisecond

// begin begins a look that ends at the given time at the latest.
func (l *look) begin(until time.Time) {
	l.on, l.deaf, l.until, l.asked, l.cut = true, false, until, time.Now(), false
}

// beginDeaf begins one that goes on whoever has something to say.
func (l *look) beginDeaf(until time.Time) {
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
	case !l.deaf && l.ear != nil && now.Sub(l.asked) >= betweenEars:
		l.cut = l.ear()
		l.asked = time.Now()
	}
	return l.cut
}
