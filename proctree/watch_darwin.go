package proctree

import (
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// watcher reports that members fork, execute something or exit.
type watcher struct {
	kq     int
	notify int // what to write to

	mu    sync.Mutex
	known map[identity]bool
}

// paceIdle is how often the table is scanned although nothing was reported.
const paceIdle = 2 * time.Second

// betweenNews is the least time between two reports.
const betweenNews = 2 * time.Millisecond

func newWatcher(notify int) (*watcher, error) {
	kq, err := unix.Kqueue()
	if err != nil {
		return nil, err
	}
	unix.CloseOnExec(kq)
	w := &watcher{kq: kq, notify: notify}
	go w.listen()
	return w, nil
}

// listen passes on that something has happened. An exit is reported twice: the first time
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
		notify(w.notify)
		time.Sleep(betweenNews)
		for _, e := range events[:n] {
			if e.Fflags&unix.NOTE_EXIT != 0 {
				notify(w.notify)
				break
			}
		}
	}
}

// reset forgets which processes are watched.
func (w *watcher) reset() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.known = map[identity]bool{}
}

// add watches members too. One that is exiting cannot be watched, and need not be.
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
