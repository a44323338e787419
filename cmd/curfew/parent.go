package main

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"time"
)

// startedBy is our parent as early as we can ask.
var startedBy = os.Getppid()

// parentPoll is how often the parent is looked for where nothing tells.
const parentPoll = 100 * time.Millisecond

// parentFlag is whether to follow the parent, and its pid, 0 if that was not said.
type parentFlag struct {
	on  bool
	pid int
}

func (p *parentFlag) Type() string { return "PID" }

func (p *parentFlag) String() string {
	if p.pid > 0 {
		return strconv.Itoa(p.pid)
	}
	return strconv.FormatBool(p.on)
}

func (p *parentFlag) Set(s string) error {
	if on, err := strconv.ParseBool(s); err == nil && s != "1" && s != "0" {
		*p = parentFlag{on: on}
		return nil
	}
	pid, err := strconv.Atoi(s)
	if err != nil || pid <= 0 {
		return fmt.Errorf("%q is no process ID; write --with-parent, or --with-parent=PID", s)
	}
	*p = parentFlag{on: true, pid: pid}
	return nil
}

// followParent returns a channel that is closed when the process that started
// curfew is gone; it is closed already if that process is gone by now, which is
// certain if it is not pid, and pid is not 0.
func followParent(pid int) (<-chan struct{}, error) {
	if pid != 0 && startedBy != pid {
		gone := make(chan struct{})
		close(gone)
		return gone, nil
	}
	if startedBy == 0 {
		return nil, errors.New("--with-parent: the process that started curfew is in another pid namespace and cannot be observed")
	}
	if !parentIsOurs(startedBy) {
		gone := make(chan struct{})
		close(gone)
		return gone, nil
	}
	return watchParent(startedBy), nil
}

func pollParent(ppid int) <-chan struct{} {
	gone := make(chan struct{})
	if os.Getppid() != ppid {
		close(gone)
		return gone
	}
	go func() {
		for os.Getppid() == ppid {
			time.Sleep(parentPoll)
		}
		close(gone)
	}()
	return gone
}
