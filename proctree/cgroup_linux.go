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

// cgroup is a cgroup (v2) of the tree's own, below the one that this process is
// in. Where it can be created, one write ends everything in it at once, whatever it
// forks meanwhile and whatever uid it runs as, and the kernel reports whether anything
// is left. Where it cannot, nothing depends on it: the subreaper holds the tree.
//
// It is named after the process, its pid namespace and an id that is never used twice,
// so that others can find it should the process be lost, and a process that gets the
// same number later, or in another namespace, does not have the same one. A new one is
// created for each leader: a tree may have changed the limits of the one it was in.
type cgroup struct {
	base                     int // descriptor of our own cgroup's directory; -1: there is no cgroup
	name                     string
	dir, kill, events, procs int  // descriptors of the cgroup's; -1: there is none
	used                     bool // the leader was to be started in it
	proven                   bool // a leader was started in one
}

var noCgroup = cgroup{base: -1, dir: -1, kill: -1, events: -1, procs: -1}

// CgroupName returns the name of the cgroup of the process pid, as it is numbered here,
// with the given id.
func CgroupName(pid int, id string) string { return cgroupPrefix() + strconv.Itoa(pid) + "-" + id }

// cgroupPrefix begins the names of all such cgroups of this pid namespace.
var cgroupPrefix = sync.OnceValue(func() string {
	var st unix.Stat_t
	_ = unix.Stat("/proc/self/ns/pid", &st) // without /proc there are no cgroups
	return "curfew-" + strconv.FormatUint(st.Ino, 10) + "-"
})

// Prepare creates the cgroup for the next leader, if that can be done. The one
// of the leader before must be empty; it reports false if it is not.
func (t *subreaper) Prepare() bool {
	g := &t.cgroup
	if g.base < 0 || g.dir >= 0 && !g.used {
		return true
	}
	if !g.remove() {
		return false
	}
	if sys.Call(fault.Mkdirat, func() error { return unix.Mkdirat(g.base, g.name, 0o755) }) != nil {
		t.dropCgroup()
		return true
	}
	g.dir, _ = sys.Openat(g.base, g.name, unix.O_NOFOLLOW|unix.O_DIRECTORY|unix.O_RDONLY)
	g.kill, _ = sys.Openat(g.dir, "cgroup.kill", unix.O_NOFOLLOW|unix.O_WRONLY) // Linux 5.14
	g.events, _ = sys.Openat(g.dir, "cgroup.events", unix.O_NOFOLLOW|unix.O_RDONLY)
	g.procs, _ = sys.Openat(g.dir, "cgroup.procs", unix.O_NOFOLLOW|unix.O_RDONLY)
	g.used = false
	if g.dir < 0 || g.kill < 0 || g.events < 0 || g.procs < 0 {
		t.dropCgroup()
	}
	return true
}

// Close removes the cgroup, if there is one.
func (t *subreaper) Close() { t.cgroup.remove() }

// dropCgroup makes the tree do without a cgroup from now on.
func (t *subreaper) dropCgroup() {
	t.cgroup.remove()
	if t.cgroup.base >= 0 {
		sys.Close(t.cgroup.base)
	}
	t.cgroup = noCgroup
}

// remove removes the cgroup, and reports whether it is gone.
func (g *cgroup) remove() bool {
	if g.base < 0 || g.dir < 0 {
		return true
	}
	gone := removeCgroup(g.base, g.name, time.Now().Add(cgroupRemoval), nil)
	for _, fd := range []*int{&g.dir, &g.kill, &g.events, &g.procs} {
		if *fd >= 0 {
			sys.Close(*fd)
		}
		*fd = -1
	}
	return gone
}

// exists reports whether the cgroup was not removed by another process.
func (g *cgroup) exists() bool {
	return unix.Faccessat(g.dir, "cgroup.procs", unix.F_OK, 0) == nil
}

// Limits of one removal of a cgroup with all below it: when nothing waits for it, and
// when something does. What remains is removed by the guard, or by the helper that starts
// next.
const (
	cgroupRemoval     = 500 * time.Millisecond
	cgroupRemovalSoon = 20 * time.Millisecond
)

// removeCgroup removes a cgroup and those that a tree has created below it, and reports
// whether it is gone. None of them can be removed while a process is in it. found, if
// not nil, is called with the directory of each that cannot be removed at once.
func removeCgroup(base int, name string, until time.Time, found func(dir int)) bool {
	err := unix.Unlinkat(base, name, unix.AT_REMOVEDIR)
	if err == nil || err == unix.ENOENT {
		return true
	}
	if dir := openCgroup(base, name); dir >= 0 {
		emptyCgroup(dir, until, found)
		err = unix.Unlinkat(base, name, unix.AT_REMOVEDIR)
	}
	return err == nil || err == unix.ENOENT
}

// openCgroup opens the directory of a cgroup; -1 if that fails. What is mounted over it is
// no cgroup.
func openCgroup(dir int, name string) int {
	fd, err := unix.Openat2(dir, name, &unix.OpenHow{
		Flags:   unix.O_RDONLY | unix.O_DIRECTORY | unix.O_CLOEXEC,
		Resolve: unix.RESOLVE_NO_XDEV | unix.RESOLVE_NO_SYMLINKS,
	})
	if err != nil {
		return -1
	}
	return fd
}

// emptyCgroup removes what is below a cgroup, and closes dir, which is its directory. A
// tree decides how deep its cgroups are nested and how many there are side by side, so
// one directory is open at a time, and names and offsets on the way down are kept in a
// list.
func emptyCgroup(dir int, until time.Time, found func(dir int)) {
	type level struct {
		name string // of the cgroup in the level above
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
			if next = openCgroup(dir, name); next < 0 {
				entered = false
				continue
			}
			way = append(way, level{name: name})
		case len(way) == 1:
			sys.Close(dir)
			return
		default:
			if next = openCgroup(dir, ".."); next >= 0 {
				_ = unix.Unlinkat(next, last.name, unix.AT_REMOVEDIR) // fails if a process is in it
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

// firstBelow removes the cgroups in dir, from the offset at on, until there is one that
// cannot be removed at once. It returns that one's name and the offset behind it; "" if
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

// openCgroups finds the cgroup that this process is in, and removes what killed processes
// of ours have left there.
func (t *subreaper) openCgroups(id string) {
	t.cgroup = noCgroup
	base := openOwnCgroup(&t.proc)
	if base < 0 {
		return
	}
	t.cgroup.base, t.cgroup.name = base, CgroupName(unix.Getpid(), id)
	until := time.Now().Add(cgroupRemovalSoon)
	for _, name := range t.proc.leftCgroups(base) {
		removeCgroup(base, name, until, nil) // fails if a process is in it
	}
}

// leftCgroups lists the cgroups of processes of ours that are gone.
func (p *procfs) leftCgroups(base int) (names []string) {
	fd := openCgroup(base, ".")
	if fd < 0 {
		return nil
	}
	dir := os.NewFile(uintptr(fd), ".")
	defer dir.Close()
	entries, _ := dir.ReadDir(1 << 12)
	for _, e := range entries {
		rest, ours := strings.CutPrefix(e.Name(), cgroupPrefix())
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

// openOwnCgroup opens the directory of the cgroup that this process is in; -1 if
// it is not to be found where it usually is. It must list this process: what is
// mounted there can be the hierarchy of another cgroup namespace, in which the
// same path is another cgroup.
func openOwnCgroup(p *procfs) int {
	path, ok := ownCgroupPath(p)
	if !ok {
		return -1
	}
	for _, mount := range []string{"/sys/fs/cgroup", "/sys/fs/cgroup/unified"} {
		fd, err := sys.Open(mount+path, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
		if err != nil {
			continue
		}
		var fs unix.Statfs_t
		if unix.Fstatfs(fd, &fs) == nil && fs.Type == unix.CGROUP2_SUPER_MAGIC && cgroupHas(fd, unix.Getpid()) {
			return fd
		}
		sys.Close(fd)
	}
	return -1
}

// ownCgroupPath reads the path of our cgroup in the v2 hierarchy.
func ownCgroupPath(p *procfs) (string, bool) {
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

func cgroupHas(dir, pid int) bool {
	fd, err := sys.Openat(dir, "cgroup.procs", unix.O_RDONLY)
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

// strikeCgroup sends SIGKILL to everything in the cgroup at once, and returns how
// many of them had not been struck before.
func (t *subreaper) strikeCgroup() (fresh int) {
	g := &t.cgroup
	if g.kill < 0 || !g.used || !cgroupPopulated(g.events) {
		return 0
	}
	return t.strikeAll(g.procs, g.kill)
}

// strikeAll notes what is listed in a cgroup, and the kernel kills all of it. None of it
// needs a signal of its own in a pass over our children; a process that has no main thread
// any more, or has just left the cgroup, gets one from a pass below.
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
	if !killCgroup(kill) {
		t.signalled.table.pardon()
	}
	return fresh
}

// cgroupPopulated reads from the events file of a cgroup whether a process is in it.
func cgroupPopulated(events int) bool {
	var buf [256]byte
	n, _, errno := unix.RawSyscall6(unix.SYS_PREAD64, uintptr(events), uintptr(unsafe.Pointer(&buf[0])), uintptr(len(buf)), 0, 0, 0)
	return errno == 0 && bytes.Contains(buf[:n], []byte("populated 1"))
}

// StrikeCgroup strikes what is in the cgroup although there is no child any more.
func (t *subreaper) StrikeCgroup() (populated bool) {
	g := &t.cgroup
	if g.events < 0 || !g.used || !cgroupPopulated(g.events) {
		return false
	}
	t.strikeCgroup()
	if dir := openCgroup(g.dir, "."); dir >= 0 {
		emptyCgroup(dir, time.Now().Add(cgroupRemovalSoon), t.proc.endHeadless)
	}
	return true
}

// EndCgroup ends what is in the cgroup of a sibling that has died.
func (t *subreaper) EndCgroup(name string) (rest CgroupRest) {
	base := t.cgroup.base
	if base < 0 {
		return rest
	}
	if !endCgroup(&t.proc, base, name, cgroupRemovalSoon, func(procs, kill int) { t.strikeAll(procs, kill) }) {
		events, err := sys.Openat(base, name+"/cgroup.events", unix.O_NOFOLLOW|unix.O_RDONLY)
		if err == nil {
			rest.Populated = cgroupPopulated(events)
			sys.Close(events)
		}
	}
	if unix.Faccessat(base, name, unix.F_OK, 0) == nil {
		rest.Remove = func() error {
			removeCgroup(base, name, time.Now().Add(cgroupLeftFor), nil)
			return nil
		}
	}
	return rest
}

// cgroupLeftFor bounds CgroupRest.Remove.
const cgroupLeftFor = 20 * time.Second

// EndCgroup ends what is in the cgroup of a process that is lost, by the name that
// CgroupName returns, and removes it. It waits for that at most until the given time. The
// lost process must have been in the same cgroup as this one.
func EndCgroup(name string, until time.Time) {
	var p procfs
	if p.open(); p.fd < 0 {
		return
	}
	defer sys.Close(p.fd)
	base := openOwnCgroup(&p)
	if base < 0 {
		return
	}
	defer sys.Close(base)
	for !endCgroup(&p, base, name, time.Until(until), func(_, kill int) { killCgroup(kill) }) && time.Now().Before(until) {
		time.Sleep(time.Millisecond)
	}
}

// endCgroup calls strike to end what is in a cgroup, and then removes it, for which it takes
// at most limit. It reports whether the cgroup is gone.
func endCgroup(p *procfs, base int, name string, limit time.Duration, strike func(procs, kill int)) bool {
	dir, err := sys.Openat(base, name, unix.O_NOFOLLOW|unix.O_DIRECTORY|unix.O_RDONLY)
	if err != nil {
		return err == unix.ENOENT
	}
	defer sys.Close(dir)
	kill, err := sys.Openat(dir, "cgroup.kill", unix.O_NOFOLLOW|unix.O_WRONLY)
	if err != nil {
		return true // not ours to end: its owner could not use it either
	}
	defer sys.Close(kill)
	procs, err := sys.Openat(dir, "cgroup.procs", unix.O_NOFOLLOW|unix.O_RDONLY)
	if err == nil {
		strike(procs, kill)
		sys.Close(procs)
	}
	return removeCgroup(base, name, time.Now().Add(limit), p.endHeadless)
}

// endHeadless ends the processes in a cgroup whose main thread has exited: cgroup.kill
// signals main threads alone (Linux 6.18), and the others go on. A process that is listed
// once more after a pidfd was opened for it, and still has its number when the signal is
// sent, was in the cgroup.
func (p *procfs) endHeadless(dir int) {
	procs, err := sys.Openat(dir, "cgroup.procs", unix.O_RDONLY)
	if err != nil {
		return
	}
	defer sys.Close(procs)
	var list, again [1 << 10]int32
	for _, pid := range list[:p.readChildren(procs, list[:], 0)] {
		var s stat
		if pid == noPID || !p.stat(int(pid), &s) || s.thread == 0 {
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
