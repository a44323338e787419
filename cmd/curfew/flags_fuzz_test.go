package main

import (
	"math/big"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"curfew/outcome"
)

// The values of flags come from people and from scripts. Each parser is compared
// with what its help text says, computed exactly.

// part is a number with its unit, as in Go's syntax for times.
var (
	plain = regexp.MustCompile(`^-?([0-9]+\.?[0-9]*|\.[0-9]+)$`)
	part  = regexp.MustCompile(`([0-9]+\.?[0-9]*|\.[0-9]+)(ns|us|µs|μs|ms|s|m|h)`)
	units = map[string]int64{"ns": 1, "us": 1e3, "µs": 1e3, "μs": 1e3, "ms": 1e6, "s": 1e9, "m": 60e9, "h": 3600e9, "d": 24 * 3600e9}
)

// exactly returns the nanoseconds that text stands for, and how many parts it has;
// false if it has none of the forms.
func exactly(text string) (ns *big.Rat, parts int64, ok bool) {
	number := func(s, unit string) *big.Rat {
		n, ok := new(big.Rat).SetString(strings.TrimSuffix("0"+s, "."))
		if !ok {
			panic("no number: " + s)
		}
		return n.Mul(n, new(big.Rat).SetInt64(units[unit]))
	}
	sign, rest := int64(1), text
	if strings.HasPrefix(text, "-") {
		sign, rest = -1, text[1:]
	} else if strings.HasPrefix(text, "+") {
		rest = text[1:]
	}
	total := new(big.Rat)
	days, isDays := strings.CutSuffix(text, "d")
	switch {
	case isDays && plain.MatchString(days):
		total = number(strings.TrimPrefix(days, "-"), "d")
	case plain.MatchString(text):
		total = number(rest, "s")
	case rest == "0" || rest != "" && part.ReplaceAllString(rest, "") == "":
		for _, m := range part.FindAllStringSubmatch(rest, -1) {
			total.Add(total, number(m[1], m[2]))
			parts++
		}
	default:
		return nil, 0, false
	}
	return total.Mul(total, new(big.Rat).SetInt64(sign)), parts, true
}

func FuzzSpan(f *testing.F) {
	for _, s := range []string{"", "0", "5", "0.5", ".5", "5.", "300ms", "1m30s", "2d", "1.5d", "-1", "-0", "-0s", "+1s", "+5", "x", "5x", "1e3", "0x10", "inf", "nan", "1 s", ".", "d", "-d", "-.d",
		"100000d", "3650d", "3650.0000000001d", "87600h", "87600h1ns", "315360000", "315360001", "99999999999999999999", "9223372036854775807ns", "9223372036s",
		"0.0000000000001", "0.1ns", "0.0000001ms", "-0.1ns", "0.000000000000000000000000000000001h", "1h0.1ns", "1.1", "4.35", "1µs", "1μs", "0.3d", "1d1h", "1h1d", "1_0", "--1", "1-", "00012", "1.2.3"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		if len(text) > 200 {
			return // exact numbers of any length are slow
		}
		var s span
		err := s.Set(text)
		want, parts, ok := exactly(text)
		if err != nil {
			if s != 0 {
				t.Errorf("%q is refused, and set to %v", text, time.Duration(s))
			}
			if ok && want.Sign() >= 0 && want.Cmp(new(big.Rat).SetInt64(int64(longestSpan)-1e9)) < 0 {
				t.Errorf("%q is refused: %v", text, err)
			}
			return
		}
		d := time.Duration(s)
		switch {
		case !ok:
			t.Fatalf("%q is taken as %v", text, d)
		case d < 0 || d > longestSpan:
			t.Fatalf("%q is %v", text, d)
		case want.Sign() < 0:
			t.Fatalf("%q, which is negative, is taken as %v", text, d)
		case (d == 0) != (want.Sign() == 0):
			t.Fatalf("%q is %v: nothing and something are not the same", text, d)
		}
		// A float64 has 53 bits; each part is rounded to a nanosecond.
		off := new(big.Rat).Sub(want, new(big.Rat).SetInt64(int64(d)))
		if limit := new(big.Rat).SetInt64(int64(d)>>51 + 2 + parts); off.Abs(off).Cmp(limit) > 0 {
			t.Errorf("%q is %v, off by %s ns", text, d, off.FloatString(3))
		}
		var again span
		if err := again.Set(s.String()); err != nil || again != s {
			t.Errorf("%v is written as %q, and read as %v, %v", d, s.String(), time.Duration(again), err)
		}
	})
}

var sizeForm = regexp.MustCompile(`^([+-]?[0-9]+)([kKmMgGtT]?)$`)

func FuzzSize(f *testing.F) {
	for _, s := range []string{"", "0", "1048576", "64K", "64k", "1M", "2G", "3T", "K", "-1", "-0", "+5", "+5K", "1.5M", "1MB", "9999999999G", "x", "8388607T", "8388608T", "9223372036854775807", "9223372036854775808",
		"1_000", "0x10", "010", " 1", "1 ", "1KK", "٣", "1\x0b", "-9223372036854775808"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		s := size(-7)
		err := s.Set(text)
		var want *big.Int
		if m := sizeForm.FindStringSubmatch(text); m != nil {
			want, _ = new(big.Int).SetString(strings.TrimPrefix(m[1], "+"), 10)
			want.Lsh(want, 10*uint(strings.Index("kmgt", strings.ToLower(m[2]))+1))
			if m[2] == "" {
				want.Rsh(want, 10)
			}
			if want.Sign() < 0 || !want.IsInt64() {
				want = nil
			}
		}
		switch {
		case want == nil && err == nil:
			t.Errorf("%q is taken as %d", text, s)
		case want == nil && s != -7:
			t.Errorf("%q is refused, and set to %d", text, s)
		case want != nil && (err != nil || int64(s) != want.Int64()):
			t.Errorf("%q is %d, %v; want %d", text, s, err, want)
		}
		if err == nil {
			var again size
			if err := again.Set(s.String()); err != nil || again != s {
				t.Errorf("%d is written as %q, and read as %d, %v", s, s.String(), again, err)
			}
		}
	})
}

func FuzzSignal(f *testing.F) {
	for _, s := range []string{"", "TERM", "SIGTERM", "sigterm", "SigTerm", "15", "+15", "015", "0", "-1", "1", "64", "65", "1000000000", "99999999999999999999", "FOO", "SIG", "TERM ", "SIGSIGTERM", "SIGNAL 33", "nal 40", "rtmin", "CLD", "POLL", "ſigterm", "kıll", "1e1"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		var s signalFlag
		err := s.Set(text)
		if err != nil {
			if s != 0 {
				t.Errorf("%q is refused, and set to %d", text, s)
			}
			for n := 1; n <= highestSignal; n++ {
				if name := outcome.SignalName(n); strings.HasPrefix(name, "SIG") && (text == name || "SIG"+text == name) {
					t.Errorf("%q is refused: %v", text, err)
				}
			}
			return
		}
		if s < 1 || s > highestSignal {
			t.Fatalf("%q is signal %d", text, s)
		}
		name := outcome.SignalName(int(s))
		n, isNumber := new(big.Int).SetString(text, 10)
		isName := strings.HasPrefix(name, "SIG") && (strings.ToUpper(text) == name || "SIG"+strings.ToUpper(text) == name)
		if !isName && !(isNumber && n.Cmp(big.NewInt(int64(s))) == 0) {
			t.Errorf("%q is signal %d, %s", text, s, name)
		}
		var again signalFlag
		if err := again.Set(s.String()); err != nil || again != s {
			t.Errorf("signal %d is written as %q, and read as %d, %v", s, s.String(), again, err)
		}
		if code := exitCode(outcome.Outcome{Status: outcome.StatusUnknown, Cause: outcome.CauseCanceled}, syscall.Signal(s)); code != 128+int(s) {
			t.Errorf("signal %d has the exit code %d", s, code)
		}
	})
}

// FuzzWords sets the flags that take one of a few words, and environment
// entries.
func FuzzWords(f *testing.F) {
	for _, s := range []string{"", "terminate", "wait", "leave", "Leave", "leave ", "leader-first", "everyone", "leader-only", "A=b", "A=", "=b", "A", "=", "A=b=c", "\xff=\x00", " =x"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		after, audience := afterExitFlag(), audienceFlag()
		if err := after.Set(text); (err == nil) != (text == "terminate" || text == "wait" || text == "leave") || err == nil && after.String() != text {
			t.Errorf("%q is %v, %v", text, after, err)
		}
		if err := audience.Set(text); (err == nil) != (text == "leader-first" || text == "everyone" || text == "leader-only") || err == nil && audience.String() != text {
			t.Errorf("%q is %v, %v", text, audience, err)
		}
		v := variables{"X=y"}
		err := v.Set(text)
		if i := strings.Index(text, "="); (err == nil) != (i > 0) || len(v) != map[bool]int{true: 2, false: 1}[err == nil] || err == nil && v[1] != text {
			t.Errorf("%q: %q, %v", text, v, err)
		}
	})
}
