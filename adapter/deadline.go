package adapter

import "time"

// deadlines say what the supervisor owes the caller, and until when. They read no clock:
// each method gets the time.
type deadlines struct {
	waits
	timeout time.Time // when the supervisor begins a stop by itself; zero: never

	stop  time.Time // when a stop was asked for, or began by itself; zero: there is none
	acked bool      // the supervisor has acknowledged the stop
	exit  time.Time // when leftovers get the ladder at the latest; zero: the leader has not exited
}

// stopAt notes that a stop was asked for, or began. The earliest counts.
func (d *deadlines) stopAt(at time.Time) {
	if d.stop.IsZero() || at.Before(d.stop) {
		d.stop = at
	}
}

// began notes that the supervisor has acknowledged a stop.
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

// begun returns when the time began that the bound limits: with a stop, or with the
// timeout, also if the supervisor has not yet reported that it stops. With a timeout the
// leftovers of a leader that was in time are limited too. Zero: it has not begun.
func (d *deadlines) begun() time.Time {
	switch {
	case !d.stop.IsZero():
		return d.stop
	case d.exit.IsZero() || d.timeout.IsZero():
		return d.timeout
	}
	return d.exit
}

// due returns when the supervisor must have sent what is due next, and until when it is
// waited for if it is slow but not suspended. Zero: nothing is due.
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

// look returns when to check on the supervisor, if it sends nothing before: when something
// is due, and not before now. It can have been due earlier: after a late acknowledgement
// the report is due at a time that may be past. Zero: never.
func (d *deadlines) look(now time.Time) time.Time {
	soft, _ := d.due()
	if !soft.IsZero() && soft.Before(now) {
		return now
	}
	return soft
}

// late decides about a supervisor that has sent nothing by now. woken is the time for which
// this check was set. It returns when to check again, or that the supervisor is lost.
// pending reports whether there is something to read, suspended whether the supervisor is
// suspended.
func (d *deadlines) late(now, woken time.Time, pending, suspended func() bool) (look time.Time, lost bool) {
	behind := now.Sub(woken)
	wasSuspended := !woken.IsZero() && behind > jitter
	if wasSuspended {
		// The caller itself was suspended, and perhaps the supervisor with it.
		d.shift(behind + jitter)
	}
	soft, hard := d.due()
	switch {
	case soft.IsZero() || now.Before(soft):
		return soft, false
	case now.Before(hard.Add(jitter)) && pending():
		return now.Add(jitter), false // the caller reads it next
	case now.Before(hard) && (wasSuspended || !suspended()):
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

// swept returns until when the guard may take to end what a supervisor has left, if it
// was lost now.
func (d *deadlines) swept(now time.Time) time.Time {
	if stop := d.begun(); !stop.IsZero() && stop.Before(now) {
		return stop.Add(d.ladder + ackLimit + reportSpare + loseLimit)
	}
	return now.Add(d.ladder + loseLimit)
}

// drained returns until when the output is read, if the tree is empty now, and until when
// code of the caller's is waited for after that.
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
