package main

import (
	"strings"
	"testing"

	"curfew/proctree"
)

func TestDoctor(t *testing.T) {
	var out strings.Builder
	ok, err := doctor(&out, []proctree.Check{{Name: "air", OK: true, Without: "no breath"}, {Name: "water", Needed: true, Without: "thirst"}})
	if s := out.String(); err != nil || ok || !strings.Contains(s, "yes  air\n") || !strings.Contains(s, "NO   water  without it: thirst\n") || strings.Contains(s, "breath") {
		t.Errorf("got %v, %v, %q", ok, err, s)
	}
	out.Reset()
	if ok, err := doctor(&out, []proctree.Check{{Name: "air", OK: true, Needed: true}, {Name: "tea"}}); err != nil || !ok {
		t.Errorf("got %v, %v, %q", ok, err, out.String())
	}
	// The other tests need the same features of this system.
	for _, c := range proctree.Checks() {
		if c.Name == "" || c.Without == "" {
			t.Errorf("%+v says too little", c)
		}
	}
}
