//go:build linux || darwin

package journal

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// roles are what the test binary does when it is started again with roleVar
// set: a caller or a helper that can be killed. A role returns an error if something is wrong.
var roles = map[string]func(args []string) error{}

const roleVar = "JOURNAL_TEST_ROLE"

// roleLimit ends a process that a test started, whatever happens to the test.
const roleLimit = 50 * time.Second

// tooLong bounds what happens at once on an idle machine.
const tooLong = 20 * time.Second

func TestMain(m *testing.M) {
	if name := os.Getenv(roleVar); name != "" {
		time.AfterFunc(roleLimit, func() { os.Exit(3) })
		if err := roles[name](os.Args[1:]); err != nil {
			fmt.Fprintln(os.Stderr, name+":", err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// say writes one line to stdout, in one piece.
func say(words ...string) {
	_, _ = os.Stdout.WriteString(strings.Join(words, " ") + "\n") // an error means that the test has ended; this process ends soon
}

// process is a running role.
type process struct {
	*exec.Cmd
	in  io.WriteCloser
	out *bufio.Scanner
}

// play starts a role. It is killed at the end of the test at the latest.
func play(t testing.TB, role string, args ...string) *process {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	p := &process{Cmd: exec.Command(self, args...)}
	p.Env = append(os.Environ(), roleVar+"="+role)
	p.Stderr = os.Stderr
	if p.in, err = p.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	// Not StdoutPipe: Wait closes it while a grandchild still writes.
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	p.Stdout, p.out = w, bufio.NewScanner(r)
	err = p.Start()
	w.Close()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		p.kill()
		r.Close()
	})
	return p
}

// kill ends the role with SIGKILL and returns when it has ended.
func (p *process) kill() {
	_ = p.Process.Kill() // an error means that it has ended
	_ = p.Wait()
	p.in.Close()
}

// line returns the next line of the role.
func (p *process) line(t testing.TB) string {
	t.Helper()
	if !p.out.Scan() {
		t.Fatalf("the role wrote nothing more: %v", p.out.Err())
	}
	return p.out.Text()
}

// rest returns the lines of the role and its children until they have ended.
func (p *process) rest() (lines []string) {
	for p.out.Scan() {
		lines = append(lines, p.out.Text())
	}
	return lines
}

func open(t testing.TB, dir string) *Journal {
	t.Helper()
	j, err := Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = j.Close() }) // it fails where the test removed the directory
	return j
}

func begin(t testing.TB, j *Journal, ids ...string) {
	t.Helper()
	for _, id := range ids {
		if err := j.Begin(Begin{ID: id, Program: "/bin/true", Began: time.Now()}); err != nil {
			t.Fatal(err)
		}
	}
}

// settleAs returns a settle that writes the end as writer.
func settleAs(writer string) func(Entry) End {
	return func(Entry) End { return End{Writer: writer, At: time.Now()} }
}

// given returns the ids and the writers of the ends that Recover returns.
func given(t testing.TB, j *Journal, limit time.Duration) (map[string]string, error) {
	t.Helper()
	entries, err := j.Recover(context.Background(), limit, settleAs("recover"))
	got := map[string]string{}
	for _, entry := range entries {
		if _, twice := got[entry.Begin.ID]; twice {
			t.Errorf("%s was given twice by one Recover", entry.Begin.ID)
		}
		got[entry.Begin.ID] = entry.End.Writer
	}
	return got, err
}

func write(t testing.TB, path string, text []byte) {
	t.Helper()
	if err := os.WriteFile(path, text, 0o600); err != nil {
		t.Fatal(err)
	}
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

// names returns what is in a directory.
func names(t testing.TB, dir ...string) []string {
	t.Helper()
	entries, err := os.ReadDir(filepath.Join(dir...))
	if err != nil {
		t.Fatal(err)
	}
	var all []string
	for _, entry := range entries {
		all = append(all, entry.Name())
	}
	return all
}
