package worker

import (
	"causeway/cuda"
	"causeway/cuda/fatbin"
	"causeway/cuda/wire"
	"causeway/host/driver"
)

// Requests with images, on their way to the driver. The bytes that came from the guest are in the
// budget already; here that is added which the driver makes of them: at least a copy, of a fatbin
// the unpacked entry for its GPU, and as much again in the course of that.

// ModuleLoad implements wire.Driver.
func (f *front) ModuleLoad(c *wire.Call, a *wire.ModuleLoadArgs, r *wire.ModuleLoadReply) cuda.Result {
	return f.load(&a.Image, logBytes(a.InfoCap, a.ErrCap), func() (cuda.Result, uint64) { return f.Session.ModuleLoad(c, a, r), r.Managed })
}

// LibraryLoad implements wire.Driver.
func (f *front) LibraryLoad(c *wire.Call, a *wire.LibraryLoadArgs, r *wire.LibraryLoadReply) cuda.Result {
	return f.load(&a.Image, logBytes(a.InfoCap, a.ErrCap), func() (cuda.Result, uint64) { return f.Session.LibraryLoad(c, a, r), r.Managed })
}

// LinkCreate implements wire.Driver. Its logs last as long as the link.
func (f *front) LinkCreate(c *wire.Call, a *wire.LinkCreateArgs) cuda.Result {
	return f.keeping(logBytes(a.InfoCap, a.ErrCap), func() cuda.Result { return f.Session.LinkCreate(c, a) })
}

// keeping has an operation make an object of which the driver keeps so many bytes, if there is room
// for them. They are booked when it is recorded.
func (f *front) keeping(n uint64, do func() cuda.Result) cuda.Result {
	res := f.within(n, do)
	if res == cuda.Success {
		f.w.host.release(n)
		f.w.extra = n
	}
	return res
}

// StreamCreate implements wire.Driver.
func (f *front) StreamCreate(c *wire.Call, a *wire.StreamCreateArgs) cuda.Result {
	return f.keeping(driver.StreamMemory, func() cuda.Result { return f.Session.StreamCreate(c, a) })
}

// GreenCtxStreamCreate implements wire.Driver.
func (f *front) GreenCtxStreamCreate(c *wire.Call, a *wire.GreenCtxStreamCreateArgs) cuda.Result {
	return f.keeping(driver.StreamMemory, func() cuda.Result { return f.Session.GreenCtxStreamCreate(c, a) })
}

// LinkAdd implements wire.Driver.
func (f *front) LinkAdd(c *wire.Call, a *wire.LinkAddArgs, r *wire.LinkAddReply) cuda.Result {
	return f.load(&a.Input, 0, func() (cuda.Result, uint64) { return f.Session.LinkAdd(c, a, r), 0 })
}

// LinkComplete implements wire.Driver. How large a link's result is nobody knows before.
func (f *front) LinkComplete(c *wire.Call, a *wire.LinkCompleteArgs, r *wire.LinkCompleteReply) cuda.Result {
	res := f.Session.LinkComplete(c, a, r)
	f.w.extra = uint64(len(r.Result))
	return res
}

// load runs a request with an image, if there is room for what the driver needs meanwhile. do also
// says how many bytes of managed variables it has found. An image that is recorded already is given
// to the driver from there: of equal ones there is one, however often the guest sends it.
func (f *front) load(image *[]byte, logs uint64, do func() (res cuda.Result, managed uint64)) cuda.Result {
	w := f.w
	*image = w.record.blobs.same(*image)
	unpacked := fatbin.Unpacked(*image, 0)
	kept := unpacked
	if d, ok := f.Session.(driver.Loader); ok {
		kept = d.ImageBytes(*image)
	}
	n := logs + unpacked + kept
	if !w.host.reserve(n) {
		return cuda.ErrorOutOfMemory
	}
	res, managed := do()
	w.host.release(n)
	if managed != 0 {
		// With managed variables there is code besides, in which they move, before and after.
		kept *= 3
	}
	if res == cuda.Success {
		w.extra = kept
	}
	return res
}

// mostLog bounds each of the logs that a driver writes for a guest.
const mostLog = 1 << 20

func logBytes(info, errs uint32) uint64 {
	return uint64(min(info, mostLog)) + uint64(min(errs, mostLog))
}
