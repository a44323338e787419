// Command library is a c-shared library that invokes CLIs for its host, which is
// a C program: the executable is not ours to start again.
package main

// typedef char *string;
import "C"

import (
	"context"
	"fmt"
	"sync"
	"time"
	"unsafe"

	"curfew/adapter"
)

var adapters sync.Map // by Options.Supervisor

// Invoke runs a CLI and writes into text how it ended.
//
//export Invoke
func Invoke(supervisor *C.char, timeoutMS C.int, argc C.int, argv *C.string, text *C.char, size C.int) {
	say := func(format string, args ...any) {
		into := unsafe.Slice((*byte)(unsafe.Pointer(text)), int(size))
		into[copy(into[:len(into)-1], fmt.Sprintf(format, args...))] = 0
	}
	var args []string
	for _, arg := range unsafe.Slice(argv, int(argc)) {
		args = append(args, C.GoString(arg))
	}
	name := C.GoString(supervisor)
	fresh, err := adapter.New(adapter.Options{Supervisor: name})
	if err != nil {
		say("no adapter: %v", err)
		return
	}
	a, _ := adapters.LoadOrStore(name, fresh)
	o, err := a.(*adapter.Adapter).Invoke(context.Background(), adapter.Command{
		Path: args[0], Args: args[1:], Timeout: time.Duration(timeoutMS) * time.Millisecond,
		Stop: adapter.StopPolicy{Grace: 300 * time.Millisecond, KillWait: 10 * time.Second},
	})
	say("%s %s %s %s: %v", o.Status, o.Cause, o.Cleanup.Result, o.Cleanup.Proof, err)
}

func main() {}
