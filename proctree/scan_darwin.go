package proctree

import (
	"encoding/binary"
	"sync"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// What proc_info(2) is asked, by its numbers: Apple publishes the library above it
// and not the call, whose numbers and layouts have been the same since each of them
// came (the sizes are asserted in the kernel's own source). Each is tried at the
// start all the same: see probe.
const (
	sysProcInfo = 336

	callPidInfo     = 2
	callSignalToken = 0x11 // since macOS 14.2

	flavorTask      = 4
	flavorShort     = 13
	flavorUnique    = 17
	flavorCoalition = 20

	sizeTask      = 96
	sizeShort     = 64
	sizeUnique    = 56
	sizeCoalition = 40

	alsoZombies = 1 // the argument with which the unique IDs of zombies are returned
)

// What kern.proc and proc_info call the state of a process.
const (
	stateStopped = 4
	stateZombie  = 5
)

// launchd adopts all orphans.
const launchd = 1

// processTable is the process table of macOS for a tracker.
type processTable struct {
	marking
	able  abilities
	known map[int]constant // by pid, of the last scan
	next  map[int]constant // of the scan under way
}

// constant is what does not change as long as a process lives.
type constant struct {
	id        uint64
	coalition uint64
}

// newProcessTable reads the table for a tree with that mark.
func newProcessTable(m marking) *processTable {
	return &processTable{marking: m, able: probed(), known: map[int]constant{}, next: map[int]constant{}}
}

// setInterrupted does nothing: a scan is a single system call.
func (p *processTable) setInterrupted(func() bool) {}

// readRows reads the whole table.
func (p *processTable) readRows() ([]tableRow, error) {
	list, err := unix.SysctlKinfoProcSlice("kern.proc.all")
	if err != nil {
		return nil, err
	}
	rows := make([]tableRow, 0, len(list))
	clear(p.next)
	for i := range list {
		k := &list[i]
		r := tableRow{
			PID: int(k.Proc.P_pid), Parent: int(k.Eproc.Ppid),
			Start: startOf(k),
		}
		if r.PID <= 0 {
			continue // the kernel
		}
		switch e := p.complete(&r, uint32(k.Proc.P_stat)); e {
		case nil:
			rows = append(rows, r)
		case unix.ESRCH:
		default: // a sandbox can keep us from asking about some
			err = e
		}
	}
	p.known, p.next = p.next, p.known
	return rows, err
}

// row reads one row.
func (p *processTable) row(pid int) (tableRow, error) {
	k, err := kinfo(pid)
	if err != nil {
		return tableRow{}, err
	}
	r := tableRow{PID: pid, Parent: int(k.Eproc.Ppid), Start: startOf(k)}
	return r, p.complete(&r, uint32(k.Proc.P_stat))
}

// readMark reads what the process was executed with. The system withholds the
// environment of what it has signed itself, and of other users' processes.
func (p *processTable) readMark(r *tableRow) foundMark {
	b, err := unix.SysctlRaw("kern.procargs2", r.PID)
	if err != nil || !p.is(r) {
		return markHidden
	}
	return p.inArguments(b)
}

// complete adds what the table does not have of a process, which was in that state. All of
// it is of one process: an ID that is the same before and after has been
// the pid's all the time. It returns ESRCH if the process is gone, or another has its pid:
// then the next scan has the other one.
func (p *processTable) complete(r *tableRow, state uint32) error {
	if p.able.IDs {
		before, seen := p.known[r.PID]
		u, err := readUnique(r.PID)
		if err != nil {
			return err
		}
		if !seen || before.id != u.id {
			// Nothing shows yet that the table has meant this one.
			s, err := readShort(r.PID)
			if err != nil {
				return err
			}
			before = constant{id: u.id}
			if p.able.Coalitions {
				before.coalition, _ = readCoalition(r.PID) // a zombie has none
			}
			if u, err = readUnique(r.PID); err != nil {
				return err
			}
			if u.id != before.id {
				return unix.ESRCH
			}
			r.Parent, state = s.parent, s.state
		}
		p.next[r.PID] = before
		r.ID, r.ParentID, r.Version, r.ParentVersion, r.Coalition = u.id, u.parent, u.version, u.parentVersion, before.coalition
	}
	r.Session, _ = unix.Getsid(r.PID) // 0 of a zombie
	r.Orphan = r.Parent == launchd
	r.Zombie = state == stateZombie
	r.Suspended = state == stateStopped && !runs(r.PID)
	return nil
}

// is reports whether the process of that row still has its pid.
func (p *processTable) is(r *tableRow) bool {
	if p.able.IDs {
		u, err := readUnique(r.PID)
		return err == nil && u.id == r.ID
	}
	k, err := unix.SysctlKinfoProc("kern.proc.pid", r.PID)
	return err == nil && startOf(k) == r.Start
}

// abilities are what the system reports and allows, as probed at the start.
type abilities struct {
	IDs            bool // of processes and their parents, never given twice
	ParentVersions bool // what a parent was when it forked, kept when the child executes something: macOS 15.4
	Coalitions     bool
	ExactSignals   bool // to a process by its version, and to no other: macOS 14.2
}

// probed is what probe has found, once.
var probed = sync.OnceValue(probe)

// probe tries each call on this process.
func probe() (a abilities) {
	own := unix.Getpid()
	u, err := readUnique(own)
	a.IDs = err == nil && u.id != 0 && u.parent != 0 && u.version != 0
	a.ParentVersions = a.IDs && u.parentVersion != 0
	_, err = readCoalition(own)
	a.Coalitions = err == nil
	// No process has that version: the call exists if it finds none.
	a.ExactSignals = a.IDs && signalVersion(own, ^u.version, syscall.SIGCONT) == syscall.ESRCH
	return a
}

// procInfo makes the system call. It returns how many bytes the kernel wrote.
func procInfo(call, pid, flavor int, arg uint64, buf []byte) (int, error) {
	for {
		n, _, errno := unix.Syscall6(sysProcInfo, uintptr(call), uintptr(pid), uintptr(flavor), uintptr(arg),
			uintptr(unsafe.Pointer(&buf[0])), uintptr(len(buf)))
		switch errno {
		case 0:
			return int(n), nil
		case unix.EINTR:
		default:
			return 0, errno
		}
	}
}

// pidInfo fills buf, or it is an error.
func pidInfo(pid, flavor int, arg uint64, buf []byte) error {
	n, err := procInfo(callPidInfo, pid, flavor, arg, buf)
	if err == nil && n != len(buf) {
		err = unix.EIO // the layout is another one
	}
	return err
}

// unique is what can be read of any process, also of another user's and of a zombie.
type unique struct {
	id, parent             uint64
	version, parentVersion uint32
}

func readUnique(pid int) (u unique, err error) {
	var b [sizeUnique]byte
	if err := pidInfo(pid, flavorUnique, alsoZombies, b[:]); err != nil {
		return u, err
	}
	return unique{
		id:            binary.NativeEndian.Uint64(b[16:]),
		parent:        binary.NativeEndian.Uint64(b[24:]),
		version:       binary.NativeEndian.Uint32(b[32:]),
		parentVersion: binary.NativeEndian.Uint32(b[36:]),
	}, nil
}

func readCoalition(pid int) (uint64, error) {
	var b [sizeCoalition]byte
	err := pidInfo(pid, flavorCoalition, 0, b[:])
	return binary.NativeEndian.Uint64(b[:]), err
}

// short is what can be read of any process and can change.
type short struct {
	parent int
	state  uint32
}

func readShort(pid int) (short, error) {
	var b [sizeShort]byte
	err := pidInfo(pid, flavorShort, alsoZombies, b[:])
	return short{parent: int(int32(binary.NativeEndian.Uint32(b[4:]))), state: binary.NativeEndian.Uint32(b[12:])}, err
}

// runs reports whether a thread of a stopped process still runs: a fork that it was
// in when it was stopped comes to its end. Where that cannot be read it reports false.
func runs(pid int) bool {
	var b [sizeTask]byte
	const running = 88 // the offset of the number of threads that run
	return pidInfo(pid, flavorTask, 0, b[:]) == nil && binary.NativeEndian.Uint32(b[running:]) != 0
}

// startOf is when a process was started, in microseconds.
func startOf(k *unix.KinfoProc) uint64 {
	return uint64(k.Proc.P_starttime.Sec)*1e6 + uint64(k.Proc.P_starttime.Usec)
}
