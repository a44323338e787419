package adapter

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"
)

// never is when what does not happen happens.
const never = 1000 * time.Hour

// bound is the bound of an invocation with the policy, without a temporary directory and
// a journal.
func bound(p StopPolicy) time.Duration { return (&Command{Stop: p}).waits(false).bound() }

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
	acks, exits := c.acks, c.exits
	if exits == 0 {
		exits = never
	}
	for look := d.look(zero); now != c.reports && lost == never; {
		now = max(now, min(c.reports, acks, exits, after(look)))
		switch now {
		case acks:
			acks = never
			d.began(at(now))
			look = d.look(at(now))
		case exits:
			exits = never
			if !d.acked {
				d.exited(at(now))
			}
			look = d.look(at(now))
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
	L, D := (&Command{Stop: usual}).waits(false).ladder, (&Command{Stop: usual}).waits(false).drain
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
				d := deadlines{waits: (&Command{Stop: tt.p}).waits(false)}
				if timeout {
					d.timeout = time.Unix(1_000_000, 0)
				}
				returned, lost := tt.c.play(d)
				if lost != tt.lost {
					t.Errorf("lost at %v, want %v", lost, tt.lost)
				}
				// The Logger and the context get the rest.
				if bound := bound(tt.p) - 200*ms; returned > bound || tt.returned != 0 && returned != tt.returned {
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
	d := deadlines{waits: waits{ladder: time.Second, drain: time.Second}}
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
	d = deadlines{waits: waits{ladder: time.Second}}
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

// courses calls do with every sequence of a late acknowledgement, an exit, a late report or
// none, a supervisor that is suspended, once or at both ends, a guard that is fast, slow or
// lost, and output that ends or does not, for a ladder of the length L.
func courses(L time.Duration, do func(course)) {
	const ms = time.Millisecond
	acks := []time.Duration{ms, 990 * ms, 1010 * ms, 1490 * ms, 1990 * ms, 2010 * ms, never}
	reports := []time.Duration{2 * ms, L, L + 990*ms, L + 1010*ms, L + 1490*ms, L + 1510*ms, never}
	for _, ack := range acks {
		for _, exits := range []time.Duration{never, ms / 2, 500 * ms, L + 900*ms} {
			for _, reported := range reports {
				if reported < ack && ack != never || reported < exits && exits != never {
					continue
				}
				for _, suspended := range [][2]time.Duration{{}, {0, never}, {0, 900 * ms}, {L, never}, {L + 900*ms, L + 1100*ms}} {
					for _, swept := range []time.Duration{L + 1100*ms, L + 2400*ms, never} {
						for _, drained := range []time.Duration{0, never} {
							do(course{acks: ack, exits: exits, reports: reported, suspended: suspended, swept: swept, drained: drained})
						}
					}
				}
			}
		}
	}
}

// Whatever the supervisor and the guard do, and whenever they are lost, Invoke returns and
// a session ends within the bound, with 200 ms for the Logger and the context.
func TestEveryCourseIsWithinTheBound(t *testing.T) {
	t.Parallel()
	zero := time.Unix(1_000_000, 0)
	n := 0
	for name, c := range map[string]Command{
		"invocation":                 {},
		"session":                    {Stdin: Pipe, Stdout: Pipe},
		"no time at all":             {Stop: StopPolicy{Grace: -1, KillWait: -1, Drain: -1, Linger: -1}},
		"session, no time at all":    {Stdin: Pipe, Stop: StopPolicy{StdinGrace: -1, Grace: -1, KillWait: -1, Drain: -1}},
		"with a temporary directory": {TempDir: true, Stop: StopPolicy{Linger: -1}},
	} {
		for _, journal := range []bool{false, true} {
			w := c.waits(journal)
			for _, timeout := range []bool{false, true} {
				courses(w.ladder, func(co course) {
					n++
					d := deadlines{waits: w}
					if timeout {
						d.timeout = zero
					}
					if returned, lost := co.play(d); returned > w.bound()-200*time.Millisecond {
						t.Errorf("%s, journal %t, timeout %t, %+v: lost at %v, returns after %v, the bound is %v", name, journal, timeout, co, lost, returned, w.bound())
					}
				})
			}
			if most := c.Bound(); most < w.bound() || most > w.bound()+time.Second {
				t.Errorf("%s: Bound is %v, and %v with journal %t", name, most, w.bound(), journal)
			}
		}
	}
	t.Logf("%d courses", n)
}

// The same with a clock that runs, and goroutines that act in time.
func TestCoursesInABubble(t *testing.T) {
	t.Parallel()
	c := Command{Stdin: Pipe, Stop: StopPolicy{StdinGrace: -1, Grace: 50 * time.Millisecond, KillWait: 50 * time.Millisecond, Drain: 300 * time.Millisecond}}
	w := c.waits(false)
	courses(w.ladder, func(co course) {
		synctest.Test(t, func(t *testing.T) {
			began := time.Now()
			d := deadlines{waits: w}
			d.stopAt(began)
			words := make(chan func(now time.Time) bool, 3) // each reports whether it was the last
			say := func(after time.Duration, word func(time.Time) bool) {
				if after != never {
					time.AfterFunc(after, func() { words <- word })
				}
			}
			say(co.acks, func(now time.Time) bool { d.began(now); return false })
			say(co.exits, func(now time.Time) bool {
				if !d.acked {
					d.exited(now)
				}
				return false
			})
			say(co.reports, func(time.Time) bool { return true })
			look := d.look(began)
			lost := false
			for over := false; !over && !lost; {
				select {
				case word := <-words:
					over = word(time.Now())
					look = d.look(time.Now())
				case <-time.After(time.Until(look)):
					look, lost = d.late(time.Now(), look, func() bool { return len(words) > 0 }, func() bool {
						now := time.Since(began)
						return now >= co.suspended[0] && now < co.suspended[1]
					})
				}
			}
			if lost {
				time.Sleep(min(time.Until(d.swept(time.Now())), max(co.swept-time.Since(began), 0)))
			}
			until, limit := d.drained(time.Now())
			if co.drained > until.Sub(began) {
				time.Sleep(time.Until(limit))
			}
			if took := time.Since(began); took > w.bound()-200*time.Millisecond {
				t.Errorf("%+v: returns after %v, the bound is %v", co, took, w.bound())
			}
		})
	})
}
