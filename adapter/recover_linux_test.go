package adapter

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"curfew/outcome"
)

func init() {
	roles["has much in flight"] = inFlightRole
	roles["does one thing after another"] = oneAfterAnotherRole
}

// restless is a server that does not end with its input, nor at SIGTERM, and has a
// child like it in a session of its own. All hold descriptor 3.
const restless = `trap "" TERM; setsid sh -c 'trap "" TERM; sleep ` + tooLong + `' & echo up; sleep ` + tooLong

// inFlightRole has as many sessions and invocations in flight as it is told, and
// says so.
func inFlightRole(args []string) error {
	n, err := strconv.Atoi(args[1])
	if err != nil {
		return err
	}
	a, err := New(Options{StateDir: args[0]})
	if err != nil {
		return err
	}
	held := os.NewFile(3, "held by all")
	unix.CloseOnExec(3)
	command := func(owner string) Command {
		c := sh(restless)
		c.Owner, c.TempDir, c.Env = owner, true, os.Environ()
		c.ExtraFiles, c.Stop = []*os.File{held}, StopPolicy{StdinGrace: time.Millisecond, Grace: 50 * time.Millisecond}
		return c
	}
	var ready sync.WaitGroup
	for i := range n {
		ready.Add(1)
		c := command(fmt.Sprint("invocation ", i))
		r, w, err := os.Pipe()
		if err != nil {
			return err
		}
		c.Stdout = w
		go func() { _, _ = a.Invoke(context.Background(), c) }() // we do not live to see it end
		go func() {
			defer ready.Done()
			_, _ = bufio.NewReader(r).ReadString('\n') // what does not start is missed later
		}()
		s, err := a.Start(context.Background(), piping(command(fmt.Sprint("session ", i))))
		if err != nil {
			return err
		}
		if _, err := bufio.NewReader(s.Stdout()).ReadString('\n'); err != nil {
			return err
		}
	}
	ready.Wait()
	fmt.Println("ready")
	time.Sleep(time.Minute)
	return nil
}

// A caller is killed that has much in flight: everything is gone, temporary
// directories too, and the next caller is told of each once, with its cleanup.
func TestRecover(t *testing.T) {
	t.Parallel()
	for _, lost := range []string{"caller", "caller and one supervisor", "caller and all helpers"} {
		t.Run(lost, func(t *testing.T) {
			n := size(5, 3, 20)
			if lost == "caller" {
				n = 20
			}
			state, temp := t.TempDir(), t.TempDir()
			whole := newHeldPipe(t)
			cmd := exec.Command(os.Args[0], state, strconv.Itoa(n))
			cmd.Env = append(os.Environ(), roleVar+"=has much in flight", "TMPDIR="+temp)
			cmd.ExtraFiles, cmd.Stderr = []*os.File{whole.w}, os.Stderr
			out, err := cmd.StdoutPipe()
			if err == nil {
				err = cmd.Start()
			}
			if err != nil {
				t.Fatal(err)
			}
			defer cmd.Wait()
			defer cmd.Process.Kill()
			if line, err := bufio.NewReader(out).ReadString('\n'); line != "ready\n" {
				t.Fatal(line, err)
			}
			if left, err := os.ReadDir(temp); len(left) != 2*n {
				t.Errorf("%d temporary directories, %v", len(left), err)
			}
			var killed []int
			switch lost {
			case "caller and one supervisor":
				killed = supervisorsOf(cmd.Process.Pid)
				for _, fd := range killed[1:] {
					unix.Close(fd)
				}
				killed = killed[:1]
			case "caller and all helpers":
				killed = supervisorsOf(cmd.Process.Pid)
				for _, pid := range childrenOf(cmd.Process.Pid) {
					if fd, err := openChild(pid, cmd.Process.Pid); err == nil {
						killed = append([]int{fd}, killed...) // the guard first
					}
				}
			}
			if err := cmd.Process.Kill(); err != nil {
				t.Fatal(err)
			}
			for _, fd := range killed {
				_ = unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0) // it may be gone
				unix.Close(fd)
			}
			_ = cmd.Wait() // killed

			a := newAdapter(t, Options{StateDir: state})
			list, err := a.Recover(t.Context())
			if err != nil {
				t.Error(err)
			}
			within := atOnce // Recover waits for those who end it
			if lost == "caller and all helpers" {
				within = patience // who dies has no environment any more, and still has its files
			}
			whole.isFree(within)
			if left, err := os.ReadDir(temp); len(left) != 0 {
				t.Errorf("%d temporary directories are left, %v", len(left), err)
			}
			seen := map[string]int{}
			unproven := 0
			for _, r := range list {
				seen[r.Owner]++
				o := r.Outcome
				switch c := o.Cleanup; {
				case o.Status != outcome.StatusUnknown || o.Cause != outcome.CauseHostLost || !errors.Is(o.Err, outcome.ErrUnknown):
					t.Errorf("%s: %s, %s, %v", r.Owner, o.Status, o.Cause, o.Err)
				case r.Program != "sh" || r.Session != strings.HasPrefix(r.Owner, "session") || len(c.TempDirs) != 0 || r.Began.IsZero():
					t.Errorf("%+v", r)
				case c.Result != outcome.CleanupEmpty || len(c.Ended) == 0:
					unproven++
					if lost != "caller and all helpers" {
						t.Errorf("%s: %+v", r.Owner, c)
					}
				}
			}
			for i := range n {
				for _, kind := range []string{"session", "invocation"} {
					if owner := fmt.Sprint(kind, " ", i); seen[owner] != 1 {
						t.Errorf("%s was recovered %d times", owner, seen[owner])
					}
				}
			}
			if len(list) != 2*n {
				t.Errorf("%d recovered of %d", len(list), 2*n)
			}
			if list, err := a.Recover(t.Context()); len(list) != 0 || err != nil {
				t.Errorf("a second time %d, %v", len(list), err)
			}
			t.Logf("%d recovered, %d of them unverified", len(list), unproven)
		})
	}
}

// oneAfterAnotherRole invokes short things, some at once, and says of each when it
// knows the end.
func oneAfterAnotherRole(args []string) error {
	a, err := New(Options{StateDir: args[0]})
	if err != nil {
		return err
	}
	var say sync.Mutex
	for worker := range 3 {
		go func() {
			for i := 0; ; i++ {
				owner := fmt.Sprintf("%s-%d-%d", args[2], worker, i)
				c := Command{Path: "sh", Args: []string{"-c", `echo "$1" >>"$0"; exec sleep 0.0$2`, args[1], owner, strconv.Itoa(i % 4)}, Owner: owner, TempDir: i%2 == 0}
				if i%3 == 0 {
					c.Path = "/there is no such program"
				}
				_, _ = a.Invoke(context.Background(), c)
				say.Lock()
				fmt.Println(owner)
				say.Unlock()
			}
		}()
	}
	time.Sleep(time.Minute)
	return nil
}

// Callers are killed at random moments, some with their helpers. What was
// executed has come to its caller's knowledge or is recovered, and nothing is
// recovered twice.
func TestRecoverAnytime(t *testing.T) {
	t.Parallel()
	rounds := size(10, 3, 100)
	random := rand.New(rand.NewPCG(seed(t), 0))
	state, temp := t.TempDir(), t.TempDir()
	executed := filepath.Join(t.TempDir(), "executed")
	a := newAdapter(t, Options{StateDir: state})
	recoveredOnce := map[string]bool{}
	total := 0
	for round := range rounds {
		cmd := exec.Command(os.Args[0], state, executed, strconv.Itoa(round))
		cmd.Env = append(os.Environ(), roleVar+"=does one thing after another", "TMPDIR="+temp)
		cmd.Stderr = os.Stderr
		out, err := cmd.StdoutPipe()
		if err == nil {
			err = cmd.Start()
		}
		if err != nil {
			t.Fatal(err)
		}
		known := map[string]bool{}
		after := time.Duration(random.IntN(int(150 * time.Millisecond)))
		mode := random.IntN(3)
		over := make(chan struct{})
		go func() {
			defer close(over)
			for lines := bufio.NewScanner(out); lines.Scan(); {
				if known[lines.Text()] = true; len(known) == 1 { // from the first on
					time.AfterFunc(after, func() {
						var fds []int
						if mode > 0 {
							fds = supervisorsOf(cmd.Process.Pid)
						}
						if mode > 1 {
							for _, pid := range childrenOf(cmd.Process.Pid) {
								if fd, err := openChild(pid, cmd.Process.Pid); err == nil {
									fds = append([]int{fd}, fds...)
								}
							}
						}
						_ = cmd.Process.Kill() // it is there: nobody else ends it
						for _, fd := range fds {
							_ = unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0) // it may be gone
							unix.Close(fd)
						}
					})
				}
			}
		}()
		<-over
		_ = cmd.Wait() // killed
		list, err := a.Recover(t.Context())
		if err != nil {
			t.Errorf("round %d, mode %d: %v", round, mode, err)
		}
		for _, r := range list {
			if recoveredOnce[r.Outcome.ID] || known[r.Owner] {
				t.Errorf("round %d, mode %d: %s was known already", round, mode, r.Owner)
			}
			recoveredOnce[r.Outcome.ID] = true
			known[r.Owner] = true
		}
		total += len(list)
		b, err := os.ReadFile(executed)
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			t.Fatal(err)
		}
		ended, err := filepath.Glob(filepath.Join(state, "ended", "*"))
		if err != nil {
			t.Fatal(err)
		}
		for _, owner := range strings.Fields(string(b)) {
			if !strings.HasPrefix(owner, strconv.Itoa(round)+"-") || known[owner] {
				continue
			}
			// It was delivered, but the caller had no time to say so.
			if !slices.ContainsFunc(ended, func(path string) bool {
				b, err := os.ReadFile(path)
				return err == nil && strings.Contains(string(b), `"`+owner+`"`)
			}) {
				t.Errorf("round %d, mode %d: %s was executed, and nobody knows", round, mode, owner)
			}
		}
		if left, err := os.ReadDir(temp); len(left) != 0 {
			t.Errorf("round %d, mode %d: %d temporary directories are left (%v), %v", round, mode, len(left), left[0].Name(), err)
			for _, l := range left {
				_ = os.Remove(filepath.Join(temp, l.Name())) // counted once
			}
		}
	}
	if list, err := a.Recover(t.Context()); len(list) != 0 || err != nil {
		t.Errorf("in the end %d, %v", len(list), err)
	}
	t.Logf("%d were in flight in %d rounds", total, rounds)
}
