package wire

import (
	"errors"
	"fmt"
)

// inbox puts messages together from the bytes and descriptors that arrive. It does no I/O. Its
// memory is bounded by one message of the largest size.
type inbox struct {
	buf   []byte
	files []int
	// cut: descriptors that were sent did not come through, because this process may not have
	// more. The message that they came with cannot be served.
	cut bool
}

// add adds what was read. The inbox owns the descriptors from then on.
func (in *inbox) add(b []byte, files []int) error {
	in.buf = append(in.buf, b...)
	in.files = append(in.files, files...)
	if len(in.files) > MaxFiles {
		return fmt.Errorf("%w: more than %d descriptors", ErrProtocol, MaxFiles)
	}
	if len(in.buf) >= FrameHeader {
		_, _, err := FrameSize(in.buf)
		return err
	}
	return nil
}

// next returns the next whole message, nil if there is none yet. raw is valid until the next
// add. The descriptors that came with the message are the caller's.
func (in *inbox) next() (m *Message, raw []byte, files []int, err error) {
	if len(in.buf) < FrameHeader {
		return nil, nil, nil, nil
	}
	j, r, err := FrameSize(in.buf)
	if err != nil {
		return nil, nil, nil, err
	}
	if len(in.buf) < FrameHeader+j+r {
		return nil, nil, nil, nil
	}
	if m, err = Decode(in.buf[FrameHeader : FrameHeader+j]); err != nil {
		return nil, nil, nil, err
	}
	raw = in.buf[FrameHeader+j : FrameHeader+j+r]
	in.buf = in.buf[FrameHeader+j+r:]
	if len(in.buf) == 0 {
		in.buf = nil // a large request must not keep its memory for ever; raw keeps its part
	}
	n := m.files()
	if n > len(in.files) && in.cut {
		files, in.files, in.cut = in.files, nil, false
		return m, raw, files, ErrFilesCut
	}
	if n > len(in.files) {
		return nil, nil, nil, fmt.Errorf("%w: a message with %d descriptors of %d", ErrProtocol, len(in.files), n)
	}
	files, in.files = in.files[:n:n], in.files[n:]
	return m, raw, files, nil
}

// ErrFilesCut comes with a message whose descriptors did not all come through.
var ErrFilesCut = errors.New("wire: too few descriptors are allowed here")
