package sys

import (
	"bytes"
	"encoding/binary"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// dirent is one entry as getdents64 returns it.
func dirent(name string) []byte {
	b := make([]byte, 19, 19+len(name)+8)
	b = append(append(b, name...), 0)
	for len(b)%8 != 0 {
		b = append(b, 0)
	}
	binary.NativeEndian.PutUint16(b[16:], uint16(len(b)))
	return b
}

func FuzzNumbersInDirents(f *testing.F) {
	var buf [4096]byte
	if fd, err := unix.Open("/proc/self/fd", unix.O_RDONLY|unix.O_DIRECTORY, 0); err == nil {
		n, _ := unix.Getdents(fd, buf[:])
		f.Add(buf[:max(n, 0)])
		unix.Close(fd)
	}
	var all []byte
	for _, name := range []string{".", "..", "1", "4194304", "self", "007", "", "9999999999999999999", "18446744073709551616", "12x", strings.Repeat("1", 300)} {
		f.Add(dirent(name))
		all = append(all, dirent(name)...)
	}
	f.Add(all)
	f.Add(all[:len(all)-5])
	f.Add(append(make([]byte, 16), 0, 0, 0))
	f.Add(append(make([]byte, 16), 255, 255, 0))
	f.Fuzz(func(t *testing.T, b []byte) {
		for at := 0; len(b) > 0; {
			entry, _, _, rest := ParseDirent(b)
			v, ok := ParseUint(entry)
			num := int(v)
			// Its own length says where the next one is; a length that cannot be
			// ends it.
			size := 0
			if len(b) >= 19 {
				size = int(binary.LittleEndian.Uint16(b[16:]))
			}
			if size < 19 || size > len(b) {
				if ok || rest != nil {
					t.Fatalf("at %d: %d, %v, %d bytes are left of an entry of %d bytes", at, num, ok, len(rest), size)
				}
				return
			}
			name, _, _ := strings.Cut(string(b[19:size]), "\x00")
			want, err := strconv.ParseUint(name, 10, 63)
			wantOK := err == nil && len(name) <= 18
			if ok != wantOK || ok && (num < 0 || uint64(num) != want) {
				t.Errorf("at %d: %q is %d, %v", at, name, num, ok)
			}
			if !bytes.Equal(rest, b[size:]) {
				t.Fatalf("at %d: %d bytes are left, want %d", at, len(rest), len(b)-size)
			}
			at += size
			b = rest
		}
	})
}
