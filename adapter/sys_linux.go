package adapter

import "golang.org/x/sys/unix"

// A directory that can be entered need not be readable.
const dirFlags = unix.O_PATH | unix.O_DIRECTORY | unix.O_CLOEXEC
