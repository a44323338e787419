//go:build !unix

package adapter

import (
	"errors"
	"fmt"
	"os"
	"runtime"
)

// errSystem refuses every invocation where there is no supervisor.
var errSystem = fmt.Errorf("adapter: %s: %w", runtime.GOOS, errors.ErrUnsupported)

func pipe() (p [2]int, err error) { return p, errSystem }

func pollable(fd int, name string) *os.File { return os.NewFile(uintptr(fd), name) }

func openDir(string) (int, error) { return -1, errSystem }

func idOf(int) (fileID, error) { return fileID{}, errSystem }

func duplicate(*os.File) int { return -1 }

func closeFD(int) {}

func mayExecute(string) error { return nil }

func readNow(int, []byte) (int, error) { return 0, errSystem }

func readable(int) bool { return false }

func again(error) bool { return false }
