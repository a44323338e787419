package adapter

import (
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
		"go.mod": fmt.Sprintf("module example.com/host\n\ngo 1.26\n\nrequire (\n\tcurfew v0.0.0\n\tgolang.org/x/sys %s\n)\n\nreplace curfew => %s\n", strings.TrimSpace(string(version)), root),
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
