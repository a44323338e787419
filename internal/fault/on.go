//go:build curfew_faults

package fault

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
)

// Enabled reports whether this build can make calls fail.
const Enabled = true

const variable = "CURFEW_FAULTS"

// rule makes some calls of one kind fail.
type rule struct {
	errno        syscall.Errno // 0: short
	first, count uint64        // count 0: for ever
	made         atomic.Uint64
}

var (
	rules    [calls]*rule
	perMille uint64
	state    atomic.Uint64
)

// plausible are the errors that a call can meet although everything was done
// right. In a random run no signal is refused and no child disowned: a world in
// which nothing can be ended is tested by rules.
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

// process says which of the three this one is.
func process() string {
	if name, ok := strings.CutPrefix(os.Args[0], "curfew-"); ok {
		return name
	}
	return "caller"
}

func parse(spec, process string) error {
	for item := range strings.SplitSeq(spec, ",") {
		what, value, ok := strings.Cut(item, "=")
		if who, call, some := strings.Cut(what, "/"); some {
			if who != process {
				continue
			}
			what = call
		}
		if !ok {
			return fmt.Errorf("%q has no value", item)
		}
		if what == "random" {
			seed, n, _ := strings.Cut(value, "/")
			s, err := strconv.ParseUint(seed, 10, 64)
			if err != nil {
				return err
			}
			if perMille, err = strconv.ParseUint(n, 10, 64); err != nil {
				return err
			}
			state.Store(s ^ uint64(len(process))<<56)
			continue
		}
		r := &rule{first: 1}
		value, window, some := strings.Cut(value, "@")
		errno, err := strconv.ParseUint(value, 10, 12)
		if err != nil {
			return err
		}
		r.errno = syscall.Errno(errno)
		if some {
			from, count, _ := strings.Cut(window, "+")
			if r.first, err = strconv.ParseUint(from, 10, 64); err != nil {
				return err
			}
			if count != "" {
				if r.count, err = strconv.ParseUint(count, 10, 64); err != nil {
					return err
				}
			}
		}
		found := false
		for c, name := range names {
			if name == what {
				rules[c], found = r, true
			}
		}
		if !found {
			return fmt.Errorf("there is no call %q", what)
		}
	}
	return nil
}

// due reports whether the next call of that kind is to fail, and with what.
func due(c Call) (errno syscall.Errno, fails bool) {
	if r := rules[c]; r != nil {
		n := r.made.Add(1)
		return r.errno, n >= r.first && (r.count == 0 || n < r.first+r.count)
	}
	if perMille == 0 || len(plausible[c]) == 0 {
		return 0, false
	}
	// splitmix64
	z := state.Add(0x9e3779b97f4a7c15)
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	z ^= z >> 31
	if z%1000 >= perMille {
		return 0, false
	}
	return plausible[c][z>>32%uint64(len(plausible[c]))], true
}

// At returns what the next call of that kind fails with, 0 if it is to be made.
func At(c Call) syscall.Errno {
	if errno, fails := due(c); fails {
		return errno
	}
	return 0
}

// Size returns how much of n bytes the next read is to ask for. It is for calls
// of which a part can be done, right before At.
func Size(c Call, n int) int {
	if r := rules[c]; r != nil && r.errno == 0 || r == nil && perMille != 0 && state.Load()%7 == 0 {
		return min(n, 1)
	}
	return n
}

// Environment returns the variable that says what fails, to be passed on.
func Environment() []string {
	if spec := os.Getenv(variable); spec != "" {
		return []string{variable + "=" + spec}
	}
	return nil
}
