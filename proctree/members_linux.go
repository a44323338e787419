package proctree

import (
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"curfew/internal/sys"
	"curfew/outcome"
)

// What can be read of members, for a report and before one.

func (t *subreaper) Summary() Summary {
	return Summary{Ended: t.signalled.ended(), EndedMore: t.signalled.more, Usage: t.usage}
}

func (t *subreaper) Members(limit int) (list []Member, more bool) {
	t.proc.begin(time.Time{})
	list = t.members(limit)
	return list, !t.proc.end()
}

// members does that within a look.
func (t *subreaper) members(limit int) []Member {
	var list []Member
	t.walk(func(m *target) bool {
		s := &t.scratch
		if len(list) >= limit || !t.proc.stat(m.pid, s) || !m.exists() || !m.own && s.dead() {
			return false
		}
		list = append(list, Member{PID: m.pid, Parent: s.ppid, Start: s.start, Name: s.name(), State: s.state, Leader: m.pid == t.leader.pid, thread: s.thread})
		return true
	})
	return list
}

// Bounds of one look at which members hold a file.
const (
	holdsMembers = 512
	holdsFor     = 50 * time.Millisecond
)

func (t *subreaper) Holds(until time.Time) bool {
	limit := time.Now().Add(holdsFor)
	if until.Before(limit) {
		limit = until
	}
	t.proc.begin(limit)
	defer t.proc.end()
	members := t.members(holdsMembers)
	return t.proc.cut || len(members) == holdsMembers ||
		slices.ContainsFunc(members, func(m Member) bool { return t.proc.holds(m, t.leader.given) })
}

// survivorsFor is how long each of the two looks for survivors may take. They are not
// interrupted: the report is due.
const survivorsFor = 50 * time.Millisecond

func (t *subreaper) Survivors() []outcome.Survivor {
	t.proc.beginUninterrupted(time.Now().Add(survivorsFor))
	var list []outcome.Survivor
	for _, pid := range t.kin.list() {
		if len(list) == maxListed || t.proc.over() {
			break
		}
		// A zombie that only its tracer can see is dead and still there.
		if pid := int(pid); t.proc.stat(pid, &t.scratch) && t.scratch.state == 'Z' && stateOf(pid) == childAlive {
			list = append(list, t.proc.survivor(Member{PID: pid, Start: t.scratch.start, Name: t.scratch.name(), State: 'Z'}))
		}
	}
	t.proc.beginUninterrupted(time.Now().Add(survivorsFor))
	defer t.proc.end()
	for _, m := range t.members(maxListed - len(list)) {
		if m.State != 'Z' {
			list = append(list, t.proc.survivor(m))
		}
	}
	return list
}

func (p *procfs) survivor(m Member) outcome.Survivor {
	return outcome.Survivor{Process: m.Describe(), State: string(m.State), Reason: p.reason(m)}
}

// member describes the process of a row.
func (p *processTable) member(r tableRow) Member {
	m := Member{PID: r.PID, Parent: r.Parent, Start: r.Start, State: '?'}
	var s stat
	if p.stat(r.PID, &s) && s.start == r.Start {
		m.Name, m.State, m.thread = s.name(), s.state, s.thread
	}
	return m
}

// reason returns why SIGKILL has not ended m.
func (p *procfs) reason(m Member) string {
	var tracer, uid string
	for line := range strings.Lines(p.file(m, "/status")) {
		key, value, _ := strings.Cut(line, ":")
		switch key {
		case "TracerPid":
			tracer = strings.TrimSpace(value)
		case "Uid":
			uid, _, _ = strings.Cut(strings.TrimSpace(value), "\t")
		}
	}
	own := strconv.Itoa(unix.Getuid())
	switch {
	case m.State == 'Z' && tracer != "" && tracer != "0":
		return "traced by " + tracer
	case uid != "" && uid != own && unix.Geteuid() != 0:
		return "operation not permitted: it runs as uid " + uid
	case m.State == 'D':
		// Where it waits in the kernel; 0 if we have no right to know.
		where := p.file(m, "/wchan")
		switch {
		case strings.Contains(where, "refrigerator"), freezerIsOn(p.file(m, "/cgroup")):
			return "frozen: SIGKILL acts when it is thawed"
		case where == "" || where == "0":
			return "uninterruptible or frozen: SIGKILL is pending"
		}
		return "uninterruptible in " + where + ": SIGKILL is pending"
	}
	return "SIGKILL has not taken effect yet"
}

// freezerIsOn reports whether one of the cgroups in the content of a
// /proc/PID/cgroup is frozen. Since Linux 6.1 the freezer of cgroup v1 leaves a process that
// sleeps where it is, so that the place alone does not show it. What cgroup v2
// freezes can be killed.
func freezerIsOn(cgroups string) bool {
	for line := range strings.Lines(cgroups) {
		_, named, _ := strings.Cut(line, ":")
		if path, ok := strings.CutPrefix(strings.TrimSpace(named), "freezer:"); ok {
			fd, err := sys.Open("/sys/fs/cgroup/freezer"+path+"/freezer.state", unix.O_RDONLY, 0)
			if err != nil {
				return false
			}
			defer sys.Close(fd)
			var b [2]byte
			n, _ := sys.Read(fd, b[:])
			return string(b[:n]) == "FR" // FROZEN, or FREEZING
		}
	}
	return false
}

// file reads a small file in the directory of m; "" if it cannot be read.
func (p *procfs) file(m Member, name string) string {
	fd := p.openOf(unix.O_RDONLY, m.PID, m.thread, name)
	if fd < 0 {
		return ""
	}
	defer sys.RawClose(fd)
	return string(p.buf[:sys.RawReadAll(fd, p.buf[:])])
}

// bootTime is when the clock that start times count from began.
func bootTime() time.Time {
	var up unix.Timespec
	if unix.ClockGettime(unix.CLOCK_BOOTTIME, &up) != nil {
		return time.Time{}
	}
	return time.Now().Add(-time.Duration(up.Nano()))
}

func startedAt(start uint64) time.Time { return startTime(bootTime(), start) }

// tick is the unit of start times in /proc: Linux always reports 100 a second to user
// space.
const tick = time.Second / 100

// startTime converts ticks since boot.
func startTime(boot time.Time, ticks uint64) time.Time {
	if ticks == 0 || boot.IsZero() {
		return time.Time{}
	}
	return boot.Add(time.Duration(ticks) * tick).Truncate(tick)
}
