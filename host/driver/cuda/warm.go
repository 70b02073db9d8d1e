package cuda

import (
	"fmt"
	"log/slog"
	"runtime"

	"causeway/cuda"
	"causeway/host/driver"
	"causeway/host/driver/cuda/bind"
)

// warmth is what a backend has ready for its session.
type warmth struct {
	version uint32
	devices []deviceInfo
	primary bind.Context // the first device's primary context, retained; none: taken or let go
	fences  *fencePool
	sums    sumsFunction // in primary, for as long as this process lives
}

// Warm implements driver.Warmer: it starts the driver and makes the first device's primary context,
// which is what a process waits for before its first kernel (94 ms and 94 ms on an H200).
func (b *Backend) Warm(o driver.Options) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	applyEnvironment(nil, offered(o))
	d := b.drv
	if o.Migratable {
		loadCompiler()
	}
	w, res := start(d)
	if res != cuda.Success {
		return fmt.Errorf("start the driver: %w", res)
	}
	if err := w.permitted(o); err != nil {
		return err
	}
	if w.primary, res = d.DevicePrimaryCtxRetain(0); res != cuda.Success {
		return fmt.Errorf("primary context: %w", res)
	}
	res = d.CtxSetCurrent(w.primary)
	if res == cuda.Success {
		w.fences, res = newFencePool(d)
	}
	if res == cuda.Success && o.Migratable {
		// In every process of such a session, before anything is loaded for it: it moves variables
		// everywhere alike.
		w.sums = loadSums(d)
	}
	if res == cuda.Success && !o.Migratable {
		// Then what was allocated once would move the variables of what is loaded later.
		res = firsts(d, w.fences)
	}
	if res != cuda.Success {
		w.let(d)
		return fmt.Errorf("first work of the primary context: %w", res)
	}
	d.CtxSetCurrent(bind.Context{})
	b.warm = w
	return nil
}

// loadCompiler loads the driver's compiler of PTX. The driver does so when it first compiles
// something that its cache does not have: in a session's first process, and not in the next, where
// what is placed behind it (38 MiB) would then come out 32 MiB lower.
func loadCompiler() {
	if err := bind.Preload("libnvidia-ptxjitcompiler.so.1"); err != nil {
		slog.Debug("the driver's compiler of PTX is not loaded ahead", "error", err)
	}
}

// start initialises the driver and describes its devices.
func start(d *bind.Driver) (*warmth, cuda.Result) {
	if res := d.Init(0); res != cuda.Success {
		return nil, res
	}
	version, res := d.DriverGetVersion()
	if res != cuda.Success {
		return nil, res
	}
	w := &warmth{version: uint32(version)}
	n, res := d.DeviceGetCount()
	if res != cuda.Success {
		return nil, res
	}
	if n == 0 {
		return nil, cuda.ErrorNoDevice
	}
	for i := range n {
		info, res := describe(d, uint32(i))
		if res != cuda.Success {
			return nil, res
		}
		w.devices = append(w.devices, info)
	}
	return w, cuda.Success
}

// firsts does what takes longer the first time: a stream, a write behind its work, an allocation.
func firsts(d *bind.Driver, p *fencePool) cuda.Result {
	stream, res := d.StreamCreateWithPriority(cuda.StreamNonBlocking, 0)
	if res != cuda.Success {
		return res
	}
	defer d.StreamDestroy(stream)
	mem, res := d.MemAlloc(1 << 20)
	if res != cuda.Success {
		return res
	}
	defer d.MemFree(mem.Address())
	set := d.MemsetD8Async(mem, 0, stream)
	if res := set.Do(); res != cuda.Success {
		return res
	}
	x, _ := p.take()
	defer p.put(x)
	write := d.StreamWriteValue32(stream, x.dev, x.value, 0)
	if res := write.Do(); res != cuda.Success {
		return res
	}
	return d.StreamSynchronize(stream)
}

// take hands out the retained primary context of device dev and the fences in it; none if it is not
// ready.
func (w *warmth) take(dev uint32) (bind.Context, *fencePool) {
	if w == nil || dev != 0 || w.primary.IsZero() {
		return bind.Context{}, nil
	}
	ctx, fences := w.primary, w.fences
	w.primary, w.fences = bind.Context{}, nil
	return ctx, fences
}

// let gives up the context if no session took it. It leaves no context current.
func (w *warmth) let(d *bind.Driver) {
	if w == nil || w.primary.IsZero() {
		return
	}
	d.CtxSetCurrent(w.primary)
	if w.fences != nil {
		w.fences.free(d)
	}
	d.CtxSetCurrent(bind.Context{})
	d.DevicePrimaryCtxRelease(0)
	w.primary, w.fences = bind.Context{}, nil
}
