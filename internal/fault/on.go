//go:build curfew_faults

package fault

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
)

// Enabled reports whether the environment can make calls of this program fail.
const Enabled = true

const variable = "CURFEW_FAULTS"

// rule makes some calls of one kind fail.
type rule struct {
	errno        syscall.Errno // 0: the call is short
	first, count uint64        // count 0: without end
	made         atomic.Uint64
}

var (
	rules    [calls]*rule
	perMille uint64
	state    atomic.Uint64
)

// plausible are the errors that a call can meet although the program made no mistake. In a
// random run the kernel refuses no signal and disowns no child: a rule tests what happens
// if nothing can be ended.
var plausible = [calls][]syscall.Errno{
	Open:       {syscall.EMFILE, syscall.ENFILE, syscall.ENOMEM, syscall.EACCES},
	Openat:     {syscall.EMFILE, syscall.ENFILE, syscall.ENOMEM, syscall.EACCES, syscall.ENOENT, syscall.EINTR},
	Read:       {syscall.EINTR, syscall.ESRCH, 0},
	Pread:      {syscall.EINTR, syscall.ENOMEM, 0},
	Getdents:   {syscall.EINTR, syscall.ENOENT},
	Write:      {syscall.EINTR},
	Waitid:     {syscall.EINTR},
	Wait4:      {syscall.EINTR},
	PidfdOpen:  {syscall.EMFILE, syscall.ENFILE, syscall.ENOMEM, syscall.ESRCH},
	ForkExec:   {syscall.EAGAIN, syscall.ENOMEM, syscall.EMFILE},
	Mkdirat:    {syscall.EACCES, syscall.EROFS, syscall.ENOSPC},
	Poll:       {syscall.EINTR, syscall.ENOMEM},
	Sendmsg:    {syscall.EINTR, syscall.EAGAIN, syscall.ETOOMANYREFS},
	Recvmsg:    {syscall.EINTR, syscall.EAGAIN, 0},
	Socketpair: {syscall.EMFILE, syscall.ENFILE, syscall.ENOMEM},
	Fsync:      {syscall.EINTR, syscall.EIO, syscall.ENOSPC},
	Rename:     {syscall.EINTR, syscall.ENOSPC, syscall.EIO},
	Unlinkat:   {syscall.EINTR, syscall.EIO},
	Flock:      {syscall.EINTR, syscall.ENOLCK},
}

func init() {
	spec := os.Getenv(variable)
	if spec == "" {
		return
	}
	if err := parse(spec, process()); err != nil {
		fmt.Fprintf(os.Stderr, "%s: %v\n", variable, err)
		os.Exit(2)
	}
}

// process returns the word for this process in a rule.
func process() string {
	if name, ok := strings.CutPrefix(os.Args[0], "curfew-"); ok {
		return name
	}
	return "caller"
}

// parse takes the rules that are for process.
func parse(spec, process string) error {
	for item := range strings.SplitSeq(spec, ",") {
		what, value, ok := strings.Cut(item, "=")
		if who, call, some := strings.Cut(what, "/"); some {
			if who != process {
				continue
			}
			what = call
		}
		err := error(nil)
		switch {
		case !ok:
			err = errors.New("it has no value")
		case what == "random":
			err = parseRandom(value, process)
		default:
			err = parseRule(what, value)
		}
		if err != nil {
			return fmt.Errorf("%q: %w", item, err)
		}
	}
	return nil
}

// parseRandom takes SEED/N.
func parseRandom(value, process string) error {
	seed, n, _ := strings.Cut(value, "/")
	s, err := strconv.ParseUint(seed, 10, 64)
	if err != nil {
		return err
	}
	state.Store(s ^ uint64(len(process))<<56)
	perMille, err = strconv.ParseUint(n, 10, 64)
	return err
}

// parseRule takes ERRNO[@FIRST[+COUNT]] for one kind of call.
func parseRule(call, value string) error {
	kind := slices.Index(names[:], call)
	if kind < 0 {
		return fmt.Errorf("there is no call %q", call)
	}
	value, window, some := strings.Cut(value, "@")
	errno, err := strconv.ParseUint(value, 10, 12)
	if err != nil {
		return err
	}
	r := &rule{errno: syscall.Errno(errno), first: 1}
	rules[kind] = r
	if !some {
		return nil
	}
	first, count, _ := strings.Cut(window, "+")
	if r.first, err = strconv.ParseUint(first, 10, 64); err == nil && count != "" {
		r.count, err = strconv.ParseUint(count, 10, 64)
	}
	return err
}

// due returns the error that the next call of that kind fails with, 0 to make the call.
func due(c Call) syscall.Errno {
	if r := rules[c]; r != nil {
		n := r.made.Add(1)
		if n >= r.first && (r.count == 0 || n < r.first+r.count) {
			return r.errno
		}
		return 0
	}
	if perMille == 0 || len(plausible[c]) == 0 {
		return 0
	}
	// splitmix64
	z := state.Add(0x9e3779b97f4a7c15)
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	z ^= z >> 31
	if z%1000 >= perMille {
		return 0
	}
	return plausible[c][z>>32%uint64(len(plausible[c]))]
}

// Size returns how many of n bytes the next call asks for. It is for calls that can do a
// part of their work.
func Size(c Call, n int) int {
	if r := rules[c]; r != nil && r.errno == 0 || r == nil && perMille != 0 && state.Load()%7 == 0 {
		return min(n, 1)
	}
	return n
}

// Environment returns the variable that says what fails, for the environment of a helper.
func Environment() []string {
	if spec := os.Getenv(variable); spec != "" {
		return []string{variable + "=" + spec}
	}
	return nil
}
