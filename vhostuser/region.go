package vhostuser

import (
	"fmt"
	"math"
	"os"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// Region is one contiguous piece of guest memory, backed by a file that the front end shares. It
// stays mapped while a table or a View refers to it.
type Region struct {
	gpa, size, user uint64
	offset          uint64 // of the region in its file
	dev, ino        uint64 // identity of the file

	refs  atomic.Int64
	fd    int
	whole []byte // the mapping; starts at offset rounded down to a page
	mem   []byte // the region
}

// GPA is the region's guest-physical address.
func (r *Region) GPA() uint64 { return r.gpa }

// Size is the region's length in bytes.
func (r *Region) Size() uint64 { return r.size }

// UserAddr is the region's address in the front end's process.
func (r *Region) UserAddr() uint64 { return r.user }

// Offset is where the region starts in its file.
func (r *Region) Offset() uint64 { return r.offset }

// FD is the region's file. It belongs to the region: it is valid inside Observer calls and while a
// View pins the region. Use DupFile to keep it.
func (r *Region) FD() int { return r.fd }

// Bytes is the mapped memory, under the same conditions as FD.
func (r *Region) Bytes() []byte { return r.mem }

// DupFile returns a new descriptor for the region's file, for another process to map Size bytes at
// Offset.
func (r *Region) DupFile() (*os.File, error) {
	fd, err := unix.FcntlInt(uintptr(r.fd), unix.F_DUPFD_CLOEXEC, 3)
	if err != nil {
		return nil, fmt.Errorf("duplicate the descriptor of region %#x: %w", r.gpa, err)
	}
	return os.NewFile(uintptr(fd), fmt.Sprintf("guest-memory-%#x", r.gpa)), nil
}

// regionDesc is a region as the front end describes it.
type regionDesc struct {
	gpa, size, user, offset uint64
}

func (d regionDesc) check() error {
	switch {
	case d.size == 0:
		return fmt.Errorf("region %#x is empty: %w", d.gpa, ErrBadRegion)
	case d.gpa+d.size < d.gpa, d.user+d.size < d.user, d.offset+d.size < d.offset:
		return fmt.Errorf("region %#x+%#x wraps around: %w", d.gpa, d.size, ErrBadRegion)
	case d.offset+d.size > math.MaxInt64/2:
		return fmt.Errorf("region %#x+%#x lies beyond any file: %w", d.gpa, d.size, ErrBadRegion)
	}
	return nil
}

// same says whether r is what d and the file st describe.
func (r *Region) same(d regionDesc, st *unix.Stat_t) bool {
	return r.gpa == d.gpa && r.size == d.size && r.user == d.user && r.offset == d.offset &&
		r.dev == st.Dev && r.ino == st.Ino
}

// mapRegion maps d from fd, which it takes over only if it succeeds. The caller owns one reference.
func mapRegion(d regionDesc, fd int) (*Region, error) {
	if err := d.check(); err != nil {
		return nil, err
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return nil, fmt.Errorf("region %#x: fstat: %w", d.gpa, err)
	}
	// A mapping beyond the end of the file would raise SIGBUS when touched.
	if uint64(st.Size) < d.offset+d.size {
		return nil, fmt.Errorf("region %#x+%#x: file has only %#x bytes: %w", d.gpa, d.size, st.Size, ErrBadRegion)
	}
	start := d.offset &^ uint64(os.Getpagesize()-1)
	whole, err := unix.Mmap(fd, int64(start), int(d.offset+d.size-start),
		unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_NORESERVE)
	if err != nil {
		return nil, fmt.Errorf("region %#x+%#x: mmap: %w", d.gpa, d.size, err)
	}
	// Guest memory has no place in core dumps; failure only makes them larger.
	_ = unix.Madvise(whole, unix.MADV_DONTDUMP)
	r := &Region{gpa: d.gpa, size: d.size, user: d.user, offset: d.offset, dev: st.Dev, ino: st.Ino,
		fd: fd, whole: whole, mem: whole[d.offset-start:]}
	r.refs.Store(1)
	return r, nil
}

func (r *Region) ref() { r.refs.Add(1) }

func (r *Region) unref() {
	if r.refs.Add(-1) == 0 {
		_ = unix.Munmap(r.whole)
		if r.fd >= 0 {
			_ = unix.Close(r.fd)
		}
		r.whole, r.mem, r.fd = nil, nil, -1
	}
}

// disown gives the descriptor back to whoever passed it to mapRegion.
func (r *Region) disown() { r.fd = -1 }

// Pin keeps r mapped until Unpin. r must be pinned already, by a View for example.
func (r *Region) Pin() { r.ref() }

// Unpin ends a Pin.
func (r *Region) Unpin() { r.unref() }
