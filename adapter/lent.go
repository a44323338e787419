package adapter

import (
	"os"
	"slices"
	"sync"

	"curfew/internal/supervisor"
)

// lent has the files of the caller's that CLIs have at present. A CLI shares the open file
// description with the caller: flags that the CLI sets, such as O_NONBLOCK or O_ASYNC, and
// the process that the kernel is to signal, are changed for the caller too, and stay so.
// They are restored when no invocation has the file any more; before that, another CLI
// would see the change.
//
// No system call tells whether two descriptors are one open file description. So all
// files with one inode are restored at once, from the one that was lent last to the one
// that was lent first: its flags are from before any of the CLIs.
var lent = struct {
	sync.Mutex
	files map[fileID]*lentFile
}{files: map[fileID]*lentFile{}}

// fileID identifies an inode.
type fileID struct{ dev, ino uint64 }

type lentFile struct {
	users int
	kept  bool // processes that were left alive on purpose have it
	open  []openFile
}

// openFile has the *os.File of the caller's and no descriptor of its own, which would keep
// a pipe open that the caller has closed.
type openFile struct {
	file  *os.File
	flags supervisor.FileFlags
}

// hold returns the descriptor of f and keeps it open until release returns: if the caller
// closes f before that, the number does not become another file's. release is nil if f is
// closed. A duplicate would do the same, but to close it would drop the caller's POSIX
// locks on the file.
func hold(f *os.File) (fd int, release func()) {
	held, done := make(chan int), make(chan struct{})
	go func() {
		defer close(held)
		raw, err := f.SyscallConn()
		if err != nil {
			return
		}
		_ = raw.Control(func(fd uintptr) {
			// Fd makes a file that was non-blocking blocking, which is what a program
			// expects of its descriptors. It does not if f was closed just now.
			f.Fd()
			if !isClosed(f) {
				held <- int(fd)
				<-done
			}
		})
	}()
	fd, ok := <-held
	if !ok {
		return -1, nil
	}
	return fd, func() {
		close(done)
		<-held
	}
}

// lend notes that the CLI gets f, whose descriptor is fd, and the flags that f has.
func (w *wiring) lend(f *os.File, fd int) {
	id, err := idOf(fd)
	if err != nil {
		return
	}
	lent.Lock()
	defer lent.Unlock()
	l := lent.files[id]
	if l == nil {
		l = &lentFile{}
		lent.files[id] = l
	}
	l.users++
	w.lent = append(w.lent, id)
	if slices.ContainsFunc(l.open, func(o openFile) bool { return o.file == f }) {
		return // the flags of the first time count
	}
	if len(l.open) > 2*l.users {
		l.open = slices.DeleteFunc(l.open, func(o openFile) bool { return isClosed(o.file) })
	}
	l.open = append(l.open, openFile{f, supervisor.ReadFileFlags(fd)})
}

// isClosed reports whether f was closed. Fd would race with a Close.
func isClosed(f *os.File) bool {
	raw, err := f.SyscallConn()
	return err != nil || raw.Control(func(uintptr) {}) != nil
}

// takeBack restores the flags of the files that the CLI, which has ended, had. With left,
// processes that were left alive may rely on what they have set: it stays.
func (w *wiring) takeBack(left bool) {
	lent.Lock()
	defer lent.Unlock()
	for _, id := range w.lent {
		l := lent.files[id]
		l.kept = l.kept || left
		if l.users--; l.users > 0 {
			continue
		}
		delete(lent.files, id)
		for i := len(l.open) - 1; i >= 0 && !l.kept; i-- {
			if raw, err := l.open[i].file.SyscallConn(); err == nil {
				_ = raw.Control(func(fd uintptr) { l.open[i].flags.Restore(int(fd)) }) // fails if it was closed
			}
		}
	}
	w.lent = nil
}
