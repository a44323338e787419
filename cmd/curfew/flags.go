package main

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"syscall"
	"time"

	"curfew/adapter"
	"curfew/outcome"
)

// The types here are pflag.Values: they parse and check what a flag takes.

// span is a time in Go's syntax (1m30s), a plain number of seconds, or a number
// of days (2d).
type span time.Duration

// longestSpan keeps sums of spans far from overflowing.
const longestSpan = 10 * 365 * 24 * time.Hour

func (s *span) Set(text string) error {
	d, err := parseSpan(text)
	if err == nil {
		*s = span(d)
	}
	return err
}

func (s *span) String() string {
	if *s == 0 {
		return "0" // the help then shows no default
	}
	return time.Duration(*s).String()
}

func (s *span) Type() string { return "D" }

func parseSpan(text string) (time.Duration, error) {
	var d time.Duration
	number, unit := text, float64(time.Second)
	if n, ok := strings.CutSuffix(text, "d"); ok {
		number, unit = n, float64(24*time.Hour)
	}
	if f, err := strconv.ParseFloat(number, 64); err == nil && strings.Trim(number, "-0123456789.") == "" {
		// A value that is not zero must not become zero, which can mean "no limit".
		d = time.Duration(math.Min(math.Ceil(f*unit), math.MaxInt64/2))
	} else if d, err = time.ParseDuration(text); err != nil {
		return 0, errors.New("not a time; it is written like 5, 0.5, 300ms, 1m30s or 2d")
	} else if d == 0 && strings.ContainsAny(text, "123456789") {
		d = 1 // it was less than a nanosecond
		if text[0] == '-' {
			d = -1
		}
	}
	switch {
	case d < 0:
		return 0, errors.New("a time cannot be negative")
	case d > longestSpan:
		return 0, errors.New("longer than ten years; leave the flag out for no limit")
	}
	return d, nil
}

// wait returns the span as a StopPolicy takes it: there 0 stands for the default.
func (s span) wait() time.Duration {
	if s == 0 {
		return -1
	}
	return time.Duration(s)
}

// size is a number of bytes.
type size int64

func (s *size) Set(text string) error {
	number, factor := text, int64(1)
	if text != "" {
		if i := strings.IndexByte("KMGT", text[len(text)-1]&^0x20); i >= 0 {
			number, factor = text[:len(text)-1], 1<<(10*(i+1))
		}
	}
	n, err := strconv.ParseInt(number, 10, 64)
	switch {
	case err != nil || n < 0:
		return errors.New("not a number of bytes; it is written like 1048576, 64K or 1M")
	case n > math.MaxInt64/factor:
		return errors.New("too large")
	}
	*s = size(n * factor)
	return nil
}

func (s *size) String() string { return strconv.FormatInt(int64(*s), 10) }
func (s *size) Type() string   { return "N" }

// signalFlag is a signal: TERM, SIGTERM or 15.
type signalFlag syscall.Signal

const highestSignal = 64

func (s *signalFlag) Set(text string) error {
	if n, err := strconv.Atoi(text); err == nil {
		if n < 1 || n > highestSignal {
			return fmt.Errorf("there is no signal %d", n)
		}
		*s = signalFlag(n)
		return nil
	}
	name := strings.ToUpper(text)
	if !strings.HasPrefix(name, "SIG") {
		name = "SIG" + name
	}
	for n := 1; n <= highestSignal; n++ {
		if outcome.SignalName(n) == name {
			*s = signalFlag(n)
			return nil
		}
	}
	return errors.New("no such signal; it is written like TERM, SIGTERM or 15")
}

func (s *signalFlag) String() string {
	if name, ok := strings.CutPrefix(outcome.SignalName(int(*s)), "SIG"); ok {
		return name
	}
	return strconv.Itoa(int(*s)) // a real-time signal has no name
}

func (s *signalFlag) Type() string { return "SIG" }

// choice is one of a few words, each of which stands for a value.
type choice[T comparable] struct {
	value T
	words []word[T]
}

type word[T comparable] struct {
	text  string
	value T
}

func (c *choice[T]) Set(text string) error {
	var texts []string
	for _, w := range c.words {
		if w.text == text {
			c.value = w.value
			return nil
		}
		texts = append(texts, w.text)
	}
	return errors.New("it is one of " + strings.Join(texts, ", "))
}

func (c *choice[T]) String() string {
	for _, w := range c.words {
		if w.value == c.value {
			return w.text
		}
	}
	return ""
}

func (c *choice[T]) Type() string { return "WORD" }

func afterExitFlag() *choice[adapter.AfterExit] {
	return &choice[adapter.AfterExit]{words: []word[adapter.AfterExit]{
		{"terminate", adapter.AfterExitTerminate}, {"wait", adapter.AfterExitWait}, {"leave", adapter.AfterExitLeave},
	}}
}

func audienceFlag() *choice[adapter.Audience] {
	return &choice[adapter.Audience]{words: []word[adapter.Audience]{
		{"leader-first", adapter.AudienceLeaderFirst}, {"everyone", adapter.AudienceEveryone}, {"leader-only", adapter.AudienceLeaderOnly},
	}}
}

// variables are environment entries, NAME=value.
type variables []string

func (v *variables) Set(text string) error {
	if name, _, ok := strings.Cut(text, "="); !ok || name == "" {
		return errors.New("it is written like NAME=value")
	}
	*v = append(*v, text)
	return nil
}

func (v *variables) String() string { return "" }
func (v *variables) Type() string   { return "K=V" }
