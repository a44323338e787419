package wire

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"curfew/outcome"
	"curfew/proctree"
)

// heard is what an inbox makes of a stream.
type heard struct {
	messages []*Message
	raws     []string
	files    [][]int
	failed   bool
}

// naiveInbox reads a whole stream at once, with all its descriptors.
func naiveInbox(b []byte, files []int) (all heard) {
	for len(b) >= 8 {
		j, r := int64(binary.BigEndian.Uint32(b)), int64(binary.BigEndian.Uint32(b[4:]))
		if all.failed = j < 1 || j > 1<<20 || r > 16<<20; all.failed {
			return all
		}
		if int64(len(b)) < 8+j+r {
			return all
		}
		m, fields := new(Message), map[string]json.RawMessage{}
		if json.Unmarshal(b[8:8+j], m) != nil || json.Unmarshal(b[8:8+j], &fields) != nil {
			all.failed = true
			return all
		}
		// A field is set if it would be written again.
		again, _ := json.Marshal(m)
		fields = nil
		if err := json.Unmarshal(again, &fields); err != nil || len(fields) != 1 {
			all.failed = true
			return all
		}
		n := 0
		switch {
		case m.Run != nil:
			n = 1 + len(m.Run.Numbers)
		case m.Spawn != nil:
			n = 3
		case m.Lost != nil, m.Hello != nil && m.Hello.Pidfd:
			n = 1
		}
		if all.failed = n > len(files); all.failed {
			return all
		}
		all.messages = append(all.messages, m)
		all.raws = append(all.raws, string(b[8+j:8+j+r]))
		all.files = append(all.files, slices.Clone(files[:n]))
		b, files = b[8+j+r:], files[n:]
	}
	return all
}

// FuzzInbox adds what a hostile other end could send, in pieces. The messages do not depend on how
// the stream was cut.
func FuzzInbox(f *testing.F) {
	run := frame(f, &Message{Run: &Run{Settings: Settings{Policy: proctree.Policy{Signal: 15}, Numbers: []int{1}}, Args: 1}}, runRaw("/bin/true", []string{"x"}, nil))
	stop := frame(f, &Message{Stop: &StopRequest{Cause: outcome.CauseCanceled}}, nil)
	spawn := frame(f, &Message{Spawn: &Spawn{"5"}}, nil)
	hello := frame(f, &Message{Hello: &Hello{Version: 1, Pidfd: true}}, []byte("raw"))
	text := func(s string) []byte {
		return append(binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint32(nil, uint32(len(s))), 0), s...)
	}
	for _, seed := range [][]byte{
		run, stop, append(bytes.Clone(run), stop...), append(bytes.Clone(stop), run...), slices.Concat(spawn, spawn, hello, run, stop), stop[:len(stop)-1], stop[:7],
		text("{}"), text("null"), text(`{"ready":{},"stop":{}}`), text(`{"ready":null,"stop":{}}`), text(`{"ready":{}} x`), text(`{"RUN":{"ARGS":1}}`),
		text(`{"run":{"args":1},"run":{"env":2}}`), text(`{"hello":{"version":1,"state":["a"]}}`), text(`{"unknown":1}`), text(`{"failed":{"error":"` + "\xff" + `"}}`),
		{0, 0, 0, 0, 0, 0, 0, 0}, {0, 16, 0, 1, 0, 0, 0, 0}, {0, 0, 0, 2, 1, 0, 0, 1}, bytes.Repeat([]byte{255}, 9), slices.Concat(stop, []byte{255, 255, 255, 255, 255, 255, 255, 255}),
	} {
		for _, piece := range []uint8{0, 2, 199} {
			f.Add(seed, piece, uint8(7))
		}
		f.Add(seed, uint8(6), uint8(0))
		f.Add(seed, uint8(255), uint8(255))
	}
	f.Fuzz(func(t *testing.T, b []byte, piece, files uint8) {
		fds := make([]int, files)
		for i := range fds {
			fds[i] = 100 + i
		}
		want := naiveInbox(b, fds)
		var got heard
		in := inbox{}
		given := fds
		for rest := b; len(rest) > 0 && !got.failed; {
			n := min(int(piece)+1, len(rest))
			got.failed = in.add(rest[:n], given) != nil
			given = nil // they came with the first bytes
			rest = rest[n:]
			for !got.failed {
				m, raw, files, err := in.next()
				got.failed = err != nil
				if m == nil || err != nil {
					break
				}
				got.messages, got.raws = append(got.messages, m), append(got.raws, string(raw))
				got.files = append(got.files, files)
			}
			if len(in.buf) > FrameHeader+MaxJSON+MaxRaw+n || len(in.buf) > len(b) {
				t.Fatalf("%d bytes are kept", len(in.buf))
			}
		}
		if got.failed != want.failed || len(got.messages) != len(want.messages) {
			t.Fatalf("%d messages, failed: %v; want %d, %v", len(got.messages), got.failed, len(want.messages), want.failed)
		}
		for i := range got.messages {
			if d := cmp.Diff(want.messages[i], got.messages[i]); d != "" {
				t.Errorf("message %d (-want +got):\n%s", i, d)
			}
			if got.raws[i] != want.raws[i] || !slices.Equal(got.files[i], want.files[i]) {
				t.Errorf("message %d has %q and %v, want %q and %v", i, got.raws[i], got.files[i], want.raws[i], want.files[i])
			}
			again, err := Encode(got.messages[i], []byte(got.raws[i]))
			if err != nil {
				continue // with escapes it can be longer than a message may be
			}
			j, _, err := FrameSize(again)
			if err != nil {
				t.Fatal(err)
			}
			m, err := Decode(again[FrameHeader : FrameHeader+j])
			if err != nil {
				t.Fatalf("what was encoded is not decoded: %v\n%s", err, again[FrameHeader:])
			}
			if d := cmp.Diff(got.messages[i], m); d != "" {
				t.Errorf("encoded and decoded again (-want +got):\n%s", d)
			}
		}
	})
}

// FuzzRequest reads requests from their raw part. The strings are those that it was made from.
func FuzzRequest(f *testing.F) {
	good := runRaw("/bin/true", []string{"true", "", "\xff"}, []string{"A=b"})
	for _, counts := range [][2]int{{3, 1}, {4, 0}, {1, 3}, {3, 2}, {0, 4}, {-1, 5}, {1 << 20, 0}, {1<<20 + 1, 0}, {3, -1}, {1 << 40, 1 << 40}} {
		f.Add(good, counts[0], counts[1], 15, 0, int64(0), int64(1e9), []byte{0, 1})
	}
	for _, signal := range []int{0, -1, 1, 64, 65, 1e9} {
		f.Add(good, 3, 1, signal, 0, int64(0), int64(0), []byte{})
	}
	for _, word := range []int{1, 2, 3, -1, 100} {
		f.Add(good, 3, 1, 15, word, int64(0), int64(0), []byte{5})
	}
	f.Add(good, 3, 1, 15, 0, int64(-1), int64(0), []byte{0})
	f.Add(good, 3, 1, 15, 0, int64(0), int64(-1<<63), []byte{0})
	f.Add(good, 3, 1, 15, 0, int64(1<<63-1), int64(1<<63-1), []byte{0, 0})
	f.Add(good, 3, 1, 15, 0, int64(0), int64(0), []byte{200, 201, 255})
	f.Add(good[:len(good)-1], 3, 1, 15, 0, int64(0), int64(0), []byte{})
	f.Add(append(bytes.Clone(good), 0), 3, 1, 15, 0, int64(0), int64(0), []byte{})
	f.Add([]byte{255, 255, 255, 255, 0}, 1, 0, 15, 0, int64(0), int64(0), []byte{})
	f.Add(bytes.Repeat([]byte{0}, 4*5), 2, 2, 9, 1, int64(0), int64(0), []byte{})
	f.Fuzz(func(t *testing.T, raw []byte, args, env, signal, word int, timeout, grace int64, numbers []byte) {
		r := &Run{Args: args, Env: env}
		r.Signal, r.AfterExit, r.Audience = signal, AfterExit(word), proctree.Audience(word)
		r.Timeout, r.Grace = time.Duration(timeout), time.Duration(grace)
		hole := false
		for _, n := range numbers {
			// Above 200 stands for impossible numbers.
			v := int(n)
			if n > 200 {
				v, hole = []int{-1, MaxFileNumber, 1 << 40, -1 << 63}[n%4], true
			}
			r.Numbers = append(r.Numbers, v)
		}
		fds := make([]int, len(numbers)+1)
		for i := range fds {
			fds[i] = 100 + i
		}
		q, err := r.Request(raw, fds)
		if err != nil {
			if q != nil {
				t.Error("something comes with an error")
			}
		} else {
			if len(q.Args) != args || len(q.Env) != env || !bytes.Equal(runRaw(q.Path, q.Args, q.Env), raw) {
				t.Errorf("%d and %d strings, which are not what came: want %d and %d", len(q.Args), len(q.Env), args, env)
			}
			if q.Dir != fds[0] || !slices.Equal(q.Files, fds[1:]) {
				t.Errorf("descriptors %d and %v, want those of %v", q.Dir, q.Files, fds)
			}
			twice := len(slices.Compact(slices.Sorted(slices.Values(r.Numbers)))) != len(r.Numbers)
			if hole || twice || signal < 1 || signal > 64 || word < 0 || word > 2 || timeout < 0 || grace < 0 || args < 1 {
				t.Errorf("taken: %+v", r)
			}
		}
		if _, err := r.Request(raw, fds[1:]); err == nil {
			t.Error("taken with a descriptor too few")
		}
		// A request that was encoded comes out as it went in.
		list := strings.SplitN(string(raw), "\x00", 8)
		want := &Request{Settings: Settings{Policy: proctree.Policy{Signal: 15}}, Path: "x", Args: list, Env: list, Dir: fds[0], Files: []int{}}
		b, err := want.encode()
		if err != nil {
			t.Fatal(err)
		}
		in := inbox{}
		if err := in.add(b, fds[:1]); err != nil {
			t.Fatal(err)
		}
		m, raw, files, err := in.next()
		if err != nil {
			t.Fatal(err)
		}
		got, err := m.Run.Request(raw, files)
		if d := cmp.Diff(want, got); d != "" || err != nil {
			t.Errorf("%v (-want +got):\n%s", err, d)
		}
	})
}
