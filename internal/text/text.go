// Package text makes names and messages of others fit to stand in one line of a message,
// and has the error that joins such a line with what errors.Is finds behind it.
package text

import (
	"strconv"
	"strings"
	"unicode"
)

// Prefix begins a message about the program, which is as the caller named it.
func Prefix(program string) string {
	if program == "" {
		return "curfew: "
	}
	return "curfew: " + Word(program) + ": "
}

// Word returns s, quoted if it is empty, has spaces at its ends, or has anything that does
// not print.
func Word(s string) string {
	if s == "" || strings.TrimSpace(s) != s {
		return strconv.Quote(s)
	}
	for _, r := range s {
		// A byte that is not UTF-8 comes as U+FFFD.
		if !strconv.IsPrint(r) || r == '\uFFFD' {
			return strconv.Quote(s)
		}
	}
	return s
}

// Line makes one line of an error's text: errors.Join puts each on its own.
func Line(s string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsControl(r) || r == '\u2028' || r == '\u2029' {
			return ' '
		}
		return r
	}, strings.ReplaceAll(strings.TrimSpace(s), "\n", "; "))
}

// Error is a message, and what errors.Is and errors.As find behind it.
type Error struct {
	Text string
	Errs []error
}

func (e *Error) Error() string   { return e.Text }
func (e *Error) Unwrap() []error { return e.Errs }
