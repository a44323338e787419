package main

import (
	"fmt"
	"io"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// voice writes messages to stderr, a line for each event. It never blocks
// for long: stderr can be a pipe without a reader.
type voice struct {
	lines chan string
	done  chan struct{}
	raw   atomic.Bool // the terminal is in raw mode and adds no carriage returns

	mu     sync.Mutex
	closed bool
}

const (
	// voiceLimit is how long close waits for the lines that are not written yet.
	voiceLimit = 200 * time.Millisecond
	// voiceLines is how many lines can wait to be written; more are dropped.
	voiceLines = 64
)

func newVoice(w io.Writer) *voice {
	v := &voice{lines: make(chan string, voiceLines), done: make(chan struct{})}
	go func() {
		defer close(v.done)
		for line := range v.lines {
			end := "\n"
			if v.raw.Load() {
				end = "\r\n"
			}
			_, _ = io.WriteString(w, line+end) // an error cannot be reported anywhere
		}
	}()
	return v
}

// say writes a line. It adds the prefix "curfew: " if the line does not have it.
func (v *voice) say(format string, args ...any) {
	line := fmt.Sprintf(format, args...)
	if !strings.HasPrefix(line, "curfew: ") {
		line = "curfew: " + line
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.closed {
		return
	}
	select {
	case v.lines <- line:
	default:
	}
}

// close waits for the lines that are not written yet, at most voiceLimit. Lines that come
// later are dropped.
func (v *voice) close() {
	v.mu.Lock()
	v.closed = true
	close(v.lines)
	v.mu.Unlock()
	select {
	case <-v.done:
	case <-time.After(voiceLimit):
	}
}
