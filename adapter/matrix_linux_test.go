package adapter

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"curfew/outcome"
)

// emptyBy is how an empty tree is known.
var emptyBy = outcome.ProofNoChildren

// goneAfterAll is how long who is left may take when awaitNobody has returned.
const goneAfterAll = 0

// beNearest has orphans fall to this process, and await waits until there are none.
func beNearest() error {
	return os.NewSyscallError("prctl", unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0))
}

// awaitNobody waits until this process has no child, and none of its descendants has.
func awaitNobody(until time.Time) error {
	for {
		_, err := unix.Wait4(-1, nil, unix.WNOHANG|unix.WALL, nil)
		if err == unix.ECHILD {
			return nil
		}
		if time.Now().After(until) {
			return fmt.Errorf("there is %s", children())
		}
		time.Sleep(time.Millisecond)
	}
}

// children names the children of this process.
func children() string {
	lists, _ := filepath.Glob("/proc/self/task/*/children")
	var names []string
	for _, list := range lists {
		b, _ := os.ReadFile(list)
		for _, pid := range strings.Fields(string(b)) {
			stat, _ := os.ReadFile("/proc/" + pid + "/stat")
			names = append(names, string(stat[:min(len(stat), 40)]))
		}
	}
	return strings.Join(names, "; ")
}
