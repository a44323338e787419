// Package args is initialised before the helper takes over, and changes what the
// program seems to have been started as.
package args

import "os"

func init() { os.Args[0] = "/somewhere/" + os.Args[0] }
