// Package scratch makes private temporary directories, and removes them with
// whatever a CLI has left in them: without following a link out, without
// entering a mount, within a time, and with a fixed number of descriptors and a
// fixed amount of memory, however deep and wide the tree is.
package scratch

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	pathpkg "path"
	"strings"
	"time"
)

// prefix begins the name of each directory that Make makes.
const prefix = "curfew-"

// Dir is a private temporary directory. Its identity is the device, the inode and the
// time of birth: another directory can get the name, and later also the inode.
type Dir struct {
	Path     string // absolute
	Dev, Ino uint64
	Birth    int64 // nanoseconds since 1970; 0 where the file system does not know it
}

// Name returns the path of a directory that is to be made below parent, so that
// it can be recorded before. An empty parent stands for os.TempDir(). id is part of
// the name, and must be of letters and digits that nobody can guess.
func Name(parent, id string) (string, error) {
	if parent == "" {
		parent = os.TempDir()
	}
	if !pathpkg.IsAbs(parent) {
		wd, err := os.Getwd()
		if err != nil {
			return "", fmt.Errorf("scratch: name a temporary directory: %w", err)
		}
		parent = pathpkg.Join(wd, parent)
	}
	return pathpkg.Join(parent, prefix+id), nil
}

// Make makes the directory that Name has named, empty and open to this user only,
// whatever the umask. The caller ends it with Remove.
func Make(path string) (Dir, error) {
	d, err := makeDir(path)
	if err != nil {
		return Dir{}, fmt.Errorf("scratch: make a temporary directory: %w", err)
	}
	return d, nil
}

// Check returns an error for what Make cannot have returned. It looks at the values
// only: they may come from another process.
func (d Dir) Check() error {
	if d.Ino == 0 {
		return fmt.Errorf("scratch: the directory %q has no identity", d.Path)
	}
	return checkPath(d.Path)
}

// checkPath returns an error for what Name cannot have returned.
func checkPath(path string) error {
	wrong := ""
	switch base := pathpkg.Base(path); {
	case strings.Contains(path, "\x00"):
		wrong = "has a NUL in its path"
	case !pathpkg.IsAbs(path):
		wrong = "is not absolute"
	case pathpkg.Clean(path) != path:
		wrong = "is not a clean path"
	case !strings.HasPrefix(base, prefix) || base == prefix:
		wrong = "has a name that does not begin with " + prefix
	default:
		return nil
	}
	return fmt.Errorf("scratch: the directory %q %s", path, wrong)
}

// Remove removes the directory and everything in it. It returns nil when it is
// gone, also if it was before, and leaves alone what has been given its name
// since: that is an error.
//
// An entry that cannot be removed does not stop the others. The error names the
// first of them by its path in the directory, says how many there are, and wraps
// what the system said. A directory more than a few levels down may have been
// moved to the top by then: the path is where the entry is now.
//
// At the given time Remove gives up, between two system calls, with an error
// that wraps os.ErrDeadlineExceeded. A system call that hangs, it cannot end.
// Until it returns it has up to 16 descriptors open. Nobody else may remove the
// same directory meanwhile; whoever changes it otherwise only delays the end.
func (d Dir) Remove(until time.Time) error {
	if err := d.Check(); err != nil {
		return err
	}
	return removal(d.Path, remove(d, until))
}

// RemoveNamed does the same with the directory of this user that has the name now, if
// nothing is mounted on it. It is for a record that was written before Make: only the
// name is known, which nobody can guess.
func RemoveNamed(path string, until time.Time) error {
	if err := checkPath(path); err != nil {
		return err
	}
	d, err := find(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err == nil {
		err = remove(d, until)
	}
	return removal(path, err)
}

func removal(path string, err error) error {
	if err != nil {
		return fmt.Errorf("scratch: remove %q: %w", path, err)
	}
	return nil
}

// errOther says that the name has been given to something else.
var errOther = errors.New("that is not the directory that was made")
