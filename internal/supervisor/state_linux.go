package supervisor

import (
	"bytes"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"

	"curfew/internal/fault"
	"curfew/internal/sys"
)

// The fields of a State.
const (
	stUID = iota
	stGID
	stGroups
	stCapInh
	stCapBnd
	stCapAmb
	stNoNewPrivs
	stSeccomp
	stUmask
	stCPUs
	stBits
	stLimits
	stSched
	stOOM
	stRoot
	stNamespaces
	stCgroup
)

// errNoProc means that the state cannot be read in full, so that no helper is used twice.
var errNoProc = errors.New("supervisor: /proc is not mounted or not usable")

var stateBuf = sync.Pool{New: func() any { return new([8192]byte) }}

// readState reads the state of thread tid of this process; 0 is the calling thread, which must be
// locked to its goroutine. One read of status is far cheaper than the hundred prctl calls that
// return the same.
func readState(tid int) (State, error) {
	var s State
	buf := stateBuf.Get().(*[8192]byte)
	defer stateBuf.Put(buf)
	base := "/proc/thread-self/"
	if tid != 0 {
		base = "/proc/self/task/" + strconv.Itoa(tid) + "/"
	}
	b, err := readSmall(base+"status", buf[:])
	if err != nil {
		return s, errNoProc
	}
	s.parseStatus(b)
	s[stBits] = threadBits()
	s[stLimits] = limits()
	s[stSched] = scheduling(tid)
	if b, err = readSmall(base+"oom_score_adj", buf[:]); err == nil {
		s[stOOM] = string(bytes.TrimSpace(b))
	}
	s[stRoot] = rootID()
	s[stNamespaces] = namespaces(base)
	if b, err = readSmall(base+"cgroup", buf[:]); err == nil {
		s[stCgroup] = string(b)
	}
	if labelled() {
		for _, name := range []string{"attr/current", "attr/exec"} {
			if b, err = readSmall(base+name, buf[:]); err == nil {
				s[stCgroup] += name + " " + string(b) + "\n"
			}
		}
	}
	return s, nil
}

// statusFields are the lines of a status file that are taken as they are.
var statusFields = map[string]int{
	"Groups": stGroups, "CapInh": stCapInh, "CapBnd": stCapBnd, "CapAmb": stCapAmb, "NoNewPrivs": stNoNewPrivs,
	"Seccomp": stSeccomp, "Umask": stUmask, "Cpus_allowed": stCPUs,
}

// parseStatus sets the fields that are in a status file. The kernel writes a line for each name.
func (s *State) parseStatus(b []byte) {
	var mems, filters string
	for len(b) > 0 {
		var line []byte
		line, b, _ = bytes.Cut(b, []byte{'\n'})
		name, value, ok := bytes.Cut(line, []byte{':'})
		if !ok {
			continue
		}
		value = bytes.TrimSpace(value)
		switch string(name) {
		case "Uid":
			s[stUID] = realAndEffective(value)
		case "Gid":
			s[stGID] = realAndEffective(value)
		case "Seccomp_filters":
			filters = string(value)
		case "Mems_allowed_list":
			mems = string(value)
		default:
			if field, ok := statusFields[string(name)]; ok {
				s[field] = string(value)
			}
		}
	}
	s[stSeccomp] += " " + filters
	s[stCPUs] += " " + mems
}

// ownCgroup returns the content of the calling thread's cgroup file, "" if it cannot be read.
func ownCgroup() string {
	var buf [8192]byte
	b, err := readSmall("/proc/thread-self/cgroup", buf[:])
	if err != nil {
		return ""
	}
	return string(b)
}

// labelled reports whether a security module labels processes here.
var labelled = sync.OnceValue(func() bool {
	var buf [256]byte
	_, err := readSmall("/proc/self/attr/current", buf[:])
	return err == nil
})

// realAndEffective returns the first two of the four ids in a status line: an exec makes the saved
// and the file-system id equal to the effective one.
func realAndEffective(ids []byte) string {
	f := bytes.Fields(ids)
	if len(f) < 2 {
		return string(ids)
	}
	return string(f[0]) + " " + string(f[1])
}

// readSmall reads a file of /proc whole; it must fit into buf.
func readSmall(path string, buf []byte) ([]byte, error) {
	fd, err := sys.Open(path, unix.O_RDONLY, 0)
	if err != nil {
		return nil, err
	}
	defer sys.Close(fd)
	for n := 0; n < len(buf); {
		m := 0
		if err := sys.Call(fault.Read, func() (err error) {
			m, err = unix.Read(fd, buf[n:])
			return err
		}); err != nil {
			return nil, err
		}
		n += m
		if m < 2048 {
			// The kernel makes these files in one piece, up to a page: a shorter read was the end.
			return buf[:n], nil
		}
	}
	return nil, fmt.Errorf("supervisor: %s is larger than %d bytes", path, len(buf))
}

// threadBits reads what only the thread itself can change. The keep-caps bit is left out: an exec
// clears it.
func threadBits() string {
	bits, _, _ := unix.RawSyscall6(unix.SYS_PRCTL, unix.PR_GET_SECUREBITS, 0, 0, 0, 0, 0)
	pers, _, _ := unix.RawSyscall(unix.SYS_PERSONALITY, 0xffffffff, 0, 0)
	slack, _, _ := unix.RawSyscall6(unix.SYS_PRCTL, unix.PR_GET_TIMERSLACK, 0, 0, 0, 0, 0)
	const keepCaps = 1 << 4
	b := strconv.AppendUint(nil, uint64(bits&^keepCaps), 16)
	b = strconv.AppendUint(append(b, ' '), uint64(pers), 16)
	return string(strconv.AppendUint(append(b, ' '), uint64(slack), 10))
}

// limits reads the resource limits. The soft RLIMIT_NOFILE is left out: the Go runtime raises it in
// every process, and restores it for a child (see noFileLimit).
func limits() string {
	var b []byte
	for r := range 16 {
		var l unix.Rlimit
		if unix.Prlimit(0, r, nil, &l) != nil {
			continue
		}
		if r != unix.RLIMIT_NOFILE {
			b = strconv.AppendUint(b, l.Cur, 36)
		}
		b = append(b, ' ')
		b = strconv.AppendUint(b, l.Max, 36)
		b = append(b, ' ')
	}
	return string(b)
}

// noFileLimit returns our own soft RLIMIT_NOFILE. A child gets the limit that the runtime remembers,
// which does not change while ours does not.
func noFileLimit() uint64 {
	var l unix.Rlimit
	_ = unix.Prlimit(0, unix.RLIMIT_NOFILE, nil, &l)
	return l.Cur
}

// scheduling reads policy, nice value and I/O priority as a child gets them.
func scheduling(tid int) string {
	attr, err := unix.SchedGetAttr(tid, 0)
	if err != nil {
		return ""
	}
	const resetOnFork = 1
	if attr.Flags&resetOnFork != 0 {
		if attr.Policy != unix.SCHED_NORMAL && attr.Policy != unix.SCHED_BATCH && attr.Policy != unix.SCHED_IDLE {
			attr.Policy, attr.Priority = unix.SCHED_NORMAL, 0
		}
		attr.Nice = max(attr.Nice, 0)
		attr.Flags &^= resetOnFork
	}
	const whoProcess = 1
	io, _, _ := unix.RawSyscall(unix.SYS_IOPRIO_GET, whoProcess, uintptr(tid), 0)
	b := strconv.AppendUint(nil, uint64(attr.Policy), 10)
	for _, v := range [...]uint64{attr.Flags, uint64(uint32(attr.Nice)), uint64(attr.Priority), attr.Runtime, attr.Deadline, attr.Period, uint64(io)} {
		b = strconv.AppendUint(append(b, ' '), v, 10)
	}
	return string(b)
}

func rootID() string {
	var st unix.Statx_t
	if unix.Statx(unix.AT_FDCWD, "/", unix.AT_STATX_DONT_SYNC, unix.STATX_INO|unix.STATX_MNT_ID, &st) != nil {
		return ""
	}
	b := strconv.AppendUint(nil, st.Ino, 10)
	b = strconv.AppendUint(append(b, ' '), uint64(st.Dev_major)<<32|uint64(st.Dev_minor), 10)
	return string(strconv.AppendUint(append(b, ' '), st.Mnt_id, 10))
}

// namespaces reads the inode of each namespace a child would be in.
func namespaces(base string) string {
	dir, err := unix.Open(base+"ns", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return ""
	}
	defer unix.Close(dir)
	var b []byte
	for _, name := range namespaceNames {
		var st unix.Stat_t
		_, _, errno := unix.RawSyscall6(unix.SYS_NEWFSTATAT, uintptr(dir), uintptr(unsafe.Pointer(name)), uintptr(unsafe.Pointer(&st)), 0, 0, 0)
		if errno == 0 {
			b = strconv.AppendUint(b, st.Ino, 10)
		}
		b = append(b, ' ')
	}
	return string(b)
}

var namespaceNames = func() (list []*byte) {
	for _, s := range []string{"mnt", "net", "uts", "ipc", "user", "cgroup", "pid_for_children", "time_for_children"} {
		p, err := unix.BytePtrFromString(s)
		if err != nil {
			panic(err)
		}
		list = append(list, p)
	}
	return list
}()

// Ignored reports whether this process ignores sig.
func Ignored(sig syscall.Signal) bool { return sys.Ignored(sig) }
