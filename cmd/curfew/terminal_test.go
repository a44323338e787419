//go:build linux || darwin || freebsd

package main

import (
	"bytes"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/creack/pty"
	"golang.org/x/sys/unix"
)

// console is a terminal with a command in it.
type console struct {
	t      *testing.T
	cmd    *exec.Cmd
	keys   *os.File // the master side
	side   *os.File // the other side, whose settings the test reads
	before unix.Termios

	mu   sync.Mutex
	text bytes.Buffer
	more chan struct{}
	done chan struct{}
}

func open(t *testing.T, name string, args ...string) *console {
	t.Helper()
	master, side, err := pty.Open()
	if err != nil {
		t.Skipf("no pty: %v", err)
	}
	// The package makes it blocking, and then closing does not end a read.
	fd, err := unix.FcntlInt(master.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	_ = master.Close()
	_ = unix.SetNonblock(fd, true)
	master = os.NewFile(uintptr(fd), "terminal")
	c := &console{t: t, cmd: exec.Command(name, args...), keys: master, side: side, more: make(chan struct{}, 1), done: make(chan struct{})}
	c.resize(30, 90)
	c.before = c.termios()
	c.cmd.Dir = t.TempDir()
	c.cmd.Stdin, c.cmd.Stdout, c.cmd.Stderr = side, side, side
	c.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	if err := c.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = c.cmd.Process.Kill()
		_ = side.Close()
		_ = master.Close()
		select {
		case <-c.done:
		case <-time.After(soon):
			t.Error("something still has the terminal open")
		}
	})
	go func() {
		defer close(c.done)
		buf := make([]byte, 4096)
		for {
			n, err := master.Read(buf)
			c.mu.Lock()
			c.text.Write(buf[:n])
			c.mu.Unlock()
			select {
			case c.more <- struct{}{}:
			default:
			}
			if err != nil {
				return
			}
		}
	}()
	return c
}

func (c *console) termios() unix.Termios {
	c.t.Helper()
	tio, err := unix.IoctlGetTermios(int(c.side.Fd()), getTermios)
	if err != nil {
		c.t.Fatal(err)
	}
	return *tio
}

func (c *console) resize(rows, cols uint16) {
	c.t.Helper()
	if err := unix.IoctlSetWinsize(int(c.side.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: rows, Col: cols}); err != nil {
		c.t.Fatal(err)
	}
}

func (c *console) screen() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	// While we are in the background both terminals add a carriage return.
	return strings.NewReplacer("\r\r\n", "\n", "\r\n", "\n").Replace(c.text.String())
}

// expect waits until the text is on the screen.
func (c *console) expect(text string) {
	c.t.Helper()
	limit := time.After(soon)
	for !strings.Contains(c.screen(), text) {
		select {
		case <-c.more:
		case <-limit:
			c.t.Fatalf("%q did not appear:\n%s", text, c.screen())
		}
	}
}

func (c *console) press(keys string) {
	c.t.Helper()
	if _, err := io.WriteString(c.keys, keys); err != nil {
		c.t.Fatal(err)
	}
}

// end waits for the end of the command. The terminal must be as it was.
func (c *console) end(want int) {
	c.t.Helper()
	if got := waitFor(c.t, c.cmd); got != want {
		c.t.Errorf("exit code %d, want %d\n%s", got, want, c.screen())
	}
	if after := c.termios(); after != c.before {
		c.t.Errorf("the terminal was left changed: %+v, before %+v", after, c.before)
	}
}

func TestTerminalIsTheCLIs(t *testing.T) {
	t.Parallel()
	c := open(t, "curfew", "run", "--", "sh", "-c", `test -t 0 && test -t 1 && test -t 2 && : < /dev/tty && stty size && exit 4`)
	c.end(4)
	c.expect("30 90\n")
}

// The CLI gets exactly one SIGINT, and curfew none; the CLI does with it what it
// likes.
func TestTerminalInterrupt(t *testing.T) {
	t.Parallel()
	c := open(t, "curfew", "run", "--", "sh", "-c", `trap "echo GOT; n=x" INT; echo ready; while [ -z "$n" ]; do sleep 0.02; done; sleep 0.3; exit 6`)
	c.expect("ready\n")
	c.press("\x03")
	c.end(6)
	if n := strings.Count(c.screen(), "GOT"); n != 1 {
		t.Errorf("%d signals, want 1\n%s", n, c.screen())
	}
}

func TestTerminalInterruptEndsAPlainProgram(t *testing.T) {
	t.Parallel()
	c := open(t, "curfew", "run", "--", "sh", "-c", "echo ready; exec sleep "+tooLong)
	c.expect("ready\n")
	c.press("\x03")
	c.end(130)
	if strings.Contains(c.screen(), "curfew:") {
		t.Errorf("there was nothing to say:\n%s", c.screen())
	}
}

func TestTerminalInput(t *testing.T) {
	t.Parallel()
	c := open(t, "curfew", "run", "--", "sh", "-c", "echo ready; cat; echo end")
	c.expect("ready\n")
	c.press("some text\r")
	c.expect("some text\nsome text\n") // its echo, and cat's answer
	c.press("\x04")
	c.end(0)
	c.expect("end\n")
}

// Input that was typed before curfew started reaches the CLI, the end of input too.
func TestTerminalTypedAhead(t *testing.T) {
	t.Parallel()
	c := open(t, "sh", "-c", `echo first; while [ ! -e go ]; do sleep 0.02; done; exec curfew run -- sh -c "cat; echo end"`)
	c.expect("first\n")
	c.press("early\r\x04")
	c.expect("early\n")
	if err := os.WriteFile(c.cmd.Dir+"/go", nil, 0o666); err != nil {
		t.Fatal(err)
	}
	c.end(0)
	c.expect("end\n")
}

func TestTerminalSize(t *testing.T) {
	t.Parallel()
	c := open(t, "curfew", "run", "--", "sh", "-c", `trap "stty size; exit 0" WINCH; echo ready; while :; do sleep 0.02; done`)
	c.expect("ready\n")
	c.resize(40, 120)
	c.end(0)
	c.expect("40 120\n")
}

// All output that was written before the end arrives.
func TestTerminalOutputIsComplete(t *testing.T) {
	t.Parallel()
	need(t, "seq")
	c := open(t, "curfew", "run", "--", "seq", "30000")
	c.end(0)
	c.expect("29999\n30000\n")
	if !strings.HasPrefix(c.screen(), "1\n2\n3\n") || strings.Count(c.screen(), "\n") != 30000 {
		t.Errorf("%d lines, want 30000", strings.Count(c.screen(), "\n"))
	}
}

func TestTerminalIsRestoredAfterAStop(t *testing.T) {
	t.Parallel()
	t.Run("timeout", func(t *testing.T) {
		t.Parallel()
		c := open(t, "curfew", "run", "-t", "2", "-g", "0", "--", "sleep", tooLong)
		c.end(exitTimeout)
		c.expect("curfew: sleep: outcome unknown: timed out after 2s")
	})
	t.Run("SIGTERM", func(t *testing.T) {
		t.Parallel()
		c := open(t, "curfew", "run", "--", "sh", "-c", "stty raw; echo ready; exec sleep "+tooLong)
		c.expect("ready")
		_ = c.cmd.Process.Signal(syscall.SIGTERM)
		c.end(143)
		c.expect("curfew: stopping: SIGTERM received\n")
	})
	t.Run("not started", func(t *testing.T) {
		t.Parallel()
		open(t, "curfew", "run", "--", "curfew-no-such-program").end(exitNotFound)
	})
}

// In a pipeline other programs use the terminal too.
func TestTerminalWithOutputElsewhere(t *testing.T) {
	t.Parallel()
	c := open(t, "sh", "-c", `curfew run -- sh -c 'read x; echo "read $x"; test -t 1 || echo pipe' | cat`)
	c.press("typed\r")
	c.end(0)
	c.expect("read typed\npipe\n")
}

// A job in the background runs on and does not touch the terminal, and takes it
// when it comes to the foreground.
func TestTerminalInBackground(t *testing.T) {
	t.Parallel()
	need(t, "bash")
	c := open(t, "bash", "--norc", "-c", `set -m
		curfew run -- sh -c "echo ready; read x; echo read \$x" &
		while read -r line && [ "$line" != fg ]; do echo "shell has $line"; done
		fg; echo code $?`)
	c.expect("ready\n")
	c.press("one\r")
	c.expect("shell has one\n")
	c.press("fg\r")
	c.expect("curfew run")
	c.press("two\r")
	c.end(0)
	c.expect("read two\n")
	c.expect("code 0\n")
}

// In the background, a CLI without a terminal of its own must not read what is typed for
// the shell in the foreground.
func TestTerminalInBackgroundWithOutputElsewhere(t *testing.T) {
	t.Parallel()
	need(t, "bash")
	c := open(t, "bash", "--norc", "-c", `set -m
		curfew run -- sh -c "cat; echo end" > out &
		read -r line; echo "shell has $line"; wait; cat out`)
	c.press("one\r")
	c.end(0)
	c.expect("shell has one\n")
	c.expect("end\n")
}

// When the terminal closes, the CLI gets SIGHUP, as it would on that terminal.
func TestTerminalHangup(t *testing.T) {
	t.Parallel()
	c := open(t, "curfew", "run", "-g", "50", "--report", "r.json", "--", "sh", "-c", `trap "echo hung up > hup; exit 3" HUP; sh -c "echo ready; exec sleep 60" & wait`)
	c.expect("ready\n")
	_ = c.side.Close()
	_ = c.keys.Close()
	if got := waitFor(t, c.cmd); got != 129 {
		t.Errorf("exit code %d, want 129", got)
	}
	if got, err := os.ReadFile(c.cmd.Dir + "/hup"); string(got) != "hung up\n" {
		t.Errorf("the CLI noted %q, %v", got, err)
	}
}
