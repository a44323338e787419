package adapter

import "time"

// deadlines say what the supervisor owes the caller, and until when. They read no
// clock.
type deadlines struct {
	waits
	timeout time.Time // when the supervisor begins a stop by itself; zero: never

	stop  time.Time // when a stop was asked for, or began by itself; zero: there is none
	acked bool
	exit  time.Time // when leftovers get the ladder at the latest, the leader having exited; zero: not so
}

// stopAt notes that a stop was asked for, or began. The first counts.
func (d *deadlines) stopAt(at time.Time) {
	if d.stop.IsZero() || at.Before(d.stop) {
		d.stop = at
	}
}

// began notes that the supervisor has said that a stop begins.
func (d *deadlines) began(now time.Time) {
	if d.stop.IsZero() && !d.timeout.IsZero() && d.timeout.Before(now) {
		now = d.timeout
	}
	d.stopAt(now)
	d.acked = true
}

// exited notes that the leader has exited by itself. Leftovers may go on for linger.
func (d *deadlines) exited(now time.Time) {
	if !d.timeout.IsZero() {
		now = sooner(now, d.timeout)
	}
	d.exit = now.Add(d.linger)
}

// begun returns when the time began that is bounded: by a stop, or by a timeout, also if
// the supervisor has not said yet that it stops. With a timeout the leftovers of a leader
// that was in time are bounded too. Zero: it has not.
func (d *deadlines) begun() time.Time {
	switch {
	case !d.stop.IsZero():
		return d.stop
	case d.exit.IsZero() || d.timeout.IsZero():
		return d.timeout
	}
	return d.exit
}

// due returns when the supervisor must have said what is due next, and until when it
// is waited for if it is only slow. Zero: nothing is due.
func (d *deadlines) due() (soft, hard time.Time) {
	stop := d.begun()
	report := stop
	if !d.exit.IsZero() && (stop.IsZero() || d.exit.Before(stop)) {
		report = d.exit
	}
	if report.IsZero() {
		return time.Time{}, time.Time{}
	}
	soft = report.Add(d.ladder + ackLimit)
	hard = soft.Add(reportSpare)
	if d.acked || !d.exit.IsZero() {
		return soft, hard
	}
	if ack := stop.Add(ackLimit + ackSpare); ack.Before(hard) {
		hard = ack
	}
	return stop.Add(ackLimit), hard
}

// look returns when the supervisor is to be looked after, if it sends nothing before: when
// something is due, and not before now. What is due can be past already: an acknowledgement
// that came late makes a report due that was due before it. Zero: never.
func (d *deadlines) look(now time.Time) time.Time {
	soft, _ := d.due()
	if !soft.IsZero() && soft.Before(now) {
		return now
	}
	return soft
}

// late says what follows when the supervisor has said nothing by now, although it was
// to be looked after at the time woken: when to look again, or that it is lost. pending:
// there is something to read.
func (d *deadlines) late(now, woken time.Time, pending, suspended func() bool) (look time.Time, lost bool) {
	behind := now.Sub(woken)
	still := !woken.IsZero() && behind > jitter
	if still {
		// We were suspended ourselves, and so perhaps was the supervisor.
		d.shift(behind + jitter)
	}
	soft, hard := d.due()
	switch {
	case soft.IsZero() || now.Before(soft):
		return soft, false
	case now.Before(hard.Add(jitter)) && pending():
		return now.Add(jitter), false // it is read at once
	case now.Before(hard) && (still || !suspended()):
		return hard, false
	}
	return time.Time{}, true
}

// shift moves all times.
func (d *deadlines) shift(by time.Duration) {
	for _, t := range []*time.Time{&d.timeout, &d.stop, &d.exit} {
		if !t.IsZero() {
			*t = t.Add(by)
		}
	}
}

// swept returns until when the guard may take to end what a supervisor has left that
// was lost now.
func (d *deadlines) swept(now time.Time) time.Time {
	if stop := d.begun(); !stop.IsZero() && stop.Before(now) {
		return stop.Add(d.ladder + ackLimit + reportSpare + loseLimit)
	}
	return now.Add(d.ladder + loseLimit)
}

// drained returns until when the output is read, the tree being gone now, and until
// when code of the caller's is waited for then.
func (d *deadlines) drained(now time.Time) (until, limit time.Time) {
	until = now.Add(d.drain)
	limit = until.Add(turnLimit)
	if stop := d.begun(); !stop.IsZero() && stop.Before(now) {
		last := d.swept(now).Add(d.drain)
		until, limit = sooner(until, last), sooner(limit, last.Add(lastTurn))
	}
	return until, limit
}

// sooner returns the first of two times.
func sooner(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}
