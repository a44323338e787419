package supervisor

import (
	"bufio"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"curfew/internal/journal"
	"curfew/internal/scratch"
	"curfew/internal/wire"
	"curfew/outcome"
)

func init() { roles["gets a pid again"] = pidAgainRole }

// The pid of a lost supervisor is given to a new one, while something of the lost one's tree cannot
// be ended yet: the new one's tree, directory and record are left alone, and the duties of the lost
// one are done.
func TestPIDIsGivenAgain(t *testing.T) {
	needsRoot(t)
	t.Parallel()
	for _, callers := range []string{"one caller", "two callers"} {
		t.Run(callers, func(t *testing.T) {
			t.Parallel()
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
			defer cancel()
			cmd := exec.CommandContext(ctx, os.Args[0], callers, t.TempDir())
			cmd.Env = append(os.Environ(), roleVar+"=gets a pid again")
			cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWPID | unix.CLONE_NEWNS}
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Fatalf("%v\n%s", err, out)
			}
		})
	}
}

// errNotAgain means that another process has got the number.
var errNotAgain = errors.New("the pid was not given to a supervisor again")

// pidAgainRole runs in a pid namespace of its own.
func pidAgainRole(args []string) error {
	err := errors.Join(unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""), unix.Mount("proc", "/proc", "proc", 0, ""))
	if err != nil {
		return err
	}
	for try := range 10 {
		dir := filepath.Join(args[1], strconv.Itoa(try))
		if err = os.Mkdir(dir, 0o700); err != nil {
			return err
		}
		if err = pidAgain(dir, args[0] == "two callers"); !errors.Is(err, errNotAgain) {
			return err
		}
	}
	return err
}

// guarded is an invocation for which its guard has duties.
type guarded struct {
	h      *Client
	said   *bufio.Reader
	temp   scratch.Dir
	record string
}

// guardedRun begins a CLI on h and returns with its first line.
func guardedRun(h *Client, j *journal.Journal, dir, script string) (*guarded, string, error) {
	id := rand.Text()
	temp, err := scratch.Make(filepath.Join(dir, "curfew-"+id))
	if err == nil {
		err = j.Begin(journal.Begin{ID: id})
	}
	if err != nil {
		return nil, "", err
	}
	r, w, err := os.Pipe()
	if err != nil {
		return nil, "", err
	}
	root, err := os.Open("/")
	if err != nil {
		return nil, "", err
	}
	defer root.Close()
	s := settings()
	s.Duties = wire.Duties{ID: id, TempDir: wire.NewTempDir(temp), Journal: true}
	h.Watch(&s.Duties)
	err = h.Run(context.Background(), &wire.Request{Settings: s, Path: "/bin/sh", Args: []string{"sh", "-c", script, dir}, Env: os.Environ(), Dir: int(root.Fd()), Files: []int{int(w.Fd())}})
	w.Close()
	if err != nil {
		return nil, "", err
	}
	g := &guarded{h, bufio.NewReader(r), temp, filepath.Join(j.Dir(), id+".journal")}
	_ = r.SetReadDeadline(time.Now().Add(patience))
	line, err := g.said.ReadString('\n')
	return g, strings.TrimSpace(line), err
}

// ends returns how many ends the record has.
func (g *guarded) ends() int {
	b, _ := os.ReadFile(g.record)
	return strings.Count(string(b), "\n") - 1
}

func pidAgain(dir string, two bool) error {
	j, err := journal.Open(filepath.Join(dir, "state"))
	if err != nil {
		return err
	}
	defer j.Close()
	first := &Pool{StateDir: j.Dir(), Peer: j.Peer()}
	defer first.Close()
	second := first
	if two {
		second = &Pool{StateDir: j.Dir(), Peer: j.Peer()}
		defer second.Close()
		h, err := second.Get(context.Background(), false) // starts its guard
		if err != nil {
			return err
		}
		defer second.Put(h)
	}
	h, err := first.Get(context.Background(), false)
	if err != nil {
		return err
	}
	lost, line, err := guardedRun(h, j, dir, "setsid sleep "+tooLong+" & echo $!; wait")
	if err != nil {
		return err
	}
	defer first.Discard(h)
	pid, err := strconv.Atoi(line)
	if err != nil {
		return err
	}
	release, err := cannotBeEnded(pid)
	if err != nil {
		return err
	}
	defer release()
	h.Kill()
	for end := time.Now().Add(patience); ; time.Sleep(time.Millisecond) {
		if _, err := os.Stat(fmt.Sprintf("/proc/%d", h.pid)); errors.Is(err, os.ErrNotExist) {
			break
		} else if time.Now().After(end) {
			return errors.New("the supervisor is not reaped")
		}
	}
	next, err := supervisorWithPID(second, h.pid)
	if err != nil {
		return err
	}
	running, _, err := guardedRun(next, j, dir, "echo up; for i in $(seq 400); do test -e $0/go && exit 0; sleep 0.1; done; exit 1")
	if err != nil {
		return err
	}
	if _, err := h.Swept(time.Now().Add(300 * time.Millisecond)); !errors.Is(err, os.ErrDeadlineExceeded) {
		return fmt.Errorf("a member of the lost one's tree is there, and the guard reports %v", err)
	}
	release()
	if _, err := h.Swept(time.Now().Add(patience)); err != nil {
		return fmt.Errorf("the lost one: %w", err)
	}
	var bad []error
	if _, err := os.Stat(lost.temp.Path); !errors.Is(err, os.ErrNotExist) || lost.ends() != 1 {
		bad = append(bad, fmt.Errorf("the lost one's directory: %v; it has %d ends", err, lost.ends()))
	}
	if _, err := os.Stat(running.temp.Path); err != nil || running.ends() != 0 {
		bad = append(bad, fmt.Errorf("the running one's directory: %v; it has %d ends", err, running.ends()))
	}
	if err := os.WriteFile(filepath.Join(dir, "go"), nil, 0o600); err != nil {
		return err
	}
	next.Interrupt(time.Now().Add(patience))
	for {
		ev, err := next.Next()
		if err != nil {
			return errors.Join(append(bad, fmt.Errorf("the running one: %w", err))...)
		}
		if d := ev.Done; d != nil {
			if d.Exit == nil || d.Exit.Code != 0 || d.Cleanup.Proof != outcome.ProofNoChildren {
				bad = append(bad, fmt.Errorf("the running one: %+v, %+v", d.Exit, d.Cleanup))
			}
			second.Put(next)
			return errors.Join(bad...)
		}
	}
}

// cannotBeEnded traces a process, which stays as a zombie after it was killed, until release.
func cannotBeEnded(pid int) (release func(), err error) {
	traced, over, released := make(chan error), make(chan struct{}), make(chan struct{})
	go func() {
		runtime.LockOSThread() // the tracer is a thread
		defer close(released)
		traced <- unix.PtraceSeize(pid)
		<-over
		var status unix.WaitStatus
		_, _ = unix.Wait4(pid, &status, unix.WALL, nil)
	}()
	if err := <-traced; err != nil {
		close(over)
		return nil, err
	}
	return func() {
		select {
		case <-over:
		default:
			close(over)
		}
		<-released
	}, nil
}

// supervisorWithPID starts supervisors until one gets the pid.
func supervisorWithPID(p *Pool, pid int) (*Client, error) {
	for range 20 {
		if err := os.WriteFile("/proc/sys/kernel/ns_last_pid", []byte(strconv.Itoa(pid-1)), 0); err != nil {
			return nil, err
		}
		h, err := p.Get(context.Background(), false)
		if err != nil {
			return nil, err
		}
		if h.pid == pid {
			return h, nil
		}
		defer p.Put(h) // until then it is not used
	}
	return nil, errNotAgain
}
