package proctree

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"curfew/fixtures"
)

func init() { roles["headless holds"] = headlessHoldsRole }

// A process whose main thread has exited is alive as long as another one is.

func TestSweepFindsTheHeadless(t *testing.T) {
	t.Parallel()
	began := time.Now()
	ready := filepath.Join(t.TempDir(), "ready")
	mark, r, _ := marked(t, append([]string{os.Args[0]}, fixtures.Args("zombie-leader", fixtures.Options{Ready: ready})...)...)
	if err := exists(ready); err != nil {
		t.Fatal(err)
	}
	ended, suspects := Sweep(Lost{Mark: mark, Cgroup: ownCgroupFile(t), Since: began}, time.Now().Add(patience))
	if len(ended) != 1 || ended[0].Name == "" || len(suspects) != 0 {
		t.Errorf("ended %v, suspects %v", ended, suspects)
	}
	eof(t, r)
}

func TestHeadlessHolds(t *testing.T) { inTree(t, "headless holds", t.TempDir()) }

func headlessHoldsRole(args []string) error {
	f, err := os.Create(filepath.Join(args[0], "out"))
	if err != nil {
		return err
	}
	null, err := unix.Open("/dev/null", unix.O_RDWR, 0)
	if err != nil {
		return err
	}
	h, err := hold()
	if err != nil {
		return err
	}
	ready := filepath.Join(args[0], "ready")
	script := append([]string{"sh", "-c", `"$@" & exit 0`, "sh", os.Args[0]}, fixtures.Args("zombie-leader", fixtures.Options{Ready: ready})...)
	if err := h.run([]int{null, int(f.Fd()), null}, script...); err != nil {
		return err
	}
	if err := exists(ready); err != nil {
		return err
	}
	if err := h.until("exited", func() bool { return h.exit != nil }); err != nil {
		return err
	}
	h.leader.given = []string{f.Name()}
	if !h.Holds(time.Now().Add(patience)) {
		return errors.New("it does not hold the output")
	}
	h.leader.given = []string{filepath.Join(args[0], "another")}
	if h.Holds(time.Now().Add(patience)) {
		return errors.New("it holds another file")
	}
	if list, _ := h.Members(10); len(list) != 1 || list[0].State == 'Z' {
		return fmt.Errorf("members %v", list)
	}
	if list := h.Survivors(); len(list) != 1 || list[0].State == "Z" {
		return fmt.Errorf("survivors %+v", list)
	}
	return h.kill()
}

// exists waits for a file.
func exists(name string) error {
	for end := time.Now().Add(patience); ; time.Sleep(time.Millisecond) {
		if _, err := os.Stat(name); err == nil || time.Now().After(end) {
			return err
		}
	}
}
