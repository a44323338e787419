package main

import (
	"bytes"
	"io"
	"testing"
	"time"
)

func TestVoice(t *testing.T) {
	t.Parallel()
	var b bytes.Buffer
	v := newVoice(&b)
	v.say("one %d", 1)
	v.say("curfew: two")
	v.close()
	v.say("too late")
	if want := "curfew: one 1\ncurfew: two\n"; b.String() != want {
		t.Errorf("%q, want %q", b.String(), want)
	}
}

// A reader that does not read delays nothing.
func TestVoiceIsBounded(t *testing.T) {
	t.Parallel()
	r, w := io.Pipe()
	defer r.Close()
	v := newVoice(w)
	began := time.Now()
	for range 1000 {
		v.say("again")
	}
	v.close()
	if took := time.Since(began); took < voiceLimit || took > voiceLimit+5*time.Second {
		t.Errorf("it took %v, want a little over %v", took, voiceLimit)
	}
}
