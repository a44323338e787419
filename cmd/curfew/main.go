// Command curfew runs a command-line program and guarantees how it ends: on a
// timeout, a signal or its own death, everything that the program started is
// gone within a bounded time, and nothing else was touched.
package main

import (
	"errors"
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"curfew/fixtures"
)

// newRootCommand makes the command. Each subcommand has a file of its own.
func newRootCommand() *cobra.Command {
	root := &cobra.Command{
		Use:   "curfew",
		Short: "Run a command-line program and guarantee how it ends",
		Long: `curfew runs a command-line program and guarantees how it ends: on a timeout, a
signal or curfew's own death, everything that the program started is gone within
a bounded time, and nothing else was touched.`,
		Version:       version(),
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	root.SetVersionTemplate("curfew {{.Version}}\n")
	root.CompletionOptions.HiddenDefaultCmd = true
	root.AddCommand(newRunCommand(), newSelftestCommand(), newDoctorCommand(), newVersionCommand())
	return root
}

func main() {
	fixtures.Main() // for selftest, which starts this executable as its CLIs
	os.Exit(execute())
}

// execute runs the command line and returns the exit code.
func execute() int {
	err := newRootCommand().Execute()
	var code exit
	switch {
	case err == nil:
		return 0
	case errors.As(err, &code):
		return int(code)
	default:
		v := newVoice(os.Stderr)
		v.say("%v", err)
		v.close()
		return exitFailed
	}
}

// exit is an exit code that needs no message: it was printed before.
type exit int

func (e exit) Error() string { return fmt.Sprintf("exit code %d", int(e)) }
