//go:build linux || darwin

package proctree

import (
	"encoding/binary"
	"strings"
	"testing"
)

// arguments lays out what macOS returns for a process.
func arguments(n int, rest ...string) []byte {
	return append(binary.NativeEndian.AppendUint32(nil, uint32(n)), strings.Join(rest, "\x00")...)
}

// Without a mark no process is ours, also with an empty entry.
func TestNoMark(t *testing.T) {
	for _, env := range []string{"", "\x00", "A=b\x00", "A=b\x00\x00", "A=b"} {
		if got := (marking{}).in([]byte(env)); got != markHidden {
			t.Errorf("%q: got %v, want %v", env, got, markHidden)
		}
	}
}

func TestMarkInArguments(t *testing.T) {
	m := marking{prefix: "CURFEW_INVOCATION_", mark: "CURFEW_INVOCATION_a=1"}
	const ours, another = "CURFEW_INVOCATION_a=1", "CURFEW_INVOCATION_b=1"
	for _, tt := range []struct {
		name string
		b    []byte
		want foundMark
	}{
		{"in the environment", arguments(2, "/bin/x", "", "", "x", "-v", "A=b", ours, "", ""), markOurs},
		{"the last entry", arguments(1, "/bin/x", "x", ours), markOurs},
		{"among another's", arguments(1, "/bin/x", "x", another, ours, ""), markOurs},
		{"another's", arguments(1, "/bin/x", "x", "A=b", another, "", ""), markAnother},
		{"none", arguments(1, "/bin/x", "x", "A=b", "", ""), markHidden},
		{"withheld", arguments(1, "/bin/x", "x", "", ""), markHidden},
		{"an argument", arguments(2, "/bin/env", "env", ours, "A=b", "", ""), markHidden},
		{"behind the environment", arguments(1, "/bin/x", "x", "A=b", "", ours, ""), markHidden},
		{"behind an empty one", arguments(1, "/bin/x", "x", "", ours, ""), markHidden},
		{"a longer value", arguments(1, "/bin/x", "x", ours+"0", "", ""), markAnother},
		{"inside a value", arguments(1, "/bin/x", "x", "A="+ours, "", ""), markHidden},
		{"more arguments than there is", arguments(1<<30, "/bin/x", "x", ours, ""), markHidden},
		{"fewer than none", arguments(-1, "/bin/x", "x", ours, ""), markHidden},
		{"only a number", arguments(0), markHidden},
		{"not even that", []byte{1, 0}, markHidden},
	} {
		if got := m.inArguments(tt.b); got != tt.want {
			t.Errorf("%s: got %v, want %v", tt.name, got, tt.want)
		}
	}
}

// Whatever the kernel returns, a mark that is not in it is not found.
func FuzzMarkInArguments(f *testing.F) {
	m := marking{prefix: "CURFEW_INVOCATION_", mark: "CURFEW_INVOCATION_a=1"}
	f.Add(arguments(1, "/bin/x", "x", "CURFEW_INVOCATION_a=1", ""))
	f.Add(arguments(3, "/bin/x", "x", "", ""))
	f.Fuzz(func(t *testing.T, b []byte) {
		if m.inArguments(b) == markOurs && !strings.Contains(string(b), "\x00"+m.mark) {
			t.Errorf("found in %q", b)
		}
	})
}
