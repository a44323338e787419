package journal

import (
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

func fsync(fd int) error { return unix.Fsync(fd) }

// BootID tells one boot of the system from another (random(4)). It is "" where
// /proc is not there.
func BootID() string {
	id, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(id))
}
