package main

import (
	"fmt"
	"os"
	"strings"
	"testing"
)

// A descriptor keeps its number, also if the limit of open files does not allow that number
// any more: it was opened before the limit was lowered.
func TestDescriptorsUnderALowLimit(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	numbers := []int{3, 7, 20, 254, 255, 256, 300}
	for _, ulimit := range []string{"ulimit -n 256", "ulimit -S -n 256", ":"} {
		t.Run(ulimit, func(t *testing.T) {
			t.Parallel()
			list := `for n in ` + strings.Trim(fmt.Sprint(numbers), "[]") + `; do readlink /proc/self/fd/$n; done; ls /proc/self/fd | wc -l; ulimit -S -n`
			cmd := curfew(t)
			cmd.Path, cmd.Args = "/bin/sh", []string{"sh", "-c", ulimit + `; sh -c "$0"; curfew run -- sh -c "$0"`, list}
			for _, n := range numbers {
				f, err := os.Create(fmt.Sprintf("%s/%d-%d", dir, len(ulimit), n))
				if err != nil {
					t.Fatal(err)
				}
				defer f.Close()
				for len(cmd.ExtraFiles) <= n-3 {
					cmd.ExtraFiles = append(cmd.ExtraFiles, nil)
				}
				cmd.ExtraFiles[n-3] = f
			}
			r := runToEnd(t, cmd)
			plain, ours := r.stdout[:len(r.stdout)/2], r.stdout[len(r.stdout)/2:]
			if r.code != 0 || plain != ours || strings.Count(plain, dir) != len(numbers) {
				t.Errorf("%d, %q\nwithout curfew:\n%swith curfew:\n%s", r.code, r.stderr, plain, ours)
			}
		})
	}
}

// If a limit is too low for a helper, the error names the limit.
func TestTooFewDescriptors(t *testing.T) {
	t.Parallel()
	for n := 10; n < 40; n += 2 {
		cmd := curfew(t)
		cmd.Path, cmd.Args = "/bin/sh", []string{"sh", "-c", fmt.Sprintf("ulimit -n %d; exec curfew run -- echo ran", n)}
		switch r := runToEnd(t, cmd); {
		case r.code == 0 && r.stdout == "ran\n":
		case r.code == exitFailed && strings.Contains(r.stderr, "too many open files (raise ulimit -n"):
		default:
			t.Errorf("ulimit -n %d: %d, %q, %q", n, r.code, r.stdout, r.stderr)
		}
	}
}
