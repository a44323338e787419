package supervisor

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

func init() {
	roles["has a thief"] = hasAThiefRole
	roles["takes sockets"] = takesSocketsRole
}

// A CLI of the same user takes no descriptor of its supervisor or of the guard, and
// traces neither. It can itself be traced.
func TestHelpersAreNotDumpable(t *testing.T) { inRole(t, "has a thief") }

func hasAThiefRole([]string) error {
	if os.Geteuid() == 0 { // who may trace everybody
		if err := errors.Join(syscall.Setgroups(nil), syscall.Setgid(65534), syscall.Setuid(65534)); err != nil {
			return err
		}
	}
	var p Pool
	defer p.Close()
	h, err := p.Get(context.Background(), false)
	if err != nil {
		return err
	}
	defer p.Put(h)
	// The executable can lie where this user cannot go; the supervisor's link leads to it.
	os.Setenv(roleVar, "takes sockets")
	out, done, err := runOn(h, settings(), "/proc/self/exe", strconv.Itoa(h.pid), strconv.Itoa(h.guard.pid))
	if err != nil || out != "nothing\n" || done.Exit == nil || done.Exit.Code != 0 {
		return fmt.Errorf("%q, %+v, %v", out, done, err)
	}
	return nil
}

// takesSocketsRole prints what it can do to the processes that its arguments name.
func takesSocketsRole(args []string) error {
	var can []string
	for _, arg := range args {
		pid, err := strconv.Atoi(arg)
		if err != nil {
			return err
		}
		pidfd, err := unix.PidfdOpen(pid, 0)
		if err != nil {
			return err
		}
		if fd, err := unix.PidfdGetfd(pidfd, controlFD, 0); err != unix.EPERM {
			can = append(can, fmt.Sprintf("take the socket of %d: %d, %v", pid, fd, err))
		}
		if err := unix.PtraceSeize(pid); err != unix.EPERM {
			can = append(can, fmt.Sprintf("trace %d: %v", pid, err))
		}
		if f, err := os.Open(fmt.Sprintf("/proc/%d/fd/%d", pid, controlFD)); !errors.Is(err, os.ErrPermission) {
			can = append(can, fmt.Sprintf("read the descriptors of %d: %v, %v", pid, f, err))
		}
	}
	if own, err := unix.PrctlRetInt(unix.PR_GET_DUMPABLE, 0, 0, 0, 0); own != 1 || err != nil {
		can = append(can, fmt.Sprintf("not be traced itself: %d, %v", own, err))
	}
	if can == nil {
		can = []string{"nothing"}
	}
	fmt.Println(strings.Join(can, "; "))
	return nil
}
