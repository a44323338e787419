package scratch

import (
	"os"
	"testing"
)

const (
	copiesNames      = true  // for each system call
	tellsDirectories = false // unlinkat returns EPERM for one
)

// descriptors lists the open descriptors of this process.
func descriptors(t *testing.T) []byte {
	t.Helper()
	found, err := os.ReadDir("/dev/fd")
	must(t, err)
	var open []byte
	for _, e := range found {
		open = append(open, e.Name()+"\n"...)
	}
	return open
}

func ownBinary(t *testing.T) string {
	t.Helper()
	path, err := os.Executable()
	must(t, err)
	return path
}
