package main

import (
	"os"
	"testing"
)

// The servers are the test binary.
func TestMain(m *testing.M) {
	if len(os.Args) == 3 && os.Args[1] == "serve" {
		main()
		return
	}
	os.Exit(m.Run())
}

func Example() {
	main()
	// Output:
	// files, of ann, has {"tools":[{"name":"crash"},{"name":"wait"}]}
	// mail, of ben, has {"tools":[{"name":"crash"},{"name":"wait"}]}
	// web, of cem, has {"tools":[{"name":"crash"},{"name":"wait"}]}
	// files: tools/call: context deadline exceeded
	// web: outcome unknown: failed, exit code 3; stderr "web has run out of luck"
	// files answers: true
	// mail answers: false
	// web answers: true
	// files stopped shutdown empty
	// mail stopped shutdown empty
	// web stopped shutdown empty
}
