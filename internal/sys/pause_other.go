//go:build !linux

package sys

import "time"

// Pause lets d pass.
func Pause(d time.Duration) { time.Sleep(d) }
