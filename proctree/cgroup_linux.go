package proctree

import (
	"bytes"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"curfew/internal/fault"
	"curfew/internal/sys"
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

// Prepare makes the cgroup for the next leader, if that can be done. The one
// of the leader before must be empty; false if it is not.
func (t *subreaper) Prepare() bool {
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

// Close removes the cgroup, if there is one.
func (t *subreaper) Close() { t.group.remove() }

// dropGroup does without one from now on.
func (t *subreaper) dropGroup() {
	t.group.remove()
	if t.group.base >= 0 {
		sys.Close(t.group.base)
	}
	t.group = noGroup
}

// remove removes the group, and reports whether it is gone.
func (g *group) remove() bool {
	if g.base < 0 || g.dir < 0 {
		return true
	}
	gone := removeGroup(g.base, g.name, time.Now().Add(groupRemoval), nil)
	for _, fd := range []*int{&g.dir, &g.kill, &g.events, &g.procs} {
		if *fd >= 0 {
			sys.Close(*fd)
		}
		*fd = -1
	}
	return gone
}

// there reports whether nobody has removed the group.
func (g *group) exists() bool {
	return unix.Faccessat(g.dir, "cgroup.procs", unix.F_OK, 0) == nil
}

// Limits of one removal of a group with all below it: when nobody waits for it, and
// when somebody does. What remains is removed by the guard, or by the helper that starts
// next.
const (
	groupRemoval     = 500 * time.Millisecond
	groupRemovalSoon = 20 * time.Millisecond
)

// removeGroup removes a group and those that a tree has made below it, and reports
// whether it is gone. None of them can be removed while a process is in it. found, if
// not nil, is called with the directory of each that cannot be removed at once.
func removeGroup(base int, name string, until time.Time, found func(dir int)) bool {
	err := unix.Unlinkat(base, name, unix.AT_REMOVEDIR)
	if err == nil || err == unix.ENOENT {
		return true
	}
	if dir := openGroup(base, name); dir >= 0 {
		emptyGroup(dir, until, found)
		err = unix.Unlinkat(base, name, unix.AT_REMOVEDIR)
	}
	return err == nil || err == unix.ENOENT
}

// openGroup opens a directory of groups; -1 if that fails. What somebody has mounted
// there is none.
func openGroup(dir int, name string) int {
	fd, err := unix.Openat2(dir, name, &unix.OpenHow{
		Flags:   unix.O_RDONLY | unix.O_DIRECTORY | unix.O_CLOEXEC,
		Resolve: unix.RESOLVE_NO_XDEV | unix.RESOLVE_NO_SYMLINKS,
	})
	if err != nil {
		return -1
	}
	return fd
}

// emptyGroup removes what is below a group, and closes dir, which is its directory. A
// tree decides how deep its groups are nested and how many there are side by side, so
// one directory is open at a time, and names and places on the way down are kept in a
// list.
func emptyGroup(dir int, until time.Time, found func(dir int)) {
	type level struct {
		name string // of the group in the level above
		at   int64  // where to go on in its directory
	}
	way := []level{{}}
	entered := true
	var buf [8 << 10]byte
	for dir >= 0 && time.Now().Before(until) {
		if entered && found != nil {
			found(dir)
		}
		last := &way[len(way)-1]
		var next int
		name, at := firstBelow(dir, last.at, until, buf[:])
		last.at = at
		switch {
		case name != "":
			if next = openGroup(dir, name); next < 0 {
				entered = false
				continue
			}
			way = append(way, level{name: name})
		case len(way) == 1:
			sys.Close(dir)
			return
		default:
			if next = openGroup(dir, ".."); next >= 0 {
				_ = unix.Unlinkat(next, last.name, unix.AT_REMOVEDIR) // or somebody is in it
			}
			way = way[:len(way)-1]
		}
		entered = name != ""
		sys.Close(dir)
		dir = next
	}
	if dir >= 0 {
		sys.Close(dir)
	}
}

// firstBelow removes the groups in dir, from the place at on, until there is one that
// cannot be removed at once. It returns that one's name and the place behind it; "" if
// there is none.
func firstBelow(dir int, at int64, until time.Time, buf []byte) (string, int64) {
	if _, err := unix.Seek(dir, at, 0); err != nil {
		return "", at
	}
	for list := sys.List(dir, buf); time.Now().Before(until) && list.Next(); {
		at = list.Offset
		if list.Kind != unix.DT_DIR || list.IsDot() {
			continue
		}
		if err := unix.Unlinkat(dir, string(list.Name), unix.AT_REMOVEDIR); err != nil && err != unix.ENOENT {
			return string(list.Name), at
		}
	}
	return "", at
}

// openGroups finds the cgroup that this process is in, and removes what others
// of us have left there who were killed.
func (t *subreaper) openGroups(id string) {
	t.group = noGroup
	base := openOwnGroup(&t.proc)
	if base < 0 {
		return
	}
	t.group.base, t.group.name = base, GroupName(unix.Getpid(), id)
	until := time.Now().Add(groupRemovalSoon)
	for _, name := range t.proc.leftGroups(base) {
		removeGroup(base, name, until, nil) // fails if somebody is in it
	}
}

// leftGroups lists groups of ours whose processes are gone.
func (p *procfs) leftGroups(base int) (names []string) {
	fd := openGroup(base, ".")
	if fd < 0 {
		return nil
	}
	dir := os.NewFile(uintptr(fd), ".")
	defer dir.Close()
	entries, _ := dir.ReadDir(1 << 12)
	for _, e := range entries {
		rest, ours := strings.CutPrefix(e.Name(), groupPrefix())
		pid, _, _ := strings.Cut(rest, "-")
		var s stat
		if n, err := strconv.Atoi(pid); !ours || err != nil || n != unix.Getpid() && p.stat(n, &s) {
			continue
		}
		var st unix.Stat_t
		if unix.Fstatat(base, e.Name(), &st, unix.AT_SYMLINK_NOFOLLOW) == nil && int(st.Uid) == unix.Geteuid() {
			names = append(names, e.Name())
		}
	}
	return names
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
		sys.Close(fd)
	}
	return -1
}

// ownGroupPath reads the path of our cgroup in the v2 hierarchy.
func ownGroupPath(p *procfs) (string, bool) {
	fd := p.openat(unix.O_RDONLY, unix.Getpid(), "/cgroup", -1, "")
	if fd < 0 {
		return "", false
	}
	defer sys.Close(fd)
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
	defer sys.Close(fd)
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
func (t *subreaper) strikeGroup() (fresh int) {
	g := &t.group
	if g.kill < 0 || !g.used || !groupPopulated(g.events) {
		return 0
	}
	return t.strikeAll(g.procs, g.kill)
}

// strikeAll notes who is listed and has the kernel kill them all. None of them needs a
// signal of its own in a pass over our children; who has no main thread any more, or has
// just left the group, gets it from a pass below.
func (t *subreaper) strikeAll(procs, kill int) (fresh int) {
	n := t.proc.readChildren(procs, t.kin.arena, 0)
	for _, pid := range t.kin.arena[:n] {
		if pid <= 1 || t.siblings.has(int(pid)) || t.signalled.table.killed(int(pid)) {
			continue
		}
		e := t.signalled.entry(&target{pid: int(pid), pidfd: -1})
		if t.signalled.note(e, syscall.SIGKILL, nil) {
			fresh++
		}
		if e != nil {
			e.doomed = true
		}
	}
	if !killGroup(kill) {
		t.signalled.table.pardon()
	}
	return fresh
}

// groupPopulated reads whether anybody is in a group, from its events file.
func groupPopulated(events int) bool {
	var buf [256]byte
	n, _, errno := unix.RawSyscall6(unix.SYS_PREAD64, uintptr(events), uintptr(unsafe.Pointer(&buf[0])), uintptr(len(buf)), 0, 0, 0)
	return errno == 0 && bytes.Contains(buf[:n], []byte("populated 1"))
}

// StrikeGroup strikes what is in the cgroup although there is no child any more.
func (t *subreaper) StrikeGroup() (populated bool) {
	g := &t.group
	if g.events < 0 || !g.used || !groupPopulated(g.events) {
		return false
	}
	t.strikeGroup()
	if dir := openGroup(g.dir, "."); dir >= 0 {
		emptyGroup(dir, time.Now().Add(groupRemovalSoon), t.proc.endHeadless)
	}
	return true
}

// EndGroup ends what is in the cgroup of a sibling that has died.
func (t *subreaper) EndGroup(name string) (rest GroupRest) {
	base := t.group.base
	if base < 0 {
		return rest
	}
	if !endGroup(&t.proc, base, name, groupRemovalSoon, func(procs, kill int) { t.strikeAll(procs, kill) }) {
		events, err := unix.Openat(base, name+"/cgroup.events", unix.O_CLOEXEC|unix.O_NOFOLLOW|unix.O_RDONLY, 0)
		if err == nil {
			rest.Populated = groupPopulated(events)
			sys.Close(events)
		}
	}
	if unix.Faccessat(base, name, unix.F_OK, 0) == nil {
		rest.Remove = func() error {
			removeGroup(base, name, time.Now().Add(groupLeftFor), nil)
			return nil
		}
	}
	return rest
}

// groupLeftFor is how long the rest of a group is tried to be removed.
const groupLeftFor = 20 * time.Second

// EndGroup does the same for the caller of a process that is lost, and waits for
// it at most until the given time. It is for a caller of which the process had
// its cgroup.
func EndGroup(name string, until time.Time) {
	var p procfs
	if p.open(); p.fd < 0 {
		return
	}
	defer sys.Close(p.fd)
	base := openOwnGroup(&p)
	if base < 0 {
		return
	}
	defer sys.Close(base)
	for !endGroup(&p, base, name, time.Until(until), func(_, kill int) { killGroup(kill) }) && time.Now().Before(until) {
		time.Sleep(time.Millisecond)
	}
}

// endGroup has strike end who is in the group, and then removes it, for which it takes
// at most limit. It reports whether it is gone.
func endGroup(p *procfs, base int, name string, limit time.Duration, strike func(procs, kill int)) bool {
	const flags = unix.O_CLOEXEC | unix.O_NOFOLLOW
	dir, err := unix.Openat(base, name, flags|unix.O_DIRECTORY|unix.O_RDONLY, 0)
	if err != nil {
		return err == unix.ENOENT
	}
	defer sys.Close(dir)
	kill, err := unix.Openat(dir, "cgroup.kill", flags|unix.O_WRONLY, 0)
	if err != nil {
		return true // not ours to end: who had it could not use it either
	}
	defer sys.Close(kill)
	procs, err := unix.Openat(dir, "cgroup.procs", flags|unix.O_RDONLY, 0)
	if err == nil {
		strike(procs, kill)
		sys.Close(procs)
	}
	return removeGroup(base, name, time.Now().Add(limit), p.endHeadless)
}

// endHeadless ends those in a group whose main thread has exited: cgroup.kill signals
// main threads alone (Linux 6.18), and the others go on. Who is listed once more after a
// pidfd was opened for it, and still has its number when the signal is sent, was in the
// group.
func (p *procfs) endHeadless(dir int) {
	procs, err := unix.Openat(dir, "cgroup.procs", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return
	}
	defer sys.Close(procs)
	var list, again [1 << 10]int32
	for _, pid := range list[:p.readChildren(procs, list[:], 0)] {
		var s stat
		if pid == nobody || !p.stat(int(pid), &s) || s.thread == 0 {
			continue
		}
		pidfd, err := pidfdOpen(int(pid))
		if err != nil {
			continue
		}
		if slices.Contains(again[:p.readChildren(procs, again[:], 0)], pid) {
			_ = signalPidfd(pidfd, syscall.SIGKILL)
		}
		sys.Close(pidfd)
	}
}
