package sys

import (
	"os"
	"os/signal"
	"strconv"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

func TestRawCalls(t *testing.T) {
	proc, err := Open("/proc/self", unix.O_PATH|unix.O_DIRECTORY, 0)
	if err != nil {
		t.Skip(err)
	}
	defer Close(proc)
	calls := inject(t, unix.EINTR)
	var buf [4096]byte
	allocated := testing.AllocsPerRun(10, func() {
		fd := RawOpenat(proc, []byte("stat\x00"), unix.O_RDONLY)
		pid, _, fields, ok := StatFields(buf[:RawReadAll(fd, buf[:])])
		_, rest := NextField(fields)
		ppid, _ := NextField(rest)
		if n, numeric := ParseUint(ppid); !ok || pid != os.Getpid() || !numeric || int(n) != os.Getppid() {
			t.Errorf("pid %d, ppid %s, %v", pid, ppid, ok)
		}
		if n := RawPread(fd, buf[:], 0); n == 0 {
			t.Error("pread: nothing")
		}
		RawClose(fd)
		dir := RawOpenat(proc, []byte("fd\x00"), unix.O_RDONLY|unix.O_DIRECTORY)
		found := 0
		for list := RawList(dir, buf[:]); list.Next(); {
			if _, ok := list.Number(); ok {
				found++
			}
		}
		if found < 3 {
			t.Errorf("%d descriptors", found)
		}
		RawClose(dir)
	})
	if allocated > 2 { // of the map of the test
		t.Errorf("%v allocations", allocated)
	}
	if len(calls) < 4 {
		t.Errorf("calls: %v", calls)
	}
	if fd := RawOpenat(proc, []byte("no such\x00"), 0); fd != -1 {
		t.Errorf("opened %d", fd)
	}
	n, err := RawReadlinkat(proc, []byte("exe\x00"), buf[:])
	if exe, _ := os.Executable(); err != nil || string(buf[:n]) != exe {
		t.Errorf("link: %q, %v", buf[:max(n, 0)], err)
	}
}

func TestStatFields(t *testing.T) {
	for in, want := range map[string]string{
		"12 (a) R 1 2\n":          "12|a|R 1 2",
		"12 (a b) (c)) S 1":       "12|a b) (c)|S 1",
		"12 (a\n13 (b) R 7) Z 1 ": "12|a\n13 (b) R 7|Z 1",
		"12 () R":                 "12||R",
		"12 a R":                  "",
		"(a) R":                   "",
		"x (a) R":                 "",
		"12 )a( R":                "",
		"":                        "",
	} {
		pid, name, fields, ok := StatFields([]byte(in))
		got := ""
		if ok {
			got = strconv.Itoa(pid) + "|" + string(name)
			sep := "|"
			for field, rest := NextField(fields); len(field) > 0; field, rest = NextField(rest) {
				got += sep + string(field)
				sep = " "
			}
			if sep == "|" {
				got += sep
			}
		}
		if got != want {
			t.Errorf("%q: %q, want %q", in, got, want)
		}
	}
}

func TestDisposition(t *testing.T) {
	const sig = syscall.SIGWINCH
	defer signal.Reset(sig)
	signal.Ignore(sig)
	if !Ignored(sig) {
		t.Error("not ignored after signal.Ignore")
	}
	SetDisposition(sig, SigDefault)
	if handler, ok := Disposition(sig); handler != SigDefault || !ok || Ignored(sig) {
		t.Errorf("%d, %v after SetDisposition", handler, ok)
	}
	if _, ok := Disposition(1000); ok {
		t.Error("there is a signal 1000")
	}
}
