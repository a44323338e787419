package proctree

import (
	"os"

	"golang.org/x/sys/unix"
)

// Checks tries what the ending of trees relies on here, and changes nothing.
func Checks() []Check {
	a := probed()
	_, err := newProcessTable(marking{}).Rows()
	marks := false
	if b, e := unix.SysctlRaw("kern.procargs2", os.Getpid()); e == nil {
		marks = len(b) > 4
	}
	return []Check{
		{"the process table can be read whole (kern.proc)", err == nil, false, "nothing is ever shown to be empty: the cleanup is unverified"},
		{"processes have IDs that are never used twice (proc_info 17)", a.IDs, false, "a parent is who has its pid in the same scan"},
		{"a parent's version is kept (macOS 15.4)", a.ParentVersions, false, "who executes something as an orphan, before it was in a scan, is told by its environment or session only"},
		{"coalitions are told (proc_info 20)", a.Coalitions, false, "every orphan that was started since is a suspect"},
		{"a signal can name a version (macOS 14.2)", a.ExactSignals, false, "who has the pid is compared right before the signal"},
		{"the environment of a process can be read (kern.procargs2)", marks, false, "orphans are not told by their mark"},
	}
}
