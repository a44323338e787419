//go:build linux || darwin

package proctree

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"curfew/internal/sys"
	"curfew/outcome"
)

func init() { roles["contract"] = contractRole }

// What proctree.go promises of a Tree is tried with each kind of tree that this system can
// hold, in a process of its own.
func TestContract(t *testing.T) {
	for _, kind := range []string{"of this system", "tracked"} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			cmd := exec.CommandContext(t.Context(), os.Args[0], kind)
			cmd.Env = append(os.Environ(), roleVar+"=contract")
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Fatalf("%v\n%s", err, out)
			}
		})
	}
}

// contract is a Tree in a role.
type contract struct {
	Tree
	root int
}

func contractRole(args []string) error {
	runtime.LockOSThread()
	sys.Survive()
	open := Open
	if args[0] == "tracked" {
		open = OpenTracked
	}
	tree, err := open(Options{ID: "contract"})
	if err != nil {
		return err
	}
	c := &contract{Tree: tree}
	if c.root, err = sys.Open("/", unix.O_RDONLY|unix.O_DIRECTORY, 0); err != nil {
		return err
	}
	for _, part := range []func() error{c.idle, c.missing, c.exits, c.leaves, c.exits} {
		if !c.Prepare() {
			return errors.New("it takes no other leader")
		}
		if err := part(); err != nil {
			return err
		}
	}
	c.Close()
	return nil
}

// start begins a start and returns the events until its end.
func (c *contract) start(argv ...string) (Event, error) {
	path, err := exec.LookPath(argv[0])
	if err != nil {
		path = argv[0]
	}
	c.Start(&Spec{Path: path, Argv: argv, Env: os.Environ(), Dir: c.root, Files: []int{c.root, 2, 2}})
	return c.await("started", func(ev Event) bool { return ev.StartDone })
}

// await collects until an event is the one.
func (c *contract) await(what string, is func(Event) bool) (Event, error) {
	for end := time.Now().Add(patience); time.Now().Before(end); {
		if ev := c.Collect(false); is(ev) {
			return ev, nil
		}
		until := time.Now().Add(20 * time.Millisecond)
		if next := c.Next(); !next.IsZero() && next.Before(until) {
			until = next
		}
		_ = sys.Poll([]unix.PollFd{{Fd: int32(c.FD()), Events: unix.POLLIN}, {Fd: int32(c.LeaderFD()), Events: unix.POLLIN}}, until)
	}
	return Event{}, fmt.Errorf("still not %s", what)
}

// proven returns an error if an event does not show that the tree is empty.
func (c *contract) proven(ev Event) error {
	suspects := len(c.Summary().Suspects)
	if known := ev.Proof == outcome.ProofNoChildren || ev.Proof == outcome.ProofScans; !ev.Empty || known == (suspects > 0) {
		return fmt.Errorf("%+v, and %d suspects", ev, suspects)
	}
	if c.StrikeCgroup() {
		return errors.New("something is in the cgroup of an empty tree")
	}
	return nil
}

func (c *contract) idle() error {
	if p := c.StartProgress(); p != StartPending {
		return fmt.Errorf("before any start: %v", p)
	}
	if ev := c.Reap(); ev.Died != 0 || ev.Exit != nil {
		return fmt.Errorf("before any start: %+v", ev)
	}
	return nil
}

func (c *contract) missing() error {
	ev, err := c.start("/no such file")
	if err != nil {
		return err
	}
	if ev.StartErr == nil || !errors.Is(ev.StartErr, unix.ENOENT) || ev.StartErr.Killed || ev.PID != 0 || ev.Exit != nil {
		return fmt.Errorf("%+v", ev)
	}
	if !ev.Empty {
		ev, err = c.await("empty", func(ev Event) bool { return ev.Empty })
	}
	return errors.Join(err, c.proven(ev))
}

// exits is a leader that exits and leaves nothing.
func (c *contract) exits() error {
	ev, err := c.start("sh", "-c", "exit 3")
	if err != nil {
		return err
	}
	if ev.StartErr != nil || ev.PID <= 1 {
		return fmt.Errorf("%+v", ev)
	}
	exit := ev.Exit
	if !ev.Empty {
		ev, err = c.await("empty", func(ev Event) bool {
			if ev.Exit != nil {
				exit = ev.Exit
			}
			return ev.Empty
		})
	}
	if exit == nil || exit.Code != 3 || exit.Signal != 0 {
		return fmt.Errorf("exit %+v", exit)
	}
	if s := c.Summary(); len(s.Ended) > 0 || s.EndedMore > 0 {
		return fmt.Errorf("ended %+v", s)
	}
	return errors.Join(err, c.proven(ev))
}

// leaves is a leader that exits and leaves two processes that SIGTERM does not end.
func (c *contract) leaves() error {
	const other = `sh -c 'trap "" TERM; i=0; while [ $i -lt 50 ]; do sleep 1; i=$((i+1)); done'`
	ev, err := c.start("sh", "-c", other+" & "+other+" & read x; exit 4")
	if err != nil || ev.StartErr != nil {
		return fmt.Errorf("%w, %+v", err, ev)
	}
	leader := ev.PID
	if ev.Exit == nil {
		if ev, err = c.await("exited", func(ev Event) bool { return ev.Exit != nil }); err != nil {
			return err
		}
	}
	if ev.Empty || ev.Exit.Code != 4 || ev.Exit.Signal != 0 {
		return fmt.Errorf("%+v, %+v", ev, ev.Exit)
	}
	if n, _ := c.Terminate(syscall.SIGTERM, ToLeader, time.Time{}); n != 0 {
		return errors.New("a leader that has exited got a signal")
	}
	// They may still be about to ignore it.
	for end := time.Now().Add(patience); ; time.Sleep(time.Millisecond) {
		list, more := c.Members(100)
		if more || slices.ContainsFunc(list, func(m Member) bool { return m.Leader || m.PID == leader }) {
			return fmt.Errorf("members %v, more %v", list, more)
		}
		if slices.ContainsFunc(list, func(m Member) bool { return m.Name == "sleep" }) && len(list) >= 4 {
			break
		}
		if time.Now().After(end) {
			return fmt.Errorf("members %v", list)
		}
	}
	if list, _ := c.Members(1); len(list) != 1 {
		return fmt.Errorf("one member: %v", list)
	}
	if list := c.Survivors(); len(list) < 2 || list[0].Reason == "" {
		return fmt.Errorf("survivors %+v", list)
	}
	return c.kill(c.terminate())
}

// terminate sends a polite signal twice: the second time to what had none.
func (c *contract) terminate() error {
	reached := map[bool]int{}
	for _, again := range []bool{false, true} {
		n, more := c.Terminate(syscall.SIGTERM, ToOthers, time.Now().Add(patience))
		if more {
			return errors.New("interrupted by nothing")
		}
		reached[again] = n
	}
	if s := c.Summary(); reached[false] < 2 || len(s.Ended) != reached[false]+reached[true] || s.Ended[0].LastSignal != int(syscall.SIGTERM) {
		return fmt.Errorf("%v got it, and %+v are listed", reached, s.Ended)
	}
	return nil
}

func (c *contract) kill(err error) error {
	var phase KillPhase
	var ev Event
	for end := time.Now().Add(patience); !ev.Empty; {
		if time.Now().After(end) {
			return errors.Join(err, errors.New("still not empty"))
		}
		c.Collect(true)
		ev = phase.Step(c, time.Now(), Quickly)
		_ = sys.Poll([]unix.PollFd{{Fd: int32(c.FD()), Events: unix.POLLIN}}, phase.Next())
	}
	killed := 0
	for _, e := range c.Summary().Ended {
		if e.LastSignal == int(syscall.SIGKILL) && e.Name != "" && !e.Start.IsZero() {
			killed++
		}
	}
	if killed < 2 {
		err = errors.Join(err, fmt.Errorf("ended %+v", c.Summary().Ended))
	}
	return errors.Join(err, c.proven(ev))
}
