package wire

import (
	"encoding/binary"
	"fmt"
	"syscall"
	"time"

	"curfew/proctree"
)

// Request asks a supervisor to begin an invocation.
type Request struct {
	Settings
	Path string // as execve takes it; relative to Dir
	Args []string
	Env  []string
	// Dir is the descriptor of the working directory. Files become the leader's descriptors
	// Settings.Numbers.
	Dir   int
	Files []int
}

// Run is a Request as a message. Its raw part has the path, the arguments and the environment,
// each with its length before it. The descriptors come with it: Dir, then Files.
type Run struct {
	Settings
	Args int `json:"args"`
	Env  int `json:"env"`
}

// AfterExit says what becomes of leftovers when the leader exits by itself.
type AfterExit int

// See the constants of the same names in package adapter.
const (
	AfterExitTerminate AfterExit = iota
	AfterExitWait
	AfterExitLeave
)

// Settings are the fixed part of a Request.
type Settings struct {
	Duties
	// Policy is how the tree is stopped. With Stdin the caller holds the other end of the
	// leader's stdin, and closes it when Stopping asks for it.
	proctree.Policy
	Timeout         time.Duration `json:"timeout"` // 0: none
	Linger          time.Duration `json:"linger"`
	AfterExit       AfterExit     `json:"after_exit"`
	Terminal        bool          `json:"terminal"`
	NoCgroup        bool          `json:"no_cgroup,omitempty"`
	IgnoreHangup    bool          `json:"ignore_hangup"`
	IgnoreInterrupt bool          `json:"ignore_interrupt"`
	// Numbers are the numbers that Files have in the leader. Of 0, 1 and 2, what is not among
	// them is /dev/null.
	Numbers []int `json:"numbers"`
}

// MaxStrings bounds the arguments, and the variables. The kernel takes fewer: each has a
// pointer and a NUL of the 6 MiB.
const MaxStrings = 1 << 20

// MaxFileNumber bounds the descriptor numbers in the leader. The kernel's own bound is
// RLIMIT_NOFILE; this one keeps a hostile number from costing memory.
const MaxFileNumber = 1 << 16

// ErrTooLarge means that a request is larger than any that could be executed.
var ErrTooLarge = fmt.Errorf("arguments and environment have more than %d strings or %d bytes: %w", MaxStrings, MaxRaw, syscall.E2BIG)

// encode returns the request as a frame.
func (q *Request) encode() ([]byte, error) {
	raw := AppendString(nil, q.Path)
	for _, list := range [2][]string{q.Args, q.Env} {
		if len(list) > MaxStrings {
			return nil, ErrTooLarge
		}
		for _, s := range list {
			raw = AppendString(raw, s)
			if len(raw) > MaxRaw {
				return nil, ErrTooLarge
			}
		}
	}
	return Encode(&Message{Run: &Run{Settings: q.Settings, Args: len(q.Args), Env: len(q.Env)}}, raw)
}

// Request returns the request that r is, with its raw part and its descriptors. It checks
// everything that a supervisor relies on.
func (r *Run) Request(raw []byte, files []int) (*Request, error) {
	if err := r.check(len(files)); err != nil {
		return nil, err
	}
	q := &Request{Settings: r.Settings, Dir: files[0], Files: files[1:]}
	var err error
	if q.Path, raw, err = takeString(raw); err != nil {
		return nil, err
	}
	if q.Args, raw, err = takeStrings(raw, r.Args); err != nil {
		return nil, err
	}
	if q.Env, raw, err = takeStrings(raw, r.Env); err != nil {
		return nil, err
	}
	if len(raw) > 0 {
		return nil, fmt.Errorf("%w: %d bytes too many", ErrProtocol, len(raw))
	}
	return q, nil
}

func (r *Run) check(files int) error {
	if r.Args < 1 || r.Args > MaxStrings || r.Env < 0 || r.Env > MaxStrings {
		return fmt.Errorf("%w: %d arguments and %d variables", ErrProtocol, r.Args, r.Env)
	}
	if files != len(r.Numbers)+1 {
		return fmt.Errorf("%w: %d descriptors for a directory and %d files", ErrProtocol, files, len(r.Numbers))
	}
	if err := r.TempDir.Check(); err != nil {
		return err
	}
	if err := r.checkStop(); err != nil {
		return err
	}
	return checkNumbers(r.Numbers)
}

// checkStop checks when and how the invocation is to be stopped.
func (s *Settings) checkStop() error {
	switch {
	case s.Signal < 1 || s.Signal > 64:
		return fmt.Errorf("%w: signal %d", ErrProtocol, s.Signal)
	case s.Timeout < 0 || s.StdinGrace < 0 || s.Grace < 0 || s.KillWait < 0 || s.Linger < 0:
		return fmt.Errorf("%w: a negative duration", ErrProtocol)
	case s.AfterExit < AfterExitTerminate || s.AfterExit > AfterExitLeave || s.Audience < proctree.LeaderFirst || s.Audience > proctree.LeaderOnly:
		return fmt.Errorf("%w: after_exit %d, audience %d", ErrProtocol, s.AfterExit, s.Audience)
	}
	return nil
}

// checkNumbers checks that the leader's descriptor numbers are possible and differ.
func checkNumbers(numbers []int) error {
	seen := make(map[int]bool, len(numbers))
	for _, n := range numbers {
		if n < 0 || n >= MaxFileNumber || seen[n] {
			return fmt.Errorf("%w: descriptor number %d", ErrProtocol, n)
		}
		seen[n] = true
	}
	return nil
}

// AppendString appends s with its length before it.
func AppendString(b []byte, s string) []byte {
	return append(binary.BigEndian.AppendUint32(b, uint32(len(s))), s...)
}

// takeString takes a string off b that appendString put there.
func takeString(b []byte) (s string, rest []byte, err error) {
	if len(b) < 4 {
		return "", nil, fmt.Errorf("%w: a string is missing", ErrProtocol)
	}
	n := binary.BigEndian.Uint32(b)
	if uint64(n) > uint64(len(b)-4) {
		return "", nil, fmt.Errorf("%w: a string of %d bytes where %d are left", ErrProtocol, n, len(b)-4)
	}
	return string(b[4 : 4+n]), b[4+n:], nil
}

func takeStrings(b []byte, n int) (list []string, rest []byte, err error) {
	for range n {
		var s string
		if s, b, err = takeString(b); err != nil {
			return nil, nil, err
		}
		list = append(list, s)
	}
	return list, b, nil
}
