package supervisor

import (
	"fmt"
	"strconv"

	"curfew/internal/wire"
)

// State is what a process started from a thread inherits from it, in the form
// it has after an exec: a helper was started from a thread in one state, and
// may start a CLI for a thread only if that one is in the same state now.
// Fields that cannot be read here are empty on both sides.
type State [wire.StateFields]string

// stateNames names the fields for people, in the order of State.
var stateNames = State{
	"user ids", "group ids", "supplementary groups",
	"inheritable capabilities", "capability bounding set", "ambient capabilities",
	"no_new_privs", "seccomp filters", "umask", "CPU affinity and memory nodes",
	"securebits, personality and timer slack", "resource limits", "scheduling and I/O priority",
	"oom_score_adj", "root directory", "namespaces", "cgroup and security label",
}

// Differs returns the name of the first field in which s and other differ, ""
// if they are equal.
func (s *State) Differs(other *State) string {
	for i := range s {
		if s[i] != other[i] {
			return fmt.Sprintf("%s (%s here, %s in the helper)", stateNames[i], strconv.Quote(s[i]), strconv.Quote(other[i]))
		}
	}
	return ""
}
