package adapter

import (
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"

	"curfew/internal/wire"
	"curfew/outcome"
)

// maxString is the kernel's limit for one argument or variable, with the NUL at
// its end: 32 pages (execve(2), MAX_ARG_STRLEN).
const maxString = 32 * 4096

// checkSizes returns an error that names the argument or variable that is too long for the
// kernel, whose own error would not.
func checkSizes(path string, args, env []string) error {
	for i, s := range args {
		if len(s) >= maxString {
			return &outcome.StartError{Op: outcome.OpExec, Path: path,
				Err: fmt.Errorf("argument %d has %d bytes: %w", i, len(s), syscall.E2BIG)}
		}
	}
	for _, s := range env {
		if len(s) >= maxString {
			name, _, _ := strings.Cut(s, "=")
			return &outcome.StartError{Op: outcome.OpExec, Path: path,
				Err: fmt.Errorf("environment variable %s has %d bytes: %w", name, len(s), syscall.E2BIG)}
		}
	}
	return nil
}

// environ returns the command's environment with the mark of invocation id.
func (c *Command) environ(id string) []string {
	env := c.Env
	if env == nil {
		env = os.Environ()
		if c.Dir != "" {
			// A program that trusts PWD would take the caller's directory for its own.
			if dir, err := filepath.Abs(c.Dir); err == nil {
				env = append(env, "PWD="+dir)
			}
		}
	}
	return append(lastOfEach(env), wire.Mark(id))
}

// lastOfEach drops all values of a name but the last, and empty entries, and keeps the
// order. An entry without '=' has no name.
func lastOfEach(env []string) []string {
	last := make(map[string]int, len(env))
	for i, s := range env {
		if name, _, ok := strings.Cut(s, "="); ok {
			last[name] = i
		}
	}
	kept := make([]string, 0, len(env)+1)
	for i, s := range env {
		if name, _, ok := strings.Cut(s, "="); ok && last[name] == i || !ok && s != "" {
			kept = append(kept, s)
		}
	}
	return kept
}

// standardPath is where execvp(3) looks when there is no PATH at all.
const standardPath = "/bin:/usr/bin"

// lookUp finds the executable in the PATH of env. The result is relative to
// dir, or absolute.
func lookUp(name, dir string, env []string) (string, error) {
	if strings.Contains(name, "/") {
		return name, nil
	}
	path := standardPath
	for _, s := range env {
		if v, ok := strings.CutPrefix(s, "PATH="); ok {
			path = v
		}
	}
	failed := &outcome.StartError{Op: outcome.OpLookUp, Path: name, Err: exec.ErrNotFound}
	if name == "." || name == ".." {
		// Joined to an entry of PATH they would name that directory or its parent.
		failed.Err = syscall.EACCES
		return "", failed
	}
	for _, d := range filepath.SplitList(path) {
		file := filepath.Join(d, name)
		there := file
		if !filepath.IsAbs(there) {
			file = "./" + file
			there = filepath.Join(dir, file)
		}
		found, err := executable(there)
		switch {
		case !found: // also in a directory that may not be entered
		case err == nil && there != file:
			// A program that happens to be in the working directory must not be
			// executed by accident.
			failed.Err = fmt.Errorf("found as %s, relative to the working directory, which is not run unless it is named with a path: %w", file, exec.ErrDot)
			return "", failed
		case err == nil:
			return file, nil
		default:
			failed.Err = err
		}
	}
	if failed.Err == exec.ErrNotFound {
		failed.Err = fmt.Errorf("%w: %w", exec.ErrNotFound, fs.ErrNotExist)
	}
	return "", failed
}

// executable reports whether there is a file, and why it cannot be executed.
func executable(file string) (found bool, err error) {
	fi, err := os.Stat(file)
	switch {
	case err != nil:
		return false, err
	case !fi.Mode().IsRegular():
		return true, syscall.EACCES // as execve says of a directory, a FIFO or a device
	}
	return true, mayExecute(file)
}

// startError returns the error for errno, which the kernel returned for the start of file.
func (c *Command) startError(op string, errno syscall.Errno, file string) *outcome.StartError {
	e := &outcome.StartError{Op: op, Path: c.Path, Err: errno}
	if op == outcome.OpChdir {
		e.Path = c.Dir
		return e
	}
	if !filepath.IsAbs(file) {
		file = filepath.Join(c.Dir, file)
	}
	if _, err := executable(file); err == nil {
		e.Interpreter = interpreterOf(file)
	}
	return e
}

// interpreterOf returns the interpreter that a script's first line names.
func interpreterOf(file string) string {
	// An open of a regular file can block too, if it is under a lease.
	f, err := os.OpenFile(file, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return ""
	}
	defer f.Close()
	buf := make([]byte, 256) // as many as the kernel reads
	n, _ := io.ReadFull(f, buf)
	line, _, _ := strings.Cut(string(buf[:n]), "\n")
	line, ok := strings.CutPrefix(line, "#!")
	if !ok {
		return ""
	}
	line = strings.TrimLeft(line, " \t")
	if i := strings.IndexAny(line, " \t"); i >= 0 {
		line = line[:i]
	}
	return line
}
