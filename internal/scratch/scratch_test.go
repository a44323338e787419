package scratch

import (
	"path/filepath"
	"runtime"
	"testing"
)

func TestCheck(t *testing.T) {
	t.Parallel()
	root := string(filepath.Separator)
	if runtime.GOOS == "windows" {
		root = `C:\`
	}
	in := func(elem ...string) string { return filepath.Join(append([]string{root}, elem...)...) }
	tests := []struct {
		name string
		dir  Dir
		ok   bool
	}{
		{"as made", Dir{in("tmp", "curfew-1"), 1, 1, 0}, true},
		{"below the root", Dir{in("curfew-1"), 1, 1, 0}, true},
		{"device 0", Dir{in("tmp", "curfew-1"), 0, 1, 0}, true},
		{"not UTF-8", Dir{in("t\xffmp", "curfew-1"), 1, 1, 0}, true},
		{"zero", Dir{}, false},
		{"no inode", Dir{in("tmp", "curfew-1"), 1, 0, 0}, false},
		{"relative", Dir{filepath.Join("tmp", "curfew-1"), 1, 1, 0}, false},
		{"only a name", Dir{"curfew-1", 1, 1, 0}, false},
		{"the root", Dir{root, 1, 1, 0}, false},
		{"another name", Dir{in("tmp", "other"), 1, 1, 0}, false},
		{"only the prefix", Dir{in("tmp", "curfew-"), 1, 1, 0}, false},
		{"below one", Dir{in("tmp", "curfew-1", "a"), 1, 1, 0}, false},
		{"a slash behind", Dir{in("tmp", "curfew-1") + string(filepath.Separator), 1, 1, 0}, false},
		{"dots in between", Dir{in("tmp") + filepath.FromSlash("/x/../curfew-1"), 1, 1, 0}, false},
		{"dots behind", Dir{in("tmp", "curfew-1") + filepath.FromSlash("/.."), 1, 1, 0}, false},
		{"two slashes", Dir{in("tmp") + filepath.FromSlash("//curfew-1"), 1, 1, 0}, false},
		{"a NUL", Dir{in("tmp", "curfew-1\x00x"), 1, 1, 0}, false},
	}
	for _, test := range tests {
		if err := test.dir.Check(); (err == nil) != test.ok {
			t.Errorf("%s: Check of %q returned %v, want ok = %t", test.name, test.dir.Path, err, test.ok)
		}
	}
}
