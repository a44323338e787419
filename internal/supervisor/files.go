//go:build linux || darwin

package supervisor

import (
	"sync"

	"golang.org/x/sys/unix"

	"curfew/internal/wire"
	"curfew/proctree"
)

// leaderFiles are what a leader is started with, and the descriptors among it, which belong
// to us until the start is done.
type leaderFiles struct {
	spec   proctree.Spec
	placed []int // the numbers from 3 on at which the files are in our own table
	null   int   // stands for those of 0, 1 and 2 that the request does not name
	noFile int   // our limit of open files when the supervisor began
}

func newLeaderFiles(m *wire.Run, q *wire.Request, null, noFile int) leaderFiles {
	f := leaderFiles{null: null, noFile: noFile, spec: proctree.Spec{
		Path: q.Path, Argv: q.Args, Env: q.Env, Dir: q.Dir,
		Terminal: m.Terminal, IgnoreHangup: m.IgnoreHangup, IgnoreInterrupt: m.IgnoreInterrupt,
		// What is left alive would keep the cgroup from being removed.
		NoCgroup: m.NoCgroup || m.AfterExit == wire.AfterExitLeave,
		Mark:     wire.Mark(m.ID), MarkPrefix: wire.MarkPrefix,
	}}
	top := 3
	for _, n := range m.Numbers {
		top = max(top, n+1)
	}
	files := make([]int, top)
	for i := range files {
		files[i] = -1
		if i < 3 {
			files[i] = null
		}
	}
	for i, n := range m.Numbers {
		files[n] = q.Files[i]
		if n < 3 {
			f.spec.Given = appendName(f.spec.Given, q.Files[i])
		}
	}
	f.spec.Files = f.place(files)
	return f
}

// place puts the leader's descriptors from 3 on at their numbers in our own table, where
// the fork finds them, as far as those are free. syscall.ForkExec moves what it is given
// above all of them first, which a low limit of open files (noFile) has no room for. A
// number at the limit or above cannot be made at all: it is inherited from the caller,
// through the guard (see eachInherited). place returns what is left for the fork to do.
func (f *leaderFiles) place(files []int) []int {
	for n := len(files) - 1; n > 2; n-- {
		fd := files[n]
		if fd < 0 || fd != n && !moveTo(fd, n, f.noFile) {
			continue
		}
		_, _ = unix.FcntlInt(uintptr(n), unix.F_SETFD, 0)
		files[n] = n
		f.placed = append(f.placed, n)
	}
	for n := len(files) - 1; n > 2 && (files[n] == n || files[n] < 0); n-- {
		files = files[:n]
	}
	return files
}

// moveTo moves a descriptor to a number, if that is free or, from noFile on, has the same
// file already.
func moveTo(fd, n, noFile int) bool {
	if n < noFile {
		got, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, n)
		if err == nil && got != n {
			unix.Close(got)
		}
		if err != nil || got != n {
			return false
		}
	} else if !sameFile(fd, n) {
		return false
	}
	unix.Close(fd)
	return true
}

func sameFile(a, b int) bool {
	var one, other unix.Stat_t
	return unix.Fstat(a, &one) == nil && unix.Fstat(b, &other) == nil && one.Dev == other.Dev && one.Ino == other.Ino
}

// appendName adds the name of an open file, unless it is /dev/null, which every daemon has
// open.
func appendName(list []string, fd int) []string {
	var st unix.Stat_t
	if unix.Fstat(fd, &st) != nil || st.Mode&unix.S_IFMT == unix.S_IFCHR && uint64(st.Rdev) == nullDevice() {
		return list
	}
	if name := proctree.FileName(fd); name != "" {
		list = append(list, name)
	}
	return list
}

// nullDevice is the number of /dev/null.
var nullDevice = sync.OnceValue(func() uint64 {
	var st unix.Stat_t
	if unix.Stat("/dev/null", &st) != nil || st.Mode&unix.S_IFMT != unix.S_IFCHR {
		return 0
	}
	return uint64(st.Rdev)
})

// close closes what came with the request: the leader has its own descriptors, or the start
// failed. A second close does nothing.
func (f *leaderFiles) close() {
	if f.spec.Dir >= 0 {
		unix.Close(f.spec.Dir)
		f.spec.Dir = -1
	}
	for i, fd := range f.spec.Files {
		if fd >= 0 && fd != f.null && (fd != i || i < 3) {
			unix.Close(fd)
		}
		f.spec.Files[i] = -1
	}
	for _, n := range f.placed {
		if n < f.noFile {
			unix.Close(n)
		} else {
			unix.CloseOnExec(n) // another request may need it
		}
	}
	f.placed = nil
}
