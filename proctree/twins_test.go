package proctree

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// Files for one system are read in pairs: what both systems define is in files of the same
// name but for the system's, and in the same order.
func TestTwins(t *testing.T) {
	linux, darwin := definitions(t, "linux"), definitions(t, "darwin")
	for stem, names := range linux {
		for _, name := range names {
			for other, theirs := range darwin {
				if other != stem && slices.Contains(theirs, name) {
					t.Errorf("%s is in %s_linux.go and in %s_darwin.go", name, stem, other)
				}
			}
		}
		both := func(name string) bool { return !slices.Contains(names, name) || !slices.Contains(darwin[stem], name) }
		a, b := slices.DeleteFunc(slices.Clone(names), both), slices.DeleteFunc(slices.Clone(darwin[stem]), both)
		if !slices.Equal(a, b) {
			t.Errorf("%s_linux.go has %v, and %s_darwin.go %v: the order differs", stem, a, stem, b)
		}
	}
	if len(linux["scan"]) == 0 || len(darwin["scan"]) == 0 {
		t.Error("no definitions were found: this tests nothing")
	}
}

// definitions returns the names that the files for a system define at the top level, by what
// the names of the files begin with. Methods are those of a type: "processTable.rows".
func definitions(t *testing.T, system string) map[string][]string {
	files, err := filepath.Glob("*_" + system + ".go")
	if err != nil {
		t.Fatal(err)
	}
	all := map[string][]string{}
	for _, file := range files {
		syntax, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		stem := strings.TrimSuffix(file, "_"+system+".go")
		for _, d := range syntax.Decls {
			all[stem] = append(all[stem], names(d)...)
		}
	}
	return all
}

func names(d ast.Decl) (list []string) {
	switch d := d.(type) {
	case *ast.FuncDecl:
		name := d.Name.Name
		if d.Recv != nil {
			receiver := d.Recv.List[0].Type
			if star, ok := receiver.(*ast.StarExpr); ok {
				receiver = star.X
			}
			of := receiver.(*ast.Ident).Name
			if of == "procfs" {
				of = "processTable" // which embeds it
			}
			name = of + "." + name
		}
		return []string{name}
	case *ast.GenDecl:
		for _, spec := range d.Specs {
			switch spec := spec.(type) {
			case *ast.TypeSpec:
				list = append(list, spec.Name.Name)
			case *ast.ValueSpec:
				for _, n := range spec.Names {
					list = append(list, n.Name)
				}
			}
		}
	}
	return list
}
