package wire

import (
	"errors"
	"fmt"
)

// Inbox puts messages together from the bytes and descriptors that come in. It
// does no I/O. Its memory is bounded by one message of the largest size.
type Inbox struct {
	Buf   []byte
	Files []int
	// Cut: descriptors that were sent did not come through, because we may not
	// have more. What they came with cannot be served.
	Cut bool
}

// Add takes what was read. The descriptors are the inbox's from then on.
func (in *Inbox) Add(b []byte, files []int) error {
	in.Buf = append(in.Buf, b...)
	in.Files = append(in.Files, files...)
	if len(in.Files) > MaxFiles {
		return fmt.Errorf("%w: more than %d descriptors", ErrProtocol, MaxFiles)
	}
	if len(in.Buf) >= FrameHeader {
		_, _, err := FrameSize(in.Buf)
		return err
	}
	return nil
}

// Next returns the next whole message, nil if there is none yet. raw is valid
// until the next Add. The descriptors that came with it are the caller's.
func (in *Inbox) Next() (m *Message, raw []byte, files []int, err error) {
	if len(in.Buf) < FrameHeader {
		return nil, nil, nil, nil
	}
	j, r, err := FrameSize(in.Buf)
	if err != nil {
		return nil, nil, nil, err
	}
	if len(in.Buf) < FrameHeader+j+r {
		return nil, nil, nil, nil
	}
	if m, err = Decode(in.Buf[FrameHeader : FrameHeader+j]); err != nil {
		return nil, nil, nil, err
	}
	raw = in.Buf[FrameHeader+j : FrameHeader+j+r]
	in.Buf = in.Buf[FrameHeader+j+r:]
	if len(in.Buf) == 0 {
		// A large request must not keep its memory for ever; what raw still
		// points to is kept by raw.
		in.Buf = nil
	}
	n := m.files()
	if n > len(in.Files) && in.Cut {
		files, in.Files, in.Cut = in.Files, nil, false
		return m, raw, files, ErrFilesCut
	}
	if n > len(in.Files) {
		return nil, nil, nil, fmt.Errorf("%w: a message with %d descriptors of %d", ErrProtocol, len(in.Files), n)
	}
	files, in.Files = in.Files[:n:n], in.Files[n:]
	return m, raw, files, nil
}

// ErrFilesCut comes with a message whose descriptors did not all come through.
var ErrFilesCut = errors.New("supervisor: too few descriptors are allowed here")
