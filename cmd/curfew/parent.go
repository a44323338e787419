package main

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"time"
)

// startedBy is our parent, as early as it can be read.
var startedBy = os.Getppid()

// parentPoll is how often the parent is checked where the system does not report its end.
const parentPoll = 100 * time.Millisecond

// parentFlag says whether to follow the parent, and has its pid, 0 if none was given.
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
		return fmt.Errorf("%q is not a process ID; write --with-parent, or --with-parent=PID", s)
	}
	*p = parentFlag{on: true, pid: pid}
	return nil
}

// gone returns why there is no process to follow.
func (p *parentFlag) gone() error {
	if p.pid != 0 && p.pid != startedBy {
		return fmt.Errorf("process %d has ended, or did not start curfew: --with-parent=PID takes the pid of the process that started it", p.pid)
	}
	return errParentGone
}

// followParent returns a channel that is closed when the process that started
// curfew has ended. If pid is not 0 and not our parent, that process has ended already.
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
