package cuda

import (
	"sync/atomic"

	"causeway/cuda"
	"causeway/cuda/fatbin"
	"causeway/host/driver/cuda/bind"
)

// sumsThreads is how many threads sum a block up.
const sumsThreads = 256

// sumsSize is the room for sums that one launch makes: of a GiB in blocks of 64 KiB.
const sumsSize = 16384 * 16

/*
sumsKernel sums a block up with each of its CTAs. A thread takes every 256th pair of words, and the
first one the last bytes besides. It chains its words in two ways, each step of which is a bijection
of what came before: multiplied by an odd number, and folded. What the threads have, each from a
beginning of its own, is added up; a block of zeros has the sum 0, another's second half is odd. 128
bits under a key: for what changes by chance, and not against who knows the key.
*/
const sumsKernel = `.version 6.0
.target sm_60
.address_size 64
.visible .entry sums(.param .u64 mem, .param .u64 size, .param .u64 block, .param .u64 key0, .param .u64 key1, .param .u64 out)
{
	.reg .b64 %mem, %size, %block, %out, %a, %b, %x, %y, %p, %end, %t, %seen, %base; .reg .b32 %thread, %cta, %some; .reg .pred %c;
	.shared .align 8 .b64 total[3];
	ld.param.u64 %mem, [mem];
	ld.param.u64 %size, [size];
	ld.param.u64 %block, [block];
	ld.param.u64 %a, [key0];
	ld.param.u64 %b, [key1];
	ld.param.u64 %out, [out];
	mov.u32 %thread, %tid.x;
	mov.u32 %cta, %ctaid.x;
	setp.ne.u32 %c, %thread, 0;
	@%c bra cleared;
	mov.u64 %x, 0;
	st.shared.u64 [total], %x;
	st.shared.u64 [total+8], %x;
	st.shared.u64 [total+16], %x;
cleared:
	bar.sync 0;
	// This CTA's block is of size bytes at mem.
	cvt.u64.u32 %t, %cta;
	mul.lo.u64 %base, %t, %block;
	add.u64 %mem, %mem, %base;
	sub.u64 %size, %size, %base;
	min.u64 %size, %size, %block;
	// This thread's beginnings.
	cvt.u64.u32 %t, %thread;
	add.u64 %t, %t, 1;
	mul.lo.u64 %x, %t, 0x9e3779b97f4a7c15;
	add.u64 %a, %a, %x;
	xor.b64 %b, %b, %x;
	mov.u64 %seen, 0;
	and.b64 %end, %size, -16;
	add.u64 %end, %end, %mem;
	cvt.u64.u32 %p, %thread;
	shl.b64 %p, %p, 4;
	add.u64 %p, %p, %mem;
pairs:
	setp.ge.u64 %c, %p, %end;
	@%c bra last;
	ld.global.v2.u64 {%x, %y}, [%p];
	or.b64 %seen, %seen, %x;
	or.b64 %seen, %seen, %y;
	xor.b64 %a, %a, %x;
	mul.lo.u64 %a, %a, 0x6a09e667f3bcc909;
	shr.u64 %t, %a, 32;
	xor.b64 %a, %a, %t;
	xor.b64 %a, %a, %y;
	mul.lo.u64 %a, %a, 0xbb67ae8584caa73b;
	shr.u64 %t, %a, 29;
	xor.b64 %a, %a, %t;
	add.u64 %b, %b, %y;
	mul.lo.u64 %b, %b, 0x3c6ef372fe94f82b;
	shr.u64 %t, %b, 31;
	xor.b64 %b, %b, %t;
	add.u64 %b, %b, %x;
	mul.lo.u64 %b, %b, 0xa54ff53a5f1d36f1;
	shr.u64 %t, %b, 30;
	xor.b64 %b, %b, %t;
	add.u64 %p, %p, 4096;
	bra pairs;
last:
	setp.ne.u32 %c, %thread, 0;
	@%c bra whole;
	add.u64 %p, %mem, %size;
bytes:
	setp.ge.u64 %c, %end, %p;
	@%c bra whole;
	ld.global.u8 %x, [%end];
	or.b64 %seen, %seen, %x;
	xor.b64 %a, %a, %x;
	mul.lo.u64 %a, %a, 0x6a09e667f3bcc909;
	shr.u64 %t, %a, 32;
	xor.b64 %a, %a, %t;
	add.u64 %b, %b, %x;
	mul.lo.u64 %b, %b, 0x3c6ef372fe94f82b;
	shr.u64 %t, %b, 31;
	xor.b64 %b, %b, %t;
	add.u64 %end, %end, 1;
	bra bytes;
whole:
	mul.lo.u64 %a, %a, 0xff51afd7ed558ccd;
	shr.u64 %t, %a, 33;
	xor.b64 %a, %a, %t;
	mul.lo.u64 %b, %b, 0xff51afd7ed558ccd;
	shr.u64 %t, %b, 33;
	xor.b64 %b, %b, %t;
	red.shared.add.u64 [total], %a;
	red.shared.add.u64 [total+8], %b;
	setp.ne.u64 %c, %seen, 0;
	selp.u32 %some, 1, 0, %c;
	red.shared.or.b32 [total+16], %some;
	bar.sync 0;
	setp.ne.u32 %c, %thread, 0;
	@%c bra done;
	ld.shared.u64 %a, [total];
	ld.shared.u64 %b, [total+8];
	ld.shared.u32 %some, [total+16];
	or.b64 %b, %b, 1;
	setp.ne.u32 %c, %some, 0;
	selp.b64 %a, %a, 0, %c;
	selp.b64 %b, %b, 0, %c;
	cvt.u64.u32 %t, %cta;
	shl.b64 %t, %t, 4;
	add.u64 %out, %out, %t;
	st.global.v2.u64 [%out], {%a, %b};
done:
	ret;
}
`

// sumsFunction is the kernel in a context.
type sumsFunction struct {
	handle bind.Function
	layout *bind.Layout
	known  *atomic.Int32 // how fast it is
}

// Values of sumsFunction.known.
const (
	sumsUntried = iota
	sumsFast
	sumsSlow
)

// loadSums loads the kernel into the current context. Where that fails, memory is read to be summed
// up.
func loadSums(d *bind.Driver) (f sumsFunction) {
	code, err := fatbin.Check([]byte(sumsKernel), func(int) bool { return false })
	if err != nil {
		return f
	}
	im := bind.HoldImage(code, false)
	defer im.Release()
	module, res := d.ModuleLoadDataEx(im, nil)
	if res != cuda.Success {
		return f
	}
	f.known = new(atomic.Int32)
	if f.handle, res = d.ModuleGetFunction(module, []byte("sums")); res == cuda.Success {
		f.layout = d.FunctionLayout(f.handle)
	}
	return f
}
