//go:build linux || darwin

package supervisor

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"curfew/internal/journal"
	"curfew/internal/wire"
	"curfew/outcome"
)

// errands are what can hang in the kernel on a file system's account: each is
// done by a goroutine of its own, and a helper's loop waits for none longer than
// its limit. The zero value has none. All methods are for the loop.
type errands struct {
	open bool
	fd   int // readable when one is done; valid if open
	tell int // what to write to for that
	all  []*errand
}

type errand struct {
	limit time.Time
	done  chan error
	then  func(error) // nil: it was called
}

// errLate means that an errand is not done within its limit. It goes on.
var errLate = errors.New("not done in time")

// errandPatience is how long a helper that has nothing else to do stays for its
// errands.
const errandPatience = time.Minute

// run has do done, and then called by step, once: with its error, or with errLate
// when the limit is over.
func (e *errands) run(limit time.Duration, do func() error, then func(error)) {
	if !e.open {
		fd, tell, err := notifier()
		if err != nil {
			then(err)
			return
		}
		e.fd, e.tell, e.open = fd, tell, true
	}
	fd, one := e.tell, &errand{limit: time.Now().Add(limit), done: make(chan error, 1), then: then}
	e.all = append(e.all, one)
	go func() {
		one.done <- do()
		_, _ = unix.Write(fd, []byte{1, 0, 0, 0, 0, 0, 0, 0}) // full is as good: it is readable
	}()
}

// step calls what is to be called.
func (e *errands) step() {
	if len(e.all) == 0 {
		return
	}
	var count [8]byte
	_, _ = unix.Read(e.fd, count[:]) // before looking, so that nothing is missed
	now := time.Now()
	for _, one := range slices.Clone(e.all) {
		var err error
		select {
		case err = <-one.done:
			e.all = slices.DeleteFunc(e.all, func(other *errand) bool { return other == one })
		default:
			if now.Before(one.limit) {
				continue
			}
			err = errLate
		}
		if then := one.then; then != nil {
			one.then = nil
			then(err)
		}
	}
}

// pollFD is what to wait for; its descriptor is -1, which poll passes over, if
// there is nothing.
func (e *errands) pollFD() unix.PollFd {
	if len(e.all) == 0 {
		return unix.PollFd{Fd: -1}
	}
	return unix.PollFd{Fd: int32(e.fd), Events: unix.POLLIN}
}

// next is when step is due, if nothing is done before; zero if it is not.
func (e *errands) next() (at time.Time) {
	for _, one := range e.all {
		if one.then != nil && (at.IsZero() || one.limit.Before(at)) {
			at = one.limit
		}
	}
	return at
}

// left reports whether there is an errand to stay for.
func (e *errands) left() bool {
	now := time.Now()
	return slices.ContainsFunc(e.all, func(one *errand) bool { return now.Before(one.limit.Add(errandPatience)) })
}

// removeTempDir removes a temporary directory. It goes on for longer than the helper's
// loop waits for it.
func removeTempDir(d *wire.TempDir) error {
	return d.Dir().Remove(time.Now().Add(errandPatience))
}

// keptTempDir is the report of a directory that is there still.
func keptTempDir(d *wire.TempDir, why error) outcome.TempDir {
	text := why.Error()
	if why == errLate {
		text = fmt.Sprintf("not removed within %v; the removal goes on", wire.RemoveLimit)
	}
	return outcome.TempDir{Path: string(d.Path), Error: text}
}

// errInUse is why a directory is not removed yet.
var errInUse = errors.New("not removed while processes that may use it are there")

// writeEnd writes the end of a record, unless somebody has.
func writeEnd(dir, writer, id string, report *wire.Done) error {
	b, err := json.Marshal(report)
	if err != nil {
		return err
	}
	err = journal.WriteEnd(dir, id, journal.End{Writer: writer, At: time.Now(), Report: b})
	if errors.Is(err, fs.ErrNotExist) {
		return nil // the caller has seen to it
	}
	return err
}

// holdState has the journal know of us, if the caller has one, as long as we are
// there, or until release is called. It returns the journal's directory.
func holdState() (dir string, release func(), err error) {
	if dir = os.Getenv(wire.StateVar); dir == "" {
		return "", func() {}, nil
	}
	release, err = journal.Hold(dir, os.Getenv(wire.PeerVar))
	return dir, release, err
}
