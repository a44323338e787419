package adapter

import (
	"bytes"
	"context"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"curfew/outcome"
)

// A supervisor that is frozen for nearly all of the time that it has to acknowledge a
// stop, and again at the end of the ladder, for good: Invoke returns within the bound.
func TestSupervisorIsFrozenTwice(t *testing.T) {
	t.Parallel()
	t.Run("invocation", func(t *testing.T) {
		t.Parallel()
		frozenTwice(t, func(ctx context.Context, a *Adapter, c Command) <-chan ended { return invokeAsync(ctx, a, c) })
	})
	t.Run("session", func(t *testing.T) {
		t.Parallel()
		frozenTwice(t, func(ctx context.Context, a *Adapter, c Command) <-chan ended {
			c.Stop.StdinGrace = -1
			s := start(t, a, c)
			result := make(chan ended, 1)
			go func() {
				<-ctx.Done()
				_ = s.Stop(context.Background()) // the outcome says it
				o, err := s.Wait()
				result <- ended{o, err, time.Now()}
			}()
			return result
		})
	})
}

func frozenTwice(t *testing.T, run func(context.Context, *Adapter, Command) <-chan ended) {
	f := newFreezer(t)
	a := newAdapter(t, Options{NoCgroup: true})
	whole := newHeldPipe(t)
	c := sh(`echo $PPID >&3; trap "" TERM; while :; do sleep 1; done`)
	c.ExtraFiles = []*os.File{whole.w}
	// What adds to it: a Reader and a Writer that do not return, and a pipe that is held.
	until := make(chan struct{})
	defer close(until)
	c.Stdin = onRead(func([]byte) (int, error) { <-until; return 0, io.EOF })
	c.Stdout = io.Discard
	c.Stop = StopPolicy{Grace: 700 * time.Millisecond, KillWait: 100 * time.Millisecond, Drain: 300 * time.Millisecond, Linger: -1}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	result := run(ctx, a, c)
	_ = whole.r.SetReadDeadline(time.Now().Add(patience))
	line := make([]byte, 32)
	n, err := whole.r.Read(line)
	if err != nil {
		t.Fatal(err)
	}
	pid := string(bytes.TrimSpace(line[:n]))
	if _, err := strconv.Atoi(pid); err != nil {
		t.Fatalf("the tree said %q", line[:n])
	}
	if err := os.WriteFile(filepath.Join(f.dir, "cgroup.procs"), []byte(pid), 0); err != nil {
		t.Fatal(err)
	}
	f.freeze()
	began := time.Now()
	cancel()
	time.Sleep(900 * time.Millisecond)
	f.thaw()
	time.Sleep(500 * time.Millisecond)
	f.freeze()
	e := <-result
	took := e.at.Sub(began)
	if took > c.waits(false).bound() {
		t.Errorf("took %v, the bound is %v", took, c.waits(false).bound())
	}
	t.Logf("took %v of %v: %s, %+v", took, c.waits(false).bound(), e.o.Cause, e.o.Cleanup)
	if e.o.Status != outcome.StatusUnknown || e.o.Cause != outcome.CauseCanceled || !e.o.Cleanup.HelperLost || e.o.Cleanup.Result != outcome.CleanupUnverified {
		t.Errorf("%s, %s, %+v", e.o.Status, e.o.Cause, e.o.Cleanup)
	}
	if !strings.Contains(e.err.Error(), "canceled") {
		t.Error(e.err)
	}
	f.thaw()
	whole.isFree(patience) // the guard ends it then
}
