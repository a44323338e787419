package proctree

// How it is done on macOS: there is no subreaper and no pidfd, so trees are tracked by
// scans of the process table. tracked.go has the Tree, tracker.go decides what is a
// member, and this package's other files for macOS read the table (scan_), send signals to
// exact processes (signal_), and wake the scans (watch_). Where this falls short: a process
// that leaves its session, hides its environment and lives for a shorter time than the
// time between two scans can get away.

func openTree(o Options) (Tree, error) { return openTracked(o) }

// resetIgnored does nothing: the Go runtime has handlers for what can be ignored,
// except for the signals of job control, which a leader gets as we have them.
func resetIgnored() {}

// becomeForking returns 0: a child inherits from the whole process.
func becomeForking() int { return 0 }
