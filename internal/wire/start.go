package wire

import (
	"fmt"
	"math/rand/v2"
	"strings"
)

// argv[0] of the helpers, as ps shows them.
const (
	SupervisorName = "curfew-supervisor"
	GuardName      = "curfew-guard"
)

// The descriptors that a helper is started with, besides /dev/null as 0 to 2.
const (
	ControlFD = 3
	CallerFD  = 4 // a pidfd of the caller, or /dev/null where there are none
)

// The variables in the environment of helpers.
const (
	// HelperVar is set for every helper, and for no other process. It shows a helper that
	// was not taken over: an init function that ran before ours can have changed os.Args, or
	// started the program's own work.
	HelperVar = "CURFEW_HELPER"
	// RoomVar has the number of threads that the caller is going to need. Its first helper
	// checks that there is room for them.
	RoomVar = "CURFEW_HELPER_ROOM"
	// TrackerVar is set for a supervisor whose tree is to be held by scans of the process table.
	TrackerVar = "CURFEW_HELPER_TRACKER"
	// FrozenVar has the directory in which a supervisor notes the processes that it suspends,
	// where scans hold the trees: a later supervisor of this user ends what was left suspended.
	FrozenVar = "CURFEW_HELPER_FROZEN"
	// IDVar has the ID of a supervisor, which is in the name of its cgroup.
	IDVar = "CURFEW_HELPER_ID"
	// StateVar and PeerVar have the directory of the journal, if the caller has one, and the
	// caller's name in it.
	StateVar = "CURFEW_HELPER_STATE"
	PeerVar  = "CURFEW_HELPER_PEER"
)

// NewID returns an ID for a supervisor. No other supervisor has, had or will have it; a pid can be
// given to another process.
func NewID() string { return fmt.Sprintf("%016x%016x", rand.Uint64(), rand.Uint64()) }

// ValidID reports whether id can be that of a supervisor. It becomes a part of a file name.
func ValidID(id string) bool {
	const longest = 64
	return id != "" && len(id) <= longest && strings.IndexFunc(id, func(r rune) bool {
		return (r < '0' || r > '9') && (r < 'a' || r > 'z')
	}) < 0
}

// MarkPrefix begins the variables that name the invocations of which a process is a part: one
// variable for each, so that nesting hides nothing.
const MarkPrefix = "CURFEW_INVOCATION_"

// Mark returns the entry that everything in the tree of the invocation id inherits in its
// environment.
func Mark(id string) string { return MarkPrefix + id + "=1" }
