package proctree

import (
	"bufio"
	"curfew/internal/sys"
	"curfew/outcome"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// What scan_darwin.go and the Tracker rely on, fact by fact. It was read in the
// kernel's source; here the kernel is asked. A fact that does not hold fails with its
// name.

func init() {
	roles["sleeps"] = func([]string) error { time.Sleep(time.Minute); return nil }
}

// child starts a child in a session of its own, which is ended after the test. It
// gets the read end of a pipe as its descriptor 3, and what it writes can be read.
type child struct {
	*exec.Cmd
	pid int
	in  *os.File
	out *bufio.Reader
}

func startChild(t *testing.T, env []string, argv ...string) *child {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	c := &child{Cmd: exec.Command(argv[0], argv[1:]...), in: w}
	c.Env = append(os.Environ(), env...)
	c.ExtraFiles = []*os.File{r}
	c.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	out, err := c.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	c.out = bufio.NewReader(out)
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	c.pid = c.Process.Pid
	r.Close()
	t.Cleanup(func() {
		w.Close() // what reads from it ends
		if c.ProcessState == nil {
			_ = c.Process.Kill() // not reaped, so it is still this one
			_ = c.Wait()
		}
	})
	return c
}

func (c *child) number(t *testing.T) int {
	t.Helper()
	line, err := c.out.ReadString('\n')
	n, err2 := strconv.Atoi(strings.TrimSpace(line))
	if err != nil || err2 != nil {
		t.Fatalf("got %q, %v, %v", line, err, err2)
	}
	return n
}

func await(t *testing.T, what string, is func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); !is(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("it does not come to that: %s", what)
		}
	}
}

func mustUnique(t *testing.T, pid int) unique {
	t.Helper()
	u, err := readUnique(pid)
	if err != nil {
		t.Fatal(err)
	}
	return u
}

func zombie(pid int) bool {
	s, err := readShort(pid)
	return err == nil && s.state == stateZombie
}

// newerThan reports whether the kernel's major version is at least that: 22 is macOS
// 13, 24 is macOS 15.
func newerThan(t *testing.T, major int) bool {
	t.Helper()
	release, err := unix.Sysctl("kern.osrelease")
	if err != nil {
		t.Fatal(err)
	}
	number, _, _ := strings.Cut(release, ".")
	n, err := strconv.Atoi(number)
	if err != nil {
		t.Fatal(err)
	}
	return n >= major
}

// readable waits until fd can be read.
func readable(fd int) bool {
	fds := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
	for end := time.Now().Add(patience); time.Now().Before(end); {
		if n, err := unix.Poll(fds, int(patience.Milliseconds())); err != unix.EINTR {
			return n == 1 && err == nil
		}
	}
	return false
}

func TestFacts(t *testing.T) {
	able := probe()
	t.Logf("%+v", able)
	for _, f := range []struct {
		name string
		show func(t *testing.T)
	}{
		{"the ID of every process can be read, its parent's, and its version", func(t *testing.T) {
			own, parent := mustUnique(t, os.Getpid()), mustUnique(t, os.Getppid())
			if !able.IDs || own.parent != parent.id || own.id <= parent.id {
				t.Errorf("%+v, of %+v", own, parent)
			}
			if first := mustUnique(t, launchd); first.id == 0 {
				t.Errorf("another user's: %+v", first)
			}
		}},
		{"macOS 15 has exact signals and coalitions", func(t *testing.T) {
			if newerThan(t, 24) && (!able.ExactSignals || !able.Coalitions) {
				t.Errorf("%+v", able)
			}
		}},
		{"the process table lists zombies, with their IDs and parents", func(t *testing.T) {
			c := startChild(t, nil, "/usr/bin/true")
			id := mustUnique(t, c.pid).id
			await(t, "a zombie", func() bool { return zombie(c.pid) })
			if u := mustUnique(t, c.pid); u.id != id {
				t.Errorf("%+v, and %d before", u, id)
			}
			table := newProcessTable(marking{})
			rows, err := table.readRows()
			if err != nil {
				t.Fatal(err)
			}
			for _, r := range rows {
				if r.PID == c.pid {
					if !r.Zombie || r.ID != id || r.Parent != os.Getpid() {
						t.Errorf("%+v", r)
					}
					return
				}
			}
			t.Error("it is not there")
		}},
		{"an execution changes the version and keeps the ID", func(t *testing.T) {
			c := startChild(t, nil, "/bin/sh", "-c", "read x <&3; exec /bin/sleep 20")
			before := mustUnique(t, c.pid)
			if _, err := io.WriteString(c.in, "\n"); err != nil {
				t.Fatal(err)
			}
			await(t, "another version", func() bool { return mustUnique(t, c.pid).version != before.version })
			if after := mustUnique(t, c.pid); after.id != before.id {
				t.Errorf("%+v, and %+v before", after, before)
			}
		}},
		{"an orphan falls to launchd and keeps its parent's ID until it executes something", func(t *testing.T) {
			c := startChild(t, nil, "/bin/sh", "-c", "(read x; exec /bin/sleep 20) <&3 >/dev/null & echo $!")
			parent := mustUnique(t, c.pid)
			orphan := c.number(t)
			await(t, "an orphan", func() bool { s, err := readShort(orphan); return err == nil && s.parent == launchd })
			u := mustUnique(t, orphan)
			if u.parent != parent.id {
				t.Errorf("%+v, born of %+v", u, parent)
			}
			if able.ParentVersions && u.parentVersion != parent.version {
				t.Errorf("the parent's version: %+v, born of %+v", u, parent)
			}
			if _, err := io.WriteString(c.in, "\n"); err != nil {
				t.Fatal(err)
			}
			await(t, "another version", func() bool { return mustUnique(t, orphan).version != u.version })
			later := mustUnique(t, orphan)
			_ = signalVersion(orphan, later.version, syscall.SIGKILL) // else it ends by itself
			if want := map[bool]uint64{false: parent.id, true: mustUnique(t, launchd).id}[newerThan(t, 22)]; later.parent != want {
				t.Errorf("after an execution: %+v, want the parent %d", later, want)
			}
			if able.ParentVersions && later.parentVersion != parent.version {
				t.Errorf("the parent's version after an execution: %+v, born of %+v", later, parent)
			}
		}},
		{"a signal by version reaches that version and no other", func(t *testing.T) {
			if !able.ExactSignals {
				t.Skip("this system is older than macOS 14.2")
			}
			c := startChild(t, nil, "/bin/sleep", "20")
			u := mustUnique(t, c.pid)
			for _, version := range []uint32{u.version - 1, u.version + 1, 0} {
				if err := signalVersion(c.pid, version, syscall.SIGKILL); err != syscall.ESRCH {
					t.Errorf("version %d instead of %d: %v", version, u.version, err)
				}
			}
			if s, err := readShort(c.pid); err != nil || s.state == stateZombie {
				t.Fatalf("it was reached: %+v, %v", s, err)
			}
			if err := signalVersion(c.pid, u.version, syscall.SIGKILL); err != nil {
				t.Fatal(err)
			}
			await(t, "an end", func() bool { return zombie(c.pid) })
		}},
		{"a process that was stopped comes to rest, and SIGKILL ends it", func(t *testing.T) {
			c := startChild(t, []string{roleVar + "=sleeps"}, os.Args[0])
			p := newProcessTable(marking{})
			r := tableRow{PID: c.pid}
			if err := p.complete(&r, 0); err != nil {
				t.Fatal(err)
			}
			if err := p.signal(&r, syscall.SIGSTOP); err != nil {
				t.Fatal(err)
			}
			await(t, "suspended", func() bool {
				s, err := readShort(c.pid)
				return err == nil && s.state == stateStopped && !runs(c.pid)
			})
			if err := p.signal(&r, syscall.SIGKILL); err != nil {
				t.Fatal(err)
			}
			await(t, "an end", func() bool { return zombie(c.pid) })
		}},
		{"how a zombie has ended can be read before it is reaped", func(t *testing.T) {
			for script, want := range map[string]outcome.Exit{"exit 7": {Code: 7}, "kill -KILL $$": {Code: -1, Signal: 9}} {
				c := startChild(t, nil, "/bin/sh", "-c", script)
				var got *outcome.Exit
				await(t, "an end", func() bool { got = exitOf(c.pid); return got != nil })
				if *got != want {
					t.Errorf("%s: got %+v, want %+v", script, *got, want)
				}
			}
		}},
		{"that a process has executed something can be read", func(t *testing.T) {
			c := startChild(t, nil, "/bin/sleep", "20")
			if newProcessTable(marking{}).neverExecuted(c.pid) {
				t.Error("it reads as if it had not")
			}
		}},
		{"a fork and an exit are reported", func(t *testing.T) {
			c := startChild(t, nil, "/bin/sh", "-c", "read x <&3; /bin/sleep 0; read x <&3")
			news, notify, err := sys.NonblockingPipe()
			if err != nil {
				t.Fatal(err)
			}
			w, err := newWatcher(notify)
			if err != nil {
				t.Fatal(err)
			}
			w.reset()
			w.add([]*entry{{tableRow: tableRow{PID: c.pid}, key: identity{pid: c.pid}}})
			for _, what := range []string{"a fork", "an exit"} {
				if _, err := io.WriteString(c.in, "\n"); err != nil {
					t.Fatal(err)
				}
				if !readable(news) {
					t.Fatalf("%s is not reported", what)
				}
				time.Sleep(4 * betweenNews)
				_, _ = unix.Read(news, make([]byte, 64))
			}
		}},
		{"a queue of events can be polled", func(t *testing.T) {
			c := startChild(t, nil, "/bin/sh", "-c", "read x <&3")
			kq, err := unix.Kqueue()
			if err != nil {
				t.Fatal(err)
			}
			defer unix.Close(kq)
			change := []unix.Kevent_t{{Ident: uint64(c.pid), Filter: unix.EVFILT_PROC, Flags: unix.EV_ADD, Fflags: unix.NOTE_EXIT}}
			if _, err := unix.Kevent(kq, change, nil, nil); err != nil {
				t.Fatal(err)
			}
			fds := []unix.PollFd{{Fd: int32(kq), Events: unix.POLLIN}}
			if n, err := unix.Poll(fds, 0); n != 0 || err != nil {
				t.Errorf("before: %d, %v", n, err)
			}
			c.in.Close()
			if !readable(kq) {
				t.Error("the exit is not reported")
			}
		}},
		{"a session is identified by its leader's pid", func(t *testing.T) {
			c := startChild(t, nil, "/bin/sleep", "20")
			if sid, err := unix.Getsid(c.pid); sid != c.pid {
				t.Errorf("%d, %v", sid, err)
			}
		}},
		{"a coalition is inherited, also by a session leader", func(t *testing.T) {
			if !able.Coalitions {
				t.Skip("no coalition can be read")
			}
			c := startChild(t, nil, "/bin/sleep", "20")
			own, err := readCoalition(os.Getpid())
			its, err2 := readCoalition(c.pid)
			if err != nil || err2 != nil || own == 0 || own != its {
				t.Errorf("%d and %d, %v, %v", own, its, err, err2)
			}
		}},
		{"the environment of what Apple has not signed can be read", func(t *testing.T) {
			m := marking{prefix: "CURFEW_INVOCATION_", mark: "CURFEW_INVOCATION_facts=1"}
			for _, tt := range []struct {
				mark string
				want foundMark
			}{{m.mark, markOurs}, {"CURFEW_INVOCATION_other=1", markAnother}} {
				c := startChild(t, []string{roleVar + "=sleeps", tt.mark}, os.Args[0], m.mark)
				p := newProcessTable(m)
				r := tableRow{PID: c.pid}
				if err := p.complete(&r, 0); err != nil {
					t.Fatal(err)
				}
				if got := p.readMark(&r); got != tt.want {
					t.Errorf("%s: got %v, want %v", tt.mark, got, tt.want)
				}
				r.ID, r.Start = r.ID+1, r.Start+1
				if got := p.readMark(&r); got != markHidden {
					t.Errorf("of another process with that pid: got %v", got)
				}
			}
		}},
	} {
		t.Run(f.name, f.show)
	}
}
