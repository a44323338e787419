// Command caller invokes a CLI and prints how that ended:
//
//	caller TIMEOUT PROGRAM [ARGUMENT]...
//
// It is for what depends on how a caller was built.
package main

import (
	"context"
	"fmt"
	"os"
	"time"

	"curfew/adapter"
)

func main() {
	timeout, err := time.ParseDuration(os.Args[1])
	if err != nil {
		panic(err)
	}
	o, err := adapter.Invoke(context.Background(), adapter.Command{
		Path: os.Args[2], Args: os.Args[3:], Timeout: timeout,
		Stop: adapter.StopPolicy{Grace: 300 * time.Millisecond, KillWait: 10 * time.Second},
	})
	fmt.Printf("%s %s %s %s, stderr %q: %v\n", o.Status, o.Cause, o.Cleanup.Result, o.Cleanup.Proof, o.Stderr, err)
}
