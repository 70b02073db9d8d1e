package cuda

import (
	"fmt"

	"golang.org/x/sys/unix"

	"causeway/cuda"
	"causeway/host/driver"
	"causeway/host/driver/cuda/bind"
)

// A session that moves to another process of its host, on the same GPU, takes what backs its ranges
// along as it is: nothing is copied. On another GPU it reads it from there (fetch.go).

var _ driver.Lender = (*session)(nil)

// mostLent is how many pieces of memory are lent: each is a descriptor.
const mostLent = 4096

// borrowed is memory of the process where the session was, until it backs addresses here.
type borrowed struct {
	handle bind.MemGenericAllocationHandle
	size   uint64
	dev    uint32
	file   int // the descriptor by which it came: drivers export nothing that was imported
}

// Lend implements driver.Lender.
func (s *session) Lend() (list []driver.Lent, err error) {
	s.takeAwayAll(false, true)
	n := 0
	for _, r := range s.arenas.ranges {
		n += len(r.pages)
	}
	if n == 0 {
		return nil, nil
	}
	if n > mostLent {
		return nil, fmt.Errorf("it is in %d pieces, and %d are lent at most", n, mostLent)
	}
	for dev, r := range s.arenas.ranges {
		for at, p := range r.pages {
			if p.theirs { // who has such memory does not move alone
				continue
			}
			fd, err := s.export(p)
			if err != nil {
				driver.CloseLent(list)
				return nil, fmt.Errorf("memory at %#x is not lent: %w", at, err)
			}
			list = append(list, driver.Lent{Addr: at, Size: p.mem.Size(), Dev: dev, File: fd})
		}
	}
	s.arenas.lent = true
	return list, nil
}

// export is a descriptor of memory.
func (s *session) export(p backed) (int, error) {
	if p.came {
		return unix.FcntlInt(uintptr(p.file), unix.F_DUPFD_CLOEXEC, 0)
	}
	fd, res := s.drv.MemExportToShareableHandle(p.handle, posixFD, 0)
	return int(int32(fd)), errorOf(res)
}

// Keep implements driver.Lender.
func (s *session) Keep() { s.arenas.lent = false }

// Borrow implements driver.Lender.
func (s *session) Borrow(list []driver.Lent) error {
	if !s.arenas.on {
		driver.CloseLent(list)
		return immovable("it was not started as one that may (--migratable)")
	}
	s.arenas.borrowed = map[uint64]borrowed{}
	for i, l := range list {
		h, res := s.drv.MemImportFromShareableHandle(l.File, posixFD)
		if res != cuda.Success {
			s.giveUpBorrowed()
			driver.CloseLent(list[i:])
			return fmt.Errorf("memory at %#x is not borrowed: %w", l.Addr, res)
		}
		s.arenas.borrowed[l.Addr] = borrowed{h, l.Size, l.Dev, l.File}
		var p bind.MemAllocationProp
		if res = s.drv.MemGetAllocationPropertiesFromHandle(&p, h); res != cuda.Success || p.Location.Id != int32(l.Dev) {
			s.giveUpBorrowed()
			driver.CloseLent(list[i+1:])
			return fmt.Errorf("memory at %#x is of another GPU: %w", l.Addr, res)
		}
	}
	return nil
}

// Borrowed implements driver.Lender.
func (s *session) Borrowed() error {
	defer s.giveUpBorrowed()
	for ptr := range s.allocs {
		for at, b := range s.arenas.borrowed {
			if ptr-at < b.size {
				return fmt.Errorf("the allocation at %#x is not of the memory that came for it", ptr)
			}
		}
	}
	return nil
}

func (s *session) giveUpBorrowed() {
	for _, b := range s.arenas.borrowed {
		s.drv.MemRelease(b.handle)
		closeFile(b.file)
	}
	s.arenas.borrowed = nil
}

// physical is memory for addresses of the range: what was there where the session comes from, or
// new.
func (r *addressRange) physical(at, size uint64) (backed, cuda.Result) {
	a := &r.s.arenas
	if b, ok := a.borrowed[at]; ok && b.size == size && b.dev == r.dev {
		delete(a.borrowed, at)
		return backed{handle: b.handle, came: true, file: b.file}, cuda.Success
	}
	h, res := r.s.drv.MemCreate(size, allocationProp(r.dev, posixFD, 0), 0)
	return backed{handle: h}, res
}

// free gives memory back that backs no addresses.
func (r *addressRange) free(p backed) cuda.Result {
	if p.came {
		closeFile(p.file)
	}
	return r.s.drv.MemRelease(p.handle)
}
