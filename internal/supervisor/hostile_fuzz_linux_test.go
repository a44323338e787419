package supervisor

import (
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"curfew/internal/wire"
)

// streamsVariable has the number of hostile streams.
const streamsVariable = "CURFEW_STREAMS"

// hostileStreams returns scripts, the same in every run: the seeds of FuzzServer, and mutations of
// them.
func hostileStreams(t *testing.T) (all []serverSeed) {
	streams := 90
	if testing.Short() {
		streams = 60
	}
	if s := os.Getenv(streamsVariable); s != "" {
		var err error
		if streams, err = strconv.Atoi(s); err != nil {
			t.Fatal(err)
		}
	}
	for _, seed := range serverSeeds() {
		if seed.manner&late == 0 && len(all) < streams-40 {
			all = append(all, seed)
		}
	}
	dice := rand.New(rand.NewPCG(1, 2))
	for i := 0; len(all) < streams; i++ {
		from := all[dice.IntN(len(all))]
		b := append([]byte(nil), from.script...)
		for range 1 + dice.IntN(4) {
			if len(b) == 0 {
				break
			}
			b[dice.IntN(len(b))] = byte(dice.Uint32())
		}
		all = append(all, serverSeed{name: fmt.Sprintf("changed %d: %s", i, from.name), script: append(b, all[dice.IntN(len(all))].script...)})
	}
	return all
}

// TestHostileStreams plays hostile callers against real supervisors. Every fifth supervisor has a CLI
// and a daemon of it running that do not heed SIGTERM. Whatever the caller sends, the tree ends, and
// so does the supervisor.
func TestHostileStreams(t *testing.T) {
	t.Parallel()
	streams := make(chan int)
	all := hostileStreams(t)
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for i := range streams {
				if problem := hostileStream(t, all[i].script, i%5 == 0); problem != nil {
					t.Errorf("stream %d, %s: %v", i, all[i].name, problem)
				}
			}
		})
	}
	for i := range all {
		streams <- i
	}
	close(streams)
	wg.Wait()
}

func hostileStream(t *testing.T, input []byte, running bool) error {
	runtime.LockOSThread()
	h, err := spawn("", nil)
	runtime.UnlockOSThread()
	if err != nil {
		return err
	}
	// Each process of a CLI holds the first pipe; the second is what is sent as a descriptor.
	cli, cliEnd, err := os.Pipe()
	if err != nil {
		return err
	}
	defer cli.Close()
	sent, w, err := os.Pipe()
	if err != nil {
		return err
	}
	defer sent.Close()
	conn := copySocket(t, &h.helper)
	defer unix.Close(conn)
	if err := h.greet(t.Context()); err != nil {
		return err
	}
	caller := &hostile{t: t, conn: conn, w: int(w.Fd()), patience: 2000}
	began := ""
	if running {
		sh, err := exec.LookPath("sh")
		if err != nil {
			return err
		}
		s := settings()
		s.Grace = time.Millisecond
		say, err := wire.Encode(&wire.Message{Run: &wire.Run{Settings: s, Args: 3}},
			runRaw(sh, []string{"sh", "-c", "trap '' TERM; setsid sleep " + tooLong + " & echo x; sleep " + tooLong}, nil))
		if err != nil {
			return err
		}
		dir, err := os.Open("/")
		if err != nil {
			return err
		}
		caller.send(say, []int{int(dir.Fd()), int(cliEnd.Fd())})
		dir.Close()
		_ = cli.SetReadDeadline(time.Now().Add(patience))
		if _, err := cli.Read(make([]byte, 2)); err != nil {
			return fmt.Errorf("the CLI does not come to life: %w", err)
		}
	}
	cliEnd.Close()
	heard := make(chan error, 1)
	go func() {
		said, whole := hearAll(t, conn)
		spoken := words(t, said)
		err := orderly(spoken)
		if err == nil && !whole {
			err = fmt.Errorf("after %q the last message is not whole", spoken)
		}
		began = spoken
		heard <- err
	}()
	caller.play(&script{input})
	_ = unix.Shutdown(conn, unix.SHUT_WR)
	w.Close()
	if err := <-heard; err != nil {
		return err
	}
	closeAll(caller.asks)
	closeAll(caller.spawns)
	atEOF(t, cli)
	atEOF(t, sent)
	if !h.Close(patience) {
		h.Kill()
		return fmt.Errorf("the supervisor, which has sent %q, does not end", began)
	}
	return nil
}

// TestHostileStreamsToTheGuard plays hostile callers against real guards.
func TestHostileStreamsToTheGuard(t *testing.T) {
	t.Parallel()
	for i, input := range guardSeeds() {
		if testing.Short() && i%4 != 0 {
			continue
		}
		runtime.LockOSThread()
		g, err := spawnGuard("", nil)
		runtime.UnlockOSThread()
		if err != nil {
			t.Fatal(err)
		}
		if err := g.greet(t.Context()); err != nil {
			t.Fatal(err)
		}
		sent, w, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		conn := copySocket(t, &g.helper)
		caller := &hostile{t: t, conn: conn, w: int(w.Fd()), patience: 2000}
		caller.play(&script{input})
		_ = unix.Shutdown(conn, unix.SHUT_WR)
		w.Close()
		// A guard whose caller is gone waits for its supervisors, which end with their sockets.
		for _, fd := range caller.spawns {
			_ = unix.Shutdown(fd, unix.SHUT_WR)
			_ = unix.SetNonblock(fd, true)
		}
		for _, fd := range caller.asks {
			if m, whole := hearAll(t, fd); len(m) > 1 || !whole {
				t.Errorf("script %d: %d messages, the last one whole: %v", i, len(m), whole)
			}
			unix.Close(fd)
		}
		for _, fd := range caller.spawns {
			spawned := os.NewFile(uintptr(fd), "supervisor")
			_ = spawned.SetReadDeadline(time.Now().Add(patience))
			if _, err := io.Copy(io.Discard, spawned); err != nil {
				t.Errorf("script %d: a supervisor does not end: %v", i, err)
			}
			spawned.Close()
		}
		if m, _ := hearAll(t, conn); words(t, m) != "" && words(t, m) != "F" {
			t.Errorf("script %d: the guard sends %+v", i, m)
		}
		unix.Close(conn)
		atEOF(t, sent)
		sent.Close()
		if !g.Close(patience) {
			t.Errorf("script %d: guard %d is still there", i, g.pid)
			g.Kill()
		}
	}
}
