package adapter

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"
)

func init() {
	roles["executes another program"] = executesRole
	roles["lists its children"] = listsRole
}

// A caller that executes another program leaves that its guard, which has ended, as a
// child to wait for; after a Shutdown it leaves nothing.
func TestCallerExecutesAnotherProgram(t *testing.T) {
	t.Parallel()
	for how, want := range map[string]string{"at once": "Z\n", "after Shutdown": "\n"} {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			cmd := exec.CommandContext(ctx, os.Args[0], how)
			cmd.Env = append(os.Environ(), roleVar+"=executes another program")
			out, err := cmd.Output()
			if err != nil || string(out) != want {
				t.Errorf("the children are %q, %v; want %q", out, err, want)
			}
		})
	}
}

func executesRole(args []string) error {
	a, err := New(Options{})
	if err == nil {
		_, err = a.Invoke(context.Background(), Command{Path: "true"})
	}
	if err == nil && args[0] == "after Shutdown" {
		err = a.Shutdown(context.Background())
	}
	if err != nil {
		return err
	}
	os.Setenv(roleVar, "lists its children")
	return syscall.Exec("/proc/self/exe", os.Args[:1], os.Environ())
}

// listsRole waits until no child lives, and prints the states of those that are there.
func listsRole([]string) error {
	for end := time.Now().Add(patience); ; time.Sleep(time.Millisecond) {
		states := ""
		for _, pid := range childrenOf(os.Getpid()) {
			b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
			if err != nil {
				return err
			}
			states += string(b[bytes.LastIndexByte(b, ')')+2:][:1])
		}
		if strings.Trim(states, "Z") == "" || time.Now().After(end) {
			fmt.Println(states)
			return nil
		}
	}
}
