//go:build !curfew_faults

package fault

import "syscall"

// Enabled reports whether the environment can make calls of this program fail.
const Enabled = false

func due(Call) syscall.Errno { return 0 }

// Size returns how many of n bytes the next call asks for.
func Size(_ Call, n int) int { return n }

// Environment returns the variable that says what fails, for the environment of a helper.
func Environment() []string { return nil }
