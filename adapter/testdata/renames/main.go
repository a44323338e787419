// Command renames is a caller with an init function that gets in the way.
package main

import (
	"context"
	"fmt"
	"os"

	"curfew/adapter"
	_ "curfew/adapter/testdata/renames/args"
)

func main() {
	o, err := adapter.Invoke(context.Background(), adapter.Command{Path: "true"})
	fmt.Println(o.Status, err)
	if err != nil {
		os.Exit(1)
	}
}
