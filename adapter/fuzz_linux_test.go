package adapter

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"curfew/internal/wire"
	"curfew/outcome"
)

// FuzzKeeper writes any output in any pieces: what is kept is the head and the
// tail of it, as long as the limit lets them be, and cut at no character.
func FuzzKeeper(f *testing.F) {
	for _, s := range []string{"", "a", "hello, world", "äöüäöüäöüäöü", "日本語日本語日本語", "\xff\xfe\xfd\xfc\xfb\xfa\x80\x80\x80\x80\x80\x80", "aaaa\xf0\x9f\x98\x80bbbb\xf0\x9f\x98\x80", strings.Repeat("0123456789", 30), "\xe4\xb8"} {
		for _, limit := range []uint8{0, 1, 2, 3, 7, 8, 12, 255} {
			f.Add([]byte(s), limit, uint8(2))
		}
		f.Add([]byte(s), uint8(9), uint8(0))
		f.Add([]byte(s), uint8(9), uint8(255))
	}
	f.Fuzz(func(t *testing.T, b []byte, limit, piece uint8) {
		k := keeper{limit: int64(limit)}
		for rest := b; len(rest) > 0; {
			n := min(int(piece)+1, len(rest))
			if m, err := k.Write(bytes.Clone(rest[:n])); m != n || err != nil {
				t.Fatalf("%d of %d bytes, %v", m, n, err)
			}
			rest = rest[n:]
		}
		got, s := k.kept()
		if s.Seen != int64(len(b)) || s.Kept != int64(len(got)) || s.Kept > int64(limit) {
			t.Fatalf("%+v of %d bytes with a limit of %d, and %d are there", s, len(b), limit, len(got))
		}
		if len(b) <= int(limit) {
			if !bytes.Equal(got, b) || s.Truncated {
				t.Errorf("%q of %q, truncated: %v", got, b, s.Truncated)
			}
			return
		}
		if !s.Truncated || s.HeadBytes < 0 || s.HeadBytes > s.Kept {
			t.Fatalf("%+v of %d bytes with a limit of %d", s, len(b), limit)
		}
		head, tail := got[:s.HeadBytes], got[s.HeadBytes:]
		if !bytes.HasPrefix(b, head) || !bytes.HasSuffix(b, tail) {
			t.Errorf("%q and %q are not the ends of %q", head, tail, b)
		}
		// Of a character at most 3 bytes are left out, at either edge.
		if most := (int(limit) + 1) / 2; len(head) > most || len(head) < most-3 {
			t.Errorf("a head of %d bytes with a limit of %d", len(head), limit)
		}
		if most := int(limit) / 2; len(tail) > most || len(tail) < most-3 {
			t.Errorf("a tail of %d bytes with a limit of %d", len(tail), limit)
		}
		if utf8.Valid(b) && !(utf8.Valid(head) && utf8.Valid(tail)) {
			t.Errorf("%q and %q of what is UTF-8", head, tail)
		}
	})
}

// FuzzEnviron gives commands environments: of each name the last value is left,
// in its place, and the mark comes last. What has no "=" is no value of a name.
func FuzzEnviron(f *testing.F) {
	for _, s := range []string{"", "A=b", "A=b\nA=c", "A=b\nB=c\nA=d", "A\nA=b", "=x\n=y", "A==\nA==", "CURFEW_INVOCATION_x=1\nCURFEW_INVOCATION_y=1", "\xff=1\n\xfe=2\n\xff=3"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		c := Command{Env: strings.Split(text, "\n")}
		got := c.environ("id")
		var want []string
		for i, s := range c.Env {
			name, _, isVariable := strings.Cut(s, "=")
			if s != "" && !slices.ContainsFunc(c.Env[i+1:], func(later string) bool {
				other, _, alike := strings.Cut(later, "=")
				return isVariable && alike && other == name
			}) {
				want = append(want, s)
			}
		}
		if want = append(want, "CURFEW_INVOCATION_id=1"); !slices.Equal(got, want) {
			t.Errorf("got %q, want %q", got, want)
		}
	})
}

// FuzzInterpreter reads the first line of scripts.
func FuzzInterpreter(f *testing.F) {
	for _, s := range []string{"", "#!", "#!/bin/sh", "#!/bin/sh\n", "#! \t/bin/sh -e\n", "#!/bin/sh\r\n", " #!/bin/sh\n", "#\n!/bin/sh", "#!\n/bin/sh", "\x7fELF", "#!" + strings.Repeat("x", 300), "#!a\x00b\n", "#!/usr/bin/env\tx"} {
		f.Add([]byte(s))
	}
	file := filepath.Join(f.TempDir(), "script")
	f.Fuzz(func(t *testing.T, b []byte) {
		if err := os.WriteFile(file, b, 0o755); err != nil {
			t.Fatal(err)
		}
		want := ""
		first, _, _ := strings.Cut(string(b[:min(len(b), 256)]), "\n")
		if words := strings.FieldsFunc(strings.TrimPrefix(first, "#!"), func(r rune) bool { return r == ' ' || r == '\t' }); strings.HasPrefix(first, "#!") && len(words) > 0 {
			want = words[0]
		}
		if got := interpreterOf(file); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	})
}

// FuzzLookUp looks for executables in paths, as os/exec does.
func FuzzLookUp(f *testing.F) {
	for i := range byte(12) {
		f.Add([]byte{i}, byte(0))
		f.Add([]byte{i, 0}, byte(0))
		f.Add([]byte{i, 1, 2, 0}, i)
	}
	f.Add([]byte{}, byte(0))
	f.Add([]byte{9}, byte(5)) // an entry that is a file, and what is in it
	f.Add([]byte{9, 0}, byte(4))
	dir := f.TempDir()
	for name, mode := range map[string]os.FileMode{"good/x": 0o755, "bad/x": 0o644, "good/y": 0o644, "other/y": 0o755, "other/a b": 0o755, "dir/x/y": 0o755} {
		if err := errors.Join(os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o755), os.WriteFile(filepath.Join(dir, name), nil, mode), os.Chmod(filepath.Join(dir, name), mode)); err != nil {
			f.Fatal(err)
		}
	}
	if err := os.Chmod(dir, 0o755); err != nil {
		f.Fatal(err)
	}
	entries := []string{dir + "/good", dir + "/bad", dir + "/dir", dir + "/other", "", ".", "../other", "/no/such", dir + "//good/", dir + "/good/x", "good", strings.Repeat("/x", 3000)}
	f.Fuzz(func(t *testing.T, picks []byte, n byte) {
		var list []string
		for _, i := range picks {
			list = append(list, entries[int(i)%len(entries)])
		}
		path := strings.Join(list, ":")
		name := []string{"x", "y", "a b", "z", "..", "."}[int(n)%6]
		t.Chdir(filepath.Join(dir, "good")) // not f's: a failing input is written to the working directory
		t.Setenv("PATH", path)
		want, wantErr := exec.LookPath(name)
		got, err := lookUp(name, "", []string{"PATH=/nowhere", "A=PATH=x", "PATH=" + path})
		switch {
		case (err == nil) != (wantErr == nil), errors.Is(err, exec.ErrDot) != errors.Is(wantErr, exec.ErrDot):
			t.Errorf("%s in %q: %q, %v; want %q, %v", name, path, got, err, want, wantErr)
		case err == nil && filepath.Clean(got) != filepath.Clean(want):
			t.Errorf("%s in %q: %q, want %q", name, path, got, want)
		case err != nil && got != "":
			t.Errorf("%q and %v", got, err)
		}
	})
}

// TestHostileSupervisor has an executable in the supervisor's place that says
// what it likes. Whatever that is, Invoke returns in time and claims nothing
// that was not said.
func TestHostileSupervisor(t *testing.T) {
	t.Parallel()
	word := func(text string) string {
		b := binary.BigEndian.AppendUint32(nil, uint32(len(text)))
		return string(binary.BigEndian.AppendUint32(b, 0)) + text
	}
	hello := word(fmt.Sprintf(`{"hello":{"version":%d,"pid":4711,"state_known":false}}`, wire.Version))
	started := word(`{"started":{"pid":4711,"at":"2025-06-01T10:00:00Z"}}`)
	stopping := word(`{"stopping":{"cause":"canceled"}}`)
	exited := word(`{"exited":{"code":0}}`)
	done := func(s string) string { return word(`{"done":` + s + `}`) }
	const empty = `"cleanup":{"result":"empty","proof":"no_children"}`
	for _, tt := range []struct {
		name, says string
		after      string // what it does then
		status     outcome.Status
	}{
		{"an honest one", hello + started + exited + done(`{"started":true,"exit":{"code":0},`+empty+`}`), "", outcome.StatusSucceeded},
		{"nothing", "", "", outcome.StatusNotStarted},
		{"noise", strings.Repeat("\xff", 5000), "", outcome.StatusNotStarted},
		{"another version", word(`{"hello":{"version":7,"pid":1}}`), "", outcome.StatusNotStarted},
		{"no hello", started, "", outcome.StatusNotStarted},
		{"gone after the hello", hello, "", outcome.StatusUnknown},
		{"mute after the hello", hello, "waits", outcome.StatusUnknown},
		{"mute after the start", hello + started, "waits", outcome.StatusUnknown},
		{"stopping without end", hello + started, "goes on", outcome.StatusUnknown},
		{"a report of nothing", hello + started + done(`{}`), "waits", outcome.StatusUnknown},
		{"a report without a tree", hello + started + exited + done(`{"started":true,"exit":{"code":0}}`), "waits", outcome.StatusSucceeded},
		{"a result that is none", hello + started + done(`{"cleanup":{"result":"fine","proof":"none"}}`), "", outcome.StatusUnknown},
		{"a code and a signal", hello + started + done(`{"started":true,"exit":{"code":0,"signal":9},`+empty+`}`), "", outcome.StatusUnknown},
		{"an exit code that is none", hello + started + done(`{"started":true,"exit":{"code":4711},`+empty+`}`), "", outcome.StatusUnknown},
		{"executed and not executed", hello + started + done(`{"started":true,"not_executed":true,"exit":{"code":0},`+empty+`}`), "", outcome.StatusUnknown},
		{"exited twice", hello + started + exited + exited, "waits", outcome.StatusSucceeded},
		{"a frame without end", hello + started + "\x00\x00\xff\xff\x00\x00\x00\x00{", "waits", outcome.StatusUnknown},
		{"an exit, and lost", hello + started + exited, "", outcome.StatusSucceeded},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			file := filepath.Join(t.TempDir(), "helper")
			// What follows the hello is an answer to the request.
			says, greeted := strings.CutPrefix(tt.says, hello)
			script := fmt.Sprintf("#!/bin/sh\nexec env -u CURFEW_HELPER %s='plays the supervisor' '%s' $0 %t '%s'\n", roleVar, os.Args[0], greeted, tt.after)
			if err := errors.Join(os.WriteFile(file+".says", []byte(says), 0o666), os.WriteFile(file+".hello", []byte(hello), 0o666), os.WriteFile(file+".again", []byte(stopping), 0o666), os.WriteFile(file, []byte(script), 0o755)); err != nil {
				t.Fatal(err)
			}
			a, err := New(Options{Supervisor: file})
			if err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			began := make(chan time.Time, 1)
			if tt.after == "" {
				began <- time.Now()
			} else {
				go func() { // it is canceled when it was asked for
					for ctx.Err() == nil {
						if fi, err := os.Stat(file + ".asked"); err == nil && fi.Size() > 0 {
							break
						}
						time.Sleep(time.Millisecond)
					}
					began <- time.Now()
					cancel()
				}()
			}
			c := Command{Path: "sh", Args: []string{"-c", ":"}, AfterExit: AfterExitLeave, Stop: StopPolicy{Grace: time.Millisecond, KillWait: time.Millisecond, Drain: time.Millisecond, Linger: time.Millisecond}}
			o, err := a.Invoke(ctx, c)
			cancel()
			// The bound holds for any load the machine can be under but this one's.
			if took := time.Since(<-began); took > bound(c.Stop)+10*time.Second {
				t.Errorf("it took %v", took)
			}
			if o.Status != tt.status || (err == nil) != (o.Status == outcome.StatusSucceeded) {
				t.Errorf("status %q, want %q; %v", o.Status, tt.status, err)
			}
			if o.Cleanup.HelperLost && o.Cleanup.Result != outcome.CleanupUnverified {
				t.Errorf("lost, and the cleanup is %+v", o.Cleanup)
			}
			if o.Cleanup.Result == "" {
				t.Error("nothing is said of the tree")
			}
			data, err := json.Marshal(o)
			var again outcome.Outcome
			if err = errors.Join(err, json.Unmarshal(data, &again)); err != nil {
				t.Errorf("the outcome cannot be written and read: %v\n%s", err, data)
			}
			down, over := context.WithTimeout(context.Background(), time.Minute)
			defer over()
			if err := shutDown(down, a); err != nil {
				t.Errorf("Shutdown: %v", err)
			}
		})
	}
}

func init() { roles["plays the supervisor"] = playsRole }

// playsRole writes what is in its files to its socket.
func playsRole(args []string) error {
	file, greeted, after := args[0], args[1] == "true", args[2]
	socket := os.NewFile(3, "socket")
	say := func(what string) error {
		b, err := os.ReadFile(file + what)
		if err == nil {
			_, err = socket.Write(b)
		}
		return err
	}
	if greeted {
		if err := say(".hello"); err != nil {
			return err
		}
		request := make([]byte, 1<<20)
		n, err := socket.Read(request)
		if err == nil {
			err = os.WriteFile(file+".asked", request[:n], 0o600)
		}
		if err != nil {
			return err
		}
	}
	if err := say(".says"); err != nil {
		return err
	}
	switch after {
	case "waits":
		time.Sleep(50 * time.Second)
	case "goes on":
		for say(".again") == nil {
			time.Sleep(10 * time.Millisecond)
		}
	}
	return nil
}
