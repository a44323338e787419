package journal

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"time"
	"unicode/utf8"

	"curfew/internal/sys"
)

// A record consists of lines. A line has eight hex digits, a space and a JSON object; the
// digits are the CRC-32 (IEEE) of the object. The first line has the begin, a later line the
// end, and the first end counts.
//
// A line whose checksum is wrong was torn: its writer was killed, or the system
// crashed before the line was on the disk. A torn first line is damage, because the first
// line is made in one step. Any other torn line is ignored. A line feed separates lines; a
// line that lacks only its line feed counts, because the next writer adds it.

// version is that of the form. Version 1 had the names of Go fields in its reports, and was
// never released. A record of another version is reported, and left where it is.
const version = 2

// maxRecordBytes bounds a record: one that another program wrote must not take all memory.
const maxRecordBytes = 16 << 20

var errTooBig = fmt.Errorf("larger than %d bytes", maxRecordBytes)

// Entry is a record.
type Entry struct {
	Begin Begin
	End   *End // nil: there is none yet
}

// line is what a line holds: either of the two.
type line struct {
	Begin *beginLine `json:"begin,omitempty"`
	End   *endLine   `json:"end,omitempty"`
}

type beginLine struct {
	Version int       `json:"version"`
	ID      text      `json:"id"`
	Program text      `json:"program"`
	Owner   text      `json:"owner,omitempty"`
	Session bool      `json:"session,omitempty"`
	Began   time.Time `json:"began"`
	Peer    text      `json:"peer"`
	Boot    text      `json:"boot,omitempty"`
	Holder  int       `json:"holder,omitempty"`
	Cgroup  text      `json:"cgroup,omitempty"`
	Group   text      `json:"group,omitempty"`
	TempDir text      `json:"temp_dir,omitempty"`
}

type endLine struct {
	Writer text            `json:"writer"`
	At     time.Time       `json:"at"`
	Report json.RawMessage `json:"report,omitempty"`
}

// text is a string that need not be UTF-8. Its JSON form is a string if it is, and else an
// object with its bytes.
type text string

type notUTF8 struct {
	Base64 []byte `json:"base64"`
}

func (t text) MarshalJSON() ([]byte, error) {
	if utf8.ValidString(string(t)) {
		return json.Marshal(string(t))
	}
	return json.Marshal(notUTF8{[]byte(t)})
}

func (t *text) UnmarshalJSON(b []byte) error {
	if b[0] == '{' {
		var raw notUTF8
		err := json.Unmarshal(b, &raw)
		*t = text(raw.Base64)
		return err
	}
	return json.Unmarshal(b, (*string)(t))
}

func encodeBegin(b Begin) ([]byte, error) {
	return encodeLine(line{Begin: &beginLine{
		Version: b.Version, ID: text(b.ID), Program: text(b.Program), Owner: text(b.Owner), Session: b.Session,
		Began: b.Began.UTC(), Peer: text(b.Peer), Boot: text(b.Boot), Holder: b.Holder, Cgroup: text(b.Cgroup), Group: text(b.Group),
		TempDir: text(b.TempDir),
	}})
}

func encodeEnd(e End) ([]byte, error) {
	return encodeLine(line{End: &endLine{Writer: text(e.Writer), At: e.At.UTC(), Report: e.Report}})
}

func encodeLine(l line) ([]byte, error) {
	var body bytes.Buffer
	encoder := json.NewEncoder(&body)
	encoder.SetEscapeHTML(false) // which would change a report
	if err := encoder.Encode(l); err != nil {
		return nil, err
	}
	if body.Len()+len("01234567 ") > maxRecordBytes {
		return nil, errTooBig
	}
	return sealed(bytes.TrimSuffix(body.Bytes(), []byte{'\n'})), nil
}

// sealed returns body as a line.
func sealed(body []byte) []byte {
	return fmt.Appendf(nil, "%08x %s\n", crc32.ChecksumIEEE(body), body)
}

// unsealed returns what is in a line; ok is false if the line was torn.
func unsealed(b []byte) (body []byte, ok bool) {
	sum, body, found := bytes.Cut(b, []byte{' '})
	return body, found && string(sum) == fmt.Sprintf("%08x", crc32.ChecksumIEEE(body))
}

var errFirstLine = fmt.Errorf("%w: the first line is torn", ErrDamaged)

// parseRecord returns what is in the record of the invocation id.
func parseRecord(b []byte, id string) (Entry, error) {
	first, rest, _ := bytes.Cut(b, []byte{'\n'})
	body, ok := unsealed(first)
	if !ok {
		return Entry{}, errFirstLine
	}
	begin, err := decodeBegin(body)
	if err != nil {
		return Entry{}, err
	}
	if begin.ID != id {
		return Entry{}, fmt.Errorf("%w: it belongs to the invocation %q", ErrDamaged, begin.ID)
	}
	entry := Entry{Begin: begin}
	for len(rest) > 0 && entry.End == nil {
		first, rest, _ = bytes.Cut(rest, []byte{'\n'})
		if body, ok := unsealed(first); ok {
			if entry.End, err = decodeEnd(body); err != nil {
				return Entry{}, err
			}
		}
	}
	return entry, nil
}

func decodeBegin(body []byte) (Begin, error) {
	// The version first: the rest of another version can have another form.
	var v struct {
		Begin struct {
			Version int `json:"version"`
		} `json:"begin"`
	}
	if err := json.Unmarshal(body, &v); err != nil {
		return Begin{}, fmt.Errorf("%w: its begin: %w", ErrDamaged, err)
	}
	switch n := v.Begin.Version; {
	case n > version:
		return Begin{}, fmt.Errorf("%w: %d", ErrNewer, n)
	case n > 0 && n < version:
		return Begin{}, fmt.Errorf("%w: version %d", ErrForeign, n)
	}
	var l line
	if err := json.Unmarshal(body, &l); err != nil {
		return Begin{}, fmt.Errorf("%w: its begin: %w", ErrDamaged, err)
	}
	if l.Begin == nil || l.End != nil || l.Begin.Version != version {
		return Begin{}, fmt.Errorf("%w: the first line is not a begin", ErrDamaged)
	}
	b := l.Begin
	if !validName(string(b.ID)) || !validName(string(b.Peer)) {
		return Begin{}, fmt.Errorf("%w: its id or its peer is not valid", ErrDamaged)
	}
	return Begin{
		Version: b.Version, ID: string(b.ID), Program: string(b.Program), Owner: string(b.Owner), Session: b.Session,
		Began: b.Began.UTC(), Peer: string(b.Peer), Boot: string(b.Boot), Holder: b.Holder, Cgroup: string(b.Cgroup), Group: string(b.Group),
		TempDir: string(b.TempDir),
	}, nil
}

func decodeEnd(body []byte) (*End, error) {
	var l line
	if err := json.Unmarshal(body, &l); err != nil {
		return nil, fmt.Errorf("%w: its end: %w", ErrDamaged, err)
	}
	if l.End == nil || l.Begin != nil {
		// This package does not write such a line.
		return nil, fmt.Errorf("%w: a line after the first is not an end", ErrDamaged)
	}
	return &End{Writer: string(l.End.Writer), At: l.End.At.UTC(), Report: l.End.Report}, nil
}

// readRecord reads a record in flight. Its errors are *RecordErrors; one wraps
// fs.ErrNotExist if the record is not in flight, or no longer.
func readRecord(dir, id string) (Entry, error) {
	path := recordFile(dir, id)
	if !validName(id) {
		return Entry{}, &RecordError{path, errors.New("no record has such a name")}
	}
	fd, err := openFile(path, forReading)
	if err != nil {
		return Entry{}, &RecordError{path, err}
	}
	defer sys.Close(fd)
	b, err := readAll(fd, path, maxRecordBytes)
	if err != nil {
		return Entry{}, &RecordError{path, err}
	}
	entry, err := parseRecord(b, id)
	if err != nil {
		return Entry{}, &RecordError{path, err}
	}
	return entry, nil
}
