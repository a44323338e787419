package supervisor

import (
	"fmt"
	"os"
	"testing"
)

// roles are what the test binary does when it is started again with roleVar set: it is a caller of
// its own, whose state a test may change. A role returns what is wrong.
var roles = map[string]func(args []string) error{}

const roleVar = "SUPERVISOR_TEST_ROLE"

func TestMain(m *testing.M) {
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
