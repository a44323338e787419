package main

import (
	"fmt"
	"io"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"curfew/proctree"
)

func newDoctorCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "doctor",
		Short: "Say what this system has of what curfew relies on",
		Long: `doctor tries, one by one, what the ending of trees relies on in this environment
(kernel, container, sandbox, user), and says what is different where something is
missing. It starts nothing and changes nothing; selftest shows the whole at work.

The exit code is 1 if something is missing without which nothing can be started.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ok, err := doctor(cmd.OutOrStdout(), proctree.Checks())
			if err == nil && !ok {
				return exit(1) // the table says what is missing
			}
			return err
		},
	}
}

// doctor prints the checks, and reports whether all are there that are needed.
func doctor(out io.Writer, checks []proctree.Check) (ok bool, err error) {
	ok = true
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintf(w, "curfew %s\n\n", version())
	for _, c := range checks {
		if c.OK {
			fmt.Fprintf(w, "yes\t%s\n", c.Name)
			continue
		}
		ok = ok && !c.Needed
		fmt.Fprintf(w, "NO\t%s\twithout it: %s\n", c.Name, c.Without)
	}
	return ok, w.Flush()
}
