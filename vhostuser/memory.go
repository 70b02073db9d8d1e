package vhostuser

import (
	"errors"
	"fmt"
	"sort"
	"sync"
	"sync/atomic"
)

// Errors of memory changes and address translation.
var (
	ErrNotMapped    = errors.New("address range is not guest memory")
	ErrBadRegion    = errors.New("invalid memory region")
	ErrTooManySlots = errors.New("too many memory regions")
)

// MaxRegions is the number of memory slots offered to the front end.
const MaxRegions = 509

// An Observer hears of changes of the memory table, on the connection's goroutine. It must not
// change the table.
type Observer interface {
	// MemoryAdded is called after r became part of the table.
	MemoryAdded(r *Region)
	// MemoryRemoving is called before r leaves the table. When it returns, nobody may touch r any
	// more except through Views taken earlier. It must return promptly.
	MemoryRemoving(r *Region)
}

// Memory is a front end's memory table. The zero value is not usable; see NewMemory.
// All methods may be called from any goroutine.
type Memory struct {
	gen  atomic.Uint64
	view atomic.Pointer[View]

	changeMu  sync.Mutex // serialises changes and their announcements; taken before mu
	mu        sync.Mutex // guards observers
	observers []Observer

	logging atomic.Bool // mirrors F_LOG_ALL: the cheap test before logMu
	logMu   sync.RWMutex
	log     *dirtyLog
}

// NewMemory returns an empty table.
func NewMemory() *Memory {
	m := &Memory{}
	m.view.Store(newView(nil))
	return m
}

// Observe registers o for later changes, and calls MemoryAdded for the regions that exist already.
func (m *Memory) Observe(o Observer) {
	m.changeMu.Lock()
	defer m.changeMu.Unlock()
	m.mu.Lock()
	m.observers = append(m.observers[:len(m.observers):len(m.observers)], o)
	m.mu.Unlock()
	for _, r := range m.Regions() {
		o.MemoryAdded(r)
	}
}

// Generation counts changes of the table.
func (m *Memory) Generation() uint64 { return m.gen.Load() }

// Regions returns the regions of this moment, sorted by guest-physical address. A caller that wants
// to touch their bytes needs an Observer or a View.
func (m *Memory) Regions() []*Region {
	v := m.View()
	defer v.Release()
	return append([]*Region(nil), v.byGPA...)
}

// View pins the present table. Every View must be released.
func (m *Memory) View() *View {
	for {
		if v := m.view.Load(); v.tryRef() {
			return v
		}
		// The table changed between the load and the reference: take the new one.
	}
}

// UserToGPA translates a front-end address range, which must lie in one region.
func (m *Memory) UserToGPA(user, size uint64) (uint64, error) {
	v := m.View()
	defer v.Release()
	for _, r := range v.byGPA {
		if user >= r.user && user-r.user < r.size && size <= r.size-(user-r.user) {
			return r.gpa + (user - r.user), nil
		}
	}
	return 0, fmt.Errorf("front-end address %#x+%#x: %w", user, size, ErrNotMapped)
}

// Add maps size bytes of fd from offset as guest memory at gpa, which the front end knows as user.
// It takes over fd if it succeeds. Servers add regions themselves: this is for users without one.
func (m *Memory) Add(fd int, gpa, size, user, offset uint64) error {
	r, err := mapRegion(regionDesc{gpa: gpa, size: size, user: user, offset: offset}, fd)
	if err != nil {
		return err
	}
	if err := m.set(append(m.Regions(), r)); err != nil {
		r.disown()
		r.unref()
		return err
	}
	return nil
}

// Clear removes all regions.
func (m *Memory) Clear() { _ = m.set(nil) }

// set replaces the table. Regions of the present table that next names stay mapped; the others are
// announced and dropped. It takes over the references that the caller holds on new regions.
func (m *Memory) set(next []*Region) error {
	m.changeMu.Lock()
	defer m.changeMu.Unlock()
	return m.setLocked(next)
}

func (m *Memory) setLocked(next []*Region) error {
	sorted := append([]*Region(nil), next...)
	sort.Slice(sorted, func(i, j int) bool { return sorted[i].gpa < sorted[j].gpa })
	if err := checkRegions(sorted); err != nil {
		return err
	}
	old := m.view.Load()
	m.mu.Lock()
	observers := m.observers
	m.mu.Unlock()
	for _, r := range old.byGPA {
		if !contains(sorted, r) {
			for _, o := range observers {
				o.MemoryRemoving(r)
			}
		}
	}
	m.view.Store(newView(sorted))
	m.gen.Add(1)
	for _, r := range sorted {
		if !contains(old.byGPA, r) {
			for _, o := range observers {
				o.MemoryAdded(r)
			}
			r.unref() // the view holds its own reference now
		}
	}
	old.Release() // the table's reference: unmaps removed regions unless they are pinned
	return nil
}

func contains(rs []*Region, r *Region) bool {
	for _, x := range rs {
		if x == r {
			return true
		}
	}
	return false
}

// checkRegions refuses overlapping regions. rs is sorted by guest-physical address.
func checkRegions(rs []*Region) error {
	if len(rs) > MaxRegions {
		return ErrTooManySlots
	}
	for i := 1; i < len(rs); i++ {
		if rs[i-1].gpa+rs[i-1].size > rs[i].gpa {
			return fmt.Errorf("guest-physical overlap at %#x: %w", rs[i].gpa, ErrBadRegion)
		}
	}
	byUser := append([]*Region(nil), rs...)
	sort.Slice(byUser, func(i, j int) bool { return byUser[i].user < byUser[j].user })
	for i := 1; i < len(byUser); i++ {
		if byUser[i-1].user+byUser[i-1].size > byUser[i].user {
			return fmt.Errorf("front-end address overlap at %#x: %w", byUser[i].user, ErrBadRegion)
		}
	}
	return nil
}

// View is the table of one moment, pinned. Its methods may be called from any goroutine until
// Release.
type View struct {
	refs  atomic.Int64
	byGPA []*Region
}

func newView(rs []*Region) *View {
	v := &View{byGPA: rs}
	v.refs.Store(1)
	for _, r := range rs {
		r.ref()
	}
	return v
}

func (v *View) tryRef() bool {
	for {
		n := v.refs.Load()
		if n == 0 {
			return false
		}
		if v.refs.CompareAndSwap(n, n+1) {
			return true
		}
	}
}

// Hold pins v, which must be pinned, once more: Release must follow.
func (v *View) Hold() { v.refs.Add(1) }

// Release ends the pin. Bytes reached through the view must not be touched afterwards.
func (v *View) Release() {
	if v.refs.Add(-1) == 0 {
		for _, r := range v.byGPA {
			r.unref()
		}
	}
}

// Regions are the view's, sorted by guest-physical address. The slice is the view's.
func (v *View) Regions() []*Region { return v.byGPA }

// Region returns the region that holds gpa, or nil.
func (v *View) Region(gpa uint64) *Region {
	lo, hi := 0, len(v.byGPA)
	for lo < hi {
		mid := int(uint(lo+hi) >> 1)
		if v.byGPA[mid].gpa <= gpa {
			lo = mid + 1
		} else {
			hi = mid
		}
	}
	if lo == 0 {
		return nil
	}
	if r := v.byGPA[lo-1]; gpa-r.gpa < r.size {
		return r
	}
	return nil
}

// Bytes returns the longest prefix of [gpa, gpa+size) that lies in one region, at least one byte if
// size is not 0, or ErrNotMapped.
func (v *View) Bytes(gpa, size uint64) ([]byte, error) {
	r := v.Region(gpa)
	if r == nil {
		return nil, ErrNotMapped
	}
	off := gpa - r.gpa
	if size > r.size-off {
		size = r.size - off
	}
	return r.mem[off : off+size : off+size], nil
}
