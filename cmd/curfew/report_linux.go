package main

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// madeUp reports whether the names in a directory are the system's, not a disk's.
func madeUp(dir string) bool {
	var st unix.Statfs_t
	return unix.Statfs(dir, &st) == nil && st.Type == unix.PROC_SUPER_MAGIC
}

// ownDescriptor returns the number of the descriptor of this process that a path
// without links stands for.
func ownDescriptor(path string) (int, bool) {
	self, err := filepath.EvalSymlinks("/proc/self")
	if err != nil {
		return 0, false
	}
	rest, ok := strings.CutPrefix(path, self+"/")
	if parts := strings.Split(rest, "/"); len(parts) == 4 && parts[0] == "task" {
		rest = strings.Join(parts[2:], "/") // threads share them
	}
	number, isFD := strings.CutPrefix(rest, "fd/")
	fd, err := strconv.Atoi(number)
	return fd, ok && isFD && err == nil
}

// unnamed creates a file without a name, which no kill leaves behind, with space for
// a report. It returns nil where the file system has no such files, and an error
// if the disk is full.
func unnamed(dir string, perm fs.FileMode, space int64) (*os.File, error) {
	f, err := os.OpenFile(dir, os.O_WRONLY|unix.O_TMPFILE, perm)
	if err != nil {
		return nil, nil
	}
	err = unix.Fallocate(int(f.Fd()), unix.FALLOC_FL_KEEP_SIZE, 0, space)
	if errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) {
		_ = f.Close()
		return nil, err
	}
	return f, nil
}

// giveName gives a file from unnamed its name, and frees the space that the report does not
// need.
func giveName(f *os.File, name string) error {
	fi, err := f.Stat()
	if err == nil {
		err = f.Truncate(fi.Size())
	}
	if err != nil {
		return err
	}
	return unix.Linkat(unix.AT_FDCWD, "/proc/self/fd/"+strconv.Itoa(int(f.Fd())), unix.AT_FDCWD, name, unix.AT_SYMLINK_FOLLOW)
}
