package adapter

import (
	"fmt"
	"testing"
	"time"
)

// never is when what does not happen happens.
const never = 1000 * time.Hour

// course is what happens after a stop is asked for, at the time 0: when the supervisor
// says what, when it is suspended, when the guard is done, when the output ends, and by
// how much the caller is later than it wanted to be.
type course struct {
	acks, exits, reports time.Duration
	suspended            [2]time.Duration
	swept, drained       time.Duration
}

// play follows a course with the clock of the course, and returns when Invoke returns
// at the latest, and when the supervisor was lost.
func (c course) play(d deadlines) (returned, lost time.Duration) {
	zero := time.Unix(1_000_000, 0)
	at := func(after time.Duration) time.Time { return zero.Add(after) }
	after := func(at time.Time) time.Duration { return at.Sub(zero) }
	if d.timeout.IsZero() {
		d.stopAt(zero)
	}
	lost = never
	var now time.Duration
	soft, _ := d.due()
	for look := soft; now != c.reports && lost == never; {
		next := min(c.reports, after(look))
		for _, word := range []time.Duration{c.acks, c.exits} {
			if word > now {
				next = min(next, word)
			}
		}
		now = next
		switch now {
		case c.acks:
			d.began(at(now))
			look, _ = d.due()
		case c.exits:
			if !d.acked {
				d.exited(at(now), 0)
			}
			look, _ = d.due()
		case c.reports:
		default:
			var gone bool
			look, gone = d.late(at(now), look, func() bool { return false },
				func() bool { return now >= c.suspended[0] && now < c.suspended[1] })
			if gone {
				lost = now
			}
		}
	}
	if lost != never {
		now = max(now, min(c.swept, after(d.swept(at(now)))))
	}
	until, limit := d.drained(at(now))
	if c.drained > after(until) {
		now = after(limit)
	}
	return now, lost
}

func TestDeadlines(t *testing.T) {
	t.Parallel()
	const ms = time.Millisecond
	frozen := [2]time.Duration{0, never}
	short := StopPolicy{Grace: -1, KillWait: -1, Drain: -1, Linger: -1}
	usual := StopPolicy{Linger: -1}
	L := usual.withDefaults().Grace + usual.withDefaults().KillWait
	D := usual.withDefaults().Drain
	for _, tt := range []struct {
		name     string
		p        StopPolicy
		c        course
		lost     time.Duration
		returned time.Duration // 0: anything within the bound
	}{
		{"all in time", usual, course{acks: ms, reports: 100 * ms, swept: never}, never, 100 * ms},
		{"the whole ladder", usual, course{acks: ms, reports: L + 10*ms, swept: never, drained: never}, never, L + 10*ms + D + turnLimit},
		{"late acknowledgement, the whole ladder", usual, course{acks: 990 * ms, reports: 990*ms + L + 10*ms, swept: never}, never, 990*ms + L + 10*ms},
		{"never acknowledged, suspended", usual, course{acks: never, reports: never, suspended: frozen, swept: never, drained: never}, ackLimit, 0},
		{"never acknowledged", usual, course{acks: never, reports: never, swept: never, drained: never}, ackLimit + ackSpare, 0},
		{"late acknowledgement, hang at the end", usual, course{acks: 990 * ms, reports: never, swept: never, drained: never}, L + ackLimit + reportSpare, 0},
		{"late acknowledgement, suspended at the end", usual, course{acks: 990 * ms, reports: never, suspended: [2]time.Duration{L, never}, swept: never, drained: never}, L + ackLimit, 0},
		{"spared acknowledgement, hang at the end", usual, course{acks: 1990 * ms, reports: never, swept: never, drained: never}, L + ackLimit + reportSpare, 0},
		{"suspended twice", usual, course{acks: 900 * ms, reports: never, suspended: [2]time.Duration{L + 900*ms, L + 1100*ms}, swept: never, drained: never}, L + ackLimit, 0},
		{"the exit comes, and no report", usual, course{acks: never, exits: 500 * ms, reports: never, swept: never, drained: never}, L + ackLimit + reportSpare, 0},
		{"the guard is faster", usual, course{acks: ms, reports: never, swept: L + 2*time.Second, drained: never}, L + ackLimit + reportSpare, L + 2*time.Second + D + turnLimit - 200*ms},
		{"no time at all", short, course{acks: never, reports: never, swept: never, drained: never}, ackLimit + reportSpare, 0},
		{"no time at all, late acknowledgement", short, course{acks: 990 * ms, reports: never, suspended: frozen, swept: never, drained: never}, ackLimit, 0},
	} {
		for _, timeout := range []bool{false, true} {
			t.Run(fmt.Sprint(tt.name, ", by its own timeout: ", timeout), func(t *testing.T) {
				t.Parallel()
				p := tt.p.withDefaults()
				d := deadlines{ladder: p.StdinGrace + p.Grace + p.KillWait, drain: p.Drain}
				if timeout {
					d.timeout = time.Unix(1_000_000, 0)
				}
				returned, lost := tt.c.play(d)
				if lost != tt.lost {
					t.Errorf("lost at %v, want %v", lost, tt.lost)
				}
				// The Logger and the context get the rest.
				if bound := tt.p.Bound() - 200*ms; returned > bound || tt.returned != 0 && returned != tt.returned {
					t.Errorf("returns after %v, want %v, within %v", returned, tt.returned, bound)
				}
			})
		}
	}
}

// A caller that was suspended itself does not hold that against the supervisor.
func TestDeadlinesOfASuspendedCaller(t *testing.T) {
	t.Parallel()
	now := time.Unix(1_000_000, 0)
	yes, no := func() bool { return true }, func() bool { return false }
	d := deadlines{ladder: time.Second, drain: time.Second}
	d.stopAt(now)
	soft, _ := d.due()
	now = soft.Add(time.Hour)
	look, lost := d.late(now, soft, no, yes)
	if lost || look.Before(now) || look.After(now.Add(2*time.Second)) {
		t.Errorf("lost %t, looks again %v later", lost, look.Sub(now))
	}
	if until := d.swept(now); until.Before(now) || until.After(now.Add(4*time.Second)) {
		t.Errorf("the guard gets %v", until.Sub(now))
	}
	if _, lost = d.late(look, look, no, yes); !lost {
		t.Error("it is waited for for ever")
	}
	// What is to be read is read, but not for ever.
	d = deadlines{ladder: time.Second}
	d.stopAt(now)
	began := now
	for now, _ = d.due(); ; now = look {
		if look, lost = d.late(now, now, yes, no); lost || now.Sub(began) > time.Minute {
			break
		}
	}
	if now.Sub(began) > 3*time.Second {
		t.Errorf("it may trickle for %v", now.Sub(began))
	}
}
