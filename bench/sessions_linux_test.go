package bench

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"curfew/adapter"
)

// BenchmarkSessionMemory starts so many sessions of cat and prints what each of
// their supervisors has in memory: what is its own (private), and that with its
// share of what several have (PSS). The time is that of the starts and of the
// shutdown.
func BenchmarkSessionMemory(b *testing.B) {
	for _, n := range []int{1, 10, 100} {
		b.Run(strconv.Itoa(n), func(b *testing.B) {
			var private, pss, threads []int
			for b.Loop() {
				a, err := adapter.New(adapter.Options{})
				if err != nil {
					b.Fatal(err)
				}
				var supervisors []int
				for range n {
					s, err := a.Start(context.Background(), adapter.Command{Path: "cat", Stdin: adapter.Pipe, Stdout: adapter.Pipe})
					if err != nil {
						b.Fatal(err)
					}
					// It has answered, so it is at rest, and so is its supervisor soon.
					if _, err := s.Stdin().Write([]byte("x")); err != nil {
						b.Fatal(err)
					}
					if _, err := s.Stdout().Read(make([]byte, 1)); err != nil {
						b.Fatal(err)
					}
					supervisors = append(supervisors, parent(s.PID()))
				}
				for _, pid := range supervisors {
					private = append(private, kilobytes(pid, "smaps_rollup", "Private_Clean:", "Private_Dirty:"))
					pss = append(pss, kilobytes(pid, "smaps_rollup", "Pss:"))
					tasks, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", pid))
					if err != nil {
						b.Fatal(err)
					}
					threads = append(threads, len(tasks))
				}
				if err := a.Shutdown(context.Background()); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(mid(private)), "private-KB")
			b.ReportMetric(float64(mid(pss)), "pss-KB")
			b.ReportMetric(float64(mid(threads)), "threads")
		})
	}
}

func mid(list []int) int {
	slices.Sort(list)
	return list[len(list)/2]
}

func parent(pid int) int { return kilobytes(pid, "status", "PPid:") }

// kilobytes adds up lines of a file of /proc that give kB, or a number.
func kilobytes(pid int, file string, fields ...string) (kb int) {
	b, _ := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), file)) // it is there: it holds a session
	for line := range strings.Lines(string(b)) {
		if f := strings.Fields(line); len(f) >= 2 && slices.Contains(fields, f[0]) {
			n, _ := strconv.Atoi(f[1])
			kb += n
		}
	}
	return kb
}
