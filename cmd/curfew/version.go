package main

import (
	"fmt"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"
)

func newVersionCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the version",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			_, err := fmt.Fprintln(cmd.OutOrStdout(), "curfew", version())
			return err
		},
	}
}

// version is that of the module and, for a build from a checkout, the commit.
func version() string {
	v, commit := "(devel)", ""
	if info, ok := debug.ReadBuildInfo(); ok {
		if info.Main.Version != "" {
			v = info.Main.Version
		}
		if v == "(devel)" {
			for _, s := range info.Settings {
				if s.Key == "vcs.revision" {
					commit = " " + s.Value
				}
			}
		}
	}
	return fmt.Sprintf("%s%s %s %s/%s", v, commit, runtime.Version(), runtime.GOOS, runtime.GOARCH)
}
