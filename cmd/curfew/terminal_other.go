//go:build !linux && !darwin && !freebsd

package main

import (
	"errors"
	"os"
	"time"
)

// terminal is not supported here: the CLI gets our files as they are.
type terminal struct{ cli *os.File }

func onTerminal() bool         { return false }
func isTerminal(*os.File) bool { return false }
func inBackground() bool       { return false }

func openTerminal(*voice, func()) (*terminal, error) { return nil, errors.ErrUnsupported }
func (*terminal) restore()                           {}
func (*terminal) close(time.Duration)                {}
