package supervisor

import (
	"time"

	"curfew/internal/wire"
	"curfew/outcome"
	"curfew/proctree"
)

// Sweep ends what is left of an invocation whose supervisor is lost. See proctree.Sweep.
func (c *Client) Sweep(mark string, leader int, since, until time.Time) ([]outcome.Ended, []outcome.Process) {
	c.awaitEnd(until)
	return proctree.Sweep(proctree.Lost{Mark: mark, MarkPrefix: wire.MarkPrefix, Leader: leader, Since: since}, until)
}

// Sweep ends what is left of an invocation whose caller and helpers are all lost. See
// proctree.Sweep.
func Sweep(mark, _, _ string, since, until time.Time) ([]outcome.Ended, []outcome.Process) {
	return proctree.Sweep(proctree.Lost{Mark: mark, MarkPrefix: wire.MarkPrefix, Since: since}, until)
}

func groupName(int, string) string { return "" }
