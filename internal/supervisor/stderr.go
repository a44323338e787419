//go:build linux || darwin

package supervisor

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"time"
)

// startStderr keeps the last of what a helper writes to its stderr until it is taken over. A
// helper that is has /dev/null instead. A nil startStderr keeps nothing.
type startStderr struct {
	pipe *os.File
	last []byte
	done chan struct{} // closed when last is final
}

// keptStderr is how many bytes are kept.
const keptStderr = 1 << 10

// stacksBegin is what the Go runtime writes between the reason why it ends a process, such as
// that it cannot start a thread, and many lines that tell less.
var stacksBegin = [][]byte{[]byte("\nSIGABRT: abort\n"), []byte("\n\ngoroutine "), []byte("\n\nruntime stack:")}

// keepStderr returns what keeps it, and what is to be the helper's stderr; nil if there is no
// pipe to be had.
func keepStderr() (*startStderr, *os.File) {
	r, w, err := os.Pipe()
	if err != nil {
		return nil, nil
	}
	s := &startStderr{pipe: r, done: make(chan struct{})}
	go s.keep()
	return s, w
}

func (s *startStderr) keep() {
	defer close(s.done)
	var buf [keptStderr]byte
	for {
		n, err := s.pipe.Read(buf[:])
		s.last = append(s.last, buf[:n]...)
		for _, begin := range stacksBegin {
			if i := bytes.Index(s.last, begin); i >= 0 && err == nil {
				s.last = s.last[:i]
				_, _ = io.Copy(io.Discard, s.pipe) // the helper must not wait for us
				return
			}
		}
		s.last = s.last[max(len(s.last)-keptStderr, 0):]
		if err != nil {
			return
		}
	}
}

// close ends the keeping. A second close does nothing.
func (s *startStderr) close() {
	if s != nil {
		_ = s.pipe.Close()
		<-s.done
	}
}

// quoted returns what was kept, for an error message. A process that the helper has left can
// hold the pipe: quoted does not wait for that one.
func (s *startStderr) quoted() string {
	if s == nil {
		return ""
	}
	_ = s.pipe.SetReadDeadline(time.Now().Add(lookEvery))
	<-s.done
	if text := bytes.TrimSpace(s.last); len(text) > 0 {
		return fmt.Sprintf("; its stderr ends with %q", text)
	}
	return ""
}
