package supervisor

import (
	"errors"
	"fmt"
)

// inbox puts messages together from the bytes and descriptors that come in. It
// does no I/O. Its memory is bounded by one message of the largest size.
type inbox struct {
	buf   []byte
	files []int
	// cut: descriptors that were sent did not come through, because we may not
	// have more. What they came with cannot be served.
	cut bool
}

// add takes what was read. The descriptors are the inbox's from then on.
func (in *inbox) add(b []byte, files []int) error {
	in.buf = append(in.buf, b...)
	in.files = append(in.files, files...)
	if len(in.files) > maxFiles {
		return fmt.Errorf("%w: more than %d descriptors", errProtocol, maxFiles)
	}
	if len(in.buf) >= frameHeader {
		_, _, err := frameSize(in.buf)
		return err
	}
	return nil
}

// next returns the next whole message, nil if there is none yet. raw is valid
// until the next add. The descriptors that came with it are the caller's.
func (in *inbox) next() (m *message, raw []byte, files []int, err error) {
	if len(in.buf) < frameHeader {
		return nil, nil, nil, nil
	}
	j, r, err := frameSize(in.buf)
	if err != nil {
		return nil, nil, nil, err
	}
	if len(in.buf) < frameHeader+j+r {
		return nil, nil, nil, nil
	}
	if m, err = decode(in.buf[frameHeader : frameHeader+j]); err != nil {
		return nil, nil, nil, err
	}
	raw = in.buf[frameHeader+j : frameHeader+j+r]
	in.buf = in.buf[frameHeader+j+r:]
	if len(in.buf) == 0 {
		// A large request must not keep its memory for ever; what raw still
		// points to is kept by raw.
		in.buf = nil
	}
	n := m.files()
	if n > len(in.files) && in.cut {
		files, in.files, in.cut = in.files, nil, false
		return m, raw, files, errFilesCut
	}
	if n > len(in.files) {
		return nil, nil, nil, fmt.Errorf("%w: a message with %d descriptors of %d", errProtocol, len(in.files), n)
	}
	files, in.files = in.files[:n:n], in.files[n:]
	return m, raw, files, nil
}

// errFilesCut comes with a message whose descriptors did not all come through.
var errFilesCut = errors.New("supervisor: too few descriptors are allowed here")
