//go:build linux || darwin

package proctree

import "testing"

// BenchmarkRows reads the process table as it is.
func BenchmarkRows(b *testing.B) {
	table := newProcessTable(marking{})
	n := 0
	for b.Loop() {
		rows, err := table.readRows()
		if err != nil {
			b.Fatal(err)
		}
		n += len(rows)
	}
	b.ReportMetric(float64(n)/float64(b.N), "processes")
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(n), "ns/process")
}
