package supervisor

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	pathpkg "path"
	"runtime"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"curfew/internal/fault"
	"curfew/internal/sys"
)

// attributes returns how a helper is started; its pidfd goes to h.
func (h *helper) attributes() *syscall.SysProcAttr {
	// A suspended helper must see to what it holds when we are gone.
	return &syscall.SysProcAttr{Setsid: true, PidFD: &h.pidfd, Pdeathsig: syscall.SIGCONT}
}

// initThread is the thread that initialises the packages. In a Go program that is the main thread;
// in a library the runtime has started a thread for it.
var initThread = unix.Gettid()

// loadedBy describes how this package was loaded, if the executable is not the program that it is
// a part of; else it returns "". Nothing is assumed about what cannot be read.
func loadedBy() string {
	if initThread != unix.Getpid() {
		return "this is a c-archive or c-shared library, or a plugin"
	}
	const startCode, endCode = 26 - 3, 27 - 3 // of proc(5), after the name and from the third field on
	b, err := os.ReadFile("/proc/self/stat")
	if err != nil {
		return ""
	}
	_, _, rest, _ := sys.StatFields(b)
	fields := bytes.Fields(rest)
	if len(fields) <= endCode {
		return ""
	}
	start, _ := strconv.ParseUint(string(fields[startCode]), 10, 64)
	end, _ := strconv.ParseUint(string(fields[endCode]), 10, 64) // 0 where the kernel does not report it, as gVisor's
	if pc, _, _, ok := runtime.Caller(0); ok && end > start && (uint64(pc) < start || uint64(pc) >= end) {
		return "this is a plugin or a shared library, or the program was started by naming it to a loader"
	}
	return ""
}

// ownExecutable returns what to start helpers from.
func ownExecutable() (string, error) {
	// The link works for an executable that was deleted or replaced too.
	path := "/proc/self/exe"
	if why := loadedBy(); why != "" {
		return "", notOurs(why)
	}
	if _, err := os.Stat(path); err != nil {
		// Without /proc only the name is known that we were started by.
		wd, err := os.Getwd()
		if path = os.Args[0]; !strings.Contains(path, "/") || err != nil && !pathpkg.IsAbs(path) {
			return "", fmt.Errorf("%w: without /proc our executable cannot be found by %q; start it by its path, or set Options.Supervisor to an installed curfew", errRefused, path)
		}
		if !pathpkg.IsAbs(path) {
			path = pathpkg.Join(wd, path)
		}
	}
	return path, nil
}

func ownPidfd() (int, error) {
	if err := sys.Fault(fault.PidfdOpen); err != nil {
		return -1, err
	}
	return unix.PidfdOpen(unix.Getpid(), 0)
}

// privileged returns why the executable at path must not be started as a helper: it would get
// privileges that we do not have.
func privileged(path string) error {
	fi, err := os.Stat(path)
	if err != nil {
		return err
	}
	if fi.Mode()&(os.ModeSetuid|os.ModeSetgid) != 0 {
		return errors.New("the executable is setuid or setgid")
	}
	var buf [64]byte
	if n, err := unix.Getxattr(path, "security.capability", buf[:]); err == nil && n > 0 {
		return errors.New("the executable has file capabilities")
	}
	return nil
}

// anyDir opens a directory that need not be readable.
const anyDir = unix.O_PATH
