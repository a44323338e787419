//go:build linux || darwin

package sys

import (
	"bytes"
	"encoding/binary"
	"unsafe"

	"golang.org/x/sys/unix"

	"curfew/internal/fault"
)

// Dir is a listing of an open directory, from where its descriptor stands. It reads through
// a buffer of the caller's and allocates nothing:
//
//	for list := sys.List(fd, buf); list.Next(); {
//		use(list.Name)
//	}
type Dir struct {
	Name   []byte // of the entry, valid until the next one; a NUL follows it in the buffer
	Kind   byte   // unix.DT_DIR and so on; unix.DT_UNKNOWN where the file system does not tell
	Offset int64  // of what follows the entry, for unix.Seek
	Err    error  // why the listing is not complete

	fd        int
	buf, rest []byte
	raw       bool
}

// List lists the directory fd.
func List(fd int, buf []byte) Dir { return Dir{fd: fd, buf: buf} }

// Next moves on to the next entry, those named "." and ".." included. It reports false after
// the last one and after an error.
func (d *Dir) Next() bool {
	for d.Err == nil {
		if d.Name, d.Kind, d.Offset, d.rest = ParseDirent(d.rest); d.Name != nil {
			return true
		}
		n := 0
		if n, d.Err = d.read(); n <= 0 {
			return false
		}
		d.rest = d.buf[:n]
	}
	return false
}

func (d *Dir) read() (n int, err error) {
	if d.raw {
		return rawGetdents(d.fd, d.buf)
	}
	err = Call(fault.Getdents, func() (err error) {
		n, err = unix.ReadDirent(d.fd, d.buf)
		return err
	})
	return n, err
}

// Number returns the name as a number; ok is false if it is none.
func (d *Dir) Number() (n int, ok bool) {
	v, ok := ParseUint(d.Name)
	return int(v), ok
}

// IsDot reports whether the entry is one of the two that every directory has.
func (d *Dir) IsDot() bool { return string(d.Name) == "." || string(d.Name) == ".." }

// Where the two systems have the same.
const (
	direntOffset = 8
	direntLength = unsafe.Offsetof(unix.Dirent{}.Reclen)
	direntType   = unsafe.Offsetof(unix.Dirent{}.Type)
	direntName   = unsafe.Offsetof(unix.Dirent{}.Name)
)

// ParseDirent takes one entry off a piece of a listing: its name, its kind, the offset of
// what follows it in the directory, and the rest of the piece. The name is nil at the end,
// and before what is no entry.
func ParseDirent(b []byte) (name []byte, kind byte, offset int64, rest []byte) {
	if len(b) < int(direntName) {
		return nil, 0, 0, nil
	}
	n := int(binary.NativeEndian.Uint16(b[direntLength:]))
	if n < int(direntName) || n > len(b) {
		return nil, 0, 0, nil
	}
	name = b[direntName:n]
	if end := bytes.IndexByte(name, 0); end >= 0 {
		name = name[:end]
	}
	return name, b[direntType], int64(binary.NativeEndian.Uint64(b[direntOffset:])), b[n:]
}

// ParseUint parses digits and nothing else. What has more of them than fit is no number
// that a kernel writes.
func ParseUint(b []byte) (uint64, bool) {
	if len(b) == 0 || len(b) > 18 {
		return 0, false
	}
	var n uint64
	for _, c := range b {
		if c < '0' || c > '9' {
			return 0, false
		}
		n = n*10 + uint64(c-'0')
	}
	return n, true
}
