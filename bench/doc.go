// Package bench measures curfew against what it is compared with, side by side
// in one run. It has benchmarks only:
//
//	go test -run '^$' -bench . ./bench
package bench
