package adapter

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"pgregory.net/rapid"

	"curfew/fixtures"
	"curfew/outcome"
)

func init() {
	roles["den"] = denRole
	roles["runs a tree"] = runsTreeRole
}

// keptTrees are cases that have failed once, made as small as they could be.
// They are run each time. (That which was found by what one case left to the next
// has a test in internal/supervisor.)
var keptTrees = []string{
	// Who is traced is stopped by the end of its own child.
	"itself start+41.5ms grace=-1ns audience=0 wait=false t10(y*2(ou*2))",
	// The guard is lost while the leader is deaf and waits for its children.
	"guard ready+5.4ms grace=-1ns audience=0 wait=false dw(sxt,.(dp(.*2,v(d(y*2(.,x),so(dk2)))),du))",
	// Both are lost, and a sweep has to find subreapers, stopped ones and orphans.
	"guard+supervisor ready+3.9ms grace=-1ns audience=2 wait=false qfz(sr(o(z(or(o(sg(.*3(o),r(.*2,sfz,gd))))))))",
}

// Variables of TestTrees.
const (
	treesVariable = "CURFEW_TREES" // how many random cases, or for how long (30m)
	treeVariable  = "CURFEW_TREE"  // the one case to be run, 20 times over
)

// TestTrees runs random trees of processes (see fixtures.Tree), ends each in a
// random manner at a random moment, and checks the promise: returned within the
// bound, nothing alive, nobody else signalled, and an outcome that can be.
//
// The generator is rapid's; its way of making a failing case smaller is not,
// because that gives up on a case which does not fail each time, as few do
// where processes race. See smaller.
//
// It is not parallel to other tests: it keeps the machine busy by itself.
func TestTrees(t *testing.T) {
	if testing.Short() {
		t.Skip("what it tests is in other processes")
	}
	crew := newTreeCrew(t, treeWorkers)
	if text := os.Getenv(treeVariable); text != "" {
		crew.each(slices.Repeat([]string{text}, 20))
		return
	}
	crew.each(keptTrees)
	most, span := sizeOf(t, treesVariable, 60)
	crew.random(most, span)
}

// sizeOf reads from a variable how many cases there are to be, or for how long.
func sizeOf(t *testing.T, variable string, usual int) (most int, span time.Duration) {
	t.Helper()
	v := os.Getenv(variable)
	if v == "" {
		return usual, 0
	}
	most, err := strconv.Atoi(v)
	if err != nil {
		if span, err = time.ParseDuration(v); err != nil {
			t.Fatal(err)
		}
	}
	return most, span
}

// random runs random cases: that many, or for that long.
func (c *treeCrew) random(most int, span time.Duration) {
	s, began := seed(c.t), time.Now()
	c.run(func(i int) (treeCase, bool) {
		if span > 0 && time.Since(began) > span || span == 0 && i >= most {
			return treeCase{}, false
		}
		tc := treeCases.Example(int(s>>1) + i)
		if c.tracked {
			tc.beTracked()
		}
		return tc, true
	})
	c.t.Logf("in %v:\n%s", time.Since(began).Round(time.Millisecond), &c.counts)
	if n := &c.counts; n.late > 3+n.cases/100 {
		c.t.Errorf("in %d of %d cases the supervisor did not answer in time", n.late, n.cases)
	}
}

// beTracked makes of the case one for scans: without a guard, and of what they can
// find for certain.
func (c *treeCase) beTracked() {
	c.tracked = true
	switch c.ending {
	case guardKilled:
		c.ending = byCancel
	case supervisorAsleep, bothKilled:
		c.ending = supervisorKilled
	}
	c.fix()
}

// treeCase is a tree, and how and when it is ended.
type treeCase struct {
	ending   ending
	ready    bool          // count after from when the tree stands, and not from the start
	after    time.Duration // when to end it
	grace    time.Duration
	audience Audience
	wait     bool // AfterExitWait
	tree     fixtures.Tree
	fixture  fixtures.Fixture // instead of a tree, if it has a name
	tracked  bool             // scans hold the tree
}

func (c treeCase) String() string {
	return fmt.Sprintf("%s %s+%v grace=%v audience=%d wait=%t %s", c.ending, since[c.ready], c.after, c.grace, c.audience, c.wait, c.what())
}

func (c treeCase) what() string {
	if c.fixture.Name != "" {
		return "=" + c.fixture.Name
	}
	return c.tree.String()
}

var since = map[bool]string{false: "start", true: "ready"}

func parseTreeCase(s string) (c treeCase, err error) {
	var moment, grace, tree string
	if _, err := fmt.Sscanf(s, "%s %s grace=%s audience=%d wait=%t %s", &c.ending, &moment, &grace, &c.audience, &c.wait, &tree); err != nil {
		return c, fmt.Errorf("parse case %q: %w", s, err)
	}
	from, after, _ := strings.Cut(moment, "+")
	c.ready = from == since[true]
	if c.after, err = time.ParseDuration(after); err == nil {
		c.grace, err = time.ParseDuration(grace)
	}
	if name, ok := strings.CutPrefix(tree, "="); ok && err == nil {
		c.fixture, ok = fixtures.Find(name)
		if !ok {
			err = fmt.Errorf("there is no fixture %q", name)
		}
	} else if err == nil {
		c.tree, err = fixtures.ParseTree(tree)
	}
	return c, err
}

// ending is a way in which an invocation comes to its end.
type ending string

const (
	byItself         ending = "itself"
	byCancel         ending = "cancel"
	byTimeout        ending = "timeout"
	byKill           ending = "kill"              // Process.Kill, or StopCause.Kill
	supervisorKilled ending = "supervisor"        // nothing else is done
	supervisorAsleep ending = "suspended"         // SIGSTOP to the supervisor, and canceled
	guardKilled      ending = "guard"             // and canceled soon after
	bothKilled       ending = "guard+supervisor"  // nothing else is done
	callerKilled     ending = "caller"            //
	callerAndHelper  ending = "caller+supervisor" //
	fallBack                = time.Second         // how often to look whether what nobody has ended is to be canceled
	treeLinger              = 60 * time.Millisecond
	treeLifetime            = 30 * time.Second
)

// endings has each as often as it is to be taken. A supervisor that does not
// answer takes a second.
var endings = weighed(map[ending]int{
	byItself: 8, byCancel: 10, byTimeout: 6, byKill: 4, supervisorKilled: 8, supervisorAsleep: 1,
	guardKilled: 4, bothKilled: 4, callerKilled: 5, callerAndHelper: 4,
})

func weighed[K ending | string](weights map[K]int) (list []K) {
	for _, k := range slices.Sorted(maps.Keys(weights)) {
		list = append(list, slices.Repeat([]K{k}, weights[k])...)
	}
	return list
}

func (c treeCase) killsCaller() bool { return c.ending == callerKilled || c.ending == callerAndHelper }

func (c treeCase) policy() StopPolicy {
	return StopPolicy{Grace: c.grace, Linger: treeLinger, KillWait: promptly.KillWait, Audience: c.audience}
}

func (c treeCase) command(o fixtures.Options) Command {
	o.For = treeLifetime
	cmd := Command{Path: os.Args[0], Args: fixtures.TreeArgs(c.tree, o), Stop: c.policy()}
	if f := c.fixture; f.Name != "" {
		// Who its parent is comes first, as from a tree.
		cmd.Args = append([]string{"-c", `echo parent $PPID; exec "$0" "$@"`, cmd.Path}, fixtures.Args(f.Name, o, f.Args...)...)
		cmd.Path = "sh"
	}
	if c.wait {
		cmd.AfterExit = AfterExitWait
	}
	return cmd
}

// leaderEnds reports whether the leader can end by itself, and mustEnd whether it
// does so soon, whatever the others do.
func (c treeCase) leaderEnds() bool {
	return c.fixture.EndsByItself || c.tree.Has('x') || c.tree.Has('t') || c.tree.Has('w')
}

// code is what the leader exits with by itself.
func (c treeCase) code() int {
	if c.fixture.Name != "" {
		return c.fixture.ExitCode
	}
	return c.tree.Traits['x']
}

func (c treeCase) mustEnd() bool {
	return (c.tree.Has('t') || c.tree.Has('x') && !c.tree.Has('w')) && !c.tree.Has('z')
}

// fix changes the case into one that can be judged.
//
// When guard and supervisor are both lost, the promise does not cover what has
// wiped its environment, nor what descends from such a process
// (docs/limits.md). Nor does a scan of /proc find a comet for certain.
func (c *treeCase) fix() {
	c.tree.Times = 1
	for _, letter := range []byte("sgocpknhvy") {
		delete(c.tree.Traits, letter)
	}
	if c.ending == byItself && !c.mustEnd() {
		c.tree.Traits['t'] = 10
		delete(c.tree.Traits, 'z')
	}
	switch c.ending {
	case byCancel, byTimeout, byKill:
	default:
		c.wait = false
	}
	if c.ending == byTimeout || c.ending == byItself {
		c.ready = false
	}
	fixTree(&c.tree, c.ending == bothKilled || c.tracked)
}

func fixTree(t *fixtures.Tree, sweepable bool) {
	drop := func(letters string) {
		for _, letter := range []byte(letters) {
			delete(t.Traits, letter)
		}
	}
	if sweepable {
		drop("ek")
	}
	if t.Has('k') {
		drop("ncyhzvx")
		t.Below = nil
	}
	if t.Has('n') {
		t.Below = nil
	}
	if t.Has('h') && len(t.Below) == 0 {
		drop("h")
	}
	if t.Has('z') || t.Has('y') || t.Has('v') {
		drop("c") // nothing would show that it is alive
	}
	if t.Has('q') || t.Has('f') {
		drop("d")
	}
	if t.Has('w') {
		drop("u")
	}
	if t.Has('h') {
		t.Below = t.Below[:1]
		below := &t.Below[0]
		below.Times, below.Below = 1, nil
		for _, letter := range []byte("onvfh") {
			delete(below.Traits, letter)
		}
	}
	for i := range t.Below {
		fixTree(&t.Below[i], sweepable)
	}
}

var treeCases = rapid.Custom(func(t *rapid.T) treeCase {
	c := treeCase{
		ending:   evenly(t, endings),
		ready:    evenly(t, []bool{false, true}),
		after:    evenly(t, moments),
		grace:    evenly(t, []time.Duration{-1, 20 * time.Millisecond, 60 * time.Millisecond}),
		audience: evenly(t, []Audience{AudienceLeaderFirst, AudienceLeaderFirst, AudienceEveryone, AudienceLeaderOnly}),
		wait:     evenly(t, []bool{false, false, false, true}),
	}
	room := evenly(t, []int{1, 3, 6, 12, 25, 40})
	c.tree = drawTree(t, leaderTraits, &room, 0)
	switch {
	case c.ready:
		c.after /= 8
	case c.killsCaller():
		c.after *= 3 // the caller has to come to it first
	}
	c.fix()
	return c
})

// evenly draws one of list, each as likely: rapid prefers the first ones, and among
// numbers the small ones, but the bits that it draws are even.
func evenly[V any](t *rapid.T, list []V) V {
	n := 0
	for range 16 {
		n <<= 1
		if rapid.Bool().Draw(t, "bit") {
			n++
		}
	}
	return list[n%len(list)]
}

// moments are those from 0 to 60 ms.
var moments = func() (list []time.Duration) {
	for d := time.Duration(0); d <= 60*time.Millisecond; d += 100 * time.Microsecond {
		list = append(list, d)
	}
	return list
}()

var (
	leaderTraits = weighed(map[string]int{"r": 2, "d": 4, "q": 3, "f": 3, "e": 3, "z": 3, "l": 3, "u": 2, "x": 5, "t": 5, "w": 2})
	traits       = weighed(map[string]int{
		"s": 8, "g": 4, "o": 8, "r": 3, "d": 5, "q": 3, "f": 3, "e": 4, "c": 3, "p": 3, "z": 4, "l": 2, "u": 3, "x": 4, "t": 4, "w": 2,
		"k": 3, "h": 3, "n": 2, "v": 1, "y": 1,
	})
)

func drawTree(t *rapid.T, letters []string, room *int, depth int) fixtures.Tree {
	tree := fixtures.Tree{Traits: map[byte]int{}, Times: 1}
	for range evenly(t, []int{0, 1, 1, 2, 2, 3, 4}) {
		switch letter := evenly(t, letters)[0]; letter {
		case 'x':
			tree.Traits[letter] = evenly(t, []int{0, 1, 7, 124, 137, 255})
		case 't':
			tree.Traits[letter] = evenly(t, []int{0, 1, 5, 10, 20, 40, 80})
		case 'k':
			tree.Traits[letter] = evenly(t, []int{0, 1, 1, 2, 5})
		case 'n':
			tree.Traits[letter] = min(evenly(t, []int{2, 5, 12}), *room)
			*room -= tree.Traits[letter]
		default:
			tree.Traits[letter] = 0
		}
	}
	*room--
	if depth < 8 {
		for range evenly(t, []int{0, 1, 1, 2, 3, 4}) {
			if *room <= 0 {
				break
			}
			had := *room
			below := drawTree(t, traits, room, depth+1)
			if each := had - *room; each*2 <= *room {
				below.Times = min(evenly(t, []int{1, 1, 1, 2, 3, 6}), *room/each)
				*room -= each * (below.Times - 1)
			}
			tree.Below = append(tree.Below, below)
		}
	}
	return tree
}

// treeCrew runs cases, several at once.
type treeCrew struct {
	t       testing.TB
	tracked bool
	canary  *fixtures.Canary
	workers []*treeWorker
	failed  atomic.Int32
	counts  treeCounts
}

// Most of a case's time is spent in waiting.
const treeWorkers = 6

func newTreeCrew(t testing.TB, workers int) *treeCrew {
	t.Helper()
	crew := &treeCrew{t: t}
	var err error
	if crew.canary, err = fixtures.StartCanary(os.Args[0], t.TempDir()); err != nil {
		t.Fatal(err)
	}
	for range workers {
		crew.workers = append(crew.workers, &treeWorker{a: &Adapter{}, canary: crew.canary, dir: t.TempDir()})
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		for _, w := range crew.workers {
			if err := errors.Join(shutDown(ctx, w.a), w.den.close()); err != nil {
				t.Error(err)
			}
		}
		if err := errors.Join(crew.canary.Check(), crew.canary.Stop()); err != nil {
			t.Error(err)
		}
	})
	return crew
}

// each runs the cases given.
func (c *treeCrew) each(texts []string) {
	cases := make([]treeCase, len(texts))
	for i, text := range texts {
		var err error
		if cases[i], err = parseTreeCase(text); err != nil {
			c.t.Fatal(err)
		}
		cases[i].tracked = c.tracked
	}
	c.run(func(i int) (treeCase, bool) {
		if i >= len(cases) {
			return treeCase{}, false
		}
		return cases[i], true
	})
}

// run runs the cases that next gives for 0, 1, 2 and so on, until it gives none
// or three have failed.
func (c *treeCrew) run(next func(i int) (treeCase, bool)) {
	var mu sync.Mutex
	count := 0
	var workers sync.WaitGroup
	for _, w := range c.workers {
		workers.Go(func() {
			for c.failed.Load() < 3 {
				mu.Lock()
				tc, ok := next(count)
				count++
				mu.Unlock()
				if !ok {
					return
				}
				r, err := w.run(tc)
				c.counts.add(tc, r)
				if err != nil && c.failed.Add(1) <= 3 {
					c.t.Errorf("%v\n%s='%s'", err, treeVariable, tc)
					if small, err := w.smaller(tc); err != nil {
						c.t.Errorf("smaller: %v\n%s='%s'", err, treeVariable, small)
					}
				}
			}
		})
	}
	workers.Wait()
}

// smaller makes a case that has failed smaller, as long as that fails too, at
// least once in some tries, for half a minute.
func (w *treeWorker) smaller(c treeCase) (treeCase, error) {
	const tries = 6
	end := time.Now().Add(30 * time.Second)
	var failure error
again:
	for _, small := range smallerCases(c) {
		for range tries {
			if time.Now().After(end) {
				return c, failure
			}
			if _, err := w.run(small); err != nil {
				c, failure = small, err
				goto again
			}
		}
	}
	return c, failure
}

func smallerCases(c treeCase) (list []treeCase) {
	if c.fixture.Name != "" {
		return nil
	}
	for _, tree := range smallerTrees(c.tree) {
		small := c
		small.tree = tree
		small.fix()
		if small.String() != c.String() {
			list = append(list, small)
		}
	}
	plain := c
	plain.audience, plain.wait = AudienceLeaderFirst, false
	if plain.String() != c.String() {
		list = append(list, plain)
	}
	return list
}

// smallerTrees are those with one thing less.
func smallerTrees(t fixtures.Tree) (list []fixtures.Tree) {
	without := func(change func(*fixtures.Tree)) {
		small := t
		small.Traits, small.Below = maps.Clone(t.Traits), slices.Clone(t.Below)
		change(&small)
		list = append(list, small)
	}
	for i := range t.Below {
		without(func(s *fixtures.Tree) { s.Below = slices.Delete(s.Below, i, i+1) })
		without(func(s *fixtures.Tree) { s.Below = slices.Concat(s.Below[:i], s.Below[i].Below, s.Below[i+1:]) })
	}
	if t.Times > 1 {
		without(func(s *fixtures.Tree) { s.Times = 1 })
	}
	for _, letter := range slices.Sorted(maps.Keys(t.Traits)) {
		without(func(s *fixtures.Tree) { delete(s.Traits, letter) })
	}
	for i := range t.Below {
		for _, below := range smallerTrees(t.Below[i]) {
			without(func(s *fixtures.Tree) { s.Below[i] = below })
		}
	}
	return list
}

// treeWorker runs one case at a time, each in an Adapter that it keeps, or, when
// the caller is to be killed, in a den.
type treeWorker struct {
	a      *Adapter
	shared *Adapter // with others, for what does no harm to helpers; nil: there is none
	canary *fixtures.Canary
	den    *den
	dir    string
	count  int
}

// treeResult is what came of a case.
type treeResult struct {
	o    outcome.Outcome // zero if the caller was killed
	took time.Duration   // from the ending to the return, or to when all was gone
	miss bool            // the ending came when it could not end anything
	late bool            // the supervisor did not answer in time, and nobody had done anything to it
}

func (w *treeWorker) run(c treeCase) (r treeResult, err error) {
	w.count++
	dir := filepath.Join(w.dir, strconv.Itoa(w.count))
	if err := os.Mkdir(dir, 0o755); err != nil {
		return r, err
	}
	defer func() {
		err = errors.Join(err, w.canary.Check())
		// Something that should be gone may still write there.
		_ = os.RemoveAll(dir)
	}()
	if c.killsCaller() {
		if w.den == nil {
			if w.den, err = startDen(); err != nil {
				return r, err
			}
		}
		r.took, err = w.den.run(c, dir)
		return r, err
	}
	probe, err := fixtures.NewProbe(dir)
	if err != nil {
		return r, err
	}
	defer probe.Close()
	var h helpers
	a := w.shared
	switch c.ending {
	case supervisorKilled, supervisorAsleep, guardKilled, bothKilled:
		a = w.a
		if h, err = findHelpers(w.a); err != nil {
			return r, err
		}
		defer h.close()
	default:
		if a == nil {
			a = w.a
		}
	}

	cmd := c.command(probe.Options())
	var said said
	cmd.Stdout = &said
	started := make(chan *Process, 1)
	cmd.Started = func(p *Process) { started <- p }
	limited, done := context.WithTimeout(context.Background(), 2*patience)
	defer done()
	ctx, stop := context.WithCancelCause(limited)
	cancel := func() { stop(nil) }
	defer cancel()
	if c.ending == byTimeout {
		cmd.Timeout = max(c.after, 1)
	}
	result := make(chan ended, 1)
	returned, isBack := context.WithCancel(ctx)
	began := time.Now()
	go func() {
		defer isBack()
		o, err := a.Invoke(ctx, cmd)
		result <- ended{o, err, time.Now()}
	}()
	if c.ending == byTimeout || c.ending == byItself {
		began = began.Add(cmd.Timeout)
	} else {
		if c.ready {
			_ = probe.AwaitReady(returned) // or it is over: it is judged below
		}
		pauseUntil(returned, c.after)
		began = time.Now()
		switch c.ending {
		case byCancel:
			cancel()
		case byKill:
			select {
			case p := <-started:
				p.Kill()
			default: // from the beginning
				stop(StopCause{Kill: true})
			}
		case supervisorKilled:
			h.signal(h.supervisor, unix.SIGKILL)
		case supervisorAsleep:
			h.signal(h.supervisor, unix.SIGSTOP)
			cancel()
		case guardKilled:
			h.signal(h.guard, unix.SIGKILL)
			pauseUntil(returned, c.after%(5*time.Millisecond))
			began = time.Now()
			cancel()
		case bothKilled:
			first, second := h.guard, h.supervisor
			if c.after%(200*time.Microsecond) == 0 {
				first, second = second, first
			}
			h.signal(first, unix.SIGKILL)
			h.signal(second, unix.SIGKILL)
		}
		if c.ending == guardKilled || c.ending == bothKilled {
			// Else the next case could be given a supervisor whose guard is about to die.
			defer func() { err = errors.Join(err, h.awaitGuardDead()) }()
		}
	}
	var e ended
	fell := false
	for waiting, tries := true, 1; waiting; tries++ {
		select {
		case e = <-result:
			waiting = false
		case <-time.After(fallBack):
			// Another supervisor than the one that was killed can have the tree.
			parent := said.parent()
			if other := parent != 0 && parent != h.pid && h.pid != 0; other || time.Duration(tries)*fallBack > patience {
				fell = true
				cancel()
			}
		}
	}
	r.o, r.took = e.o, e.at.Sub(began)
	return r, errors.Join(c.judge(e, &r, said.parent() == h.pid, fell, probe), c.nothingLeft(e.o, probe))
}

// said is what the leader has written: who its parent is comes first.
type said struct {
	mu   sync.Mutex
	text []byte
}

func (s *said) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if room := 32 - len(s.text); room > 0 {
		s.text = append(s.text, p[:min(len(p), room)]...)
	}
	return len(p), nil
}

func (s *said) parent() (pid int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, _ = fmt.Sscanf(string(s.text), "parent %d\n", &pid) // 0: it has not said so yet
	return pid
}

// pauseUntil waits for d, or less if ctx is done.
func pauseUntil(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

// judge says what is wrong with the outcome.
func (c treeCase) judge(e ended, r *treeResult, parentKilled, fell bool, probe *fixtures.Probe) error {
	o := e.o
	bad := func(what string) error {
		return fmt.Errorf("%s: got %s, %s, exit %+v, %v after the ending, %v; cleanup %+v; stderr %.200q",
			what, o.Status, o.Cause, o.Exit, r.took, e.err, o.Cleanup, o.Stderr)
	}
	lost := c.ending == supervisorKilled || c.ending == bothKilled || c.ending == supervisorAsleep || c.fixture.Name == killsSupervisor
	cause := map[ending]outcome.Cause{
		byCancel: outcome.CauseCanceled, byTimeout: outcome.CauseTimeout, byKill: outcome.CauseCanceled,
		supervisorKilled: outcome.CauseSupervisorLost, supervisorAsleep: outcome.CauseCanceled,
		guardKilled: outcome.CauseCanceled, bothKilled: outcome.CauseSupervisorLost,
	}[c.ending]
	if fell {
		// That is all right only if another supervisor than the one killed had
		// the tree.
		if parentKilled || !lost {
			return bad("not ended by what should have ended it")
		}
		cause, r.miss, r.took = outcome.CauseCanceled, true, 0
	}
	if r.took > bound(c.policy()) {
		return bad(fmt.Sprintf("not within %v", bound(c.policy())))
	}
	if (e.err == nil) != (o.Status == outcome.StatusSucceeded) {
		return bad("status and error differ")
	}

	clean := o.Cleanup
	switch {
	case c.tracked && clean.Result == outcome.CleanupEmpty && clean.Proof == outcome.ProofScans && !clean.HelperLost && len(clean.Suspects) == 0:
	case c.tracked && clean.Result == outcome.CleanupUnverified && clean.Proof == outcome.ProofNone && (clean.HelperLost && lost || len(clean.Suspects) > 0):
		// Orphans of whatever else runs on this machine are suspects too.
	case clean.Result == outcome.CleanupEmpty && clean.Proof == outcome.ProofNoChildren && !clean.HelperLost:
	case clean.Result == outcome.CleanupEmpty && clean.Proof == outcome.ProofChildList && clean.HelperLost && lost:
	case clean.Result == outcome.CleanupEmpty && clean.Proof == outcome.ProofChildList && clean.HelperLost && strings.Contains(e.err.Error(), "did not say within"):
		r.late = true // on a machine that has much else to do; rare, see TestTrees
	case clean.Result == outcome.CleanupUnverified && clean.Proof == outcome.ProofNone && clean.HelperLost && c.ending == bothKilled:
	default:
		return bad("this cleanup cannot be")
	}
	switch {
	case o.Status == outcome.StatusNotStarted:
		// A helper that is killed before it has the request, or while it starts.
		start := o.Cause == outcome.CauseStartFailed && lost
		if o.Cause != cause && !start || o.Exit != nil || clean.HelperLost || !errors.Is(e.err, outcome.ErrNotStarted) {
			return bad("not started")
		}
		r.miss = true
		if eof, err := probe.FIFOEOF(0); !errors.Is(err, fixtures.ErrNoWriter) || probe.Beats() > 0 {
			return bad(fmt.Sprintf("not started, but EOF of fifo: %v, %v, and %d heartbeats", eof, err, probe.Beats()))
		}
	case o.Cause == outcome.CauseExit:
		code := c.code()
		status := outcome.StatusSucceeded
		if code != 0 {
			status = outcome.StatusFailed
		}
		if !c.leaderEnds() || o.Status != status || o.Exit == nil || *o.Exit != (outcome.Exit{Code: code}) {
			return bad("ended by itself")
		}
		r.miss = c.ending != byItself
	case o.Status != outcome.StatusUnknown || o.Cause != cause || !errors.Is(e.err, outcome.ErrUnknown):
		return bad("ended")
	case clean.HelperLost:
		// How the leader ended may have been seen or not.
		if o.Exit != nil && !o.Exit.AfterStop && !c.wait {
			return bad("an exit before the stop counts")
		}
	case o.Exit == nil, !o.Exit.AfterStop && !c.wait:
		return bad("how the leader ended is known")
	}
	return nil
}

// nothingLeft checks that no process is there any more. Where the outcome claims
// no proof, it may take a moment.
func (c treeCase) nothingLeft(o outcome.Outcome, probe *fixtures.Probe) error {
	within := time.Duration(0)
	if o.Cleanup.Result == outcome.CleanupUnverified {
		within = 5 * time.Second
		if o.Cleanup.Elapsed > loseLimit {
			within = patience // the sweep ran out of time: they end by themselves
		}
	}
	err := gone(fixtures.Fixture{HoldsFIFO: c.holdsFIFO()}, probe, within)
	if err != nil {
		err = fmt.Errorf("after %s, %s: %w; cleanup %+v", o.Status, o.Cause, err, o.Cleanup)
	}
	return err
}

// helpers are those that an Adapter will use next, if nothing happens to them.
type helpers struct {
	guard, supervisor int // pidfds
	pid               int // of the supervisor
}

// findHelpers runs something on an Adapter that runs nothing else. Its supervisor
// is the one used last, and so the one that is used next.
func findHelpers(a *Adapter) (h helpers, err error) {
	for end := time.Now().Add(patience); ; {
		// A guard that was killed just before can be there still when its supervisor
		// is taken; that supervisor serves, and the next has another guard.
		if h, err = lookForHelpers(a); err == nil || time.Now().After(end) {
			return h, err
		}
	}
}

func lookForHelpers(a *Adapter) (h helpers, err error) {
	c := sh("read -r pid name state parent rest </proc/$PPID/stat && echo $PPID $parent")
	c.Timeout = patience
	o, err := a.Invoke(context.Background(), c)
	if err != nil {
		return h, fmt.Errorf("find the helpers: %w", err)
	}
	var guard int
	if _, err := fmt.Sscan(string(o.Stdout), &h.pid, &guard); err != nil {
		return h, fmt.Errorf("find the helpers: %q: %w", o.Stdout, err)
	}
	h.guard = -1
	if guard != os.Getpid() { // else there is none
		if h.guard, err = openChild(guard, os.Getpid()); err != nil {
			return h, err
		}
	}
	if h.supervisor, err = openChild(h.pid, guard); err != nil {
		_ = unix.Close(h.guard)
	}
	return h, err
}

// openChild opens a pidfd of pid, which must be a child of parent when it is
// open: then it is what it was taken for.
func openChild(pid, parent int) (int, error) {
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return -1, os.NewSyscallError("pidfd_open", err)
	}
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err == nil {
		var state string
		var ppid int
		if _, err = fmt.Sscan(string(stat[bytes.LastIndexByte(stat, ')')+1:]), &state, &ppid); err == nil && ppid != parent {
			err = fmt.Errorf("%d is a child of %d, not of %d", pid, ppid, parent)
		}
	}
	if err != nil {
		_ = unix.Close(fd)
		return -1, err
	}
	return fd, nil
}

// signal signals a helper, if it is still there.
func (h helpers) signal(fd int, sig syscall.Signal) { _ = unix.PidfdSendSignal(fd, sig, nil, 0) }

// awaitGuardDead waits for the end of a guard that was killed: on a machine under
// load it takes its time.
func (h helpers) awaitGuardDead() error {
	fds := []unix.PollFd{{Fd: int32(h.guard), Events: unix.POLLIN}}
	for end := time.Now().Add(patience); ; {
		if n, err := unix.Poll(fds, int(patience.Milliseconds())); n > 0 || err != unix.EINTR || time.Now().After(end) {
			if n == 0 {
				return errors.New("the guard that was killed does not end")
			}
			return nil
		}
	}
}

func (h helpers) close() {
	_ = unix.Close(h.guard)
	_ = unix.Close(h.supervisor)
}

// den is a process in which callers live and are killed. It adopts what they and
// their helpers leave, so that it knows from the kernel when nothing is left.
type den struct {
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Reader
}

func startDen() (*den, error) {
	d := &den{cmd: exec.Command(os.Args[0])}
	d.cmd.Env = append(os.Environ(), roleVar+"=den")
	d.cmd.Stderr = os.Stderr
	in, err := d.cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := d.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	d.in, d.out = in, bufio.NewReader(out)
	return d, d.cmd.Start()
}

// run has the den run a case.
func (d *den) run(c treeCase, dir string) (time.Duration, error) {
	if _, err := fmt.Fprintf(d.in, "%s\t%s\n", dir, c); err != nil {
		return 0, err
	}
	line, err := d.out.ReadString('\n')
	if err != nil {
		return 0, fmt.Errorf("the den has ended: %w", err)
	}
	took, problem, _ := strings.Cut(strings.TrimSpace(line), " ")
	if problem != "" {
		return 0, errors.New(problem)
	}
	return time.ParseDuration(took)
}

func (d *den) close() error {
	if d == nil {
		return nil
	}
	_ = d.in.Close()
	return d.cmd.Wait()
}

func denRole([]string) error {
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return os.NewSyscallError("prctl", err)
	}
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		dir, text, _ := strings.Cut(lines.Text(), "\t")
		c, err := parseTreeCase(text)
		var took time.Duration
		if err == nil {
			took, err = c.inDen(dir, text)
		}
		if err != nil {
			fmt.Println("0s", strings.ReplaceAll(err.Error(), "\n", "; "))
		} else {
			fmt.Println(took)
		}
	}
	return lines.Err()
}

// inDen starts a caller and kills it. It returns how long it took then until
// everything was gone, helpers included.
func (c treeCase) inDen(dir, text string) (time.Duration, error) {
	probe, err := fixtures.NewProbe(dir)
	if err != nil {
		return 0, err
	}
	defer probe.Close()
	caller := exec.Command(os.Args[0], text, dir)
	caller.Env = append(os.Environ(), roleVar+"=runs a tree")
	caller.Stderr = os.Stderr
	if err := caller.Start(); err != nil {
		return 0, err
	}
	if c.ready {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		if err := probe.AwaitReady(ctx); err != nil {
			return 0, err
		}
	}
	time.Sleep(c.after)
	var supervisors []int
	if c.ending == callerAndHelper {
		supervisors = supervisorsOf(caller.Process.Pid)
	}
	kills := []func(){func() { _ = caller.Process.Kill() }, func() {
		for _, fd := range supervisors {
			_ = unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0) // it can be gone
			_ = unix.Close(fd)
		}
	}}
	if c.after%(200*time.Microsecond) == 0 {
		slices.Reverse(kills)
	}
	for _, kill := range kills {
		kill()
	}
	began := time.Now()
	const slack = 10 * time.Second // for the start of what was being started, under load
	for {
		_, err := unix.Wait4(-1, nil, unix.WNOHANG|unix.WALL, nil)
		if err == unix.ECHILD {
			break
		}
		if time.Since(began) > bound(c.policy())+slack {
			return 0, fmt.Errorf("%v after the caller was killed there is %s", time.Since(began), children())
		}
		if err == nil {
			time.Sleep(500 * time.Microsecond)
		}
	}
	took := time.Since(began)
	return took, gone(fixtures.Fixture{HoldsFIFO: c.holdsFIFO()}, probe, 0)
}

func (c treeCase) holdsFIFO() bool { return c.fixture.Name == "" || c.fixture.HoldsFIFO }

// supervisorsOf opens pidfds of the supervisors of a caller, which is our child.
func supervisorsOf(caller int) (fds []int) {
	for _, guard := range childrenOf(caller) {
		fd, err := openChild(guard, caller)
		if err != nil {
			continue
		}
		for _, pid := range childrenOf(guard) {
			// It would be the guard's own child for ever, or an orphan that fell
			// to it: of a supervisor that is gone, so that there is none to kill.
			if s, err := openChild(pid, guard); err == nil {
				fds = append(fds, s)
			}
		}
		_ = unix.Close(fd)
	}
	return fds
}

func childrenOf(pid int) (pids []int) {
	lists, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
	for _, list := range lists {
		b, _ := os.ReadFile(list) // gone: it has none
		for _, field := range strings.Fields(string(b)) {
			if n, err := strconv.Atoi(field); err == nil {
				pids = append(pids, n)
			}
		}
	}
	return pids
}

// runsTreeRole is a caller that runs a case, to be killed.
func runsTreeRole(args []string) error {
	c, err := parseTreeCase(args[0])
	if err != nil {
		return err
	}
	in := func(name string) string { return filepath.Join(args[1], name) }
	o, err := Invoke(context.Background(), c.command(fixtures.Options{Heartbeat: in("heartbeat"), FIFO: in("fifo"), Ready: in("ready")}))
	lost := c.ending == callerAndHelper && o.Cause == outcome.CauseSupervisorLost // that was killed first
	if !lost && (o.Cause != outcome.CauseExit || !c.leaderEnds()) || o.Cleanup.Result != outcome.CleanupEmpty {
		return fmt.Errorf("the tree has ended: %s, %s, %+v, %w", o.Status, o.Cause, o.Cleanup, err)
	}
	time.Sleep(patience)
	return errors.New("not killed")
}

// treeCounts says what cases came to.
type treeCounts struct {
	mu        sync.Mutex
	cases     int
	misses    int
	late      int
	processes int
	results   map[string]int
	slowest   map[ending]time.Duration
	slow      map[ending]treeCase
}

func (n *treeCounts) add(c treeCase, r treeResult) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.results == nil {
		n.results, n.slowest, n.slow = map[string]int{}, map[ending]time.Duration{}, map[ending]treeCase{}
	}
	n.cases++
	if r.miss {
		n.misses++
	}
	if r.late {
		n.late++
	}
	n.processes += c.tree.Size()
	result := "gone"
	if !c.killsCaller() {
		result = fmt.Sprintf("%s, %s, %s by %s", r.o.Status, r.o.Cause, r.o.Cleanup.Result, r.o.Cleanup.Proof)
	}
	n.results[string(c.ending)+": "+result]++
	if c.ending != byItself && r.took > n.slowest[c.ending] {
		n.slowest[c.ending], n.slow[c.ending] = r.took, c
	}
}

func (n *treeCounts) String() string {
	n.mu.Lock()
	defer n.mu.Unlock()
	var b strings.Builder
	fmt.Fprintf(&b, "%d cases with %d processes; in %d the ending found nothing to end, in %d a supervisor was late\n", n.cases, n.processes, n.misses, n.late)
	for _, result := range slices.Sorted(maps.Keys(n.results)) {
		fmt.Fprintf(&b, "%6d %s\n", n.results[result], result)
	}
	for _, e := range slices.Sorted(maps.Keys(n.slowest)) {
		fmt.Fprintf(&b, "slowest %-18s %6d ms of %d: %s\n", e, n.slowest[e].Milliseconds(), bound(n.slow[e].policy()).Milliseconds(), n.slow[e])
	}
	return b.String()
}
