package proctree

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"strconv"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

func init() {
	roles["vanish"] = vanishRole
	roles["strangers"] = strangersRole
	roles["number again"] = numberAgainRole
	roles["no descriptor left"] = noDescriptorLeftRole
	roles["vanishing orphans"] = vanishingOrphansRole
	roles["read twice"] = readTwiceRole
	roles["autoreap"] = autoreapRole
	roles["autoreaper"] = autoreaperRole
}

// A child vanishes before each step on the way to its signal, as one that was made
// with CLONE_AUTOREAP can, and its number is a stranger's in the same moment.
func TestChildVanishes(t *testing.T) {
	mayChooseNumbers(t)
	for _, step := range []string{"open", "check", "send"} {
		t.Run(step, func(t *testing.T) { inTree(t, "vanish", step) })
	}
}

// A child vanishes when it was struck, and its number is another child's of ours:
// that is struck as well, and both are listed.
func TestNumberComesAgain(t *testing.T) {
	mayChooseNumbers(t)
	inTree(t, "number again")
}

func TestNoDescriptorLeft(t *testing.T)       { inTree(t, "no descriptor left") }
func TestVanishingOrphans(t *testing.T)       { inTree(t, "vanishing orphans") }
func TestOnlySiblingsReadsTwice(t *testing.T) { inTree(t, "read twice") }

// The same with the flag itself.
func TestAutoreap(t *testing.T) {
	if !childrenVanish() {
		t.Skip("this kernel does not know CLONE_AUTOREAP (Linux 7.1)")
	}
	inTree(t, "autoreap")
}

// mayChooseNumbers skips a test that has to choose which pid a process gets.
func mayChooseNumbers(t *testing.T) {
	t.Helper()
	free := exec.Command("true")
	if err := free.Run(); err != nil {
		t.Fatal(err)
	}
	pid, err := cloneAs(free.Process.Pid, 0)
	if err == unix.EEXIST {
		return // another process was faster
	}
	if err != nil {
		t.Skipf("a process with a chosen pid cannot be made here: %v", err)
	}
	_ = unix.Kill(pid, unix.SIGKILL)
	_, _ = unix.Wait4(pid, nil, unix.WALL, nil)
}

// cloneAs makes a child with the given pid (0: any) and flags, which sleeps.
func cloneAs(pid int, flags uint64) (int, error) {
	number := int32(pid)
	args := struct {
		flags, pidfd, childTID, parentTID, exitSignal, stack, stackSize, tls uint64
		setTID                                                               unsafe.Pointer
		setTIDSize, cgroup                                                   uint64
	}{flags: flags}
	if pid != 0 {
		args.setTID, args.setTIDSize = unsafe.Pointer(&number), 1
	}
	if flags&unix.CLONE_AUTOREAP == 0 {
		args.exitSignal = uint64(unix.SIGCHLD)
	}
	long := unix.Timespec{Sec: 50}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	got, _, errno := unix.RawSyscall(unix.SYS_CLONE3, uintptr(unsafe.Pointer(&args)), unsafe.Sizeof(args), 0)
	if errno != 0 {
		return 0, errno
	}
	if got == 0 {
		unix.RawSyscall(unix.SYS_NANOSLEEP, uintptr(unsafe.Pointer(&long)), 0, 0)
		for {
			unix.RawSyscall(unix.SYS_EXIT_GROUP, 0, 0, 0)
		}
	}
	return int(got), nil
}

// takeNumber makes a child with that pid as soon as it is free, which is a moment after
// the last signal to the process that had it fails.
func takeNumber(pid int) error {
	for end := time.Now().Add(patience); ; time.Sleep(100 * time.Microsecond) {
		_, err := cloneAs(pid, 0)
		if err == nil {
			return nil
		}
		if err != unix.EEXIST || time.Now().After(end) {
			return fmt.Errorf("a process with the pid %d: %w", pid, err)
		}
	}
}

// strangersRole gives each number that it reads to a child of its own, and reports in the
// end whether they are unhurt.
func strangersRole([]string) error {
	var pids []int
	for in := bufio.NewScanner(os.Stdin); in.Scan(); {
		pid, err := strconv.Atoi(in.Text())
		if err != nil {
			return err
		}
		if err := takeNumber(pid); err != nil {
			return err
		}
		pids = append(pids, pid)
		fmt.Println("made")
	}
	for _, pid := range pids {
		if got, err := unix.Wait4(pid, nil, unix.WNOHANG, nil); got != 0 || err != nil {
			return fmt.Errorf("the stranger with the pid %d was hit: %d, %v", pid, got, err)
		}
		_ = unix.Kill(pid, unix.SIGKILL)
	}
	fmt.Println("unhurt")
	return nil
}

// strangers makes strangers, which are no children of this process.
type strangers struct {
	cmd *exec.Cmd
	in  interface {
		Write([]byte) (int, error)
		Close() error
	}
	out *bufio.Reader
}

func newStrangers() (*strangers, error) {
	s := &strangers{cmd: exec.Command(os.Args[0])}
	s.cmd.Env = append(os.Environ(), roleVar+"=strangers")
	s.cmd.Stderr = os.Stderr
	out, err := s.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	s.out = bufio.NewReader(out)
	if s.in, err = s.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	return s, s.cmd.Start()
}

func (s *strangers) take(pid int) error {
	if _, err := fmt.Fprintln(s.in, pid); err != nil {
		return err
	}
	_, err := s.out.ReadString('\n')
	return err
}

// vanishes ends a child and returns when its number is free. The kernel must be set
// to reap by itself.
func vanishes(pid int) error {
	if err := unix.Kill(pid, unix.SIGKILL); err != nil {
		return err
	}
	for end := time.Now().Add(patience); unix.Kill(pid, 0) != unix.ESRCH; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			return errors.New("it does not vanish")
		}
	}
	return nil
}

// letVanish makes the children of this process vanish as those do that were made with
// CLONE_AUTOREAP.
func letVanish() {
	signal.Ignore(syscall.SIGCHLD)
	childrenVanish = func() bool { return true }
}

func vanishRole(args []string) error {
	s, err := newStrangers() // our child, but a sibling to the tree: it is not signalled
	if err != nil {
		return err
	}
	h, err := hold()
	if err != nil {
		return err
	}
	h.siblings[s.cmd.Process.Pid] = -1
	if err := h.run(nil, "sleep", tooLong); err != nil {
		return err
	}
	letVanish()
	pid, done := h.leader.pid, false
	meanwhile = func(next string, at int) {
		if next != args[0] || at != pid || done {
			return
		}
		done = true
		if err = vanishes(pid); err == nil {
			err = s.take(pid)
		}
	}
	struck := h.Strike(false).Fresh + h.Strike(true).Fresh
	if err != nil || !done || struck != 0 {
		return fmt.Errorf("%d were struck, vanished: %v, %w", struck, done, err)
	}
	if list, more := h.summary(); len(list) != 0 || more != 0 {
		return fmt.Errorf("ended %v and %d more", list, more)
	}
	_ = s.in.Close()
	if word, _ := s.out.ReadString('\n'); word != "unhurt\n" {
		return errors.New("the stranger is not well")
	}
	return nil
}

func numberAgainRole([]string) error {
	h, err := hold()
	if err != nil {
		return err
	}
	if err := h.run(nil, "sleep", tooLong); err != nil {
		return err
	}
	letVanish()
	pid := h.leader.pid
	if n := h.Strike(false).Fresh; n != 1 {
		return fmt.Errorf("%d were struck", n)
	}
	if err := takeNumber(pid); err != nil {
		return err
	}
	if n := h.Strike(true).Fresh; n != 1 {
		return fmt.Errorf("%d were struck of those that came after", n)
	}
	if list, more := h.summary(); len(list) != 2 || list[0].PID != pid || list[1].PID != pid || more != 0 {
		return fmt.Errorf("ended %v and %d more, want %d twice", list, more, pid)
	}
	return h.kill()
}

// noDescriptorLeftRole strikes when every descriptor is taken, where no child may be
// signalled by its number.
func noDescriptorLeftRole([]string) error {
	h, err := hold()
	if err != nil {
		return err
	}
	if err := h.run(nil, "sh", "-c", "setsid sleep "+tooLong+" & setsid sleep "+tooLong+" & sleep "+tooLong); err != nil {
		return err
	}
	if err := h.until("three", func() bool { list, _ := h.Members(10); return len(list) == 4 }); err != nil {
		return err
	}
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 64, Max: limitMax()}); err != nil {
		return err
	}
	for err == nil {
		_, err = unix.Dup(h.threads.root)
	}
	childrenVanish = func() bool { return true }
	return h.kill()
}

func vanishingOrphansRole([]string) error {
	r, w, err := os.Pipe()
	if err != nil {
		return err
	}
	h, err := hold()
	if err != nil {
		return err
	}
	if err := h.run([]int{h.threads.root, int(w.Fd()), 2}, "sh", "-c", `for i in 1 2 3; do setsid sh -c "trap '' TERM; sleep 0.1; sleep `+tooLong+`" & done; exit 3`); err != nil {
		return err
	}
	w.Close()
	if err := h.until("exited", func() bool { return h.exit != nil }); err != nil {
		return err
	}
	letVanish()
	if err := h.kill(); err != nil {
		return err
	}
	if n, err := r.Read(make([]byte, 1)); n != 0 || err == nil {
		return fmt.Errorf("a process has the pipe: %d, %v", n, err)
	}
	if list, more := h.summary(); len(list) < 3 || more != 0 {
		return fmt.Errorf("ended %v and %d more", list, more)
	}
	return nil
}

// readTwiceRole lets a sibling leave a process behind between two reads of the list.
func readTwiceRole([]string) error {
	h, err := hold()
	if err != nil {
		return err
	}
	if h.subreaper, err = openSubreaper(Options{}, true); err != nil {
		return err
	}
	sibling, err := h.sibling("sh", "-c", "sleep "+tooLong+" & sleep "+tooLong)
	if err != nil {
		return err
	}
	var below [4]int32
	for end := time.Now().Add(patience); h.proc.children(sibling, below[:]) < 2; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			return errors.New("the sibling has no children")
		}
	}
	if !h.OnlySiblings() {
		return errors.New("not only siblings, before anything has happened")
	}
	meanwhile = func(next string, _ int) {
		if next == "read" && unix.Kill(sibling, unix.SIGKILL) == nil {
			for end := time.Now().Add(patience); stateOf(sibling) == childAlive && time.Now().Before(end); time.Sleep(time.Millisecond) {
			}
		}
	}
	if h.OnlySiblings() {
		return errors.New("only siblings, while what was left behind lives")
	}
	meanwhile = func(string, int) {}
	for end := time.Now().Add(patience); !h.empty; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			return errors.New("not empty")
		}
		h.Strike(false)
		ev := h.Reap()
		h.note(ev)
	}
	return nil
}

// autoreapRole ends a tree that has children which vanish, some of them orphans.
func autoreapRole([]string) error {
	r, w, err := os.Pipe()
	if err != nil {
		return err
	}
	h, err := hold()
	if err != nil {
		return err
	}
	os.Setenv(roleVar, "autoreaper")
	if err := h.run([]int{h.threads.root, int(w.Fd()), 2}, os.Args[0]); err != nil {
		return err
	}
	os.Unsetenv(roleVar)
	w.Close()
	if n, err := r.Read(make([]byte, 1)); n != 1 {
		return err
	}
	if err := h.until("exited", func() bool { return h.exit != nil }); err != nil {
		return err
	}
	if h.empty || h.exit.Code != 0 {
		return fmt.Errorf("empty: %v, exit %+v", h.empty, h.exit)
	}
	if err := h.kill(); err != nil {
		return err
	}
	if n, err := r.Read(make([]byte, 1)); n != 0 || err == nil {
		return fmt.Errorf("a process has the pipe: %d, %v", n, err)
	}
	if list, more := h.summary(); len(list) != 3 || more != 0 {
		return fmt.Errorf("ended %v and %d more, want three", list, more)
	}
	return nil
}

// autoreaperRole leaves three such children behind.
func autoreaperRole([]string) error {
	for range 3 {
		if _, err := cloneAs(0, unix.CLONE_AUTOREAP); err != nil {
			return err
		}
	}
	_, err := os.Stdout.WriteString("x")
	return err
}
