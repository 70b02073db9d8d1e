package sys

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// MaxPage bounds a shared page, in bytes.
const MaxPage = 1 << 20

// ErrPage says that a file is no shared page.
var ErrPage = errors.New("not a shared page")

// NewMemory makes a memory file that can neither shrink nor grow, whoever has it: who maps it is
// safe from SIGBUS. seals are added to those two (F_SEAL_ of fcntl(2)). The descriptor is the
// caller's.
func NewMemory(name string, size int64, seals int) (fd int, err error) {
	fd, err = unix.MemfdCreate(name, unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return -1, fmt.Errorf("memfd_create: %w", err)
	}
	if err = unix.Ftruncate(fd, size); err == nil {
		_, err = unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, unix.F_SEAL_SHRINK|unix.F_SEAL_GROW|seals)
	}
	if err != nil {
		_ = unix.Close(fd)
		return -1, fmt.Errorf("memory file of %d bytes: %w", size, err)
	}
	return fd, nil
}

// ErrShrinks says that a file may become smaller than what is mapped of it.
var ErrShrinks = errors.New("a file that may shrink")

// ErrNotMemory says that a file is not one of memory alone: what is behind it may take its time to
// answer, or never do.
var ErrNotMemory = errors.New("no file of memory")

// Shrinks reports whether a memory file that somebody else made may become smaller. Nothing behind
// a file of another kind is asked: it is ErrNotMemory.
func Shrinks(fd int) (bool, error) {
	seals, err := unix.FcntlInt(uintptr(fd), unix.F_GET_SEALS, 0)
	if err != nil { // EINVAL: a kind of file that knows no seals
		return true, ErrNotMemory
	}
	return seals&unix.F_SEAL_SHRINK == 0, nil
}

// FixedSize is the size of a memory file that somebody else made, which has to be one that cannot
// shrink.
func FixedSize(fd int) (int64, error) {
	if shrinks, err := Shrinks(fd); shrinks {
		return 0, errors.Join(ErrShrinks, err)
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return 0, fmt.Errorf("memory file: %w", err)
	}
	return st.Size, nil
}

// NewPage makes a page to be shared: a file as of NewMemory, and a mapping of it. Both are the
// caller's, the mapping for UnmapPage. seals as for NewMemory; F_SEAL_SEAL keeps one of several
// that write to it from shutting out those who come later.
func NewPage(name string, size, seals int) (fd int, mem []byte, err error) {
	fd, err = NewMemory("causeway-"+name, int64(size), seals)
	if err != nil {
		return -1, nil, fmt.Errorf("%s page: %w", name, err)
	}
	if mem, err = MapPage(fd, true); err != nil {
		_ = unix.Close(fd)
		return -1, nil, fmt.Errorf("%s page: %w", name, err)
	}
	return fd, mem, nil
}

// MapPage maps a page that somebody else made; fd stays the caller's.
func MapPage(fd int, write bool) ([]byte, error) {
	size, err := FixedSize(fd)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrPage, err)
	}
	if size <= 0 || size > MaxPage || size%int64(os.Getpagesize()) != 0 {
		return nil, fmt.Errorf("%w: %d bytes", ErrPage, size)
	}
	prot := unix.PROT_READ
	if write {
		prot |= unix.PROT_WRITE
	}
	mem, err := unix.Mmap(fd, 0, int(size), prot, unix.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("map shared page: %w", err)
	}
	return mem, nil
}

// UnmapPage ends a mapping of NewPage or MapPage; nil is none.
func UnmapPage(mem []byte) {
	if mem != nil {
		_ = unix.Munmap(mem)
	}
}
