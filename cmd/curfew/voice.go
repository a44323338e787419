package main

import (
	"fmt"
	"io"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// voice says what curfew has to say, a line for each event. It never blocks
// for long: stderr can be a pipe that nobody reads.
type voice struct {
	lines chan string
	done  chan struct{}
	raw   atomic.Bool // the terminal does not add the carriage returns

	mu     sync.Mutex
	closed bool
}

const (
	// voiceLimit is how long close waits for what is not written yet.
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
			_, _ = io.WriteString(w, line+end) // there is nobody to tell
		}
	}()
	return v
}

// say adds "curfew: " unless it is there.
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

// close waits for what was said, bounded. What is said afterwards is dropped.
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
