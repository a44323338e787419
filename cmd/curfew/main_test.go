package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"curfew/fixtures"
	"curfew/outcome"
)

// markName is in the environment of everything that a test starts, and of
// whatever that starts.
const markName = "CURFEW_TEST_RUN"

// TestMain puts the command in the PATH of the tests, and proves at the end
// that none of them left a process behind.
func TestMain(m *testing.M) {
	testscript.Main(leakChecked{m}, map[string]func(){"curfew": main})
}

type leakChecked struct{ m *testing.M }

func (l leakChecked) Run() int {
	mark := fmt.Sprintf("%s=%d", markName, os.Getpid())
	if err := os.Setenv(markName, fmt.Sprint(os.Getpid())); err != nil {
		panic(err)
	}
	fixtures.CatchIgnored()
	code := l.m.Run()
	var left []string
	for wait := time.Millisecond; wait < 4*time.Second; wait *= 2 {
		if left = marked(mark); left == nil {
			return code
		}
		time.Sleep(wait)
	}
	fmt.Fprintf(os.Stderr, "left behind:\n%s\n", strings.Join(left, "\n"))
	return 1
}

// marked lists the processes that have mark in their environment, but for this
// one, where the system shows that.
func marked(mark string) []string {
	var found []string
	files, _ := filepath.Glob("/proc/[0-9]*/environ")
	for _, file := range files {
		env, err := os.ReadFile(file)
		if err != nil || !bytes.Contains(append([]byte{0}, env...), []byte("\x00"+mark+"\x00")) {
			continue
		}
		dir := filepath.Dir(file)
		if filepath.Base(dir) == fmt.Sprint(os.Getpid()) {
			continue
		}
		if stat, err := os.ReadFile(filepath.Join(dir, "stat")); err == nil {
			args, _ := os.ReadFile(filepath.Join(dir, "cmdline"))
			about := string(stat) + string(bytes.ReplaceAll(args, []byte{0}, []byte{' '}))
			for kv := range bytes.SplitSeq(env, []byte{0}) {
				// Which test, and whose invocation.
				if bytes.HasPrefix(kv, []byte("PWD=")) || bytes.HasPrefix(kv, []byte("CURFEW_INVOCATION")) {
					about += " " + string(kv)
				}
			}
			found = append(found, about)
		}
	}
	return found
}

// tooLong is how long a process runs that has to be stopped: longer than any test. It ends by
// itself.
const tooLong = "60"

// soon is how long something may take that is immediate on an idle machine.
const soon = 20 * time.Second

func TestScripts(t *testing.T) {
	t.Parallel()
	testscript.Run(t, testscript.Params{
		Dir: "testdata/script",
		Setup: func(env *testscript.Env) error {
			env.Setenv(markName, os.Getenv(markName))
			return nil
		},
		Condition: func(cond string) (bool, error) {
			if cond == "root" {
				return os.Geteuid() == 0, nil
			}
			return false, fmt.Errorf("no such condition: %s", cond)
		},
	})
}

// ran is how a run of the command ended.
type ran struct {
	code           int
	stdout, stderr string
	took           time.Duration
}

// curfew returns the command, ready to be started.
func curfew(t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	cmd := exec.Command("curfew", args...)
	cmd.Dir = t.TempDir()
	cmd.WaitDelay = soon
	return cmd
}

// runToEnd runs the command to its end.
func runToEnd(t *testing.T, cmd *exec.Cmd) ran {
	t.Helper()
	var stdout, stderr bytes.Buffer
	if cmd.Stdout == nil {
		cmd.Stdout = &stdout
	}
	if cmd.Stderr == nil {
		cmd.Stderr = &stderr
	}
	began := time.Now()
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	r := ran{code: waitFor(t, cmd), took: time.Since(began)}
	r.stdout, r.stderr = stdout.String(), stderr.String()
	return r
}

// waitFor waits for the end of a command that was started.
func waitFor(t *testing.T, cmd *exec.Cmd) int {
	t.Helper()
	timer := time.AfterFunc(2*soon, func() { _ = cmd.Process.Kill() })
	defer timer.Stop()
	err := cmd.Wait()
	var e *exec.ExitError
	switch {
	case errors.As(err, &e) && e.Exited():
		return e.ExitCode()
	case err != nil:
		t.Fatalf("curfew did not end as it should: %v", err)
	}
	return 0
}

// readReport reads what --report wrote.
func readReport(t *testing.T, file string) outcome.Outcome {
	t.Helper()
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var o outcome.Outcome
	if err := json.Unmarshal(data, &o); err != nil {
		t.Fatalf("%v in:\n%s", err, data)
	}
	return o
}

// need skips the test if a program is missing.
func need(t *testing.T, programs ...string) {
	t.Helper()
	for _, p := range programs {
		if _, err := exec.LookPath(p); err != nil {
			t.Skipf("%s is not installed", p)
		}
	}
}

func unixOnly(t *testing.T) {
	t.Helper()
	if runtime.GOOS == "windows" {
		t.Skip("no invocations on " + runtime.GOOS)
	}
}

// The main example: a tree with a member that left the session and ignores SIGTERM.
func TestTimeoutEndsTheWholeTree(t *testing.T) {
	t.Parallel()
	unixOnly(t)
	need(t, "setsid")
	cmd := curfew(t, "run", "--timeout", "3s", "--report", "r.json", "--", "sh", "-c",
		`setsid sh -c "trap \"\" TERM; sleep `+tooLong+`" & sleep `+tooLong)
	r := runToEnd(t, cmd)
	if r.code != exitTimeout {
		t.Errorf("exit code %d, want %d\n%s", r.code, exitTimeout, r.stderr)
	}
	const bound = 3*time.Second + 10*time.Second // Bound of the zero policy
	if r.took > bound {
		t.Errorf("it took %v, more than the bound of %v", r.took, bound)
	}
	o := readReport(t, filepath.Join(cmd.Dir, "r.json"))
	if o.Status != outcome.StatusUnknown || o.Cause != outcome.CauseTimeout || o.Cleanup.Result != outcome.CleanupEmpty {
		t.Errorf("status %s, cause %s, cleanup %s; want outcome_unknown, timeout, empty", o.Status, o.Cause, o.Cleanup.Result)
	}
	if runtime.GOOS == "linux" && o.Cleanup.Proof != outcome.ProofNoChildren {
		t.Errorf("proof %s, want no_children", o.Cleanup.Proof)
	}
	byKill := 0
	for _, e := range o.Cleanup.Ended {
		if e.LastSignal == int(syscall.SIGKILL) {
			byKill++
		}
	}
	if len(o.Cleanup.Ended) < 3 || byKill == 0 {
		t.Errorf("ended: %+v; want both shells and what they ran, some by SIGKILL", o.Cleanup.Ended)
	}
	for _, want := range []string{"timed out after 3s", "curfew: ended "} {
		if !strings.Contains(r.stderr, want) {
			t.Errorf("stderr does not have %q:\n%s", want, r.stderr)
		}
	}
}
