package proctree

import (
	"fmt"
	"os"
	"runtime"
	"testing"
	"time"

	"curfew/fixtures"
)

// roles are what the test binary does when it is started again with roleVar
// set: each is a process of its own that holds a tree, because holding one makes
// a process a subreaper that reaps every child. A role returns what is wrong.
var roles = map[string]func(args []string) error{}

const roleVar = "PROCTREE_TEST_ROLE"

// patience bounds every wait in a role. It is no measure of speed.
const patience = 20 * time.Second

// A role runs on the main thread, as a helper does.
func init() {
	if os.Getenv(roleVar) != "" {
		runtime.LockOSThread()
	}
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
	os.Exit(m.Run())
}
