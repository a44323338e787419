package proctree

import (
	"bytes"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"curfew/outcome"
)

// Sweep is for when those who held a tree are lost. It sends SIGKILL to every
// process that carries the mark in its environment, was started at or after
// since, and is in the given cgroup (the content of /proc/PID/cgroup), until two
// scans running find none or the time is over. What has wiped its environment
// is not found, so the result is no proof of anything.
//
// The mark alone is only a suspicion: at(1), service managers and build daemons
// hand environments on to strangers. So what carries it must also descend from
// nobody who does not: its parent carries the mark too, or is one that orphans
// fall to (pid 1, or an ancestor of ours). Others are returned as suspects and
// not signalled. Identity is held by a pidfd, opened before the checks and used
// for the signal.
func Sweep(mark, cgroup string, since, until time.Time) (ended []outcome.Ended, suspects []outcome.Process) {
	var p procfs
	if p.open(); p.fd < 0 {
		return nil, nil
	}
	defer closeFD(p.fd)
	boot := bootTime()
	const tick = time.Second / 100
	earliest := uint64(max(since.Sub(boot)/tick-2, 0)) // start times are cut down to ticks, and boot was measured
	known := map[int]bool{}
	self := unix.Getpid()
	adopters := p.ancestors(self)
	for clean := 0; clean < 2 && time.Now().Before(until); {
		found := false
		for _, pid := range p.all() {
			var s stat
			if pid <= 1 || pid == self || !p.stat(pid, &s) || s.start < earliest || s.state == 'Z' {
				continue
			}
			fd, err := pidfdOpen(pid)
			if err != nil {
				continue
			}
			if p.stat(pid, &s) && s.start >= earliest && p.marked(pid, mark) && p.sameCgroup(pid, cgroup) && unreaped(fd) {
				it := outcome.Process{PID: pid, Start: startTime(boot, s.start), Name: s.name()}
				ours := adopters[s.ppid] || p.marked(s.ppid, mark)
				fresh := !known[pid] && len(known) < maxListed
				switch {
				case !ours && fresh:
					known[pid] = true
					suspects = append(suspects, it)
				case ours && signalPidfd(fd, syscall.SIGKILL) == nil:
					found = true
					if fresh {
						known[pid] = true
						ended = append(ended, outcome.Ended{Process: it, LastSignal: int(syscall.SIGKILL)})
					}
				}
			}
			closeFD(fd)
		}
		if found {
			clean = 0
		} else {
			clean++
		}
		time.Sleep(time.Millisecond)
	}
	return ended, suspects
}

// ancestors returns pid, its ancestors, and 1: those that orphans can fall to.
func (p *procfs) ancestors(pid int) map[int]bool {
	set := map[int]bool{1: true}
	var s stat
	for pid > 1 && !set[pid] && p.stat(pid, &s) {
		set[pid] = true
		pid = s.ppid
	}
	return set
}

// all lists every pid there is.
func (p *procfs) all() (list []int) {
	dir := p.openPath(append(p.path[:0], '.'), unix.O_RDONLY|unix.O_DIRECTORY)
	if dir < 0 {
		return nil
	}
	defer closeFD(dir)
	for {
		n, err := unix.Getdents(dir, p.scan[:])
		if err == unix.EINTR {
			continue
		}
		if err != nil || n <= 0 {
			return list
		}
		for b := p.scan[:n]; len(b) > 0; {
			pid, ok, rest := nextDirent(b)
			b = rest
			if ok {
				list = append(list, pid)
			}
		}
	}
}

// whole reads a file of pid's directory that can be of any size, up to 8 MiB.
func (p *procfs) whole(pid int, name string) []byte {
	fd := p.openat(unix.O_RDONLY, pid, name, -1, "")
	if fd < 0 {
		return nil
	}
	defer closeFD(fd)
	var all []byte
	for len(all) < 8<<20 {
		n := readAll(fd, p.buf[:])
		if n == 0 {
			break
		}
		all = append(all, p.buf[:n]...)
	}
	return all
}

func (p *procfs) marked(pid int, mark string) bool {
	for entry := range bytes.SplitSeq(p.whole(pid, "/environ"), []byte{0}) {
		if string(entry) == mark {
			return true
		}
	}
	return false
}

func (p *procfs) sameCgroup(pid int, cgroup string) bool {
	return string(p.whole(pid, "/cgroup")) == cgroup
}
