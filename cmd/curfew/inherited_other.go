//go:build !unix

package main

import "os"

const nonblock = 0

var inherited []*os.File
