package proctree

import (
	"bytes"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"curfew/internal/fault"
)

// group is a cgroup (v2) of the tree's own, below the one that this process is
// in. Where it can be had, one write ends everything in it at once, whatever it
// forks meanwhile and whoever it runs as, and the kernel says whether anything
// is left. Where it cannot, nothing depends on it: the tree is held by being its
// subreaper.
//
// It is named after the process, its pid namespace and an id that is never used twice,
// so that others can find it should the process be lost, and a process that gets the
// same number later, or in another namespace, does not have the same one. A new one is
// made for each leader: a tree may have changed the limits of the one it was in.
type group struct {
	base                     int // descriptor of our own cgroup's directory; -1: there is no group to be had
	name                     string
	dir, kill, events, procs int // descriptors of the group's; -1: there is none
	used                     bool
	proven                   bool // a leader was started in one
}

var noGroup = group{base: -1, dir: -1, kill: -1, events: -1, procs: -1}

// GroupName returns the name of the cgroup of the process pid, as it is numbered here,
// with the given id.
func GroupName(pid int, id string) string { return groupPrefix() + strconv.Itoa(pid) + "-" + id }

// groupPrefix begins the names of all such groups of this pid namespace.
var groupPrefix = sync.OnceValue(func() string {
	var st unix.Stat_t
	_ = unix.Stat("/proc/self/ns/pid", &st) // without /proc there are no groups
	return "curfew-" + strconv.FormatUint(st.Ino, 10) + "-"
})

// MakeGroup makes the cgroup for the next leader, if that can be done. The one
// of the leader before must be empty; false if it is not.
func (t *Tree) MakeGroup() bool {
	g := &t.group
	if g.base < 0 || g.dir >= 0 && !g.used {
		return true
	}
	if !g.remove() {
		return false
	}
	if mkdirat(g.base, g.name) != nil {
		t.dropGroup()
		return true
	}
	const flags = unix.O_CLOEXEC | unix.O_NOFOLLOW
	g.dir, _ = unix.Openat(g.base, g.name, flags|unix.O_DIRECTORY|unix.O_RDONLY, 0)
	g.kill, _ = unix.Openat(g.dir, "cgroup.kill", flags|unix.O_WRONLY, 0) // Linux 5.14
	g.events, _ = unix.Openat(g.dir, "cgroup.events", flags|unix.O_RDONLY, 0)
	g.procs, _ = unix.Openat(g.dir, "cgroup.procs", flags|unix.O_RDONLY, 0)
	g.used = false
	if g.dir < 0 || g.kill < 0 || g.events < 0 || g.procs < 0 {
		t.dropGroup()
	}
	return true
}

func mkdirat(base int, name string) error {
	if errno := fault.At(fault.Mkdirat); errno != 0 {
		return errno
	}
	return unix.Mkdirat(base, name, 0o755)
}

// CloseGroup removes the cgroup, if there is one.
func (t *Tree) CloseGroup() { t.group.remove() }

// dropGroup does without one from now on.
func (t *Tree) dropGroup() {
	t.group.remove()
	if t.group.base >= 0 {
		closeFD(t.group.base)
	}
	t.group = noGroup
}

// remove removes the group, and reports whether it is gone.
func (g *group) remove() bool {
	if g.base < 0 || g.dir < 0 {
		return true
	}
	gone := removeGroup(g.base, g.name, groupDepth)
	for _, fd := range []*int{&g.dir, &g.kill, &g.events, &g.procs} {
		if *fd >= 0 {
			closeFD(*fd)
		}
		*fd = -1
	}
	return gone
}

// there reports whether nobody has removed the group.
func (g *group) there() bool {
	return unix.Faccessat(g.dir, "cgroup.procs", unix.F_OK, 0) == nil
}

// groupDepth is how deep a tree's own cgroups may be nested to be removed too.
const groupDepth = 8

// removeGroup removes a group and those that a tree has made below it. None of
// them can be removed while a process is in it.
func removeGroup(base int, name string, depth int) bool {
	err := unix.Unlinkat(base, name, unix.AT_REMOVEDIR)
	if err == nil || err == unix.ENOENT {
		return true
	}
	if depth == 0 {
		return false
	}
	fd, err := unix.Openat(base, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return false
	}
	dir := os.NewFile(uintptr(fd), name)
	defer dir.Close()
	entries, _ := dir.ReadDir(1 << 10)
	for _, e := range entries {
		if e.IsDir() {
			removeGroup(fd, e.Name(), depth-1)
		}
	}
	return unix.Unlinkat(base, name, unix.AT_REMOVEDIR) == nil
}

// openGroups finds the cgroup that this process is in, and removes what others
// of us have left there who were killed.
func (t *Tree) openGroups(id string) {
	t.group = noGroup
	base := openOwnGroup(&t.proc)
	if base < 0 {
		return
	}
	t.group.base, t.group.name = base, GroupName(t.self, id)
	var st unix.Stat_t
	fd, err := unix.Openat(base, ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return
	}
	dir := os.NewFile(uintptr(fd), ".")
	defer dir.Close()
	entries, _ := dir.ReadDir(1 << 12)
	for _, e := range entries {
		rest, ours := strings.CutPrefix(e.Name(), groupPrefix())
		pid, _, _ := strings.Cut(rest, "-")
		if n, err := strconv.Atoi(pid); !ours || err != nil || n != t.self && t.proc.stat(n, &t.scratch) {
			continue
		}
		if unix.Fstatat(base, e.Name(), &st, unix.AT_SYMLINK_NOFOLLOW) == nil && int(st.Uid) == unix.Geteuid() {
			removeGroup(base, e.Name(), groupDepth) // fails if somebody is in it
		}
	}
}

// openOwnGroup opens the directory of the cgroup that this process is in; -1 if
// it is not to be found where it usually is. It must list this process: what is
// mounted there can be the hierarchy of another cgroup namespace, in which the
// same path is another group.
func openOwnGroup(p *procfs) int {
	path, ok := ownGroupPath(p)
	if !ok {
		return -1
	}
	for _, mount := range []string{"/sys/fs/cgroup", "/sys/fs/cgroup/unified"} {
		fd, err := unix.Open(mount+path, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
		if err != nil {
			continue
		}
		var fs unix.Statfs_t
		if unix.Fstatfs(fd, &fs) == nil && fs.Type == unix.CGROUP2_SUPER_MAGIC && groupHas(fd, unix.Getpid()) {
			return fd
		}
		closeFD(fd)
	}
	return -1
}

// ownGroupPath reads the path of our cgroup in the v2 hierarchy.
func ownGroupPath(p *procfs) (string, bool) {
	fd := p.openat(unix.O_RDONLY, unix.Getpid(), "/cgroup", -1, "")
	if fd < 0 {
		return "", false
	}
	defer closeFD(fd)
	for line := range bytes.Lines(readWhole(fd, p.buf[:])) {
		if path, ok := bytes.CutPrefix(line, []byte("0::/")); ok {
			return "/" + string(bytes.TrimSuffix(path, []byte("\n"))), true
		}
	}
	return "", false
}

func groupHas(dir, pid int) bool {
	fd, err := unix.Openat(dir, "cgroup.procs", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return false
	}
	defer closeFD(fd)
	var buf [4096]byte
	want := strconv.Itoa(pid)
	for line := range bytes.Lines(readWhole(fd, buf[:])) {
		if string(bytes.TrimSpace(line)) == want {
			return true
		}
	}
	return false
}

// strikeGroup sends SIGKILL to everything in the group at once, and reports how
// many of them had not been struck before.
func (t *Tree) strikeGroup() (fresh int) {
	g := &t.group
	if g.kill < 0 || !g.used || !groupPopulated(g.events) {
		return 0
	}
	return t.strikeAll(g.procs, g.kill)
}

// strikeAll notes who is listed and has the kernel kill them all.
func (t *Tree) strikeAll(procs, kill int) (fresh int) {
	n := t.proc.readChildren(procs, t.arena, 0)
	for _, pid := range t.arena[:n] {
		if pid <= 1 || t.isWard(int(pid)) || t.struck.killed(int(pid)) {
			continue
		}
		if t.note(t.entry(&target{pid: int(pid), pidfd: -1}), syscall.SIGKILL, nil) {
			fresh++
		}
	}
	killGroup(kill)
	return fresh
}

// groupPopulated reads whether anybody is in a group, from its events file.
func groupPopulated(events int) bool {
	var buf [256]byte
	n, _, errno := unix.RawSyscall6(unix.SYS_PREAD64, uintptr(events), uintptr(unsafe.Pointer(&buf[0])), uintptr(len(buf)), 0, 0, 0)
	return errno == 0 && bytes.Contains(buf[:n], []byte("populated 1"))
}

// GroupLeft is for when the tree has no children any more. It strikes what is in the
// cgroup nevertheless, a process that went into another pid namespace, whose orphans do
// not fall to us; and reports whether there is any.
func (t *Tree) GroupLeft() bool {
	g := &t.group
	if g.events < 0 || !g.used || !groupPopulated(g.events) {
		return false
	}
	t.strikeGroup()
	return true
}

// EndWardGroup ends what is in the cgroup of a ward that has died, and removes
// it when nothing is.
func (t *Tree) EndWardGroup(name string) {
	if t.group.base < 0 {
		return
	}
	endGroup(t.group.base, name, func(procs, kill int) { t.strikeAll(procs, kill) })
}

// EndGroup does the same for the caller of a process that is lost, and waits for
// it at most until the given time. It is for a caller of which the process had
// its cgroup.
func EndGroup(name string, until time.Time) {
	var p procfs
	if p.open(); p.fd < 0 {
		return
	}
	defer closeFD(p.fd)
	base := openOwnGroup(&p)
	if base < 0 {
		return
	}
	defer closeFD(base)
	for !endGroup(base, name, func(_, kill int) { killGroup(kill) }) && time.Now().Before(until) {
		time.Sleep(time.Millisecond)
	}
}

// endGroup has strike end who is in the group, and then removes it. It reports
// whether it is gone.
func endGroup(base int, name string, strike func(procs, kill int)) bool {
	const flags = unix.O_CLOEXEC | unix.O_NOFOLLOW
	dir, err := unix.Openat(base, name, flags|unix.O_DIRECTORY|unix.O_RDONLY, 0)
	if err != nil {
		return err == unix.ENOENT
	}
	defer closeFD(dir)
	kill, err := unix.Openat(dir, "cgroup.kill", flags|unix.O_WRONLY, 0)
	if err != nil {
		return true // not ours to end: who had it could not use it either
	}
	defer closeFD(kill)
	procs, err := unix.Openat(dir, "cgroup.procs", flags|unix.O_RDONLY, 0)
	if err == nil {
		strike(procs, kill)
		closeFD(procs)
	}
	return removeGroup(base, name, groupDepth)
}
