//go:build unix

package proctree

import (
	"bytes"
	"encoding/binary"
)

// foundMark is what the environment of a process shows; the zero value is that of a process
// which was not asked.
type foundMark int

const (
	markHidden  foundMark = iota // nothing: it cannot be read, or was wiped
	markOurs                     // it is of this tree
	markAnother                  // it is of another one
)

// marking is how processes of one tree are recognised by their environment. With the zero
// value none is.
type marking struct {
	prefix string // of the marks of all trees
	mark   string // "NAME=value", as it stands in the environment
}

// in looks for the mark among the entries of an environment, each of which ends with
// a zero byte.
func (m marking) in(env []byte) foundMark {
	found := markHidden
	if m.mark == "" {
		return found
	}
	for entry := range bytes.SplitSeq(env, []byte{0}) {
		switch {
		case string(entry) == m.mark:
			return markOurs
		case bytes.HasPrefix(entry, []byte(m.prefix)):
			found = markAnother
		}
	}
	return found
}

// inArguments looks for the mark in what macOS returns as a process' arguments: their
// number, the path of the executable, zero bytes, the arguments, and the environment
// if it is not withheld. An argument that looks like the mark is none. What does not
// have that form shows nothing.
func (m marking) inArguments(b []byte) foundMark {
	if len(b) < 4 {
		return markHidden
	}
	args := int64(int32(binary.NativeEndian.Uint32(b)))
	b = b[4:]
	end := bytes.IndexByte(b, 0)
	if end < 0 || args < 0 || args > int64(len(b)) {
		return markHidden
	}
	b = bytes.TrimLeft(b[end:], "\x00")
	for range args {
		end := bytes.IndexByte(b, 0)
		if end < 0 {
			return markHidden
		}
		b = b[end+1:]
	}
	// An empty string ends the environment; what follows is the kernel's.
	if len(b) > 0 && b[0] == 0 {
		return markHidden
	}
	if end := bytes.Index(b, []byte{0, 0}); end >= 0 {
		b = b[:end]
	}
	return m.in(b)
}
