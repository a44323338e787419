//go:build !linux && !darwin

package proctree

// Checks says that there is nothing to be checked.
func Checks() []Check {
	return []Check{{"this system is supported", false, true, "nothing can be started; Linux and macOS are supported"}}
}
