package sys

import "bytes"

// StatFields cuts the content of a /proc/PID/stat into the process id, the name, and the
// fields from the third on, for NextField: proc_pid_stat(5). The name stands in parentheses
// and may contain anything, parentheses and newlines too, so it ends at the last one. It
// allocates nothing.
func StatFields(b []byte) (pid int, name, fields []byte, ok bool) {
	open, end := bytes.IndexByte(b, '('), bytes.LastIndexByte(b, ')')
	if open < 1 || end < open {
		return 0, nil, nil, false
	}
	n, ok := ParseUint(bytes.TrimRight(b[:open], " "))
	return int(n), b[open+1 : end], b[end+1:], ok
}

// NextField cuts off the next field, which is empty at the end.
func NextField(fields []byte) (field, rest []byte) {
	fields = bytes.TrimLeft(fields, " \n")
	if i := bytes.IndexAny(fields, " \n"); i >= 0 {
		return fields[:i], fields[i:]
	}
	return fields, nil
}
