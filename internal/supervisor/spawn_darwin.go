package supervisor

import (
	"errors"
	"fmt"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// attributes returns how a helper is started.
func (h *helper) attributes() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setsid: true} }

// ownExecutable returns what to start helpers from.
func ownExecutable() (string, error) {
	path, err := os.Executable()
	if err != nil {
		return "", fmt.Errorf("%w: our executable cannot be found: %w; set Options.Supervisor to an installed curfew", errRefused, err)
	}
	return path, nil
}

// ownPidfd fails: there are no pidfds here.
func ownPidfd() (int, error) { return -1, unix.ENOSYS }

// privileged returns why the executable at path must not be started as a helper: it would get
// privileges that we do not have.
func privileged(path string) error {
	fi, err := os.Stat(path)
	if err == nil && fi.Mode()&(os.ModeSetuid|os.ModeSetgid) != 0 {
		err = errors.New("the executable is setuid or setgid")
	}
	return err
}

// anyDir opens a directory.
const anyDir = unix.O_RDONLY
