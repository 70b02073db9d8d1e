package sys

import (
	"errors"
	"unsafe"

	"golang.org/x/sys/unix"
)

// maxGroups is NGROUPS_MAX (include/uapi/linux/limits.h).
const maxGroups = 65536

// peerGroups reads SO_PEERGROUPS (socket(7)): an array of gid_t. ERANGE says that it is longer.
func peerGroups(fd int) ([]uint32, error) {
	for n := 64; n <= maxGroups; n *= 32 {
		list := make([]uint32, n)
		size := uint32(n * 4)
		_, _, errno := unix.Syscall6(unix.SYS_GETSOCKOPT, uintptr(fd), unix.SOL_SOCKET, unix.SO_PEERGROUPS,
			uintptr(unsafe.Pointer(&list[0])), uintptr(unsafe.Pointer(&size)), 0)
		switch errno {
		case 0:
			return list[:min(int(size)/4, n)], nil
		case unix.ERANGE:
			continue
		case unix.ENODATA, unix.ENOPROTOOPT: // no groups; a kernel that does not tell
			return nil, nil
		}
		return nil, errno
	}
	return nil, errors.New("more groups than a process can have")
}
