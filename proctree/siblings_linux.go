package proctree

import (
	"syscall"

	"golang.org/x/sys/unix"

	"curfew/internal/sys"
)

// siblings are the children that are not of the tree: the pid of each that was not reaped,
// and its pidfd, -1 if there is none.
type siblings map[int]int

func (s siblings) has(pid int) bool {
	_, is := s[pid]
	return is
}

// gone notes the exit of a sibling.
func (s siblings) gone(pid int, ev *Event) {
	if fd := s[pid]; fd >= 0 {
		sys.Close(fd)
	}
	delete(s, pid)
	ev.Siblings = append(ev.Siblings, pid)
}

// OnlySiblings shows that nothing is left which descends from this process and from no
// sibling, if it reports true.
//
// A process that loses its parent below us becomes our child before the exit of that
// parent can be seen, or its number be free (the kernel does both under one lock). So
// the topmost of any such process and its living ancestors is in our list, behind
// all that were there. The list is read from its beginning to its end. A process that is
// in it when the read begins is met, or has vanished before (CLONE_AUTOREAP) and left what
// was below it further down, where the read has not been yet. None that was met makes room
// that the read could slip through: those are siblings, and stay until this thread reaps
// them. So that this does not rest on how the kernel makes up the file, two whole reads
// have to agree.
//
// Without /proc the kernel is asked for every pid there can be, which takes its
// time; then nothing is known where a child can vanish behind the question.
func (t *subreaper) OnlySiblings() bool {
	if t.threads.underWay {
		return false // what is being started is no sibling yet
	}
	for range 2 {
		n := t.kin.read()
		if n == len(t.kin.arena) {
			return false // there may be more
		}
		for _, pid := range t.kin.arena[:n] {
			if !t.siblings.has(int(pid)) {
				return false
			}
		}
		if len(t.kin.lists) != 2 || n != len(t.siblings) {
			return n == 0 && t.onlySiblingsAsked()
		}
		meanwhile("read", 0)
	}
	if t.backlog.kernelReaps {
		// Then a sibling could vanish during the reads. Read again when none can.
		t.reapAgain()
		t.await()
		return t.OnlySiblings()
	}
	return true
}

// onlySiblingsAsked is for when nothing could be read.
func (t *subreaper) onlySiblingsAsked() bool {
	if len(t.siblings) == 0 {
		return childless()
	}
	if childrenVanish() {
		return false
	}
	for pid := 2; pid < t.kin.pidMax; pid++ {
		if !t.siblings.has(pid) && stateOf(pid) != childNone {
			return false
		}
	}
	return true
}

func (t *subreaper) SiblingDied(pid int) bool { return t.siblings.has(pid) && t.proc.dead(pid) }

func (t *subreaper) SuspendedSiblings() (list []int) {
	for pid := range t.siblings {
		if t.proc.suspended(pid) {
			list = append(list, pid)
		}
	}
	return list
}

func (t *subreaper) ResumeSibling(pid int) { t.signalSibling(pid, syscall.SIGCONT) }
func (t *subreaper) EndSibling(pid int)    { t.signalSibling(pid, syscall.SIGKILL) }

func (t *subreaper) signalSibling(pid int, sig syscall.Signal) {
	if t.siblings.has(pid) {
		_ = signalChild(pid, sig) // one that has ended needs neither
	}
}

// resumeSiblings resumes siblings that were stopped: nothing else would end what they hold,
// or what is about to fall to them. The question consumes the notice, so that it does not
// come again.
func (t *subreaper) resumeSiblings() {
	for range reapAtOnce { // one that is stopped again and again must not keep us
		info, errno := waitFor(unix.P_ALL, 0, unix.WSTOPPED|unix.WNOHANG)
		if errno != 0 || info.pid == 0 {
			return
		}
		t.ResumeSibling(int(info.pid))
	}
}
