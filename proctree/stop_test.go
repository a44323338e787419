package proctree

import (
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

// at is one input to a ladder, and what it must ask for then.
type at struct {
	ms   int
	do   func(l *Ladder, now time.Time) []Action
	want []Action
}

func begin(l *Ladder, now time.Time) []Action  { return l.Begin(now) }
func hasten(l *Ladder, now time.Time) []Action { return l.Hasten(now, 0) }
func step(l *Ladder, now time.Time) []Action   { return l.Step(now) }
func gone(l *Ladder, now time.Time) []Action   { l.LeaderGone(); return l.Step(now) }
func empty(l *Ladder, now time.Time) []Action  { l.Empty(); return l.Step(now) }

func TestLadder(t *testing.T) {
	const ms = time.Millisecond
	policy := Policy{Signal: 15, StdinGrace: 100 * ms, Grace: 300 * ms, KillWait: 200 * ms, Stdin: true}
	noStdin := policy
	noStdin.Stdin = false
	noGrace := noStdin
	noGrace.Grace = 0
	everyone, leaderOnly := noStdin, noStdin
	everyone.Audience, leaderOnly.Audience = Everyone, LeaderOnly

	for _, tt := range []struct {
		name   string
		policy Policy
		script []at
		next   int // when the clock alone is next due, after the script; -1: never
	}{
		{"every rung", policy, []at{
			{0, begin, []Action{CloseStdin}},
			{99, step, nil},
			{100, step, []Action{SignalLeader}},
			{199, step, nil},
			{200, step, []Action{SignalMembers}},
			{399, step, nil},
			{400, step, []Action{Kill}},
			{599, step, nil},
			{600, step, []Action{GiveUp}},
			{700, step, nil},
		}, -1},
		{"ends on EOF", policy, []at{{0, begin, []Action{CloseStdin}}, {50, empty, nil}, {1000, step, nil}}, -1},
		{"leader exits on EOF, others stay", policy, []at{
			{0, begin, []Action{CloseStdin}},
			{50, gone, []Action{SignalMembers}},
			{350, step, []Action{Kill}},
		}, 550},
		{"no stdin to close", noStdin, []at{{0, begin, []Action{SignalLeader}}}, 100},
		{"members as soon as the leader is gone", noStdin, []at{
			{0, begin, []Action{SignalLeader}},
			{10, gone, []Action{SignalMembers}},
		}, 300},
		{"members once", noStdin, []at{
			{0, begin, []Action{SignalLeader}},
			{100, step, []Action{SignalMembers}},
			{110, gone, nil},
		}, 300},
		{"everyone at once", everyone, []at{{0, begin, []Action{SignalLeader, SignalMembers}}}, 300},
		{"leader only", leaderOnly, []at{
			{0, begin, []Action{SignalLeader}},
			{10, gone, nil},
			{300, step, []Action{Kill}},
		}, 500},
		{"no grace", noGrace, []at{{0, begin, []Action{Kill}}}, 200},
		{"leftovers: the leader is gone before", noStdin, []at{
			{0, gone, nil},
			{10, begin, []Action{SignalMembers}},
		}, 310},
		{"killed at once", policy, []at{{0, hasten, []Action{CloseStdin, Kill}}}, 200},
		{"killed in stdin grace", policy, []at{{0, begin, []Action{CloseStdin}}, {10, hasten, []Action{Kill}}}, 210},
		{"killed in grace", noStdin, []at{{0, begin, []Action{SignalLeader}}, {10, hasten, []Action{Kill}}}, 210},
		{"a second kill changes nothing", noGrace, []at{{0, begin, []Action{Kill}}, {10, hasten, nil}}, 200},
		{"a second begin changes nothing", noStdin, []at{{0, begin, []Action{SignalLeader}}, {250, begin, nil}}, 100},
		{"late by more than everything", policy, []at{
			{0, begin, []Action{CloseStdin}},
			{100, step, []Action{SignalLeader}},
			{5000, step, []Action{Kill}},
			{5200, step, []Action{GiveUp}},
		}, -1},
		{"empty before it began", policy, []at{{0, empty, nil}, {10, begin, nil}}, -1},
	} {
		t.Run(tt.name, func(t *testing.T) {
			start := time.Unix(1000, 0)
			l := &Ladder{Policy: tt.policy}
			for _, in := range tt.script {
				got := in.do(l, start.Add(time.Duration(in.ms)*ms))
				if d := cmp.Diff(in.want, got); d != "" {
					t.Fatalf("at %d ms (-want +got):\n%s", in.ms, d)
				}
			}
			next, ok := l.Next()
			switch {
			case tt.next < 0 && ok:
				t.Errorf("next due after %v, want never", next.Sub(start))
			case tt.next >= 0 && (!ok || next.Sub(start) != time.Duration(tt.next)*ms):
				t.Errorf("next due after %v (%v), want %d ms", next.Sub(start), ok, tt.next)
			}
		})
	}
}

// After a standstill what was struck gets the time to die that it did not have, once.
func TestLadderAfterAStandstill(t *testing.T) {
	now := time.Unix(1000, 0)
	l := &Ladder{Policy: Policy{KillWait: 2 * time.Second}}
	l.Hasten(now, 0)
	for _, step := range []struct {
		after time.Duration
		want  []Action
	}{{1900 * time.Millisecond, nil}, {3 * time.Second, nil}, {400 * time.Millisecond, nil}, {3 * time.Second, []Action{GiveUp}}} {
		now = now.Add(step.after)
		if got := l.Step(now); !slices.Equal(got, step.want) {
			t.Errorf("%v later it asks for %v, want %v", step.after, got, step.want)
		}
	}
}

// Whatever happens, and however often a stop is asked for, a ladder that is
// stepped when it is due ends within the sum of its waits, asks for each rung
// at most once and in order, and a second stop never makes it longer.
func TestLadderIsBounded(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		d := rapid.Map(rapid.IntRange(0, 50), func(n int) time.Duration { return time.Duration(n) * time.Millisecond })
		p := Policy{
			Signal: 15, StdinGrace: d.Draw(t, "stdin grace"), Grace: d.Draw(t, "grace"), KillWait: d.Draw(t, "kill wait"),
			Audience: Audience(rapid.IntRange(0, 2).Draw(t, "audience")), Stdin: rapid.Bool().Draw(t, "stdin"),
		}
		l := &Ladder{Policy: p}
		now := time.Unix(1000, 0)
		start := now
		got := l.Begin(now)
		for range 200 {
			next, ok := l.Next()
			if !ok {
				break
			}
			before := next
			switch rapid.IntRange(0, 4).Draw(t, "input") {
			case 0:
				l.LeaderGone()
			case 1:
				got = append(got, l.Hasten(now, d.Draw(t, "hasten"))...)
				if after, ok := l.Next(); ok && l.rung == rungSignal && after.After(before) && !l.membersHad {
					t.Fatalf("a second stop moved the next rung from %v to %v", before.Sub(start), after.Sub(start))
				}
				continue
			case 2:
				now = now.Add(time.Duration(rapid.Int64Range(0, int64(next.Sub(now))).Draw(t, "early")))
			default:
				now = next
			}
			got = append(got, l.Step(now)...)
		}
		if total := now.Sub(start); total > p.StdinGrace+p.Grace+p.KillWait {
			t.Fatalf("took %v, more than %v + %v + %v", total, p.StdinGrace, p.Grace, p.KillWait)
		}
		if len(got) == 0 || got[len(got)-1] != GiveUp {
			t.Fatalf("did not come to its end: %v", got)
		}
		if !slices.IsSorted(got) || len(slices.Compact(slices.Clone(got))) != len(got) {
			t.Fatalf("rungs out of order or twice: %v", got)
		}
	})
}
