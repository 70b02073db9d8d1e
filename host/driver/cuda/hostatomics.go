package cuda

import (
	"encoding/binary"
	"log/slog"
	"sync/atomic"

	"causeway/cuda"
	"causeway/cuda/fatbin"
	"causeway/host/driver/cuda/bind"
)

// atomicKinds are the operations that countAtomics knows. Each writes back what it read: only an
// update of the processor's that came in between can be lost.
const atomicKinds = 10

// atomicWork is what each kind is tried with: 4 warps, so many operations of each thread. 0.3 ms
// over PCIe.
const (
	atomicThreads = 128
	atomicEach    = 32
)

const atomicProbe = `.version 6.4
.target sm_75
.address_size 64
.visible .entry probe(.param .u64 at, .param .u32 kind, .param .u32 times)
{
	.reg .b64 %a, %x, %y; .reg .b32 %k, %n, %v, %w, %none, %all; .reg .b64 %none2; .reg .f32 %f; .reg .pred %p;
	ld.param.u64 %a, [at];
	ld.param.u32 %k, [kind];
	ld.param.u32 %n, [times];
	shr.u32 %none, %k, 31; // 0, which the assembler does not know
	not.b32 %all, %none;
	cvt.u64.u32 %none2, %none;
	mov.f32 %f, 0f00000000;
next:
	setp.eq.u32 %p, %k, 0; @%p atom.sys.add.u32 %v, [%a], %none;
	setp.eq.u32 %p, %k, 1; @%p atom.sys.and.b32 %v, [%a], %all;
	setp.eq.u32 %p, %k, 2; @%p atom.sys.or.b32 %v, [%a], %none;
	setp.eq.u32 %p, %k, 3; @%p atom.sys.xor.b32 %v, [%a], %none;
	setp.eq.u32 %p, %k, 4; @%p atom.sys.max.u32 %v, [%a], %none;
	setp.eq.u32 %p, %k, 5; @%p atom.sys.min.u32 %v, [%a], %all;
	setp.eq.u32 %p, %k, 6; @%p atom.sys.add.f32 %f, [%a], 0f00000000;
	setp.eq.u32 %p, %k, 7; @%p ld.volatile.u32 %v, [%a]; @%p atom.sys.cas.b32 %w, [%a], %v, %v;
	setp.eq.u32 %p, %k, 8; @%p atom.sys.add.u64 %x, [%a], %none2;
	setp.eq.u32 %p, %k, 9; @%p red.sys.add.u32 [%a], %none;
	sub.u32 %n, %n, 1;
	setp.ne.u32 %p, %n, 0;
	@%p bra next;
	ret;
}
`

// claimsAtomics reports whether the driver says of a device that its atomic operations and the
// processor's on one word of the host's memory exclude each other.
func claimsAtomics(info *deviceInfo) bool {
	return info.Attrs[cuda.DeviceAttrHostNativeAtomicSupported] != 0
}

// settleAtomics makes a device's attributes promise about memory that it shares with the processor
// what holds here. Managed memory of a guest is memory of the host and never the device's, so
// concurrent access needs atomic operations across the link. The driver's no is final; its yes is
// tried, on the calling thread, which is locked and has no context.
func settleAtomics(d *bind.Driver, ordinal uint32, info *deviceInfo) {
	if claimsAtomics(info) {
		lost, tried, res := countAtomics(d, ordinal)
		if res == cuda.Success && lost == 0 {
			return
		}
		if res == cuda.Success {
			slog.Warn("the driver says that atomic operations across the link work, which they do not", "device", ordinal, "lost", lost, "of", tried)
		} else {
			slog.Warn("whether atomic operations across the link work cannot be tried: they are said not to", "device", ordinal, "error", res)
		}
	}
	info.Attrs[cuda.DeviceAttrHostNativeAtomicSupported] = 0
	info.Attrs[cuda.DeviceAttrConcurrentManagedAccess] = 0
}

// countAtomics lets the device and the processor work on one word of the host's memory, and counts
// how many of the processor's updates were lost, of how many.
func countAtomics(d *bind.Driver, ordinal uint32) (lost, tried uint64, res cuda.Result) {
	ctx, res := d.DevicePrimaryCtxRetain(ordinal)
	if res != cuda.Success {
		return 0, 0, res
	}
	defer d.DevicePrimaryCtxRelease(ordinal)
	if res = d.CtxSetCurrent(ctx); res != cuda.Success {
		return 0, 0, res
	}
	defer d.CtxSetCurrent(bind.Context{})
	code, err := fatbin.Check([]byte(atomicProbe), func(int) bool { return false })
	if err != nil {
		return 0, 0, cuda.ErrorInvalidImage
	}
	im := bind.HoldImage(code, false)
	defer im.Release()
	module, res := d.ModuleLoadDataEx(im, nil)
	if res != cuda.Success {
		return 0, 0, res
	}
	defer d.ModuleUnload(module)
	kernel, res := d.ModuleGetFunction(module, []byte("probe"))
	if res != cuda.Success {
		return 0, 0, res
	}
	b := bind.NewBuffer(16)
	defer b.Free()
	r, res := d.Register(b.Host())
	if res != cuda.Success {
		return 0, 0, res
	}
	defer d.Unregister(r)
	for kind := uint32(0); kind < atomicKinds && res == cuda.Success; kind++ {
		var l, t uint64
		l, t, res = tryAtomics(d, kernel, r, kind)
		lost, tried = lost+l, tried+t
	}
	return lost, tried, res
}

// tryAtomics runs the kernel with one kind of operation while a goroutine counts up the word.
func tryAtomics(d *bind.Driver, kernel bind.Function, r bind.Registered, kind uint32) (lost, tried uint64, res cuda.Result) {
	word := r.Word64(0)
	const start = 1 << 62 // as a float, either half's is an ordinary number
	first := uint64(start) | 1<<30
	atomic.StoreUint64(word, first)
	var stop atomic.Bool
	began, counted := make(chan struct{}), make(chan uint64)
	go func() {
		close(began)
		n := uint64(0)
		for ; !stop.Load(); n++ {
			atomic.AddUint64(word, 1)
		}
		counted <- n
	}()
	<-began
	params := binary.LittleEndian.AppendUint64(nil, r.Mem().Address().Value())
	params = binary.LittleEndian.AppendUint32(params, kind)
	params = binary.LittleEndian.AppendUint32(params, atomicEach)
	args, ok := d.FunctionLayout(kernel).Arguments(params)
	if !ok {
		return 0, 0, cuda.ErrorInvalidValue
	}
	res = d.LaunchKernel(kernel, &bind.Dims{1, 1, 1, atomicThreads, 1, 1, 0}, bind.Stream{}, args)
	if sync := d.CtxSynchronize(); res == cuda.Success {
		res = sync
	}
	stop.Store(true)
	tried = <-counted
	return first + tried - atomic.LoadUint64(word), tried, res
}
