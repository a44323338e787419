package proctree

import (
	"os"

	"golang.org/x/sys/unix"
)

func checks() []Check {
	a := probed()
	_, err := newProcessTable(marking{}).readRows()
	marks := false
	if b, e := unix.SysctlRaw("kern.procargs2", os.Getpid()); e == nil {
		marks = len(b) > 4
	}
	return []Check{
		{"the process table can be read whole (kern.proc)", err == nil, false, "nothing is ever shown to be empty: the cleanup is unverified"},
		{"processes have IDs that are never used twice (proc_info 17)", a.IDs, false, "a parent is the process that has its pid in the same scan"},
		{"a parent's version is kept (macOS 15.4)", a.ParentVersions, false, "an orphan that executed something before it was in a scan is recognised by its environment or session only"},
		{"coalitions can be read (proc_info 20)", a.Coalitions, false, "every orphan that was started since is a suspect"},
		{"a signal can name a version (macOS 14.2)", a.ExactSignals, false, "the process that has the pid is compared right before the signal"},
		{"the environment of a process can be read (kern.procargs2)", marks, false, "orphans are not recognised by their mark"},
	}
}
