//go:build linux || darwin

package wire

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"curfew/proctree"
)

const patience = 20 * time.Second

// ends returns the two ends of a connection, and the helper's socket.
func ends(t *testing.T) (caller, helper *Conn, socket int) {
	t.Helper()
	pair, err := Socketpair()
	if err != nil {
		t.Fatal(err)
	}
	caller, helper = NewCallerConn(pair[0]), NewHelperConn(pair[1])
	caller.SetReadDeadline(time.Now().Add(patience))
	t.Cleanup(caller.Close)
	return caller, helper, pair[1]
}

// await polls the helper's end as a loop does, until a message is there or an error.
func await(c *Conn) (*Message, []byte, []int, error) {
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(time.Millisecond) {
		if m, raw, files, err := c.Next(); m != nil || err != nil {
			return m, raw, files, err
		}
		if err := c.Fill(); err != nil && err != ErrEmpty {
			return nil, nil, nil, err
		}
	}
	return nil, nil, nil, os.ErrDeadlineExceeded
}

// write writes bytes that are no message.
func write(t *testing.T, socket int, b []byte) {
	t.Helper()
	if n, err := unix.Write(socket, b); n != len(b) || err != nil {
		t.Fatalf("wrote %d of %d bytes: %v", n, len(b), err)
	}
}

func TestConnBothWays(t *testing.T) {
	t.Parallel()
	caller, helper, socket := ends(t)
	defer unix.Close(socket)
	if _, _, _, err := helper.Next(); err != nil {
		t.Fatal(err)
	}
	if err := helper.Fill(); err != ErrEmpty {
		t.Errorf("nothing was sent, and Fill returns %v", err)
	}
	if caller.Readable() {
		t.Error("nothing was sent, and the caller's end is readable")
	}
	if err := errors.Join(caller.Send(&Message{Stop: &StopRequest{ID: "1"}}), caller.Send(&Message{Signal: &Signal{ID: "1", Signal: 2}})); err != nil {
		t.Fatal(err)
	}
	if m, _, _, err := await(helper); err != nil || m.Stop == nil || m.Stop.ID != "1" {
		t.Errorf("got %+v, %v", m, err)
	}
	if m, _, _, err := await(helper); err != nil || m.Signal == nil || m.Signal.Signal != 2 {
		t.Errorf("got %+v, %v", m, err)
	}
	if err := helper.Send(&Message{Stopping: &Stopping{CloseStdin: true}}); err != nil {
		t.Fatal(err)
	}
	if !caller.Readable() {
		t.Error("a message was sent, and the caller's end is not readable")
	}
	if m, _, _, err := caller.Receive(); err != nil || m.Stopping == nil || !m.Stopping.CloseStdin {
		t.Errorf("got %+v, %v", m, err)
	}
}

// The end of the socket between two messages is another one than within a message.
func TestConnEnds(t *testing.T) {
	t.Parallel()
	whole := frame(t, &Message{Ready: &struct{}{}}, nil)
	for name, tt := range map[string]struct {
		sent []byte
		want error
	}{
		"nothing":          {nil, io.EOF},
		"a message":        {whole, io.EOF},
		"half a message":   {whole[:len(whole)-1], io.ErrUnexpectedEOF},
		"half a header":    {whole[:5], io.ErrUnexpectedEOF},
		"a message and so": {slices.Concat(whole, whole[:9]), io.ErrUnexpectedEOF},
		"no message":       {slices.Repeat([]byte{255}, 8), ErrProtocol},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for _, unread := range []bool{false, true} {
				caller, _, socket := ends(t)
				if unread { // then the kernel answers ECONNRESET
					_ = caller.Send(&Message{Ready: &struct{}{}})
				}
				write(t, socket, tt.sent)
				unix.Close(socket)
				var err error
				messages := 0
				for err == nil {
					if _, _, _, err = caller.Receive(); err == nil {
						messages++
					}
				}
				if !errors.Is(err, tt.want) || messages > 1 {
					t.Errorf("%d messages, then %v", messages, err)
				}
			}
		})
	}
}

// A message that comes in parts is delivered whole, also when the deadline passes in between.
func TestConnTornMessage(t *testing.T) {
	t.Parallel()
	caller, _, socket := ends(t)
	defer unix.Close(socket)
	b := frame(t, &Message{Started: &Started{PID: 7}}, []byte("raw"))
	for i, part := range [][]byte{b[:3], b[3:9], b[9 : len(b)-1]} {
		write(t, socket, part)
		caller.SetReadDeadline(time.Now().Add(10 * time.Millisecond))
		if m, _, _, err := caller.Receive(); m != nil || !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Fatalf("after part %d: %+v, %v", i, m, err)
		}
	}
	write(t, socket, b[len(b)-1:])
	caller.SetReadDeadline(time.Now().Add(patience))
	if m, raw, _, err := caller.Receive(); err != nil || m.Started == nil || m.Started.PID != 7 || string(raw) != "raw" {
		t.Errorf("got %+v, %q, %v", m, raw, err)
	}
}

// fill fills the socket.
func fill(t *testing.T, c *Conn) {
	t.Helper()
	junk := make([]byte, 4096)
	if err := c.Control(func(fd int) {
		for {
			if _, err := unix.SendmsgN(fd, junk, nil, nil, sendFlags); err != nil {
				return
			}
		}
	}); err != nil {
		t.Fatal(err)
	}
}

func TestConnFullSocket(t *testing.T) {
	t.Parallel()
	for _, end := range []string{"caller", "helper"} {
		t.Run(end, func(t *testing.T) {
			t.Parallel()
			caller, helper, socket := ends(t)
			defer unix.Close(socket)
			from := caller
			if end == "helper" {
				from = helper
			}
			fill(t, from)
			began := time.Now()
			err := from.Send(&Message{Ready: &struct{}{}})
			if took := time.Since(began); !errors.Is(err, os.ErrDeadlineExceeded) || took < SendLimit {
				t.Errorf("after %v: %v", took, err)
			}
		})
	}
}

// What does not fit is sent as the other end reads.
func TestConnSlowReader(t *testing.T) {
	t.Parallel()
	caller, helper, socket := ends(t)
	defer unix.Close(socket)
	long := strings.Repeat("x", MaxJSON/2)
	sent := make(chan error, 1)
	go func() { sent <- helper.Send(&Message{Failed: &Failed{Text: long}}) }()
	time.Sleep(50 * time.Millisecond)
	if m, _, _, err := caller.Receive(); err != nil || m.Failed == nil || m.Failed.Text != long {
		t.Errorf("got another message: %v", err)
	}
	if err := <-sent; err != nil {
		t.Error(err)
	}
}

// Messages of several goroutines do not mix.
func TestConnConcurrentSends(t *testing.T) {
	t.Parallel()
	caller, helper, socket := ends(t)
	defer unix.Close(socket)
	const senders, each = 8, 50
	var wg sync.WaitGroup
	for i := range senders {
		wg.Go(func() {
			for j := range each {
				if err := caller.Send(&Message{Signal: &Signal{ID: strings.Repeat("y", 100*i), Signal: j}}); err != nil {
					t.Error(err)
				}
			}
		})
	}
	next := map[int]int{}
	for range senders * each {
		m, _, _, err := await(helper)
		if err != nil {
			t.Fatal(err)
		}
		if i := len(m.Signal.ID) / 100; m.Signal.Signal != next[i] {
			t.Fatalf("sender %d: message %d, want %d", i, m.Signal.Signal, next[i])
		} else {
			next[i]++
		}
	}
	wg.Wait()
}

// A request for which the other end has no room ends with its context.
func TestConnRequestIsCanceled(t *testing.T) {
	t.Parallel()
	caller, _, socket := ends(t)
	defer unix.Close(socket)
	fill(t, caller)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	began := time.Now()
	if err := caller.SendRequest(ctx, time.Hour, &Request{Path: "x", Args: []string{"x"}, Dir: socket}); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("got %v", err)
	}
	if took := time.Since(began); took > patience {
		t.Errorf("it took %v", took)
	}
	for _, q := range []*Request{{Args: make([]string, MaxStrings+1)}, {Env: make([]string, MaxStrings+1)}, {Args: []string{strings.Repeat("x", MaxRaw)}}} {
		if err := caller.SendRequest(t.Context(), time.Hour, q); err != ErrTooLarge {
			t.Errorf("got %v", err)
		}
	}
}

// Descriptors arrive with their request, in their order, and belong to the receiver alone.
func TestConnManyFiles(t *testing.T) {
	t.Parallel()
	for _, n := range []int{0, 1, MaxPerSend - 1, MaxPerSend, 2*MaxPerSend + 7} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			t.Parallel()
			caller, helper, socket := ends(t)
			defer unix.Close(socket)
			q := &Request{Settings: Settings{Policy: proctree.Policy{Signal: 15}}, Path: "/bin/true", Args: []string{"true"}, Env: []string{"A=b"}}
			var files []*os.File
			for i := range n + 1 {
				f, err := os.Create(fmt.Sprintf("%s/%d", t.TempDir(), i))
				if err != nil {
					t.Fatal(err)
				}
				defer f.Close()
				if files = append(files, f); i == 0 {
					q.Dir = int(f.Fd())
				} else {
					q.Files, q.Numbers = append(q.Files, int(f.Fd())), append(q.Numbers, i-1)
				}
			}
			sent := make(chan error, 1)
			go func() {
				err := caller.SendRequest(t.Context(), patience, q)
				sent <- errors.Join(err, caller.Send(&Message{Stop: &StopRequest{ID: "next"}}))
			}()
			m, raw, fds, err := await(helper)
			if err != nil || m.Run == nil {
				t.Fatalf("got %+v, %v", m, err)
			}
			defer closeAll(fds)
			got, err := m.Run.Request(raw, fds)
			if err != nil || got.Path != q.Path || !slices.Equal(got.Args, q.Args) || !slices.Equal(got.Env, q.Env) {
				t.Fatalf("got %+v, %v", got, err)
			}
			for i, fd := range append([]int{got.Dir}, got.Files...) {
				var want, is unix.Stat_t
				if err := errors.Join(unix.Fstat(int(files[i].Fd()), &want), unix.Fstat(fd, &is)); err != nil || want.Ino != is.Ino {
					t.Fatalf("descriptor %d is another file: %v", i, err)
				}
				if flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0); err != nil || flags&unix.FD_CLOEXEC == 0 {
					t.Errorf("descriptor %d would be inherited: %v", i, err)
				}
			}
			if m, _, fds, err := await(helper); err != nil || m.Stop == nil || len(fds) != 0 {
				t.Errorf("then %+v with %d descriptors, %v", m, len(fds), err)
			}
			if err := <-sent; err != nil {
				t.Error(err)
			}
		})
	}
}

// sendFiles sends bytes with n copies of a pipe's write end, and returns its read end: that is
// at its end when all copies are closed.
func sendFiles(t *testing.T, socket int, b []byte, n int) *os.File {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	t.Cleanup(func() { r.Close() })
	if err := unix.Sendmsg(socket, b, unix.UnixRights(slices.Repeat([]int{int(w.Fd())}, n)...), nil, 0); err != nil {
		t.Fatal(err)
	}
	return r
}

func atEnd(t *testing.T, r *os.File) {
	t.Helper()
	_ = r.SetReadDeadline(time.Now().Add(patience))
	if n, err := r.Read(make([]byte, 1)); n != 0 || err != io.EOF {
		t.Errorf("a descriptor that was sent is still open: %v", err)
	}
}

// Descriptors that belong to no message, or that come with what is refused, are closed.
func TestConnClosesFiles(t *testing.T) {
	t.Parallel()
	ready := frame(t, &Message{Ready: &struct{}{}}, nil)
	t.Run("with a message without any", func(t *testing.T) {
		caller, _, socket := ends(t)
		defer unix.Close(socket)
		r := sendFiles(t, socket, ready, 3)
		if m, _, files, err := caller.Receive(); err != nil || m.Ready == nil || len(files) != 0 {
			t.Errorf("got %+v, %v, %v", m, files, err)
		}
		atEnd(t, r)
	})
	t.Run("with what is no message", func(t *testing.T) {
		caller, _, socket := ends(t)
		defer unix.Close(socket)
		r := sendFiles(t, socket, slices.Repeat([]byte{255}, 8), 3)
		if _, _, _, err := caller.Receive(); !errors.Is(err, ErrProtocol) {
			t.Errorf("got %v", err)
		}
		atEnd(t, r)
	})
	t.Run("with half a message", func(t *testing.T) {
		caller, _, socket := ends(t)
		r := sendFiles(t, socket, ready[:9], 3)
		unix.Close(socket)
		if _, _, _, err := caller.Receive(); err != io.ErrUnexpectedEOF {
			t.Errorf("got %v", err)
		}
		atEnd(t, r)
	})
	t.Run("too few for the message", func(t *testing.T) {
		caller, _, socket := ends(t)
		defer unix.Close(socket)
		r := sendFiles(t, socket, frame(t, &Message{Spawn: &Spawn{ID: "1"}}, nil), 2)
		if _, _, _, err := caller.Receive(); !errors.Is(err, ErrProtocol) {
			t.Errorf("got %v", err)
		}
		atEnd(t, r)
	})
	t.Run("without end", func(t *testing.T) {
		caller, helper, socket := ends(t)
		defer unix.Close(socket)
		header := frame(t, &Message{Failed: &Failed{Text: strings.Repeat("x", 4096)}}, nil)
		var pipes []*os.File
		err := error(nil)
		fd := -1
		_ = caller.Control(func(socket int) { fd = socket })
		for i := 0; err == nil && i < 2*MaxFiles/MaxPerSend; i++ {
			pipes = append(pipes, sendFiles(t, fd, header[i:i+1], MaxPerSend))
			err = helper.Fill()
		}
		if !errors.Is(err, ErrProtocol) || len(pipes) != MaxFiles/MaxPerSend+1 {
			t.Errorf("after %d times %d descriptors: %v", len(pipes), MaxPerSend, err)
		}
		for _, r := range pipes {
			atEnd(t, r)
		}
	})
}

// Where the process may have no more descriptors the message comes without them.
func TestConnFilesAreCut(t *testing.T) {
	t.Parallel()
	caller, helper, socket := ends(t)
	defer unix.Close(socket)
	helper.oob = make([]byte, unix.CmsgSpace(4)) // room for one, as if there were no more
	fd := -1
	_ = caller.Control(func(socket int) { fd = socket })
	r := sendFiles(t, fd, frame(t, &Message{Spawn: &Spawn{ID: "1"}}, nil), 3)
	if m, _, files, err := await(helper); err != ErrFilesCut || m == nil || m.Spawn == nil || len(files) != 0 {
		t.Errorf("got %+v, %v, %v", m, files, err)
	}
	atEnd(t, r)
	if err := caller.Send(&Message{Stop: &StopRequest{ID: "next"}}); err != nil {
		t.Fatal(err)
	}
	if m, _, _, err := await(helper); err != nil || m.Stop == nil {
		t.Errorf("then %+v, %v", m, err)
	}
}

// Only the peer is believed, and no process finishes what another one has begun.
func TestConnOtherSender(t *testing.T) {
	t.Parallel()
	ready := frame(t, &Message{Ready: &struct{}{}}, nil)
	caller, _, socket := ends(t)
	if !caller.SendersNamed() {
		if runtime.GOOS == "linux" {
			t.Fatal("the kernel does not name senders")
		}
		t.Skip("a socket does not name senders here")
	}
	caller.SetPeer(os.Getpid())
	write(t, socket, ready)
	if m, _, _, err := caller.Receive(); err != nil || m.Ready == nil || caller.Sender() != os.Getpid() {
		t.Errorf("got %+v, %v from %d", m, err, caller.Sender())
	}
	caller.SetPeer(os.Getppid())
	r := sendFiles(t, socket, ready, 1)
	if _, _, _, err := caller.Receive(); !errors.Is(err, ErrOtherSender) {
		t.Errorf("got %v", err)
	}
	atEnd(t, r)
	unix.Close(socket)

	caller, _, socket = ends(t)
	defer unix.Close(socket)
	write(t, socket, ready[:9])
	if err := caller.Fill(); err != nil {
		t.Fatal(err)
	}
	caller.sender = os.Getppid() // as if that one had sent it
	write(t, socket, ready[9:])
	if _, _, _, err := caller.Receive(); !errors.Is(err, ErrOtherSender) {
		t.Errorf("half of a message: %v", err)
	}
}

// Close ends what waits, and a second one is harmless.
func TestConnClose(t *testing.T) {
	t.Parallel()
	caller, _, socket := ends(t)
	defer unix.Close(socket)
	got := make(chan error, 1)
	go func() {
		_, _, _, err := caller.Receive()
		got <- err
	}()
	time.Sleep(10 * time.Millisecond)
	caller.Close()
	if err := <-got; err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("Receive returns %v", err)
	}
	caller.Close()
	if err := caller.Send(&Message{Ready: &struct{}{}}); err == nil {
		t.Error("Send returns no error")
	}
	if !caller.Readable() {
		t.Error("it is not readable")
	}
}

// SendOn needs no reader that waits, and returns an error if the other end is closed.
func TestSendOn(t *testing.T) {
	t.Parallel()
	caller, _, socket := ends(t)
	if err := SendOn(socket, &Message{Swept: &Swept{EndedMore: 3}}); err != nil {
		t.Fatal(err)
	}
	if m, _, _, err := caller.Receive(); err != nil || m.Swept == nil || m.Swept.EndedMore != 3 {
		t.Errorf("got %+v, %v", m, err)
	}
	caller.Close()
	if err := SendOn(socket, &Message{Swept: &Swept{}}); !errors.Is(err, syscall.EPIPE) {
		t.Errorf("got %v", err)
	}
	unix.Close(socket)
}
