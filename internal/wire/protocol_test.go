package wire

import (
	"bytes"
	"encoding/binary"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"curfew/outcome"
	"curfew/proctree"
)

func frame(t testing.TB, m *Message, raw []byte) []byte {
	t.Helper()
	b, err := Encode(m, raw)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func runRaw(path string, args, env []string) []byte {
	raw := AppendString(nil, path)
	for _, s := range append(append([]string(nil), args...), env...) {
		raw = AppendString(raw, s)
	}
	return raw
}

func TestMessagesComeOutAsTheyWentIn(t *testing.T) {
	messages := []*Message{
		{Run: &Run{Settings: Settings{Duties: Duties{ID: "X"}, Timeout: time.Second, Policy: proctree.Policy{Signal: 15}, Numbers: []int{0, 2, 63}}, Args: 2, Env: 1}},
		{Stop: &StopRequest{Cause: outcome.CauseCanceled, Signal: 2}},
		{Done: &Done{Started: true, Exit: &outcome.Exit{Code: 3}, Cleanup: outcome.Cleanup{Result: outcome.CleanupEmpty, Proof: outcome.ProofNoChildren}}},
		{Ready: &struct{}{}},
	}
	var all []byte
	for _, m := range messages {
		all = append(all, frame(t, m, []byte("raw \xff\x00"))...)
	}
	for _, size := range []int{1, 3, 7, 64, len(all)} {
		in := inbox{files: []int{10, 11, 12, 13}}
		var got []*Message
		for rest := all; len(rest) > 0; {
			n := min(size, len(rest))
			if err := in.add(rest[:n], nil); err != nil {
				t.Fatal(err)
			}
			rest = rest[n:]
			for {
				m, raw, _, err := in.next()
				if err != nil {
					t.Fatal(err)
				}
				if m == nil {
					break
				}
				if string(raw) != "raw \xff\x00" {
					t.Errorf("raw part is %q", raw)
				}
				got = append(got, m)
			}
		}
		if d := cmp.Diff(messages, got); d != "" {
			t.Errorf("in pieces of %d (-want +got):\n%s", size, d)
		}
	}
}

// Descriptors that come early belong to the Run, however the stream was cut.
func TestInboxGivesFilesToTheRun(t *testing.T) {
	var in inbox
	run := frame(t, &Message{Run: &Run{Settings: Settings{Numbers: []int{1}}, Args: 1}}, nil)
	if err := in.add(append(frame(t, &Message{Stop: &StopRequest{}}, nil), run[:5]...), []int{7}); err != nil {
		t.Fatal(err)
	}
	if m, _, files, err := in.next(); err != nil || m.Stop == nil || len(files) != 0 {
		t.Fatalf("got %+v %v %v", m, files, err)
	}
	if err := in.add(run[5:], []int{8}); err != nil {
		t.Fatal(err)
	}
	if m, _, files, err := in.next(); err != nil || m.Run == nil || !cmp.Equal(files, []int{7, 8}) {
		t.Fatalf("got %+v %v %v", m, files, err)
	}
}

func TestInboxRefuses(t *testing.T) {
	header := func(j, r uint32) []byte {
		b := binary.BigEndian.AppendUint32(nil, j)
		return binary.BigEndian.AppendUint32(b, r)
	}
	text := func(s string) []byte { return append(header(uint32(len(s)), 0), s...) }
	for name, in := range map[string][]byte{
		"no JSON part":   header(0, 5),
		"JSON too large": header(MaxJSON+1, 0),
		"raw too large":  header(2, MaxRaw+1),
		"all ones":       header(1<<32-1, 1<<32-1),
		"no JSON":        text("hello"),
		"no field":       text("{}"),
		"two fields":     text(`{"stop":{"cause":"canceled"},"ready":{}}`),
		"wrong type":     text(`{"run":{"args":"many"}}`),
		"cut off JSON":   text(`{"stop":{"cause"`),
		"garbage after":  text(`{"ready":{}} x`),
	} {
		t.Run(name, func(t *testing.T) {
			var box inbox
			err := box.add(in, nil)
			if err == nil {
				_, _, _, err = box.next()
			}
			if !errors.Is(err, ErrProtocol) {
				t.Errorf("got %v, want a violated protocol", err)
			}
		})
	}
	t.Run("descriptors without end", func(t *testing.T) {
		var box inbox
		if err := box.add(nil, make([]int, MaxFiles+1)); !errors.Is(err, ErrProtocol) {
			t.Errorf("got %v", err)
		}
	})
}

func TestRequestIsRefused(t *testing.T) {
	good := func() *Run {
		return &Run{Settings: Settings{Policy: proctree.Policy{Signal: 15}, Numbers: []int{0, 1}}, Args: 1, Env: 1}
	}
	raw := runRaw("/bin/true", []string{"true"}, []string{"A=b"})
	if q, err := good().Request(raw, make([]int, 3)); err != nil || q.Path != "/bin/true" || q.Args[0] != "true" || q.Env[0] != "A=b" {
		t.Fatalf("a good one: %+v %v", q, err)
	}
	for name, change := range map[string]func(r *Run) (raw []byte, files int){
		"no arguments":         func(r *Run) ([]byte, int) { r.Args = 0; return raw, 3 },
		"negative count":       func(r *Run) ([]byte, int) { r.Env = -1; return raw, 3 },
		"absurd count":         func(r *Run) ([]byte, int) { r.Args = 1 << 40; return raw, 3 },
		"too few descriptors":  func(r *Run) ([]byte, int) { return raw, 2 },
		"too many descriptors": func(r *Run) ([]byte, int) { return raw, 4 },
		"no directory":         func(r *Run) ([]byte, int) { return raw, 0 },
		"number twice":         func(r *Run) ([]byte, int) { r.Numbers = []int{1, 1}; return raw, 3 },
		"negative number":      func(r *Run) ([]byte, int) { r.Numbers = []int{-1, 1}; return raw, 3 },
		"huge number":          func(r *Run) ([]byte, int) { r.Numbers = []int{1 << 40, 1}; return raw, 3 },
		"no signal":            func(r *Run) ([]byte, int) { r.Signal = 0; return raw, 3 },
		"negative time":        func(r *Run) ([]byte, int) { r.Grace = -1; return raw, 3 },
		"unknown after_exit":   func(r *Run) ([]byte, int) { r.AfterExit = 9; return raw, 3 },
		"raw part cut":         func(r *Run) ([]byte, int) { return raw[:len(raw)-1], 3 },
		"raw part empty":       func(r *Run) ([]byte, int) { return nil, 3 },
		"raw part too long":    func(r *Run) ([]byte, int) { return append(bytes.Clone(raw), 0), 3 },
		"length beyond":        func(r *Run) ([]byte, int) { return []byte{255, 255, 255, 255, 0}, 3 },
	} {
		t.Run(name, func(t *testing.T) {
			r := good()
			raw, files := change(r)
			if _, err := r.Request(raw, make([]int, files)); !errors.Is(err, ErrProtocol) {
				t.Errorf("got %v, want a violated protocol", err)
			}
		})
	}
}

// A message with fewer descriptors than it needs is refused.
func TestInboxMissesFiles(t *testing.T) {
	for name, m := range map[string]*Message{
		"spawn": {Spawn: &Spawn{"5"}},
		"lost":  {Lost: &Lost{ID: "5"}},
		"run":   {Run: &Run{Settings: Settings{Numbers: []int{0, 1}}}},
	} {
		in := inbox{}
		if err := in.add(frame(t, m, nil), make([]int, m.files()-1)); err != nil {
			t.Fatal(err)
		}
		if _, _, _, err := in.next(); !errors.Is(err, ErrProtocol) {
			t.Errorf("%s: got %v", name, err)
		}
	}
}

func TestEncodeRefusesWhatCannotBeSent(t *testing.T) {
	if _, err := Encode(&Message{Ready: &struct{}{}}, make([]byte, MaxRaw+1)); err == nil {
		t.Error("a raw part beyond the limit was encoded")
	}
	if _, err := Encode(&Message{Failed: &Failed{Text: strings.Repeat("x", MaxJSON)}}, nil); err == nil {
		t.Error("a JSON part beyond the limit was encoded")
	}
}
