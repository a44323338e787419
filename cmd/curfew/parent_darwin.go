package main

import (
	"os"

	"golang.org/x/sys/unix"

	"curfew/internal/sys"
)

// watchParent returns a channel that is closed when process ppid, our parent,
// is gone.
func watchParent(ppid int) <-chan struct{} {
	kq, err := unix.Kqueue()
	if err != nil {
		return pollParent(ppid)
	}
	unix.CloseOnExec(kq)
	var ev unix.Kevent_t
	unix.SetKevent(&ev, ppid, unix.EVFILT_PROC, unix.EV_ADD|unix.EV_ONESHOT)
	ev.Fflags = unix.NOTE_EXIT
	_, err = unix.Kevent(kq, []unix.Kevent_t{ev}, nil, nil)
	gone := make(chan struct{})
	switch {
	case err == unix.ESRCH, os.Getppid() != ppid:
		unix.Close(kq)
		close(gone)
		return gone
	case err != nil:
		unix.Close(kq)
		return pollParent(ppid)
	}
	go func() {
		defer close(gone)
		events := make([]unix.Kevent_t, 1)
		_ = sys.Retry(func() error {
			_, err := unix.Kevent(kq, nil, events, nil)
			return err
		})
	}()
	return gone
}
