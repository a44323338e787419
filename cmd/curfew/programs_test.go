//go:build unix

package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"curfew/outcome"
)

// Real programs: each ends by itself, and by a timeout. What they print before the stop
// proves that they ran. The end of the streams proves that no process holds them any
// more.

// script runs a program with the given files, and returns how it ended and
// what the report says.
func script(t *testing.T, files map[string]string, args ...string) (ran, outcome.Outcome) {
	t.Helper()
	cmd := curfew(t, append([]string{"run", "--report", "report.json"}, args...)...)
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(cmd.Dir, name), []byte(text), 0o666); err != nil {
			t.Fatal(err)
		}
	}
	cmd.Env = append(os.Environ(), "HOME="+cmd.Dir, "TMPDIR="+cmd.Dir, "GIT_CONFIG_NOSYSTEM=1", "NO_UPDATE_NOTIFIER=1",
		"GIT_AUTHOR_NAME=a", "GIT_AUTHOR_EMAIL=a@example.com", "GIT_COMMITTER_NAME=a", "GIT_COMMITTER_EMAIL=a@example.com")
	r := runToEnd(t, cmd)
	return r, readReport(t, filepath.Join(cmd.Dir, "report.json"))
}

func wantRan(t *testing.T, r ran, o outcome.Outcome, code int, stdout string) {
	t.Helper()
	if r.code != code || !strings.Contains(r.stdout, stdout) {
		t.Errorf("exit code %d, stdout %q; want %d, and %q in it\n%s", r.code, r.stdout, code, stdout, r.stderr)
	}
	if o.Cleanup.Result != outcome.CleanupEmpty {
		t.Errorf("cleanup %+v, want empty", o.Cleanup)
	}
}

// timed are the flags of the runs that a timeout ends: long enough for
// a start on a busy machine.
var timed = []string{"-t", "6", "-g", "0.5", "--"}

func TestGit(t *testing.T) {
	t.Parallel()
	need(t, "git", "sh")
	r, o := script(t, nil, "--", "sh", "-c", `git init -q one && cd one && echo x > x && git add x && git commit -qm x && cd .. &&
		curfew run -- git clone -q one two && cat two/x && curfew run -- git -C two log --format=%s`)
	wantRan(t, r, o, 0, "x\nx\n")
	r, o = script(t, nil, "--", "git", "clone", "-q", "./none", "two")
	wantRan(t, r, o, 128, "")
	r, o = script(t, map[string]string{"a": "a", "b": "b"}, "--", "git", "diff", "--no-index", "--quiet", "a", "b")
	wantRan(t, r, o, 1, "")
	// A helper of git that hangs, as without a network.
	r, o = script(t, nil, append(append([]string{"--env", "GIT_ALLOW_PROTOCOL=ext"}, timed...),
		"git", "clone", "ext::sh -c echo% under% way>&2;sleep% "+tooLong, "two")...)
	wantRan(t, r, o, exitTimeout, "")
	if !strings.Contains(r.stderr, "under way") || len(o.Cleanup.Ended) < 2 {
		t.Errorf("the helper was not started, or not ended: %+v\n%s", o.Cleanup.Ended, r.stderr)
	}
}

// python returns the system's own python, if there is one: a version manager puts a shell
// script in front of it.
func python(t *testing.T) string {
	t.Helper()
	if _, err := os.Stat("/usr/bin/python3"); err == nil {
		return "/usr/bin/python3"
	}
	need(t, "python3")
	return "python3"
}

func TestPythonPool(t *testing.T) {
	t.Parallel()
	py := python(t)
	files := map[string]string{"pool.py": `
import multiprocessing, sys, time
def work(n):
    time.sleep(float(sys.argv[1]))
    return n * n
if __name__ == "__main__":
    with multiprocessing.Pool(4) as pool:
        print("under way", flush=True)
        print(sum(pool.map(work, range(8))), flush=True)
`}
	r, o := script(t, files, "--", py, "pool.py", "0.01")
	wantRan(t, r, o, 0, "under way\n140\n")
	r, o = script(t, files, append(timed, py, "pool.py", tooLong)...)
	wantRan(t, r, o, exitTimeout, "under way\n")
	if n := len(o.Cleanup.Ended); n < 5 {
		t.Errorf("%d processes ended, want the pool of 4 and its parent", n)
	}
}

func TestBashPipeline(t *testing.T) {
	t.Parallel()
	need(t, "bash", "seq")
	r, o := script(t, nil, "--", "bash", "-c", `set -o pipefail; seq 1000 | grep 7 | tail -n 1; exec > >(sed s/^/late:/); echo x; false | cat; exit $?`)
	wantRan(t, r, o, 1, "997\nlate:x\n")
	r, o = script(t, nil, append(timed, "bash", "-c", `echo under way; (while echo y; do sleep 0.01; done) | tee >(cat > /dev/null) | (trap "" TERM; cat > /dev/null; sleep `+tooLong+`)`)...)
	wantRan(t, r, o, exitTimeout, "under way\n")
}

// It makes itself a daemon: a session of its own, and the parent exits.
func TestSSHAgent(t *testing.T) {
	t.Parallel()
	need(t, "ssh-agent")
	r, o := script(t, nil, "--", "sh", "-c", `eval "$(ssh-agent -a ./socket)"; exit 5`)
	wantRan(t, r, o, 5, "Agent pid")
	if len(o.Cleanup.Ended) != 1 || o.Cleanup.Ended[0].Name != "ssh-agent" {
		t.Errorf("ended %+v, want the agent", o.Cleanup.Ended)
	}
	r, o = script(t, nil, append(timed, "sh", "-c", `eval "$(ssh-agent -a ./socket)"; sleep `+tooLong)...)
	wantRan(t, r, o, exitTimeout, "Agent pid")
	// With --after-exit leave it stays; this test ends it.
	r, o = script(t, nil, "--", "sh", "-c", `curfew run --after-exit leave -- ssh-agent -a ./socket; test -S socket && echo there`)
	wantRan(t, r, o, 0, "there\n")
}

func TestNodeWithAServer(t *testing.T) {
	t.Parallel()
	need(t, "node")
	files := map[string]string{
		"server.js": `
require("net").createServer(s => s.end("hello")).listen(0, "127.0.0.1", function () {
	process.send(this.address().port)
})`,
		"main.js": `
const server = require("child_process").fork("server.js", { detached: true })
server.on("message", port => {
	require("net").connect(port, "127.0.0.1").on("data", d => {
		console.log("server says " + d)
		if (process.argv[2] === "exit") process.exit(3)
	})
})
setTimeout(() => {}, 60e3)`,
	}
	r, o := script(t, files, "--linger", "0.1", "--", "node", "main.js", "exit")
	wantRan(t, r, o, 3, "server says hello\n")
	if len(o.Cleanup.Ended) > 1 { // it may end by itself, when its channel closes
		t.Errorf("ended %+v, want the server at most", o.Cleanup.Ended)
	}
	r, o = script(t, files, append(timed, "node", "main.js")...)
	wantRan(t, r, o, exitTimeout, "server says hello\n")
}

func TestNPM(t *testing.T) {
	t.Parallel()
	need(t, "npm", "node")
	files := map[string]string{"package.json": `{ "name": "x", "version": "1.0.0", "scripts": {
		"short": "node -e \"console.log('short'); process.exit(7)\"",
		"long": "node -e \"console.log('under way'); setTimeout(() => {}, 60e3)\"" } }`}
	r, o := script(t, files, "--", "npm", "run", "--silent", "short")
	wantRan(t, r, o, 7, "short\n")
	r, o = script(t, files, "-t", "10", "-g", "0.5", "--", "npm", "run", "--silent", "long")
	wantRan(t, r, o, exitTimeout, "under way\n")
	if n := len(o.Cleanup.Ended); n < 2 {
		t.Errorf("ended %+v, want npm and what it ran", o.Cleanup.Ended)
	}
}

// A terminal recorder that is itself a proxy.
func TestScriptUtility(t *testing.T) {
	t.Parallel()
	need(t, "script")
	if out, err := exec.Command("script", "--version").CombinedOutput(); err != nil || !strings.Contains(string(out), "util-linux") {
		t.Skip("script is not that of util-linux")
	}
	cmd := exec.Command("script", "-qec", "curfew run -- sh -c 'test -t 1 && cat && exit 4'", "/dev/null")
	cmd.Stdin = strings.NewReader("typed\n")
	if r := runToEnd(t, cmd); r.code != 4 || !strings.Contains(r.stdout, "typed") {
		t.Errorf("%+v", r)
	}
}
