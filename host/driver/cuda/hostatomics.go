package cuda

import (
	"encoding/binary"
	"log/slog"
	"sync/atomic"

	"causeway/cuda"
)

// atomicKinds are the operations that countAtomics knows. Each writes back what it read: only an update of the processor's that came in
// between can be lost.
const atomicKinds = 10

// atomicWork is what each kind is tried with: 4 warps, so many operations of each thread. 0.3 ms over PCIe.
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

// claimsAtomics reports whether the driver says of a device that its atomic operations and the processor's on one word of the
// host's memory exclude each other.
func (l *lib) claimsAtomics(d *deviceInfo) bool {
	return d.Attrs[cuda.DeviceAttrHostNativeAtomicSupported] != 0
}

// settleAtomics makes a device's attributes promise about memory that it shares with the processor what holds here. Managed memory of
// a guest is memory of the host and never the device's, so concurrent access needs atomic operations across the link. The driver's
// no is final; its yes is tried, on the calling thread, which is locked and has no context.
func (l *lib) settleAtomics(ordinal int, d *deviceInfo) {
	if l.claimsAtomics(d) {
		lost, tried, res := l.countAtomics(ordinal)
		if res == cuda.Success && lost == 0 {
			return
		}
		if res == cuda.Success {
			slog.Warn("the driver says that atomic operations across the link work, which they do not", "device", ordinal, "lost", lost, "of", tried)
		} else {
			slog.Warn("whether atomic operations across the link work cannot be tried: they are said not to", "device", ordinal, "error", res)
		}
	}
	d.Attrs[cuda.DeviceAttrHostNativeAtomicSupported] = 0
	d.Attrs[cuda.DeviceAttrConcurrentManagedAccess] = 0
}

// countAtomics lets the device and the processor work on one word of the host's memory, and counts how many of the processor's
// updates were lost, of how many.
func (l *lib) countAtomics(ordinal int) (lost, tried uint64, res cuda.Result) {
	f, out := &l.fn, newBuffer(16)
	defer out.free()
	if res = f.cuDevicePrimaryCtxRetain.call(out.addr(), uint64(ordinal)); res != cuda.Success {
		return 0, 0, res
	}
	defer f.cuDevicePrimaryCtxRelease_v2.call(uint64(ordinal))
	if res = f.cuCtxSetCurrent.call(*out.u64(0)); res != cuda.Success {
		return 0, 0, res
	}
	defer f.cuCtxSetCurrent.call(0)
	text, name := cString([]byte(atomicProbe)), cString([]byte("probe"))
	defer text.free()
	defer name.free()
	if res = f.cuModuleLoadDataEx.call(out.addr(), text.addr(), 0, 0, 0); res != cuda.Success {
		return 0, 0, res
	}
	module := *out.u64(0)
	defer f.cuModuleUnload.call(module)
	if res = f.cuModuleGetFunction.call(out.addr(), module, name.addr()); res != cuda.Success {
		return 0, 0, res
	}
	kernel := *out.u64(0)
	word := newBuffer(16)
	defer word.free()
	const portable, deviceMap = 1, 2
	if res = f.cuMemHostRegister_v2.call(word.addr(), 16, portable|deviceMap); res != cuda.Success {
		return 0, 0, res
	}
	defer f.cuMemHostUnregister.call(word.addr())
	if res = f.cuMemHostGetDevicePointer_v2.call(out.addr(), word.addr(), 0); res != cuda.Success {
		return 0, 0, res
	}
	device := *out.u64(0)
	for kind := uint32(0); kind < atomicKinds && res == cuda.Success; kind++ {
		var l, t uint64
		l, t, res = f.tryAtomics(kernel, device, word.u64(0), kind)
		lost, tried = lost+l, tried+t
	}
	return lost, tried, res
}

// tryAtomics runs the kernel with one kind of operation while a goroutine counts up the word.
func (f *entryPoints) tryAtomics(kernel, device uint64, word *uint64, kind uint32) (lost, tried uint64, res cuda.Result) {
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
	params := binary.LittleEndian.AppendUint64(nil, device)
	params = binary.LittleEndian.AppendUint32(params, kind)
	params = binary.LittleEndian.AppendUint32(params, atomicEach)
	res = f.cuLaunchKernel.launch(kernel, &launchDims{1, 1, 1, atomicThreads, 1, 1, 0}, 0, params)
	if sync := f.cuCtxSynchronize.call(); res == cuda.Success {
		res = sync
	}
	stop.Store(true)
	tried = <-counted
	return first + tried - atomic.LoadUint64(word), tried, res
}
