package adapter

import (
	"context"
	"errors"
	"io"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"curfew/internal/scratch"
	"curfew/internal/supervisor"
	"curfew/internal/verdict"
	"curfew/internal/wire"
	"curfew/outcome"
)

// invocation is one run of a command, from its registration to its outcome: start,
// follow, settle.
type invocation struct {
	a      *Adapter
	ctx    *callerContext // its end stops the invocation
	cmd    Command
	policy StopPolicy // the command's, with the defaults
	id     string
	began  time.Time
	hooks  hooks

	file    string // what is executed, as execve takes it
	wiring  wiring
	written atomic.Int64 // to pipes, by the CLI
	disk    record
	code    callerCode
	control control
	limit   time.Time // code of the caller's is waited for until then; set when the tree is gone

	outcome outcome.Outcome // final once done is closed
	done    chan struct{}
	proof   proof
}

// hooks are what Start adds to an invocation. For Invoke they are zero.
type hooks struct {
	session bool // to be stopped is its ordinary end
	started func(*Process, time.Time)
	exited  func(*outcome.Exit)
	traffic *traffic
}

// proof is whether the tree of an invocation that ended without a proof of that is
// gone now.
type proof struct {
	mu   sync.Mutex // held while it is looked at
	gone bool
}

func newInvocation(a *Adapter, ctx context.Context, c Command, h hooks) *invocation {
	c.Timeout, c.IdleTimeout = min(c.Timeout, maxWait), min(c.IdleTimeout, maxWait)
	v := &invocation{a: a, ctx: newCallerContext(ctx), cmd: c, policy: c.stopPolicy(), id: newID(), began: time.Now(), hooks: h, done: make(chan struct{})}
	v.code.contexts = []*callerContext{v.ctx}
	v.control.id = v.id
	v.control.owed.waits = c.waits(a.journal != nil)
	if c.Timeout > 0 {
		v.control.owed.timeout = v.began.Add(c.Timeout)
	}
	if h.traffic != nil {
		v.control.onStop = h.traffic.end
	}
	return v
}

// invoke runs v, which is registered.
func (v *invocation) invoke() {
	if helper := v.start(v.ctx); helper != nil {
		v.follow(helper)
	}
}

// refusal is why nothing was executed.
type refusal struct {
	cause outcome.Cause
	why   verdict.Why
}

// start makes a helper start the CLI, and returns that helper. If that cannot be done or
// ctx ends before, it returns nil, and the outcome is final.
func (v *invocation) start(ctx *callerContext) *supervisor.Client {
	helper, r := v.order(ctx)
	if r != nil {
		v.wiring.closePipes()
		v.dropTempDir()
		v.notStarted(r)
	}
	return helper
}

func (v *invocation) order(ctx *callerContext) (*supervisor.Client, *refusal) {
	if ctx.Err() != nil {
		return nil, contextEnded(ctx)
	}
	request, err := v.prepare()
	if err != nil {
		return nil, notPossible(asStartError(v.cmd.Path, err))
	}
	defer v.wiring.disconnect()

	starting, done := v.startContext(ctx)
	defer done()
	helper, err := v.a.pool.Get(starting, v.cmd.AfterExit == AfterExitLeave)
	if err != nil {
		if r := v.stopped(ctx, starting); r != nil {
			return nil, r
		}
		return nil, v.failed("start a supervisor for", err)
	}
	if r := v.stopped(ctx, starting); r != nil {
		v.a.pool.Put(helper)
		return nil, r
	}
	v.log("curfew: start")
	if err := v.enter(helper); err != nil {
		v.a.pool.Put(helper)
		return nil, notPossible(err)
	}
	request.Duties = v.duties()
	v.limitTimeout(request)
	if err := helper.Run(starting, request); err != nil {
		// Not all of the request was sent, so that nothing can be executed.
		helper.Kill()
		v.a.pool.Discard(helper)
		if r := v.stopped(ctx, starting); r != nil {
			return nil, r
		}
		if errors.Is(err, wire.ErrTooLarge) {
			return nil, v.failed(outcome.OpExec, err) // as execve would have returned
		}
		return nil, v.failed("send a supervisor the request for", err)
	}
	return helper, nil
}

// contextEnded is the refusal of a context that has ended.
func contextEnded(ctx *callerContext) *refusal {
	cause, err := ctx.why()
	return &refusal{cause, verdict.Why{Cause: err}}
}

// notPossible is the refusal for an error.
func notPossible(err *outcome.StartError) *refusal {
	return &refusal{outcome.CauseStartFailed, verdict.Why{Start: err}}
}

// failed is the refusal for an error that op had.
func (v *invocation) failed(op string, err error) *refusal {
	return notPossible(&outcome.StartError{Op: op, Path: v.cmd.Path, Err: err})
}

func asStartError(path string, err error) *outcome.StartError {
	var e *outcome.StartError
	if errors.As(err, &e) {
		return e
	}
	return &outcome.StartError{Op: "start", Path: path, Err: err}
}

// startContext returns the context for what comes before the request. It ends with ctx,
// with the timeout, and when a stop is asked for.
func (v *invocation) startContext(ctx *callerContext) (context.Context, func()) {
	starting, cancel := context.WithCancelCause(ctx)
	done := func() { cancel(nil) }
	if v.cmd.Timeout > 0 {
		var release context.CancelFunc
		starting, release = context.WithDeadlineCause(starting, v.began.Add(v.cmd.Timeout), errTimeout)
		done = func() {
			release()
			cancel(nil)
		}
	}
	v.control.begin(cancel)
	return starting, done
}

// errTimeout is the cause of a context that the command's timeout has ended.
var errTimeout = errors.New("adapter: the command's timeout ran out")

// stopped returns the refusal of a stop that came before the request, nil if none did.
// starting is what startContext has made of ctx.
func (v *invocation) stopped(ctx *callerContext, starting context.Context) *refusal {
	switch r := v.control.first(); {
	case r.cause != "":
		return &refusal{r.cause, verdict.Why{Cause: r.why}}
	case starting.Err() == nil:
		return nil
	case ctx.Err() == nil:
		return &refusal{outcome.CauseTimeout, verdict.Why{}}
	}
	return contextEnded(ctx)
}

// prepare makes the request and connects the CLI's files. After an error nothing is left
// open but our own ends of pipes.
func (v *invocation) prepare() (_ *wire.Request, err error) {
	c := &v.cmd
	if err := c.check(v.hooks.session); err != nil {
		return nil, err
	}
	env, args := c.environ(v.id), append([]string{c.Path}, c.Args...)
	if c.Arg0 != "" {
		args[0] = c.Arg0
	}
	if err := checkSizes(c.Path, args, env); err != nil {
		return nil, err
	}
	if v.file, err = lookUp(c.Path, c.Dir, env); err != nil {
		return nil, err
	}
	if c.TempDir {
		path, err := scratch.Name("", v.id)
		if err != nil {
			return nil, tempDirError(c.Path, err)
		}
		v.disk.tempPath = path
		env = lastOfEach(append(env, "TMPDIR="+path))
	}
	dir := c.Dir
	if dir == "" {
		dir = "."
	}
	dirFD, err := openDir(dir)
	if err != nil {
		return nil, &outcome.StartError{Op: outcome.OpChdir, Path: dir, Err: err}
	}
	v.wiring.own = append(v.wiring.own, dirFD)
	var count func(int64)
	if c.OutputLimit > 0 {
		count = v.count
	}
	if err := v.wiring.connect(c, v.hooks.traffic, count); err != nil {
		v.wiring.disconnect()
		return nil, err
	}
	q := &wire.Request{Path: v.file, Args: args, Env: env, Dir: dirFD, Files: v.wiring.fds}
	q.Settings = v.settings()
	return q, nil
}

// settings returns the fixed part of the request.
func (v *invocation) settings() wire.Settings {
	return wire.Settings{
		Policy: v.policy.ladder(v.wiring.hasStdin()), Linger: v.policy.Linger, AfterExit: wire.AfterExit(v.cmd.AfterExit),
		Numbers: v.wiring.numbers, Terminal: v.cmd.Terminal != nil, NoCgroup: v.a.noCgroup,
		IgnoreHangup: supervisor.Ignored(syscall.SIGHUP), IgnoreInterrupt: supervisor.Ignored(syscall.SIGINT),
	}
}

// limitTimeout gives the supervisor the nearer of the two deadlines, so that it
// holds while the caller is suspended.
func (v *invocation) limitTimeout(q *wire.Request) {
	now := time.Now()
	if v.cmd.Timeout > 0 {
		q.Timeout = max(v.cmd.Timeout-now.Sub(v.began), 1)
	}
	if at := v.ctx.deadline; !at.IsZero() {
		if left := min(max(at.Sub(now), 1), maxWait); q.Timeout == 0 || left < q.Timeout {
			q.Timeout = left
		}
	}
}

// count enforces the output limit.
func (v *invocation) count(n int64) {
	if total := v.written.Add(n); total > v.cmd.OutputLimit && total-n <= v.cmd.OutputLimit {
		go v.control.stop(stopRequest{cause: outcome.CauseOutputLimit})
	}
}

// follow takes the invocation from its request to its end.
func (v *invocation) follow(helper *supervisor.Client) {
	v.wiring.copy()
	v.control.open(helper)
	unhook := context.AfterFunc(v.ctx, func() {
		cause, why := v.ctx.why()
		v.control.stop(stopRequest{cause: cause, why: why})
	})
	defer unhook()
	r := v.listen(helper)
	v.settle(helper, r, v.control.close())
}

// report is what the supervisor has sent about an invocation.
type report struct {
	started  *wire.Started
	failed   *wire.StartFailed
	unforced bool // it failed before a stop was asked for
	exit     *outcome.Exit
	done     *wire.Done
	lost     error // why there is no done
}

// listen takes the supervisor's messages until it is done, or lost.
func (v *invocation) listen(helper *supervisor.Client) (r report) {
	for r.done == nil && r.lost == nil {
		ev, err := helper.Next()
		switch {
		case errors.Is(err, os.ErrDeadlineExceeded):
			if v.control.isLate() {
				r.lost = errors.New("it did not report in time")
			}
		case err == io.EOF:
			r.lost = errors.New("its connection was closed")
		case err != nil:
			r.lost = err
		case ev.Started != nil:
			r.started = ev.Started
			v.executed(ev.Started)
		case ev.StartFailed != nil:
			r.failed, r.unforced = ev.StartFailed, v.control.first().cause == ""
		case ev.Stopping != nil:
			v.control.stopBegan()
			if ev.Stopping.CloseStdin {
				v.wiring.closeStdin(errStdinStopped)
			}
		case ev.Exited != nil:
			r.exit = ev.Exited
			v.exited(ev.Exited)
		case ev.Done != nil:
			r.done = ev.Done
		}
	}
	return r
}

// executed passes on that the leader was executed.
func (v *invocation) executed(s *wire.Started) {
	p := &Process{v, s.PID}
	if v.hooks.started != nil {
		v.hooks.started(p, s.At)
	}
	if started := v.cmd.Started; started != nil {
		v.code.start(func() { started(p) })
	}
}

// exited passes on that the leader has exited. Where the caller chose to wait for the
// whole tree, the supervisor owes nothing yet.
func (v *invocation) exited(exit *outcome.Exit) {
	if v.hooks.exited != nil {
		v.hooks.exited(exit)
	}
	if v.cmd.AfterExit != AfterExitWait {
		v.control.leaderExited()
	}
}

// settle makes the outcome of the supervisor's report, or of its loss.
func (v *invocation) settle(helper *supervisor.Client, r report, asked stopRequest) {
	o := &v.outcome
	o.ID = v.id
	if r.started != nil {
		o.Started = r.started.At
	}
	f, why := v.facts(r, asked)
	if r.done != nil {
		o.Usage, o.Cleanup = r.done.Usage, r.done.Cleanup
	} else {
		v.lose(helper, r)
	}
	var pipes []openPipe
	left := o.Cleanup.Result == outcome.CleanupLeft
	if left {
		pipes = v.wiring.copyPipes()
	} else if r.done != nil {
		v.release(helper)
	}
	var until time.Time
	until, v.limit = v.control.drained(time.Now())
	why.Incomplete = v.wiring.finish(o, until, v.limit)
	if left {
		handOver(helper, pipes)
		v.a.pool.Discard(helper)
	}
	if f.StopCause == outcome.CauseTimeout && why.Cause == nil && v.pastDeadline() {
		_, why.Cause = v.ctx.why()
	}
	v.end(f, why)
}

// facts returns what the report says.
func (v *invocation) facts(r report, asked stopRequest) (f verdict.Facts, why verdict.Why) {
	why.Cause = asked.why
	f = verdict.Facts{StopCause: asked.cause, SessionStop: asked.ordinary, WaitTree: v.cmd.AfterExit == AfterExitWait, ExecSeen: r.started != nil, Exit: r.exit}
	if r.failed != nil {
		f.StartFailed, f.FailedBeforeRequest = !r.failed.Killed, r.unforced
		f.ExecRuledOut = true
		if !r.failed.Killed {
			why.Start = v.cmd.startError(r.failed.Op, syscall.Errno(r.failed.Errno), v.file)
		}
	}
	if done := r.done; done != nil {
		f.ExecRuledOut = done.NotExecuted
		f.Exit = done.Exit
		f.StopBegan = done.StopBegan
		f.EmptyBeforeStop = !done.StopBegan
		if done.StopCause != "" && done.StopCause != asked.cause {
			// The supervisor's own deadline came before what was asked here.
			f.StopCause, why.Cause = done.StopCause, nil
		}
	} else {
		if asked.cause == "" && v.cmd.Timeout > 0 && !time.Now().Before(v.began.Add(v.cmd.Timeout)) {
			// The deadline that the supervisor keeps came first, whether it reported that or not.
			f.StopCause = outcome.CauseTimeout
		}
		f.SupervisorLost = true
		why.Detail = r.lost
	}
	f.ExitBeforeStop = f.Exit != nil && !f.Exit.AfterStop
	return f, why
}

// release gives the helper back, which has reported.
func (v *invocation) release(helper *supervisor.Client) {
	if v.outcome.Cleanup.Result != outcome.CleanupEmpty {
		v.a.pool.Discard(helper)
		return
	}
	if v.disk.watched() {
		helper.Watch(nil)
	}
	v.a.pool.Put(helper)
}

// lose ends a supervisor that is lost. What it held falls to the guard, which ends it
// and reports when nothing is left. Should the guard be lost too, what carries the
// invocation's mark is swept for, which proves nothing.
func (v *invocation) lose(helper *supervisor.Client, r report) {
	began := time.Now()
	helper.Kill()
	until := v.control.swept(began) // the guard gets the time that the supervisor has not used
	c := outcome.Cleanup{Result: outcome.CleanupUnverified, Proof: outcome.ProofNone, HelperLost: true}
	if swept, err := helper.Swept(until); err == nil {
		c = swept.Cleanup()
	} else if errors.Is(err, os.ErrDeadlineExceeded) {
		// The guard goes on, and does all this in the end.
		if temp := v.disk.temp; temp != nil {
			c.TempDirs = append(c.TempDirs, outcome.TempDir{Path: string(temp.Path), Error: "not removed yet: its processes are still being ended"})
		}
		v.writeEnd(&c, until)
	} else {
		leader := 0
		if r.started != nil {
			leader = r.started.PID
		}
		c.Ended, c.Suspects = helper.Sweep(wire.Mark(v.id), leader, v.began, sooner(time.Now().Add(loseLimit), until))
		c.TempDirs = removeTempDir(v.disk.temp, until)
		v.writeEnd(&c, until)
	}
	v.a.pool.Discard(helper)
	c.Elapsed = time.Since(began)
	v.outcome.Cleanup = c
}

// pastDeadline reports whether the context is done. The supervisor can have been
// faster than the timer of a context whose deadline has passed; that is waited for,
// since the cause is the context's.
func (v *invocation) pastDeadline() bool {
	if at := v.ctx.deadline; !at.IsZero() && !time.Now().Before(at) {
		select {
		case <-v.ctx.Done():
		case <-time.After(min(ackLimit, time.Until(v.limit))): // a context that does not end at its deadline
		}
	}
	return v.ctx.Err() != nil
}

// notStarted ends an invocation of which nothing was executed.
func (v *invocation) notStarted(r *refusal) {
	c := outcome.Cleanup{Result: outcome.CleanupEmpty, Proof: outcome.ProofNoChildren}
	v.outcome.ID = v.id
	c.TempDirs = v.outcome.Cleanup.TempDirs
	if v.disk.entered {
		v.writeEnd(&c, time.Now().Add(wire.WriteLimit))
	}
	v.outcome.Cleanup = c
	f := verdict.Facts{ExecRuledOut: true, StopCause: r.cause}
	if r.cause == outcome.CauseStartFailed {
		f.StartFailed, f.FailedBeforeRequest = true, true
	}
	v.end(f, r.why)
}

// end decides the status, and completes the outcome.
func (v *invocation) end(f verdict.Facts, why verdict.Why) {
	o := &v.outcome
	o.Status, o.Cause, o.Exit = verdict.Decide(f)
	o.Ended = time.Now()
	o.Elapsed = o.Ended.Sub(v.began)
	why.Program, why.Timeout = v.cmd.Path, v.cmd.Timeout
	o.Err = verdict.Err(o, why)
	v.log("curfew: end", "status", string(o.Status), "cause", string(o.Cause),
		"elapsed", o.Elapsed, "ended", len(o.Cleanup.Ended)+o.Cleanup.EndedMore, "cleanup", string(o.Cleanup.Result))
	o.Output.Abandoned += v.code.abandoned()
	v.delivered() // last: Recover does not return it from here on
}

func (v *invocation) log(event string, more ...any) {
	v.code.log(v.a.log, event, append([]any{"id", v.id, "program", v.cmd.Path}, more...)...)
}

// shut stops v with its owner or its Adapter.
func (v *invocation) shut(why error) {
	v.control.stop(stopRequest{cause: outcome.CauseShutdown, why: why, ordinary: v.hooks.session})
}

// cleanupErr returns an error if the tree of v, which has ended, is not shown to be gone.
func (v *invocation) cleanupErr() error { return v.outcome.Cleanup.Err(v.id, v.cmd.Path) }

// awaitGone looks once more whether the tree is gone, if v has ended without that. It
// blocks no longer than retryLimit, or until ctx ends, which is errLate. If the guard is
// lost too, nobody can know any more.
func (v *invocation) awaitGone(ctx context.Context) error {
	if v.cleanupErr() == nil {
		return nil
	}
	gone := make(chan bool, 1)
	go func() {
		v.proof.mu.Lock()
		defer v.proof.mu.Unlock()
		// What is unverified although its helper lives has gone where the helper cannot look.
		c := &v.outcome.Cleanup
		if !v.proof.gone && (c.Result == outcome.CleanupSurvivors || c.HelperLost) {
			v.proof.gone = v.control.helper.Gone(time.Now().Add(retryLimit))
		}
		if v.proof.gone {
			v.a.proven(v)
		}
		gone <- v.proof.gone
	}()
	select {
	case is := <-gone:
		if is {
			return nil
		}
		return v.cleanupErr()
	case <-ctx.Done():
		return errLate
	}
}
