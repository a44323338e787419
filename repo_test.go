// Package curfew_test holds the rules of the repository as tests: which package
// may import which, where signals are sent, that the documentation compiles.
// It looks at what exists, so a rule about a package that is not there holds.
package curfew_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"unicode/utf8"
)

const module = "curfew"

// layers are the packages that make up the product, from the top down: each
// imports only what stands after it.
var layers = []string{"cmd", "adapter", "internal/supervisor", "internal/wire", "proctree", "internal/verdict", "outcome", "internal/journal", "internal/scratch", "internal/lease", "internal/sys", "internal/fault", "internal/text"}

// helperLayers run in the helper processes. They import little, so that Go's
// init order reaches them early.
var helperLayers = []string{"internal/supervisor", "internal/wire", "proctree", "outcome", "internal/journal", "internal/scratch", "internal/lease", "internal/sys", "internal/fault", "internal/text"}

func TestEveryPackageHasAComment(t *testing.T) {
	documented := map[string]bool{}
	for _, f := range goFiles(t) {
		if f.test && f.dir != "." {
			continue
		}
		documented[f.dir] = documented[f.dir] || f.syntax.Doc != nil
	}
	for dir, ok := range documented {
		if !ok {
			t.Errorf("%s: no file has a package comment", dir)
		}
	}
}

func TestNoReplaceDirectives(t *testing.T) {
	out, err := exec.Command("go", "mod", "edit", "-json").Output()
	if err != nil {
		t.Fatalf("go mod edit -json: %v", err)
	}
	var mod struct{ Replace []any }
	if err := json.Unmarshal(out, &mod); err != nil {
		t.Fatal(err)
	}
	if len(mod.Replace) > 0 {
		t.Errorf("go.mod has %d replace directives: they do not hold for those who import the module", len(mod.Replace))
	}
}

// A program that imports adapter needs golang.org/x/sys and nothing else, and its go.mod
// says so. What only the command and the tests need can still raise the version of a
// module that the program has already; developers' tools cannot.
func TestHostNeedsLittle(t *testing.T) {
	root, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	writeFile(t, filepath.Join(dir, "main.go"), []byte("package main\n\nimport _ \""+module+"/adapter\"\n\nfunc main() {}\n"))
	writeFile(t, filepath.Join(dir, "go.mod"), []byte("module host\n\ngo 1.26.0\n\nrequire "+module+" v0.0.0\n\nreplace "+module+" => "+root+"\n"))
	run := func(args ...string) string {
		t.Helper()
		cmd := exec.Command("go", args...)
		cmd.Dir, cmd.Env = dir, append(os.Environ(), "GOFLAGS=-mod=mod", "GOWORK=off")
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("go %s: %v\n%s", strings.Join(args, " "), err, out)
		}
		return string(out)
	}
	run("mod", "tidy")
	var mod struct{ Require []struct{ Path string } }
	if err := json.Unmarshal([]byte(run("mod", "edit", "-json")), &mod); err != nil {
		t.Fatal(err)
	}
	var needs []string
	for _, r := range mod.Require {
		needs = append(needs, r.Path)
	}
	slices.Sort(needs)
	if want := slices.Sorted(slices.Values([]string{module, "golang.org/x/sys"})); !slices.Equal(needs, want) {
		t.Errorf("a program that imports adapter needs %q, want %q", needs, want)
	}
	for m := range strings.Lines(run("list", "-m", "all")) {
		if name, _, _ := strings.Cut(strings.TrimSpace(m), " "); slices.Contains([]string{"honnef.co/go/tools", "github.com/BurntSushi/toml"}, name) {
			t.Errorf("a program that imports adapter gets a developers' tool: %s", m)
		}
	}
}

// `make module MODULE=...` gives the module another path, and all of it builds.
func TestModuleCanBeRenamed(t *testing.T) {
	if testing.Short() {
		t.Skip("it builds everything once more")
	}
	const path = "example.org/some/name"
	dir := t.TempDir()
	for _, name := range trackedFiles(t) {
		copied := filepath.Join(dir, filepath.FromSlash(name))
		if err := os.MkdirAll(filepath.Dir(copied), 0o755); err != nil {
			t.Fatal(err)
		}
		writeFile(t, copied, readFile(t, name))
	}
	for _, args := range [][]string{{"-C", "tools", "run", "./module", path}, {"build", "./..."}, {"vet", "./..."},
		{"test", "-run", "^Test(EveryPackage|ImportsPoint|HelpersImport|OnePlace|SeamsAre)", "."}} {
		cmd := exec.Command("go", args...)
		cmd.Dir, cmd.Env = dir, append(os.Environ(), "GOFLAGS=-buildvcs=false", "GOWORK=off")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("go %s: %v\n%s", strings.Join(args, " "), err, out)
		}
	}
	old := regexp.MustCompile(`(^|[^\w./-])` + regexp.QuoteMeta(module) + `/(adapter|outcome|internal)`)
	for _, name := range trackedFiles(t) {
		if text := readFile(t, filepath.Join(dir, name)); utf8.Valid(text) && old.Match(text) {
			t.Errorf("%s has the old path: %q", name, old.Find(text))
		}
	}
}

func TestImportsPointOneWay(t *testing.T) {
	for _, f := range goFiles(t) {
		from := layerOf(f.dir)
		if f.test || from < 0 {
			continue
		}
		for _, imported := range f.imports() {
			rel, ours := strings.CutPrefix(imported, module+"/")
			if !ours {
				continue
			}
			to := layerOf(rel)
			switch {
			case to >= from:
			case rel == "fixtures" && f.dir == "cmd/curfew": // for `curfew selftest`; not what can hurt a machine, as fixtures/bombs
			case to < 0:
				t.Errorf("%s imports %s, which is not in a layer of the product", f.path, imported)
			default:
				t.Errorf("%s imports %s: imports point from %s", f.path, imported, strings.Join(layers, " to "))
			}
		}
	}
}

func TestHelpersImportLittle(t *testing.T) {
	for _, f := range goFiles(t) {
		if f.test || !f.in(helperLayers...) {
			continue
		}
		for _, imported := range f.imports() {
			first, _, _ := strings.Cut(imported, "/")
			std := !strings.Contains(first, ".")
			if !std && !strings.HasPrefix(imported, module+"/") && !strings.HasPrefix(imported, "golang.org/x/sys/") {
				t.Errorf("%s imports %s: a helper imports the standard library and golang.org/x/sys", f.path, imported)
			}
		}
	}
}

// A helper starts processes with syscall.ForkExec on one locked thread: os/exec
// and os.StartProcess start goroutines and threads, which can fail when it matters.
func TestHelpersStartNoProcessThroughOS(t *testing.T) {
	for _, f := range goFiles(t) {
		if f.test || !f.in("internal/supervisor", "internal/wire", "proctree") {
			continue
		}
		if slices.Contains(f.imports(), "os/exec") {
			t.Errorf("%s imports os/exec", f.path)
		}
		for _, use := range f.uses("os", "StartProcess") {
			t.Errorf("%s: os.StartProcess in a helper", use)
		}
	}
}

// One place sends signals and refuses those that could hit a stranger: one file
// for each system in proctree.
func TestOnePlaceSendsSignals(t *testing.T) {
	sends := []string{
		"Kill", "Tgkill", "PidfdSendSignal",
		"SYS_KILL", "SYS_TKILL", "SYS_TGKILL", "SYS_PIDFD_SEND_SIGNAL",
		"SYS_RT_SIGQUEUEINFO", "SYS_RT_TGSIGQUEUEINFO",
	}
	for _, f := range goFiles(t) {
		if f.test || f.in("fixtures", "bench") { // these misbehave on purpose
			continue
		}
		if ok, _ := path.Match("proctree/signal_*.go", f.path); ok {
			continue
		}
		for _, pkg := range []string{"syscall", "golang.org/x/sys/unix"} {
			for _, use := range f.uses(pkg, sends...) {
				t.Errorf("%s: a signal is sent outside proctree/signal_*.go", use)
			}
		}
	}
}

// What tests set to change how the product works, nothing else does.
func TestSeamsAreForTests(t *testing.T) {
	for _, f := range goFiles(t) {
		if f.test {
			continue
		}
		for imported, name := range map[string]string{"internal/fault": "Inject", "internal/supervisor": "TrackTrees"} {
			for _, use := range f.uses(module+"/"+imported, name) {
				t.Errorf("%s: %s is set outside a test", use, name)
			}
		}
	}
}

// TestDocumentationCompiles builds each Go program in the Markdown files, in a
// package that exists only in an overlay of this module.
func TestDocumentationCompiles(t *testing.T) {
	fence := regexp.MustCompile("(?ms)^```go\n(.*?)^```$")
	found := 0
	for _, name := range trackedFiles(t) {
		if path.Ext(name) != ".md" {
			continue
		}
		for _, match := range fence.FindAllSubmatchIndex(readFile(t, name), -1) {
			text := readFile(t, name)
			source := text[match[2]:match[3]]
			if !bytes.HasPrefix(source, []byte("package main\n")) && !bytes.Contains(source, []byte("\npackage main\n")) {
				continue
			}
			found++
			line := 1 + bytes.Count(text[:match[2]], []byte("\n"))
			t.Run(fmt.Sprintf("%s:%d", name, line), func(t *testing.T) {
				if bytes.Contains(source, []byte(`"`+module+`/internal/`)) {
					t.Error("the example imports an internal package")
				}
				buildInOverlay(t, source)
			})
		}
	}
	if found == 0 {
		t.Skip("no Markdown file has a Go program yet")
	}
}

// TestDocumentationQuotes compares what the Markdown files quote of Go files with
// those: a Go fence below a line such as <!-- from docs/examples/mcp/main.go -->
// is a part of that file, or all of it.
func TestDocumentationQuotes(t *testing.T) {
	fence := regexp.MustCompile("(?ms)^<!-- from ([^ \\n]+) -->\n```go\n(.*?)^```$")
	for _, name := range trackedFiles(t) {
		if path.Ext(name) != ".md" {
			continue
		}
		text := readFile(t, name)
		quotes := fence.FindAllSubmatchIndex(text, -1)
		if announced := bytes.Count(text, []byte("\n<!-- from ")); announced != len(quotes) {
			t.Errorf("%s: %d quotes are announced, %d are there", name, announced, len(quotes))
		}
		for _, at := range quotes {
			source, quoted := string(text[at[2]:at[3]]), text[at[4]:at[5]]
			if !bytes.Contains(readFile(t, source), quoted) {
				t.Errorf("%s:%d: this is not in %s as it stands here", name, 1+bytes.Count(text[:at[0]], []byte("\n")), source)
			}
		}
	}
}

// Every exported name of the packages that a program imports has a doc comment and is in
// an example, but for methods that the standard library calls.
func TestExportedNamesAreDocumentedAndShown(t *testing.T) {
	called := []string{"Error", "Unwrap", "Is", "As", "String", "MarshalJSON", "UnmarshalJSON"}
	shown := map[string]bool{} // identifiers in examples
	for _, f := range goFiles(t) {
		if !f.in("adapter", "outcome") || !strings.HasPrefix(path.Base(f.path), "example") || !f.test {
			continue
		}
		ast.Inspect(f.syntax, func(n ast.Node) bool {
			if sel, ok := n.(*ast.SelectorExpr); ok {
				shown[sel.Sel.Name] = true
			}
			return true
		})
	}
	for _, f := range goFiles(t) {
		if f.test || f.dir != "adapter" && f.dir != "outcome" {
			continue
		}
		for name, documented := range exported(f.syntax) {
			if !documented {
				t.Errorf("%s: %s has no doc comment", f.path, name)
			}
			last := name[strings.LastIndexByte(name, '.')+1:]
			if !shown[last] && !slices.Contains(called, last) {
				t.Errorf("%s: %s is in no example of adapter or outcome", f.path, name)
			}
		}
	}
}

// exported returns the exported names that a file declares, methods with their type before
// them, and whether each has a doc comment, of its own or for its group.
func exported(file *ast.File) map[string]bool {
	names := map[string]bool{}
	for _, decl := range file.Decls {
		switch d := decl.(type) {
		case *ast.FuncDecl:
			name := d.Name.Name
			if d.Recv != nil {
				receiver := d.Recv.List[0].Type
				if star, ok := receiver.(*ast.StarExpr); ok {
					receiver = star.X
				}
				typ, ok := receiver.(*ast.Ident)
				if !ok || !typ.IsExported() {
					continue
				}
				name = typ.Name + "." + name
			}
			if d.Name.IsExported() {
				names[name] = d.Doc != nil || d.Name.Name == "Error" // whose meaning is known
			}
		case *ast.GenDecl:
			for _, spec := range d.Specs {
				switch s := spec.(type) {
				case *ast.TypeSpec:
					if s.Name.IsExported() {
						names[s.Name.Name] = d.Doc != nil || s.Doc != nil
					}
				case *ast.ValueSpec:
					for _, n := range s.Names {
						if n.IsExported() {
							names[n.Name] = d.Doc != nil || s.Doc != nil || s.Comment != nil
						}
					}
				}
			}
		}
	}
	return names
}

// TestTextStandsAlone keeps out what holds on one machine only: absolute paths
// of a home or work directory, and the addresses of package registries.
func TestTextStandsAlone(t *testing.T) {
	// In pieces, so that this file obeys its own rule.
	forbidden := regexp.MustCompile(strings.Join([]string{
		"/ho" + "me/[a-z]+/",
		"/ro" + "ot/",
		"/wo" + "rk/",
		regexp.QuoteMeta("proxy." + "golang.org"),
		regexp.QuoteMeta("deb." + "debian.org"),
		regexp.QuoteMeta("registry." + "npmjs.org"),
		regexp.QuoteMeta("py" + "pi.org"),
	}, "|"))
	for _, name := range trackedFiles(t) {
		text := readFile(t, name)
		if !utf8.Valid(text) {
			continue
		}
		for i, line := range bytes.Split(text, []byte("\n")) {
			if hit := forbidden.Find(line); hit != nil {
				t.Errorf("%s:%d: %q means something on one machine only", name, i+1, hit)
			}
		}
	}
}

// buildInOverlay builds source as the main package of a directory that does not exist.
func buildInOverlay(t *testing.T, source []byte) {
	t.Helper()
	root, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	file := filepath.Join(dir, "main.go")
	overlay, err := json.Marshal(map[string]map[string]string{
		"Replace": {filepath.Join(root, "example_in_documentation", "main.go"): file},
	})
	if err != nil {
		t.Fatal(err)
	}
	writeFile(t, file, source)
	writeFile(t, filepath.Join(dir, "overlay.json"), overlay)
	build := exec.Command("go", "build", "-buildvcs=false", "-o", os.DevNull,
		"-overlay", filepath.Join(dir, "overlay.json"), "./example_in_documentation")
	if out, err := build.CombinedOutput(); err != nil {
		t.Errorf("go build: %v\n%s", err, out)
	}
}

// goFile is a parsed Go file of the module, outside testdata.
type goFile struct {
	path   string // from the root, with slashes
	dir    string
	test   bool
	syntax *ast.File
	fset   *token.FileSet
}

// in says whether the file is in one of dirs or below.
func (f goFile) in(dirs ...string) bool {
	return slices.ContainsFunc(dirs, func(dir string) bool { return f.dir == dir || strings.HasPrefix(f.dir, dir+"/") })
}

func (f goFile) imports() []string {
	var paths []string
	for _, spec := range f.syntax.Imports {
		paths = append(paths, importPath(spec))
	}
	return paths
}

// uses returns the positions at which the file refers to one of names of the
// package at importPath: a call, or a function value.
func (f goFile) uses(imported string, names ...string) []token.Position {
	local := ""
	for _, spec := range f.syntax.Imports {
		if importPath(spec) != imported {
			continue
		}
		local = path.Base(imported)
		if spec.Name != nil {
			local = spec.Name.Name
		}
	}
	if local == "" {
		return nil
	}
	var found []token.Position
	ast.Inspect(f.syntax, func(n ast.Node) bool {
		if sel, ok := n.(*ast.SelectorExpr); ok {
			if pkg, ok := sel.X.(*ast.Ident); ok && pkg.Name == local && slices.Contains(names, sel.Sel.Name) {
				found = append(found, f.fset.Position(sel.Pos()))
			}
		}
		return true
	})
	return found
}

func importPath(spec *ast.ImportSpec) string {
	p, err := strconv.Unquote(spec.Path.Value)
	if err != nil {
		panic("the parser let through an import path that is not quoted: " + spec.Path.Value)
	}
	return p
}

// layerOf returns the index in layers of the package in dir, or -1.
func layerOf(dir string) int {
	return slices.IndexFunc(layers, func(layer string) bool { return dir == layer || strings.HasPrefix(dir, layer+"/") })
}

// goFiles parses every Go file of the module, for whichever system it is.
func goFiles(t *testing.T) []goFile {
	t.Helper()
	var files []goFile
	fset := token.NewFileSet()
	for _, name := range trackedFiles(t) {
		if path.Ext(name) != ".go" || slices.Contains(strings.Split(name, "/"), "testdata") {
			continue
		}
		syntax, err := parser.ParseFile(fset, name, readFile(t, name), parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			t.Errorf("parse: %v", err)
			continue
		}
		files = append(files, goFile{
			path: name, dir: path.Dir(name), test: strings.HasSuffix(name, "_test.go"), syntax: syntax, fset: fset,
		})
	}
	return files
}

// trackedFiles returns what is in git, or would be with the next `git add`, as
// paths from the root with slashes. Where git has no answer (a source archive) it is every
// file but those in hidden and vendor directories.
func trackedFiles(t *testing.T) []string {
	t.Helper()
	// The clone may belong to another user, which git refuses without being told.
	out, err := exec.Command("git", "-c", "safe.directory=*", "ls-files", "-z", "--cached", "--others", "--exclude-standard").Output()
	var names []string
	if err == nil {
		for _, name := range strings.Split(strings.TrimSuffix(string(out), "\x00"), "\x00") {
			if info, err := os.Lstat(name); err == nil && info.Mode().IsRegular() { // not one that was removed
				names = append(names, name)
			}
		}
		return names
	}
	err = fs.WalkDir(os.DirFS("."), ".", func(name string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir() && name != "." && (entry.Name() == "vendor" || strings.HasPrefix(entry.Name(), ".")):
			return fs.SkipDir
		case entry.Type().IsRegular():
			names = append(names, name)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return names
}

func readFile(t *testing.T, name string) []byte {
	t.Helper()
	text, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

func writeFile(t *testing.T, name string, text []byte) {
	t.Helper()
	if err := os.WriteFile(name, text, 0o600); err != nil {
		t.Fatal(err)
	}
}
