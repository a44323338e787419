//go:build !linux

package main

import "os"

// hangup returns no channel: the end of stdin is seen when it is read.
func hangup(*os.File) <-chan struct{} { return nil }
