package bench

import (
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const leastVar = "CURFEW_BENCH_LEAST"

// leastMain, in a process started for it, runs the fixture that its arguments
// name as its own child, adopts what becomes an orphan, and then kills and reaps
// everything by pid. It prints how long that took.
func leastMain() {
	ready := os.Getenv(leastVar)
	if ready == "" {
		return
	}
	os.Unsetenv(leastVar)
	fail := func(err error) {
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
	fail(unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0))
	fail(exec.Command(os.Args[0], os.Args[1:]...).Start())
	awaitReady(ready)

	began := time.Now()
	for {
		tasks, err := os.ReadDir("/proc/self/task")
		fail(err)
		killed := 0
		for _, task := range tasks {
			b, _ := os.ReadFile("/proc/self/task/" + task.Name() + "/children")
			for _, word := range strings.Fields(string(b)) {
				pid, err := strconv.Atoi(word)
				if err == nil && pid > 1 && syscall.Kill(pid, syscall.SIGKILL) == nil {
					killed++ // our own child, and only we reap
				}
			}
		}
		for range killed {
			if _, err := syscall.Wait4(-1, nil, 0, nil); err == syscall.ECHILD {
				break
			}
		}
		if _, err := syscall.Wait4(-1, nil, syscall.WNOHANG, nil); err == syscall.ECHILD {
			fmt.Print(time.Since(began))
			os.Exit(0)
		}
	}
}
