package wire

// argv[0] of the helpers, and what people see in ps.
const (
	SupervisorName = "curfew-supervisor"
	GuardName      = "curfew-guard"
)

// The descriptors a helper is started with, besides /dev/null on 0 to 2.
const (
	ControlFD = 3
	CallerFD  = 4 // a pidfd of the caller, or /dev/null where there are none
)

// HelperVar is in the environment of every helper, and of nothing else. It tells
// a helper that was not taken over: an init function that ran before ours can
// have changed os.Args, or started the program's own work.
const HelperVar = "CURFEW_HELPER"

// RoomVar tells the first helper of a caller for how many threads of that there must be
// room, too: see prepareCaller.
const RoomVar = "CURFEW_HELPER_ROOM"

// TrackerVar tells a supervisor that scans of the process table are to hold its tree.
const TrackerVar = "CURFEW_HELPER_TRACKER"

// FrozenVar has the directory in which a supervisor notes whom it suspends, where scans
// hold the trees: any later one of this user ends what was left suspended.
const FrozenVar = "CURFEW_HELPER_FROZEN"

// IDVar has the id of a supervisor, which is in the name of its cgroup.
const IDVar = "CURFEW_HELPER_ID"

// The directory of the journal and the caller's name in it are in the
// environment of every helper that a caller with a journal starts.
const (
	StateVar = "CURFEW_HELPER_STATE"
	PeerVar  = "CURFEW_HELPER_PEER"
)
