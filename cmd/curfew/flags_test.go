package main

import (
	"syscall"
	"testing"
	"time"
)

func TestSpan(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]time.Duration{
		"0": 0, "5": 5 * time.Second, "0.5": 500 * time.Millisecond, ".5": 500 * time.Millisecond, "5.": 5 * time.Second,
		"300ms": 300 * time.Millisecond, "1m30s": 90 * time.Second, "2h": 2 * time.Hour, "1.5d": 36 * time.Hour,
		"0.0000000000001": 1, // not 0, which would be no limit
	} {
		var s span
		if err := s.Set(text); err != nil || time.Duration(s) != want {
			t.Errorf("%q: %v, %v; want %v", text, time.Duration(s), err, want)
		}
	}
	for _, text := range []string{"", "-1", "-1s", "x", "5x", "1e3", "0x10", "inf", "nan", "1 s", "100000d", "99999999999999999999", ".", "d"} {
		var s span
		if err := s.Set(text); err == nil {
			t.Errorf("%q is taken as %v", text, time.Duration(s))
		}
	}
}

func TestSize(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]size{"0": 0, "1048576": 1 << 20, "64K": 64 << 10, "64k": 64 << 10, "1M": 1 << 20, "2G": 2 << 30} {
		var s size
		if err := s.Set(text); err != nil || s != want {
			t.Errorf("%q: %d, %v; want %d", text, s, err, want)
		}
	}
	for _, text := range []string{"", "K", "-1", "1.5M", "1MB", "9999999999G", "x"} {
		var s size
		if err := s.Set(text); err == nil {
			t.Errorf("%q is taken as %d", text, s)
		}
	}
}

func TestSignal(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]syscall.Signal{"TERM": 15, "SIGTERM": 15, "sigterm": 15, "15": 15, "INT": 2, "KILL": 9, "hup": 1} {
		var s signalFlag
		if err := s.Set(text); err != nil || syscall.Signal(s) != want {
			t.Errorf("%q: %d, %v; want %d", text, s, err, want)
		}
	}
	for _, text := range []string{"", "0", "-1", "65", "FOO", "SIG", "TERM "} {
		var s signalFlag
		if err := s.Set(text); err == nil {
			t.Errorf("%q is taken as %d", text, s)
		}
	}
}
