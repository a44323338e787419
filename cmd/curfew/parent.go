package main

import (
	"errors"
	"os"
	"time"
)

// startedBy is our parent as early as we can ask.
var startedBy = os.Getppid()

// parentPoll is how often the parent is looked for where nothing tells.
const parentPoll = 100 * time.Millisecond

// followParent returns a channel that is closed when the process that started
// curfew is gone; it is closed already if that process is gone by now.
func followParent() (<-chan struct{}, error) {
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
