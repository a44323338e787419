//go:build linux || darwin

package proctree

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	mathrand "math/rand/v2"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strconv"
	"syscall"
	"testing"
	"time"

	"curfew/fixtures"
)

func init() { roles["tracked"] = trackedRole }

// trackedVariable is how often each fixture is ended by TestTracked. As a rule some
// are, once.
const trackedVariable = "CURFEW_TRACKED"

var alwaysTracked = []string{"leaves", "double-fork", "wipes-env", "subreaper", "respawns", "daemons"}

// Each fixture is tracked and ended by scans alone, without a subreaper, as it is to
// be on macOS. What gets away is suspected, unless it was in no scan.
func TestTracked(t *testing.T) {
	if testing.Short() {
		t.Skip("what it tests is in other processes")
	}
	times := 0
	if v := os.Getenv(trackedVariable); v != "" {
		var err error
		if times, err = strconv.Atoi(v); err != nil {
			t.Fatal(err)
		}
	}
	canary, err := fixtures.StartCanary(os.Args[0], t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range fixtures.All() {
		if f.NeedsTaskLimit || f.KillsParent || f.LinuxOnly && runtime.GOOS != "linux" { // the parent would be the test
			continue
		}
		if times == 0 && !slices.Contains(alwaysTracked, f.Name) {
			continue
		}
		t.Run(f.Name, func(t *testing.T) {
			away := 0
			for range max(times, 1) {
				cmd := exec.Command(os.Args[0], t.TempDir(), f.Name)
				cmd.Env = append(os.Environ(), roleVar+"=tracked")
				out, err := cmd.CombinedOutput()
				var exit *exec.ExitError
				switch {
				case errors.As(err, &exit) && exit.ExitCode() == gotAway:
					away++
					t.Logf("%s", out)
				case err != nil:
					t.Errorf("%v: %s", err, out)
				}
			}
			if away > 0 {
				t.Logf("%d of %d got away", away, times)
				if !slices.Contains(notCoverable, f.Name) {
					t.Errorf("that should not be")
				}
			}
		})
	}
	if err := errors.Join(canary.Check(), canary.Stop()); err != nil {
		t.Error(err)
	}
}

// notCoverable are the fixtures of which something can get away from scans.
var notCoverable = []string{"wipes-env", "comet"}

// gotAway is the exit code of a role whose fixture has left something that is
// suspected.
const gotAway = 9

func trackedRole(args []string) error {
	probe, err := fixtures.NewProbe(args[0])
	if err != nil {
		return err
	}
	defer probe.Close()
	f, _ := fixtures.Find(args[1])
	o := probe.Options()
	o.For = 40 * time.Second
	const name = "CURFEW_TEST_TRACKED"
	nonce := rand.Text()
	cmd := exec.Command(os.Args[0], fixtures.Args(f.Name, o, f.Args...)...)
	cmd.Env = append(os.Environ(), name+"="+nonce)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return err
	}
	table := newProcessTable(marking{prefix: name + "=", mark: name + "=" + nonce})
	rows, err := table.Rows()
	i := slices.IndexFunc(rows, func(r Row) bool { return r.PID == cmd.Process.Pid })
	if err != nil || i < 0 {
		return fmt.Errorf("the root cannot be read: %v", err)
	}
	t := NewTracker(rows[i])
	ready := make(chan error, 1)
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	go func() { ready <- probe.AwaitReady(ctx) }()
	after := time.Now()
	for waiting := true; waiting || time.Now().Before(after); time.Sleep(4 * time.Millisecond) {
		if rows, err := table.Rows(); err == nil {
			t.Scan(rows, table.Mark)
		}
		select {
		case err := <-ready:
			if err != nil {
				return err
			}
			waiting = false
			after = time.Now().Add(mathrand.N(30 * time.Millisecond))
		default:
		}
	}
	began := time.Now()
	empty := t.End(table, began.Add(patience/2))
	took := time.Since(began)
	_ = cmd.Wait()
	gone := true
	if f.HoldsFIFO {
		if gone, err = probe.FIFOEOF(2 * time.Second); err != nil {
			return err
		}
	} else {
		gone = !probe.Beating(200 * time.Millisecond)
	}
	fmt.Printf("%v: empty %v, gone %v, %d suspects\n", took, empty, gone, len(t.Suspects()))
	switch {
	case gone && empty:
		return nil
	case !gone && empty && len(t.Suspects()) == 0 && f.Name != "comet": // each of that is gone before it is read
		return errors.New("something lives, and nobody is suspected")
	}
	os.Exit(gotAway)
	return nil
}

// BenchmarkRows reads the process table as it is.
func BenchmarkRows(b *testing.B) {
	table := newProcessTable(marking{})
	n := 0
	for b.Loop() {
		rows, err := table.Rows()
		if err != nil {
			b.Fatal(err)
		}
		n += len(rows)
	}
	b.ReportMetric(float64(n)/float64(b.N), "processes")
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(n), "ns/process")
}
