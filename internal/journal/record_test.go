package journal

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

var testBegin = Begin{
	Version: version, ID: "ABC123", Program: "/opt/caf\xe9/<tool> \"x\"", Owner: "tenant\n7", Session: true,
	Began: time.Date(2026, 3, 4, 5, 6, 7, 891011121, time.UTC), Peer: "PEER", Boot: "b-1",
	Holder: 4711, Cgroup: "/user.slice/\xff\xfe", Group: "curfew-\xff", TempDir: "/tmp/\u2028x\ufffd",
}

var testEnd = End{
	Writer: "supervisor", At: time.Date(2026, 3, 4, 5, 6, 8, 1, time.UTC), Report: json.RawMessage(`{"exit":{"code":3},"note":"<&>"}`),
}

func mustEncode(t testing.TB, b Begin, ends ...End) (begin []byte, lines [][]byte) {
	t.Helper()
	begin, err := encodeBegin(b)
	for _, e := range ends {
		text, endErr := encodeEnd(e)
		lines, err = append(lines, text), errors.Join(err, endErr)
	}
	if err != nil {
		t.Fatal(err)
	}
	return begin, lines
}

func TestRecordRoundTrip(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name  string
		begin Begin
		ends  []End
	}{
		{"all fields", testBegin, []End{testEnd}},
		{"no end", testBegin, nil},
		{"the least", Begin{Version: version, ID: "1", Peer: "2"}, []End{{}}},
		{"a report that is null", testBegin, []End{{Report: json.RawMessage("null")}}},
		{"the first end counts", testBegin, []End{testEnd, {Writer: "guard"}}},
	} {
		begin, ends := mustEncode(t, test.begin, test.ends...)
		got, err := parseRecord(append(begin, bytes.Join(ends, nil)...), test.begin.ID)
		want := Entry{Begin: test.begin}
		if len(test.ends) > 0 {
			want.End = &test.ends[0]
		}
		if diff := cmp.Diff(want, got); diff != "" || err != nil {
			t.Errorf("%s: %v\n%s", test.name, err, diff)
		}
	}
}

// A record has names of its own: to rename a field of a Go type changes none of them, so a
// record that was written before can be read.
func TestRecordForm(t *testing.T) {
	t.Parallel()
	const begin = `126b9d28 {"begin":{"version":2,"id":"ABC123","program":{"base64":"L29wdC9jYWbpLzx0b29sPiAieCI="},"owner":"tenant\n7","session":true,"began":"2026-03-04T05:06:07.891011121Z",` +
		`"peer":"PEER","boot":"b-1","holder":4711,"cgroup":{"base64":"L3VzZXIuc2xpY2Uv//4="},"group":{"base64":"Y3VyZmV3Lf8="},"temp_dir":"/tmp/\u2028x�"}}` + "\n"
	const end = `5691fbd8 {"end":{"writer":"supervisor","at":"2026-03-04T05:06:08.000000001Z","report":{"exit":{"code":3},"note":"<&>"}}}` + "\n"
	gotBegin, gotEnds := mustEncode(t, testBegin, testEnd)
	if d := cmp.Diff(begin+end, string(gotBegin)+string(gotEnds[0])); d != "" {
		t.Errorf("the form has changed, so its version has to (-want +got):\n%s", d)
	}
	got, err := parseRecord([]byte(begin+end), "ABC123")
	if d := cmp.Diff(Entry{Begin: testBegin, End: &testEnd}, got); d != "" || err != nil {
		t.Errorf("%v (-want +got):\n%s", err, d)
	}
	for _, line := range []reflect.Type{reflect.TypeFor[beginLine](), reflect.TypeFor[endLine]()} {
		for i := range line.NumField() {
			if name, _, _ := strings.Cut(line.Field(i).Tag.Get("json"), ","); name == "" {
				t.Errorf("%s.%s has no name", line, line.Field(i).Name)
			}
		}
	}
}

// A torn record is never taken for another record.
func TestTornRecord(t *testing.T) {
	t.Parallel()
	begin, ends := mustEncode(t, testBegin, testEnd)
	for n := range begin[:len(begin)-1] {
		if got, err := parseRecord(begin[:n], testBegin.ID); !errors.Is(err, ErrDamaged) {
			t.Errorf("%d bytes of a begin: %v, %v, want damaged", n, got, err)
		}
	}
	for n := range len(ends[0]) + 1 {
		got, err := parseRecord(append(bytes.Clone(begin), ends[0][:n]...), testBegin.ID)
		whole := n >= len(ends[0])-1 // only the line feed is missing
		if err != nil || (got.End != nil) != whole || !cmp.Equal(got.Begin, testBegin) {
			t.Errorf("a begin and %d of %d bytes of an end: %v, %v", n, len(ends[0]), got, err)
		}
	}
}

func TestFlippedBits(t *testing.T) {
	t.Parallel()
	begin, ends := mustEncode(t, testBegin, testEnd)
	text := append(bytes.Clone(begin), ends[0]...)
	for i := range 8 * len(text) {
		flipped := bytes.Clone(text)
		flipped[i/8] ^= 1 << (i % 8)
		got, err := parseRecord(flipped, testBegin.ID)
		if i/8 < len(begin) {
			if !errors.Is(err, ErrDamaged) {
				t.Fatalf("bit %d, in the begin: %v, %v, want damaged", i, got, err)
			}
			continue
		}
		if err != nil || got.End != nil || !cmp.Equal(got.Begin, testBegin) {
			t.Fatalf("bit %d, in the end: %v, %v, want no end", i, got, err)
		}
	}
}

func TestRecordsThatAreNone(t *testing.T) {
	t.Parallel()
	begin, ends := mustEncode(t, testBegin, testEnd)
	seal := func(format string, args ...any) string { return string(sealed(fmt.Appendf(nil, format, args...))) }
	for _, test := range []struct {
		name, text string
		want       error
	}{
		{"empty", "", ErrDamaged},
		{"zeros", strings.Repeat("\x00", 4096), ErrDamaged},
		{"an end first", string(ends[0]), ErrDamaged},
		{"both in one", seal(`{"begin":{"version":2,"id":"ABC123","peer":"P"},"end":{}}`), ErrDamaged},
		{"no version", seal(`{"begin":{"id":"ABC123","peer":"P"}}`), ErrDamaged},
		{"version -1", seal(`{"begin":{"version":-1,"id":"ABC123","peer":"P"}}`), ErrDamaged},
		{"version 0", seal(`{"begin":{"version":0,"id":"ABC123","peer":"P"}}`), ErrDamaged},
		{"another id", seal(`{"begin":{"version":2,"id":"ABC124","peer":"P"}}`), ErrDamaged},
		{"a peer that is a path", seal(`{"begin":{"version":2,"id":"ABC123","peer":"../../x"}}`), ErrDamaged},
		{"no peer", seal(`{"begin":{"version":2,"id":"ABC123"}}`), ErrDamaged},
		{"a list", seal(`[]`), ErrDamaged},
		{"no JSON", seal(`begin`), ErrDamaged},
		{"newer", seal(`{"begin":{"version":99,"id":"ABC123","peer":"P"}}`), ErrNewer},
		{"newer, of another form", seal(`{"begin":{"version":100,"id":[7],"peer":{}},"more":1}`), ErrNewer},
		{"older", seal(`{"begin":{"version":1,"id":"ABC123","peer":"P"}}`), ErrForeign},
		{"older, of another form", seal(`{"begin":{"version":1,"id":[7]}}`), ErrForeign},
		{"a second begin", string(begin) + string(begin), ErrDamaged},
		{"a line of another kind", string(begin) + seal(`{"pause":{}}`), ErrDamaged},
		{"an end of another form", string(begin) + seal(`{"end":{"at":7}}`), ErrDamaged},
		{"a line of another kind after the end", string(begin) + string(ends[0]) + seal(`{"pause":{}}`), nil},
	} {
		if _, err := parseRecord([]byte(test.text), "ABC123"); !errors.Is(err, test.want) {
			t.Errorf("%s: %v, want %v", test.name, err, test.want)
		}
	}
}

// FuzzRecord parses any content, with correct checksums too: whatever is accepted as a record is
// consistent, and lines that are added later do not change its meaning.
func FuzzRecord(f *testing.F) {
	begin, ends := mustEncode(f, testBegin, testEnd, End{Writer: "guard"})
	for _, seed := range [][]byte{
		begin, slices.Concat(begin, ends[0]), slices.Concat(begin, ends[0], ends[1]),
		slices.Concat(begin, ends[0][:20], []byte{'\n'}, ends[1]), slices.Concat(begin, ends[0][:20]), begin[:30], ends[0], nil,
		slices.Concat(begin, make([]byte, 100)), slices.Concat(begin, []byte("\n\n"), ends[0]),
	} {
		f.Add(seed, false)
	}
	for _, seed := range []string{
		`{"begin":{"version":2,"id":"ABC123","program":"x","began":"2026-01-01T00:00:00+14:00","peer":"P"}}`,
		`{"begin":{"version":2,"id":"ABC123","program":{"base64":"/w=="},"peer":"P"}}` + "\n" + `{"end":{"writer":"w","report":[1, 2]}}`,
		`{"begin":{"version":99}}`, `{"begin":null}`, `{"begin":{"version":2,"id":null,"peer":{}}}`, `{}`, `null`,
		`{"BEGIN":{"VERSION":1,"ID":"ABC123","PEER":"P"}}`, `{"begin":{"version":2,"id":"ABC123","peer":"P","temp_dev":1e3}}`,
	} {
		f.Add([]byte(seed), true)
	}
	f.Fuzz(func(t *testing.T, data []byte, seal bool) {
		if seal {
			var lines []byte
			for line := range bytes.Lines(data) {
				lines = append(lines, sealed(bytes.TrimSuffix(line, []byte{'\n'}))...)
			}
			data = lines
		}
		got, err := parseRecord(data, "ABC123")
		if err != nil {
			if !errors.Is(err, ErrDamaged) && !errors.Is(err, ErrNewer) && !errors.Is(err, ErrForeign) {
				t.Fatalf("an error of no kind: %v", err)
			}
			return
		}
		first, _, _ := strings.Cut(string(data), "\n")
		if len(first) < 9 || first[:9] != fmt.Sprintf("%08x ", crc32.ChecksumIEEE([]byte(first[9:]))) {
			t.Fatalf("the checksum of the first line is wrong: %q", first)
		}
		if got.Begin.ID != "ABC123" || got.Begin.Version != version || !validName(got.Begin.Peer) {
			t.Fatalf("not a begin: %+v", got.Begin)
		}
		later := append(append(bytes.Clone(data), '\n'), ends[1]...)
		with, err := parseRecord(later, "ABC123")
		if err != nil || with.End == nil || !cmp.Equal(with.Begin, got.Begin) {
			t.Fatalf("with an end added: %+v, %v", with, err)
		}
		want := got.End
		if want == nil {
			want = &End{Writer: "guard"}
		}
		if diff := cmp.Diff(want, with.End); diff != "" {
			t.Fatalf("the first end does not count:\n%s", diff)
		}
		// A record that can be written is read as it was.
		text, err := encodeBegin(got.Begin)
		if err != nil {
			return // a year that RFC 3339 does not have, in UTC
		}
		again, err := parseRecord(text, "ABC123")
		if diff := cmp.Diff(got.Begin, again.Begin); diff != "" || err != nil {
			t.Fatalf("written again: %v\n%s", err, diff)
		}
	})
}
