package adapter

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"curfew/internal/supervisor"
	"curfew/outcome"
)

func init() {
	// A CLI that changes what it shares with others of its open files: signals about
	// them go to the pid that is its first argument. Then it says so on its
	// descriptor 4, and goes on until its descriptor 5 ends.
	roles["change flags"] = func(args []string) error {
		owner, err := strconv.Atoi(args[0])
		if err != nil {
			return err
		}
		for fd := range uintptr(4) {
			flags, err := unix.FcntlInt(fd, unix.F_GETFL, 0)
			if err != nil {
				return err
			}
			_, err = unix.FcntlInt(fd, unix.F_SETOWN, owner)
			_, err2 := unix.FcntlInt(fd, unix.F_SETSIG, int(unix.SIGUSR2))
			_, err3 := unix.FcntlInt(fd, unix.F_SETFL, flags^unix.O_NONBLOCK|unix.O_ASYNC)
			if err := errors.Join(err, err2, err3); err != nil {
				return err
			}
		}
		if len(args) > 1 {
			fmt.Fprintln(os.NewFile(4, "ready"), "changed")
			_, _ = os.NewFile(5, "wait").Read(make([]byte, 1))
		}
		return nil
	}
	roles["show and change flags"] = func([]string) error {
		flags, err := unix.FcntlInt(0, unix.F_GETFL, 0)
		fmt.Println(flags & (unix.O_NONBLOCK | unix.O_APPEND))
		_, err2 := unix.FcntlInt(0, unix.F_SETFL, flags|unix.O_NONBLOCK|unix.O_APPEND)
		return errors.Join(err, err2)
	}
}

// changer is a Command for the role, and what holds it up: nil if nothing does.
func changer(t *testing.T, wait bool, files ...*os.File) (c Command, changed func(), goOn func()) {
	t.Helper()
	c = Command{Path: os.Args[0], Args: []string{strconv.Itoa(os.Getppid())}, Env: append(os.Environ(), roleVar+"=change flags")}
	c.Stdin, c.Stdout, c.Stderr, c.ExtraFiles = files[0], files[1], files[2], []*os.File{files[3]}
	if !wait {
		return c, nil, nil
	}
	c.Args = append(c.Args, "wait")
	out, said := pipeFiles(t)
	held, hold := pipeFiles(t)
	c.ExtraFiles = append(c.ExtraFiles, said, held)
	return c, func() {
		if line, err := bufio.NewReader(out).ReadString('\n'); err != nil {
			t.Error(line, err)
		}
	}, func() { _ = hold.Close() }
}

func pipeFiles(t *testing.T) (r, w *os.File) {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = r.Close()
		_ = w.Close()
	})
	return r, w
}

// sockets are files that all take O_ASYNC.
func sockets(t *testing.T, nonblock bool) []*os.File {
	t.Helper()
	var files []*os.File
	for range 2 {
		pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		for _, fd := range pair {
			if err := unix.SetNonblock(fd, nonblock); err != nil {
				t.Fatal(err)
			}
			f := os.NewFile(uintptr(fd), "socket")
			t.Cleanup(func() { _ = f.Close() })
			files = append(files, f)
		}
	}
	return files
}

func flagsOf(files []*os.File) (all []supervisor.FileFlags) {
	for _, f := range files {
		all = append(all, supervisor.ReadFileFlags(int(f.Fd())))
	}
	return all
}

// What a CLI has changed of the caller's own open files is put back when it is over: a
// blocking file blocks again, one that was not blocking is not, and the kernel signals
// nobody.
func TestFlagsArePutBack(t *testing.T) {
	for _, nonblock := range []bool{false, true} {
		t.Run(fmt.Sprintf("nonblock %v", nonblock), func(t *testing.T) {
			files := sockets(t, nonblock)
			if _, err := unix.FcntlInt(files[3].Fd(), unix.F_SETOWN, os.Getpid()); err != nil {
				t.Fatal(err)
			}
			before := flagsOf(files)
			c, _, _ := changer(t, false, files...)
			if _, err := Invoke(t.Context(), c); err != nil {
				t.Fatal(err)
			}
			sameFlags(t, "afterwards", files, before, false)
		})
	}
}

func sameFlags(t *testing.T, when string, files []*os.File, want []supervisor.FileFlags, changed bool) {
	t.Helper()
	for i, got := range flagsOf(files) {
		if (got != want[i]) != changed {
			t.Errorf("%s file %d has the flags %+v, and had %+v", when, i, got, want[i])
		}
	}
}

// A file that several CLIs have is put back when the last of them is over, to what it
// was before the first, also where they had it by different descriptors.
func TestFlagsOfAFileOfSeveral(t *testing.T) {
	a := newAdapter(t)
	files := sockets(t, false)
	before := flagsOf(files)
	type running struct{ goOn, over func() }
	start := func(files []*os.File) running {
		c, changed, goOn := changer(t, true, files...)
		done := make(chan error, 1)
		go func() {
			_, err := a.Invoke(t.Context(), c)
			done <- err
		}()
		changed()
		return running{goOn, func() {
			if err := <-done; err != nil {
				t.Error(err)
			}
		}}
	}
	first := start(files)
	sameFlags(t, "while the first has it, after", files, before, true)
	var copies []*os.File
	for _, f := range files {
		fd, err := unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		copied := os.NewFile(uintptr(fd), "copy")
		t.Cleanup(func() { _ = copied.Close() })
		copies = append(copies, copied)
	}
	second := start(copies)
	now := flagsOf(files)
	first.goOn()
	first.over()
	sameFlags(t, "while the second has it,", files, now, false)
	third := start(files)
	second.goOn()
	second.over()
	third.goOn()
	third.over()
	sameFlags(t, "afterwards", files, before, false)
	lent.Lock()
	defer lent.Unlock()
	if len(lent.files) > 0 {
		t.Errorf("%d files are lent still", len(lent.files))
	}
}

// Where processes were left on purpose, they go on with the file as it is; and a caller
// that has closed its file has nothing to put back.
func TestFlagsAreLeft(t *testing.T) {
	files := sockets(t, false)
	before := flagsOf(files)
	c, _, _ := changer(t, false, files...)
	c.Args, c.Path = append([]string{"-c", `"$0" "$@"; sleep 20 & exit 0`, c.Path}, c.Args...), "sh"
	c.AfterExit = AfterExitLeave
	o, err := Invoke(t.Context(), c)
	if err != nil || o.Cleanup.Result != outcome.CleanupLeft || len(o.Cleanup.LeftAlive) != 1 {
		t.Fatal(o.Cleanup, err)
	}
	sameFlags(t, "while somebody has it, after", files, before, true)
	if err := unix.Kill(o.Cleanup.LeftAlive[0].PID, unix.SIGKILL); err != nil {
		t.Error(err)
	}

	files = sockets(t, false)
	c, changed, goOn := changer(t, true, files...)
	go func() {
		changed()
		_ = files[1].Close()
		goOn()
	}()
	if _, err := Invoke(t.Context(), c); err != nil {
		t.Error(err)
	}
}

// A supervisor gives each CLI without a Stdin the same /dev/null, which is the caller's
// CLIs' alone: what one changes, the next one does not find.
func TestNextCLIFindsNoFlags(t *testing.T) {
	a := newAdapter(t, Options{MaxIdle: 1})
	c := Command{Path: os.Args[0], Env: append(os.Environ(), roleVar+"=show and change flags")}
	for range 3 {
		o, err := a.Invoke(t.Context(), c)
		if err != nil || string(o.Stdout) != "0\n" {
			t.Errorf("its flags are %s, %v", o.Stdout, err)
		}
	}
}

// onStart is a slog.Handler that calls a function between the check of a command and its
// start.
type onStart struct {
	slog.Handler
	do func()
}

func (onStart) Enabled(context.Context, slog.Level) bool { return true }

func (h onStart) Handle(_ context.Context, r slog.Record) error {
	if r.Message == "curfew: start" {
		h.do()
	}
	return nil
}

// A CLI gets the file that it was given, also if the caller closes that file and opens
// another one, which takes its number, before the request is sent.
func TestFileIsClosedBeforeTheRequest(t *testing.T) {
	dir := t.TempDir()
	create := func(name string) *os.File {
		f, err := os.Create(filepath.Join(dir, name))
		if err != nil {
			t.Error(err)
			return nil
		}
		t.Cleanup(func() { _ = f.Close() })
		return f
	}
	r, w := pipeFiles(t)
	out, extra := create("out"), create("extra")
	a := newAdapter(t, Options{Logger: slog.New(onStart{slog.DiscardHandler, func() {
		for _, f := range []*os.File{w, out, extra} {
			if err := f.Close(); err != nil {
				t.Error(err)
			}
		}
		for i := range 3 {
			create(fmt.Sprint("other ", i))
		}
	}})})
	_, err := a.Invoke(t.Context(), Command{Path: "sh", Args: []string{"-c", "echo out; echo err >&2; echo extra >&3"}, Stdout: out, Stderr: w, ExtraFiles: []*os.File{extra}})
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{"out": "out\n", "extra": "extra\n", "other 0": "", "other 1": "", "other 2": ""} {
		if got, err := os.ReadFile(filepath.Join(dir, name)); string(got) != want || err != nil {
			t.Errorf("%s has %q, %v; want %q", name, got, err, want)
		}
	}
	if err := r.SetReadDeadline(time.Now().Add(30 * time.Second)); err != nil {
		t.Fatal(err)
	}
	if got, err := io.ReadAll(r); string(got) != "err\n" || err != nil { // and the pipe is closed
		t.Errorf("the pipe gave %q, %v", got, err)
	}
}

// A file that is closed at any moment goes to the CLI, or is refused as closed.
func TestFileIsClosedAnytime(t *testing.T) {
	a := newAdapter(t)
	for range 30 {
		r, w := pipeFiles(t)
		go w.Close()
		_, err := a.Invoke(t.Context(), Command{Path: "echo", Args: []string{"x"}, Stdout: w})
		got, readErr := io.ReadAll(r)
		if refused := errors.Is(err, os.ErrClosed) && len(got) == 0; !refused && (err != nil || string(got) != "x\n") || readErr != nil {
			t.Errorf("the CLI wrote %q, %v, %v", got, err, readErr)
		}
	}
}

// A caller keeps its own locks on the files that it gives to a CLI.
func TestLocksStayTheCallers(t *testing.T) {
	name := filepath.Join(t.TempDir(), "file")
	f, err := os.Create(name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := unix.FcntlFlock(f.Fd(), unix.F_SETLK, &unix.Flock_t{Type: unix.F_WRLCK}); err != nil {
		t.Fatal(err)
	}
	if _, err := newAdapter(t).Invoke(t.Context(), Command{Path: "echo", Stdout: f, ExtraFiles: []*os.File{f}}); err != nil {
		t.Fatal(err)
	}
	other, err := os.OpenFile(name, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	lock := unix.Flock_t{Type: unix.F_WRLCK}
	if err := unix.FcntlFlock(other.Fd(), unix.F_OFD_GETLK, &lock); err != nil || lock.Type != unix.F_WRLCK {
		t.Errorf("the lock is of type %d, %v", lock.Type, err)
	}
}
