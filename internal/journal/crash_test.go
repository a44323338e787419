//go:build linux || darwin

package journal

import (
	"bufio"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	mathrand "math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"curfew/internal/fault"
)

// killedAt ends this process with SIGKILL instead of its nth call of those that
// change what is on the disk: between those calls the moment makes no difference.
func killedAt(n int) {
	calls := 0
	fault.Inject = func(call fault.Call) syscall.Errno {
		switch call {
		case fault.Mkdir, fault.Open, fault.Write, fault.Rename, fault.Unlink:
			calls++
		}
		if calls == n {
			_ = unix.Kill(os.Getpid(), unix.SIGKILL)
			select {} // until it takes effect
		}
		return 0
	}
}

func init() {
	roles["invoke until"] = func(args []string) error {
		n, err := strconv.Atoi(args[1])
		if err != nil {
			return err
		}
		killedAt(n)
		j, err := Open(args[0])
		if err != nil {
			return err
		}
		if err := j.Begin(Begin{ID: "a"}); err != nil {
			return err
		}
		say("begun")
		if err := WriteEnd(args[0], "a", End{Writer: "helper"}); err != nil {
			return err
		}
		say("ended")
		if err := j.Delivered("a"); err != nil {
			return err
		}
		say("delivered")
		return j.Close()
	}
}

// The caller is killed before each call that changes something. An invocation that began and
// was not delivered is returned once, with its end if that was written.
func TestCallerKilledAtEachCall(t *testing.T) {
	t.Parallel()
	for n := 1; ; n++ {
		dir := filepath.Join(t.TempDir(), "state")
		p := play(t, "invoke until", dir, fmt.Sprint(n))
		reported := map[string]bool{}
		for _, line := range p.rest() {
			reported[line] = true
		}
		done := p.Wait() == nil
		j := open(t, dir)
		var got []string
		for range 2 {
			once, err := given(t, j, 0)
			if err != nil {
				t.Errorf("call %d: %v", n, err)
			}
			for id, writer := range once {
				got = append(got, id)
				if reported["ended"] && writer != "helper" {
					t.Errorf("call %d: the end is now that of %s", n, writer)
				}
			}
		}
		switch ended := exists(recordFile(filepath.Join(dir, endedDir), "a")); {
		case len(got) > 1, len(got) == 1 && (reported["delivered"] || ended):
			t.Errorf("call %d: given %v, reported %v", n, got, reported)
		case reported["begun"] && len(got) == 0 && !ended:
			t.Errorf("call %d: lost", n)
		}
		for _, name := range names(t, dir, peersDir) {
			if !strings.HasPrefix(name, j.Peer()) && !strings.HasPrefix(name, tempPre) {
				t.Errorf("call %d: %s is still there", n, name)
			}
		}
		_ = j.Close()
		if done {
			if n < 15 || !reported["delivered"] {
				t.Errorf("done after %d calls, reported %v", n, reported)
			}
			return
		}
		if n > 200 {
			t.Fatal("it does not end")
		}
	}
}

func init() {
	roles["recover until"] = func(args []string) error {
		n, err := strconv.Atoi(args[1])
		if err != nil {
			return err
		}
		j, err := Open(args[0])
		if err != nil {
			return err
		}
		killedAt(n)
		got, err := j.Recover(context.Background(), 0, func(e Entry) End {
			say("settled", e.Begin.ID)
			return End{Writer: "killed"}
		})
		for _, entry := range got {
			say("given", entry.Begin.ID)
		}
		return err
	}
}

// A process that recovers is killed before each call that changes something. No invocation
// is returned twice; one that is not returned was settled, has an end and is in recovered/.
func TestRecovererKilledAtEachCall(t *testing.T) {
	t.Parallel()
	for n := 1; ; n++ {
		dir := t.TempDir()
		dead := open(t, dir)
		begin(t, dead, "ended", "open")
		if err := errors.Join(WriteEnd(dir, "ended", End{Writer: "helper"}), dead.Close()); err != nil {
			t.Fatal(err)
		}
		p := play(t, "recover until", dir, fmt.Sprint(n))
		reported := map[string]bool{}
		for _, line := range p.rest() {
			reported[line] = true
		}
		done := p.Wait() == nil
		j := open(t, dir)
		later, err := given(t, j, 0)
		if err != nil {
			t.Errorf("call %d: %v", n, err)
		}
		for id, writers := range map[string][]string{"ended": {"helper"}, "open": {"killed", "recover"}} {
			writer, isLater := later[id]
			if isLater && reported["given "+id] {
				t.Errorf("call %d: %s was given twice", n, id)
			}
			if !isLater && !reported["settled "+id] {
				t.Errorf("call %d: %s was not returned", n, id)
			}
			if done && isLater {
				t.Errorf("call %d: %s was left", n, id)
			}
			entry, err := readRecord(filepath.Join(dir, recoveredDir), id)
			if err != nil || entry.End == nil {
				t.Errorf("call %d: %v, %v", n, entry, err)
				continue
			}
			if isLater && entry.End.Writer != writer || entry.End.Writer != writers[0] && entry.End.Writer != writers[len(writers)-1] {
				t.Errorf("call %d: %s: the end is that of %s, given was that of %q", n, id, entry.End.Writer, writer)
			}
		}
		_ = j.Close()
		if done {
			if n < 12 {
				t.Errorf("done after %d calls", n)
			}
			return
		}
		if n > 300 {
			t.Fatal("it does not end")
		}
	}
}

func init() {
	// busy invokes until it is killed, several at a time. A helper of its own
	// writes the ends, and goes on after the caller has died.
	roles["busy"] = func(args []string) error {
		j, err := Open(args[0])
		if err != nil {
			return err
		}
		j.historyCount = math.MaxInt
		self, err := os.Executable()
		if err != nil {
			return err
		}
		helper := exec.Command(self, args[0], j.Peer())
		helper.Env = append(os.Environ(), roleVar+"=ends")
		helper.Stderr = os.Stderr
		helper.ExtraFiles = []*os.File{os.Stdout}
		in, err := helper.StdinPipe()
		if err != nil {
			return err
		}
		out, err := helper.StdoutPipe()
		if err != nil {
			return err
		}
		if err := helper.Start(); err != nil {
			return err
		}
		ended := bufio.NewScanner(out)
		if !ended.Scan() {
			return errors.New("the helper does not hold")
		}
		say("ready")
		for range 3 {
			go func() {
				for {
					id := rand.Text()
					say("beginning", id)
					if err := j.Begin(Begin{ID: id, Program: "x", Began: time.Now()}); err != nil {
						fmt.Fprintln(os.Stderr, err)
						os.Exit(1)
					}
					say("begun", id)
					_, _ = io.WriteString(in, id+"\n")
				}
			}()
		}
		for ended.Scan() {
			id := ended.Text()
			if mathrand.IntN(3) == 0 {
				continue // the caller does not ask for this end
			}
			say("delivering", id)
			if err := j.Delivered(id); err != nil {
				return err
			}
			say("delivered", id)
		}
		return errors.New("the helper has ended")
	}
	roles["ends"] = func(args []string) error {
		if _, err := Hold(args[0], args[1]); err != nil {
			return err
		}
		say("holding")
		ids := bufio.NewScanner(os.Stdin)
		test := os.NewFile(3, "test")
		for ids.Scan() {
			if mathrand.IntN(4) == 0 {
				continue // as if the helper had no time for it
			}
			if err := WriteEnd(args[0], ids.Text(), End{Writer: "helper", At: time.Now()}); err != nil {
				return err
			}
			_, _ = io.WriteString(test, "ended "+ids.Text()+"\n")
			say(ids.Text()) // without effect if the caller is dead
		}
		return nil
	}
	// recoverer recovers until it is killed.
	roles["recoverer"] = func(args []string) error {
		j, err := Open(args[0])
		if err != nil {
			return err
		}
		j.historyCount = math.MaxInt
		say("ready")
		got, err := j.Recover(context.Background(), tooLong, func(e Entry) End {
			say("settled", e.Begin.ID)
			return End{Writer: "recover", At: time.Now()}
		})
		for _, entry := range got {
			say("given", entry.Begin.ID)
		}
		if errors.Is(err, ErrRecovering) || errors.Is(err, ErrEnding) {
			return nil
		}
		return err
	}
}

// ledger is what all processes of a test report about each invocation.
type ledger struct {
	sync.Mutex
	reported map[string]map[string]int // word, by id
	writer   map[string]string         // of the end that was returned
}

func (l *ledger) note(line string) {
	word, id, ok := strings.Cut(line, " ")
	if !ok {
		return
	}
	l.Lock()
	defer l.Unlock()
	if l.reported[id] == nil {
		l.reported[id] = map[string]int{}
	}
	l.reported[id][word]++
}

// TestKills kills callers that share a directory at random moments, and some of the
// processes that recover. At the end each invocation is accounted for: none is lost,
// none is returned twice.
func TestKills(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	l := &ledger{reported: map[string]map[string]int{}, writer: map[string]string{}}
	recoverHere := func(j *Journal) {
		got, err := j.Recover(context.Background(), tooLong, settleAs("recover"))
		if err != nil {
			t.Error(err)
		}
		for _, entry := range got {
			l.note("given " + entry.Begin.ID)
			l.Lock()
			l.writer[entry.Begin.ID] = entry.End.Writer
			l.Unlock()
		}
	}
	const lanes = 2
	rounds := 50
	if testing.Short() {
		rounds = 10
	}
	var wg sync.WaitGroup
	for lane := range lanes {
		j := open(t, dir)
		j.historyCount = math.MaxInt
		wg.Go(func() {
			for round := range rounds {
				caller := play(t, "busy", dir)
				if !caller.out.Scan() || caller.out.Text() != "ready" {
					t.Error("the caller is not ready: ", caller.out.Text())
					return
				}
				for n := mathrand.IntN(30); n > 0 && caller.out.Scan(); n-- {
					l.note(caller.out.Text())
				}
				time.Sleep(time.Duration(mathrand.Int64N(int64(2 * time.Millisecond))))
				caller.kill()
				switch {
				case round%3 == lane:
					other := play(t, "recoverer", dir)
					if !other.out.Scan() {
						t.Error("the recoverer is not ready")
						return
					}
					for n := mathrand.IntN(4); n > 0 && other.out.Scan(); n-- {
						l.note(other.out.Text())
					}
					time.Sleep(time.Duration(mathrand.Int64N(int64(2 * time.Millisecond))))
					other.kill()
					for _, line := range other.rest() {
						l.note(line)
					}
				case round%3 == 2:
					recoverHere(j)
				}
				for _, line := range caller.rest() {
					l.note(line)
				}
			}
		})
	}
	wg.Wait()
	last := open(t, dir)
	last.historyCount = math.MaxInt
	recoverHere(last)
	if left, err := recordsIn(dir); err != nil || len(left) > 0 {
		t.Errorf("left in flight: %v, %v", left, err)
	}

	counts := map[string]int{}
	for id, reported := range l.reported {
		for word := range reported {
			counts[word]++
		}
		ended := exists(recordFile(filepath.Join(dir, endedDir), id))
		entry, err := readRecord(filepath.Join(dir, recoveredDir), id)
		recovered := err == nil
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			t.Error(err)
		}
		wrong := ""
		switch {
		case reported["beginning"] == 0:
			wrong = "it did not begin"
		case reported["given"] > 1:
			wrong = "given twice"
		case ended && recovered:
			wrong = "in two places"
		case reported["begun"] > 0 && !ended && !recovered:
			wrong = "lost"
		case reported["delivered"] > 0 && !ended:
			wrong = "delivered and not in ended/"
		case reported["given"] > 0 && !recovered:
			wrong = "given and not in recovered/"
		case recovered && reported["given"] == 0 && reported["settled"] == 0:
			wrong = "recovered and not returned, though no process was killed then"
		case recovered && entry.End == nil:
			wrong = "recovered without an end"
		case recovered && reported["ended"] > 0 && entry.End.Writer != "helper":
			wrong = "the helper's end does not count"
		case l.writer[id] != "" && l.writer[id] != entry.End.Writer:
			wrong = "given with another end than is written"
		}
		if wrong != "" {
			t.Errorf("%s: %s: %v", id, wrong, reported)
		}
	}
	for _, word := range []string{"begun", "ended", "delivered", "given", "settled"} {
		if counts[word] == 0 {
			t.Errorf("nothing was %s: %v", word, counts)
		}
	}
	t.Logf("%d kills of callers: %v", lanes*rounds, counts)
}
