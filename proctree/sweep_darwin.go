package proctree

import (
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"curfew/outcome"
)

// sweepLost ends what is in the session of the leader, or carries the mark, and what
// descends from those, as far as it was started at or after Since. Orphans of the same
// coalition of which nothing else is known are suspects.
func sweepLost(l Lost, until time.Time) (ended []outcome.Ended, suspects []outcome.Process) {
	w := &sweepTable{processTable: newProcessTable(marking{prefix: l.MarkPrefix, mark: l.Mark})}
	own, err := w.row(unix.Getpid())
	if err != nil {
		return nil, nil
	}
	t := newOrphanTracker(l.Leader, own.Coalition, uint64(l.Since.UnixMicro()))
	t.end(w, until)
	for _, r := range t.suspected() {
		suspects = append(suspects, w.member(r).Describe())
	}
	return w.ended, suspects
}

// sweepTable notes what it ends.
type sweepTable struct {
	*processTable
	ended []outcome.Ended
}

func (w *sweepTable) signal(r *tableRow, sig syscall.Signal) error {
	m := w.member(*r)
	err := w.processTable.signal(r, sig)
	if err == nil && sig == syscall.SIGKILL && len(w.ended) < maxListed {
		w.ended = append(w.ended, outcome.Ended{Process: m.Describe(), LastSignal: int(sig)})
	}
	return err
}
