//go:build linux || darwin

package proctree

import (
	"bytes"
	"encoding/binary"
)

// marking is how processes of one tree are told by their environment. The zero value
// tells nothing of any.
type marking struct {
	prefix string // of the marks of all trees
	mark   string // "NAME=value", as it stands in the environment
}

// in looks for the mark among the entries of an environment, each of which ends with
// a zero byte.
func (m marking) in(env []byte) Mark {
	found := MarkHidden
	if m.mark == "" {
		return found
	}
	for entry := range bytes.SplitSeq(env, []byte{0}) {
		switch {
		case string(entry) == m.mark:
			return MarkOurs
		case bytes.HasPrefix(entry, []byte(m.prefix)):
			found = MarkAnother
		}
	}
	return found
}

// inArguments looks for the mark in what macOS tells of a process' arguments: their
// number, the path of the executable, zero bytes, the arguments, and the environment
// if it is not withheld. An argument that looks like the mark is none. What does not
// have that form says nothing.
func (m marking) inArguments(b []byte) Mark {
	if len(b) < 4 {
		return MarkHidden
	}
	args := int64(int32(binary.NativeEndian.Uint32(b)))
	b = b[4:]
	end := bytes.IndexByte(b, 0)
	if end < 0 || args < 0 || args > int64(len(b)) {
		return MarkHidden
	}
	b = bytes.TrimLeft(b[end:], "\x00")
	for range args {
		end := bytes.IndexByte(b, 0)
		if end < 0 {
			return MarkHidden
		}
		b = b[end+1:]
	}
	// An empty string ends the environment; what follows is the kernel's.
	if len(b) > 0 && b[0] == 0 {
		return MarkHidden
	}
	if end := bytes.Index(b, []byte{0, 0}); end >= 0 {
		b = b[:end]
	}
	return m.in(b)
}
