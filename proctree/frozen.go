//go:build linux || darwin

package proctree

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	pathpkg "path"
	"time"

	"golang.org/x/sys/unix"

	"curfew/internal/lease"
	"curfew/internal/sys"
)

// Processes that are about to be suspended are recorded before, in a file that this
// process holds for as long as it lives. Should it be killed before it has ended them, a
// later start takes the file and ends the processes that it names: no other process would
// ever resume them.

// frozen is that file. The zero value suspends nothing.
type frozen struct {
	dir   string // where such files are; "" if there is no place for one
	boot  string // identifies this run of the system: processes of another are gone
	file  *lease.Lease
	noted map[identity]bool
}

// frozenProcess is a line of the file.
type frozenProcess struct {
	Boot  string `json:"boot"`
	PID   int    `json:"pid"`
	Start uint64 `json:"start"`
	ID    uint64 `json:"id,omitempty"`
}

// openFrozen uses a directory to which only this user has access, or which does not exist yet.
// It starts a goroutine that ends what lost holders have left in it.
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

// oursAlone returns an error if other users could have written what is in a directory.
func oursAlone(dir string) error {
	var st unix.Stat_t
	if err := unix.Lstat(dir, &st); err != nil {
		return &os.PathError{Op: "lstat", Path: dir, Err: err}
	}
	if st.Mode&unix.S_IFMT != unix.S_IFDIR || int(st.Uid) != unix.Geteuid() || st.Mode&0o077 != 0 {
		return fmt.Errorf("proctree: use %s: it is not a directory of this user alone", dir)
	}
	return nil
}

// note records those of the rows that are not recorded yet. On an error they must not be
// suspended.
func (f *frozen) note(rows []tableRow) error {
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
	// The last process that needs the directory removes it.
	if err := os.Mkdir(f.dir, 0o700); err != nil && !errors.Is(err, os.ErrExist) {
		return err
	}
	if err := oursAlone(f.dir); err != nil {
		return err
	}
	path := pathpkg.Join(f.dir, fmt.Sprintf("%d-%016x", unix.Getpid(), rand.Uint64()))
	file, err := lease.Create(path, path+".new") // it fails if another process looks at it meanwhile
	if err != nil {
		return err
	}
	f.file = file
	return nil
}

// clear drops the records, when nothing is suspended any more.
func (f *frozen) clear() {
	clear(f.noted)
	if f.file != nil {
		_ = sys.Remove(f.file.Path)
		f.file.Release()
		f.file = nil
		_ = unix.Rmdir(f.dir) // fails if another process has a file there
	}
}

// endFrozenLimit is how long endFrozen tries with each file. It goes on at the next start.
const endFrozenLimit = 5 * time.Second

// endFrozen ends what holders have suspended that were killed before they could end it.
func endFrozen(dir, boot string) {
	entries, _ := os.ReadDir(dir)
	for _, e := range entries {
		path := pathpkg.Join(dir, e.Name())
		file, err := lease.Take(path)
		if err != nil {
			continue // the holder that has suspended them lives, and ends them itself
		}
		if endNoted(file, boot) {
			_ = sys.Remove(path)
		}
		file.Release()
	}
	_ = unix.Rmdir(dir)
}

// endNoted ends the processes that file names and what descends from them, and reports
// whether they are gone.
func endNoted(file io.Reader, boot string) bool {
	table := newProcessTable(marking{})
	var t *tracker
	lines := bufio.NewScanner(file)
	for lines.Scan() {
		var p frozenProcess
		if json.Unmarshal(lines.Bytes(), &p) != nil || p.Boot != boot {
			continue
		}
		r, err := table.row(p.PID)
		if was := (tableRow{PID: p.PID, Start: p.Start, ID: p.ID}); err != nil || r.identity() != was.identity() {
			continue // it is gone
		}
		if t == nil {
			t = newOrphanTracker(0, r.Coalition, r.Start)
		}
		t.root.Start = min(t.root.Start, r.Start)
		t.past.ids[r.identity()] = 0
	}
	return t == nil || t.end(table, time.Now().Add(endFrozenLimit))
}
