package proctree

import "time"

// Policy is how a tree is asked to end before it is made to.
type Policy struct {
	Signal     int           `json:"signal"`      // the polite signal
	StdinGrace time.Duration `json:"stdin_grace"` // between closing stdin and the polite signal
	Grace      time.Duration `json:"grace"`       // between the polite signal and SIGKILL
	KillWait   time.Duration `json:"kill_wait"`   // how long SIGKILL may take
	Audience   Audience      `json:"audience"`
	// Stdin: there is a stdin to close. Without it that rung is left out.
	Stdin bool `json:"stdin"`
}

// Audience is the set of members that get the polite signal, and when.
type Audience int

const (
	// LeaderFirst: the leader at once; every other member when the leader has
	// exited, or after a third of Grace. A wrapper that forwards the signal
	// does not make it two, and one that does not forward it does not matter.
	LeaderFirst Audience = iota
	Everyone             // all members at once
	LeaderOnly           // the other members get SIGKILL alone
)

// Action is what the ladder asks for. The caller of Step carries it out.
type Action int

const (
	// CloseStdin closes the leader's stdin.
	CloseStdin Action = iota
	// SignalLeader sends the polite signal to the leader.
	SignalLeader
	// SignalMembers sends it to every member but the leader.
	SignalMembers
	// Kill begins the kill phase: strike until the tree is empty.
	Kill
	// GiveUp ends the wait: what is alive now is a survivor.
	GiveUp
)

// Ladder is the stop ladder as a state machine over the clock and what was
// seen of the tree. It makes no system call and starts no timer: after each
// input the caller carries out what Step returns, and calls Step again not
// later than Next. The zero value with a Policy has not begun.
//
// A second stop never lengthens anything: it can only bring SIGKILL nearer.
type Ladder struct {
	Policy Policy

	began      time.Time
	rung       rung
	rungEnd    time.Time // when the present rung's wait is over
	membersDue time.Time // when the other members get the polite signal
	membersHad bool
	leaderGone bool
	empty      bool
	spared     bool // the kill phase got afterStandstill
}

// A kill phase that is stepped later than stoodStill after its end goes on for
// afterStandstill, once. Both together are less than what the caller waits for a report.
const (
	stoodStill      = 250 * time.Millisecond
	afterStandstill = 500 * time.Millisecond
)

type rung int

const (
	rungNone rung = iota
	rungStdin
	rungSignal
	rungKill
	rungOver
)

// Begun returns when the ladder has begun; false if it has not.
func (l *Ladder) Begun() (time.Time, bool) { return l.began, l.rung != rungNone }

// Killing reports whether the kill phase has begun and is not over.
func (l *Ladder) Killing() bool { return l.rung == rungKill && !l.empty }

// LeaderGone is to be called when the leader has exited.
func (l *Ladder) LeaderGone() { l.leaderGone = true }

// Empty is to be called when the tree is empty. It ends the ladder.
func (l *Ladder) Empty() { l.empty = true }

// Begin begins the ladder at now. If it has begun already, nothing changes.
func (l *Ladder) Begin(now time.Time) []Action {
	if l.rung != rungNone || l.empty {
		return nil
	}
	l.began = now
	if l.Policy.Stdin && !l.leaderGone {
		l.rung, l.rungEnd = rungStdin, now.Add(l.Policy.StdinGrace)
		return append([]Action{CloseStdin}, l.Step(now)...)
	}
	return l.politely(now)
}

// Hasten shortens what is left: the grace that remains is at most grace, and 0
// goes to SIGKILL at once. It begins the ladder if it had not begun.
func (l *Ladder) Hasten(now time.Time, grace time.Duration) []Action {
	var acts []Action
	if l.rung == rungNone {
		l.Policy.StdinGrace = min(l.Policy.StdinGrace, grace)
		l.Policy.Grace = min(l.Policy.Grace, grace)
		if grace > 0 {
			return l.Begin(now)
		}
		l.began = now
		if l.Policy.Stdin && !l.leaderGone {
			acts = append(acts, CloseStdin)
		}
		return append(acts, l.kill(now)...)
	}
	switch l.rung {
	case rungStdin, rungSignal:
		if grace <= 0 {
			return l.kill(now)
		}
		if end := now.Add(grace); end.Before(l.rungEnd) {
			l.rungEnd = end
		}
		l.Policy.Grace = min(l.Policy.Grace, grace)
	}
	return l.Step(now)
}

// Step returns what is due at now.
func (l *Ladder) Step(now time.Time) []Action {
	if l.empty {
		return nil
	}
	var acts []Action
	switch l.rung {
	case rungStdin:
		if l.leaderGone || !now.Before(l.rungEnd) {
			return l.politely(now)
		}
	case rungSignal:
		switch {
		case !now.Before(l.rungEnd):
			return l.kill(now) // too late to be polite
		case !l.membersHad && l.Policy.Audience != LeaderOnly && (l.leaderGone || !now.Before(l.membersDue)):
			l.membersHad = true
			acts = append(acts, SignalMembers)
		}
	case rungKill:
		switch late := now.Sub(l.rungEnd); {
		case late < 0:
		case late > stoodStill && !l.spared:
			// The machine stood still, or gave this process no turn. What was struck had
			// no turn to die either.
			l.spared, l.rungEnd = true, now.Add(afterStandstill)
		default:
			l.rung = rungOver
			acts = append(acts, GiveUp)
		}
	}
	return acts
}

// Next returns when Step has something to do although nothing happened; false
// if never.
func (l *Ladder) Next() (time.Time, bool) {
	if l.empty {
		return time.Time{}, false
	}
	switch l.rung {
	case rungStdin, rungKill:
		return l.rungEnd, true
	case rungSignal:
		if !l.membersHad && l.Policy.Audience != LeaderOnly && l.membersDue.Before(l.rungEnd) {
			return l.membersDue, true
		}
		return l.rungEnd, true
	}
	return time.Time{}, false
}

func (l *Ladder) politely(now time.Time) []Action {
	if l.Policy.Grace <= 0 {
		return l.kill(now)
	}
	l.rung, l.rungEnd = rungSignal, now.Add(l.Policy.Grace)
	var acts []Action
	if !l.leaderGone {
		acts = append(acts, SignalLeader)
	}
	l.membersDue = now.Add(l.Policy.Grace / 3)
	if l.Policy.Audience == Everyone {
		l.membersDue = now
	}
	return append(acts, l.Step(now)...)
}

func (l *Ladder) kill(now time.Time) []Action {
	l.rung, l.rungEnd = rungKill, now.Add(l.Policy.KillWait)
	return []Action{Kill}
}
