//go:build linux || darwin

package supervisor

import (
	"os"
	"syscall"
	"testing"
	"time"
)

// A caller that had no turn itself for a while does not give up on a helper because of that time.
func TestPatiently(t *testing.T) {
	began := time.Now()
	until := began.Add(50 * time.Millisecond)
	looks := 0
	err := patiently(until, func(look time.Time) error {
		if looks++; looks == 1 {
			time.Sleep(time.Until(look) + 3*lookEvery) // where 50 ms were meant
			return os.ErrDeadlineExceeded
		}
		return syscall.EBADF
	}, func() error { return nil })
	if err != syscall.EBADF || looks != 2 {
		t.Errorf("got %v after %d looks", err, looks)
	}
	looks = 0
	err = patiently(time.Now().Add(3*lookEvery/2), func(look time.Time) error {
		looks++
		time.Sleep(time.Until(look))
		return os.ErrDeadlineExceeded
	}, func() error { return nil })
	if err != os.ErrDeadlineExceeded || looks < 2 {
		t.Errorf("got %v after %d looks", err, looks)
	}
	if err := patiently(time.Now().Add(time.Hour), func(time.Time) error { return os.ErrDeadlineExceeded }, func() error { return errGuardLost }); err != errGuardLost {
		t.Errorf("got %v", err)
	}
}
