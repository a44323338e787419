//go:build unix && !linux

package adapter

import "golang.org/x/sys/unix"

const dirFlags = unix.O_RDONLY | unix.O_DIRECTORY | unix.O_CLOEXEC
