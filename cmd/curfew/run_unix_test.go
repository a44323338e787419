//go:build unix

package main

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"curfew/outcome"
)

// started is a running command, with its two streams.
type started struct {
	cmd            *exec.Cmd
	stdout, stderr *bufio.Reader
}

// start starts the command. Its streams are pipes that reach their end when no process has
// them open any more: neither the command nor anything it runs.
func start(t *testing.T, cmd *exec.Cmd) *started {
	t.Helper()
	s := &started{cmd: cmd}
	for _, stream := range []struct {
		reader **bufio.Reader
		writer *io.Writer
	}{{&s.stdout, &cmd.Stdout}, {&s.stderr, &cmd.Stderr}} {
		r, w, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { r.Close() })
		defer w.Close()
		*stream.reader, *stream.writer = bufio.NewReader(r), w
		_ = r.SetReadDeadline(time.Now().Add(2 * soon))
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill() }) // it ends the tree too; usually all has ended
	return s
}

// line reads one line of r, which must be want.
func line(t *testing.T, r *bufio.Reader, want string) {
	t.Helper()
	got, err := r.ReadString('\n')
	if err != nil || !strings.Contains(got, want) {
		t.Fatalf("%q, %v; want a line with %q", got, err, want)
	}
}

// rest reads r to its end.
func rest(t *testing.T, r *bufio.Reader) string {
	t.Helper()
	b, err := io.ReadAll(r)
	if err != nil {
		t.Errorf("the stream did not end: %v", err)
	}
	return string(b)
}

func TestFirstSignalIsPassedOnOnce(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name string
		sig  syscall.Signal
	}{{"INT", syscall.SIGINT}, {"TERM", syscall.SIGTERM}, {"HUP", syscall.SIGHUP}, {"QUIT", syscall.SIGQUIT}} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			s := start(t, curfew(t, "run", "-g", "50", "--", "sh", "-c",
				`trap "echo got `+c.name+`; n=x" `+c.name+`; echo ready; while [ -z "$n" ]; do sleep 0.02; done; sleep 0.2; exit 9`))
			line(t, s.stdout, "ready")
			if err := s.cmd.Process.Signal(c.sig); err != nil {
				t.Fatal(err)
			}
			if got, want := waitFor(t, s.cmd), 128+int(c.sig); got != want {
				t.Errorf("exit code %d, want %d", got, want)
			}
			if got, want := rest(t, s.stdout), "got "+c.name+"\n"; got != want {
				t.Errorf("the CLI wrote %q, want %q", got, want)
			}
			line(t, s.stderr, "curfew: stopping: SIG"+c.name+" received")
			line(t, s.stderr, "(exit code 9 seen after the stop began)")
		})
	}
}

func TestSecondSignalKills(t *testing.T) {
	t.Parallel()
	s := start(t, curfew(t, "run", "-g", "50", "--", "sh", "-c", `trap "" TERM; echo ready; sleep `+tooLong))
	line(t, s.stdout, "ready")
	began := time.Now()
	_ = s.cmd.Process.Signal(syscall.SIGTERM)
	line(t, s.stderr, "stopping: SIGTERM received")
	time.Sleep(2 * echo)
	_ = s.cmd.Process.Signal(syscall.SIGINT)
	if got := waitFor(t, s.cmd); got != 143 {
		t.Errorf("exit code %d, want 143, after the first signal", got)
	}
	if took := time.Since(began); took > soon {
		t.Errorf("it took %v; the grace of 50 s was not ended", took)
	}
	line(t, s.stderr, "killing: SIGINT received")
	line(t, s.stderr, "death by SIGKILL")
}

// When a terminal closes, SIGHUP comes twice, and a wrapper can add its own.
func TestSignalInTheSameMomentIsNotASecondOne(t *testing.T) {
	t.Parallel()
	s := start(t, curfew(t, "run", "-g", "50", "--", "sh", "-c",
		`trap "sleep 0.5; echo cleaned up; exit" TERM; sh -c "echo ready; exec sleep `+tooLong+`" & wait`))
	line(t, s.stdout, "ready")
	_ = s.cmd.Process.Signal(syscall.SIGTERM)
	line(t, s.stderr, "stopping: SIGTERM received")
	_ = s.cmd.Process.Signal(syscall.SIGHUP)
	if got := waitFor(t, s.cmd); got != 143 {
		t.Errorf("exit code %d, want 143", got)
	}
	if got := rest(t, s.stdout); got != "cleaned up\n" {
		t.Errorf("the CLI wrote %q; it did not get its grace", got)
	}
}

// What nohup does: curfew and the CLI live on.
func TestIgnoredSignalsStayIgnored(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"HUP", "INT"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cmd := exec.Command("sh", "-c", `trap "" `+name+`; exec curfew run -- sh -c "echo ready; read x; kill -`+name+` \$\$; echo alive"`)
			in, err := cmd.StdinPipe()
			if err != nil {
				t.Fatal(err)
			}
			s := start(t, cmd)
			line(t, s.stdout, "ready")
			_ = cmd.Process.Signal(map[string]syscall.Signal{"HUP": syscall.SIGHUP, "INT": syscall.SIGINT}[name])
			time.Sleep(100 * time.Millisecond) // time for the stop that must not happen
			_, _ = io.WriteString(in, "go on\n")
			if got := waitFor(t, cmd); got != 0 {
				t.Errorf("exit code %d, want 0", got)
			}
			if got := rest(t, s.stdout) + rest(t, s.stderr); got != "alive\n" {
				t.Errorf("%q, want alive", got)
			}
		})
	}
}

// Whatever ends curfew ends the tree: the stream that all processes of it hold reaches
// its end.
func TestDeathOfCurfewEndsTheTree(t *testing.T) {
	t.Parallel()
	s := start(t, curfew(t, "run", "-g", "0.2", "--", "sh", "-c",
		`trap "" TERM; (trap "" TERM; echo ready; sleep `+tooLong+`) & sleep `+tooLong))
	line(t, s.stdout, "ready")
	_ = s.cmd.Process.Kill()
	_ = s.cmd.Wait()
	rest(t, s.stdout)
}

func TestWithParent(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	cmd := exec.Command("sh", "-c", `curfew run --with-parent --report r.json -- sh -c "echo ready; exec sleep `+tooLong+`" & wait`)
	cmd.Dir = dir
	s := start(t, cmd)
	line(t, s.stdout, "ready")
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
	line(t, s.stderr, "curfew: stopping: the process that started curfew has ended")
	rest(t, s.stdout)
	rest(t, s.stderr)
	if o := readReport(t, filepath.Join(dir, "r.json")); o.Status != outcome.StatusUnknown || o.Cause != outcome.CauseCanceled || o.Cleanup.Result != outcome.CleanupEmpty {
		t.Errorf("status %s, cause %s, cleanup %s; want outcome_unknown, canceled, empty", o.Status, o.Cause, o.Cleanup.Result)
	}
}

// While the parent lives the flag changes nothing.
func TestWithParentAlive(t *testing.T) {
	t.Parallel()
	for _, script := range []string{
		"curfew run --with-parent -- echo hi",
		"(curfew run --with-parent -- echo hi)",
		"exec curfew run --with-parent -- echo hi",
		"curfew run --with-parent=$$ -- echo hi; true",
		"curfew run --with-parent=false -- echo hi",
	} {
		if got := runToEnd(t, exec.Command("sh", "-c", script)); got.code != 0 || got.stdout != "hi\n" || got.stderr != "" {
			t.Errorf("%s: %+v", script, got)
		}
	}
}

// If the given process did not start curfew, or has ended, curfew stops at once.
func TestWithAnotherParent(t *testing.T) {
	t.Parallel()
	for pid, code := range map[string]int{"1": 123, "$PPID": 123, "-7": 125, "x": 125, "0": 125} {
		got := runToEnd(t, exec.Command("sh", "-c", "curfew run --with-parent="+pid+" -- echo hi; exit $?"))
		if got.code != code || got.stdout != "" || got.stderr == "" || code == 123 && !strings.Contains(got.stderr, "has ended, or did not start curfew") {
			t.Errorf("%s: %+v, want code %d", pid, got, code)
		}
	}
}

func TestWithParentGoneAtStart(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	cmd := exec.Command("sh", "-c", `(sleep 0.3; exec curfew run --with-parent --report r.json -- touch ran) &`)
	cmd.Dir = dir
	// A session of its own: the process that adopts orphans could be in ours.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	s := start(t, cmd)
	if err := cmd.Wait(); err != nil {
		t.Fatal(err)
	}
	if got := rest(t, s.stderr); !strings.Contains(got, "not started: canceled: the process that started curfew has ended") {
		t.Errorf("stderr: %q", got)
	}
	if o := readReport(t, filepath.Join(dir, "r.json")); o.Status != outcome.StatusNotStarted {
		t.Errorf("status %s, want not_started", o.Status)
	}
	if _, err := os.Stat(filepath.Join(dir, "ran")); err == nil {
		t.Error("it was run")
	}
}

// full returns a pipe that is full.
func full(t *testing.T) *os.File {
	t.Helper()
	var p [2]int
	if err := unix.Pipe(p[:]); err != nil {
		t.Fatal(err)
	}
	unix.CloseOnExec(p[0])
	unix.CloseOnExec(p[1])
	_ = unix.SetNonblock(p[1], true)
	for chunk := make([]byte, 4096); len(chunk) > 0; {
		if _, err := unix.Write(p[1], chunk); err != nil {
			chunk = chunk[:len(chunk)/2]
		}
	}
	_ = unix.SetNonblock(p[1], false)
	t.Cleanup(func() { unix.Close(p[0]) })
	w := os.NewFile(uintptr(p[1]), "full pipe")
	t.Cleanup(func() { w.Close() })
	return w
}

func TestStderrHoldsNothingUp(t *testing.T) {
	t.Parallel()
	for name, stderr := range map[string]func() *os.File{
		"full": func() *os.File { return full(t) },
		"closed at the other end": func() *os.File {
			r, w, err := os.Pipe()
			if err != nil {
				t.Fatal(err)
			}
			r.Close()
			t.Cleanup(func() { w.Close() })
			return w
		},
	} {
		cmd := curfew(t, "run", "-t", "2", "-g", "0", "--", "sleep", tooLong)
		cmd.Stderr = stderr()
		if r := runToEnd(t, cmd); r.code != exitTimeout || r.took > soon {
			t.Errorf("%s: exit code %d after %v, want %d at once", name, r.code, r.took, exitTimeout)
		}
	}
	for _, redirect := range []string{"2>&-", ">&- 2>&-", "<&- >&- 2>&-"} {
		if r := runToEnd(t, exec.Command("sh", "-c", "curfew run -t 2 -- sleep "+tooLong+" "+redirect)); r.code != exitTimeout {
			t.Errorf("%s: exit code %d, want %d", redirect, r.code, exitTimeout)
		}
	}
}

// After a stop a reader that does not read holds nothing up either.
func TestJSONHoldsNothingUpAfterAStop(t *testing.T) {
	t.Parallel()
	cmd := curfew(t, "run", "-t", "2", "-g", "0", "--json", "--", "sleep", tooLong)
	cmd.Stdout = full(t)
	if r := runToEnd(t, cmd); r.code != exitTimeout || r.took > soon || !strings.Contains(r.stderr, "outcome not printed") {
		t.Errorf("exit code %d after %v, want %d at once\n%s", r.code, r.took, exitTimeout, r.stderr)
	}
}

func TestInheritedDescriptors(t *testing.T) {
	t.Parallel()
	// Each at its number, with a hole between; and no others.
	r := runToEnd(t, exec.Command("sh", "-c", `echo seven > seven.tmp; curfew run -- sh -c "cat <&7; echo five >&5" 7< seven.tmp 5>&1; rm seven.tmp`))
	if r.code != 0 || r.stdout != "seven\nfive\n" {
		t.Errorf("%+v", r)
	}
	if runtime.GOOS == "linux" {
		// The process that runs the tests can have left some open too.
		without := runToEnd(t, exec.Command("sh", "-c", `sh -c "exec ls /proc/self/fd" 7< /dev/null`))
		with := runToEnd(t, exec.Command("sh", "-c", `curfew run -- sh -c "exec ls /proc/self/fd" 7< /dev/null`))
		if with.stdout != without.stdout || !strings.Contains(with.stdout, "7\n") {
			t.Errorf("descriptors %q, without curfew %q", with.stdout, without.stdout)
		}
	}
}

func TestProcessSubstitution(t *testing.T) {
	t.Parallel()
	need(t, "bash")
	r := runToEnd(t, exec.Command("bash", "-c", `curfew run -- cat <(echo one) <(echo two); curfew run -- sh -c 'echo three > $0' >(cat; echo end) | cat`))
	if r.code != 0 || r.stdout != "one\ntwo\nthree\nend\n" || r.stderr != "" {
		t.Errorf("%+v", r)
	}
}

func TestMakeJobserver(t *testing.T) {
	t.Parallel()
	need(t, "make")
	dir := t.TempDir()
	write := func(name, text string) {
		file := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o777); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(text), 0o666); err != nil {
			t.Fatal(err)
		}
	}
	write("Makefile", "all:\n\t+curfew run -- make -C sub\n")
	write("sub/Makefile", "all: a b c\na b c:\n\t@sleep 0.1; echo made $@\n")
	cmd := exec.Command("make", "-j2")
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "MAKEFLAGS=", "MAKELEVEL=")
	r := runToEnd(t, cmd)
	if r.code != 0 || strings.Count(r.stdout, "made ") != 3 || strings.Contains(r.stdout+r.stderr, "jobserver") {
		t.Errorf("%+v", r)
	}
}

// A non-blocking descriptor is passed on as it is: the process that gave it to us
// shares it.
func TestDescriptorsKeepTheirFlags(t *testing.T) {
	t.Parallel()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	defer w.Close()
	raw, err := w.SyscallConn() // Fd would make it blocking
	if err != nil {
		t.Fatal(err)
	}
	cmd := curfew(t, "run", "--", "true")
	_ = raw.Control(func(fd uintptr) {
		dup, err := unix.FcntlInt(fd, unix.F_DUPFD_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		cmd.Stdout = os.NewFile(uintptr(dup), "non-blocking pipe")
	})
	if got := runToEnd(t, cmd); got.code != 0 {
		t.Fatalf("%+v", got)
	}
	_ = raw.Control(func(fd uintptr) {
		if flags, err := unix.FcntlInt(fd, unix.F_GETFL, 0); err != nil || flags&unix.O_NONBLOCK == 0 {
			t.Errorf("flags %#x, %v: the pipe was made blocking", flags, err)
		}
	})
}

// Curfew in curfew: the outer one ends what the inner one runs.
func TestNested(t *testing.T) {
	t.Parallel()
	s := start(t, curfew(t, "run", "--", "curfew", "run", "--", "sh", "-c", fmt.Sprintf("echo ready; setsid sleep %s & sleep %s", tooLong, tooLong)))
	line(t, s.stdout, "ready")
	if err := s.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if got, want := waitFor(t, s.cmd), 128+int(syscall.SIGTERM); got != want {
		t.Errorf("exit code %d, want %d", got, want)
	}
	rest(t, s.stdout)
	if got := rest(t, s.stderr); strings.Count(got, "curfew: stopping: SIGTERM received") != 2 {
		t.Errorf("the inner one got no signal:\n%s", got)
	}
}

// If the reader of stdout has ended, a CLI whose output goes through curfew ends, as it
// would without curfew. With --json that delays nothing, and is reported.
func TestReaderIsGone(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		args   []string
		code   int
		stderr string
	}{
		"output limit": {[]string{"--output-limit", "1T", "--", "yes"}, 128 + 13, ""},
		"both streams": {[]string{"--output-limit", "1T", "--", "sh", "-c", "while echo x >&2; do echo y; done"}, 128 + 13, ""},
		"json":         {[]string{"--json", "--", "sh", "-c", "echo out"}, 123, "outcome not printed: "},
		"json, failed": {[]string{"--json", "--", "sh", "-c", "exit 3"}, 3, "outcome not printed: "},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r, w, err := os.Pipe()
			if err != nil {
				t.Fatal(err)
			}
			defer w.Close()
			r.Close()
			cmd := curfew(t, append([]string{"run"}, tt.args...)...)
			cmd.Stdout = w
			got := runToEnd(t, cmd)
			if got.code != tt.code || !strings.Contains(got.stderr, tt.stderr) || tt.stderr == "" && strings.Contains(got.stderr, "curfew") {
				t.Errorf("code %d, stderr %q", got.code, got.stderr)
			}
			if got.took > soon {
				t.Errorf("took %v", got.took)
			}
		})
	}
}
