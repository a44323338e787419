package wire

import (
	"encoding/json"
	"reflect"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"curfew/outcome"
)

// Each field of a message has a name of its own: renaming a field of a Go type changes
// nothing on the wire, nor in a record of the journal, which holds a Done.
func TestFieldsHaveNames(t *testing.T) {
	t.Parallel()
	snake := regexp.MustCompile(`^[a-z]+(_[a-z0-9]+)*$`)
	marshaler := reflect.TypeFor[json.Marshaler]()
	seen := map[reflect.Type]bool{}
	var walk func(reflect.Type)
	walk = func(typ reflect.Type) {
		switch typ.Kind() {
		case reflect.Pointer, reflect.Slice, reflect.Array, reflect.Map:
			walk(typ.Elem())
			return
		case reflect.Struct:
		default:
			return
		}
		if typ.Implements(marshaler) || seen[typ] {
			return
		}
		seen[typ] = true
		for i := range typ.NumField() {
			f := typ.Field(i)
			if name, _, _ := strings.Cut(f.Tag.Get("json"), ","); name != "-" && !f.Anonymous && !snake.MatchString(name) {
				t.Errorf("%s.%s has the name %q", typ, f.Name, name)
			}
			walk(f.Type)
		}
	}
	walk(reflect.TypeFor[Message]())
	if len(seen) < 10 {
		t.Errorf("only %d types were looked at", len(seen))
	}
}

// The form of a Done stays as it is as long as records of the journal have the same version.
func TestDoneForm(t *testing.T) {
	t.Parallel()
	done := Done{
		Started: true, NotExecuted: true, Exit: &outcome.Exit{Code: -1, Signal: 126, AfterStop: true}, StopBegan: true, StopCause: outcome.CauseTimeout,
		Usage: outcome.Usage{User: 1500 * time.Microsecond, System: time.Second, MaxRSSBytes: 4096},
		Cleanup: outcome.Cleanup{
			Result: outcome.CleanupSurvivors, Proof: outcome.ProofScans, HelperLost: true,
			Steps:     []outcome.Step{{Name: outcome.StepKill, Signal: 126, After: time.Second}},
			Ended:     []outcome.Ended{{Process: outcome.Process{PID: 7, Start: time.Unix(1767225600, 1).UTC(), Name: "x"}, LastSignal: 126}},
			EndedMore: 2,
			Survivors: []outcome.Survivor{{Process: outcome.Process{PID: 8, Name: "y"}, State: "D", Reason: "r"}},
			LeftAlive: []outcome.Process{{PID: 9}}, Suspects: []outcome.Process{{PID: 10}},
			TempDirs:     []outcome.TempDir{{Path: "/tmp/x", Error: "busy"}},
			JournalError: "full", Elapsed: 2 * time.Second,
		},
	}
	const form = `{"started":true,"not_executed":true,"exit":{"code":null,"signal":126,"signal_name":"signal 126","core_dumped":false,"after_stop":true},` +
		`"stop_began":true,"stop_cause":"timeout","usage":{"user_ms":1.5,"system_ms":1000,"max_rss_bytes":4096},` +
		`"cleanup":{"result":"survivors","proof":"scans","helper_lost":true,"steps":[{"name":"kill","signal":126,"signal_name":"signal 126","after_ms":1000}],` +
		`"ended":[{"pid":7,"start":"2026-01-01T00:00:00.000000001Z","name":"x","last_signal":126,"last_signal_name":"signal 126"}],"ended_more":2,` +
		`"survivors":[{"pid":8,"start":null,"name":"y","state":"D","reason":"r"}],"left_alive":[{"pid":9,"start":null,"name":""}],` +
		`"suspects":[{"pid":10,"start":null,"name":""}],"temp_dirs":[{"path":"/tmp/x","error":"busy"}],"journal_error":"full","elapsed_ms":2000}}`
	got, err := json.Marshal(&done)
	if d := cmp.Diff(form, string(got)); d != "" || err != nil {
		t.Errorf("%v (-want +got):\n%s", err, d)
	}
	var read Done
	if err := json.Unmarshal([]byte(form), &read); err != nil {
		t.Error(err)
	}
	if d := cmp.Diff(done, read); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
}
