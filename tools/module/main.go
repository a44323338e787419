// Command module changes the path of this repository's module, wherever it stands: in go.mod
// files, imports, strings and documentation.
//
//	go -C tools run ./module github.com/somebody/curfew
//
// `make module MODULE=...` runs it.
package main

import (
	"bytes"
	"errors"
	"fmt"
	"go/format"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"unicode/utf8"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "module:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) != 1 || !valid.MatchString(args[0]) {
		return errors.New("want one argument, the new path of the module, for example github.com/somebody/curfew")
	}
	root, err := output("go", "env", "GOMOD") // that of tools
	if err != nil {
		return err
	}
	if err := os.Chdir(filepath.Dir(filepath.Dir(root))); err != nil {
		return err
	}
	old, err := output("go", "list", "-m")
	if err != nil {
		return err
	}
	if old == args[0] {
		return nil
	}
	change := renamer(old, args[0])
	return filepath.WalkDir(".", func(name string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.Name() == ".git":
			return fs.SkipDir
		case !entry.Type().IsRegular():
			return nil
		}
		return rewrite(name, change)
	})
}

// rewrite changes one file, if it is a text and there is something to change.
func rewrite(name string, change func([]byte) []byte) error {
	text, err := os.ReadFile(name)
	if err != nil || !utf8.Valid(text) {
		return err
	}
	changed := change(text)
	if bytes.Equal(changed, text) {
		return nil
	}
	if filepath.Ext(name) == ".go" { // the order of imports can be another one
		if changed, err = format.Source(changed); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	return os.WriteFile(name, changed, 0) // the file is there: its mode stays
}

// valid is a path as `go mod init` takes it, roughly: the go command refuses the rest.
var valid = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._~-]*(/[A-Za-z0-9._~-]+)*$`)

// renamer returns what changes the path in a text: where a package of the module is named,
// where a go.mod file has the module itself, and in the constant of the repository's rules.
// The name alone is also that of the command, and stays.
func renamer(old, path string) func([]byte) []byte {
	q := regexp.QuoteMeta(old)
	rules := []struct {
		match *regexp.Regexp
		by    string
	}{
		{regexp.MustCompile(`(^|[^\w./-])` + q + `/(adapter|bench|cmd|docs|example_in_documentation|fixtures|internal|interop|outcome|proctree|tools)\b`), "${1}" + path + "/${2}"},
		{regexp.MustCompile(`(?m)^module ` + q + `$`), "module " + path},
		{regexp.MustCompile(`(?m)^(\t|require )` + q + `( v0\.0\.0)$`), "${1}" + path + "${2}"},
		{regexp.MustCompile(`(?m)^(replace )` + q + `( => )`), "${1}" + path + "${2}"},
		{regexp.MustCompile(`(const module = ")` + q + `"`), "${1}" + path + `"`},
	}
	return func(text []byte) []byte {
		for _, r := range rules {
			text = r.match.ReplaceAll(text, []byte(r.by))
		}
		return text
	}
}

func output(name string, args ...string) (string, error) {
	cmd := exec.Command(name, args...)
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	return strings.TrimSuffix(string(out), "\n"), err
}
