package proctree

import (
	"bytes"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// The content of /proc is not trusted: a name has any bytes in it, and a mount in
// place of /proc can contain anything. Each parser is compared with one that is
// written with the standard library, slowly and without care for memory.

// naiveStat is parseStat once more.
func naiveStat(text string) (want stat, name string, ok bool) {
	first, last := strings.Index(text, "("), strings.LastIndex(text, ")")
	if first < 1 || last < first {
		return want, "", false
	}
	// 18 digits are what all numbers of interest have at most, and fit an int64.
	number := func(s string) uint64 {
		n, err := strconv.ParseUint(s, 10, 64)
		if err != nil || len(s) > 18 {
			ok = false
		}
		return n
	}
	fields := strings.FieldsFunc(text[last+1:], func(r rune) bool { return r == ' ' || r == '\n' })
	if len(fields) < 20 || len(fields[0]) != 1 {
		return want, "", false
	}
	ok = true
	want.pid = int(number(strings.TrimRight(text[:first], " ")))
	want.state = fields[0][0]
	want.ppid = int(number(fields[1]))
	want.flags = number(fields[6])
	want.start = number(fields[19])
	lenient := func(s string) int {
		n, err := strconv.ParseUint(s, 10, 64)
		if err != nil || len(s) > 18 {
			return 0
		}
		return int(n)
	}
	want.session, want.threads = lenient(fields[3]), lenient(fields[17])
	name = text[first+1 : last]
	return want, name[:min(len(name), 16)], ok
}

func FuzzParseStat(f *testing.F) {
	for _, comm := range []string{"sleep", "x) S 1 1 (y", "\xff", "", "0123456789abcdefXXX", "a\nb", ")", "("} {
		f.Add([]byte(strings.Replace(realStat, "%", comm, 1)))
	}
	for _, number := range []string{"4711 (", "4242", "4194560", "987654"} {
		for _, other := range []string{"", "0", "-1", "+1", "1_0", "0x10", "9223372036854775807", "9999999999999999999", "99999999999999999999", "000000000000000000000", "  7 "} {
			f.Add([]byte(strings.Replace(realStat, number, other+strings.Repeat(" (", strings.Count(number, "(")), 1)))
		}
	}
	f.Add([]byte(""))
	f.Add([]byte("1 (" + strings.Repeat("x", 5000)))
	f.Fuzz(func(t *testing.T, b []byte) {
		var s stat
		ok := parseStat(b, &s)
		want, name, wantOK := naiveStat(string(b))
		if ok != wantOK {
			t.Fatalf("parsed is %v, want %v", ok, wantOK)
		}
		if !ok {
			return
		}
		if s.pid < 0 || s.ppid < 0 {
			t.Errorf("a negative pid: %+v", s)
		}
		if s.name() != name || s.pid != want.pid || s.ppid != want.ppid || s.state != want.state || s.flags != want.flags || s.start != want.start || s.session != want.session || s.threads != want.threads {
			t.Errorf("got %q %+v, want %q %+v", s.name(), s, name, want)
		}
	})
}

// memory is a file in memory with the given content.
type memory struct{ fd int }

func newMemory(tb testing.TB) memory {
	fd, err := unix.MemfdCreate("fuzz", unix.MFD_CLOEXEC)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { unix.Close(fd) })
	return memory{fd}
}

func (m memory) set(t *testing.T, b []byte) {
	if err := unix.Ftruncate(m.fd, 0); err != nil {
		t.Fatal(err)
	}
	for off := 0; off < len(b); {
		n, err := unix.Pwrite(m.fd, b[off:], int64(off))
		if err != nil {
			t.Fatal(err)
		}
		off += n
	}
}

// FuzzReadChildren reads children files, also such as are longer than what is
// read at once.
func FuzzReadChildren(f *testing.F) {
	for _, s := range []string{"", "1", "2 ", "12 13 14 ", " 12\n13", "0 1 2", "4194304", "2147483647 2147483648 4294967297 99999999999999999999999 5", "-7", "12x13"} {
		f.Add([]byte(s), uint16(0), uint8(0))
		f.Add([]byte(s), uint16(4094), uint8(3))
		f.Add([]byte(s), uint16(4095), uint8(255))
	}
	m := newMemory(f)
	p := &procfs{}
	f.Fuzz(func(t *testing.T, b []byte, pad uint16, room uint8) {
		// What comes before moves it over the border of a read.
		b = append(bytes.Repeat([]byte{' '}, int(pad)%(2*len(p.buf))), b...)
		m.set(t, b)
		list := make([]int32, int(room)+2)
		list[0], list[len(list)-1] = -1, -2
		n := p.readChildren(m.fd, list[:len(list)-1], 1)
		want := []int32{-1}
		for _, word := range strings.FieldsFunc(string(b), func(r rune) bool { return r < '0' || r > '9' }) {
			v, err := strconv.ParseUint(word, 10, 64)
			if err != nil || v < 2 || v > math.MaxInt32 {
				v = math.MaxInt32 // there is a process that cannot be named
			}
			if len(want) < len(list)-1 {
				want = append(want, int32(v))
			}
		}
		if n != len(want) || !slices.Equal(list[:n], want) {
			t.Errorf("got %v, want %v", list[:n], want)
		}
		if list[len(list)-1] != -2 {
			t.Error("it writes beyond its room")
		}
	})
}

// fakeProc is a directory in place of /proc with one process in it, whose files
// are in memory.
func fakeProc(tb testing.TB, pid int, names ...string) (*procfs, map[string]memory) {
	dir := tb.TempDir()
	sub := filepath.Join(dir, strconv.Itoa(pid))
	if err := os.Mkdir(sub, 0o755); err != nil {
		tb.Fatal(err)
	}
	files := map[string]memory{}
	for _, name := range names {
		files[name] = newMemory(tb)
		if err := os.Symlink("/proc/self/fd/"+strconv.Itoa(files[name].fd), filepath.Join(sub, name)); err != nil {
			tb.Fatal(err)
		}
	}
	fd, err := unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { unix.Close(fd) })
	return &procfs{fd: fd}, files
}

// statWith is the stat of a process with the given flags, state and extent of its
// environment.
func statWith(state, flags, from, to string) []byte {
	s := strings.Replace(strings.Replace(realStat, "%", "a b) S (", 1), ") S ", ") "+state+" ", 1)
	s = strings.Replace(s, "4194560", flags, 1)
	return []byte(strings.Replace(s, "14020 14030 0\n", from+" "+to+" 0\n", 1))
}

// FuzzCarries looks for the mark in environments.
func FuzzCarries(f *testing.F) {
	const mark = "CURFEW_INVOCATION_x=1"
	env := "A=b\x00" + mark + "\x00C=d\x00"
	whole := statWith("S", "0", "1000", strconv.Itoa(1000+len(env)))
	for _, e := range []string{env, "", mark, mark + "\x00", "X" + mark + "\x00", mark + "2\x00", "A=" + mark + "\x00", "\x00\x00" + mark, strings.Repeat("x", 4096-4) + "\x00" + mark + "\x00", strings.ToLower(mark)} {
		f.Add(whole, []byte(e), mark)
		f.Add(statWith("S", "0", "1000", strconv.Itoa(1000+len(e))), []byte(e), mark)
	}
	for _, s := range [][]byte{statWith("Z", "0", "0", "0"), statWith("S", "4", "1", "9"), statWith("S", "2097152", "0", "0"), statWith("S", "0", "9", "1"),
		statWith("S", "0", "x", "9"), statWith("S", "0", "0", "99999999999999999999"), statWith("S", "0", "0", "8388609"), whole[:len(whole)-12], nil, []byte("1 (a) S 1")} {
		f.Add(s, []byte("A=b\x00"), mark)
	}
	f.Add(whole, []byte(env), "")
	const pid = 4711
	p, files := fakeProc(f, pid, "stat", "environ")
	f.Fuzz(func(t *testing.T, status, environ []byte, mark string) {
		if len(status) > len(p.buf) || strings.Contains(mark, "\x00") {
			return // neither can be
		}
		files["stat"].set(t, status)
		files["environ"].set(t, environ)
		w := sweep{Lost: Lost{Mark: mark}, procfs: procfs{fd: p.fd}}
		got := w.carries(&stat{pid: pid})
		if want := naiveCarries(string(status), string(environ), mark); got != want {
			t.Errorf("verdict %d, want %d", got, want)
		}
	})
}

// naiveCarries is carries once more. An environment without the mark is
// only believed if it is as long as stat reports.
func naiveCarries(text, environ, mark string) verdict {
	if slices.Contains(strings.Split(environ, "\x00"), mark) {
		return ours
	}
	s, _, ok := naiveStat(text)
	fields := strings.Fields(text[strings.LastIndex(text, ")")+1:])
	if ok && len(fields) < 49 {
		fields = append(fields, make([]string, 49)...)
		fields[47], fields[48] = "1", "1"
	}
	if !ok || strings.ContainsAny(string(s.state), "ZX") || s.flags&(4|1<<21) != 0 {
		return notOurs
	}
	from, err1 := strconv.ParseInt(fields[47], 10, 64)
	to, err2 := strconv.ParseInt(fields[48], 10, 64)
	if err1 == nil && err2 == nil && from >= 0 && to > 0 && to >= from && fields[47][0] != '+' && fields[48][0] != '+' &&
		len(fields[47]) <= 18 && len(fields[48]) <= 18 && fields[47][0] != '-' && fields[48][0] != '-' &&
		(int64(len(environ)) == to-from || to-from > maxWhole) {
		return notOurs
	}
	return undecided
}
