package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"curfew/adapter"
	"curfew/outcome"
)

// programsVariable names a directory. TestBuilds builds there what TestFaults needs, and
// TestFaults takes it from there: for a user without a build cache.
const programsVariable = "CURFEW_TEST_PROGRAMS"

const faultyName = "curfew-faulty"

func TestBuilds(t *testing.T) {
	dir := os.Getenv(programsVariable)
	if dir == "" {
		t.Skip("there is no " + programsVariable + " to build to")
	}
	if _, err := os.Stat(filepath.Join(dir, faultyName)); err != nil {
		buildFaulty(t, dir)
	}
}

// faultSeedsVariable has the number of random runs.
const faultSeedsVariable = "CURFEW_FAULT_SEEDS"

// TestFaults makes system calls of the caller, the guard and the supervisor fail,
// each with errors that it can meet, once or for ever, and then many at random.
// Whatever happens, curfew ends within the bound, its report is true, and no process
// of the tree is alive.
func TestFaults(t *testing.T) {
	t.Parallel()
	exe := faulty(t)
	no := func(errno ...syscall.Errno) []syscall.Errno { return errno }
	const (
		tolerated = true // the outcome is as without the fault
		honest    = false
	)
	type faults struct {
		who, call string
		errnos    []syscall.Errno
		window    string // "": for ever
		tolerated bool
		flags     []string // of curfew run
	}
	var all []faults
	every := func(who []string, call string, errnos []syscall.Errno, once, always bool) {
		for _, who := range who {
			all = append(all, faults{who, call, errnos, "@1+1", once, nil}, faults{who, call, errnos, "@3+2", once, nil}, faults{who, call, errnos, "", always, nil})
		}
	}
	helpers, supervisor, anyone := []string{"supervisor", "guard"}, []string{"supervisor"}, []string{"supervisor", "guard", "caller"}
	shortage := no(syscall.EMFILE, syscall.ENFILE, syscall.ENOMEM)
	every(helpers, "open", shortage, honest, honest)
	every([]string{"caller"}, "open", append(shortage, syscall.EACCES), honest, honest)
	every(helpers, "openat", append(shortage, syscall.EACCES, syscall.ENOENT), tolerated, tolerated)
	every(helpers, "read", no(syscall.EIO, syscall.ESRCH), honest, honest)
	every(helpers, "read", no(0), tolerated, tolerated)
	every(helpers, "pread", no(syscall.ENOMEM), tolerated, tolerated)
	every(helpers, "pread", no(0), tolerated, tolerated)
	every(helpers, "getdents", no(syscall.ENOENT, syscall.ENOMEM), tolerated, tolerated)
	every(helpers, "prctl", no(syscall.EPERM), honest, honest)
	every(helpers, "eventfd", shortage, honest, honest)
	every(supervisor, "kill", no(syscall.EPERM), tolerated, honest)
	every(supervisor, "kill", no(syscall.ESRCH), tolerated, honest)
	every(anyone, "pidfd_open", append(shortage, syscall.ENOSYS, syscall.EPERM), tolerated, tolerated)
	every(helpers, "pidfd_send_signal", no(syscall.ENOSYS, syscall.EPERM), tolerated, tolerated)
	every([]string{"caller"}, "pidfd_send_signal", no(syscall.ENOSYS, syscall.EPERM), tolerated, tolerated)
	every(supervisor, "fchdir", no(syscall.EACCES, syscall.ESTALE), honest, honest)
	every(anyone, "fork_exec", no(syscall.EAGAIN, syscall.ENOMEM), honest, honest)
	every(helpers, "mkdirat", no(syscall.EACCES, syscall.EROFS, syscall.ENOSPC), tolerated, tolerated)
	every(helpers, "poll", no(syscall.ENOMEM), tolerated, honest)
	every(anyone, "sendmsg", no(syscall.ENOBUFS, syscall.EPIPE), honest, honest)
	every(anyone, "sendmsg", no(0), tolerated, tolerated)
	every(anyone, "recvmsg", no(syscall.ENOMEM), honest, honest)
	every(anyone, "recvmsg", no(0), tolerated, tolerated)
	every([]string{"caller"}, "socketpair", shortage, honest, honest)
	for _, call := range []string{"open", "openat", "read", "pread", "getdents", "write", "waitid", "wait4", "poll", "sendmsg", "recvmsg"} {
		for _, who := range anyone { // a signal interrupts a few calls
			all = append(all, faults{who, call, no(syscall.EINTR), "@1+3", tolerated, nil}, faults{who, call, no(syscall.EINTR), "@5+20", tolerated, nil})
		}
	}
	// The journal and the temporary directory: the outcome says what was not written or removed.
	keeps := []string{"--state-dir", "state", "--temp-dir"}
	for _, call := range []string{"mkdir", "fstat", "fsync", "rename", "fcntl", "flock", "unlinkat", "rmdir"} {
		for _, who := range anyone {
			for _, errno := range no(syscall.EINTR, syscall.EIO, syscall.ENOSPC) {
				all = append(all, faults{who, call, no(errno), "@1+2", errno == syscall.EINTR, keeps})
			}
			all = append(all, faults{who, call, no(syscall.EIO), "", honest, keeps})
		}
	}

	seeds := 4
	if s := os.Getenv(faultSeedsVariable); s != "" {
		var err error
		if seeds, err = strconv.Atoi(s); err != nil {
			t.Fatal(err)
		}
	}
	var work []func()
	for i, f := range all {
		for j, errno := range f.errnos {
			if seeds <= 4 && (j != i%len(f.errnos) || (i+os.Getuid())%3 != 0) {
				continue // a third of them with one error each, unless a long run is requested
			}
			spec := fmt.Sprintf("%s/%s=%d%s", f.who, f.call, errno, f.window)
			refuses := f.call == "kill" && f.window == ""
			work = append(work, func() {
				t.Run(spec, func(t *testing.T) { survivesFault(t, exe, spec, f.tolerated, refuses, f.flags...) })
			})
		}
	}
	for seed := range seeds {
		spec := fmt.Sprintf("random=%d/%d", seed, 2+seed%40)
		work = append(work, func() { t.Run(spec, func(t *testing.T) { survivesFault(t, exe, spec, false, false) }) })
	}
	var workers sync.WaitGroup
	next := make(chan func())
	for range 4 {
		workers.Go(func() {
			for do := range next {
				do()
			}
		})
	}
	for _, do := range work {
		next <- do
	}
	close(next)
	workers.Wait()
	// No helper is alive either, whatever failed.
	for end := time.Now().Add(soon); ; time.Sleep(10 * time.Millisecond) {
		left := running(exe)
		if left == nil {
			return
		}
		if time.Now().After(end) {
			for _, dir := range left {
				args, _ := os.ReadFile(filepath.Join(dir, "cmdline"))
				env, _ := os.ReadFile(filepath.Join(dir, "environ"))
				t.Errorf("%s is still there: %q, %q", dir, args, env)
			}
			return
		}
	}
}

// faulty returns the path of a curfew whose system calls can be made to fail.
func faulty(t *testing.T) string {
	t.Helper()
	exe := filepath.Join(os.Getenv(programsVariable), faultyName)
	if _, err := os.Stat(exe); filepath.IsAbs(exe) && err == nil {
		return exe
	}
	return buildFaulty(t, t.TempDir())
}

func buildFaulty(t *testing.T, dir string) string {
	t.Helper()
	if _, err := exec.LookPath("go"); err != nil {
		t.Skip("the go command is needed to build a curfew whose system calls fail")
	}
	exe := filepath.Join(dir, faultyName)
	if out, err := exec.Command("go", "build", "-buildvcs=false", "-tags", "curfew_faults", "-o", exe, ".").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return exe
}

// running lists the processes that execute the file at exe.
func running(exe string) (list []string) {
	links, _ := filepath.Glob("/proc/[0-9]*/exe")
	for _, link := range links {
		if to, err := os.Readlink(link); err == nil && to == exe {
			list = append(list, filepath.Dir(link))
		}
	}
	return list
}

// survivesFault runs a CLI with a daemon below it, and stops it. refuses: the kernel accepts no
// signal, so that the tree ends by itself.
func survivesFault(t *testing.T, exe, spec string, tolerated, refuses bool, flags ...string) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	dir := t.TempDir()
	ran := filepath.Join(dir, "ran")
	const script = `trap "" TERM; echo >"$0"; setsid sleep 12 & echo ready >&3; sleep 12`
	stop := adapter.StopPolicy{Grace: 100 * time.Millisecond, KillWait: 2 * time.Second}
	args := append([]string{"run", "-g", stop.Grace.String(), "--kill-wait", stop.KillWait.String(), "--report", "report"}, flags...)
	cmd := exec.Command(exe, append(args, "--", "sh", "-c", script, ran)...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "CURFEW_FAULTS="+spec, "TMPDIR="+dir)
	cmd.ExtraFiles = []*os.File{w}
	// It is stopped when its whole tree runs, which may never happen.
	cmd.WaitDelay = soon
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	w.Close()
	var began time.Time
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		_ = r.SetReadDeadline(time.Now().Add(2 * soon))
		if n, _ := r.Read(make([]byte, 8)); n > 0 {
			began = time.Now()
			_ = cmd.Process.Signal(syscall.SIGTERM) // an error means that it has ended
		}
	}()
	got := waitFor(t, cmd)
	ended := time.Now()
	_ = r.SetReadDeadline(time.Now()) // if it has not started anything
	<-stopped

	eof := func(within time.Duration) error {
		_ = r.SetReadDeadline(time.Now().Add(within))
		if _, err := r.Read(make([]byte, 1)); err != io.EOF {
			return fmt.Errorf("something is alive: %w", err)
		}
		return nil
	}
	fail := func(format string, args ...any) {
		t.Helper()
		t.Errorf("CURFEW_FAULTS=%s: %s; exit code %d, %s", spec, fmt.Sprintf(format, args...), got, stderr.String())
	}
	if strings.Contains(stderr.String(), "goroutine ") {
		fail("it crashed")
	}
	// No process is alive at the end, whatever the report says.
	defer func() {
		if err := eof(2 * soon); err != nil {
			fail("%v", err)
		}
	}()
	if _, err := os.Stat(filepath.Join(dir, "report")); err != nil {
		if got != exitFailed || stderr.Len() == 0 {
			fail("no report: %v", err)
		}
		if _, err := os.Stat(ran); err == nil {
			fail("the CLI ran, and there is no report")
		}
		return
	}
	o := readReport(t, filepath.Join(dir, "report"))
	// Two seconds more are for the end of curfew itself.
	if most := (adapter.Command{Stop: stop}).Bound() + 2*time.Second; !began.IsZero() && ended.Sub(began) > most {
		fail("it took %v, more than %v", ended.Sub(began), most)
	}
	proven := o.Cleanup.Result == outcome.CleanupEmpty && o.Cleanup.Proof != outcome.ProofNone
	_, err = os.Stat(ran)
	switch {
	case o.Status == outcome.StatusNotStarted && err == nil:
		fail("the CLI ran, and is reported as not started")
	case o.Status == outcome.StatusNotStarted && got == exitFailed, o.Status == outcome.StatusUnknown && got == 128+15 && proven, o.Status == outcome.StatusUnknown && got == 123 && proven:
	case o.Status == outcome.StatusUnknown && got == 122 && !proven:
	default:
		fail("%s, %s, %+v", o.Status, o.Cause, o.Cleanup)
	}
	if proven {
		if err := eof(soon / 10); err != nil {
			fail("proven empty, and %v", err)
		}
	}
	if tolerated && (o.Status != outcome.StatusUnknown || o.Cause != outcome.CauseCanceled || !proven) {
		fail("it is not tolerated: %s, %s, %+v, %v", o.Status, o.Cause, o.Cleanup, errors.Unwrap(o.Err))
	}
	if refuses && proven && o.Cleanup.Proof == outcome.ProofNoChildren && len(o.Cleanup.Ended) == 0 {
		fail("the tree is reported as empty although no signal was sent")
	}
}
