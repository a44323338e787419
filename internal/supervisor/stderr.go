//go:build linux || darwin

package supervisor

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"time"
)

// startStderr keeps the end of what a helper writes to its stderr while it starts. Once it serves,
// its stderr is /dev/null. A nil startStderr keeps nothing.
type startStderr struct {
	pipe *os.File
	last []byte
	done chan struct{} // closed when last is final
}

// keptStderr is how many bytes are kept.
const keptStderr = 1 << 10

// stacksBegin is what the Go runtime writes after its reason for ending a process, such as that it
// cannot start a thread, and before many lines of stacks.
var stacksBegin = [][]byte{[]byte("\nSIGABRT: abort\n"), []byte("\n\ngoroutine "), []byte("\n\nruntime stack:")}

// keepStderr returns a startStderr and the pipe that is to be the helper's stderr; both are nil if
// no pipe can be made.
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
				_, _ = io.Copy(io.Discard, s.pipe) // a full pipe would block the helper
				return
			}
		}
		s.last = s.last[max(len(s.last)-keptStderr, 0):]
		if err != nil {
			return
		}
	}
}

// close closes the pipe. A second close does nothing.
func (s *startStderr) close() {
	if s != nil {
		_ = s.pipe.Close()
		<-s.done
	}
}

// quoted returns what was kept, for an error message. It does not wait for a process that the
// helper has left behind and that has the pipe open.
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
