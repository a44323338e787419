//go:build !linux && !darwin

package proctree

func checks() []Check {
	return []Check{{"this system is supported", false, true, "nothing can be started; Linux and macOS are supported"}}
}
