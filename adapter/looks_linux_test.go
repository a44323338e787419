package adapter

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"curfew/outcome"
)

func init() { roles["leaves many files open"] = leavesManyFilesOpenRole }

// leavesManyFilesOpenRole leaves processes behind which have thousands of descriptors
// each, and end by themselves.
func leavesManyFilesOpenRole(args []string) error {
	const files = 15000
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		return err
	}
	limit.Cur = limit.Max
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		return err
	}
	for range min(files, int(min(limit.Max, files*2))-100) {
		if _, err := unix.Dup(0); err != nil { // which, unlike those of package os, is inherited
			return err
		}
	}
	n, err := strconv.Atoi(args[0])
	for range n {
		if err == nil {
			_, err = syscall.ForkExec("/bin/sleep", []string{"sleep", tooLong}, &syscall.ProcAttr{Files: []uintptr{0, 0, 0}})
		}
	}
	fmt.Println(os.Getpid())
	return err
}

// A supervisor that looks whether leftovers hold the output hears a stop, and the end of
// its caller, although the look could take half a minute.
func TestStopDuringALongLook(t *testing.T) {
	t.Parallel()
	const leftovers = 150
	a := newAdapter(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var canceled time.Time
	c := Command{
		Path: os.Args[0], Args: []string{strconv.Itoa(leftovers)}, Env: append(os.Environ(), roleVar+"=leaves many files open"),
		Stop: StopPolicy{Grace: time.Millisecond, KillWait: patience, Linger: patience},
		Stdout: onBytes(func(b []byte) {
			go func() {
				// The leader has exited, and is being looked at what it has left.
				gone := "/proc/" + strings.TrimSpace(string(b))
				for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(time.Millisecond) {
					if _, err := os.Stat(gone); err != nil {
						break
					}
				}
				time.Sleep(100 * time.Millisecond)
				canceled = time.Now()
				cancel()
			}()
		}),
	}
	o, err := a.Invoke(ctx, c)
	if err != nil || o.Status != outcome.StatusSucceeded || o.Cleanup.HelperLost {
		t.Errorf("%s, %v, %s; %+v", o.Status, err, o.Stderr, o.Cleanup)
	}
	const heardIn = 2 * time.Second // it takes milliseconds, and took up to half a minute
	if late := o.Ended.Add(-o.Cleanup.Elapsed).Sub(canceled); late > heardIn {
		t.Errorf("the stop was heard after %v", late)
	}
	if n := len(o.Cleanup.Ended) + o.Cleanup.EndedMore; n != leftovers {
		t.Errorf("ended %d of %d leftovers", n, leftovers)
	}
	isEmpty(t, o)
}

// onBytes is a Writer that calls the function.
type onBytes func([]byte)

func (f onBytes) Write(b []byte) (int, error) { f(b); return len(b), nil }
