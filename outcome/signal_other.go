//go:build !unix

package outcome

func signalName(int) string { return "" }
