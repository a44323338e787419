// Package renames gets in a helper's way: it is initialised before the helper is
// taken over (its import path comes first), starts a timer, for which the runtime
// opens descriptors of its own, and changes what the process seems to have been
// started as. The tests of package adapter link it, so that every helper there is
// started against it.
package renames

import (
	"os"
	"time"
)

func init() {
	time.AfterFunc(time.Hour, func() {})
	if len(os.Args) > 0 && (os.Args[0] == "curfew-supervisor" || os.Args[0] == "curfew-guard") {
		os.Args[0] = "/somewhere/" + os.Args[0]
	}
}
