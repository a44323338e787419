package proctree

import (
	"os"
	"strings"
	"testing"
)

// realStat is /proc/PID/stat of a process as the kernel writes it; names are
// put into its parentheses.
const realStat = "4711 (%) S 4242 4711 4711 0 -1 4194560 130 0 0 0 0 0 0 0 20 0 1 0 987654 2560000 220 " +
	"18446744073709551615 94000 94010 140000 0 0 0 0 0 0 0 0 0 17 1 0 0 0 0 0 94020 94030 94040 14000 14010 14020 14030 0\n"

func TestParseStat(t *testing.T) {
	for _, tt := range []struct{ name, comm, want string }{
		{"plain", "sleep", "sleep"},
		{"empty", "", ""},
		{"spaces", "tmux: server", "tmux: server"},
		{"looks like the rest of the line", "x) S 1 1 (y", "x) S 1 1 (y"},
		{"parentheses alone", "))((", "))(("},
		{"newline", "a\nb", "a\nb"},
		{"not UTF-8", "\xff\xfe", "\xff\xfe"},
		{"longer than the kernel allows", "0123456789abcdefXXX", "0123456789abcdef"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var s stat
			if !parseStat([]byte(strings.Replace(realStat, "%", tt.comm, 1)), &s) {
				t.Fatal("not parsed")
			}
			if s.name() != tt.want || s.pid != 4711 || s.state != 'S' || s.ppid != 4242 || s.flags != 4194560 || s.start != 987654 || s.session != 4711 || s.threads != 1 {
				t.Errorf("got %q %+v", s.name(), s)
			}
		})
	}
}

func TestParseStatRefuses(t *testing.T) {
	whole := strings.Replace(realStat, "%", "sh", 1)
	cut := whole[:strings.Index(whole, " 987654")]
	for name, in := range map[string]string{
		"empty file":       "",
		"cut in the name":  "4711 (sl",
		"cut before start": cut,
		"no name":          "4711 S 1 1 1",
		"reversed":         ")4711(",
		"letters":          strings.Replace(whole, "4242", "42x2", 1),
		"negative":         strings.Replace(whole, "4242", "-4242", 1),
		"overflow":         strings.Replace(whole, "987654", "99999999999999999999", 1),
		"state too long":   strings.Replace(whole, " S ", " SS ", 1),
	} {
		t.Run(name, func(t *testing.T) {
			var s stat
			if parseStat([]byte(in), &s) {
				t.Errorf("parsed as %+v", s)
			}
		})
	}
}

// The two ways to list children agree, also where the kernel has no children
// files.
func TestChildrenBothWays(t *testing.T) {
	var p procfs
	p.open()
	if p.fd < 0 {
		t.Fatal("/proc is not usable")
	}
	parent := os.Getppid()
	var a, b [4096]int32
	n := p.children(parent, a[:])
	p.noChildren = true
	m := p.children(parent, b[:])
	find := func(list []int32) bool {
		for _, pid := range list {
			if int(pid) == os.Getpid() {
				return true
			}
		}
		return false
	}
	if !find(a[:n]) || !find(b[:m]) {
		t.Errorf("we are not among the children of our parent: %v and %v", a[:n], b[:m])
	}
}

func TestPidTable(t *testing.T) {
	var table pidTable
	table.reset()
	for pid := 2; pid < 3000; pid++ {
		table.at(pid, 0).signal = 9
	}
	table.forget(1000)
	if e := table.at(1000, 0); e.signal != 0 || e.index != notListed {
		t.Errorf("a forgotten pid is still known: %+v", e)
	}
	if e := table.at(1001, 0); e.signal != 9 {
		t.Errorf("a known pid was forgotten: %+v", e)
	}
	table.at(1002, 0).doomed = true
	if !table.doomed(1002) || table.doomed(1001) {
		t.Error("a process that was struck elsewhere is taken for a child of ours that was struck")
	}
	table.forget(1002)
	if table.doomed(1002) {
		t.Error("a process with the pid of one that was reaped is taken for it")
	}
	// A process with the pid of another is another one, where the identities are known.
	table.at(1003, 7).signal = 15
	if e := table.at(1003, 0); e.id != 7 || e.signal != 15 {
		t.Errorf("without an id the entry is %+v", e)
	}
	if e := table.at(1003, 8); e.id != 8 || e.signal != 0 || e.index != notListed {
		t.Errorf("a process with the pid of another is taken for that: %+v", e)
	}
	full := 0
	for pid := 10000; pid < 10000+2*tableSize; pid++ {
		if table.at(pid, 0) == nil {
			full++
		}
	}
	if full == 0 {
		t.Error("the table was never full")
	}
	if e := table.at(1001, 0); e == nil || e.signal != 9 {
		t.Errorf("a known pid was lost when the table was full: %+v", e)
	}
	table.reset()
	if e := table.at(1001, 0); e.signal != 0 {
		t.Errorf("reset left %+v", e)
	}
}
