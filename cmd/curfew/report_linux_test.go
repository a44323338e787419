package main

import (
	"os/exec"
	"strings"
	"testing"
)

// curfew notices a disk that is full or read-only before the CLI starts. On a disk that the
// CLI fills there is space for the report.
func TestReportAndTheDisk(t *testing.T) {
	t.Parallel()
	script := `mkdir d && mount -t tmpfs -o size=256k none d || exit 99
curfew run --report d/r.json -- sh -c 'cat /dev/zero >d/big' 2>/dev/null
grep -c '"status": "failed"' d/r.json; ls -A d | grep -v big
curfew run --report d/new.json -- touch ran; echo code $?; ls -A d | grep -v big
rm d/big
mount -o remount,bind,ro d
curfew run --report d/r.json -- touch ran; echo code $?
grep -c '"status": "failed"' d/r.json
test ! -e ran && echo nothing ran`
	unshare := func(script string) *exec.Cmd {
		cmd := curfew(t)
		path, err := exec.LookPath("unshare")
		if err != nil {
			t.Skip("no unshare")
		}
		cmd.Path, cmd.Args = path, []string{"unshare", "-rm", "sh", "-c", script}
		return cmd
	}
	if r := runToEnd(t, unshare("mkdir m && mount -t tmpfs none m")); r.code != 0 {
		t.Skip("no file system can be mounted here: " + r.stderr)
	}
	r := runToEnd(t, unshare(script))
	if want := "1\nr.json\ncode 125\nr.json\ncode 125\n1\nnothing ran\n"; r.stdout != want {
		t.Errorf("%q, want %q\n%s", r.stdout, want, r.stderr)
	}
	for _, want := range []string{"no space left on device", "read-only file system"} {
		if !strings.Contains(r.stderr, want) {
			t.Errorf("no %q in %q", want, r.stderr)
		}
	}
}
