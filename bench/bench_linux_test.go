package bench

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"

	"curfew/adapter"
	"curfew/fixtures"
	"curfew/outcome"
)

func TestMain(m *testing.M) {
	leastMain()
	fixtures.Main()
	os.Exit(m.Run())
}

// BenchmarkInvoke runs /bin/true by turns through os/exec, with both outputs
// collected as Invoke does it, and through a pooled Invoke, some times each in a
// row, so that what a supervisor does after its report is not paid by os/exec.
// The medians and their ratio are what counts.
func BenchmarkInvoke(b *testing.B) {
	const program = "/bin/true"
	direct := func() error {
		cmd := exec.Command(program)
		var stdout, stderr bytes.Buffer
		cmd.Stdout, cmd.Stderr = &stdout, &stderr
		return cmd.Run()
	}
	pooled := func() error {
		_, err := adapter.Invoke(context.Background(), adapter.Command{Path: program})
		return err
	}
	if err := pooled(); err != nil {
		b.Fatal(err)
	}
	var times [2][]time.Duration
	for b.Loop() {
		for i, f := range []func() error{direct, pooled} {
			for range 20 {
				began := time.Now()
				if err := f(); err != nil {
					b.Fatal(err)
				}
				times[i] = append(times[i], time.Since(began))
			}
		}
	}
	e, c := median(times[0]), median(times[1])
	b.ReportMetric(float64(e.Microseconds()), "exec-µs")
	b.ReportMetric(float64(c.Microseconds()), "curfew-µs")
	b.ReportMetric(float64(c)/float64(e), "ratio")
}

// BenchmarkFirst is the first invocation of an adapter: it starts a helper.
func BenchmarkFirst(b *testing.B) {
	var times []time.Duration
	for b.Loop() {
		a, err := adapter.New(adapter.Options{})
		if err != nil {
			b.Fatal(err)
		}
		began := time.Now()
		if _, err := a.Invoke(context.Background(), adapter.Command{Path: "/bin/true"}); err != nil {
			b.Fatal(err)
		}
		times = append(times, time.Since(began))
		if err := a.Shutdown(context.Background()); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(median(times).Microseconds()), "first-µs")
}

// BenchmarkCancel is the time from a cancellation without grace to the proof
// that the tree is empty, for n sleepers with a session each. By turns it
// measures the least that this can take: a process that does nothing but kill
// and reap the same n, which are its children and known to it.
func BenchmarkCancel(b *testing.B) {
	exe, err := os.Executable()
	if err != nil {
		b.Fatal(err)
	}
	for _, n := range []int{1, 100, 1000} {
		b.Run(strconv.Itoa(n), func(b *testing.B) {
			dir := b.TempDir()
			var times, least []time.Duration
			for i := 0; b.Loop(); i++ {
				o := fixtures.Options{Ready: fmt.Sprintf("%s/least%d", dir, i), For: 50 * time.Second}
				cmd := exec.Command(exe, fixtures.Args("sessions", o, strconv.Itoa(n))...)
				cmd.Env = append(os.Environ(), leastVar+"="+o.Ready)
				printed, err := cmd.Output()
				if err != nil {
					b.Fatal(err)
				}
				d, err := time.ParseDuration(string(printed))
				if err != nil {
					b.Fatal(err)
				}
				least = append(least, d)

				o.Ready = fmt.Sprintf("%s/ready%d", dir, i)
				ctx, cancel := context.WithCancel(context.Background())
				var canceled time.Time
				go func() {
					awaitReady(o.Ready)
					canceled = time.Now()
					cancel()
				}()
				out, _ := adapter.Invoke(ctx, adapter.Command{
					Path: exe, Args: fixtures.Args("sessions", o, strconv.Itoa(n)), Stop: adapter.StopPolicy{Grace: -1},
				})
				if out.Cleanup.Result != outcome.CleanupEmpty || len(out.Cleanup.Ended)+out.Cleanup.EndedMore < n {
					b.Fatalf("%s: %+v", out.Status, out.Cleanup)
				}
				times = append(times, time.Since(canceled))
			}
			e, c := median(least), median(times)
			b.ReportMetric(float64(e.Microseconds()), "least-µs")
			b.ReportMetric(float64(c.Microseconds()), "curfew-µs")
			b.ReportMetric(float64(c)/float64(e), "ratio")
		})
	}
}

// awaitReady waits until a tree stands, and lets it come to rest.
func awaitReady(file string) {
	for {
		if _, err := os.Stat(file); err == nil {
			break
		}
		time.Sleep(5 * time.Millisecond)
	}
	time.Sleep(50 * time.Millisecond)
}

func median(d []time.Duration) time.Duration {
	slices.Sort(d)
	return d[len(d)/2]
}

// BenchmarkCPU runs /bin/true some hundred times through os/exec, with both outputs
// collected, and through an adapter of its own, one at a time and 16 at once. It
// reports CPU time, which a helper also uses while nobody waits for it: what this
// process and all its children have used until the adapter is shut down.
func BenchmarkCPU(b *testing.B) {
	const program, invocations = "/bin/true", 320
	for _, atOnce := range []int{1, 16} {
		b.Run(fmt.Sprintf("%d-at-once", atOnce), func(b *testing.B) {
			all := func(one func() error) {
				var group sync.WaitGroup
				for range atOnce {
					group.Go(func() {
						for range invocations / atOnce {
							if err := one(); err != nil {
								b.Error(err)
							}
						}
					})
				}
				group.Wait()
			}
			var used [2]time.Duration
			for b.Loop() {
				before := cpuUsed(b)
				all(func() error {
					cmd := exec.Command(program)
					var stdout, stderr bytes.Buffer
					cmd.Stdout, cmd.Stderr = &stdout, &stderr
					return cmd.Run()
				})
				between := cpuUsed(b)
				a, err := adapter.New(adapter.Options{})
				if err != nil {
					b.Fatal(err)
				}
				all(func() error {
					_, err := a.Invoke(context.Background(), adapter.Command{Path: program})
					return err
				})
				time.Sleep(100 * time.Millisecond) // of idleness
				if err := a.Shutdown(context.Background()); err != nil {
					b.Fatal(err)
				}
				used[0] += between - before
				used[1] += cpuUsed(b) - between
			}
			for i, name := range []string{"exec", "curfew"} {
				b.ReportMetric(float64(used[i].Microseconds())/float64(b.N*invocations), name+"-cpu-µs")
			}
			b.ReportMetric(float64(used[1])/float64(used[0]), "ratio")
		})
	}
}

// cpuUsed is the CPU time of this process and of all its descendants that were reaped.
func cpuUsed(b *testing.B) time.Duration {
	var sum time.Duration
	for _, who := range []int{syscall.RUSAGE_SELF, syscall.RUSAGE_CHILDREN} {
		var ru syscall.Rusage
		if err := syscall.Getrusage(who, &ru); err != nil {
			b.Fatal(err)
		}
		sum += time.Duration(ru.Utime.Nano() + ru.Stime.Nano())
	}
	return sum
}
