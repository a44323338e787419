//go:build linux || darwin

package sys

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"curfew/internal/fault"
)

// inject makes each kind of call fail with errno every second time.
func inject(t *testing.T, errno syscall.Errno) (calls map[fault.Call]int) {
	t.Cleanup(func() { fault.Inject = nil })
	calls = map[fault.Call]int{}
	fault.Inject = func(call fault.Call) syscall.Errno {
		if calls[call]++; calls[call]%2 == 1 {
			return errno
		}
		return 0
	}
	return calls
}

func TestRetry(t *testing.T) {
	calls := 0
	err := Retry(func() error {
		if calls++; calls < 4 {
			return unix.EINTR
		}
		return unix.EACCES
	})
	if calls != 4 || err != unix.EACCES {
		t.Errorf("%d calls, %v; want 4, EACCES", calls, err)
	}
}

func TestInterruptedCalls(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	calls := inject(t, unix.EINTR)
	fd, err := Open(path, unix.O_RDWR|unix.O_CREAT, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer Close(fd)
	if err := WriteAll(fd, []byte("text")); err != nil {
		t.Error(err)
	}
	_, _ = unix.Seek(fd, 0, 0)
	var buf [8]byte
	if n, err := Read(fd, buf[:]); err != nil || string(buf[:n]) != "text" {
		t.Errorf("read %q, %v", buf[:max(n, 0)], err)
	}
	var st unix.Stat_t
	if err := Fstat(fd, &st); err != nil || st.Size != 4 {
		t.Errorf("%d bytes, %v", st.Size, err)
	}
	if err := Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, time.Time{}); err != nil {
		t.Error(err)
	}
	if _, err := Wait4(-1, nil, unix.WNOHANG, nil); err != unix.ECHILD {
		t.Errorf("wait4: %v, want ECHILD", err)
	}
	for _, call := range []fault.Call{fault.Open, fault.Write, fault.Read, fault.Fstat, fault.Poll, fault.Wait4} {
		if calls[call] < 2 {
			t.Errorf("%s was not repeated", call)
		}
	}
}

func TestFailingCalls(t *testing.T) {
	inject(t, unix.EIO)
	if fd, err := Open("/", unix.O_RDONLY, 0); fd != -1 || err != unix.EIO {
		t.Errorf("open: %d, %v", fd, err)
	}
	if fd, err := Openat(unix.AT_FDCWD, "/", unix.O_RDONLY); fd != -1 || err != unix.EIO {
		t.Errorf("openat: %d, %v", fd, err)
	}
	if n, err := Read(0, make([]byte, 1)); n != 0 || err != unix.EIO {
		t.Errorf("read: %d, %v", n, err)
	}
}

// Whatever the size of the buffer, each entry is listed once.
func TestList(t *testing.T) {
	dir := t.TempDir()
	want := []string{".", ".."}
	for _, name := range []string{"1", "22", "x", strings.Repeat("y", 255)} {
		if err := os.Mkdir(filepath.Join(dir, name), 0o700); err != nil {
			t.Fatal(err)
		}
		want = append(want, name)
	}
	slices.Sort(want)
	for _, size := range []int{300, 512, 8192} {
		fd, err := Open(dir, unix.O_RDONLY|unix.O_DIRECTORY, 0)
		if err != nil {
			t.Fatal(err)
		}
		buf := make([]byte, size)
		list := List(fd, buf)
		var got []string
		numbers := 0
		for list.Next() {
			got = append(got, string(list.Name))
			if n, ok := list.Number(); ok {
				numbers += n
			}
			if list.Name[:len(list.Name)+1][len(list.Name)] != 0 {
				t.Errorf("no NUL follows %q", list.Name)
			}
			if list.Kind != unix.DT_DIR && list.Kind != unix.DT_UNKNOWN {
				t.Errorf("%q is of kind %d", list.Name, list.Kind)
			}
		}
		slices.Sort(got)
		if list.Err != nil || !slices.Equal(got, want) || numbers != 23 {
			t.Errorf("with %d bytes: %q, sum %d, %v", size, got, numbers, list.Err)
		}
		Close(fd)
		if list = List(fd, buf); list.Next() || list.Err == nil {
			t.Errorf("of a closed descriptor: %q, %v", list.Name, list.Err)
		}
	}
}

func TestPipe(t *testing.T) {
	r, w, err := Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer Close(r)
	for _, fd := range []int{r, w} {
		if flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0); err != nil || flags&unix.FD_CLOEXEC == 0 {
			t.Errorf("descriptor flags %#x, %v; want FD_CLOEXEC", flags, err)
		}
	}
	began := time.Now()
	fds := []unix.PollFd{{Fd: int32(r), Events: unix.POLLIN}}
	if err := Poll(fds, began.Add(20*time.Millisecond)); err != nil || fds[0].Revents != 0 || time.Since(began) < 20*time.Millisecond {
		t.Errorf("an empty pipe: %v, %#x after %v", err, fds[0].Revents, time.Since(began))
	}
	Close(w)
	if n, err := Read(r, make([]byte, 1)); n != 0 || err != nil {
		t.Errorf("read %d, %v; want the end", n, err)
	}
}

func FuzzParseDirent(f *testing.F) {
	f.Add(make([]byte, 64))
	f.Fuzz(func(t *testing.T, b []byte) {
		for len(b) > 0 {
			before := len(b)
			var name []byte
			if name, _, _, b = ParseDirent(b); name == nil && b != nil || len(b) >= before {
				t.Fatalf("name %q, %d of %d bytes left", name, len(b), before)
			}
		}
	})
}
