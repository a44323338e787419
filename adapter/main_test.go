package adapter

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"testing"
	"time"

	"go.uber.org/goleak"

	_ "curfew/adapter/testdata/early"
	// Every helper of these tests has an init function in its way that changes
	// os.Args: it must be taken over all the same.
	_ "curfew/adapter/testdata/renames"
	"curfew/fixtures"
)

// roles are what the test binary does when it is started again with roleVar
// set: a caller of its own, whose state a test may change, or that it may kill.
// A role returns what is wrong.
var roles = map[string]func(args []string) error{}

const roleVar = "ADAPTER_TEST_ROLE"

// size returns how much a test does: usually, when it is to be short, and when
// CURFEW_LONG is set, on a machine that does nothing else.
func size[V any](usual, short, long V) V {
	switch {
	case os.Getenv("CURFEW_LONG") != "":
		return long
	case testing.Short():
		return short
	}
	return usual
}

func TestMain(m *testing.M) {
	fixtures.Main()
	if name := os.Getenv(roleVar); name != "" {
		os.Unsetenv(roleVar)
		role := roles[name]
		if role == nil {
			fmt.Fprintln(os.Stderr, "no such role:", name)
			os.Exit(2)
		}
		if err := role(os.Args[1:]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	fixtures.CatchIgnored()
	goleak.VerifyTestMain(m)
}

// inRole runs a role in a process of its own and fails with what it says.
func inRole(t *testing.T, limit time.Duration, role string, args ...string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	cmd := exec.CommandContext(ctx, os.Args[0], args...)
	cmd.Env = append(os.Environ(), roleVar+"="+role)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	t.Logf("%s", out)
}
