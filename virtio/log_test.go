package virtio_test

import (
	"fmt"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"causeway/vhostuser"
)

// vhosttestLog starts a dirty log on mem and returns a function that lists marked pages in
// hexadecimal.
func vhosttestLog(t *testing.T, mem *vhostuser.Memory) func() string {
	t.Helper()
	fd, err := unix.MemfdCreate("dirty-log", unix.MFD_CLOEXEC)
	must(t, err)
	const size = 4096
	must(t, unix.Ftruncate(fd, size))
	bits, err := unix.Mmap(fd, 0, size, unix.PROT_READ, unix.MAP_SHARED)
	must(t, err)
	must(t, mem.StartLog(fd, size, 0))
	t.Cleanup(func() {
		mem.StopLog()
		must(t, unix.Munmap(bits))
		must(t, unix.Close(fd))
	})
	return func() string {
		var pages []string
		for i := 0; i < 8*size; i++ {
			if bits[i/8]>>(i%8)&1 != 0 {
				pages = append(pages, fmt.Sprintf("%x", i))
			}
		}
		return strings.Join(pages, " ")
	}
}
