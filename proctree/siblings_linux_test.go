package proctree

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"curfew/fixtures"
)

func init() { roles["only siblings"] = onlySiblingsRole }

// Whenever OnlySiblings reports true, nothing is left of what a sibling that has died had
// started: this tries to find a moment at which that is wrong, with trees that
// are never still, while another sibling lives, and with so many children that the
// list of them does not fit into one read.
func TestOnlySiblings(t *testing.T) {
	seed := rand.Uint64()
	if s := os.Getenv("CURFEW_SEED"); s != "" {
		var err error
		if seed, err = strconv.ParseUint(s, 10, 64); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("CURFEW_SEED=%d", seed)
	rounds := "15"
	if testing.Short() {
		rounds = "6"
	}
	if s := os.Getenv("CURFEW_SIBLING_ROUNDS"); s != "" {
		rounds = s
	}
	inTree(t, "only siblings", t.TempDir(), strconv.FormatUint(seed, 10), rounds)
}

func onlySiblingsRole(args []string) error {
	seed, err := strconv.ParseUint(args[1], 10, 64)
	if err != nil {
		return err
	}
	rounds, err := strconv.Atoi(args[2])
	if err != nil {
		return err
	}
	random := rand.New(rand.NewPCG(seed, 0))
	h, err := hold()
	if err != nil {
		return err
	}
	if h.subreaper, err = openSubreaper(Options{}, true); err != nil { // its own threads, and the same children
		return err
	}
	if !h.OnlySiblings() {
		return errors.New("without any child: not only siblings")
	}
	other, err := h.sibling("sleep", tooLong)
	if err != nil {
		return err
	}
	defer h.EndSibling(other)
	asked, yes := 0, 0
	for i := range rounds {
		dir := filepath.Join(args[0], strconv.Itoa(i))
		if err := os.Mkdir(dir, 0o700); err != nil {
			return err
		}
		probe, err := fixtures.NewProbe(dir)
		if err != nil {
			return err
		}
		what := [][]string{{"comet", "6"}, {"storm", "6"}, {"sessions", "40"}, {"respawns"}, {"chain", "40"}, {"subreaper"}, {"wipes-env"}}[random.IntN(7)]
		if i == 0 {
			what = []string{"wide", "800"} // their list is longer than our buffer
		}
		pid, err := h.sibling(os.Args[0], fixtures.Args(what[0], probe.Options(), what[1:]...)...)
		if err != nil {
			return err
		}
		if i == 0 || random.IntN(3) > 0 {
			ctx, cancel := context.WithTimeout(context.Background(), 2*patience)
			err := probe.AwaitReady(ctx)
			cancel()
			if err != nil {
				return err
			}
		} else {
			time.Sleep(time.Duration(random.IntN(30)) * time.Millisecond)
		}
		h.EndSibling(pid)
		for end := time.Now().Add(patience); ; {
			if time.Now().After(end) {
				return fmt.Errorf("%v: there are more than siblings after %v", what, patience)
			}
			h.Collect(true)
			if h.siblings.has(pid) { // its exit is seen by reaping
				_ = h.Reap()
				continue
			}
			asked++
			if h.OnlySiblings() {
				if eof, err := probe.FIFOEOF(0); !eof && !errors.Is(err, fixtures.ErrNoWriter) {
					return fmt.Errorf("%v: only siblings are there, and a process holds the FIFO: %v, %w", what, eof, err)
				}
				yes++
				break
			}
			// Looking so often would show it if it could be seen.
			h.Strike(random.IntN(2) == 0)
			asked++
			if h.OnlySiblings() {
				return fmt.Errorf("%v: nothing was reaped, and those that were there are not any more", what)
			}
			_ = h.Reap()
		}
		if err := probe.Close(); err != nil {
			return err
		}
	}
	fmt.Printf("asked %d times, %d times only siblings\n", asked, yes)
	return nil
}

// sibling starts a sibling.
func (h *held) sibling(name string, args ...string) (int, error) {
	path, err := exec.LookPath(name)
	if err != nil {
		return 0, err
	}
	dir, err := unix.Open("/", unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		return 0, err
	}
	defer unix.Close(dir)
	h.Start(&Spec{Path: path, Argv: append([]string{name}, args...), Env: os.Environ(), Dir: dir, Files: []int{dir, 1, 2}, Sibling: true})
	for end := time.Now().Add(patience); time.Now().Before(end); {
		if h.OnlySiblings() {
			return 0, errors.New("only siblings, while one is being started")
		}
		ev := h.Collect(true)
		switch {
		case ev.StartErr != nil:
			return 0, ev.StartErr
		case ev.StartDone:
			return ev.PID, nil
		}
		fds := []unix.PollFd{{Fd: int32(h.FD()), Events: unix.POLLIN}}
		_, _ = unix.Poll(fds, 100)
	}
	return 0, errors.New("it is not started")
}
