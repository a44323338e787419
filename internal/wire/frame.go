package wire

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
)

// A frame is a header (the lengths of the two parts, big endian), a JSON part, which is the
// Message, and a raw part, for what need not be UTF-8.
const (
	FrameHeader = 8
	MaxJSON     = 1 << 20
	MaxRaw      = 16 << 20 // the kernel takes at most 6 MiB of arguments and environment
	MaxFiles    = 4096     // descriptors with one request
	MaxPerSend  = 250      // the kernel takes 253 in one message
)

// ErrProtocol wraps every complaint about what the other end has sent.
var ErrProtocol = errors.New("wire: protocol violated")

// Encode returns m as a frame.
func Encode(m *Message, raw []byte) ([]byte, error) {
	b, err := json.Marshal(m)
	if err != nil {
		return nil, fmt.Errorf("wire: encode message: %w", err)
	}
	if len(b) > MaxJSON || len(raw) > MaxRaw {
		return nil, fmt.Errorf("wire: message of %d and %d bytes is larger than the protocol takes (%d and %d)", len(b), len(raw), MaxJSON, MaxRaw)
	}
	frame := make([]byte, FrameHeader, FrameHeader+len(b)+len(raw))
	binary.BigEndian.PutUint32(frame, uint32(len(b)))
	binary.BigEndian.PutUint32(frame[4:], uint32(len(raw)))
	return append(append(frame, b...), raw...), nil
}

// FrameSize returns the sizes of the two parts from a frame's first bytes.
func FrameSize(header []byte) (jsonSize, rawSize int, err error) {
	j, r := binary.BigEndian.Uint32(header), binary.BigEndian.Uint32(header[4:])
	if j == 0 || j > MaxJSON || r > MaxRaw {
		return 0, 0, fmt.Errorf("%w: a message of %d and %d bytes", ErrProtocol, j, r)
	}
	return int(j), int(r), nil
}

// Decode parses the JSON part of a frame. Exactly one field must be set.
func Decode(b []byte) (*Message, error) {
	var m Message
	if err := json.Unmarshal(b, &m); err != nil {
		return nil, fmt.Errorf("%w: %v", ErrProtocol, err)
	}
	fields := 0
	for _, set := range []bool{
		m.Hello != nil, m.Failed != nil,
		m.Run != nil, m.Stop != nil, m.Signal != nil, m.Drain != nil,
		m.Started != nil, m.StartFailed != nil, m.Stopping != nil, m.Exited != nil, m.Done != nil, m.Ready != nil,
		m.Spawn != nil, m.Watch != nil, m.Lost != nil, m.Spawned != nil, m.Swept != nil,
	} {
		if set {
			fields++
		}
	}
	if fields != 1 {
		return nil, fmt.Errorf("%w: a message with %d fields", ErrProtocol, fields)
	}
	return &m, nil
}
