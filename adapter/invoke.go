package adapter

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"reflect"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"curfew/internal/scratch"
	"curfew/internal/supervisor"
	"curfew/internal/verdict"
	"curfew/internal/wire"
	"curfew/outcome"
	"curfew/proctree"
)

// invocation is one Invoke from its beginning to its end.
type invocation struct {
	a        *Adapter
	ctx      *callerContext
	starting *callerContext // that of a session's start; nil for Invoke
	cmd      Command
	policy   StopPolicy
	id       string
	began    time.Time
	session  *Session // nil for Invoke

	tempPath string        // of the temporary directory to be made; "" if there is to be none
	temp     *wire.TempDir // nil until it was made
	entered  bool          // there is a record in the journal
	file     string        // what is executed, as execve takes it
	feed     *feed
	drains   []*drain
	streams  [2]*drain // which drain has stdout and stderr
	written  atomic.Int64
	lent     []fileID // once for each

	copyErrors []*outcome.CopyError
	calls      []<-chan struct{} // of the Logger; each is closed when the call has returned
	logFailed  bool              // it is not called again

	mu     sync.Mutex              // guards what follows
	helper *supervisor.Client      // nil until the request was sent
	cancel context.CancelCauseFunc // ends what comes before; nil if it has not begun
	asked  outcome.Cause           // of the first stop request; "" if there was none
	why    error
	calm   bool      // that request was the ordinary end of a session
	hurry  bool      // there is no grace any more
	owed   deadlines // by the supervisor
	look   time.Time // when the read of what it says is interrupted; zero: never
	heard  bool      // nothing is awaited of it any more, and no stop is asked for
	limit  time.Time // when what is not over yet is left to itself; set when the tree is gone

	outcome outcome.Outcome // final once done is closed
	done    chan struct{}

	again sync.Mutex // held by who tries once more to see the tree gone; guards:
	gone  bool
}

func newInvocation(a *Adapter, ctx context.Context, c Command) *invocation {
	c.Timeout = min(c.Timeout, maxWait)
	v := &invocation{a: a, ctx: newCallerContext(ctx), cmd: c, policy: c.Stop.withDefaults(), id: newID(), began: time.Now(), done: make(chan struct{})}
	v.owed = deadlines{ladder: v.policy.StdinGrace + v.policy.Grace + v.policy.KillWait, drain: v.policy.Drain}
	if c.TempDir {
		v.owed.ladder += wire.RemoveLimit
	}
	if a.journal != nil {
		v.owed.ladder += wire.WriteLimit
	}
	if c.Timeout > 0 {
		v.owed.timeout = v.began.Add(c.Timeout)
	}
	return v
}

func (v *invocation) invoke() (outcome.Outcome, error) {
	if helper := v.order(); helper != nil {
		v.follow(helper)
	}
	return v.outcome, v.outcome.Err
}

// order has the CLI started by the helper that it returns, or returns nil and
// the outcome says why not.
func (v *invocation) order() *supervisor.Client {
	refused := func(cause outcome.Cause, why verdict.Why) *supervisor.Client {
		v.closeStreams()
		v.dropTempDir()
		v.notStarted(cause, why)
		return nil
	}
	failed := func(op string, err error) *supervisor.Client {
		return refused(outcome.CauseStartFailed, verdict.Why{Start: &outcome.StartError{Op: op, Path: v.cmd.Path, Err: err}})
	}
	if v.ctx.Err() != nil {
		cause, err := v.ctx.why()
		return refused(cause, verdict.Why{Cause: err})
	}
	if v.cmd.Kill != nil {
		go func() {
			select {
			case <-v.cmd.Kill:
				v.hasten()
			case <-v.done:
			}
		}()
	}
	request, files, err := v.prepare()
	if err != nil {
		return refused(outcome.CauseStartFailed, verdict.Why{Start: asStartError(v.cmd.Path, err)})
	}
	defer files.close()

	ctx, done := v.startContext()
	defer done()
	helper, err := v.a.pool.Get(ctx, v.cmd.AfterExit == AfterExitLeave)
	if err != nil {
		if cause, why := v.stopAsked(ctx); cause != "" {
			return refused(cause, verdict.Why{Cause: why})
		}
		return failed("start a supervisor for", err)
	}
	if cause, why := v.stopAsked(ctx); cause != "" {
		v.a.pool.Put(helper)
		return refused(cause, verdict.Why{Cause: why})
	}
	v.log("curfew: start")
	if err := v.enter(helper); err != nil {
		v.a.pool.Put(helper)
		return refused(outcome.CauseStartFailed, verdict.Why{Start: err})
	}
	request.Duties = v.duties()
	v.limitTimeout(request)
	if err := helper.Run(ctx, request); err != nil {
		// Not a whole request went out, so that nothing can be executed.
		helper.Kill()
		v.a.pool.Discard(helper)
		if cause, why := v.stopAsked(ctx); cause != "" {
			return refused(cause, verdict.Why{Cause: why})
		}
		if errors.Is(err, wire.ErrTooLarge) {
			return failed(outcome.OpExec, err) // as execve would have said
		}
		return failed("send a supervisor the request for", err)
	}
	return helper
}

// startContext returns the context for what comes before the request. It ends
// with the caller's, with the timeout, and when a stop is asked for.
func (v *invocation) startContext() (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(v.ctx)
	done := func() { cancel(nil) }
	if v.cmd.Timeout > 0 {
		var over context.CancelFunc
		ctx, over = context.WithDeadlineCause(ctx, v.began.Add(v.cmd.Timeout), errTimeout)
		done = func() {
			over()
			cancel(nil)
		}
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.asked != "" {
		cancel(v.why)
	}
	v.cancel = cancel
	return ctx, done
}

// errTimeout is the cause of a context that the command's timeout has ended.
var errTimeout = errors.New("adapter: the command's timeout ran out")

// stopAsked returns the cause of the stop that came before the request, if one
// did. ctx is that of the start.
func (v *invocation) stopAsked(ctx context.Context) (outcome.Cause, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	switch {
	case v.asked != "":
		return v.asked, v.why
	case ctx.Err() == nil:
		return "", nil
	case v.ctx.Err() == nil:
		return outcome.CauseTimeout, nil
	}
	return v.ctx.why()
}

func asStartError(path string, err error) *outcome.StartError {
	var e *outcome.StartError
	if errors.As(err, &e) {
		return e
	}
	return &outcome.StartError{Op: "start", Path: path, Err: err}
}

// stop asks for the end of the invocation. Only the first request counts. It
// blocks at most for as long as it takes to send it.
func (v *invocation) stop(cause outcome.Cause, why error) { v.ask(cause, why, false) }

// ask is stop; calm says that this is the ordinary end of a session.
func (v *invocation) ask(cause outcome.Cause, why error, calm bool) {
	v.mu.Lock()
	if v.asked != "" || v.heard {
		v.mu.Unlock()
		return
	}
	v.asked, v.why, v.calm = cause, why, calm
	v.owed.stopAt(time.Now())
	helper := v.helper
	if helper == nil {
		// Nothing was ordered yet; if it is being ordered just now, the stop is
		// sent after the request.
		if v.cancel != nil {
			v.cancel(why)
		}
		v.mu.Unlock()
		return
	}
	v.expect()
	v.mu.Unlock()
	v.sendStop(helper, cause, why)
}

func (v *invocation) sendStop(helper *supervisor.Client, cause outcome.Cause, why error) {
	q := wire.StopRequest{ID: v.id, Cause: cause}
	if why, ok := why.(*quoted); ok {
		q.Signal = int(why.signal)
	}
	// If it cannot be sent the acknowledgement will be missing too.
	_ = helper.Stop(q)
}

// hasten goes to SIGKILL at once.
func (v *invocation) hasten() {
	v.stop(outcome.CauseCanceled, context.Canceled)
	v.mu.Lock()
	v.hurry = true
	helper, ended, cause := v.helper, v.heard, v.asked
	v.mu.Unlock()
	if helper != nil && !ended {
		v.sendKill(helper, cause)
	}
}

func (v *invocation) sendKill(helper *supervisor.Client, cause outcome.Cause) {
	// One that cannot be told is lost soon anyway.
	_ = helper.Stop(wire.StopRequest{ID: v.id, Cause: cause, Kill: true})
}

// signal sends the leader a signal. os.ErrProcessDone means that there is none.
func (v *invocation) signal(sig syscall.Signal) error {
	if sig < 1 || sig > maxSignal {
		return fmt.Errorf("adapter: signal %d is no signal", int(sig))
	}
	v.mu.Lock()
	helper, ended := v.helper, v.heard
	v.mu.Unlock()
	if helper == nil || ended {
		return os.ErrProcessDone
	}
	return helper.Signal(v.id, sig)
}

// expect has the supervisor looked after when it must have said something. v.mu is
// held.
func (v *invocation) expect() {
	soft, _ := v.owed.due()
	v.lookAt(soft)
}

func (v *invocation) lookAt(at time.Time) {
	v.look = at
	v.helper.Interrupt(at)
}

// follow takes the invocation from its request to its end.
func (v *invocation) follow(helper *supervisor.Client) {
	for _, d := range v.drains {
		go d.run()
	}
	if v.feed != nil {
		go v.feed.run()
	}
	v.mu.Lock()
	v.helper = helper
	early, reason, hurry := v.asked, v.why, v.hurry
	v.expect()
	v.mu.Unlock()
	if early != "" {
		v.sendStop(helper, early, reason)
		if hurry {
			v.sendKill(helper, early)
		}
	}
	ctx := v.ctx
	unhook := context.AfterFunc(ctx, func() { v.stop(ctx.why()) })
	defer unhook()
	told := v.listen(helper)

	v.mu.Lock()
	v.heard = true
	v.helper.Interrupt(time.Time{})
	asked, why := v.asked, verdict.Why{Program: v.cmd.Path, Cause: v.why, Timeout: v.cmd.Timeout}
	v.mu.Unlock()
	v.settle(helper, told, asked, why)
}

// told is what the supervisor has said of an invocation.
type told struct {
	started *wire.Started
	failed  *wire.StartFailed
	inTime  bool // it failed before a stop was asked for
	exit    *outcome.Exit
	done    *wire.Done
	lost    error // why there is no done
}

// listen hears the supervisor out, or loses it.
func (v *invocation) listen(helper *supervisor.Client) (t told) {
	for t.done == nil && t.lost == nil {
		ev, err := helper.Next()
		switch {
		case errors.Is(err, os.ErrDeadlineExceeded):
			if v.late(helper) {
				t.lost = errors.New("it did not say in time what was due")
			}
		case err == io.EOF:
			t.lost = errors.New("its connection was closed")
		case err != nil:
			t.lost = err
		case ev.Started != nil:
			t.started = ev.Started
			if v.session != nil {
				v.session.started(ev.Started.PID, ev.Started.At)
			}
		case ev.StartFailed != nil:
			v.mu.Lock()
			t.failed, t.inTime = ev.StartFailed, v.asked == ""
			v.mu.Unlock()
		case ev.Stopping != nil:
			v.acknowledged(ev.Stopping)
		case ev.Exited != nil:
			t.exit = ev.Exited
			v.exitSeen(ev.Exited)
		case ev.Done != nil:
			t.done = ev.Done
		}
	}
	return t
}

// settle makes the outcome of what was told.
func (v *invocation) settle(helper *supervisor.Client, t told, asked outcome.Cause, why verdict.Why) {
	o := &v.outcome
	o.ID = v.id
	f := verdict.Facts{StopCause: asked, SessionStop: v.calm, WaitTree: v.cmd.AfterExit == AfterExitWait, ExecSeen: t.started != nil, Exit: t.exit}
	if t.started != nil {
		o.Started = t.started.At
	}
	if t.failed != nil {
		f.StartFailed, f.FailedBeforeRequest = !t.failed.Killed, t.inTime
		f.ExecRuledOut = true
		if !t.failed.Killed {
			why.Start = v.cmd.startError(t.failed.Op, syscall.Errno(t.failed.Errno), v.file)
		}
	}
	if done := t.done; done != nil {
		f.ExecRuledOut = done.NotExecuted
		f.Exit = done.Exit
		f.StopBegan = done.StopBegan
		f.EmptyBeforeStop = !done.StopBegan
		if done.StopCause != "" && done.StopCause != asked {
			// The supervisor's own deadline came before what was asked here.
			f.StopCause, why.Cause = done.StopCause, nil
		}
		o.Usage, o.Cleanup = done.Usage, done.Cleanup
		switch done.Cleanup.Result {
		case outcome.CleanupEmpty:
			if v.watched() {
				helper.Watch(nil)
			}
			v.a.pool.Put(helper)
		case outcome.CleanupLeft: // see handOver
		default:
			v.a.pool.Discard(helper)
		}
	} else {
		if asked == "" && v.cmd.Timeout > 0 && !time.Now().Before(v.began.Add(v.cmd.Timeout)) {
			// The deadline that it keeps came first, whether it said so or not.
			f.StopCause = outcome.CauseTimeout
		}
		leader := 0
		if t.started != nil {
			leader = t.started.PID
		}
		v.lose(helper, leader)
		f.SupervisorLost = true
		why.Detail = t.lost
	}
	f.ExitBeforeStop = f.Exit != nil && !f.Exit.AfterStop
	if o.Cleanup.Result == outcome.CleanupLeft {
		pipes := v.copyPipes()
		v.collect()
		v.handOver(helper, pipes)
	} else {
		v.collect()
	}
	if f.StopCause == outcome.CauseTimeout && why.Cause == nil && v.pastDeadline() {
		_, why.Cause = v.ctx.why()
	}
	v.end(f, why)
}

// pastDeadline reports whether the context is done. The supervisor can have been
// faster than the timer of a context whose deadline has passed; that is waited for,
// since the cause is the context's.
func (v *invocation) pastDeadline() bool {
	if at := v.ctx.deadline; !at.IsZero() && !time.Now().Before(at) {
		select {
		case <-v.ctx.Done():
		case <-time.After(min(ackLimit, time.Until(v.limit))): // a context that does not keep its word
		}
	}
	return v.ctx.Err() != nil
}

// shut ends v with its owner or its Adapter.
func (v *invocation) shut(why error) {
	if v.session != nil {
		v.session.stop(outcome.CauseShutdown, why)
	} else {
		v.stop(outcome.CauseShutdown, why)
	}
}

// mark is what the environment of everything in the tree has.
func (v *invocation) mark() string { return wire.Mark(v.id) }

// cleanupErr says that the tree of v, which is over, is not shown to be gone.
func (v *invocation) cleanupErr() error { return v.outcome.Cleanup.Err(v.id, v.cmd.Path) }

// awaitGone tries once more to see the tree gone, if v is over without that. It
// blocks no longer than retryLimit, or until ctx ends, which is errLate. If the guard
// is lost too, nobody can know any more.
func (v *invocation) awaitGone(ctx context.Context) error {
	if v.cleanupErr() == nil {
		return nil
	}
	gone := make(chan bool, 1)
	go func() {
		v.again.Lock()
		defer v.again.Unlock()
		// What is unverified with its helper alive has gone where the helper cannot look.
		c := &v.outcome.Cleanup
		if !v.gone && (c.Result == outcome.CleanupSurvivors || c.HelperLost) {
			v.gone = v.helper.Gone(time.Now().Add(retryLimit))
		}
		if v.gone {
			v.a.proven(v)
		}
		gone <- v.gone
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

// retryLimit bounds one more look at a tree that was not shown to be gone. Its
// supervisor strikes what is left again in the background, at least every 5 s.
const retryLimit = 6 * time.Second

// late reports whether the supervisor has not said in time what it had to. The
// time can have been moved while the read was being interrupted; and a caller
// that was suspended itself finds it long past, with the answer in its socket or
// on the way.
func (v *invocation) late(helper *supervisor.Client) bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	look, lost := v.owed.late(time.Now(), v.look, helper.Pending, helper.Suspended)
	if !lost {
		v.lookAt(look)
	}
	return lost
}

// acknowledged handles the word that a stop begins.
func (v *invocation) acknowledged(s *wire.Stopping) {
	v.mu.Lock()
	v.owed.began(time.Now())
	v.expect()
	v.mu.Unlock()
	if s.CloseStdin {
		v.closeStdin(errStdinStopped)
	}
}

// closeStdin ends the CLI's input, if we hold the other end.
func (v *invocation) closeStdin(why error) {
	switch {
	case v.feed != nil:
		v.feed.close(why)
	case v.session != nil && v.session.in != nil:
		_ = v.session.in.Close() // again is no harm
	}
}

// exitSeen handles the word that the leader has exited. What the supervisor may
// still do with leftovers has limits of its own, except where the caller chose
// to wait.
func (v *invocation) exitSeen(exit *outcome.Exit) {
	if v.session != nil {
		v.session.leaderGone(exit)
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	if !v.owed.acked && v.cmd.AfterExit != AfterExitWait {
		// From here on it has to report in any case.
		v.owed.exited(time.Now(), v.policy.Linger)
		v.expect()
	}
}

// lose ends a supervisor that is lost. What it held falls to the guard, which
// ends it and tells when nothing is left. Should the guard be lost too, what
// carries the invocation's mark is swept for, which proves nothing.
func (v *invocation) lose(helper *supervisor.Client, leader int) {
	began := time.Now()
	helper.Kill()
	// The guard gets the time that the supervisor has not used.
	v.mu.Lock()
	until := v.owed.swept(began)
	v.mu.Unlock()
	c := outcome.Cleanup{Result: outcome.CleanupUnverified, Proof: outcome.ProofNone, HelperLost: true}
	if swept, err := helper.Swept(until); err == nil {
		c = swept.Cleanup()
	} else if errors.Is(err, os.ErrDeadlineExceeded) {
		// The guard goes on, and does all this in the end.
		if v.temp != nil {
			c.TempDirs = append(c.TempDirs, outcome.TempDir{Path: string(v.temp.Path), Error: "not removed yet: its processes are still being ended"})
		}
		v.writeEnd(&c, until)
	} else {
		c.Ended, c.Suspects = helper.Sweep(v.mark(), leader, v.began, sooner(time.Now().Add(loseLimit), until))
		c.TempDirs = removeTempDir(v.temp, until)
		v.writeEnd(&c, until)
	}
	v.a.pool.Discard(helper)
	c.Elapsed = time.Since(began)
	v.outcome.Cleanup = c
}

// outputPipe is our end of a pipe that what is left alive may write to.
type outputPipe struct {
	fd   int         // a copy
	more func() bool // whether it has not come to its end, after collect
}

// copyPipes takes copies of the CLI's output pipes before collect closes them.
func (v *invocation) copyPipes() (list []outputPipe) {
	add := func(f *os.File, more func() bool) {
		if fd := duplicate(f); fd >= 0 {
			list = append(list, outputPipe{fd, more})
		}
	}
	for _, d := range v.drains {
		add(d.pipe, d.unfinished)
	}
	if s := v.session; s != nil && s.out != nil {
		ended := s.out.atEnd() // finish ends it in any case
		add(s.out.pipe, func() bool { return !ended })
	}
	return list
}

// handOver gives the supervisor the pipes that are still open on the CLI's side, which it
// drains as long as they are: what is left alive would get SIGPIPE else. The supervisor is
// not used again.
func (v *invocation) handOver(helper *supervisor.Client, pipes []outputPipe) {
	var fds []int
	for _, p := range pipes {
		defer closeFD(p.fd)
		if p.more() {
			fds = append(fds, p.fd)
		}
	}
	if len(fds) > 0 {
		_ = helper.Drain(fds) // one that is lost leaves nothing behind that could write
	}
	v.a.pool.Discard(helper)
}

// collect ends the streams, each within what is left of the drain limit.
func (v *invocation) collect() {
	o := &v.outcome
	v.mu.Lock()
	until, limit := v.owed.drained(time.Now())
	v.limit = limit
	v.mu.Unlock()
	for _, d := range v.drains {
		incomplete, abandoned := d.finish(until, limit)
		if incomplete {
			o.Output.DrainIncomplete = true
		}
		if abandoned {
			o.Output.Abandoned++
		}
	}
	if d := v.streams[0]; d != nil {
		o.Stdout, o.Output.Stdout = d.result()
		v.incomplete("stdout", d.failure())
	}
	if d := v.streams[1]; d != nil && d != v.streams[0] {
		o.Stderr, o.Output.Stderr = d.result()
		v.incomplete("stderr", d.failure())
	}
	if v.feed != nil {
		own, abandoned, problem := v.feed.finish(limit)
		if problem != nil {
			o.Output.StdinError = problem.Error()
		}
		if own {
			v.incomplete("stdin", problem)
		}
		if abandoned {
			o.Output.Abandoned++
		}
	}
	v.closeStdin(errStdinLeft)
	if s := v.session; s != nil && s.out != nil {
		s.out.finish()
	}
}

// incomplete notes that a stream was not copied whole, unless err is nil.
func (v *invocation) incomplete(stream string, err error) {
	if err != nil {
		v.copyErrors = append(v.copyErrors, &outcome.CopyError{Stream: stream, Err: err})
	}
}

// notStarted ends an invocation of which nothing was executed.
func (v *invocation) notStarted(cause outcome.Cause, why verdict.Why) {
	c := outcome.Cleanup{Result: outcome.CleanupEmpty, Proof: outcome.ProofNoChildren}
	v.outcome.ID = v.id
	c.TempDirs = v.outcome.Cleanup.TempDirs
	if v.entered {
		v.writeEnd(&c, time.Now().Add(wire.WriteLimit))
	}
	v.outcome.Cleanup = c
	why.Program, why.Timeout = v.cmd.Path, v.cmd.Timeout
	f := verdict.Facts{ExecRuledOut: true, StopCause: cause}
	if cause == outcome.CauseStartFailed {
		f.StartFailed, f.FailedBeforeRequest = true, true
	}
	v.end(f, why)
}

// end decides what it all means.
func (v *invocation) end(f verdict.Facts, why verdict.Why) {
	o := &v.outcome
	o.Status, o.Cause, o.Exit = verdict.Decide(f)
	o.Ended = time.Now()
	o.Elapsed = o.Ended.Sub(v.began)
	why.Incomplete = v.copyErrors
	o.Err = verdict.Err(o, why)
	v.delivered()
	v.log("curfew: end", "status", string(o.Status), "cause", string(o.Cause),
		"elapsed", o.Elapsed, "ended", len(o.Cleanup.Ended)+o.Cleanup.EndedMore, "cleanup", string(o.Cleanup.Result))
	calls := append(v.calls, v.ctx.release()...)
	if v.starting != nil {
		calls = append(calls, v.starting.release()...)
	}
	o.Output.Abandoned += inside(calls)
}

// log gives the Logger a line. One that does not return in time, or panics, gets no
// other of this invocation.
func (v *invocation) log(event string, more ...any) {
	if v.a.log == nil || v.logFailed {
		return
	}
	returned, ok := within(func() {
		v.a.log.Info(event, append([]any{"id", v.id, "program", v.cmd.Path}, more...)...)
	})
	if !ok {
		v.logFailed = true
		v.calls = append(v.calls, returned)
	}
}

// opened holds what is open on the CLI's behalf until it was sent.
type opened struct {
	fds     []int
	release []func() // of the caller's files
}

func (f *opened) close() {
	for _, fd := range f.fds {
		closeFD(fd)
	}
	for _, release := range f.release {
		release()
	}
	f.fds, f.release = nil, nil
}

// prepare makes the request, with the pipes. On an error nothing is left open.
func (v *invocation) prepare() (_ *wire.Request, files *opened, err error) {
	c := &v.cmd
	if err := c.check(); err != nil {
		return nil, nil, err
	}
	env := c.environ(v.id)
	args := append([]string{c.Path}, c.Args...)
	if err := checkSizes(c.Path, args, env); err != nil {
		return nil, nil, err
	}
	if v.file, err = lookUp(c.Path, c.Dir, env); err != nil {
		return nil, nil, err
	}
	if c.TempDir {
		path, err := scratch.Name("", v.id)
		if err != nil {
			return nil, nil, tempDirError(c.Path, err)
		}
		v.tempPath = path
		env = lastOfEach(append(env, "TMPDIR="+path))
	}
	open := &opened{} // a return sets files to nil before the deferred call
	files = open
	defer func() {
		if err != nil {
			open.close()
		}
	}()
	dir := c.Dir
	if dir == "" {
		dir = "."
	}
	dirFD, err := openDir(dir)
	if err != nil {
		return nil, nil, &outcome.StartError{Op: outcome.OpChdir, Path: dir, Err: err}
	}
	files.fds = append(files.fds, dirFD)
	q := &wire.Request{Path: v.file, Args: args, Env: env, Dir: dirFD}
	q.Settings = wire.Settings{
		Policy: proctree.Policy{
			Signal: int(v.policy.Signal), StdinGrace: v.policy.StdinGrace, Grace: v.policy.Grace, KillWait: v.policy.KillWait,
			Audience: proctree.Audience(v.policy.Audience),
		},
		Linger: v.policy.Linger, AfterExit: wire.AfterExit(c.AfterExit),
		Terminal:     c.Terminal != nil,
		NoCgroup:     v.a.noCgroup,
		IgnoreHangup: supervisor.Ignored(syscall.SIGHUP), IgnoreInterrupt: supervisor.Ignored(syscall.SIGINT),
	}
	if err := v.connect(q, files); err != nil {
		return nil, nil, err
	}
	return q, files, nil
}

// limitTimeout gives the supervisor the nearer of the two deadlines, so that it
// holds while the caller is stopped.
func (v *invocation) limitTimeout(q *wire.Request) {
	now := time.Now()
	if v.cmd.Timeout > 0 {
		q.Timeout = max(v.cmd.Timeout-now.Sub(v.began), 1)
	}
	if at := v.ctx.deadline; !at.IsZero() && v.session == nil {
		if left := min(max(at.Sub(now), 1), maxWait); q.Timeout == 0 || left < q.Timeout {
			q.Timeout = left
		}
	}
}

// connect gives the CLI its descriptors.
func (v *invocation) connect(q *wire.Request, files *opened) error {
	c := &v.cmd
	give := func(number, fd int) {
		q.Numbers = append(q.Numbers, number)
		q.Files = append(q.Files, fd)
	}
	giveFile := func(number int, what string, f *os.File) error {
		fd, release := hold(f)
		if release == nil {
			return &outcome.StartError{Op: "pass " + what + " to", Path: c.Path, Err: os.ErrClosed}
		}
		files.release = append(files.release, release)
		give(number, fd)
		v.lend(f, fd)
		return nil
	}
	for i, f := range c.ExtraFiles {
		if f != nil {
			if err := giveFile(3+i, fmt.Sprintf("extra file %d", i), f); err != nil {
				return err
			}
		}
	}
	if c.Terminal != nil {
		for n := range 3 {
			if err := giveFile(n, "the terminal", c.Terminal); err != nil {
				return err
			}
		}
		return nil
	}
	switch in := c.Stdin.(type) {
	case nil:
		if v.session == nil {
			break // the supervisor's /dev/null
		}
		pipe, fd, err := pipeTo(files)
		if err != nil {
			return err
		}
		v.session.in = &sessionIn{s: v.session, pipe: pipe}
		q.Stdin = true
		give(0, fd)
	case *os.File:
		if err := giveFile(0, "Stdin", in); err != nil {
			return err
		}
	default:
		pipe, fd, err := pipeTo(files)
		if err != nil {
			return err
		}
		v.feed = &feed{from: in, pipe: pipe, done: make(chan struct{}), closed: make(chan struct{})}
		q.Stdin = true
		give(0, fd)
	}

	var keepers [2]*keeper
	writers := [2]io.Writer{c.Stdout, c.Stderr}
	for i, w := range writers {
		if f, ok := w.(*os.File); ok {
			if err := giveFile(1+i, [2]string{"Stdout", "Stderr"}[i], f); err != nil {
				return err
			}
			continue
		}
		if i == 1 && w != nil && v.streams[0] != nil && sameWriter(writers[0], w) {
			v.streams[1] = v.streams[0]
			give(2, q.Files[len(q.Files)-1])
			continue
		}
		pipe, fd, err := pipeFrom(files)
		if err != nil {
			return err
		}
		if i == 0 && w == nil && v.session != nil {
			v.session.out = &sessionOut{s: v.session, pipe: pipe}
			give(1, fd)
			continue
		}
		if w == nil || v.session != nil {
			keepers[i] = &keeper{limit: v.keepOutput()}
		}
		d := &drain{pipe: pipe, to: w, keep: keepers[i], done: make(chan struct{})}
		if c.OutputLimit > 0 {
			d.over = v.count
		}
		v.streams[i] = d
		if i == 1 && v.session != nil {
			v.session.err = d
		}
		v.drains = append(v.drains, d)
		give(1+i, fd)
	}
	return nil
}

// sameWriter reports whether a and b are one writer. Not every value can be
// compared: a comparable type can hold an interface with something in it that is not.
func sameWriter(a, b io.Writer) bool {
	return reflect.ValueOf(a).Comparable() && reflect.ValueOf(b).Comparable() && a == b
}

func (v *invocation) keepOutput() int64 {
	switch {
	case v.cmd.KeepOutput == 0:
		return DefaultKeepOutput
	case v.cmd.KeepOutput < 0:
		return 0
	}
	return v.cmd.KeepOutput
}

// count enforces the output limit.
func (v *invocation) count(n int64) {
	if total := v.written.Add(n); total > v.cmd.OutputLimit && total-n <= v.cmd.OutputLimit {
		go v.stop(outcome.CauseOutputLimit, nil)
	}
}

// closeStreams closes our ends of the pipes of an invocation that never began.
func (v *invocation) closeStreams() {
	for _, d := range v.drains {
		_ = d.pipe.Close()
	}
	v.closeStdin(nil)
	if s := v.session; s != nil && s.out != nil {
		_ = s.out.Close()
	}
}

// pipeTo returns a pipe to the CLI: our end, which is not blocking, and the
// CLI's, which is and belongs to files.
func pipeTo(files *opened) (*os.File, int, error) { return newPipe(files, 1, "curfew stdin") }

// pipeFrom returns a pipe from the CLI.
func pipeFrom(files *opened) (*os.File, int, error) { return newPipe(files, 0, "curfew output") }

func newPipe(files *opened, ours int, name string) (*os.File, int, error) {
	p, err := pipe()
	if err != nil {
		return nil, -1, err
	}
	files.fds = append(files.fds, p[1-ours])
	return pollable(p[ours], name), p[1-ours], nil
}
