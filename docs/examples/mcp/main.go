// Command mcp is a small MCP client. It keeps three servers, which are this
// program itself with the argument serve, and shows how each of them ends.
package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"curfew/adapter"
	"curfew/outcome"
)

// server is an MCP server on stdio, and the calls that wait for its answer.
type server struct {
	*adapter.Session
	name string
	out  chan []byte // frames on their way to its stdin

	mu      sync.Mutex
	last    int
	pending map[int]chan message // nil: no answer comes any more
}

type message struct {
	JSONRPC string          `json:"jsonrpc"`
	ID      *int            `json:"id,omitempty"`
	Method  string          `json:"method,omitempty"`
	Params  json.RawMessage `json:"params,omitempty"`
	Result  json.RawMessage `json:"result,omitempty"`
	Error   json.RawMessage `json:"error,omitempty"`
}

const (
	hello    = `{"protocolVersion":"2025-06-18","capabilities":{},"clientInfo":{"name":"example","version":"1"}}`
	patience = time.Second // with a server that has ended, or says no more
)

// launch starts a server and has it introduce itself. If that fails, nothing of
// it is left.
func launch(ctx context.Context, a *adapter.Adapter, name, owner string) (*server, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	session, err := a.Start(ctx, adapter.Command{
		Path: self, Args: []string{"serve", name}, Owner: owner,
		Stdin: adapter.Pipe, Stdout: adapter.Pipe, IdleTimeout: 10 * time.Minute,
	})
	if err != nil {
		return nil, err
	}
	s := &server{Session: session, name: name, out: make(chan []byte), pending: map[int]chan message{}}
	go s.write()
	go s.read()
	if _, err := s.call(ctx, "initialize", hello); err != nil {
		return nil, errors.Join(err, s.Stop(context.Background()))
	}
	return s, s.send(ctx, message{Method: "notifications/initialized"})
}

// write is the only one to write to the server, so that one that does not read
// holds up nobody beyond the deadline of the call. A stop ends a Write.
func (s *server) write() {
	for {
		select {
		case frame := <-s.out:
			_, _ = s.Stdin().Write(frame) // if it cannot, no answer comes
		case <-s.Done():
			return
		}
	}
}

// read hands out the answers, up to the last that a dying server has written.
// Then it fails the calls that still wait.
func (s *server) read() {
	go func() {
		<-s.Exited()
		select {
		case <-s.Done():
		case <-time.After(patience): // what it has left behind holds the pipe
			s.Stdout().Close()
		}
	}()
	for in, err := bufio.NewReader(s.Stdout()), error(nil); err == nil; {
		var line []byte
		line, err = in.ReadBytes('\n')
		var m message
		if json.Unmarshal(line, &m) != nil || m.ID == nil || m.Method != "" {
			continue // a log line, a notification, or a request, which a full client answers
		}
		s.mu.Lock()
		if answer := s.pending[*m.ID]; answer != nil {
			answer <- m
			delete(s.pending, *m.ID)
		}
		s.mu.Unlock()
	}
	select { // a moment for the exit, and for the last of stderr
	case <-s.Done():
	case <-time.After(patience):
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, answer := range s.pending {
		close(answer)
	}
	s.pending = nil
}

func (s *server) send(ctx context.Context, m message) error {
	m.JSONRPC = "2.0"
	frame, err := json.Marshal(m)
	if err != nil {
		return err
	}
	select {
	case s.out <- append(frame, '\n'):
		return nil
	case <-s.Done():
		return s.lost()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// call asks the server and waits for the answer, for its end, or for the end of
// ctx.
func (s *server) call(ctx context.Context, method, params string) (json.RawMessage, error) {
	answer := make(chan message, 1)
	s.mu.Lock()
	if s.pending == nil {
		s.mu.Unlock()
		return nil, s.lost()
	}
	s.last++
	id := s.last
	s.pending[id] = answer
	s.mu.Unlock()

	err := s.send(ctx, message{ID: &id, Method: method, Params: json.RawMessage(params)})
	if err == nil {
		select {
		case m, ok := <-answer:
			if !ok {
				return nil, s.lost()
			}
			if m.Error != nil {
				return nil, fmt.Errorf("%s: %s: %s", s.name, method, m.Error)
			}
			return m.Result, nil
		case <-ctx.Done():
			err = context.Cause(ctx)
			go func() { // it is polite to say so, and not worth waiting for
				ctx, cancel := context.WithTimeout(context.Background(), patience)
				defer cancel()
				_ = s.send(ctx, message{Method: "notifications/cancelled", Params: fmt.Appendf(nil, `{"requestId":%d}`, id)})
			}()
		}
	}
	s.mu.Lock()
	delete(s.pending, id)
	s.mu.Unlock()
	return nil, fmt.Errorf("%s: %s: %w", s.name, method, err)
}

// lost says what is known of a server that does not answer any more. Whether a
// call that was under way has had its effect is not.
func (s *server) lost() error {
	how := "it has closed its output"
	select {
	case <-s.Exited():
		how = "it has exited" // and has left something behind, which is being ended
	default:
	}
	if o, over := s.Outcome(); over {
		how = string(o.Status)
		if o.Exit != nil {
			how += ", " + o.Exit.String()
		}
	}
	_, stderr := s.Kept()
	return fmt.Errorf("%s: %w: %s; stderr %q", s.name, outcome.ErrUnknown, how, bytes.TrimSpace(stderr))
}

func run() (err error) {
	a, err := adapter.New(adapter.Options{})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, a.Shutdown(context.Background())) }()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()

	servers := map[string]*server{}
	for _, is := range []struct{ name, owner string }{{"files", "ann"}, {"mail", "ben"}, {"web", "cem"}} {
		s, err := launch(ctx, a, is.name, is.owner)
		if err != nil {
			return err
		}
		servers[is.name] = s
		tools, err := s.call(ctx, "tools/list", `{}`)
		if err != nil {
			return err
		}
		fmt.Printf("%s, of %s, has %s\n", is.name, s.Owner(), tools)
	}

	// One does not answer in time: the call ends, the server goes on.
	short, cancel := context.WithTimeout(ctx, 100*time.Millisecond)
	defer cancel()
	_, err = servers["files"].call(short, "tools/call", `{"name":"wait"}`)
	fmt.Println(err)

	// One dies during a call: that fails at once. It is started again when nothing
	// of it is left, and asked again only because this tool may be called twice.
	_, err = servers["web"].call(ctx, "tools/call", `{"name":"crash"}`)
	fmt.Println(err)
	if err := servers["web"].Stop(ctx); err != nil {
		return err
	}
	if servers["web"], err = launch(ctx, a, "web", "cem"); err != nil {
		return err
	}

	// One owner goes, and what the others have is not touched.
	if _, err := a.StopOwner(ctx, "ben"); err != nil {
		return err
	}
	for _, name := range []string{"files", "mail", "web"} {
		_, err := servers[name].call(ctx, "ping", `{}`)
		fmt.Println(name, "answers:", err == nil)
	}

	if err := a.Shutdown(ctx); err != nil { // something is left: the error says what
		return err
	}
	for _, name := range []string{"files", "mail", "web"} {
		o, _ := servers[name].Outcome()
		fmt.Println(name, o.Status, o.Cause, o.Cleanup.Result)
	}
	return nil
}

func main() {
	if len(os.Args) == 3 && os.Args[1] == "serve" {
		serve(os.Args[2])
		return
	}
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// serve is a server: it answers until its input ends.
func serve(name string) {
	for in := bufio.NewScanner(os.Stdin); in.Scan(); {
		var m message
		if json.Unmarshal(in.Bytes(), &m) != nil || m.ID == nil {
			continue
		}
		result := `{}`
		switch {
		case m.Method == "initialize":
			result = `{"protocolVersion":"2025-06-18","capabilities":{"tools":{}},"serverInfo":{"name":"example","version":"1"}}`
		case m.Method == "tools/list":
			result = `{"tools":[{"name":"crash"},{"name":"wait"}]}`
		case bytes.Contains(m.Params, []byte("crash")):
			fmt.Fprintln(os.Stderr, name+" has run out of luck")
			os.Exit(3)
		case bytes.Contains(m.Params, []byte("wait")):
			continue
		}
		fmt.Printf(`{"jsonrpc":"2.0","id":%d,"result":%s}`+"\n", *m.ID, result)
	}
}
