package relay

import (
	"maps"
	"slices"
	"sync"

	"causeway/remote"
	"causeway/remote/frame"
)

// mostChanges bounds regions that came and went and that the server has not been told of. A guest
// waits for an answer with each that it adds.
const mostChanges = 8192

// change is a region that came, or one that went: its size is 0.
type change struct {
	id       uint32
	va, size uint64
	back     bool // the server knows it: it can be granted
}

// regions is what the guest has declared, and what of it the server is to be told. It implements
// remote.Watcher.
type regions struct {
	poke func()

	mu    sync.Mutex
	sizes map[uint32]uint64
	vas   map[uint32]uint64 // as far as they are known
	// That the server knows, and that are not reachable yet since the session came here.
	again   map[uint32]bool
	lends   bool // the server may be granted them
	changes []change
	flood   bool
}

func (r *regions) init(poke func()) {
	r.poke = poke
	r.sizes, r.vas = map[uint32]uint64{0: remote.Region0Size}, map[uint32]uint64{}
}

// Declared implements remote.Watcher.
func (r *regions) Declared(id uint32, d remote.Declared) {
	r.note(change{id: id, va: d.VA, size: d.Size})
}

// Dropped implements remote.Watcher.
func (r *regions) Dropped(id uint32) { r.note(change{id: id}) }

func (r *regions) note(c change) {
	r.mu.Lock()
	known := c.size != 0 && r.again[c.id] && r.sizes[c.id] == c.size
	delete(r.again, c.id)
	if c.size != 0 {
		r.vas[c.id] = c.va
	} else {
		delete(r.vas, c.id)
	}
	c.back = known
	if known && !r.lends {
		r.mu.Unlock()
		return
	}
	if c.size != 0 {
		r.sizes[c.id] = c.size
	} else {
		delete(r.sizes, c.id)
	}
	if r.flood = r.flood || len(r.changes) >= mostChanges; !r.flood {
		r.changes = append(r.changes, c)
	}
	r.mu.Unlock()
	r.poke()
}

// next takes the oldest change.
func (r *regions) next() (c change, ok bool, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.flood {
		return c, false, remote.Violation("%d regions come and go at once", mostChanges)
	}
	if len(r.changes) == 0 {
		r.changes = nil
		return c, false, nil
	}
	c, r.changes = r.changes[0], r.changes[1:]
	return c, true, nil
}

// settled are all regions but 0, if the server knows of each that came or went.
func (r *regions) settled() (all []Change, ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.changes) > 0 || r.flood {
		return nil, false
	}
	for _, id := range slices.Sorted(maps.Keys(r.sizes)) {
		if id != 0 {
			all = append(all, Change{ID: id, VA: r.vas[id], Size: r.sizes[id]})
		}
	}
	return all, true
}

// has reports whether an extent lies in a declared region.
func (r *regions) has(e frame.Extent) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	size, ok := r.sizes[e.Region]
	return ok && e.Within(size)
}
