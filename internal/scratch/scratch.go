// Package scratch makes private temporary directories, and removes them with
// everything that a CLI put into them. The removal follows no link, enters no mount, ends in
// time, and needs a fixed number of descriptors and a fixed amount of memory, however
// deep and wide the tree is.
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

// Dir is a private temporary directory. The device, the inode and the time of birth identify
// it: another directory can get its name, and later also its inode.
type Dir struct {
	Path     string // absolute
	Dev, Ino uint64
	Birth    int64 // nanoseconds since 1970; 0 where the file system does not know it
}

// Name returns the path of a directory that Make is to make below parent; the caller can
// record it first. An empty parent stands for os.TempDir(). id becomes a part of the
// name. It must consist of letters and digits, and be hard to guess.
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

// Make makes the directory path, which is what Name returned: empty, and accessible to this
// user only, whatever the umask. The caller removes it with Remove.
func Make(path string) (Dir, error) {
	d, err := makeDir(path)
	if err != nil {
		return Dir{}, fmt.Errorf("scratch: make a temporary directory: %w", err)
	}
	return d, nil
}

// Check returns an error for a Dir that Make cannot have returned. It is for values that
// come from another process, and makes no system call.
func (d Dir) Check() error {
	if d.Ino == 0 {
		return fmt.Errorf("scratch: the directory %q has no identity", d.Path)
	}
	return checkPath(d.Path)
}

// checkPath returns an error for a path that Name cannot have returned.
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

// Remove removes the directory and everything in it. It returns nil if the directory does
// not exist any more. If something else has its name, Remove does not touch that, and
// returns an error.
//
// If an entry cannot be removed, Remove goes on with the others. The error names the
// first such entry by its path in the directory, says how many there are, and wraps
// the error of the system call. Remove may have moved a directory from more than a few
// levels down to the top: the path says where the entry is now.
//
// At the given time Remove gives up, between two system calls, with an error
// that wraps os.ErrDeadlineExceeded. It cannot end a system call that hangs.
// Until it returns it has up to 16 descriptors open. No other call may remove the
// same directory at the same time; other changes only delay the end.
func (d Dir) Remove(until time.Time) error {
	if err := d.Check(); err != nil {
		return err
	}
	return removal(d.Path, remove(d, until))
}

// RemoveNamed does the same with the directory of this user that has the name path now, if
// nothing is mounted on it. It is for a record that was written before Make, when only the
// name was known. That name is hard to guess.
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

// errOther means that something else has the name now.
var errOther = errors.New("that is not the directory that was made")
