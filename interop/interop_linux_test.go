// Package interop runs MCP servers that others wrote, under a client that others
// wrote, over sessions of curfew: the official Go SDK on both sides, and the
// reference server of the JavaScript SDK, directly and through npx.
package interop

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"curfew/adapter"
	"curfew/outcome"
)

// What the test binary is to be when it is started again, and how long a deaf
// server lives.
const (
	roleVar = "INTEROP_ROLE"
	lifeVar = "INTEROP_LIFE"
)

func TestMain(m *testing.M) {
	var err error
	switch role := os.Getenv(roleVar); role {
	case "":
		code := m.Run()
		if install.dir != "" {
			_ = os.RemoveAll(install.dir) // a directory for temporary files
		}
		os.Exit(code)
	case "server":
		err = sdkServer()
	case "deaf":
		signal.Ignore(syscall.SIGTERM)
		life, err := time.ParseDuration(os.Getenv(lifeVar))
		if err != nil {
			life = tooLong
		}
		end := time.After(life)
		_ = sdkServer()
		<-end
	case "peer":
		err = peer(os.Args[1])
	case "careless":
		err = careless(os.Args[1])
	default:
		err = fmt.Errorf("no such role: %s", role)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

// transport is a session as the SDK wants it.
func transport(s *adapter.Session) mcp.Transport {
	c := connection{s}
	return &mcp.IOTransport{Reader: c, Writer: c}
}

type connection struct{ s *adapter.Session }

func (c connection) Write(b []byte) (int, error) { return c.s.Stdin().Write(b) }

// Read tells of the end of the output when the session is over. The SDK closes
// the connection then, and what is stopped before its exit was seen counts as
// stopped, even if it has crashed.
func (c connection) Read(b []byte) (int, error) {
	n, err := c.s.Stdout().Read(b)
	if err == io.EOF {
		select {
		case <-c.s.Done():
		case <-time.After(time.Second): // it lives, and has closed its output
		}
	}
	return n, err
}

// Close stops the session. The output is read until then, and not closed before:
// the server may have something to say.
func (c connection) Close() error { return c.s.Stop(context.Background()) }

// connect makes a client without roots. Of one that has them, server-everything
// (2026.8.31, node 20) asks for the list 350 ms after its start; if its input has
// ended by then it waits for the answer, and so goes on for a minute.
func connect(ctx context.Context, t mcp.Transport) (*mcp.ClientSession, error) {
	o := &mcp.ClientOptions{Capabilities: &mcp.ClientCapabilities{}}
	return mcp.NewClient(&mcp.Implementation{Name: "interop", Version: "1"}, o).Connect(ctx, t, nil)
}

// sum fails unless the server lists the tool, and it answers.
func sum(ctx context.Context, c *mcp.ClientSession, call *mcp.CallToolParams) error {
	list, err := c.ListTools(ctx, nil)
	if err != nil {
		return err
	}
	if !slices.ContainsFunc(list.Tools, func(t *mcp.Tool) bool { return t.Name == call.Name }) {
		return fmt.Errorf("%s is not among %d tools", call.Name, len(list.Tools))
	}
	result, err := c.CallTool(ctx, call)
	if err != nil {
		return err
	}
	if text, ok := result.Content[0].(*mcp.TextContent); !ok || !strings.Contains(text.Text, "5") {
		return fmt.Errorf("the sum is %v", result.Content)
	}
	return nil
}

// eachKind runs f for each server. Not in parallel: three node programs that start
// at once are slow.
func eachKind(t *testing.T, f func(*testing.T, kind)) {
	for _, name := range []string{"go-sdk", "node", "npx"} {
		t.Run(name, func(t *testing.T) {
			k := kinds[name](t)
			k.name = name
			f(t, k)
		})
	}
}

// use starts a server, and has it answer.
func use(t *testing.T, a *adapter.Adapter, p program, k kind, policy adapter.StopPolicy) (*adapter.Session, *mcp.ClientSession, *hold) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	h := newHold(t)
	command := p.command(h.tree)
	command.Stop = policy
	s, err := a.Start(ctx, command)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Stop(context.Background()) }) // what is not shown to be gone is what the test is about
	_ = h.tree.Close()
	c, err := connect(ctx, transport(s))
	if err != nil {
		t.Fatalf("%v: %s", err, h)
	}
	if err := sum(ctx, c, k.sum); err != nil {
		t.Fatalf("%v: %s", err, h)
	}
	h.isHeld(t)
	return s, c, h
}

func newAdapter(t *testing.T) *adapter.Adapter {
	t.Helper()
	a, err := adapter.New(adapter.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := a.Shutdown(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return a
}

// soon is for a goroutine to be scheduled.
const soon = 5 * time.Second

// A server that is stopped ends with its input, without a signal, and nothing of
// it is left. It is the SDK that stops it, by closing its transport.
func TestStop(t *testing.T) {
	eachKind(t, func(t *testing.T, k kind) {
		s, c, h := use(t, newAdapter(t), k.plain, k, adapter.StopPolicy{StdinGrace: time.Minute})
		if err := c.Close(); err != nil {
			t.Error(err)
		}
		h.isFree(t, time.Now().Add(soon))
		o := isEmpty(t, s)
		for _, step := range o.Cleanup.Steps {
			if step.Signal != 0 {
				t.Errorf("it got signal %d although it ends with its input", step.Signal)
			}
		}
		if o.Exit == nil || o.Exit.Code != 0 {
			t.Errorf("it ended with %+v", o.Exit)
		}
	})
}

// A server that ignores the end of its input and SIGTERM is killed within the
// bound, and nothing of it is left.
func TestStopOfADeafServer(t *testing.T) {
	eachKind(t, func(t *testing.T, k kind) {
		policy := adapter.StopPolicy{StdinGrace: time.Second, Grace: time.Second}
		s, c, h := use(t, newAdapter(t), k.deaf, k, policy)
		began := time.Now()
		if err := s.Stop(t.Context()); err != nil {
			t.Error(err)
		}
		took := time.Since(began)
		h.isFree(t, time.Now().Add(soon))
		if took < policy.StdinGrace+policy.Grace || took > s.Bound() {
			t.Errorf("Stop took %v, the bound is %v", took, s.Bound())
		}
		o := isEmpty(t, s)
		if !slices.ContainsFunc(o.Cleanup.Steps, func(step outcome.Step) bool { return step.Name == outcome.StepKill }) {
			t.Errorf("it was not deaf: %+v", o.Cleanup.Steps)
		}
		t.Logf("stopped in %v, ended %d", took, len(o.Cleanup.Ended))
		if err := c.Close(); err != nil {
			t.Logf("the client says %v", err) // that its connection was closed: it did not ask for that
		}
	})
}

// A call that is canceled returns at once, and the server goes on; one that is
// under way when the server is stopped fails, and nothing is left.
func TestCancelDuringACall(t *testing.T) {
	eachKind(t, func(t *testing.T, k kind) {
		s, c, h := use(t, newAdapter(t), k.plain, k, adapter.StopPolicy{})
		ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
		defer cancel()
		if _, err := c.CallTool(ctx, k.slow); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("the call that was canceled: %v", err)
		}
		if err := sum(t.Context(), c, k.sum); err != nil {
			t.Errorf("after a call that was canceled: %v", err)
		}
		failed := make(chan error, 1)
		go func() {
			_, err := c.CallTool(t.Context(), k.slow)
			failed <- err
		}()
		if err := sum(t.Context(), c, k.sum); err != nil { // the slow call is on its way
			t.Error(err)
		}
		if err := s.Stop(t.Context()); err != nil {
			t.Error(err)
		}
		h.isFree(t, time.Now().Add(soon))
		isEmpty(t, s)
		select {
		case err := <-failed:
			if err == nil {
				t.Error("a call that never ends has an answer")
			}
			t.Logf("the call that was under way: %v", err)
		case <-time.After(soon):
			t.Error("the call goes on although its server is gone")
		}
	})
}

// A server that dies during a call fails the call, and is known to have failed.
func TestServerDiesDuringACall(t *testing.T) {
	k := kinds["go-sdk"](t)
	s, c, h := use(t, newAdapter(t), k.plain, k, adapter.StopPolicy{})
	if _, err := c.CallTool(t.Context(), &mcp.CallToolParams{Name: "die"}); err == nil {
		t.Error("a call of a dead server has an answer")
	} else {
		t.Log(err)
	}
	o, err := s.Wait()
	h.isFree(t, time.Now().Add(soon))
	var exit *outcome.ExitError
	if o.Status != outcome.StatusFailed || !errors.As(err, &exit) || exit.Exit.Code != 3 || !strings.Contains(h.String(), "out of luck") {
		t.Errorf("%s, %v, stderr %q", o.Status, err, h)
	}
	if err := c.Close(); err != nil {
		t.Log(err)
	}
}

// A peer that is killed takes its servers with it, those that are deaf as well.
func TestPeerIsKilled(t *testing.T) {
	eachKind(t, func(t *testing.T, k kind) {
		h := newHold(t)
		began := killPeer(t, h, "peer", request{[]program{k.plain, k.deaf}, k.sum, k.slow})
		h.isFree(t, began.Add(adapter.Command{Stop: adapter.StopPolicy{StdinGrace: 2 * time.Second}}.Bound()))
		t.Logf("all is gone %v after the kill", time.Since(began))
	})
}

// The control: with the SDK's own transport a deaf server outlives its peer, and
// the hold shows it.
func TestControl(t *testing.T) {
	k := kinds["go-sdk"](t)
	h := newHold(t)
	k.deaf.Env = append(k.deaf.Env, lifeVar+"=10s")
	began := killPeer(t, h, "careless", request{[]program{k.deaf}, k.sum, k.slow})
	time.Sleep(3 * time.Second)
	h.isHeld(t)
	h.isFree(t, began.Add(time.Minute))
}

// request is what a peer is told to do.
type request struct {
	Programs  []program
	Sum, Slow *mcp.CallToolParams
}

// killPeer has a peer do what it is told, and kills it in the midst of a call to
// each server. It returns when that was.
func killPeer(t *testing.T, h *hold, role string, q request) time.Time {
	t.Helper()
	text, err := json.Marshal(q)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), self(t), string(text))
	cmd.Env = append(os.Environ(), roleVar+"="+role)
	cmd.Stderr, cmd.ExtraFiles = h.tree, []*os.File{h.tree}
	stdin, err := cmd.StdinPipe() // the peer lives no longer than this process
	if err != nil {
		t.Fatal(err)
	}
	defer stdin.Close()
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = cmd.Wait() }() // killed, as it has to be
	_ = h.tree.Close()
	if _, err := io.ReadFull(stdout, make([]byte, len("up\n"))); err != nil {
		t.Fatalf("the peer is not ready: %v: %s", err, h)
	}
	h.isHeld(t)
	began := time.Now()
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	return began
}

// peer has each server answer, leaves a call under way, and says that it is ready.
// Then it waits for its end.
func peer(arg string) error {
	a, err := adapter.New(adapter.Options{})
	if err != nil {
		return err
	}
	defer a.Shutdown(context.Background())
	return serveRequest(arg, func(p program) (mcp.Transport, error) {
		s, err := a.Start(context.Background(), p.command(os.NewFile(3, "hold")))
		if err != nil {
			return nil, err
		}
		return transport(s), nil
	})
}

// careless is a peer that starts its servers itself.
func careless(arg string) error {
	return serveRequest(arg, func(p program) (mcp.Transport, error) {
		cmd := exec.Command(p.Path, p.Args...)
		cmd.Env, cmd.Dir = p.Env, p.Dir
		cmd.Stderr, cmd.ExtraFiles = os.Stderr, []*os.File{os.NewFile(3, "hold")}
		return &mcp.CommandTransport{Command: cmd}, nil
	})
}

func serveRequest(arg string, start func(program) (mcp.Transport, error)) error {
	var q request
	if err := json.Unmarshal([]byte(arg), &q); err != nil {
		return err
	}
	ctx := context.Background()
	for _, p := range q.Programs {
		t, err := start(p)
		if err != nil {
			return err
		}
		c, err := connect(ctx, t)
		if err != nil {
			return err
		}
		go func() { _, _ = c.CallTool(ctx, q.Slow) }() // it never answers
		if err := sum(ctx, c, q.Sum); err != nil {
			return err
		}
	}
	fmt.Println("up")
	_, err := io.Copy(io.Discard, os.Stdin)
	return err
}
