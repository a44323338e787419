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

// terminal is a pty for the CLI, whose session cannot be ours, and the copying
// between it and the terminal that curfew runs in. That one is in raw mode
// meanwhile: what is typed, Ctrl-C too, reaches the CLI through its own
// terminal, and once.
type terminal struct {
	cli    *os.File // the CLI's side
	master *os.File
	voice  *voice
	copied chan struct{} // closed when all that the CLI wrote is copied

	mu     sync.Mutex // guards what follows
	saved  *unix.Termios
	closed bool
	caught chan os.Signal
	resume chan struct{} // gets something when we may be in the foreground again
}

// onTerminal reports whether the CLI is to have a terminal: all that it would
// be given is one and the same. If the output goes to a pipe, raw mode would
// garble what the next program in the pipeline writes.
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

// inBackground reports whether our terminal's job control has put us in the
// background, where reading from it or changing it would stop us.
func inBackground() bool {
	pgrp, err := unix.IoctlGetInt(int(os.Stdin.Fd()), unix.TIOCGPGRP)
	return err == nil && pgrp != unix.Getpgrp()
}

// openTerminal makes the terminal and begins to copy. hangUp is called when ours
// is gone.
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
		// In the background these are a shell's that is editing a line.
		if own, err := unix.IoctlGetTermios(int(os.Stdin.Fd()), getTermios); err == nil {
			_ = unix.IoctlSetTermios(int(cli.Fd()), setTermios, own) // else it has what every terminal begins with
		}
	}
	_ = pty.InheritSize(os.Stdin, master) // else it has no size, which programs know
	signal.Notify(t.caught, syscall.SIGWINCH, syscall.SIGCONT)
	t.passTypedAhead()
	t.enter()
	go t.follow()
	go t.copyOut()
	go t.copyIn(hangUp)
	return t, nil
}

// passTypedAhead passes on the lines that were typed before curfew ran. In raw
// mode an end of input among them would be read as a NUL byte.
func (t *terminal) passTypedAhead() {
	own, err := unix.IoctlGetTermios(int(os.Stdin.Fd()), getTermios)
	if err != nil || own.Lflag&unix.ICANON == 0 {
		return
	}
	buf := make([]byte, 4<<10) // the longest line there is
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

// enter puts our terminal in raw mode, if it is ours now.
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

// restore leaves our terminal as it was found. It can be called at any time,
// and more than once.
func (t *terminal) restore() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.closed = true
	// In the background it is somebody else's.
	if t.saved != nil && !inBackground() {
		// Not after the output has gone out: that can take for ever.
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

// close ends the copying, for which it waits as long as limit, and restores the
// terminal. The tree is gone by then.
func (t *terminal) close(limit time.Duration) {
	_ = t.cli.Close() // the last one: the master reads to the end now
	select {
	case <-t.copied:
	case <-time.After(limit):
	}
	t.restore()
	signal.Stop(t.caught)
}

// follow passes on changes of the size, and takes the terminal again after we
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
		_ = pty.InheritSize(os.Stdin, t.master) // the old size stays
	}
}

// copyOut ends with EIO, when no process has the CLI's side open.
func (t *terminal) copyOut() {
	defer t.guard()
	defer close(t.copied)
	buf := make([]byte, 32<<10)
	var gone error
	for {
		n, err := t.master.Read(buf)
		if n > 0 && gone == nil {
			_, gone = os.Stdout.Write(buf[:n]) // if there is no reader the CLI goes on all the same
		}
		if err != nil {
			return
		}
	}
}

// foregroundPoll is how often we look whether we are in the foreground where no
// SIGCONT told: a shell need not send one to a job that runs.
const foregroundPoll = 250 * time.Millisecond

// copyIn copies what is typed. In the background it would be the shell's.
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
		// Waiting, unlike reading, does not stop a process in the background.
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
			hangUp() // the kernel tells a session's leader, which we need not be
			return
		}
	}
}

// awaitInput waits until a read from f would not block, for the given time; -1
// is without limit.
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
