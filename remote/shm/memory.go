package shm

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"

	"causeway/remote"
)

// pageSize is the granularity of regions, on guests and hosts alike.
const pageSize = 4096

// MaxRegionSize bounds one region, MaxRegions their number.
const (
	MaxRegionSize = 64 << 30
	MaxRegions    = 4096
)

// unmapAside is the size from which on a mapping goes while its user does something else.
const unmapAside = 8 << 20

// Run is a piece of a region: Size bytes of the file FD at Offset.
type Run struct {
	FD     int
	Offset int64
	Size   uint64
}

// Memory implements remote.GuestMemory and remote.Mapper over file-backed regions.
type Memory struct {
	mu       sync.RWMutex  // copies share it
	changed  chan struct{} // closed and replaced when a region becomes ready
	detached bool
	regions  map[uint32]*region
	vacated  vacated // of those that were mapped where the guest said
	poll     func()  // looks for word of regions, nil: it comes by itself only
	watcher  remote.Watcher
}

type region struct {
	remote.Declared
	runs   []Run // in order, covering Size; nil: not reachable yet
	own    func() error
	why    error // it is not reached; nil: it is, or will be
	mapped bool
	placed bool // at addresses that the guest chose
	span   span
	mem    []byte
	revoke func() // ends what Expose began; nil: nothing
}

var (
	_ remote.GuestMemory = (*Memory)(nil)
	_ remote.Mapper      = (*Memory)(nil)
	_ remote.Watchable   = (*Memory)(nil)
	_ remote.Exposer     = (*Memory)(nil)
)

// NewMemory returns memory without regions.
func NewMemory() *Memory {
	return &Memory{changed: make(chan struct{}), regions: map[uint32]*region{}}
}

// Declare makes a region known. SetRuns makes it reachable. end, if not nil, is called when the
// region is dropped.
func (m *Memory) Declare(id uint32, d remote.Declared, end func() error) error {
	if d.Size == 0 || d.Size%pageSize != 0 || d.Size > MaxRegionSize || d.VA%pageSize != 0 || d.VA+d.Size < d.VA {
		return remote.Violation("region %d: %#x bytes at %#x", id, d.Size, d.VA)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if _, ok := m.regions[id]; ok {
		return remote.Violation("region %d is declared twice", id)
	}
	if len(m.regions) >= MaxRegions {
		return remote.Violation("more than %d regions", MaxRegions)
	}
	m.regions[id] = &region{Declared: d, own: end}
	return nil
}

// Refuse makes a region known that will not be reachable: whoever awaits it hears why.
func (m *Memory) Refuse(id uint32, d remote.Declared, why error) error {
	if err := m.Declare(id, d, nil); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.regions[id].why = why
	close(m.changed)
	m.changed = make(chan struct{})
	return nil
}

// SetRuns says where a region's bytes are. If the region is mapped and attached, its pages are
// replaced in place.
func (m *Memory) SetRuns(id uint32, runs []Run) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	r, ok := m.regions[id]
	if !ok {
		return fmt.Errorf("region %d: %w", id, remote.ErrUnknownRegion)
	}
	runs = merge(runs)
	var total uint64
	for _, x := range runs {
		if x.Size == 0 || x.Size%pageSize != 0 || x.Size > r.Size-total || x.Offset%pageSize != 0 || x.Offset < 0 {
			return remote.Violation("region %d: page run of %#x bytes", id, x.Size)
		}
		total += x.Size
	}
	if total != r.Size {
		return remote.Violation("region %d: pages for %#x of %#x bytes", id, total, r.Size)
	}
	if m.watcher != nil && r.runs == nil && id != 0 {
		m.watcher.Declared(id, r.Declared)
	}
	r.runs = runs
	close(m.changed)
	m.changed = make(chan struct{})
	if r.mapped && !m.detached {
		r.conceal()
		return r.fill()
	}
	return nil
}

// merge joins runs that continue each other, which saves mappings.
func merge(runs []Run) []Run {
	out := make([]Run, 0, len(runs))
	for _, x := range runs {
		if n := len(out); n > 0 && out[n-1].FD == x.FD && out[n-1].Offset+int64(out[n-1].Size) == x.Offset {
			out[n-1].Size += x.Size
			continue
		}
		out = append(out, x)
	}
	return out
}

// End forgets a region. It must not be mapped: a region that the session still uses stays until
// Unmap.
func (m *Memory) End(id uint32) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	r, ok := m.regions[id]
	if !ok {
		return fmt.Errorf("end region %d: %w", id, remote.ErrUnknownRegion)
	}
	if m.watcher != nil && id != 0 {
		err := m.dropLocked(id, r) // nobody has more than ReadAt and WriteAt
		if r.runs != nil {
			// Who hears of it may say so at once to whom the region was exposed.
			m.watcher.Dropped(id)
		}
		return err
	}
	if r.mapped {
		return remote.Violation("region %d ended while it is in use", id)
	}
	return m.dropLocked(id, r)
}

// Watch implements remote.Watchable.
func (m *Memory) Watch(w remote.Watcher) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.watcher = w
	for _, id := range slices.Sorted(maps.Keys(m.regions)) {
		if r := m.regions[id]; r.runs != nil && id != 0 {
			w.Declared(id, r.Declared)
		}
	}
}

func (m *Memory) dropLocked(id uint32, r *region) error {
	delete(m.regions, id)
	r.conceal()
	if r.mapped {
		r.span.release()
	}
	if r.own != nil {
		return r.own()
	}
	return nil
}

// Await implements remote.GuestMemory.
func (m *Memory) Await(ctx context.Context, id uint32) (remote.Declared, error) {
	for polled := m.poll == nil; ; polled = true {
		m.mu.Lock()
		r, ok := m.regions[id]
		ready := ok && (r.runs != nil || m.detached)
		var why error
		if ok {
			why = r.why
		}
		changed := m.changed
		m.mu.Unlock()
		if why != nil {
			return remote.Declared{}, fmt.Errorf("region %d: %w", id, why)
		}
		if ready {
			return r.Declared, nil
		}
		if !polled {
			m.poll()
			continue
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return remote.Declared{}, fmt.Errorf("region %d: %w", id, remote.ErrUnknownRegion)
		}
	}
}

// Map implements remote.Mapper.
func (m *Memory) Map(id uint32, at uint64) ([]byte, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	r, ok := m.regions[id]
	switch {
	case !ok || r.runs == nil && !m.detached:
		return nil, fmt.Errorf("map region %d: %w", id, remote.ErrUnknownRegion)
	case r.mapped && at != 0 && uint64(r.span.addr) != at:
		return nil, fmt.Errorf("region %d is mapped at another address", id)
	case r.mapped:
		return r.mem, nil
	}
	var err error
	if r.placed = at != 0; r.placed {
		r.span, err = m.vacated.take(uintptr(at), uintptr(r.Size))
	} else {
		r.span, err = reserve(0, uintptr(r.Size))
	}
	if err != nil {
		return nil, fmt.Errorf("map region %d: %w", id, err)
	}
	if !m.detached {
		if err := r.fill(); err != nil {
			return nil, fmt.Errorf("map region %d: %w", id, errors.Join(err, m.leaveLocked(r)))
		}
	}
	r.mapped, r.mem = true, r.span.bytes()
	return r.mem, nil
}

// fill puts the region's pages behind its addresses.
func (r *region) fill() error {
	if r.runs == nil {
		return fmt.Errorf("a region at %#x has no pages: %w", r.VA, remote.ErrUnknownRegion)
	}
	var off uintptr
	for _, x := range r.runs {
		if err := r.span.fill(off, uintptr(x.Size), x.FD, x.Offset); err != nil {
			return err
		}
		off += uintptr(x.Size)
	}
	r.span.noDump()
	return nil
}

// Unmap implements remote.Mapper. Large mappings take milliseconds to go (30 ms/GiB): the caller
// need not wait for that, only who then wants something of the memory.
func (m *Memory) Unmap(id uint32) error {
	m.mu.Lock()
	r, ok := m.regions[id]
	if !ok || !r.mapped {
		m.mu.Unlock()
		return fmt.Errorf("unmap region %d: %w", id, remote.ErrUnknownRegion)
	}
	if r.placed && !m.vacated.makeRoom(r.span) {
		m.mu.Unlock()
		return fmt.Errorf("unmap region %d: regions have lain at more than %d places", id, maxVacated)
	}
	r.mapped, r.mem = false, nil
	if r.span.size < unmapAside {
		err := m.leaveLocked(r)
		m.mu.Unlock()
		return err
	}
	go func() {
		_ = m.leaveLocked(r)
		m.mu.Unlock()
	}()
	return nil
}

// leaveLocked takes a region's pages from its addresses, and keeps those that the guest chose.
func (m *Memory) leaveLocked(r *region) error {
	r.conceal()
	if !r.placed {
		r.span.release()
		return nil
	}
	if err := r.span.clear(); err != nil {
		r.span.release() // rather nobody's than still the guest's
		return err
	}
	m.vacated.add(r.span)
	return nil
}

// Lend implements remote.Lender.
func (m *Memory) Lend(at, size uint64) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.vacated.nearly(uintptr(at), uintptr(size)) {
		return false
	}
	s, err := m.vacated.take(uintptr(at), uintptr(size))
	if err == nil {
		s.release()
	}
	return err == nil
}

// Keep implements remote.Lender.
func (m *Memory) Keep(at, size uint64) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	s, err := reserve(uintptr(at), uintptr(size))
	if err != nil {
		return fmt.Errorf("addresses at which regions have lain: %w", err)
	}
	if !m.vacated.makeRoom(s) {
		s.release()
		return fmt.Errorf("regions have lain at more than %d places", maxVacated)
	}
	m.vacated.add(s)
	return nil
}

// Detach takes the pages away from all mapped regions; nothing may touch them until Attach.
// Meanwhile a region can be mapped that has none yet.
func (m *Memory) Detach() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.detached = true
	var errs []error
	for _, r := range m.regions {
		r.conceal()
		if r.mapped {
			errs = append(errs, r.span.clear())
		}
	}
	return errors.Join(errs...)
}

// Attach brings the pages back.
func (m *Memory) Attach() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.detached = false
	var errs []error
	for _, r := range m.regions {
		if r.mapped {
			errs = append(errs, r.fill())
		}
	}
	return errors.Join(errs...)
}

// ReadAt implements remote.GuestMemory. The region need not be mapped by Map.
func (m *Memory) ReadAt(id uint32, p []byte, off uint64) error {
	return m.copy(id, off, len(p), func(mem []byte) { copy(p, mem) })
}

// WriteAt implements remote.GuestMemory.
func (m *Memory) WriteAt(id uint32, p []byte, off uint64) error {
	return m.copy(id, off, len(p), func(mem []byte) { copy(mem, p) })
}

// copy maps a region if it is not, and hands its bytes to move, which has them until it returns.
// Others copy meanwhile: the parts of a large copy are as many connections'.
func (m *Memory) copy(id uint32, off uint64, n int, move func(mem []byte)) error {
	m.mu.RLock()
	r, err := m.lentLocked(id)
	if err != nil {
		m.mu.RUnlock()
		if _, err = m.Map(id, 0); err != nil {
			return err
		}
		m.mu.RLock()
		r, err = m.lentLocked(id)
	}
	defer m.mu.RUnlock()
	switch {
	case err != nil:
		return err
	case off > r.Size || uint64(n) > r.Size-off:
		return fmt.Errorf("region %d, %#x+%#x of %#x bytes: %w", id, off, n, r.Size, remote.ErrOutOfBounds)
	}
	move(r.mem[off : off+uint64(n)])
	return nil
}

// lentLocked is a region that is mapped, whose pages stay while Memory.mu is held.
func (m *Memory) lentLocked(id uint32) (*region, error) {
	r, ok := m.regions[id]
	switch {
	case !ok || !r.mapped:
		return nil, fmt.Errorf("region %d: %w", id, remote.ErrUnknownRegion)
	case m.detached:
		return nil, fmt.Errorf("region %d is not lent: %w", id, remote.ErrClosed)
	}
	return r, nil
}

// Close unmaps and forgets everything.
func (m *Memory) Close() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	var errs []error
	for id, r := range m.regions {
		errs = append(errs, m.dropLocked(id, r))
	}
	m.vacated.release()
	return errors.Join(errs...)
}
