package main

import (
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"curfew/outcome"
)

// report is the file that --report names.
type report struct {
	path string
	perm fs.FileMode
	file *os.File // what is no regular file (a pipe, /dev/fd/3) is written to as it is
}

// reportLimit bounds the writing: a file system can hang.
const reportLimit = 2 * time.Second

// newReport checks, before anything runs, that the report can be written.
func newReport(path string) (*report, error) {
	fail := func(err error) (*report, error) {
		var p *fs.PathError
		if errors.As(err, &p) {
			err = p.Err
		}
		return nil, fmt.Errorf("cannot write the report %s: %w", path, err)
	}
	r := &report{path: path, perm: 0o666}
	switch fi, err := os.Stat(path); {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return fail(err)
	case fi.IsDir():
		return fail(errors.New("it is a directory"))
	case !fi.Mode().IsRegular():
		if r.file, err = os.OpenFile(path, os.O_WRONLY|nonblock, 0); err != nil {
			return fail(err)
		}
		return r, nil
	default:
		r.perm = fi.Mode().Perm()
		// The file that a link leads to is replaced, not the link.
		if r.path, err = filepath.EvalSymlinks(path); err != nil {
			return fail(err)
		}
	}
	f, err := r.temp()
	if err != nil {
		return fail(err)
	}
	_ = f.Close()
	if err := os.Remove(f.Name()); err != nil {
		return fail(err)
	}
	// What is there is about another run, and must not be read as about this one
	// should that be killed.
	if err := os.Remove(r.path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fail(err)
	}
	return r, nil
}

// temp creates a file beside the report's, with the permissions that one gets.
func (r *report) temp() (*os.File, error) {
	dir, base := filepath.Split(r.path)
	if base == "" {
		return nil, &fs.PathError{Op: "open", Path: r.path, Err: errors.New("it names no file")}
	}
	// A name of 255 bytes is allowed, and ours is longer.
	name := filepath.Join(dir, "."+base[:min(len(base), 64)]+"."+rand.Text()+".tmp")
	return os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, r.perm)
}

// write writes the outcome: a reader finds the whole report, or none.
func (r *report) write(o outcome.Outcome) error {
	data, err := json.MarshalIndent(o, "", "  ")
	if err != nil {
		return fmt.Errorf("report: %w", err)
	}
	data = append(data, '\n')
	done := make(chan error, 1)
	go func() { done <- r.put(data) }()
	select {
	case err := <-done:
		if err != nil {
			return fmt.Errorf("report not written: %w", err)
		}
		return nil
	case <-time.After(reportLimit):
		return fmt.Errorf("report not written: %s took longer than %v", r.path, reportLimit)
	}
}

func (r *report) put(data []byte) error {
	if r.file != nil {
		_, err := r.file.Write(data)
		return errors.Join(err, r.file.Close())
	}
	f, err := r.temp()
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	if err = errors.Join(err, f.Chmod(r.mode(f)), f.Close()); err == nil {
		err = os.Rename(f.Name(), r.path)
	}
	if err != nil {
		_ = os.Remove(f.Name()) // told already that there is no report
	}
	return err
}

// mode keeps the permissions of the file that is replaced, and leaves those of
// a new one to the umask.
func (r *report) mode(f *os.File) fs.FileMode {
	if _, err := os.Lstat(r.path); err == nil {
		return r.perm
	}
	if fi, err := f.Stat(); err == nil {
		return fi.Mode().Perm()
	}
	return r.perm
}

// stalled is how long a reader of stdout may hold up the end of an invocation
// that was stopped.
const stalled = time.Second

// printJSON writes the outcome to stdout. A slow reader is waited for; after a
// stop, which has a bound, not for long, and never beyond another signal.
func printJSON(o outcome.Outcome, signaled <-chan struct{}) error {
	data, err := json.Marshal(o)
	if err != nil {
		return fmt.Errorf("outcome: %w", err)
	}
	done := make(chan error, 1)
	go func() {
		_, err := os.Stdout.Write(append(data, '\n'))
		done <- err
	}()
	var limit <-chan time.Time
	// Also if the stop came before the start.
	if o.Cause != outcome.CauseExit && o.Cause != outcome.CauseStartFailed {
		limit = time.After(stalled)
	}
	select {
	case err := <-done:
		if err != nil {
			return fmt.Errorf("outcome not printed: %w", err)
		}
		return nil
	case <-limit:
		return fmt.Errorf("outcome not printed: nobody read it for %v", stalled)
	case <-signaled:
		return errors.New("outcome not printed: a signal came first")
	}
}
