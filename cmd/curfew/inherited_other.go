//go:build !unix

package main

import (
	"errors"
	"os"
)

const openFlags = 0

var inherited []*os.File

func duplicate(int) (*os.File, error) { return nil, errors.ErrUnsupported }
