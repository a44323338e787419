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

// calls are what can hang in the kernel because of a file system. Each runs on a goroutine
// of its own, and the helper's loop waits for none longer than its limit. The zero value is
// empty. All methods are for the loop.
type calls struct {
	opened bool
	fd     int // readable when a call has returned; valid if opened
	wakeFD int // what a call writes to for that
	all    []*call
}

type call struct {
	limit  time.Time
	result chan error
	done   func(error) // nil once it was called
}

// errLate means that a call has not returned within its limit. It goes on.
var errLate = errors.New("not done in time")

// callPatience is how long a helper that has nothing else to do stays for its calls.
const callPatience = time.Minute

// run executes do on its own goroutine; finish then calls done exactly once, with do's
// error or, at the limit, with errLate.
func (c *calls) run(limit time.Duration, do func() error, done func(error)) {
	if !c.opened {
		fd, wakeFD, err := notifier()
		if err != nil {
			done(err)
			return
		}
		c.fd, c.wakeFD, c.opened = fd, wakeFD, true
	}
	wakeFD, one := c.wakeFD, &call{limit: time.Now().Add(limit), result: make(chan error, 1), done: done}
	c.all = append(c.all, one)
	go func() {
		one.result <- do()
		_, _ = unix.Write(wakeFD, []byte{1, 0, 0, 0, 0, 0, 0, 0}) // if it is full, it is readable
	}()
}

// finish calls done of each call that has returned or is late.
func (c *calls) finish() {
	if len(c.all) == 0 {
		return
	}
	var count [8]byte
	_, _ = unix.Read(c.fd, count[:]) // before the results are read, so that none is missed
	now := time.Now()
	for _, one := range slices.Clone(c.all) {
		var err error
		select {
		case err = <-one.result:
			c.all = slices.DeleteFunc(c.all, func(other *call) bool { return other == one })
		default:
			if now.Before(one.limit) {
				continue
			}
			err = errLate
		}
		if done := one.done; done != nil {
			one.done = nil
			done(err)
		}
	}
}

// pollFD is the descriptor to wait for; -1, which poll skips, if there is no call.
func (c *calls) pollFD() int {
	if len(c.all) == 0 {
		return -1
	}
	return c.fd
}

// next is when finish is due, if no call returns before; zero if never.
func (c *calls) next() (at time.Time) {
	for _, one := range c.all {
		if one.done != nil {
			at = earlier(at, one.limit)
		}
	}
	return at
}

// pending reports whether there is a call to stay for.
func (c *calls) pending() bool {
	now := time.Now()
	return slices.ContainsFunc(c.all, func(one *call) bool { return now.Before(one.limit.Add(callPatience)) })
}

// removeTempDir removes a temporary directory. It goes on for longer than the helper's
// loop waits for it.
func removeTempDir(d *wire.TempDir) error {
	return d.Dir().Remove(time.Now().Add(callPatience))
}

// keptTempDir is the report of a directory that still exists.
func keptTempDir(d *wire.TempDir, why error) outcome.TempDir {
	text := why.Error()
	if why == errLate {
		text = fmt.Sprintf("not removed within %v; the removal goes on", wire.RemoveLimit)
	}
	return outcome.TempDir{Path: string(d.Path), Error: text}
}

// errInUse is why a directory is not removed yet.
var errInUse = errors.New("not removed while processes that may use it are there")

// writeEnd writes the end of a record, unless it has one.
func writeEnd(dir, writer, id string, report *wire.Done) error {
	b, err := json.Marshal(report)
	if err != nil {
		return err
	}
	err = journal.WriteEnd(dir, id, journal.End{Writer: writer, At: time.Now(), Report: b})
	if errors.Is(err, fs.ErrNotExist) {
		return nil // the caller has ended the record itself
	}
	return err
}

// holdState registers this helper with the caller's journal, if the caller has one, until
// release is called or the helper ends. It returns the journal's directory.
func holdState() (dir string, release func(), err error) {
	if dir = os.Getenv(wire.StateVar); dir == "" {
		return "", func() {}, nil
	}
	release, err = journal.Hold(dir, os.Getenv(wire.PeerVar))
	return dir, release, err
}
