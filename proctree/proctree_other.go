//go:build !linux && !darwin

package proctree

import (
	"errors"
	"fmt"
)

// Tree is the leader that this process started and everything that descends
// from it.
type Tree struct{}

// Open returns an error that wraps errors.ErrUnsupported.
func Open() (*Tree, error) {
	return nil, fmt.Errorf("proctree: keep hold of a process tree: supported on Linux only so far: %w", errors.ErrUnsupported)
}
