package proctree

import (
	"bytes"
	"fmt"
	"time"

	"golang.org/x/sys/unix"
)

// What can be read of members, for a report and before one.

// member describes the process of a row.
func (p *processTable) member(r tableRow) Member {
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

// reason returns why SIGKILL has not ended m.
func (p *processTable) reason(m Member) string {
	k, err := kinfo(m.PID)
	if err == nil && int(k.Eproc.Ucred.Uid) != unix.Getuid() && unix.Geteuid() != 0 {
		return fmt.Sprintf("operation not permitted: it runs as uid %d", k.Eproc.Ucred.Uid)
	}
	return "SIGKILL has not taken effect yet"
}

// startedAt converts the start in a row.
func startedAt(start uint64) time.Time {
	if start == 0 {
		return time.Time{}
	}
	return time.UnixMicro(int64(start))
}
