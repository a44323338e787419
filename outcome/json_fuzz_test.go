package outcome_test

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"math"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	"curfew/internal/verdict"
	. "curfew/outcome"
)

// maker makes an outcome of the bytes of a fuzz target. The outcome need not make
// sense.
type maker struct{ b []byte }

func (m *maker) byte() byte {
	if len(m.b) == 0 {
		return 0
	}
	c := m.b[0]
	m.b = m.b[1:]
	return c
}

func (m *maker) int() int64 {
	switch c := m.byte(); {
	case c < 200:
		return int64(c)
	case c < 240:
		return []int64{-1, math.MinInt64, math.MaxInt64, 1 << 40, 999_999, 1_000_001, 256, 65, 127, 128}[c%10]
	}
	var b [8]byte
	m.b = m.b[copy(b[:], m.b):]
	return int64(binary.LittleEndian.Uint64(b[:]))
}

func (m *maker) text() string {
	n := min(int(m.byte())%16, len(m.b))
	s := string(m.b[:n])
	m.b = m.b[n:]
	return s
}

func (m *maker) bytes() []byte {
	if m.byte()%4 == 0 {
		return nil
	}
	return []byte(m.text())
}

func (m *maker) time() time.Time {
	switch m.byte() % 4 {
	case 0:
		return time.Time{}
	case 1:
		return sampleStart.In(time.FixedZone("", int(m.int()%86400)))
	}
	return time.Unix(m.int()%(1<<40), m.int()%1e9).UTC()
}

func pickOf[T any](m *maker, from ...T) T { return from[int(m.byte())%len(from)] }

func list[T any](m *maker, make func() T) (all []T) {
	for range m.byte() % 3 {
		all = append(all, make())
	}
	return all
}

func (m *maker) process() Process { return Process{int(m.int()), m.time(), m.text()} }

func (m *maker) outcome() Outcome {
	o := Outcome{
		ID:     m.text(),
		Status: pickOf(m, StatusNotStarted, StatusSucceeded, StatusFailed, StatusUnknown, StatusStopped, ""),
		Cause: pickOf(m, CauseExit, CauseTimeout, CauseCanceled, CauseShutdown, CauseIdle, CauseOutputLimit, CauseSupervisorLost, CauseHostLost,
			CauseStartFailed, "no such"),
		Stdout: m.bytes(), Stderr: m.bytes(),
		Output: Output{
			Stdout:          Stream{m.int(), m.int(), m.byte()&1 != 0, m.int(), m.text()},
			DrainIncomplete: m.byte()&1 != 0, StdinError: m.text(), Abandoned: int(m.int()),
		},
		Started: m.time(), Ended: m.time(), Elapsed: time.Duration(m.int()),
		Usage: Usage{time.Duration(m.int()), time.Duration(m.int()), m.int()},
	}
	if m.byte()&1 != 0 {
		o.Exit = &Exit{Code: int(m.int()), Signal: int(m.int()), CoreDumped: m.byte()&1 != 0, AfterStop: m.byte()&1 != 0}
	}
	if m.byte()&1 != 0 {
		o.Cleanup = Cleanup{
			Result: pickOf(m, CleanupEmpty, CleanupSurvivors, CleanupLeft, CleanupUnverified, "", "no such"), Proof: pickOf(m, ProofNoChildren, ProofChildList, ProofScans, ProofNone, "", "no such"),
			HelperLost: m.byte()&1 != 0,
			Steps: list(m, func() Step {
				return Step{pickOf(m, StepKill, StepEmpty, StepGiveUp, "x"), int(m.int()), time.Duration(m.int())}
			}),
			Ended:     list(m, func() Ended { return Ended{m.process(), int(m.int())} }),
			EndedMore: int(m.int()),
			Survivors: list(m, func() Survivor { return Survivor{m.process(), m.text(), m.text()} }),
			LeftAlive: list(m, m.process), Suspects: list(m, m.process),
			TempDirs: list(m, func() TempDir { return TempDir{m.text(), m.text()} }),
			Elapsed:  time.Duration(m.int()),

			JournalError: m.text(),
		}
	}
	switch kind := m.byte() % 4; {
	case kind == 1:
		o.Err = errors.New(m.text())
	case kind == 2 && doubtful(o) == "": // Err panics if Decide cannot have returned it
		o.Err = verdict.Err(&o, verdict.Why{Program: m.text(), Cause: errors.New(m.text()), Timeout: time.Duration(m.int())})
	}
	return o
}

// FuzzOutcomeWritten writes any outcome. The result is valid JSON, whatever the outcome is.
// The reader either refuses it and names a field, or returns every fact as it was, as far as
// JSON can hold it: in texts, U+FFFD stands for what is not UTF-8.
func FuzzOutcomeWritten(f *testing.F) {
	for i := range byte(40) {
		b := bytes.Repeat([]byte{i, i * 7, 255 - i, 3, 0, i * 31}, 20)
		f.Add(b)
	}
	f.Add([]byte{})
	f.Add(bytes.Repeat([]byte{1}, 200))
	f.Add(append([]byte{2, 'i', 'd', 1, 0, 1, 3, 0xff, 0xfe, 0xfd}, bytes.Repeat([]byte{0, 1, 0}, 40)...))
	f.Fuzz(func(t *testing.T, b []byte) {
		m := maker{b}
		o := m.outcome()
		data, err := json.Marshal(o)
		if err != nil {
			for _, at := range times(o) {
				if y := at.UTC().Year(); y < 0 || y > 9999 {
					return
				}
			}
			t.Fatalf("not written: %v\n%+v", err, o)
		}
		if !utf8.Valid(data) {
			t.Error("what is written is not UTF-8")
		}
		var got Outcome
		if err := json.Unmarshal(data, &got); err != nil {
			if !strings.HasPrefix(err.Error(), "outcome: read ") {
				t.Errorf("error without origin: %v", err)
			}
			if why := doubtful(o); why == "" {
				t.Errorf("refused: %v\n%s", err, data)
			}
			if got.ID != "" || got.Status != "" {
				t.Errorf("refused, and changed to %+v", got)
			}
			return
		}
		if d := cmp.Diff(asWritten(o), got, same); d != "" {
			t.Errorf("(-want +got):\n%s", d)
		}
		again, err := json.Marshal(got)
		// U+FFFD stands for what was not UTF-8 by now, and needs no escape.
		plain := func(b []byte) []byte { return bytes.ReplaceAll(b, []byte(`\ufffd`), []byte("\ufffd")) }
		if err != nil || !bytes.Equal(plain(again), plain(data)) {
			t.Errorf("written again it is another, %v:\n%s\n%s", err, data, again)
		}
	})
}

func times(o Outcome) []time.Time {
	all := []time.Time{o.Started, o.Ended}
	for _, p := range processes(o) {
		all = append(all, p.Start)
	}
	return all
}

func processes(o Outcome) (all []Process) {
	all = append(append(all, o.Cleanup.LeftAlive...), o.Cleanup.Suspects...)
	for _, e := range o.Cleanup.Ended {
		all = append(all, e.Process)
	}
	for _, s := range o.Cleanup.Survivors {
		all = append(all, s.Process)
	}
	return all
}

// valid reports whether e is a code or a signal, and not both or neither.
func valid(e Exit) bool {
	if e.Signal == 0 {
		return e.Code >= 0 && e.Code <= 255 && !e.CoreDumped
	}
	return e.Signal > 0 && e.Signal <= 127 && e.Code == -1
}

// complete reports whether every stream was copied to its end.
func complete(o Output) bool { return o.Stdout.WriteError+o.Stderr.WriteError+o.StdinError == "" }

// doubtful names a field of o that no invocation can have had. The reader need not refuse all
// of them.
func doubtful(o Outcome) string {
	for _, n := range []int64{o.Output.Stdout.Seen, o.Output.Stdout.Kept, o.Output.Stdout.HeadBytes, int64(o.Output.Abandoned), o.Usage.MaxRSSBytes, int64(o.Cleanup.EndedMore)} {
		if n < 0 {
			return "a count"
		}
	}
	for _, p := range processes(o) {
		if p.PID < 0 {
			return "a pid"
		}
	}
	signals := []int{}
	for _, s := range o.Cleanup.Steps {
		if s.Name == "x" {
			return "a step"
		}
		signals = append(signals, s.Signal)
	}
	for _, e := range o.Cleanup.Ended {
		signals = append(signals, e.LastSignal)
	}
	for _, n := range signals {
		if n < 0 || n > 127 {
			return "a signal"
		}
	}
	if o.Cleanup.Result == "no such" || o.Cleanup.Proof == "no such" {
		return "cleanup"
	}
	e := o.Exit
	if e != nil && !valid(*e) {
		return "exit"
	}
	own := e != nil && !e.AfterStop && o.Cause == CauseExit
	ok := false
	switch o.Status {
	case StatusSucceeded:
		ok = own && e.Code == 0 && (o.Err == nil || !complete(o.Output))
	case StatusFailed:
		ok = own && e.Code != 0
	case StatusStopped:
		ok = e != nil && (o.Cause == CauseCanceled || o.Cause == CauseShutdown || o.Cause == CauseIdle) && (o.Err == nil || !complete(o.Output))
	case StatusNotStarted:
		ok = e == nil && o.Cause != CauseExit && o.Cause != "no such"
	case StatusUnknown:
		ok = o.Cause != CauseExit && o.Cause != CauseStartFailed && o.Cause != "no such"
	}
	if !ok {
		return "status"
	}
	return ""
}

// asWritten returns o as its JSON form has it.
func asWritten(o Outcome) Outcome {
	text := func(s string) string { return string([]rune(s)) } // a U+FFFD for each byte that is not UTF-8
	process := func(p Process) Process { return Process{p.PID, p.Start.UTC(), text(p.Name)} }
	all := func(ps []Process) (list []Process) {
		for _, p := range ps {
			list = append(list, process(p))
		}
		return list
	}
	o.ID, o.Output.StdinError, o.Output.Stdout.WriteError = text(o.ID), text(o.Output.StdinError), text(o.Output.Stdout.WriteError)
	for _, d := range []*time.Duration{&o.Elapsed, &o.Usage.User, &o.Usage.System, &o.Cleanup.Elapsed} {
		*d = max(*d, 0)
	}
	if o.Err != nil {
		o.Err = errors.New(text(o.Err.Error()))
	}
	if e := o.Exit; e != nil && e.Signal != 0 {
		o.Exit = &Exit{Code: -1, Signal: e.Signal, CoreDumped: e.CoreDumped, AfterStop: e.AfterStop}
	}
	c := o.Cleanup
	if cmp.Equal(c, Cleanup{}, same) {
		return o
	}
	if c.Result == "" {
		c.Result = CleanupUnverified
	}
	if c.Proof == "" {
		c.Proof = ProofNone
	}
	steps, ended, left, dirs := c.Steps, c.Ended, c.Survivors, c.TempDirs
	c.Steps, c.Ended, c.Survivors, c.TempDirs = nil, nil, nil, nil
	for _, s := range steps {
		c.Steps = append(c.Steps, Step{s.Name, s.Signal, max(s.After, 0)})
	}
	for _, e := range ended {
		c.Ended = append(c.Ended, Ended{process(e.Process), e.LastSignal})
	}
	for _, s := range left {
		c.Survivors = append(c.Survivors, Survivor{process(s.Process), text(s.State), text(s.Reason)})
	}
	for _, d := range dirs {
		c.TempDirs = append(c.TempDirs, TempDir{text(d.Path), text(d.Error)})
	}
	c.LeftAlive, c.Suspects, c.JournalError = all(c.LeftAlive), all(c.Suspects), text(c.JournalError)
	o.Cleanup = c
	return o
}
