package adapter

import (
	"bufio"
	"debug/elf"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// host is a program in a module of its own, as the programs of others are, with
// packages whose init functions can get in a helper's way.
type host struct {
	dir   string
	flags []string // of go build
}

// newHost makes a host of the given files: its path below the module, and the text.
func newHost(t *testing.T, files map[string]string, flags ...string) *host {
	t.Helper()
	if testing.Short() {
		t.Skip("it builds programs, which takes long")
	}
	if _, err := exec.LookPath("go"); err != nil {
		t.Skip("no go command to build a caller with: ", err)
	}
	root, err := filepath.Abs("..")
	if err != nil {
		t.Fatal(err)
	}
	sums, err := os.ReadFile(filepath.Join(root, "go.sum"))
	if err != nil {
		t.Fatal(err)
	}
	version, err := exec.CommandContext(t.Context(), "go", "list", "-m", "-f", "{{.Version}}", "golang.org/x/sys").Output()
	if err != nil {
		t.Fatal(err)
	}
	h := &host{t.TempDir(), flags}
	all := map[string]string{
		"go.sum": string(sums),
		"go.mod": fmt.Sprintf(`module example.com/host

go 1.26

require (
	curfew v0.0.0
	golang.org/x/sys %s
)

replace curfew => %s
`, strings.TrimSpace(string(version)), root),
	}
	for name, text := range files {
		all[name] = text
	}
	for name, text := range all {
		path := filepath.Join(h.dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return h
}

// build builds a package of the host and returns the path of the result.
func (h *host) build(t *testing.T, pkg string, flags ...string) string {
	t.Helper()
	exe := filepath.Join(h.dir, "bin", filepath.Base(pkg))
	cmd := exec.CommandContext(t.Context(), "go", slices.Concat([]string{"build", "-mod=mod", "-buildvcs=false", "-o", exe}, h.flags, flags, []string{pkg})...)
	cmd.Dir, cmd.Env = h.dir, append(os.Environ(), "GOPROXY=off", "GOWORK=off")
	if b, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("go build %s: %v\n%s", pkg, err, b)
	}
	return exe
}

// A helper is taken over before nearly all of a program's own packages are initialised.
// Go initialises, of the packages whose imports are initialised, the one whose path
// sorts first; so each package that the helpers import can put them behind what sorts
// before it.
func TestTakeOverComesEarly(t *testing.T) {
	t.Parallel()
	imports := []string{"crypto/rand", "fmt", "log/slog", "math/big", "net", "net/url", "os/exec", "os/signal", "path/filepath", "regexp", "runtime/debug", "text/template"}
	early := []string{"fmt", "os/signal"} // the helpers import them too
	files := map[string]string{}
	main := "package main\n\nimport (\n\t_ \"curfew/adapter\"\n"
	for _, path := range imports {
		name := strings.ReplaceAll(path, "/", "_")
		files[name+"/p.go"] = fmt.Sprintf("package %s\n\nimport (\n\t_ %q\n\t\"time\"\n)\n\nvar Start = time.Now()\n", name, path)
		main += fmt.Sprintf("\t_ \"example.com/host/%s\"\n", name)
	}
	files["main.go"] = main + ")\n\nfunc main() {}\n"
	exe := newHost(t, files).build(t, ".")

	cmd := exec.CommandContext(t.Context(), exe)
	cmd.Env = append(os.Environ(), "GODEBUG=inittrace=1")
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	var order []string
	for line := range strings.Lines(string(out)) {
		if f := strings.Fields(line); len(f) > 1 && f[0] == "init" {
			order = append(order, f[1])
		}
	}
	we := slices.Index(order, "curfew/internal/supervisor")
	if we < 0 {
		t.Fatalf("the supervisor's package is not initialised:\n%s", out)
	}
	for _, path := range imports {
		at := slices.Index(order, "example.com/host/"+strings.ReplaceAll(path, "/", "_"))
		if at < 0 {
			t.Errorf("a package that imports %s is not initialised:\n%s", path, out)
		} else if at < we && !slices.Contains(early, path) {
			t.Errorf("a package that imports %s is initialised before the helpers are taken over", path)
		}
	}
	t.Log(order[:we])
}

// inTheWay is a package of a host that is initialised before a helper is taken over,
// and a program that invokes a CLI for each line that it reads. It notes that it runs.
var inTheWay = map[string]string{
	"a/a.go": `package a

import (
	"fmt"
	"io"
	"os"
	"strings"
	"syscall"
	"time"
)

func init() {
	exe, _ := os.Readlink("/proc/self/exe")
	does, _ := os.ReadFile(exe + ".does")
	if !strings.HasPrefix(os.Args[0], "curfew-") {
		return
	}
	switch string(does) {
	case "prints":
		os.Stdout.WriteString(strings.Repeat("out", 100<<10))
		os.Stderr.WriteString(strings.Repeat("err", 100<<10))
	case "reads":
		if b, err := io.ReadAll(os.Stdin); len(b) > 0 || err != nil {
			panic("something to read")
		}
	case "needs":
		if os.Getenv("HOME") == "" || os.Getenv("PATH") == "" {
			panic("neither HOME nor PATH")
		}
	case "sleeps":
		time.Sleep(time.Second)
	case "exits":
		os.Stderr.WriteString(strings.Repeat("noise ", 10<<10))
		fmt.Fprintln(os.Stderr, "no applet of the name", os.Args[0])
		os.Exit(3)
	case "exits late":
		if os.Args[0] == "curfew-supervisor" {
			fmt.Fprintln(os.Stderr, "no applet of the name", os.Args[0])
			os.Exit(3)
		}
	case "dies":
		syscall.Kill(os.Getpid(), syscall.SIGKILL)
	}
}
`,
	"program/main.go": `package main

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"time"

	"curfew/adapter"
	_ "example.com/host/a"
)

func main() {
	exe, _ := os.Readlink("/proc/self/exe")
	f, _ := os.OpenFile(exe+".mains", os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	fmt.Fprintln(f, os.Args[0])
	a, err := adapter.New(adapter.Options{Supervisor: os.Getenv("SUPERVISOR")})
	if err != nil {
		panic(err)
	}
	for in := bufio.NewScanner(os.Stdin); in.Scan(); {
		if len(os.Args) > 1 { // so that the guard has to start another supervisor
			if _, err := a.Start(context.Background(), adapter.Command{Path: "sleep", Args: []string{"30"}}); err != nil {
				fmt.Println(err)
			}
		}
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		o, err := a.Invoke(ctx, adapter.Command{Path: "env"})
		cancel()
		fmt.Printf("%s %v %q\n", o.Status, err, o.Stdout)
	}
	a.Shutdown(context.Background())
}
`,
	"program/main_test.go": `package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"testing"

	"curfew/adapter"
)

var needed = flag.Int("needed", 0, "a flag of the test binary's own")

func TestMain(m *testing.M) {
	flag.Parse()
	exe, _ := os.Readlink("/proc/self/exe")
	fmt.Println("TestMain runs in", os.Args[0], *needed)
	if *needed == 0 {
		panic(exe + " is started without its flag")
	}
	os.Exit(m.Run())
}

func TestInvoke(t *testing.T) {
	if _, err := adapter.Invoke(context.Background(), adapter.Command{Path: "true"}); err != nil {
		t.Error(err)
	}
}
`,
	"plug/plug.go": `package main

import (
	"context"

	"curfew/adapter"
)

func Invoke() (string, error) {
	o, err := adapter.Invoke(context.Background(), adapter.Command{Path: "true"})
	return string(o.Status), err
}

func main() {}
`,
	"plughost/main.go": `package main

import (
	"fmt"
	"os"
	"plugin"
)

func main() {
	exe, _ := os.Readlink("/proc/self/exe")
	f, _ := os.OpenFile(exe+".mains", os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	fmt.Fprintln(f, os.Args[0])
	p, err := plugin.Open(os.Args[1])
	if err != nil {
		panic(err)
	}
	invoke, err := p.Lookup("Invoke")
	if err != nil {
		panic(err)
	}
	fmt.Println(invoke.(func() (string, error))())
}
`,
}

// answer runs a program of a host, which invokes once, and returns what it says.
func answer(t *testing.T, argv ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), argv[0], argv[1:]...)
	cmd.Stdin = strings.NewReader("once\n")
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %v\n%s", argv, err, out)
	}
	return string(out)
}

// ranOnce checks that the main function of exe ran in the caller alone.
func ranOnce(t *testing.T, exe string) {
	t.Helper()
	if b, err := os.ReadFile(exe + ".mains"); err != nil || strings.Count(string(b), "\n") != 1 {
		t.Errorf("main ran in %q, %v", b, err)
	}
}

func TestInitFunctionsInTheWay(t *testing.T) {
	t.Parallel()
	exe := newHost(t, inTheWay).build(t, "./program")
	for does, want := range map[string][]string{
		"prints":     {"succeeded"},
		"reads":      {"succeeded"},
		"needs":      {"succeeded"},
		"sleeps":     {"succeeded"},
		"exits":      {"not_started", "with exit status 3", "noise no applet of the name curfew-guard", "Options.Supervisor"},
		"exits late": {"not_started", "no applet of the name curfew-supervisor", "Options.Supervisor"},
		"dies":       {"not_started", "by signal killed", "Options.Supervisor"},
	} {
		t.Run(does, func(t *testing.T) {
			t.Parallel()
			exe := copied(t, exe)
			if err := os.WriteFile(exe+".does", []byte(does), 0o600); err != nil {
				t.Fatal(err)
			}
			got := answer(t, exe)
			if !strings.HasPrefix(got, want[0]) || slices.ContainsFunc(want, func(part string) bool { return !strings.Contains(got, part) }) {
				t.Errorf("it says %s, not %q", got, want)
			}
			for _, never := range []string{"GOGC=", "GOMEMLIMIT=", "CURFEW_HELPER"} {
				if strings.Contains(got, never) {
					t.Errorf("the CLI has %s in its environment", never)
				}
			}
			if len(got) > 8<<10 {
				t.Errorf("it says %d bytes", len(got))
			}
			ranOnce(t, exe)
		})
	}
}

// "go run", and a test binary with a TestMain and flags of its own.
func TestGoRunAndGoTest(t *testing.T) {
	t.Parallel()
	h := newHost(t, inTheWay)
	for want, args := range map[string][]string{
		"succeeded":            {"run", "-mod=mod", "./program"},
		"--- PASS: TestInvoke": {"test", "-mod=mod", "-vet=off", "-v", "-count=1", "-run=Invoke", "-timeout=20s", "./program", "-needed=7"},
	} {
		cmd := exec.CommandContext(t.Context(), "go", args...)
		cmd.Dir, cmd.Env, cmd.Stdin = h.dir, append(os.Environ(), "GOPROXY=off", "GOWORK=off"), strings.NewReader("once\n")
		out, err := cmd.CombinedOutput()
		if err != nil || !strings.Contains(string(out), want) || strings.Count(string(out), "TestMain runs") > 1 {
			t.Errorf("go %v: %v\n%s", args, err, out)
		}
	}
}

// copied copies an executable to a directory of its own.
func copied(t *testing.T, exe string) string {
	t.Helper()
	b, err := os.ReadFile(exe)
	if err != nil {
		t.Fatal(err)
	}
	to := filepath.Join(t.TempDir(), filepath.Base(exe))
	if err := os.WriteFile(to, b, 0o755); err != nil {
		t.Fatal(err)
	}
	return to
}

// replace has another program, which notes that it ran, take the name of one.
func replace(t *testing.T, exe string) (ran string) {
	t.Helper()
	ran = exe + ".ran"
	if err := os.WriteFile(exe+".new", []byte("#!/bin/sh\ntouch "+ran+"\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(exe+".new", exe); err != nil {
		t.Fatal(err)
	}
	return ran
}

// A helper is a copy of the program that runs, and not of what has its name by now;
// the same for a supervisor and the guard that starts it.
func TestReplacedExecutable(t *testing.T) {
	t.Parallel()
	built := newHost(t, inTheWay).build(t, "./program")
	for _, what := range []string{"itself", "Options.Supervisor"} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			exe, replaced := copied(t, built), ""
			cmd := exec.CommandContext(t.Context(), exe)
			if replaced = exe; what != "itself" {
				replaced = copied(t, built)
				cmd.Args = append(cmd.Args, "busy")
				cmd.Env = append(os.Environ(), "SUPERVISOR="+replaced)
			}
			in, err := cmd.StdinPipe()
			if err != nil {
				t.Fatal(err)
			}
			out, err := cmd.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			lines := bufio.NewScanner(out)
			ask := func() {
				if _, err := fmt.Fprintln(in, "once"); err != nil {
					t.Fatal(err)
				}
				if lines.Scan(); !strings.HasPrefix(lines.Text(), "succeeded") {
					t.Errorf("it says %s", lines.Text())
				}
			}
			if what != "itself" {
				ask() // its guard is there
			}
			ran := replace(t, replaced)
			ask()
			if err := in.Close(); err != nil {
				t.Fatal(err)
			}
			if err := cmd.Wait(); err != nil {
				t.Error(err)
			}
			if _, err := os.Stat(ran); err == nil {
				t.Error("what had taken the name was started")
			}
		})
	}
}

// What is no executable of ours is not started: neither the host of a plugin, whose
// main function would run again, nor the loader that was given our name.
func TestExecutableIsNotOurs(t *testing.T) {
	t.Parallel()
	h := newHost(t, inTheWay)
	refused := func(t *testing.T, got string) {
		if !strings.Contains(got, "not_started") || !strings.Contains(got, "the executable is not ours") || !strings.Contains(got, "Options.Supervisor") {
			t.Errorf("it says %s", got)
		}
	}
	t.Run("plugin", func(t *testing.T) {
		if os.Getenv("CGO_ENABLED") == "0" {
			t.Skip("plugins need cgo")
		}
		plug, exe := h.build(t, "./plug", "-buildmode=plugin"), h.build(t, "./plughost")
		refused(t, answer(t, exe, plug))
		ranOnce(t, exe)
	})
	t.Run("loader", func(t *testing.T) {
		exe := h.build(t, "./program", "-buildmode=pie")
		f, err := elf.Open(exe)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		interp := f.Section(".interp")
		if interp == nil {
			t.Skip("the program is linked without a loader")
		}
		b, err := interp.Data()
		if err != nil {
			t.Fatal(err)
		}
		refused(t, answer(t, strings.TrimRight(string(b), "\x00"), exe))
	})
}
