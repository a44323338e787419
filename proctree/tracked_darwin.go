package proctree

import (
	"bytes"
	"fmt"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"curfew/outcome"
)

// What a tracked tree needs of macOS.

// Open prepares this process to start trees and to track them. See OpenTracked.
func Open(o Options) (Tree, error) { return openTracked(o) }

// inExecution is the kernel's P_EXEC: the process has executed something since it was
// forked.
const inExecution = 0x4000

// kinfo reads what kern.proc says of one process.
func kinfo(pid int) (*unix.KinfoProc, error) {
	k, err := unix.SysctlKinfoProc("kern.proc.pid", pid)
	if err == nil && int(k.Proc.P_pid) != pid {
		err = unix.ESRCH
	}
	return k, err
}

// setEar does nothing: a scan is a single system call.
func (p *processTable) setEar(func() bool) {}

// row reads one row.
func (p *processTable) row(pid int) (Row, error) {
	k, err := kinfo(pid)
	if err != nil {
		return Row{}, err
	}
	r := Row{PID: pid, Parent: int(k.Eproc.Ppid), Start: startOf(k)}
	return r, p.complete(&r, uint32(k.Proc.P_stat))
}

// member says of the process of a row what people want to know.
func (p *processTable) member(r Row) Member {
	m := Member{PID: r.PID, Parent: r.Parent, Start: r.Start, State: '?'}
	if k, err := kinfo(r.PID); err == nil && startOf(k) == r.Start {
		name, _, _ := bytes.Cut(k.Proc.P_comm[:], []byte{0})
		m.Name = string(name)
		if s := int(k.Proc.P_stat); s > 0 && s < len(states) {
			m.State = states[s]
		}
	}
	return m
}

// states are the letters that ps has for the states of a process.
const states = "?IRSTZ"

// reason says why SIGKILL has not ended m.
func (p *processTable) reason(m Member) string {
	k, err := kinfo(m.PID)
	if err == nil && int(k.Eproc.Ucred.Uid) != unix.Getuid() && unix.Geteuid() != 0 {
		return fmt.Sprintf("operation not permitted: it runs as uid %d", k.Eproc.Ucred.Uid)
	}
	return "SIGKILL has not taken effect yet"
}

// FileName returns a name for an open file. Nothing is compared with it: see holds.
func FileName(int) string { return "?" }

// holds reports whether pid may have output to write. That is not looked up: it may.
func (p *processTable) holds(Member, []string) bool { return true }

// isFed reports whether the stdin of pid is a pipe, a FIFO or a socket. That is not
// looked up either.
func (p *processTable) isFed(int, []string) bool { return false }

// neverExecuted reports whether pid, an unreaped child, is still what it was when it
// was forked.
func (p *processTable) neverExecuted(pid int) bool {
	k, err := kinfo(pid)
	return err == nil && k.Proc.P_flag&inExecution == 0
}

// startedAt converts the start in a row.
func startedAt(start uint64) time.Time {
	if start == 0 {
		return time.Time{}
	}
	return time.UnixMicro(int64(start))
}

// exitFD returns -1: the watcher tells.
func exitFD(int) int { return -1 }

// exitOf says how pid, a child that nobody has reaped, has ended; nil if it has not.
// (waitid cannot be asked: it takes one that is stopped for one that has exited.)
func exitOf(pid int) *outcome.Exit {
	k, err := kinfo(pid)
	if err != nil || k.Proc.P_stat != stateZombie {
		return nil
	}
	ws := syscall.WaitStatus(k.Proc.P_xstat)
	if ws.Signaled() {
		return &outcome.Exit{Code: -1, Signal: int(ws.Signal()), CoreDumped: ws.CoreDump()}
	}
	return &outcome.Exit{Code: ws.ExitStatus()}
}

// What wait4 is to await, and the unit in which it tells the memory used.
const (
	waitAll = 0
	rssUnit = 1
)

// Pause lets d pass.
func Pause(d time.Duration) { time.Sleep(d) }

// becomeForking returns 0: a child inherits from the whole process.
func becomeForking() int { return 0 }

// resetIgnored does nothing: the Go runtime has handlers for what can be ignored,
// except for the signals of job control, which a leader gets as we have them.
func resetIgnored() {}

func closeFD(fd int) { _ = unix.Close(fd) }

// watcher tells of what members do: that they fork, execute something and exit.
type watcher struct {
	kq   int
	tell int // what to write to

	mu    sync.Mutex
	known map[identity]bool
}

// paceIdle is how often the table is scanned although nothing has been told.
const paceIdle = 2 * time.Second

// betweenNews is the least time between two of them.
const betweenNews = 2 * time.Millisecond

func newWatcher(tell int) (*watcher, error) {
	kq, err := unix.Kqueue()
	if err != nil {
		return nil, err
	}
	unix.CloseOnExec(kq)
	w := &watcher{kq: kq, tell: tell}
	go w.listen()
	return w, nil
}

// listen passes on that something has happened. An exit is told twice: the first time
// its process may not be a zombie yet.
func (w *watcher) listen() {
	var events [64]unix.Kevent_t
	for {
		n, err := unix.Kevent(w.kq, nil, events[:], nil)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return // the scans go on by the clock
		}
		tell(w.tell)
		time.Sleep(betweenNews)
		for _, e := range events[:n] {
			if e.Fflags&unix.NOTE_EXIT != 0 {
				tell(w.tell)
				break
			}
		}
	}
}

// reset forgets whom it has told of.
func (w *watcher) reset() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.known = map[identity]bool{}
}

// add has it tell of the members too. One that is exiting cannot be watched, and need
// not be.
func (w *watcher) add(members []*entry) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, e := range members {
		if w.known[e.key] {
			continue
		}
		w.known[e.key] = true
		change := []unix.Kevent_t{{
			Ident: uint64(e.PID), Filter: unix.EVFILT_PROC, Flags: unix.EV_ADD | unix.EV_CLEAR,
			Fflags: unix.NOTE_FORK | unix.NOTE_EXEC | unix.NOTE_EXIT,
		}}
		_, _ = unix.Kevent(w.kq, change, nil, nil)
	}
}

// Suspended reports whether the process is stopped.
func Suspended(pid int) bool {
	k, err := kinfo(pid)
	return err == nil && k.Proc.P_stat == stateStopped
}

// Identity names a process, for as long as the system runs.
type Identity struct{ row Row }

// Identify names the process that has pid now.
func Identify(pid int) (Identity, error) {
	r, err := newProcessTable(marking{}).row(pid)
	return Identity{r}, err
}

// HasExited reports whether it has ended, reaped or not.
func (i Identity) HasExited() bool {
	r, err := newProcessTable(marking{}).row(i.row.PID)
	return err == unix.ESRCH || err == nil && (r.Zombie || r.identity() != i.row.identity())
}
