//go:build !linux && !darwin

package journal

import (
	"errors"
	"fmt"
	"io/fs"
	"runtime"
)

func supported() error { return fmt.Errorf("%s: %w", runtime.GOOS, errors.ErrUnsupported) }

const (
	forReading = iota
	forAppending
	forLocking
	orCreate
	mustCreate
)

func openFile(string, int) (int, error)        { return -1, supported() }
func readAll(int, string, int) ([]byte, error) { return nil, supported() }
func writeAll(int, string, []byte) error       { return supported() }
func syncFile(int, string) error               { return supported() }
func syncDir(string) error                     { return supported() }
func mkdir(string) error                       { return supported() }
func ownerOf(fs.FileInfo) int                  { return -1 }
func BootID() string                           { return "" }
