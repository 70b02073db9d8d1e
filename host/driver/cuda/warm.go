package cuda

import (
	"fmt"
	"runtime"

	"causeway/cuda"
	"causeway/host/driver"
)

// warmth is what a backend has ready for its session.
type warmth struct {
	version uint32
	devices []deviceInfo
	primary uint64 // the first device's primary context, retained; 0: taken or let go
	fences  *fencePool
}

// Warm implements driver.Warmer: it starts the driver and makes the first device's primary context, which is what a process
// waits for before its first kernel (94 ms and 94 ms on an H200).
func (b *Backend) Warm(o driver.Options) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	applyEnvironment(nil, offered(o))
	w, res := b.lib.start()
	if res != cuda.Success {
		return fmt.Errorf("start the driver: %w", res)
	}
	if err := w.permitted(o); err != nil {
		return err
	}
	out := newBuffer(16)
	defer out.free()
	f := &b.lib.fn
	if res := f.cuDevicePrimaryCtxRetain.call(out.addr(), 0); res != cuda.Success {
		return fmt.Errorf("primary context: %w", res)
	}
	w.primary = *out.u64(0)
	res = f.cuCtxSetCurrent.call(w.primary)
	if res == cuda.Success {
		w.fences, res = newFencePool(f)
	}
	if res == cuda.Success {
		res = f.firsts(w.fences, out)
	}
	if res != cuda.Success {
		w.let(f)
		return fmt.Errorf("first work of the primary context: %w", res)
	}
	f.cuCtxSetCurrent.call(0)
	b.warm = w
	return nil
}

// start initialises the driver and describes its devices.
func (l *lib) start() (*warmth, cuda.Result) {
	out := newBuffer(16)
	defer out.free()
	if res := l.fn.cuInit.call(0); res != cuda.Success {
		return nil, res
	}
	if res := l.fn.cuDriverGetVersion.call(out.addr()); res != cuda.Success {
		return nil, res
	}
	w := &warmth{version: uint32(*out.i32(0))}
	if res := l.fn.cuDeviceGetCount.call(out.addr()); res != cuda.Success {
		return nil, res
	}
	n := int(*out.i32(0))
	if n == 0 {
		return nil, cuda.ErrorNoDevice
	}
	for i := range n {
		info, res := l.deviceInfo(i)
		if res != cuda.Success {
			return nil, res
		}
		w.devices = append(w.devices, info)
	}
	return w, cuda.Success
}

// firsts does what takes longer the first time: a stream, a write behind its work, an allocation.
func (f *entryPoints) firsts(p *fencePool, out buffer) cuda.Result {
	if res := f.cuStreamCreateWithPriority.call(out.addr(), streamNonBlocking, 0); res != cuda.Success {
		return res
	}
	stream := *out.u64(0)
	defer f.cuStreamDestroy_v2.call(stream)
	if res := f.cuMemAlloc_v2.call(out.addr(), 1<<20); res != cuda.Success {
		return res
	}
	mem := *out.u64(0)
	defer f.cuMemFree_v2.call(mem)
	if res := f.cuMemsetD8Async.call(mem, 0, 1<<20, stream); res != cuda.Success {
		return res
	}
	x, _ := p.take()
	defer p.put(x)
	if res := f.cuStreamWriteValue32_v2.call(stream, x.dev, uint64(x.value), 0); res != cuda.Success {
		return res
	}
	return f.cuStreamSynchronize.call(stream)
}

// take hands out the retained primary context of device dev and the fences in it; 0 if it is not ready.
func (w *warmth) take(dev uint32) (uint64, *fencePool) {
	if w == nil || dev != 0 || w.primary == 0 {
		return 0, nil
	}
	ctx, fences := w.primary, w.fences
	w.primary, w.fences = 0, nil
	return ctx, fences
}

// let gives up the context if no session took it. It leaves no context current.
func (w *warmth) let(f *entryPoints) {
	if w == nil || w.primary == 0 {
		return
	}
	f.cuCtxSetCurrent.call(w.primary)
	if w.fences != nil {
		w.fences.free(f)
	}
	f.cuCtxSetCurrent.call(0)
	f.cuDevicePrimaryCtxRelease_v2.call(0)
	w.primary, w.fences = 0, nil
}
