package main

import (
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"curfew/outcome"
)

// report is the target of --report: a file that is replaced, or a descriptor, a pipe or a
// device, which is written to as it is.
type report struct {
	name     string      // as the user gave it
	path     string      // of the file, without links; "" if the target is out
	perm     fs.FileMode // of the file
	replaces bool        // a file exists, and has perm
	out      *os.File    // without a path: the target; else a file without a name, or nil
}

// reportLimit bounds the writing: a file system can hang.
const reportLimit = 2 * time.Second

// reportSpace is reserved for a report, where the file system can do that, so that the
// report can be written although the CLI fills the disk. Larger reports are rare.
const reportSpace = 64 << 10

// newReport checks, before anything runs, that the report can be written. It opens the files
// that the writing needs, and changes no file that exists.
func newReport(name string) (*report, error) {
	r := &report{name: name, perm: 0o666}
	if err := r.prepare(); err != nil {
		var p *fs.PathError
		if errors.As(err, &p) {
			err = p.Err
		}
		return nil, fmt.Errorf("cannot write the report %s: %w", name, err)
	}
	return r, nil
}

func (r *report) prepare() error {
	path, made, err := followLinks(r.name)
	if err != nil {
		return err
	}
	if fd, ok := ownDescriptor(path); ok {
		r.out, err = duplicate(fd)
		return err
	}
	fi, err := os.Lstat(path)
	switch {
	case made:
		// A link there stands for an open file. Another file can have the name that the
		// link shows, and must not be replaced.
		r.out, err = os.OpenFile(path, os.O_WRONLY|os.O_APPEND|openFlags, 0)
		return err
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return err
	case fi.IsDir():
		return errors.New("it is a directory")
	case fi.Mode()&fs.ModeType == fs.ModeDevice:
		return errors.New("it is a block device")
	case !fi.Mode().IsRegular():
		r.out, err = os.OpenFile(path, os.O_WRONLY|openFlags, 0)
		return err
	default:
		for _, f := range append([]*os.File{os.Stdin, os.Stdout, os.Stderr}, inherited...) {
			if open, err := f.Stat(); err == nil && os.SameFile(open, fi) {
				return fmt.Errorf("it is in use as descriptor %d, which is named /dev/fd/%[1]d", f.Fd())
			}
		}
		r.perm, r.replaces = fi.Mode().Perm(), true
	}
	r.path = path
	f, err := r.temp()
	if err != nil {
		return err
	}
	if err := errors.Join(f.Close(), os.Remove(f.Name())); err != nil {
		return err
	}
	r.out, err = unnamed(filepath.Dir(path), r.perm, reportSpace)
	return err
}

// followLinks resolves the links in name. The file that it leads to need not exist. made
// reports whether the system makes the name up (/proc): such links are
// not followed, because they lead to open files and not to names.
func followLinks(name string) (path string, made bool, err error) {
	const most = 40 // as the kernel
	for range most {
		dir, base := filepath.Split(name)
		if base == "" || base == "." || base == ".." {
			return "", false, errors.New("it names no file")
		}
		if dir, err = filepath.EvalSymlinks(filepath.Clean(dir)); err != nil {
			return "", false, err
		}
		path = filepath.Join(dir, base)
		if madeUp(dir) {
			return path, true, nil
		}
		link, err := os.Readlink(path)
		if err != nil {
			return path, false, nil // not a link, or no such file
		}
		if name = link; !filepath.IsAbs(link) {
			name = dir + string(filepath.Separator) + link
		}
	}
	return "", false, &fs.PathError{Op: "open", Path: name, Err: syscall.ELOOP}
}

// removeOld removes the file that is to be replaced. It describes another run, and must
// not be taken for the report of this one, should curfew be killed.
func (r *report) removeOld() error {
	if r.path == "" {
		return nil
	}
	if err := os.Remove(r.path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("cannot replace the report: %w", err)
	}
	return nil
}

// temp creates a file in the directory of the report.
func (r *report) temp() (*os.File, error) {
	return os.OpenFile(r.tempName(), os.O_WRONLY|os.O_CREATE|os.O_EXCL, r.perm)
}

func (r *report) tempName() string {
	dir, base := filepath.Split(r.path)
	// A name can have 255 bytes, and this one is longer than base.
	return filepath.Join(dir, "."+base[:min(len(base), 64)]+"."+rand.Text()+".tmp")
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
		return fmt.Errorf("report not written: %s took longer than %v", r.name, reportLimit)
	}
}

func (r *report) put(data []byte) error {
	if r.path == "" {
		_, err := r.out.Write(data)
		return errors.Join(err, r.out.Close())
	}
	if r.out != nil {
		name := r.tempName()
		if r.fill(r.out, data) == nil && giveName(r.out, name) == nil && r.move(name) == nil {
			return nil
		}
		// The directory can have been replaced: try once more, by name.
	}
	f, err := r.temp()
	if err != nil {
		return err
	}
	if err := errors.Join(r.fill(f, data), f.Close()); err != nil {
		_ = os.Remove(f.Name()) // the other error is reported
		return err
	}
	return r.move(f.Name())
}

// fill writes the report, and keeps the permissions of the file that it replaces.
func (r *report) fill(f *os.File, data []byte) error {
	_, err := f.Write(data)
	if r.replaces {
		err = errors.Join(err, f.Chmod(r.perm))
	}
	return err
}

// move gives the finished file the report's name.
func (r *report) move(name string) error {
	err := os.Rename(name, r.path)
	if err != nil {
		_ = os.Remove(name)
	}
	return err
}

// stalled is how long a slow reader of stdout can delay the end of an invocation
// that was stopped.
const stalled = time.Second

// printJSON writes the outcome to stdout. It waits for a slow reader; after a stop, which has
// a bound, only as long as stalled, and not beyond another signal.
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
		return fmt.Errorf("outcome not printed: no reader for %v", stalled)
	case <-signaled:
		return errors.New("outcome not printed: a signal came first")
	}
}
