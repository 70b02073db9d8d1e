package fs

import (
	"sync/atomic"

	"causeway/vhostuser"
)

/*
What the request queue holds. A READ that lends pages takes an entry of it for as long as they are
lent, so the queue bounds how many there are; how many pages each has the guest's kernel decides:
Linux 256, or what the queue's size leaves, and since 6.13 what its sysctl fs.fuse.max_pages_limit
says. It does not tell, so what is known is the largest that came.
*/

const (
	usualPages = 256  // of one request
	mostPages  = 1020 // what QEMU's largest queue leaves
	usualQueue = 1024 // as long as no queue ran

	// overhead is how many entries a request takes beside its pages, as Linux counts
	// (FUSE_HEADER_OVERHEAD).
	overhead = 4
)

// room is what is known of it. Any goroutine reads it.
type room struct {
	entries atomic.Int64 // of the first request queue; 0: none ran
	// Requests take an entry for each piece of memory: there are no indirect descriptors.
	spread atomic.Bool
	pages  atomic.Int64 // of the largest READ of a control file since INIT
}

// Starts tells how a queue is, before it has requests.
func (d *Device) Starts(index int, cfg vhostuser.QueueConfig) {
	if index == 1 { // guests that know of more use this one, too
		d.room.entries.Store(int64(cfg.Size))
		d.room.spread.Store(!cfg.IndirectDesc)
	}
}

// StartQueue implements vhostuser.Device.
func (d *Device) StartQueue(index int, cfg vhostuser.QueueConfig) error {
	d.Starts(index, cfg)
	return d.Runner.StartQueue(index, cfg)
}

func (r *room) size() int {
	if n := r.entries.Load(); n > 0 {
		return int(n)
	}
	return usualQueue
}

// largest is how many pages a READ has, as far as is known.
func (r *room) largest() int {
	return max(int(r.pages.Load()), min(usualPages, r.size()-overhead), 1)
}

// saw learns from a READ of so many bytes.
func (r *room) saw(size int) {
	n := min(int64(size)/pageSize, mostPages)
	for {
		was := r.pages.Load()
		if n <= was || r.pages.CompareAndSwap(was, n) {
			return
		}
	}
}

// LargestRead is how many bytes of whole pages the guest's kernel has in one READ, as far as is
// known.
func (d *Device) LargestRead() int { return d.room.largest() * pageSize }

// MostPending is how many such requests the guest's kernel can have in flight.
func (d *Device) MostPending() int {
	if d.room.spread.Load() {
		return d.room.size() / (d.room.largest() + overhead)
	}
	return d.room.size()
}
