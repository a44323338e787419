package proctree

// What leftovers do with their files is not read on macOS: each may have output to write.

// fileName returns a name for any file. Nothing is compared with it: see holds.
func fileName(int) string { return "?" }

// holds reports whether m may still have output to write: see Tree.Holds.
func (p *processTable) holds(Member, []string) bool { return true }

// isFed reports whether the stdin of a process is a pipe, a FIFO or a socket that was not
// given.
func (p *processTable) isFed(int, []string) bool { return false }
