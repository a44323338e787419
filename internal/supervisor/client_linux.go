package supervisor

import (
	"time"

	"curfew/outcome"
	"curfew/proctree"
)

// Sweep ends what carries the mark of an invocation whose supervisor is lost, and ends the
// supervisor's guard. See proctree.Sweep.
func (c *Client) Sweep(mark string, _ int, since, until time.Time) ([]outcome.Ended, []outcome.Process) {
	// A supervisor that does not die must not take all the time there is.
	ended := time.Now().Add(time.Until(until) / 2)
	c.awaitEnd(ended)
	if c.guard != nil {
		c.guard.Kill()
		c.guard.awaitEnd(ended)
	}
	if c.pid != 0 {
		proctree.EndCgroup(c.Group(), until)
	}
	return proctree.Sweep(proctree.Lost{Mark: mark, Cgroup: c.Cgroup(), TreeCgroup: c.Group(), Since: since}, until)
}

// Sweep ends what carries the mark of an invocation whose caller and helpers are all lost;
// group is what Client.Group returned. See proctree.Sweep.
func Sweep(mark, cgroup, group string, since, until time.Time) ([]outcome.Ended, []outcome.Process) {
	return proctree.Sweep(proctree.Lost{Mark: mark, Cgroup: cgroup, TreeCgroup: group, Since: since}, until)
}

func groupName(pid int, id string) string { return proctree.CgroupName(pid, id) }
