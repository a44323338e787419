package outcome

import (
	"bytes"
	"cmp"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"
)

// JSONVersion is the version of the JSON form, which reports have in the field "version".
// It changes when a reader of this version would misunderstand a new form, and not when a
// field is added.
const JSONVersion = 1

// The JSON form, in the order in which it is written. Reports, the records of the journal
// and the messages between a caller and its helpers have it. The names of the fields stand
// here alone: renaming a field of the exported types changes none of them. What can be
// refused when it is read is raw here, so that the refusal can name the field.
type (
	jsonOutcome struct {
		Version      int          `json:"version"`
		ID           string       `json:"id"`
		Status       Status       `json:"status"`
		Cause        Cause        `json:"cause"`
		Error        *string      `json:"error,omitempty"`
		Exit         *jsonExit    `json:"exit"`
		Stdout       *string      `json:"stdout,omitempty"`
		StdoutBase64 *string      `json:"stdout_base64,omitempty"`
		Stderr       *string      `json:"stderr,omitempty"`
		StderrBase64 *string      `json:"stderr_base64,omitempty"`
		Output       jsonOutput   `json:"output"`
		Started      raw          `json:"started"`
		Ended        raw          `json:"ended"`
		ElapsedMS    raw          `json:"elapsed_ms"`
		Usage        jsonUsage    `json:"usage"`
		Cleanup      *jsonCleanup `json:"cleanup,omitempty"`
	}
	jsonExit struct {
		Code       *int   `json:"code"`
		Signal     *int   `json:"signal"`
		SignalName string `json:"signal_name,omitempty"`
		CoreDumped bool   `json:"core_dumped"`
		AfterStop  bool   `json:"after_stop"`
	}
	jsonOutput struct {
		Stdout          jsonStream `json:"stdout"`
		Stderr          jsonStream `json:"stderr"`
		DrainIncomplete bool       `json:"drain_incomplete"`
		StdinError      string     `json:"stdin_error,omitempty"`
		Abandoned       int        `json:"abandoned"`
	}
	jsonStream struct {
		SeenBytes  int64  `json:"seen_bytes"`
		KeptBytes  int64  `json:"kept_bytes"`
		Truncated  bool   `json:"truncated"`
		HeadBytes  int64  `json:"head_bytes"`
		WriteError string `json:"write_error,omitempty"`
	}
	jsonUsage struct {
		UserMS      raw   `json:"user_ms"`
		SystemMS    raw   `json:"system_ms"`
		MaxRSSBytes int64 `json:"max_rss_bytes"`
	}
	jsonCleanup struct {
		Result     CleanupResult  `json:"result"`
		Proof      Proof          `json:"proof"`
		HelperLost bool           `json:"helper_lost"`
		Steps      []jsonStep     `json:"steps"`
		Ended      []jsonEnded    `json:"ended"`
		EndedMore  int            `json:"ended_more"`
		Survivors  []jsonSurvivor `json:"survivors"`
		LeftAlive  []jsonProcess  `json:"left_alive"`
		Suspects   []jsonProcess  `json:"suspects"`
		TempDirs   []TempDir      `json:"temp_dirs"`
		Journal    string         `json:"journal_error,omitempty"`
		ElapsedMS  raw            `json:"elapsed_ms"`
	}
	jsonStep struct {
		Name       StepName `json:"name"`
		Signal     *int     `json:"signal"`
		SignalName string   `json:"signal_name,omitempty"`
		AfterMS    raw      `json:"after_ms"`
	}
	jsonProcess struct {
		PID   int    `json:"pid"`
		Start raw    `json:"start"`
		Name  string `json:"name"`
	}
	jsonEnded struct {
		jsonProcess
		LastSignal     *int   `json:"last_signal"`
		LastSignalName string `json:"last_signal_name,omitempty"`
	}
	jsonSurvivor struct {
		jsonProcess
		State  string `json:"state"`
		Reason string `json:"reason"`
	}
	raw = json.RawMessage
)

// MarshalJSON returns the form that docs/outcome.schema.json describes. Names
// are in snake_case, times in RFC 3339 and UTC, durations in milliseconds with
// up to six decimals, which loses nothing. Output that is not UTF-8 is in
// stdout_base64 and stderr_base64; in other text (file names, for example) U+FFFD
// stands for what is not UTF-8. Err is written as its text. Signal names are those
// of the system that writes. A negative duration, which a clock that was set back can
// leave, is written as 0.
//
// A zero Cleanup is left out; within one that is not, an empty Result reads
// "unverified". The only error is a time beyond the year 9999.
func (o Outcome) MarshalJSON() ([]byte, error) {
	w := writer{}
	j := jsonOutcome{
		Version:   JSONVersion,
		ID:        o.ID,
		Status:    o.Status,
		Cause:     o.Cause,
		Output:    writeOutput(o.Output),
		Started:   w.time("started", o.Started),
		Ended:     w.time("ended", o.Ended),
		ElapsedMS: millis(o.Elapsed),
		Usage:     writeUsage(o.Usage),
		Cleanup:   w.cleanup(o.Cleanup),
	}
	if o.Err != nil {
		text := o.Err.Error()
		j.Error = &text
	}
	if o.Exit != nil {
		j.Exit = writeExit(*o.Exit)
	}
	j.Stdout, j.StdoutBase64 = textOrBase64(o.Stdout)
	j.Stderr, j.StderrBase64 = textOrBase64(o.Stderr)
	if w.err != nil {
		return nil, w.err
	}
	return json.Marshal(j)
}

// MarshalJSON returns the form that the exit has in an Outcome.
func (e Exit) MarshalJSON() ([]byte, error) { return json.Marshal(writeExit(e)) }

func writeExit(e Exit) *jsonExit {
	j := &jsonExit{CoreDumped: e.CoreDumped, AfterStop: e.AfterStop}
	j.Signal, j.SignalName = signalFields(e.Signal)
	if e.Code >= 0 {
		j.Code = &e.Code
	}
	return j
}

// MarshalJSON returns the form that the usage has in an Outcome.
func (u Usage) MarshalJSON() ([]byte, error) { return json.Marshal(writeUsage(u)) }

func writeUsage(u Usage) jsonUsage {
	return jsonUsage{millis(u.User), millis(u.System), u.MaxRSSBytes}
}

func writeOutput(o Output) jsonOutput {
	return jsonOutput{
		Stdout:          writeStream(o.Stdout),
		Stderr:          writeStream(o.Stderr),
		DrainIncomplete: o.DrainIncomplete,
		StdinError:      o.StdinError,
		Abandoned:       o.Abandoned,
	}
}

func writeStream(s Stream) jsonStream {
	return jsonStream{s.Seen, s.Kept, s.Truncated, s.HeadBytes, s.WriteError}
}

// MarshalJSON returns the form that the cleanup has in an Outcome; a zero one is null.
func (c Cleanup) MarshalJSON() ([]byte, error) {
	w := writer{}
	j := w.cleanup(c)
	if w.err != nil {
		return nil, w.err
	}
	return json.Marshal(j)
}

// MarshalJSON returns the form that the process has in the Cleanup of an Outcome.
func (e Ended) MarshalJSON() ([]byte, error) {
	w := writer{}
	j := w.ended("ended", e)
	if w.err != nil {
		return nil, w.err
	}
	return json.Marshal(j)
}

// writer keeps the first error.
type writer struct{ err error }

func (w *writer) cleanup(c Cleanup) *jsonCleanup {
	j := &jsonCleanup{
		Result:     c.Result,
		Proof:      c.Proof,
		HelperLost: c.HelperLost,
		Steps:      make([]jsonStep, 0, len(c.Steps)),
		Ended:      make([]jsonEnded, 0, len(c.Ended)),
		EndedMore:  c.EndedMore,
		Survivors:  make([]jsonSurvivor, 0, len(c.Survivors)),
		LeftAlive:  w.processes("cleanup.left_alive", c.LeftAlive),
		Suspects:   w.processes("cleanup.suspects", c.Suspects),
		TempDirs:   append([]TempDir{}, c.TempDirs...),
		Journal:    c.JournalError,
		ElapsedMS:  millis(c.Elapsed),
	}
	for _, s := range c.Steps {
		n, name := signalFields(s.Signal)
		j.Steps = append(j.Steps, jsonStep{s.Name, n, name, millis(s.After)})
	}
	for i, e := range c.Ended {
		j.Ended = append(j.Ended, w.ended(at("cleanup.ended", i), e))
	}
	for i, s := range c.Survivors {
		j.Survivors = append(j.Survivors, jsonSurvivor{w.process(at("cleanup.survivors", i), s.Process), s.State, s.Reason})
	}
	if c.isZero() {
		return nil
	}
	if c.Result == "" {
		j.Result = CleanupUnverified
	}
	if c.Proof == "" {
		j.Proof = ProofNone
	}
	return j
}

func (c Cleanup) isZero() bool {
	return c.Result == "" && c.Proof == "" && !c.HelperLost && c.EndedMore == 0 && c.Elapsed == 0 && c.JournalError == "" &&
		len(c.Steps)+len(c.Ended)+len(c.Survivors)+len(c.LeftAlive)+len(c.Suspects)+len(c.TempDirs) == 0
}

func (w *writer) ended(field string, e Ended) jsonEnded {
	n, name := signalFields(e.LastSignal)
	return jsonEnded{w.process(field, e.Process), n, name}
}

func (w *writer) processes(field string, ps []Process) []jsonProcess {
	js := make([]jsonProcess, 0, len(ps))
	for i, p := range ps {
		js = append(js, w.process(at(field, i), p))
	}
	return js
}

func (w *writer) process(field string, p Process) jsonProcess {
	return jsonProcess{PID: p.PID, Start: w.time(field+".start", p.Start), Name: p.Name}
}

func (w *writer) time(field string, t time.Time) raw {
	if t.IsZero() {
		return raw("null")
	}
	t = t.UTC()
	if y := t.Year(); y < 0 || y > 9999 {
		if w.err == nil {
			w.err = fmt.Errorf("outcome: write %s: the year %d is not one of RFC 3339", field, y)
		}
		return raw("null")
	}
	return raw(t.AppendFormat(nil, `"`+time.RFC3339Nano+`"`))
}

// millis writes d exactly: a float64 has too few digits for a long one.
func millis(d time.Duration) raw {
	d = max(d, 0)
	s := strconv.FormatInt(int64(d/time.Millisecond), 10)
	if frac := d % time.Millisecond; frac != 0 {
		s += strings.TrimRight(fmt.Sprintf(".%06d", frac), "0")
	}
	return raw(s)
}

func signalFields(n int) (*int, string) {
	if n == 0 {
		return nil, ""
	}
	return &n, SignalName(n)
}

func textOrBase64(b []byte) (text, base *string) {
	if b == nil {
		return nil, nil
	}
	if utf8.Valid(b) {
		s := string(b)
		return &s, nil
	}
	s := base64.StdEncoding.EncodeToString(b)
	return nil, &s
}

func at(list string, i int) string { return list + "[" + strconv.Itoa(i) + "]" }

// UnmarshalJSON reads what MarshalJSON wrote, and refuses what no invocation
// can have had: an unknown status, a success without the exit code 0, output
// both as text and in base64. The error names the field, and o is then as it
// was. It ignores fields that it does not know. version, status and cause must be there;
// every version but JSONVersion is refused.
//
// Err has the text that it had. errors.Is and errors.As find in it what Status
// and Cause imply, for example ErrUnknown and context.Canceled, but not the caller's own
// cause.
func (o *Outcome) UnmarshalJSON(data []byte) error { return read(data, o, "", (*reader).outcome) }

// UnmarshalJSON reads what MarshalJSON wrote, and refuses what no process can have had.
func (e *Exit) UnmarshalJSON(data []byte) error { return read(data, e, "exit", (*reader).exit) }

// UnmarshalJSON reads what MarshalJSON wrote.
func (u *Usage) UnmarshalJSON(data []byte) error { return read(data, u, "usage", (*reader).usage) }

// UnmarshalJSON reads what MarshalJSON wrote, and refuses what no cleanup can have been.
func (c *Cleanup) UnmarshalJSON(data []byte) error {
	return read(data, c, "cleanup", (*reader).cleanup)
}

// UnmarshalJSON reads what MarshalJSON wrote.
func (e *Ended) UnmarshalJSON(data []byte) error { return read(data, e, "ended", (*reader).ended) }

// read reads data, the JSON form J of a T at the given field, with convert.
func read[T, J any](data []byte, into *T, field string, convert func(r *reader, field string, j *J) T) error {
	if bytes.Equal(bytes.TrimSpace(data), []byte("null")) {
		return nil // as is the custom of encoding/json
	}
	var j J
	if err := json.Unmarshal(data, &j); err != nil {
		var bad *json.UnmarshalTypeError
		if !errors.As(err, &bad) {
			return fmt.Errorf("outcome: read: %w", err)
		}
		// encoding/json names the embedded struct too.
		name := join(field, strings.ReplaceAll(bad.Field, "jsonProcess.", ""))
		return fmt.Errorf("outcome: read %s: cannot be a JSON %s", cmp.Or(name, "outcome"), bad.Value)
	}
	r := reader{}
	v := convert(&r, field, &j)
	if r.err != nil {
		return r.err
	}
	*into = v
	return nil
}

// join returns the field name of what is at field, which is "" for the outcome itself.
func join(field, name string) string {
	if field == "" || name == "" {
		return field + name
	}
	return field + "." + name
}

// reader keeps the first error.
type reader struct{ err error }

func (r *reader) refuse(field, format string, args ...any) {
	if r.err == nil {
		r.err = fmt.Errorf("outcome: read "+field+": "+format, args...)
	}
}

func (r *reader) outcome(_ string, j *jsonOutcome) Outcome {
	switch j.Version {
	case JSONVersion:
	case 0:
		r.refuse("version", "missing")
	default:
		r.refuse("version", "%d, and only %d is known", j.Version, JSONVersion)
	}
	o := Outcome{
		ID:     j.ID,
		Status: oneOf(r, "status", j.Status, StatusNotStarted, StatusSucceeded, StatusFailed, StatusUnknown, StatusStopped),
		Cause: oneOf(r, "cause", j.Cause, CauseExit, CauseTimeout, CauseCanceled, CauseShutdown, CauseIdle,
			CauseOutputLimit, CauseSupervisorLost, CauseHostLost, CauseStartFailed),
		Stdout: r.bytes("stdout", j.Stdout, j.StdoutBase64),
		Stderr: r.bytes("stderr", j.Stderr, j.StderrBase64),
		Output: Output{
			Stdout:          r.stream("output.stdout", j.Output.Stdout),
			Stderr:          r.stream("output.stderr", j.Output.Stderr),
			DrainIncomplete: j.Output.DrainIncomplete,
			StdinError:      j.Output.StdinError,
			Abandoned:       int(r.count("output.abandoned", int64(j.Output.Abandoned))),
		},
		Started: r.time("started", j.Started),
		Ended:   r.time("ended", j.Ended),
		Elapsed: r.millis("elapsed_ms", j.ElapsedMS),
		Usage:   r.usage("usage", &j.Usage),
	}
	if j.Exit != nil {
		e := r.exit("exit", j.Exit)
		o.Exit = &e
	}
	if j.Cleanup != nil {
		o.Cleanup = r.cleanup("cleanup", j.Cleanup)
	}
	if r.err == nil {
		r.consistent(o, j.Error != nil)
	}
	if r.err == nil && j.Error != nil {
		o.Err = o.recalled(*j.Error)
	}
	return o
}

// consistent refuses what no invocation can have ended as.
func (r *reader) consistent(o Outcome, hasError bool) {
	refuse := func(field string, value any) { r.refuse(field, "%v, with the status %s", value, o.Status) }
	switch e := o.Exit; o.Status {
	case StatusSucceeded, StatusFailed:
		switch {
		case o.Cause != CauseExit:
			refuse("cause", o.Cause)
		case e == nil:
			refuse("exit", "missing")
		case e.AfterStop:
			refuse("exit.after_stop", true)
		case (e.Code == 0) != (o.Status == StatusSucceeded):
			refuse("exit.code", e)
		}
	case StatusNotStarted:
		if e != nil {
			refuse("exit", e)
		}
	case StatusStopped:
		if e == nil {
			refuse("exit", "missing")
		}
	}
	if !o.causeFits() {
		refuse("cause", o.Cause)
	}
	if hasError && (o.Status == StatusSucceeded || o.Status == StatusStopped) && o.Output.complete() {
		refuse("error", "given")
	}
}

// causeFits reports whether the status can have the cause.
func (o Outcome) causeFits() bool {
	switch o.Status {
	case StatusStopped:
		return o.Cause == CauseCanceled || o.Cause == CauseShutdown || o.Cause == CauseIdle
	case StatusUnknown:
		return o.Cause != CauseExit && o.Cause != CauseStartFailed
	case StatusNotStarted:
		return o.Cause != CauseExit
	}
	return o.Cause == CauseExit
}

// complete reports whether every stream was copied to its end.
func (o Output) complete() bool {
	return o.Stdout.WriteError == "" && o.Stderr.WriteError == "" && o.StdinError == ""
}

func oneOf[T ~string](r *reader, field string, got T, allowed ...T) T {
	for _, a := range allowed {
		if got == a {
			return got
		}
	}
	if got == "" {
		r.refuse(field, "missing")
	} else {
		r.refuse(field, "no such value: %.40q", string(got))
	}
	return got
}

func (r *reader) exit(field string, j *jsonExit) Exit {
	e := Exit{Code: -1, CoreDumped: j.CoreDumped, AfterStop: j.AfterStop}
	switch {
	case j.Code == nil && j.Signal == nil:
		r.refuse(field, "neither code nor signal")
	case j.Code != nil && j.Signal != nil:
		r.refuse(field, "both code and signal")
	case j.Code != nil:
		if e.Code = *j.Code; e.Code < 0 || e.Code > 255 {
			r.refuse(field+".code", "%d is not in 0 to 255", e.Code)
		} else if e.CoreDumped {
			r.refuse(field+".core_dumped", "true, with a code")
		}
	default:
		if e.Signal = r.signal(field+".signal", j.Signal); e.Signal == 0 {
			r.refuse(field+".signal", "0 is not a signal")
		}
	}
	return e
}

func (r *reader) usage(field string, j *jsonUsage) Usage {
	return Usage{
		User:        r.millis(field+".user_ms", j.UserMS),
		System:      r.millis(field+".system_ms", j.SystemMS),
		MaxRSSBytes: r.count(field+".max_rss_bytes", j.MaxRSSBytes),
	}
}

func (r *reader) signal(field string, n *int) int {
	if n == nil {
		return 0
	}
	if *n < 0 || *n > 127 {
		r.refuse(field, "%d is not in 1 to 127", *n)
	}
	return *n
}

func (r *reader) bytes(field string, text, base *string) []byte {
	switch {
	case text != nil && base != nil:
		r.refuse(field, "given beside %s_base64", field)
	case text != nil:
		return []byte(*text)
	case base != nil:
		b, err := base64.StdEncoding.DecodeString(*base)
		if err != nil {
			r.refuse(field+"_base64", "%w", err)
		}
		return b
	}
	return nil
}

func (r *reader) stream(field string, j jsonStream) Stream {
	return Stream{
		Seen:       r.count(field+".seen_bytes", j.SeenBytes),
		Kept:       r.count(field+".kept_bytes", j.KeptBytes),
		Truncated:  j.Truncated,
		HeadBytes:  r.count(field+".head_bytes", j.HeadBytes),
		WriteError: j.WriteError,
	}
}

func (r *reader) count(field string, n int64) int64 {
	if n < 0 {
		r.refuse(field, "%d is negative", n)
	}
	return n
}

func (r *reader) time(field string, v raw) time.Time {
	if len(v) == 0 || string(v) == "null" {
		return time.Time{}
	}
	var s string
	if err := json.Unmarshal(v, &s); err != nil {
		r.refuse(field, "must be a string or null")
		return time.Time{}
	}
	t, err := time.Parse(time.RFC3339, s)
	t = t.UTC()
	if y := t.Year(); err != nil || y < 0 || y > 9999 {
		r.refuse(field, "not a time in RFC 3339: %.40q", s)
	}
	return t
}

// millis reads a number of milliseconds. What MarshalJSON writes has no
// exponent and is read exactly; another writer may well use one.
func (r *reader) millis(field string, v raw) time.Duration {
	s := string(v)
	if s == "" || s == "null" {
		return 0
	}
	if c := s[0]; c != '-' && (c < '0' || c > '9') {
		r.refuse(field, "must be a number")
		return 0
	}
	if s[0] == '-' && strings.ContainsAny(s, "123456789") {
		r.refuse(field, "%.40s is negative", s)
		return 0
	}
	s = strings.TrimPrefix(s, "-")
	if strings.ContainsAny(s, "eE") {
		f, err := strconv.ParseFloat(s, 64)
		if f = math.Round(f * 1e6); err != nil || f >= math.MaxInt64 {
			r.refuse(field, "%.40s is too large", s)
			return 0
		}
		return time.Duration(f)
	}
	whole, frac, _ := strings.Cut(s, ".")
	n, err := strconv.ParseInt(whole+(frac + "000000")[:6], 10, 64)
	if err != nil {
		r.refuse(field, "%.40s is too large", s)
		return 0
	}
	return time.Duration(n)
}

func (r *reader) cleanup(field string, j *jsonCleanup) Cleanup {
	c := Cleanup{
		Result:     oneOf(r, field+".result", j.Result, CleanupEmpty, CleanupSurvivors, CleanupLeft, CleanupUnverified),
		Proof:      oneOf(r, field+".proof", j.Proof, ProofNoChildren, ProofChildList, ProofScans, ProofNone),
		HelperLost: j.HelperLost,
		EndedMore:  int(r.count(field+".ended_more", int64(j.EndedMore))),
		LeftAlive:  r.processes(field+".left_alive", j.LeftAlive),
		Suspects:   r.processes(field+".suspects", j.Suspects),
		Elapsed:    r.millis(field+".elapsed_ms", j.ElapsedMS),

		JournalError: j.Journal,
	}
	for i, s := range j.Steps {
		step := at(field+".steps", i)
		c.Steps = append(c.Steps, Step{
			Name: oneOf(r, step+".name", s.Name, StepCloseStdin, StepSignalLeader, StepSignalMembers,
				StepKill, StepEmpty, StepGiveUp),
			Signal: r.signal(step+".signal", s.Signal),
			After:  r.millis(step+".after_ms", s.AfterMS),
		})
	}
	for i, p := range j.Ended {
		c.Ended = append(c.Ended, r.ended(at(field+".ended", i), &p))
	}
	for i, p := range j.Survivors {
		c.Survivors = append(c.Survivors, Survivor{r.process(at(field+".survivors", i), p.jsonProcess), p.State, p.Reason})
	}
	c.TempDirs = append(c.TempDirs, j.TempDirs...)
	return c
}

func (r *reader) ended(field string, j *jsonEnded) Ended {
	return Ended{r.process(field, j.jsonProcess), r.signal(field+".last_signal", j.LastSignal)}
}

func (r *reader) processes(field string, js []jsonProcess) []Process {
	var ps []Process
	for i, p := range js {
		ps = append(ps, r.process(at(field, i), p))
	}
	return ps
}

func (r *reader) process(field string, j jsonProcess) Process {
	r.count(field+".pid", int64(j.PID))
	return Process{PID: j.PID, Start: r.time(field+".start", j.Start), Name: j.Name}
}
