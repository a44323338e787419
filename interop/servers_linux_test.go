package interop

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"curfew/adapter"
	"curfew/outcome"
)

// program is what a peer needs to know to start a server.
type program struct {
	Path string
	Args []string
	Env  []string
	Dir  string
}

// kind is a server, and the same server made deaf: it goes on when its input has
// ended, and ignores SIGTERM.
type kind struct {
	name        string
	plain, deaf program
	sum, slow   *mcp.CallToolParams // a tool that answers "5", and one that takes longer than any test
}

// everything is the reference server for clients. Its version is fixed, those of
// what it needs are not.
const everything = "@modelcontextprotocol/server-everything@2026.8.31"

// kinds are the servers, by name. Each returns it, or skips the test.
var kinds = map[string]func(*testing.T) kind{
	"go-sdk": func(t *testing.T) kind {
		in := func(role string) program {
			return program{Path: self(t), Env: append(os.Environ(), roleVar+"="+role)}
		}
		return kind{
			plain: in("server"), deaf: in("deaf"),
			sum:  &mcp.CallToolParams{Name: "sum", Arguments: map[string]any{"a": 2, "b": 3}},
			slow: &mcp.CallToolParams{Name: "slow"},
		}
	},
	"node": func(t *testing.T) kind {
		dir := installed(t)
		entry := filepath.Join(dir, "node_modules", "@modelcontextprotocol", "server-everything", "dist", "index.js")
		return nodeKind(t, dir, "node", entry)
	},
	// npx runs a shell, which runs the server. --no-install: it is installed.
	"npx": func(t *testing.T) kind {
		if _, err := exec.LookPath("npx"); err != nil {
			t.Skip("no npx: ", err)
		}
		return nodeKind(t, installed(t), "npx", "--no-install", "mcp-server-everything")
	},
}

func nodeKind(t *testing.T, dir string, argv ...string) kind {
	plain := program{Path: argv[0], Args: argv[1:], Env: append(os.Environ(), "npm_config_update_notifier=false"), Dir: dir}
	deaf := plain
	// node takes no notice of signals that were ignored when it started, so each
	// node has to be told, and the shell around it as well.
	module := filepath.Join(t.TempDir(), "deaf.cjs")
	if err := os.WriteFile(module, []byte(`process.on("SIGTERM", () => {}); setInterval(() => {}, 1000);`), 0o600); err != nil {
		t.Fatal(err)
	}
	deaf.Path, deaf.Args = "sh", append([]string{"-c", `trap "" TERM; "$@"; while :; do sleep 1; done`, "sh"}, argv...)
	deaf.Env = append(deaf.Env[:len(deaf.Env):len(deaf.Env)], "NODE_OPTIONS=--require="+module)
	return kind{
		plain: plain, deaf: deaf,
		sum:  &mcp.CallToolParams{Name: "get-sum", Arguments: map[string]any{"a": 2, "b": 3}},
		slow: &mcp.CallToolParams{Name: "trigger-long-running-operation", Arguments: map[string]any{"duration": tooLong.Seconds(), "steps": tooLong.Seconds()}},
	}
}

// tooLong is for what must be stopped.
const tooLong = 10 * time.Minute

func self(t *testing.T) string {
	path, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return path
}

var install struct {
	sync.Once
	dir string // removed by TestMain
	err error
}

// installed returns a directory in which everything is installed: a new one, or
// CURFEW_INTEROP_NODE, which was filled by `npm install`.
func installed(t *testing.T) string {
	t.Helper()
	if dir := os.Getenv("CURFEW_INTEROP_NODE"); dir != "" {
		return dir
	}
	install.Do(func() {
		if _, install.err = exec.LookPath("node"); install.err != nil {
			return
		}
		if install.dir, install.err = os.MkdirTemp("", "curfew-interop-"); install.err != nil {
			return
		}
		// An empty package.json, lest npm takes the directory above for the project.
		if install.err = os.WriteFile(filepath.Join(install.dir, "package.json"), []byte(`{"private":true}`), 0o600); install.err != nil {
			return
		}
		o, err := adapter.Invoke(context.Background(), adapter.Command{
			Path: "npm", Args: []string{"install", "--no-audit", "--no-fund", "--ignore-scripts", everything},
			Dir: install.dir, Timeout: 5 * time.Minute,
		})
		if err != nil {
			install.err = errors.New(err.Error() + ": " + string(bytes.TrimSpace(o.Stderr)))
		}
	})
	if install.err != nil {
		t.Skip("the npm package is not to be had: ", install.err)
	}
	return install.dir
}

// sdkServer serves on stdin and stdout until its input ends.
func sdkServer() error {
	type numbers struct {
		A int `json:"a"`
		B int `json:"b"`
	}
	s := mcp.NewServer(&mcp.Implementation{Name: "sdk", Version: "1"}, nil)
	mcp.AddTool(s, &mcp.Tool{Name: "sum"}, func(_ context.Context, _ *mcp.CallToolRequest, n numbers) (*mcp.CallToolResult, any, error) {
		return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: fmt.Sprint(n.A + n.B)}}}, nil, nil
	})
	mcp.AddTool(s, &mcp.Tool{Name: "slow"}, func(ctx context.Context, _ *mcp.CallToolRequest, _ any) (*mcp.CallToolResult, any, error) {
		select {
		case <-ctx.Done():
		case <-time.After(tooLong):
		}
		return nil, nil, ctx.Err()
	})
	mcp.AddTool(s, &mcp.Tool{Name: "die"}, func(context.Context, *mcp.CallToolRequest, any) (*mcp.CallToolResult, any, error) {
		_, _ = io.WriteString(os.Stderr, "out of luck\n")
		os.Exit(3)
		return nil, nil, nil
	})
	return s.Run(context.Background(), &mcp.StdioTransport{})
}

// hold is a pipe that all of a tree has open for writing. It is at its end when
// nobody of it is left.
type hold struct {
	tree *os.File // the end for the tree; ours is to be closed once the tree has it
	gone chan struct{}

	mu   sync.Mutex
	text bytes.Buffer // what came through it, since it is stderr
}

func newHold(t *testing.T) *hold {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	h := &hold{tree: w, gone: make(chan struct{})}
	t.Cleanup(func() { _ = w.Close(); _ = r.Close(); <-h.gone })
	go func() {
		defer close(h.gone)
		buf := make([]byte, 4096)
		for {
			n, err := r.Read(buf)
			h.mu.Lock()
			h.text.Write(buf[:n])
			h.mu.Unlock()
			if err != nil {
				return
			}
		}
	}()
	return h
}

func (h *hold) String() string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.text.String()
}

// command starts p with both its stderr, which a chain of programs hands on, and
// a descriptor of which they do not know, being the hold.
func (p program) command(tree *os.File) adapter.Command {
	return adapter.Command{Path: p.Path, Args: p.Args, Env: p.Env, Dir: p.Dir, Stdin: adapter.Pipe, Stdout: adapter.Pipe, Stderr: tree, ExtraFiles: []*os.File{tree}}
}

// isHeld fails if nobody has the hold.
func (h *hold) isHeld(t *testing.T) {
	t.Helper()
	select {
	case <-h.gone:
		t.Fatalf("nobody holds the pipe any more: %s", h)
	default:
	}
}

// isFree fails unless the hold is at its end by then. Nothing has to happen for
// that any more but that the reader is scheduled.
func (h *hold) isFree(t *testing.T, until time.Time) {
	t.Helper()
	select {
	case <-h.gone:
	case <-time.After(time.Until(until)):
		t.Fatalf("somebody still holds the pipe: %s", h)
	}
}

// isEmpty fails unless the outcome says that a session that was asked to end did,
// and left nothing.
func isEmpty(t *testing.T, s *adapter.Session) outcome.Outcome {
	t.Helper()
	o, over := s.Outcome()
	if !over || o.Status != outcome.StatusStopped || o.Cleanup.Result != outcome.CleanupEmpty {
		t.Errorf("over %v: %s, %s, %s: %v", over, o.Status, o.Cause, o.Cleanup.Result, o.Err)
	}
	return o
}
