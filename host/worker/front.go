package worker

import (
	"context"
	"errors"
	"time"

	"causeway/cuda"
	"causeway/cuda/wire"
	"causeway/host/driver"
	"causeway/remote"
)

// regionWait is how long RegionAdd waits for a declaration that travels beside the ring.
const regionWait = 5 * time.Second

// front is the driver with the session's own operations in front of it. It runs on the consumer.
type front struct {
	driver.Session
	w *Worker
}

var _ wire.Driver = (*front)(nil)

// SessionInit implements wire.Driver. It is part of the record: a fresh worker begins with it.
func (f *front) SessionInit(c *wire.Call, a *wire.SessionInitArgs, r *wire.SessionInitReply) cuda.Result {
	if f.w.record.initialised() {
		return cuda.ErrorInvalidValue
	}
	res := f.Session.SessionInit(c, a, r)
	if res == cuda.Success {
		f.w.guest = guestOf(a)
	}
	return res
}

// SessionFence implements wire.Driver: being consumed is the answer.
func (f *front) SessionFence(*wire.Call) cuda.Result { return cuda.Success }

// BlobAppend implements wire.Driver.
func (f *front) BlobAppend(_ *wire.Call, a *wire.BlobAppendArgs) cuda.Result {
	return f.w.blobs.append(a.Blob, a.Total, a.Part)
}

// ReplyMore implements wire.Driver.
func (f *front) ReplyMore(c *wire.Call, a *wire.ReplyMoreArgs, r *wire.ReplyMoreReply) (res cuda.Result) {
	r.Part, res = f.w.replyMore(c.Slot, a.Offset)
	return res
}

// ConsoleRead implements wire.Driver.
func (f *front) ConsoleRead(_ *wire.Call, r *wire.ConsoleReadReply) cuda.Result {
	r.Text, r.Stream = f.w.consoleRead()
	return cuda.Success
}

// CallbackOpen implements wire.Driver: from now on the slot is the guest's callback thread's.
func (f *front) CallbackOpen(c *wire.Call) cuda.Result { return f.w.calls.openAt(c.Slot, c.Seq) }

// RegionAdd implements wire.Driver: the region is mapped before the driver hears of it.
func (f *front) RegionAdd(c *wire.Call, a *wire.RegionAddArgs, r *wire.RegionAddReply) cuda.Result {
	w := f.w
	if a.Kind != wire.RegionStaging && a.Kind != wire.RegionPinned {
		return cuda.ErrorInvalidValue
	}
	if _, ok := w.Region(a.Region); ok {
		return cuda.ErrorInvalidValue
	}
	ctx, cancel := context.WithTimeout(w.ctx, regionWait)
	d, err := w.memory.Await(ctx, a.Region)
	cancel()
	if errors.Is(err, remote.ErrRefused) {
		w.log.Warn("a region is refused", "region", a.Region, "error", err)
		return cuda.ErrorNotSupported
	}
	if err != nil || d.VA != a.Va || d.Size != a.Size {
		w.log.Warn("region is not what was declared", "region", a.Region, "va", a.Va, "size", a.Size, "declared", d, "error", err)
		return cuda.ErrorInvalidValue
	}
	reg := driver.Region{ID: a.Region, Kind: a.Kind, VA: a.Va, Size: a.Size, IO: regionIO{w.memory, w.early, a.Region}}
	if w.mapper != nil {
		at := uint64(0)
		if a.Kind == wire.RegionPinned {
			at = a.Va
		}
		if reg.Mem, err = w.mapper.Map(a.Region, at); err != nil {
			w.log.Warn("region cannot be mapped", "region", a.Region, "error", err)
			return cuda.ErrorNotSupported
		}
	}
	w.regionMu.Lock()
	w.regions[a.Region] = reg
	w.regionMu.Unlock()
	res := f.Session.RegionAdd(c, a, r)
	if res != cuda.Success {
		f.forget(a.Region)
	}
	return res
}

// RegionDrop implements wire.Driver.
func (f *front) RegionDrop(c *wire.Call, a *wire.RegionDropArgs) cuda.Result {
	if _, ok := f.w.Region(a.Region); !ok || a.Region == 0 {
		return cuda.ErrorInvalidValue
	}
	if res := f.Session.RegionDrop(c, a); res != cuda.Success {
		return res
	}
	f.forget(a.Region)
	return cuda.Success
}

// lent are addresses that a reservation of the driver's has of those at which regions have lain.
type lent struct{ at, size uint64 }

// Addresses are lent where Linux and Go put nothing by themselves: for a moment they are nobody's.
const lendFrom, lendTo = 0x6000_0000_0000, 0x7800_0000_0000

// MemAddressReserve implements wire.Driver. Addresses at which a region of the guest's has lain are
// the driver's for as long as it has them reserved: memory behind them is the guest's then, as
// before.
func (f *front) MemAddressReserve(c *wire.Call, a *wire.MemAddressReserveArgs, r *wire.MemAddressReserveReply) cuda.Result {
	w := f.w
	given := w.lender != nil && a.Addr >= lendFrom && a.Addr < lendTo && a.Size <= lendTo-a.Addr && w.lender.Lend(a.Addr, a.Size)
	res := f.Session.MemAddressReserve(c, a, r)
	switch {
	case given && res == cuda.Success && r.Ptr == a.Addr:
		w.lent[a.Resv] = lent{a.Addr, a.Size}
	case given:
		f.keep(a.Addr, a.Size)
	}
	return res
}

// MemAddressFree implements wire.Driver.
func (f *front) MemAddressFree(c *wire.Call, a *wire.MemAddressFreeArgs) cuda.Result {
	res := f.Session.MemAddressFree(c, a)
	if l, ok := f.w.lent[a.Resv]; ok && res == cuda.Success {
		delete(f.w.lent, a.Resv)
		f.keep(l.at, l.size)
	}
	return res
}

// MemCreate implements wire.Driver. What is to lie on the host is of the session's budget of its
// memory.
func (f *front) MemCreate(c *wire.Call, a *wire.MemCreateArgs) cuda.Result {
	w := f.w
	switch a.Place {
	case wire.MemOnHost:
	case wire.MemIfRoom:
		there := *a
		there.Place = wire.MemOnDevice
		res := f.Session.MemCreate(c, &there)
		if res == cuda.ErrorOutOfMemory && !c.Replay {
			w.slots[c.Slot].excuse()
		}
		return res
	default:
		return f.Session.MemCreate(c, a)
	}
	if !w.host.reserveInPlace(a.Size) {
		return cuda.ErrorOutOfMemory
	}
	res := f.Session.MemCreate(c, a)
	if res != cuda.Success {
		w.host.releaseInPlace(a.Size)
		return res
	}
	w.onHost[a.Memhandle] = a.Size
	return res
}

// MemRelease implements wire.Driver.
func (f *front) MemRelease(c *wire.Call, a *wire.MemReleaseArgs) cuda.Result {
	res := f.Session.MemRelease(c, a)
	if size, ok := f.w.onHost[a.Memhandle]; ok && res == cuda.Success {
		delete(f.w.onHost, a.Memhandle)
		f.w.host.releaseInPlace(size)
	}
	return res
}

func (f *front) keep(at, size uint64) {
	if err := f.w.lender.Keep(at, size); err != nil {
		f.w.log.Warn("addresses are not kept free", "at", at, "size", size, "error", err)
	}
}

func (f *front) forget(id uint32) {
	w := f.w
	w.regionMu.Lock()
	delete(w.regions, id)
	w.regionMu.Unlock()
	if w.mapper != nil {
		if err := w.mapper.Unmap(id); err != nil {
			w.log.Warn("unmap region", "region", id, "error", err)
		}
	}
}
