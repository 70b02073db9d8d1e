package cuda

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"slices"

	"causeway/cuda"
	"causeway/host/driver"
	"causeway/host/driver/cuda/bind"
)

/*
A session that moves to another GPU of its host reads what backs its ranges there, if that GPU can:
the memory comes by descriptors, is mapped for a moment beside the session's own, and copies go over
NVLink or PCIe without passing through the host's memory. This is done when all of the session is
there again, since what is mapped before decides where a driver puts the variables of modules. The
driver of such a worker shows one GPU; memory of one that it does not show can be mapped for the one
that it does, as NCCL does between processes.
*/

var _ driver.Fetcher = (*session)(nil)

// fetching is memory of the process where the session was, behind addresses of this one.
type fetching struct {
	s   *session
	dev uint32
	in  bind.Mem // addresses that are reserved for all of it
	got []fetched
}

// fetched is a piece of it.
type fetched struct {
	lent   driver.Lent
	handle bind.MemGenericAllocationHandle
	mem    bind.Mem
}

// peerEnv has nothing read from another GPU if it is 0: for measurements, and for hosts whose PCIe
// bridges do not let GPUs reach each other although the driver says so.
const peerEnv = "CAUSEWAY_PEER"

// Where addresses are reserved for it, if the driver honours that: where nothing else of a session
// is put.
const fetchFrom = 0x6600_0000_0000

// Fetch implements driver.Fetcher.
func (s *session) Fetch(list []driver.Lent) (total uint64, err error) {
	defer driver.CloseLent(list)
	if !s.arenas.on {
		return 0, immovable("it was not started as one that may (--migratable)")
	}
	if os.Getenv(peerEnv) == "0" {
		return 0, errors.New(peerEnv + " is 0")
	}
	byDevice := map[uint32][]driver.Lent{}
	for _, l := range list {
		byDevice[l.Dev] = append(byDevice[l.Dev], l)
	}
	for dev, r := range s.arenas.ranges {
		n, err := s.fetchTo(r, byDevice[dev])
		if err != nil {
			return 0, fmt.Errorf("memory of device %d: %w", dev, err)
		}
		total += n
	}
	return total, nil
}

// fetchTo fills the pages of a range.
func (s *session) fetchTo(r *addressRange, list []driver.Lent) (total uint64, err error) {
	slices.SortFunc(list, func(a, b driver.Lent) int { return cmp.Compare(a.Addr, b.Addr) })
	if err := s.coveredBy(r, list); err != nil || len(r.pages) == 0 {
		return 0, err
	}
	if res := s.contextOn(r.dev); res != cuda.Success {
		return 0, fmt.Errorf("a context to copy in: %w", res)
	}
	f := &fetching{s: s, dev: r.dev}
	defer func() { err = errors.Join(err, f.end()) }()
	if err := f.open(list); err != nil {
		return 0, err
	}
	for at, p := range r.pages {
		n, err := f.copyTo(at, p)
		if err != nil {
			return 0, fmt.Errorf("%d bytes at %#x: %w", p.mem.Size(), at, err)
		}
		total += n
	}
	return total, nil
}

// coveredBy says which allocation of a range is not of the memory that came for it, which is sorted
// by address.
func (s *session) coveredBy(r *addressRange, list []driver.Lent) error {
	for ptr, a := range s.allocs {
		if !r.Contains(ptr) || a.graph != nil && !a.graph.lived {
			continue
		}
		if i := lastBefore(list, ptr); i < 0 || ptr-list[i].Addr >= list[i].Size || a.size > list[i].Size-(ptr-list[i].Addr) {
			return fmt.Errorf("the allocation at %#x is not of the memory that came for it", ptr)
		}
	}
	return nil
}

// lastBefore is the last of a sorted list that begins at an address or below, -1 if none does.
func lastBefore(list []driver.Lent, addr uint64) int {
	i, exact := slices.BinarySearchFunc(list, addr, func(l driver.Lent, addr uint64) int { return cmp.Compare(l.Addr, addr) })
	if exact {
		return i
	}
	return i - 1
}

// contextOn makes a context of a device current.
func (s *session) contextOn(dev uint32) cuda.Result {
	for id, ctx := range s.ctxs.m {
		if ctx.dev == dev && !ctx.handle.IsZero() && s.useContext(id) == cuda.Success {
			return cuda.Success
		}
	}
	return s.anyContext(0)
}

// open maps a sorted list of pieces for the device.
func (f *fetching) open(list []driver.Lent) error {
	size := uint64(0)
	for _, l := range list {
		if l.Size == 0 || l.Size > rangeSize-size {
			return fmt.Errorf("a piece of %d bytes", l.Size)
		}
		size += l.Size
	}
	d := f.s.drv
	var res cuda.Result
	if f.in, res = d.MemAddressReserve(size, 0, bind.Hint(fetchFrom), 0); res != cuda.Success {
		return fmt.Errorf("addresses for %d bytes: %w", size, res)
	}
	done := uint64(0)
	for _, l := range list {
		x := fetched{lent: l}
		if x.handle, res = d.MemImportFromShareableHandle(l.File, posixFD); res != cuda.Success {
			return fmt.Errorf("memory of the other GPU is not to be had here: %w", res)
		}
		at, _ := f.in.Slice(done, l.Size)
		if res = d.MemMap(at, 0, x.handle, 0); res == cuda.Success {
			x.mem = at
		}
		f.got = append(f.got, x)
		if res == cuda.Success {
			res = d.MemSetAccess(at, accessDesc(f.dev, accessReadWrite))
		}
		if res != cuda.Success {
			return fmt.Errorf("this GPU does not reach memory of the other: %w", res)
		}
		done += l.Size
	}
	return nil
}

// copyTo copies what there is of a page.
func (f *fetching) copyTo(at uint64, p backed) (total uint64, err error) {
	end := at + p.mem.Size()
	first, _ := slices.BinarySearchFunc(f.got, at, func(x fetched, at uint64) int { return cmp.Compare(x.lent.Addr, at) })
	for _, x := range f.got[max(first-1, 0):] {
		if x.lent.Addr >= end {
			break
		}
		lo, hi := max(at, x.lent.Addr), min(end, x.lent.Addr+x.lent.Size)
		if lo >= hi {
			continue
		}
		to, _ := p.mem.Slice(lo-at, hi-lo)
		from, _ := x.mem.Slice(lo-x.lent.Addr, hi-lo)
		move := f.s.drv.MemcpyAsync(to, from, bind.StreamLegacy)
		if res := f.s.note(move.Do()); res != cuda.Success {
			return total, res
		}
		total += hi - lo
	}
	return total, nil
}

// end waits for the copies, and gives everything back.
func (f *fetching) end() error {
	d := f.s.drv
	res := cuda.Success
	keep := func(r cuda.Result) {
		if f.s.note(r) != cuda.Success && res == cuda.Success {
			res = r
		}
	}
	keep(d.StreamSynchronize(bind.StreamLegacy))
	for _, x := range f.got {
		if !x.mem.IsZero() {
			keep(d.MemUnmap(x.mem))
		}
		keep(d.MemRelease(x.handle))
	}
	if !f.in.IsZero() {
		keep(d.MemAddressFree(f.in))
	}
	return errorOf(res)
}
