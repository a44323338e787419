package proctree

import "time"

// watcher reports forks where the system does. Linux does not to this process, and so the
// scans come by the clock.
type watcher struct{}

// paceIdle is how often the table is scanned although nothing was reported.
const paceIdle = 250 * time.Millisecond

func newWatcher(int) (*watcher, error) { return nil, nil }
func (w *watcher) reset()              {}
func (w *watcher) add([]*entry)        {}
