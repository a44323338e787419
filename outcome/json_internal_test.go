package outcome

import (
	"encoding/json"
	"math"
	"reflect"
	"regexp"
	"strings"
	"testing"
	"time"
)

func TestJSONMillis(t *testing.T) {
	t.Parallel()
	for _, d := range []time.Duration{0, 1, 10, 999999, 1e6, 1000001, 1500000, time.Hour, math.MaxInt64} {
		var r reader
		if got := r.millis("x", millis(d)); got != d || r.err != nil {
			t.Errorf("%d: wrote %s, read %d, %v", d, millis(d), got, r.err)
		}
	}
	for in, want := range map[string]time.Duration{
		"1e3": time.Second, "1.5E-3": 1500, "0.0000019": 1, "-0": 0, "-0.0e0": 0, "12.3456789": 12345678,
	} {
		var r reader
		if got := r.millis("x", raw(in)); got != want || r.err != nil {
			t.Errorf("%s: got %d, %v, want %d", in, got, r.err, want)
		}
	}
}

// Each field of the JSON form has a name of its own: to rename a field of a Go type does not
// change what is written, and what was written before can be read.
func TestJSONNames(t *testing.T) {
	t.Parallel()
	snake := regexp.MustCompile(`^[a-z]+(_[a-z0-9]+)*$`)
	marshaler := reflect.TypeFor[json.Marshaler]()
	seen := map[reflect.Type]bool{}
	var walk func(reflect.Type)
	walk = func(typ reflect.Type) {
		for typ.Kind() == reflect.Pointer || typ.Kind() == reflect.Slice {
			typ = typ.Elem()
		}
		if typ.Kind() != reflect.Struct || typ.Implements(marshaler) || seen[typ] {
			return
		}
		seen[typ] = true
		for i := range typ.NumField() {
			f := typ.Field(i)
			if name, _, _ := strings.Cut(f.Tag.Get("json"), ","); !f.Anonymous && !snake.MatchString(name) {
				t.Errorf("%s.%s has the name %q", typ, f.Name, name)
			}
			walk(f.Type)
		}
	}
	walk(reflect.TypeFor[jsonOutcome]())
	if len(seen) < 10 {
		t.Errorf("only %d types were looked at", len(seen))
	}
	// Without a form of their own, these would be written with the names of their fields.
	for _, typ := range []reflect.Type{reflect.TypeFor[Outcome](), reflect.TypeFor[Exit](), reflect.TypeFor[Usage](), reflect.TypeFor[Cleanup](), reflect.TypeFor[Ended]()} {
		if !typ.Implements(marshaler) {
			t.Errorf("%s has no form of its own", typ)
		}
	}
}
