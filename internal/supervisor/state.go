package supervisor

import (
	"fmt"
	"strconv"

	"curfew/internal/wire"
)

// State is what a process inherits from the thread that starts it, in the form that it has after
// an exec. A helper was started from a thread in one state, and may start a CLI for a thread only
// if that thread is in the same state. Fields that cannot be read on a system are empty.
type State [wire.StateFields]string

// stateNames are the names of the fields in error messages.
var stateNames = State{
	"user ids", "group ids", "supplementary groups",
	"inheritable capabilities", "capability bounding set", "ambient capabilities",
	"no_new_privs", "seccomp filters", "umask", "CPU affinity and memory nodes",
	"securebits, personality and timer slack", "resource limits", "scheduling and I/O priority",
	"oom_score_adj", "root directory", "namespaces", "cgroup and security label",
}

// Differs describes the first field in which s, which is ours, and other, which is a helper's,
// differ. It returns "" if they are equal.
func (s *State) Differs(other *State) string {
	for i := range s {
		if s[i] != other[i] {
			return fmt.Sprintf("%s (%s here, %s in the helper)", stateNames[i], strconv.Quote(s[i]), strconv.Quote(other[i]))
		}
	}
	return ""
}
