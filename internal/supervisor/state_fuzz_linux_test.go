package supervisor

import (
	"os"
	"strings"
	"testing"

	"curfew/internal/wire"
)

// FuzzParseStatus compares the parser of /proc/PID/status with a naive one. If a name comes twice,
// the last one counts.
func FuzzParseStatus(f *testing.F) {
	real, err := os.ReadFile("/proc/self/status")
	if err != nil {
		f.Fatal(err)
	}
	f.Add(real)
	f.Add(real[:len(real)/2])
	for _, s := range []string{
		"", "\n", ":", "Uid:", "Uid:\t1\nUid:\t2\t3\t4\t5\n", "Uid:\t1000\t1001\t1002\t1003", "Gid: 1", "Name:\tUid:\t0\nUmask:\t0022", "Groups:\t \nSeccomp_filters: 3\nSeccomp: 2\n",
		"Uid\n:0\n", " Uid:\t1 2\n", "Cpus_allowed:\tff\nMems_allowed_list:\t0-1\r\n", "CapInh:\n\n\nCapBnd:a\nCapAmb:b:c\nNoNewPrivs:1", "Umask:\t\xff\x00",
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		var got State
		got.parseStatus(b)
		fields := map[string]string{}
		for _, line := range strings.Split(string(b), "\n") {
			if name, value, ok := strings.Cut(line, ":"); ok {
				fields[name] = strings.TrimSpace(value)
			}
		}
		two := func(ids string) string {
			if f := strings.Fields(ids); len(f) >= 2 {
				return strings.Join(f[:2], " ")
			}
			return ids
		}
		var want State
		want[stUID], want[stGID] = two(fields["Uid"]), two(fields["Gid"])
		for i, name := range map[int]string{stGroups: "Groups", stCapInh: "CapInh", stCapBnd: "CapBnd", stCapAmb: "CapAmb", stNoNewPrivs: "NoNewPrivs", stUmask: "Umask"} {
			want[i] = fields[name]
		}
		want[stSeccomp] = fields["Seccomp"] + " " + fields["Seccomp_filters"]
		want[stCPUs] = fields["Cpus_allowed"] + " " + fields["Mems_allowed_list"]
		if what := want.Differs(&got); what != "" {
			t.Errorf("%s, of %q", what, b)
		}
		if what := got.Differs(&want); (what == "") != (got == want) {
			t.Errorf("%q, and they are equal: %v", what, got == want)
		}
	})
}

// FuzzFirstArgument takes a process's name from its command line: a process is a helper only if its
// name is right to the last byte.
func FuzzFirstArgument(f *testing.F) {
	for _, s := range []string{"", "\x00", wire.SupervisorName, wire.SupervisorName + "\x00", wire.GuardName + "\x00123\x00/proc/self/exe\x00", wire.SupervisorName + " \x00", wire.SupervisorName + "\n", "\x00" + wire.SupervisorName, "x" + wire.SupervisorName, "curfew-superviso", "/usr/bin/" + wire.GuardName} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		got := firstArgument(b)
		if want := strings.Split(string(b), "\x00")[0]; got != want {
			t.Errorf("%q, want %q", got, want)
		}
		for _, name := range []string{wire.SupervisorName, wire.GuardName} {
			if (got == name) != (string(b) == name || strings.HasPrefix(string(b), name+"\x00")) {
				t.Errorf("%q is taken for %q", b, got)
			}
		}
	})
}
