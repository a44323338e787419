//go:build linux || darwin

package main

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"curfew/fixtures"
)

// The shipped command has no fork bomb in it, as the binaries of some tests have, and no seam
// through which an environment makes its system calls fail or takes the kernel's proof away.
func TestShippedCommand(t *testing.T) {
	t.Parallel()
	if _, err := exec.LookPath("go"); err != nil {
		t.Skip("the go command is needed to build the command")
	}
	exe := filepath.Join(t.TempDir(), "curfew")
	if out, err := exec.Command("go", "build", "-buildvcs=false", "-o", exe, ".").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for _, name := range []string{"bomb", "swarm"} {
		cmd := exec.Command(exe, fixtures.Args(name, fixtures.Options{}, "anyway")...)
		out, err := cmd.CombinedOutput()
		if err == nil || cmd.ProcessState.ExitCode() != fixtures.ExitUsage || !bytes.Contains(out, []byte("unknown")) {
			t.Errorf("%s: %v\n%s", name, err, out)
		}
	}
	binary, err := os.ReadFile(exe)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"fixtures/bombs", "CURFEW_FAULTS", "CURFEW_TRACKER"} {
		if bytes.Contains(binary, []byte(name)) {
			t.Errorf("%s is in the command", name)
		}
	}
	if !bytes.Contains(binary, []byte("curfew/fixtures.")) {
		t.Error("the names of packages are not in the command: this test sees nothing")
	}
	cmd := exec.Command(exe, "selftest", "exits")
	cmd.Env = append(os.Environ(), "CURFEW_FAULTS=fork_exec=11", "CURFEW_TRACKER=1", "CURFEW_HELPER_TRACKER=1")
	out, err := cmd.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "heartbeat stopped") {
		t.Errorf("selftest: %v\n%s", err, out)
	}
}
