package sys

import (
	"errors"
	"io/fs"
	"strconv"
	"strings"
	"unicode/utf8"
)

// ErrNotRegular means that something that is no regular file has the name of one.
var ErrNotRegular = errors.New("not a regular file")

// PathError returns an error about the file path.
func PathError(op, path string, err error) error {
	return &fs.PathError{Op: op, Path: Printable(path), Err: err}
}

// Printable returns path, quoted if it has characters that could make an error message look
// like another, or do something to a terminal: any program of this user can put a file into
// a directory of ours.
func Printable(path string) string {
	if utf8.ValidString(path) && !strings.ContainsFunc(path, func(r rune) bool { return !strconv.IsPrint(r) }) {
		return path
	}
	return strconv.Quote(path)
}
