//go:build linux || darwin || freebsd

package main

import (
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"github.com/creack/pty"
	"golang.org/x/sys/unix"
)

// terminal is a pty for the CLI, which has a session of its own, and the copying
// between the pty and the terminal that curfew runs in. Curfew's terminal is in raw mode
// in the meantime: everything that is typed, Ctrl-C too, reaches the CLI once, through the
// pty.
type terminal struct {
	cli    *os.File // the CLI's side
	master *os.File
	voice  *voice
	copied chan struct{} // closed when all that the CLI wrote is copied

	mu     sync.Mutex // guards what follows
	saved  *unix.Termios
	closed bool
	caught chan os.Signal
	resume chan struct{} // receives when we may be in the foreground again
}

// onTerminal reports whether the CLI gets a terminal: stdin, stdout and stderr are the same
// terminal. If the output went to a pipe, raw mode would garble what the next program
// of the pipeline writes.
func onTerminal() bool {
	if !isTerminal(os.Stdin) {
		return false
	}
	in, err := os.Stdin.Stat()
	if err != nil {
		return false
	}
	for _, f := range []*os.File{os.Stdout, os.Stderr} {
		if fi, err := f.Stat(); err != nil || !isTerminal(f) || !os.SameFile(in, fi) {
			return false
		}
	}
	return true
}

func isTerminal(f *os.File) bool {
	_, err := unix.IoctlGetTermios(int(f.Fd()), getTermios)
	return err == nil
}

// inBackground reports whether job control has put us in the
// background, where to read from the terminal or to change it would stop us.
func inBackground() bool {
	pgrp, err := unix.IoctlGetInt(int(os.Stdin.Fd()), unix.TIOCGPGRP)
	return err == nil && pgrp != unix.Getpgrp()
}

// openTerminal makes the terminal and begins to copy. It calls hangUp when our own terminal
// has hung up.
func openTerminal(v *voice, hangUp func()) (*terminal, error) {
	master, cli, err := pty.Open()
	if err != nil {
		return nil, err
	}
	t := &terminal{
		cli: cli, master: master, voice: v, copied: make(chan struct{}),
		caught: make(chan os.Signal, 4), resume: make(chan struct{}, 1),
	}
	if !inBackground() {
		// In the background the settings are those of a shell that edits a line.
		if own, err := unix.IoctlGetTermios(int(os.Stdin.Fd()), getTermios); err == nil {
			_ = unix.IoctlSetTermios(int(cli.Fd()), setTermios, own) // otherwise it keeps the defaults
		}
	}
	_ = pty.InheritSize(os.Stdin, master) // otherwise it has no size; programs can handle that
	signal.Notify(t.caught, syscall.SIGWINCH, syscall.SIGCONT)
	t.passTypedAhead()
	t.enter()
	go t.follow()
	go t.copyOut()
	go t.copyIn(hangUp)
	return t, nil
}

// passTypedAhead passes on the lines that were typed before curfew started. In raw
// mode, an end of input among them would be read as a NUL byte.
func (t *terminal) passTypedAhead() {
	own, err := unix.IoctlGetTermios(int(os.Stdin.Fd()), getTermios)
	if err != nil || own.Lflag&unix.ICANON == 0 {
		return
	}
	buf := make([]byte, 4<<10) // the longest line that a terminal keeps
	for range cap(buf) {
		if inBackground() || !awaitInput(os.Stdin, 0) {
			return
		}
		n, err := unix.Read(int(os.Stdin.Fd()), buf)
		switch {
		case err != nil:
			return
		case n == 0:
			buf[0], n = own.Cc[unix.VEOF], 1
		}
		if _, err := t.master.Write(buf[:n]); err != nil {
			return
		}
	}
}

// enter puts our terminal in raw mode, if we are in the foreground.
func (t *terminal) enter() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed || inBackground() {
		return
	}
	fd := int(os.Stdin.Fd())
	if t.saved == nil {
		saved, err := unix.IoctlGetTermios(fd, getTermios)
		if err != nil {
			return
		}
		t.saved = saved
	}
	if unix.IoctlSetTermios(fd, setTermios, raw(*t.saved)) == nil {
		t.voice.raw.Store(true)
	}
}

// raw is cfmakeraw(3).
func raw(t unix.Termios) *unix.Termios {
	t.Iflag &^= unix.IGNBRK | unix.BRKINT | unix.PARMRK | unix.ISTRIP | unix.INLCR | unix.IGNCR | unix.ICRNL | unix.IXON
	t.Oflag &^= unix.OPOST
	t.Lflag &^= unix.ECHO | unix.ECHONL | unix.ICANON | unix.ISIG | unix.IEXTEN
	t.Cflag &^= unix.CSIZE | unix.PARENB
	t.Cflag |= unix.CS8
	t.Cc[unix.VMIN], t.Cc[unix.VTIME] = 1, 0
	return &t
}

// restore sets our terminal back to how it was. It can be called at any time,
// and more than once.
func (t *terminal) restore() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.closed = true
	// In the background, another process uses it.
	if t.saved != nil && !inBackground() {
		// It does not wait for pending output, which can block for ever.
		_ = unix.IoctlSetTermios(int(os.Stdin.Fd()), setTermios, t.saved)
	}
	t.saved = nil
	t.voice.raw.Store(false)
}

// guard restores the terminal if the goroutine that defers it panics.
func (t *terminal) guard() {
	if p := recover(); p != nil {
		t.restore()
		panic(p)
	}
}

// close ends the copying, for which it waits at most limit, and restores the
// terminal. It is called after the tree has ended.
func (t *terminal) close(limit time.Duration) {
	_ = t.cli.Close() // the last descriptor: the master now reads to the end
	select {
	case <-t.copied:
	case <-time.After(limit):
	}
	t.restore()
	signal.Stop(t.caught)
}

// follow passes on changes of the size, and sets raw mode again after we
// were suspended.
func (t *terminal) follow() {
	defer t.guard()
	for sig := range t.caught {
		if sig == syscall.SIGCONT {
			t.enter()
			select {
			case t.resume <- struct{}{}:
			default:
			}
		}
		_ = pty.InheritSize(os.Stdin, t.master) // on an error the old size stays
	}
}

// copyOut copies what the CLI writes, until the read fails with EIO: no process has the
// CLI's side open any more.
func (t *terminal) copyOut() {
	defer t.guard()
	defer close(t.copied)
	buf := make([]byte, 32<<10)
	var failed error
	for {
		n, err := t.master.Read(buf)
		if n > 0 && failed == nil {
			_, failed = os.Stdout.Write(buf[:n]) // without a reader the CLI goes on all the same
		}
		if err != nil {
			return
		}
	}
}

// foregroundPoll is how often we check whether we are in the foreground: a shell need not
// send SIGCONT to a job that runs.
const foregroundPoll = 250 * time.Millisecond

// copyIn copies what is typed, as long as we are in the foreground.
func (t *terminal) copyIn(hangUp func()) {
	defer t.guard()
	buf := make([]byte, 4<<10)
	for {
		if inBackground() {
			for inBackground() {
				select {
				case <-t.resume:
				case <-time.After(foregroundPoll):
				}
			}
			t.passTypedAhead()
			t.enter()
		}
		// To wait, unlike to read, does not stop a process in the background.
		if !awaitInput(os.Stdin, -1) || inBackground() {
			continue
		}
		n, err := os.Stdin.Read(buf)
		if n > 0 {
			if _, werr := t.master.Write(buf[:n]); werr != nil {
				return
			}
		}
		if err != nil {
			hangUp() // the kernel sends SIGHUP to the leader of our session alone
			return
		}
	}
}

// awaitInput waits until a read from f would not block, at most for the given time; -1
// is no limit. It also returns false when a signal interrupts it: we may be in the
// background by then.
func awaitInput(f *os.File, limit time.Duration) bool {
	var until *unix.Timeval
	if limit >= 0 {
		tv := unix.NsecToTimeval(int64(limit))
		until = &tv
	}
	var set unix.FdSet
	fd := int(f.Fd())
	set.Set(fd)
	n, err := unix.Select(fd+1, &set, nil, nil, until)
	return n > 0 || err != nil && err != unix.EINTR
}
