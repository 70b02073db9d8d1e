package device

import (
	"fmt"
	"slices"
	"time"

	"causeway/host/worker/link"
	"causeway/remote"
	"causeway/virtio"
	"causeway/virtio/fs"
)

const pageSize = 4096

// region is memory that the guest process declared, and what it has lent of it.
type region struct {
	id      uint32
	va      uint64
	size    uint64
	pieces  map[uint64]*piece // by offset; they do not overlap
	lent    uint64            // bytes
	sent    bool              // the worker knows the pages
	ending  bool              // no more loans
	changed bool              // pages differ from what the worker knows

	promised int // entries of the guest's queue that it has
}

// piece is one loan: the pages of one READ, until it is completed.
type piece struct {
	size    uint64
	ranges  []link.Range
	req     *fs.ReadRequest // nil: lapsed
	renewed time.Time
}

// lend takes a READ as the loan of a piece. It returns the READ that it renews, to be completed,
// if there is one.
func (r *region) lend(off uint64, req *fs.ReadRequest, now time.Time) (old *fs.ReadRequest, err error) {
	size := uint64(req.Size)
	if off%pageSize != 0 || size == 0 || size > r.size || off > r.size-size {
		return nil, fmt.Errorf("loan of %#x+%#x in region %d of %#x bytes", off, size, r.id, r.size)
	}
	ranges, err := pages(req.Ranges(), size)
	if err != nil {
		return nil, err
	}
	p := r.pieces[off]
	switch {
	case p == nil:
		if err := r.overlaps(off, size); err != nil {
			return nil, err
		}
		r.pieces[off] = &piece{size: size, ranges: ranges, req: req, renewed: now}
		r.lent += size
		r.changed = true
		return nil, nil
	case p.size != size:
		return nil, fmt.Errorf("loan at %#x of region %d has %#x bytes, not %#x as before", off, r.id, size, p.size)
	case !slices.Equal(p.ranges, ranges):
		if p.req != nil {
			// A lent page cannot move. What claims so is no guest kernel.
			return nil, fmt.Errorf("pages at %#x of region %d changed while they were lent", off, r.id)
		}
		p.ranges, r.changed = ranges, true
	}
	if p.req == nil {
		r.lent += size
	}
	old, p.req, p.renewed = p.req, req, now
	return old, nil
}

// isLent says whether there is a loan at an offset, which a READ would renew.
func (r *region) isLent(off uint64) bool {
	p := r.pieces[off]
	return p != nil && p.req != nil
}

func (r *region) overlaps(off, size uint64) error {
	for o, p := range r.pieces {
		if off < o+p.size && o < off+size {
			return fmt.Errorf("loans at %#x and %#x of region %d overlap", off, o, r.id)
		}
	}
	return nil
}

// complete says whether every page is lent.
func (r *region) complete() bool { return r.lent == r.size }

// expired says whether a loan was not renewed within a term.
func (r *region) expired(now time.Time, term time.Duration) bool {
	t := r.oldest()
	return !t.IsZero() && now.Sub(t) >= term
}

// renew has the terms of all loans begin anew.
func (r *region) renew(now time.Time) {
	for _, p := range r.pieces {
		p.renewed = now
	}
}

// oldest says when the loan that lapses first was renewed; zero if nothing is lent.
func (r *region) oldest() time.Time {
	var t time.Time
	for _, p := range r.pieces {
		if p.req != nil && (t.IsZero() || p.renewed.Before(t)) {
			t = p.renewed
		}
	}
	return t
}

// takeBack ends all loans and returns their READs.
func (r *region) takeBack() []*fs.ReadRequest {
	var reqs []*fs.ReadRequest
	for _, p := range r.pieces {
		if p.req != nil {
			reqs = append(reqs, p.req)
			p.req = nil
		}
	}
	r.lent = 0
	return reqs
}

// messages tell a worker of the region and its pages.
func (r *region) messages() []link.ToWorker {
	var ms []link.ToWorker
	if !r.sent {
		ms = append(ms, link.AddRegion{Region: r.id, VA: r.va, Size: r.size})
	}
	offs := make([]uint64, 0, len(r.pieces))
	for off := range r.pieces {
		offs = append(offs, off)
	}
	for i, off := range offs {
		ms = append(ms, link.AddPages{Region: r.id, At: off, Last: i == len(offs)-1, Ranges: r.pieces[off].ranges})
	}
	r.sent, r.changed = true, false
	return ms
}

// pages are those of a READ of so many bytes, in file order. Pages that are not whole cannot be
// shared: the guest's DMA goes through bounce buffers.
func pages(list []virtio.Range, size uint64) ([]link.Range, error) {
	es := make([]link.Range, 0, len(list))
	var total uint64
	for _, e := range list {
		if e.GPA%pageSize != 0 || e.Len%pageSize != 0 {
			return nil, fmt.Errorf("%w: buffer at %#x+%#x is not whole pages: align it, and boot the guest without SWIOTLB", errLoan, e.GPA, e.Len)
		}
		es = append(es, link.Range{GPA: e.GPA, Size: uint64(e.Len)})
		total += uint64(e.Len)
	}
	if total != size || len(es) > link.MaxRanges {
		return nil, fmt.Errorf("%w: %#x bytes of pages for %#x", errLoan, total, size)
	}
	return es, nil
}

// loanOf splits a file offset of FileLoan.
func loanOf(off uint64) (id uint32, at uint64) {
	off -= remote.FileLoan
	return uint32(off >> 44), off & (1<<44 - 1)
}
