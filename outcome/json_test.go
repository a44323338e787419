package outcome_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"math/rand"
	"os"
	"reflect"
	"strconv"
	"strings"
	"testing"
	"testing/quick"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/santhosh-tekuri/jsonschema/v6"

	"curfew/internal/verdict"
	. "curfew/outcome"
)

var (
	sampleStart = time.Date(2025, 6, 1, 12, 0, 0, 123456789, time.FixedZone("", 2*60*60))
	sampleProc  = Process{PID: 4711, Start: sampleStart, Name: "sleep"}
)

func code(n int) *Exit  { return &Exit{Code: n} }
func death(n int) *Exit { return &Exit{Code: -1, Signal: n} }

func afterStop(e *Exit) *Exit {
	c := *e
	c.AfterStop = true
	return &c
}

var errUser = errors.New("the user pressed stop")

// samples are one outcome of each status and one with everything in it.
func samples() map[string]Outcome {
	full := Outcome{
		ID:     "0f3a",
		Status: StatusUnknown,
		Cause:  CauseTimeout,
		Exit:   &Exit{Code: -1, Signal: 15, CoreDumped: true, AfterStop: true},
		Stdout: []byte("good \"morning\"\n\x00<&>\u2028\ufffd"),
		Stderr: []byte("\xff\xfe"),
		Output: Output{
			Stdout:          Stream{Seen: 1 << 40, Kept: 20, Truncated: true, HeadBytes: 10, WriteError: "no space left on device"},
			Stderr:          Stream{Seen: 2, Kept: 2},
			DrainIncomplete: true,
			StdinError:      "broken pipe",
			Abandoned:       1,
		},
		Started: sampleStart,
		Ended:   sampleStart.Add(time.Minute),
		Elapsed: time.Minute + time.Nanosecond,
		Usage:   Usage{User: 1500 * time.Microsecond, System: time.Nanosecond, MaxRSSBytes: 1 << 33},
		Cleanup: Cleanup{
			Result:     CleanupSurvivors,
			Proof:      ProofNone,
			HelperLost: true,
			Steps: []Step{{StepCloseStdin, 0, 0}, {StepSignalLeader, 15, time.Millisecond}, {StepSignalMembers, 15, 2 * time.Millisecond},
				{StepKill, 9, 3 * time.Second}, {StepEmpty, 0, 4 * time.Second}, {StepGiveUp, 0, 5 * time.Second}},
			Ended:     []Ended{{sampleProc, 9}, {Process{PID: 1}, 0}},
			EndedMore: 3,
			Survivors: []Survivor{{sampleProc, "D", "operation not permitted: it runs as uid 0"}},
			LeftAlive: []Process{sampleProc},
			Suspects:  []Process{sampleProc, {}},
			TempDirs:  []TempDir{{"/tmp/x", "device or resource busy"}},

			JournalError: "no space left on device",
			Elapsed:      5 * time.Second,
		},
	}
	full.Err = verdict.Err(&full, verdict.Why{Program: "sleep", Timeout: time.Minute})

	notStarted := Outcome{ID: "1", Status: StatusNotStarted, Cause: CauseStartFailed, Ended: sampleStart}
	notStarted.Err = verdict.Err(&notStarted, verdict.Why{Program: "sleep"})
	failed := Outcome{ID: "3", Status: StatusFailed, Cause: CauseExit, Exit: code(3), Stdout: []byte{}, Started: sampleStart,
		Ended: sampleStart, Cleanup: Cleanup{Result: CleanupEmpty, Proof: ProofNoChildren}}
	failed.Err = verdict.Err(&failed, verdict.Why{Program: "sleep"})
	incomplete := Outcome{ID: "7", Status: StatusSucceeded, Cause: CauseExit, Exit: code(0), Output: Output{Stderr: Stream{WriteError: "disk full"}}}
	incomplete.Err = verdict.Err(&incomplete, verdict.Why{Program: "sleep", Incomplete: []*CopyError{{"stderr", errors.New("disk full")}}})
	return map[string]Outcome{
		"incomplete":  incomplete,
		"unknown":     full,
		"not started": notStarted,
		"succeeded": {ID: "2", Status: StatusSucceeded, Cause: CauseExit, Exit: code(0), Started: sampleStart, Ended: sampleStart,
			Cleanup: Cleanup{Result: CleanupLeft, Proof: ProofChildList}},
		"failed": failed,
		"died": {ID: "4", Status: StatusFailed, Cause: CauseExit, Exit: death(11), Started: sampleStart, Ended: sampleStart,
			Cleanup: Cleanup{Result: CleanupEmpty, Proof: ProofScans}},
		"stopped": {ID: "5", Status: StatusStopped, Cause: CauseShutdown, Exit: afterStop(code(0)), Started: sampleStart,
			Ended: sampleStart, Cleanup: Cleanup{Result: CleanupUnverified, Proof: ProofNone}},
		"lost": {ID: "6", Status: StatusUnknown, Cause: CauseSupervisorLost, Started: sampleStart},
	}
}

// same compares outcomes as JSON has them: a list is empty or not, a time is
// an instant, an error is its text.
var same = cmp.Options{
	cmp.Comparer(func(a, b error) bool {
		if a == nil || b == nil {
			return a == nil && b == nil
		}
		return a.Error() == b.Error()
	}),
	cmp.Comparer(func(a, b time.Time) bool { return a.Equal(b) }),
	cmp.FilterPath(func(p cmp.Path) bool {
		s := p.Index(1).String()
		return s != ".Stdout" && s != ".Stderr"
	}, cmpopts.EquateEmpty()),
}

func mustMarshal(t testing.TB, o Outcome) []byte {
	t.Helper()
	data, err := json.Marshal(o)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func TestJSONRoundTrip(t *testing.T) {
	t.Parallel()
	for name, o := range samples() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var got Outcome
			if err := json.Unmarshal(mustMarshal(t, o), &got); err != nil {
				t.Fatal(err)
			}
			if d := cmp.Diff(o, got, same); d != "" {
				t.Errorf("(-want +got):\n%s", d)
			}
		})
	}
}

// The parts that are written alone have the form that they have in an outcome.
func TestJSONOfParts(t *testing.T) {
	t.Parallel()
	o := samples()["unknown"]
	var whole struct {
		Exit, Usage, Cleanup json.RawMessage
	}
	if err := json.Unmarshal(mustMarshal(t, o), &whole); err != nil {
		t.Fatal(err)
	}
	var cleanup struct {
		Ended    []json.RawMessage
		TempDirs []json.RawMessage `json:"temp_dirs"`
	}
	if err := json.Unmarshal(whole.Cleanup, &cleanup); err != nil {
		t.Fatal(err)
	}
	for _, part := range []struct {
		value, into any
		want        json.RawMessage
	}{
		{o.Exit, &Exit{}, whole.Exit},
		{&o.Usage, &Usage{}, whole.Usage},
		{&o.Cleanup, &Cleanup{}, whole.Cleanup},
		{&o.Cleanup.Ended[0], &Ended{}, cleanup.Ended[0]},
		{&o.Cleanup.TempDirs[0], &TempDir{}, cleanup.TempDirs[0]},
		{&Cleanup{}, &Cleanup{}, []byte("null")},
	} {
		got, err := json.Marshal(part.value)
		if err != nil || !bytes.Equal(got, part.want) {
			t.Errorf("%T: %v\n%s, want\n%s", part.value, err, got, part.want)
		}
		if err := json.Unmarshal(got, part.into); err != nil {
			t.Errorf("%T: %v", part.value, err)
		}
		if d := cmp.Diff(part.value, part.into, cmp.Comparer(time.Time.Equal), cmpopts.EquateEmpty()); d != "" {
			t.Errorf("(-want +got):\n%s", d)
		}
	}
	for text, want := range map[string]string{
		`{"code": 256}`: "outcome: read exit.code: 256 is not in 0 to 255",
		`{"Code": "x"}`: "outcome: read exit.code: cannot be a JSON string",
		`[]`:            "outcome: read exit: cannot be a JSON array",
	} {
		var e Exit
		if err := json.Unmarshal([]byte(text), &e); err == nil || err.Error() != want {
			t.Errorf("%s: %v, want %s", text, err, want)
		}
	}
}

// anyOutcome is a random outcome that an invocation can have.
type anyOutcome struct{ Outcome }

func (anyOutcome) Generate(r *rand.Rand, size int) reflect.Value {
	var f verdict.Facts
	for _, b := range []*bool{&f.ExecSeen, &f.ExecRuledOut, &f.StartFailed, &f.FailedBeforeRequest, &f.ExitBeforeStop,
		&f.StopBegan, &f.SupervisorLost, &f.SessionStop, &f.WaitTree, &f.EmptyBeforeStop} {
		*b = r.Intn(2) == 0
	}
	causes := []Cause{"", CauseTimeout, CauseCanceled, CauseShutdown, CauseIdle, CauseOutputLimit, CauseSupervisorLost, CauseHostLost}
	f.StopCause = causes[r.Intn(len(causes))]
	f.Exit = []*Exit{nil, code(0), code(r.Intn(256)), death(1 + r.Intn(127)), {Code: -1, Signal: 6, CoreDumped: true}}[r.Intn(5)]

	fill := func(into any) {
		v, ok := quick.Value(reflect.TypeOf(into).Elem(), r)
		if !ok {
			panic("cannot make a " + reflect.TypeOf(into).String())
		}
		reflect.ValueOf(into).Elem().Set(v)
	}
	count := func() int64 { return r.Int63() >> r.Intn(64) }
	span := func() time.Duration { return time.Duration(count()) }
	moment := func() time.Time {
		if r.Intn(4) == 0 {
			return time.Time{}
		}
		return time.Unix(r.Int63n(1<<37), r.Int63n(1e9)).In(time.FixedZone("", r.Intn(86400)-43200))
	}
	bin := func() (b []byte) {
		if r.Intn(3) > 0 {
			fill(&b)
		}
		return b
	}
	text := func() string {
		if r.Intn(2) == 0 {
			return ""
		}
		var s string
		fill(&s)
		return strings.ToValidUTF8(s, "?")
	}
	flag := func() bool { return r.Intn(2) == 0 }
	proc := func() Process { return Process{PID: int(count()), Start: moment(), Name: text()} }
	stream := func() Stream { return Stream{count(), count(), flag(), count(), text()} }

	var o Outcome
	o.ID = text()
	o.Status, o.Cause, o.Exit = verdict.Decide(f)
	o.Stdout, o.Stderr = bin(), bin()
	if flag() {
		o.Stdout = []byte(text())
	}
	o.Output = Output{stream(), stream(), flag(), text(), int(count())}
	o.Started, o.Ended, o.Elapsed = moment(), moment(), span()
	o.Usage = Usage{span(), span(), count()}
	if flag() {
		c := Cleanup{HelperLost: flag(), EndedMore: int(count()), Elapsed: span()}
		c.Result = []CleanupResult{CleanupEmpty, CleanupSurvivors, CleanupLeft, CleanupUnverified}[r.Intn(4)]
		c.Proof = []Proof{ProofNoChildren, ProofChildList, ProofScans, ProofNone}[r.Intn(4)]
		steps := []StepName{StepCloseStdin, StepSignalLeader, StepSignalMembers, StepKill, StepEmpty, StepGiveUp}
		for range r.Intn(3) {
			c.Steps = append(c.Steps, Step{steps[r.Intn(len(steps))], r.Intn(128), span()})
			c.Ended = append(c.Ended, Ended{proc(), r.Intn(128)})
			c.Survivors = append(c.Survivors, Survivor{proc(), text(), text()})
			c.LeftAlive = append(c.LeftAlive, proc())
			c.Suspects = append(c.Suspects, proc())
			c.TempDirs = append(c.TempDirs, TempDir{text(), text()})
			c.JournalError = text()
		}
		o.Cleanup = c
	}
	o.Err = verdict.Err(&o, verdict.Why{Program: text(), Cause: errors.New("x" + text()), Timeout: span()})
	return reflect.ValueOf(anyOutcome{o})
}

func TestJSONRoundTripOfAnyOutcome(t *testing.T) {
	t.Parallel()
	schema := compileSchema(t)
	property := func(a anyOutcome) bool {
		data := mustMarshal(t, a.Outcome)
		if err := validate(schema, data); err != nil {
			t.Errorf("%v\n%s", err, data)
		}
		var got Outcome
		if err := json.Unmarshal(data, &got); err != nil {
			t.Errorf("%v\n%s", err, data)
			return false
		}
		if d := cmp.Diff(a.Outcome, got, same); d != "" {
			t.Errorf("(-want +got):\n%s", d)
		}
		return !t.Failed()
	}
	if err := quick.Check(property, &quick.Config{MaxCount: 500}); err != nil {
		t.Error(err)
	}
}

func TestJSONText(t *testing.T) {
	t.Parallel()
	o := samples()["unknown"]
	o.Stdout, o.Exit = []byte("ok"), code(3)
	got := string(mustMarshal(t, o))
	for _, want := range []string{
		`{"version":1,"id":"0f3a","status":"outcome_unknown","cause":"timeout"`,
		`"error":"curfew: sleep: outcome unknown: timed out after 1m0s`,
		`"exit":{"code":3,"signal":null,"core_dumped":false,"after_stop":false}`,
		`"stdout":"ok","stderr_base64":"//4=","output":{`,
		`"started":"2025-06-01T10:00:00.123456789Z"`,
		`"elapsed_ms":60000.000001,"usage":{"user_ms":1.5,"system_ms":0.000001,`,
		`"name":"close_stdin","signal":null,"after_ms":0}`,
		`{"pid":0,"start":null,"name":""}`,
	} {
		if !strings.Contains(got, want) {
			t.Errorf("no %s in\n%s", want, got)
		}
	}

	o.Cleanup = Cleanup{Result: CleanupEmpty, Proof: ProofNoChildren}
	if got := string(mustMarshal(t, o)); strings.Count(got, "[]") != 6 {
		t.Errorf("empty lists must be arrays:\n%s", got)
	}
	o.Cleanup = Cleanup{}
	if got := string(mustMarshal(t, o)); strings.Contains(got, `"cleanup"`) {
		t.Errorf("a zero cleanup must be absent:\n%s", got)
	}
	o.Cleanup = Cleanup{EndedMore: 1}
	if got := string(mustMarshal(t, o)); !strings.Contains(got, `"cleanup":{"result":"unverified","proof":"none"`) {
		t.Errorf("a cleanup without a result must be unverified:\n%s", got)
	}
	o.Elapsed = -time.Second
	if got := string(mustMarshal(t, o)); !strings.Contains(got, `"elapsed_ms":0,`) {
		t.Errorf("a negative duration must be 0:\n%s", got)
	}
	o.Exit = death(126)
	if got := string(mustMarshal(t, o)); !strings.Contains(got, `"exit":{"code":null,"signal":126,"signal_name":"signal 126",`) {
		t.Errorf("a signal without a name:\n%s", got)
	}
}

func TestJSONTimeOutOfRange(t *testing.T) {
	t.Parallel()
	o := samples()["unknown"]
	o.Cleanup.Survivors[0].Start = time.Date(10000, 1, 1, 0, 0, 0, 0, time.UTC)
	_, err := o.MarshalJSON()
	if want := "outcome: write cleanup.survivors[0].start: the year 10000 is not one of RFC 3339"; err == nil || err.Error() != want {
		t.Errorf("got %v, want %s", err, want)
	}
}

func TestJSONErrorIsRecalled(t *testing.T) {
	t.Parallel()
	recall := func(o Outcome) error {
		var got Outcome
		if err := json.Unmarshal(mustMarshal(t, o), &got); err != nil {
			t.Fatal(err)
		}
		return got.Err
	}
	o := Outcome{Status: StatusUnknown, Cause: CauseCanceled}
	o.Err = verdict.Err(&o, verdict.Why{Program: "sleep", Cause: errUser})
	if err := recall(o); !errors.Is(err, ErrUnknown) || !errors.Is(err, context.Canceled) || errors.Is(err, ErrNotStarted) {
		t.Errorf("got %v", err)
	}
	o = Outcome{Status: StatusNotStarted, Cause: CauseTimeout}
	o.Err = verdict.Err(&o, verdict.Why{Program: "sleep"})
	if err := recall(o); !errors.Is(err, ErrNotStarted) || !errors.Is(err, context.DeadlineExceeded) || errors.Is(err, ErrUnknown) {
		t.Errorf("got %v", err)
	}
	o = Outcome{Status: StatusFailed, Cause: CauseExit, Exit: code(3)}
	o.Err = verdict.Err(&o, verdict.Why{Program: "sleep"})
	var exit *ExitError
	if err := recall(o); !errors.As(err, &exit) || exit.Exit != *code(3) || err.Error() != "curfew: sleep: exit code 3" {
		t.Errorf("got %v", err)
	}
}

// damage is one change to the JSON form of the sample "unknown" or "succeeded"
// that both the schema and the reader refuse.
var damage = []struct {
	name   string
	of     string
	path   string // to what is set, with dots
	value  string // JSON; "" removes
	field  string // that the error names; "" where only the schema refuses
	reason string
}{
	{"no version", "unknown", "version", ``, "version", "missing"},
	{"another version", "unknown", "version", `2`, "version", "2, and only 1 is known"},
	{"no status", "unknown", "status", ``, "status", "missing"},
	{"unknown status", "unknown", "status", `"fine"`, "status", `no such value: "fine"`},
	{"status of another type", "unknown", "status", `1`, "status", "cannot be a JSON number"},
	{"no cause", "unknown", "cause", ``, "cause", "missing"},
	{"unknown cause", "unknown", "cause", `"boredom"`, "cause", "no such value"},
	{"unknown result", "unknown", "cleanup.result", `"tidy"`, "cleanup.result", "no such value"},
	{"unknown proof", "unknown", "cleanup.proof", `"hope"`, "cleanup.proof", "no such value"},
	{"unknown step", "unknown", "cleanup.steps.1.name", `"plead"`, "cleanup.steps[1].name", "no such value"},
	{"text and base64", "unknown", "stdout_base64", `""`, "stdout", "given beside stdout_base64"},
	{"bad base64", "unknown", "stderr_base64", `"?"`, "stderr_base64", "illegal base64"},
	{"exit without code or signal", "unknown", "exit.signal", `null`, "exit", "neither"},
	{"exit with code and signal", "unknown", "exit.code", `0`, "exit", "both"},
	{"code too large", "succeeded", "exit.code", `256`, "exit.code", "256 is not in 0 to 255"},
	{"code below 0", "succeeded", "exit.code", `-1`, "exit.code", "-1 is not in 0 to 255"},
	{"signal 0", "unknown", "exit.signal", `0`, "exit.signal", "0 is not a signal"},
	{"signal too large", "unknown", "exit.signal", `128`, "exit.signal", "128 is not in 1 to 127"},
	{"signal as text", "unknown", "exit.signal", `"SIGTERM"`, "exit.signal", "cannot be a JSON string"},
	{"signal of a step", "unknown", "cleanup.steps.1.signal", `-1`, "cleanup.steps[1].signal", "-1 is not in 1 to 127"},
	{"signal of an ended process", "unknown", "cleanup.ended.0.last_signal", `200`, "cleanup.ended[0].last_signal", "200 is not"},
	{"a code with a core dump", "succeeded", "exit.core_dumped", `true`, "exit.core_dumped", "true, with a code"},
	{"time of another type", "unknown", "started", `1`, "started", "must be a string or null"},
	{"time in words", "unknown", "ended", `"noon"`, "ended", "not a time in RFC 3339"},
	{"time without a zone", "unknown", "cleanup.suspects.0.start", `"2025-06-01T10:00:00"`, "cleanup.suspects[0].start", "not a time in RFC 3339"},
	{"duration in words", "unknown", "elapsed_ms", `"1s"`, "elapsed_ms", "must be a number"},
	{"duration as an object", "unknown", "usage.user_ms", `{}`, "usage.user_ms", "must be a number"},
	{"negative duration", "unknown", "cleanup.elapsed_ms", `-1`, "cleanup.elapsed_ms", "-1 is negative"},
	{"negative count", "unknown", "output.stdout.seen_bytes", `-1`, "output.stdout.seen_bytes", "-1 is negative"},
	{"negative pid", "unknown", "cleanup.survivors.0.pid", `-1`, "cleanup.survivors[0].pid", "-1 is negative"},
	{"a pid with a fraction", "unknown", "cleanup.ended.0.pid", `1.5`, "cleanup.ended.pid", "cannot be a JSON number 1.5"},
	{"an object for a list", "unknown", "cleanup.ended", `{}`, "cleanup.ended", "cannot be a JSON object"},
	{"a list for the output", "unknown", "output", `[]`, "output", "cannot be a JSON array"},
	{"success without an exit", "succeeded", "exit", `null`, "exit", "missing, with the status succeeded"},
	{"success with another code", "succeeded", "exit.code", `3`, "exit.code", "exit code 3, with the status succeeded"},
	{"success after a stop", "succeeded", "exit.after_stop", `true`, "exit.after_stop", "true, with the status succeeded"},
	{"success by a timeout", "succeeded", "cause", `"timeout"`, "cause", "timeout, with the status succeeded"},
	{"success with an error", "succeeded", "error", `"but"`, "error", "given, with the status succeeded"},
	{"failure with code 0", "succeeded", "status", `"failed"`, "exit.code", "exit code 0, with the status failed"},
	{"not started and an exit", "unknown", "status", `"not_started"`, "exit", "with the status not_started"},
	{"not started and ended by itself", "not started", "cause", `"exit"`, "cause", "exit, with the status not_started"},
	{"stopped by a timeout", "stopped", "cause", `"timeout"`, "cause", "timeout, with the status stopped"},
	{"stopped and not ended", "stopped", "exit", `null`, "exit", "missing, with the status stopped"},
	{"stopped with an error", "stopped", "error", `"but"`, "error", "given, with the status stopped"},
	{"unknown and ended by itself", "unknown", "cause", `"exit"`, "cause", "exit, with the status outcome_unknown"},
	{"unknown and not started", "unknown", "cause", `"start_failed"`, "cause", "start_failed, with the status outcome_unknown"},

	// The reader must accept these, which a later or earlier build can write.
	{"a field too many", "unknown", "mood", `"good"`, "", ""},
	{"a field too many below", "unknown", "cleanup.mood", `"good"`, "", ""},
	{"a field too few", "unknown", "output", ``, "", ""},
	{"a list too few", "unknown", "cleanup.suspects", ``, "", ""},
	{"no list", "unknown", "cleanup.suspects", `null`, "", ""},
	{"a signal without its name", "unknown", "exit.signal_name", ``, "", ""},
}

// set returns data with one value replaced.
func set(t *testing.T, data []byte, path, value string) []byte {
	t.Helper()
	var doc any
	if err := json.Unmarshal(data, &doc); err != nil {
		t.Fatal(err)
	}
	keys := strings.Split(path, ".")
	at := doc
	for _, k := range keys[:len(keys)-1] {
		if list, ok := at.([]any); ok {
			i, err := strconv.Atoi(k)
			if err != nil {
				t.Fatal(err)
			}
			at = list[i]
		} else {
			at = at.(map[string]any)[k]
		}
	}
	last := keys[len(keys)-1]
	if value == "" {
		delete(at.(map[string]any), last)
	} else {
		at.(map[string]any)[last] = json.RawMessage(value)
	}
	data, err := json.Marshal(doc)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func TestJSONDamaged(t *testing.T) {
	t.Parallel()
	schema := compileSchema(t)
	for _, tt := range damage {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			data := set(t, mustMarshal(t, samples()[tt.of]), tt.path, tt.value)
			if validate(schema, data) == nil {
				t.Errorf("the schema takes it:\n%s", data)
			}
			got := Outcome{ID: "before"}
			err := json.Unmarshal(data, &got)
			switch {
			case tt.field == "" && err != nil:
				t.Errorf("the reader refuses it: %v", err)
			case tt.field == "":
			case err == nil:
				t.Errorf("the reader takes it:\n%s", data)
			case !strings.HasPrefix(err.Error(), "outcome: read "+tt.field+": ") || !strings.Contains(err.Error(), tt.reason):
				t.Errorf("got %q, want %q in field %s", err, tt.reason, tt.field)
			case !reflect.DeepEqual(got, Outcome{ID: "before"}):
				t.Errorf("the outcome was changed: %+v", got)
			}
		})
	}
}

// These are JSON schema integers and numbers that a Go integer cannot hold.
func TestJSONTooLarge(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ path, value, want string }{
		{"elapsed_ms", `9223372036855`, "outcome: read elapsed_ms: 9223372036855 is too large"},
		{"elapsed_ms", `1e999999999`, "outcome: read elapsed_ms: 1e999999999 is too large"},
		{"elapsed_ms", `1e13`, "outcome: read elapsed_ms: 1e13 is too large"},
		{"output.stderr.kept_bytes", `9223372036854775808`, "outcome: read output.stderr.kept_bytes: cannot be a JSON number 9223372036854775808"},
	} {
		var got Outcome
		err := json.Unmarshal(set(t, mustMarshal(t, samples()["unknown"]), tt.path, tt.value), &got)
		if err == nil || err.Error() != tt.want {
			t.Errorf("got %v, want %s", err, tt.want)
		}
	}
}

func TestJSONNotAnOutcome(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		`[]`:  "outcome: read outcome: cannot be a JSON array",
		`"x"`: "outcome: read outcome: cannot be a JSON string",
		`{}`:  "outcome: read version: missing",
		``:    "outcome: read: unexpected end of JSON input",
		`{"`:  "outcome: read: unexpected end of JSON input",
	} {
		var o Outcome
		if err := o.UnmarshalJSON([]byte(in)); err == nil || err.Error() != want {
			t.Errorf("%s: got %v, want %s", in, err, want)
		}
	}
	o := Outcome{ID: "before"}
	if err := json.Unmarshal([]byte(" null "), &o); err != nil || o.ID != "before" {
		t.Errorf("null: got %v, %+v", err, o)
	}
}

const schemaFile = "../docs/outcome.schema.json"

func compileSchema(t testing.TB) *jsonschema.Schema {
	t.Helper()
	data, err := os.ReadFile(schemaFile)
	if err != nil {
		t.Fatal(err)
	}
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(data))
	if err != nil {
		t.Fatal(err)
	}
	c := jsonschema.NewCompiler()
	c.AssertFormat()
	c.AssertContent()
	if err := c.AddResource("urn:curfew:outcome", doc); err != nil {
		t.Fatal(err)
	}
	schema, err := c.Compile("urn:curfew:outcome")
	if err != nil {
		t.Fatal(err)
	}
	return schema
}

func validate(schema *jsonschema.Schema, data []byte) error {
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(data))
	if err != nil {
		return err
	}
	return schema.Validate(doc)
}

func TestSchemaTakesSamples(t *testing.T) {
	t.Parallel()
	schema := compileSchema(t)
	for name, o := range samples() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			data := mustMarshal(t, o)
			if err := validate(schema, data); err != nil {
				t.Errorf("%v\n%s", err, data)
			}
		})
	}
}

// The schema describes every field that is written, and no other: the
// sample has all but the alternatives, which exclude each other.
func TestSchemaRefusesAnyOtherField(t *testing.T) {
	t.Parallel()
	schema := compileSchema(t)
	var doc any
	if err := json.Unmarshal(mustMarshal(t, samples()["unknown"]), &doc); err != nil {
		t.Fatal(err)
	}
	var walk func(path string, v any)
	walk = func(path string, v any) {
		switch v := v.(type) {
		case []any:
			for _, e := range v {
				walk(path+"[]", e)
			}
		case map[string]any:
			v["mood"] = "good"
			data, err := json.Marshal(doc)
			if err != nil {
				t.Fatal(err)
			}
			if validate(schema, data) == nil {
				t.Errorf("the schema takes another field in %q", path)
			}
			delete(v, "mood")
			for k, e := range v {
				walk(path+"."+k, e)
			}
		}
	}
	walk("", doc)
}

func FuzzOutcomeJSON(f *testing.F) {
	for _, o := range samples() {
		f.Add(mustMarshal(f, o))
	}
	f.Add([]byte(`{"status":"succeeded","cause":"exit","exit":{"code":0}}`))
	f.Add([]byte(`{"status":"outcome_unknown","cause":"timeout","elapsed_ms":1e-6,"started":"0000-01-01T00:00:00+23:59"}`))
	schema := compileSchema(f)
	f.Fuzz(func(t *testing.T, data []byte) {
		var o Outcome
		if err := o.UnmarshalJSON(data); err != nil {
			if !strings.HasPrefix(err.Error(), "outcome: read") {
				t.Errorf("error without origin: %v", err)
			}
			return
		}
		if o.Status == "" { // null
			return
		}
		again := mustMarshal(t, o)
		if err := validate(schema, again); err != nil {
			t.Errorf("%v\n%s", err, again)
		}
		var got Outcome
		if err := json.Unmarshal(again, &got); err != nil {
			t.Fatalf("%v\n%s", err, again)
		}
		if d := cmp.Diff(o, got, same); d != "" {
			t.Errorf("(-want +got):\n%s", d)
		}
	})
}
