package adapter

import (
	"fmt"
	"io"
	"os"
	"reflect"
	"time"

	"curfew/internal/supervisor"
	"curfew/outcome"
)

// wiring connects the CLI's descriptors with what the command has for them: files of
// the caller's, and pipes, of which we have the other end.
type wiring struct {
	// The CLI's descriptors, and which descriptors of ours they are. Both of these, and
	// the caller's files, are held until the request was sent.
	numbers, fds []int
	own          []int
	release      []func()

	feed    *feed       // copies a Reader to stdin; or nil
	in      *inPipe     // stdin is the caller's; or nil
	drains  []*drain    // copy the output
	streams [2]*drain   // which of them has stdout, and stderr; or nil
	out     [2]*outPipe // stdout, or stderr, is the caller's; or nil
	lent    []fileID    // files of the caller's, once for each time they were lent
}

// connect connects everything that c has. t is the traffic of its pipes, and count, if it
// is not nil, is called with the size of what was read of the output. After an error, as
// later, disconnect and closePipes are due.
func (w *wiring) connect(c *Command, t *traffic, count func(int64)) error {
	for i, f := range c.ExtraFiles {
		if f == nil {
			continue
		}
		if err := w.giveFile(c, 3+i, fmt.Sprintf("extra file %d", i), f); err != nil {
			return err
		}
	}
	if c.Terminal != nil {
		for n := range 3 {
			if err := w.giveFile(c, n, "the terminal", c.Terminal); err != nil {
				return err
			}
		}
		return nil
	}
	if err := w.connectStdin(c, t); err != nil {
		return err
	}
	for i := range w.streams {
		if err := w.connectOutput(c, i, t, count); err != nil {
			return err
		}
	}
	return nil
}

// connectStdin connects Stdin. Without one, the supervisor gives the CLI /dev/null.
func (w *wiring) connectStdin(c *Command, t *traffic) error {
	if c.Stdin == nil {
		return nil
	}
	if f, ok := c.Stdin.(*os.File); ok {
		return w.giveFile(c, 0, "Stdin", f)
	}
	pipe, fd, err := w.pipeTo()
	if err != nil {
		return err
	}
	w.give(0, fd)
	if piped(c.Stdin) {
		w.in = &inPipe{t: t, pipe: pipe}
	} else {
		w.feed = &feed{from: c.Stdin, pipe: pipe, done: make(chan struct{}), closed: make(chan struct{})}
	}
	return nil
}

// connectOutput connects Stdout (0) or Stderr (1).
func (w *wiring) connectOutput(c *Command, i int, t *traffic, count func(int64)) error {
	to := [2]io.Writer{c.Stdout, c.Stderr}
	if f, ok := to[i].(*os.File); ok {
		return w.giveFile(c, 1+i, [2]string{"Stdout", "Stderr"}[i], f)
	}
	if i == 1 && to[1] != nil && w.streams[0] != nil && sameWriter(to[0], to[1]) {
		w.streams[1] = w.streams[0]
		w.give(2, w.fds[len(w.fds)-1])
		return nil
	}
	pipe, fd, err := w.pipeFrom()
	if err != nil {
		return err
	}
	w.give(1+i, fd)
	if piped(to[i]) {
		w.out[i] = &outPipe{t: t, pipe: pipe, count: count}
		return nil
	}
	d := &drain{pipe: pipe, to: to[i], count: count, done: make(chan struct{})}
	if to[i] == nil {
		d.keep = &keeper{limit: c.keepOutput()}
	}
	w.streams[i] = d
	w.drains = append(w.drains, d)
	return nil
}

// keepOutput returns how many bytes of each stream are kept.
func (c *Command) keepOutput() int64 {
	if c.KeepOutput == 0 {
		return DefaultKeepOutput
	}
	return max(c.KeepOutput, 0)
}

// sameWriter reports whether a and b are one writer. Not every value can be
// compared: a comparable type can hold an interface with something in it that is not.
func sameWriter(a, b io.Writer) bool {
	return reflect.ValueOf(a).Comparable() && reflect.ValueOf(b).Comparable() && a == b
}

// give makes fd the CLI's descriptor number.
func (w *wiring) give(number, fd int) {
	w.numbers = append(w.numbers, number)
	w.fds = append(w.fds, fd)
}

// giveFile makes a file of the caller's the CLI's descriptor number.
func (w *wiring) giveFile(c *Command, number int, what string, f *os.File) error {
	fd, release := hold(f)
	if release == nil {
		return &outcome.StartError{Op: "pass " + what + " to", Path: c.Path, Err: os.ErrClosed}
	}
	w.release = append(w.release, release)
	w.give(number, fd)
	w.lend(f, fd)
	return nil
}

// pipeTo returns a pipe to the CLI: our end, which does not block, and the CLI's, which
// does.
func (w *wiring) pipeTo() (*os.File, int, error) { return w.newPipe(1, "curfew stdin") }

// pipeFrom returns a pipe from the CLI.
func (w *wiring) pipeFrom() (*os.File, int, error) { return w.newPipe(0, "curfew output") }

func (w *wiring) newPipe(ours int, name string) (*os.File, int, error) {
	p, err := pipe()
	if err != nil {
		return nil, -1, err
	}
	w.own = append(w.own, p[1-ours])
	return pollable(p[ours], name), p[1-ours], nil
}

// disconnect lets go of what was open for the CLI, which has it, or never gets it.
func (w *wiring) disconnect() {
	for _, fd := range w.own {
		closeFD(fd)
	}
	for _, release := range w.release {
		release()
	}
	w.own, w.release = nil, nil
}

// closePipes closes our ends of the pipes of a CLI that was not started.
func (w *wiring) closePipes() {
	for _, d := range w.drains {
		_ = d.pipe.Close()
	}
	w.closeStdin(nil)
	for _, p := range w.out {
		if p != nil {
			_ = p.Close()
		}
	}
}

// copy starts copying.
func (w *wiring) copy() {
	for _, d := range w.drains {
		go d.run()
	}
	if w.feed != nil {
		go w.feed.run()
	}
}

// hasStdin reports whether we have the other end of the CLI's stdin.
func (w *wiring) hasStdin() bool { return w.feed != nil || w.in != nil }

// closeStdin ends the CLI's input, if we have the other end.
func (w *wiring) closeStdin(why error) {
	if w.feed != nil {
		w.feed.close(why)
	}
	if w.in != nil {
		w.in.t.end()
		_ = w.in.Close() // a second one does no harm
	}
}

// finish ends all copying, the tree being gone: the output until the first time, and code
// of the caller's until the second. It enters in o what became of it, and returns what was
// not copied whole.
func (w *wiring) finish(o *outcome.Outcome, until, limit time.Time) (failed []*outcome.CopyError) {
	incomplete := func(stream string, err error) {
		if err != nil {
			failed = append(failed, &outcome.CopyError{Stream: stream, Err: err})
		}
	}
	for _, d := range w.drains {
		cut, abandoned := d.finish(until, limit)
		if cut {
			o.Output.DrainIncomplete = true
		}
		if abandoned {
			o.Output.Abandoned++
		}
	}
	if d := w.streams[0]; d != nil {
		o.Stdout, o.Output.Stdout = d.result()
		incomplete("stdout", d.failure())
	}
	if d := w.streams[1]; d != nil && d != w.streams[0] {
		o.Stderr, o.Output.Stderr = d.result()
		incomplete("stderr", d.failure())
	}
	if w.feed != nil {
		own, abandoned, problem := w.feed.finish(limit)
		if problem != nil {
			o.Output.StdinError = problem.Error()
		}
		if own {
			incomplete("stdin", problem)
		}
		if abandoned {
			o.Output.Abandoned++
		}
	}
	w.closeStdin(errStdinLeft)
	for _, p := range w.out {
		if p != nil {
			p.finish()
		}
	}
	return failed
}

// openPipe is our end of a pipe that a process which was left alive may write to.
type openPipe struct {
	fd   int         // a copy
	more func() bool // whether it has not come to its end, after finish
}

// copyPipes takes copies of our ends of the output pipes before finish closes them.
func (w *wiring) copyPipes() (pipes []openPipe) {
	add := func(f *os.File, more func() bool) {
		if fd := duplicate(f); fd >= 0 {
			pipes = append(pipes, openPipe{fd, more})
		}
	}
	for _, d := range w.drains {
		add(d.pipe, d.unfinished)
	}
	for _, p := range w.out {
		if p != nil {
			ended := p.atEnd() // finish ends it in any case
			add(p.pipe, func() bool { return !ended })
		}
	}
	return pipes
}

// handOver gives the supervisor those pipes that are still open on the CLI's side. It
// drains them as long as they are: what was left alive would get SIGPIPE otherwise.
func handOver(helper *supervisor.Client, pipes []openPipe) {
	var fds []int
	for _, p := range pipes {
		defer closeFD(p.fd)
		if p.more() {
			fds = append(fds, p.fd)
		}
	}
	if len(fds) > 0 {
		_ = helper.Drain(fds) // a lost supervisor leaves nothing alive that could write
	}
}
