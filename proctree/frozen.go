//go:build linux || darwin

package proctree

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	pathpkg "path"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// What is suspended is written down before, in a file that is locked as long as we
// live: should we be killed between the suspending and the ending, a later start finds
// it unlocked and ends what is named there, which nobody else would ever resume.

// frozen is that file. The zero value suspends nothing.
type frozen struct {
	dir   string // where such files are; "" if there is no place for one
	boot  string // names this run of the system: processes of another are gone
	file  *os.File
	noted map[identity]bool
}

// frozenProcess is a line of the file.
type frozenProcess struct {
	Boot  string `json:"boot"`
	PID   int    `json:"pid"`
	Start uint64 `json:"start"`
	ID    uint64 `json:"id,omitempty"`
}

// openFrozen takes a directory that is, or is to be, ours alone, and has a goroutine
// end what others have left in it.
func openFrozen(dir, boot string) *frozen {
	f := &frozen{boot: boot, noted: map[identity]bool{}}
	if dir == "" || boot == "" {
		return f
	}
	f.dir = dir
	if oursAlone(dir) == nil {
		go endFrozen(dir, boot)
	}
	return f
}

// oursAlone reports why nobody must rely on what is in a directory.
func oursAlone(dir string) error {
	var st unix.Stat_t
	if err := unix.Lstat(dir, &st); err != nil {
		return &os.PathError{Op: "lstat", Path: dir, Err: err}
	}
	if st.Mode&unix.S_IFMT != unix.S_IFDIR || int(st.Uid) != unix.Geteuid() || st.Mode&0o077 != 0 {
		return fmt.Errorf("proctree: %s is not a directory that is ours alone", dir)
	}
	return nil
}

// note writes down those of the rows that are not yet. On an error they must not be
// suspended.
func (f *frozen) note(rows []Row) error {
	var lines []byte
	for _, r := range rows {
		if f.noted[r.identity()] {
			continue
		}
		line, err := json.Marshal(frozenProcess{f.boot, r.PID, r.Start, r.ID})
		if err != nil {
			return err
		}
		lines = append(append(lines, line...), '\n')
	}
	if len(lines) == 0 {
		return nil
	}
	if err := f.open(); err != nil {
		return err
	}
	if _, err := f.file.Write(lines); err != nil {
		return err
	}
	for _, r := range rows {
		f.noted[r.identity()] = true
	}
	return nil
}

func (f *frozen) open() error {
	if f.file != nil {
		return nil
	}
	if f.dir == "" {
		return errors.ErrUnsupported
	}
	// Who is the last to need the directory removes it.
	if err := os.Mkdir(f.dir, 0o700); err != nil && !errors.Is(err, os.ErrExist) {
		return err
	}
	if err := oursAlone(f.dir); err != nil {
		return err
	}
	file, err := os.CreateTemp(f.dir, strconv.Itoa(unix.Getpid())+"-*")
	if err != nil {
		return err
	}
	// Somebody else can have looked at it in between, and removes it then.
	if err := lock(file); err != nil {
		return errors.Join(err, file.Close())
	}
	if _, err := os.Lstat(file.Name()); err != nil {
		return errors.Join(err, file.Close())
	}
	f.file = file
	return nil
}

func lock(file *os.File) error {
	for {
		err := unix.Flock(int(file.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err != unix.EINTR {
			return os.NewSyscallError("flock", err)
		}
	}
}

// clear forgets all, when nobody is suspended any more.
func (f *frozen) clear() {
	clear(f.noted)
	if f.file != nil {
		_ = os.Remove(f.file.Name())
		_ = f.file.Close()
		f.file = nil
		_ = unix.Rmdir(f.dir) // fails if somebody else has a file there
	}
}

// endFrozenLimit is how long endFrozen tries with each file. It goes on at the next start.
const endFrozenLimit = 5 * time.Second

// endFrozen ends what those have suspended who were killed before they could end it.
func endFrozen(dir, boot string) {
	entries, _ := os.ReadDir(dir)
	for _, e := range entries {
		path := pathpkg.Join(dir, e.Name())
		file, err := os.OpenFile(path, os.O_RDWR|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
		if err != nil {
			continue
		}
		if lock(file) == nil {
			if endNoted(file, boot) {
				_ = os.Remove(path)
			}
		}
		_ = file.Close()
	}
	_ = unix.Rmdir(dir)
}

// endNoted ends the processes that file names and what descends from them, and reports
// whether they are gone.
func endNoted(file *os.File, boot string) bool {
	table := newProcessTable(marking{})
	var t *Tracker
	lines := bufio.NewScanner(file)
	for lines.Scan() {
		var p frozenProcess
		if json.Unmarshal(lines.Bytes(), &p) != nil || p.Boot != boot {
			continue
		}
		r, err := table.row(p.PID)
		if was := (Row{PID: p.PID, Start: p.Start, ID: p.ID}); err != nil || r.identity() != was.identity() {
			continue // it is gone
		}
		if t == nil {
			t = newOrphanTracker(0, r.Coalition, r.Start)
		}
		t.root.Start = min(t.root.Start, r.Start)
		t.ids[r.identity()] = 0
	}
	return t == nil || t.End(table, time.Now().Add(endFrozenLimit))
}
