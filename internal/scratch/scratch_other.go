//go:build !linux && !darwin

package scratch

import (
	"errors"
	"time"
)

func makeDir(string) (Dir, error) { return Dir{}, errors.ErrUnsupported }

func find(string) (Dir, error) { return Dir{}, errors.ErrUnsupported }

func remove(Dir, time.Time) error { return errors.ErrUnsupported }
