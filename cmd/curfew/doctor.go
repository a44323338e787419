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
		Short: "Check what curfew relies on in this system",
		Long: `doctor checks, one by one, the features that curfew relies on in this environment
(kernel, container, sandbox, user), and says what is different without each that
is missing. It starts no process and changes nothing; selftest shows everything at
work.

The exit code is 1 if a feature is missing without which curfew can run nothing.`,
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

// doctor prints the checks, and reports whether every needed feature is there.
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
