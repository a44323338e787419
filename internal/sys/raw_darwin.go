package sys

// rawGetdents is not called: there is no RawList here.
func rawGetdents(int, []byte) (int, error) { panic("sys: no raw calls on this system") }
