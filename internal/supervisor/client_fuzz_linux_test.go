package supervisor

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"maps"
	"math"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"curfew/internal/wire"
	"curfew/outcome"
)

// The caller's side gets here what a hostile or broken helper could send: Options.Supervisor can
// name any executable.

var oddReports = []*wire.Done{
	{Started: true, Exit: &outcome.Exit{}, Cleanup: outcome.Cleanup{Result: outcome.CleanupEmpty, Proof: outcome.ProofNoChildren}},
	{},
	{Cleanup: outcome.Cleanup{Result: "no such", Proof: outcome.ProofNoChildren}},
	{Cleanup: outcome.Cleanup{Result: outcome.CleanupEmpty}},
	{NotExecuted: true, Started: true, Cleanup: outcome.Cleanup{Result: outcome.CleanupEmpty, Proof: outcome.ProofNone, Elapsed: -1}},
	{Exit: &outcome.Exit{Code: -7, Signal: 999}, StopBegan: true, StopCause: "no such", Cleanup: outcome.Cleanup{Result: outcome.CleanupSurvivors, Proof: outcome.ProofNone, EndedMore: -1}},
	{Cleanup: outcome.Cleanup{Result: outcome.CleanupUnverified, Proof: outcome.ProofNone}},
}

// The kinds of piece in a script of a helper.
const (
	sayRaw byte = iota // n, then n bytes as they are
	sayHello
	sayStarted
	sayStartFailed
	sayStopping
	sayExited
	sayDone
	sayReady
	sayFailed
	saySwept
	sayForeign // what only a caller sends
	sayJSON
	sayHead
	sayFiles // n: descriptors with the next piece
	says
)

// speech is a piece of what a script makes a helper send, with a number of descriptors.
type speech struct {
	b     []byte
	files int
}

func speak(s *script) (all []speech) {
	files := 0
	say := func(b []byte) {
		all = append(all, speech{b, files})
		files = 0
	}
	word := func(m *wire.Message) {
		if b, err := wire.Encode(m, s.take(int(s.byte()%8))); err == nil {
			say(b)
		}
	}
	for len(s.b) > 0 && len(all) < 64 {
		switch s.byte() % says {
		case sayRaw:
			say(s.take(int(s.byte())))
		case sayHello:
			h := &wire.Hello{Version: pick(s, []int{wire.Version, 0, 1, -1, math.MaxInt64}), PID: pick(s, []int{4711, 0, -1, 1, math.MaxInt64})}
			flags := s.byte()
			h.StateKnown, h.Pidfd = flags&1 != 0, flags&2 != 0
			files += int(flags>>2) % 8
			word(&wire.Message{Hello: h})
		case sayStarted:
			word(&wire.Message{Started: &wire.Started{PID: pick(s, []int{4711, 0, -1, math.MaxInt64}), At: time.Unix(int64(s.byte())<<32, 0).UTC()}})
		case sayStartFailed:
			word(&wire.Message{StartFailed: &wire.StartFailed{Op: pick(s, oddIDs), Errno: pick(s, oddSignals), Killed: s.byte()&1 != 0}})
		case sayStopping:
			word(&wire.Message{Stopping: &wire.Stopping{Cause: pick(s, oddCauses), CloseStdin: s.byte()&1 != 0}})
		case sayExited:
			word(&wire.Message{Exited: &outcome.Exit{Code: pick(s, oddCounts), Signal: pick(s, oddSignals)}})
		case sayDone:
			word(&wire.Message{Done: pick(s, oddReports)})
		case sayReady:
			word(&wire.Message{Ready: &struct{}{}})
		case sayFailed:
			word(&wire.Message{Failed: &wire.Failed{Text: pick(s, oddIDs), Errno: pick(s, oddCounts)}})
		case saySwept:
			word(&wire.Message{Swept: &wire.Swept{Ended: []outcome.Ended{{LastSignal: pick(s, oddSignals)}}, EndedMore: pick(s, oddCounts)}})
		case sayForeign:
			word(pick(s, []*wire.Message{{Run: &wire.Run{}}, {Stop: &wire.StopRequest{}}, {Spawn: &wire.Spawn{ID: "5"}}, {Lost: &wire.Lost{}}, {Signal: &wire.Signal{}},
				{Run: &wire.Run{Settings: wire.Settings{Numbers: make([]int, 400)}}}}))
		case sayJSON:
			j := pick(s, append([]string{`{"started":{"pid":1,"at":"9999-12-31T23:59:59-23:59"}}`, `{"exited":{"code":1e3}}`, `{"hello":{"version":3,"state":["a","b"]}}`,
				`{"hello":{"version":3,"state":{}}}`, `{"done":{"cleanup":{"ended":[{"pid":"x"}]}}}`, `{"done":null}`, `{"swept":{"ended":{}}}`}, oddJSON...))
			b := binary.BigEndian.AppendUint32(nil, uint32(len(j)))
			say(append(binary.BigEndian.AppendUint32(b, 0), j...))
		case sayHead:
			b := binary.BigEndian.AppendUint32(nil, pick(s, oddSizes))
			say(binary.BigEndian.AppendUint32(b, pick(s, oddSizes)))
		case sayFiles:
			files += int(s.byte())
		}
	}
	return all
}

// utter sends all pieces on fd, and closes it. Each descriptor that is sent is w.
func utter(fd, w int, all []speech) {
	defer unix.Close(fd)
	for _, piece := range all {
		b, files := piece.b, slices.Repeat([]int{w}, piece.files)
		for len(b) > 0 {
			part, some := b, files
			if len(some) > wire.MaxPerSend {
				part, some = b[:1], files[:wire.MaxPerSend]
			}
			var oob []byte
			if len(some) > 0 {
				oob = unix.UnixRights(some...)
			}
			n, err := unix.SendmsgN(fd, part, oob, nil, unix.MSG_NOSIGNAL)
			if err == unix.EINTR {
				continue
			}
			if err != nil {
				return // the other end is closed
			}
			b, files = b[n:], files[len(some):]
		}
	}
}

func helperSeeds() map[string][]byte {
	hello := []byte{sayHello, 0, 0, 0, 0}
	started, exited := []byte{sayStarted, 0, 1, 0}, []byte{sayExited, 0, 2, 0}
	stopping, done := []byte{sayStopping, 0, 0, 0}, []byte{sayDone, 0, 0}
	ready := []byte{sayReady, 0}
	join := func(parts ...[]byte) (all []byte) {
		for _, p := range parts {
			all = append(all, p...)
		}
		return all
	}
	seeds := map[string][]byte{
		"nothing":                       nil,
		"a whole invocation":            join(hello, started, exited, done, ready),
		"a stop":                        join(hello, started, stopping, exited, done, ready),
		"not executed":                  join(hello, []byte{sayStartFailed, 2, 9, 0, 0}, done),
		"started twice":                 join(hello, started, started, done),
		"stopping without end":          join(hello, started, stopping, stopping, stopping, stopping),
		"exited twice":                  join(hello, started, exited, exited),
		"done, and again":               join(hello, done, done),
		"done, and more":                join(hello, done, started),
		"ready at once":                 join(hello, ready),
		"another version":               {sayHello, 2, 0, 0, 0},
		"descriptors with the hello":    {sayHello, 0, 0, 0x1c, 0},
		"a pidfd that is none":          join([]byte{sayHello, 0, 0, 0x06, 0}, started),
		"more than a pidfd":             join([]byte{sayHello, 0, 0, 0x1e, 0}, started),
		"a pidfd that does not come":    {sayHello, 0, 0, 0x02, 0},
		"descriptors without a hello":   {sayFiles, 12, sayHead, 1, 0},
		"descriptors, and nothing":      {sayFiles, 255, sayRaw, 1, 0},
		"descriptors after the hello":   join(hello, []byte{sayFiles, 9}, started, []byte{sayFiles, 9}, done),
		"garbage":                       {sayRaw, 9, 255, 255, 255, 255, 255, 255, 255, 255, 255},
		"failed":                        {sayFailed, 0, 0},
		"failed later":                  join(hello, started, []byte{sayFailed, 3, 0}),
		"hello twice":                   join(hello, hello),
		"a question":                    join(hello, []byte{sayForeign, 2, 0}),
		"a run with many descriptors":   join([]byte{sayFiles, 250, sayForeign, 5, 0}),
		"swept":                         {saySwept, 0, 0, 0},
		"swept with descriptors":        {sayFiles, 7, saySwept, 0, 0, 0},
		"a frame without end":           join(hello, []byte{sayHead, 5, 7, sayRaw, 3, 1, 2, 3}),
		"a frame too large":             join(hello, []byte{sayHead, 6, 0}),
		"a year that cannot be written": join(hello, []byte{sayStarted, 0, 255, 0}, done),
	}
	for i := range byte(len(oddReports)) {
		seeds["report "+string('0'+rune(i))] = join(hello, started, []byte{sayDone, i, 0}, ready)
	}
	for i := range byte(len(oddJSON) + 7) {
		seeds["JSON "+string('a'+rune(i))] = join(hello, []byte{sayJSON, i})
		seeds["JSON at once "+string('a'+rune(i))] = []byte{sayJSON, i}
	}
	return seeds
}

// FuzzHelper plays a hostile helper to the caller's side.
func FuzzHelper(f *testing.F) {
	seeds := helperSeeds()
	for _, name := range slices.Sorted(maps.Keys(seeds)) {
		f.Add(seeds[name])
	}
	f.Fuzz(func(t *testing.T, input []byte) {
		pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		r, w, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		defer r.Close()
		said := speak(&script{input})
		go func() {
			utter(pair[1], int(w.Fd()), said)
			w.Close()
		}()
		h := &Client{}
		stub(&h.helper, pair[0])
		listenToHelper(t, h)
		// Closing our end is enough: the helper is no process.
		if !h.Close(0) {
			t.Error("the helper, which is no process, has not ended")
		}
		_ = r.SetReadDeadline(time.Now().Add(patience))
		if n, err := r.Read(make([]byte, 1)); err != io.EOF {
			t.Errorf("%d bytes, %v: a descriptor that the helper sent is still open", n, err)
		}
	})
}

// stub makes h the end of a helper that is no process.
func stub(h *helper, socket int) {
	h.exe, h.pidfd, h.conn = "stub", -1, wire.NewCallerConn(socket)
}

// listenToHelper uses a helper as its caller does, and checks the results.
func listenToHelper(t *testing.T, h *Client) {
	h.Interrupt(time.Now().Add(patience))
	if err := h.greet(context.Background()); err != nil {
		if !errors.Is(err, errRefused) {
			t.Errorf("the greeting fails without saying that it is one: %v", err)
		}
		if errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("the greeting hangs: %v", err)
		}
		return
	}
	h.Interrupt(time.Now().Add(patience))
	var seen string
	for {
		ev, err := h.Next()
		n := 0
		for _, word := range []struct {
			letter string
			set    bool
		}{{"S", ev.Started != nil}, {"S", ev.StartFailed != nil}, {"T", ev.Stopping != nil}, {"E", ev.Exited != nil}, {"D", ev.Done != nil}} {
			if !word.set {
				continue
			}
			n++
			if strings.Contains(seen, word.letter) || strings.Contains(seen, "D") {
				t.Errorf("%s after %q", word.letter, seen)
			}
			seen += word.letter
		}
		switch {
		case errors.Is(err, os.ErrDeadlineExceeded):
			t.Error("it hangs")
		case err == nil && n != 1, err != nil && n != 0:
			t.Errorf("%d events and error %v at once", n, err)
		case ev.Done != nil:
			if c := ev.Done.Cleanup; c.Result == "" || c.Proof == "" {
				t.Errorf("a report of %+v", c)
			}
			if h.awaitReady(context.Background()); strings.Contains(seen, "R") {
				t.Error("ready twice")
			}
			if _, err := h.Next(); err == nil {
				t.Error("an event after the report")
			}
			return
		}
		if err != nil {
			return
		}
	}
}

// FuzzSwept plays a hostile guard that answers the caller's question.
func FuzzSwept(f *testing.F) {
	seeds := helperSeeds()
	for _, name := range slices.Sorted(maps.Keys(seeds)) {
		f.Add(seeds[name])
	}
	f.Fuzz(func(t *testing.T, input []byte) {
		pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer unix.Close(pair[1])
		r, w, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		defer r.Close()
		said := speak(&script{input})
		go func() {
			defer w.Close()
			fds := []unix.PollFd{{Fd: int32(pair[1]), Events: unix.POLLIN}}
			wait(fds, time.Now().Add(patience))
			conn := wire.NewHelperConn(pair[1])
			err := conn.Fill()
			_, _, files, bad := conn.Next()
			if err = errors.Join(err, bad); err != nil || len(files) != 1 {
				t.Errorf("the question comes with %d descriptors, %v", len(files), err)
				closeAll(files)
				return
			}
			utter(files[0], int(w.Fd()), said)
		}()
		h := &Client{id: wire.NewID()}
		h.pid, h.guard = 4711, &guardClient{}
		stub(&h.guard.helper, pair[0])
		swept, err := h.Swept(time.Now().Add(patience))
		if (swept == nil) == (err == nil) {
			t.Errorf("answer %+v and error %v", swept, err)
		}
		if err != nil && err != errGuardLost {
			t.Errorf("error %v", err)
		}
		if swept != nil {
			if c := swept.Cleanup(); c.Result != outcome.CleanupEmpty || c.Proof != outcome.ProofChildList || !c.HelperLost {
				t.Errorf("cleanup is %+v", c)
			}
		}
		h.guard.Close(0)
		_ = r.SetReadDeadline(time.Now().Add(patience))
		if n, err := r.Read(make([]byte, 1)); err != io.EOF {
			t.Errorf("%d bytes, %v: a descriptor that the guard sent is still open", n, err)
		}
	})
}
