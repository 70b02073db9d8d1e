# What train.py does, without PyTorch and on any GPU: a least squares fit in PTX, by ctypes and the driver API alone, whose losses are printed bit by bit.
#
#   plain.py STEPS [PAUSE_MS]
import ctypes
import struct
import sys
import time

steps, pause = int(sys.argv[1]), float(sys.argv[2] if len(sys.argv) > 2 else 0) / 1e3
N = 4096
PTX = b"""
.version 7.0
.target sm_75
.address_size 64
.visible .global .align 4 .f32 total;
// w += (t - w) / 16, and the sum of (t - w)^2, added in one order
.visible .entry step(.param .u64 weights, .param .u64 targets, .param .u32 count)
{
	.reg .pred %p<2>; .reg .b32 %r<3>; .reg .f32 %f<6>; .reg .b64 %d<6>;
	ld.param.u64 %d1, [weights]; ld.param.u64 %d2, [targets]; ld.param.u32 %r1, [count];
	mov.f32 %f1, 0f00000000;
	mov.u32 %r2, 0;
loop:
	ld.global.f32 %f2, [%d1]; ld.global.f32 %f3, [%d2];
	sub.f32 %f4, %f3, %f2;
	fma.rn.f32 %f1, %f4, %f4, %f1;
	fma.rn.f32 %f5, %f4, 0f3d800000, %f2;
	st.global.f32 [%d1], %f5;
	add.u64 %d1, %d1, 4; add.u64 %d2, %d2, 4; add.u32 %r2, %r2, 1;
	setp.lt.u32 %p1, %r2, %r1;
	@%p1 bra loop;
	mov.u64 %d3, total;
	st.global.f32 [%d3], %f1;
	ret;
}
"""
cuda = ctypes.CDLL("libcuda.so.1")
u64, ref = ctypes.c_uint64, ctypes.byref


def call(name, *args):
    res = getattr(cuda, name)(*args)
    if res:
        sys.exit(f"{name}: {res}")


context, module, function = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()
weights, targets, total, size = u64(), u64(), u64(), ctypes.c_size_t()
call("cuInit", 0)
call("cuDevicePrimaryCtxRetain", ref(context), 0)
call("cuCtxSetCurrent", context)
call("cuModuleLoadData", ref(module), PTX)
call("cuModuleGetFunction", ref(function), module, b"step")
call("cuModuleGetGlobal_v2", ref(total), ref(size), module, b"total")
call("cuMemAlloc_v2", ref(weights), ctypes.c_size_t(4 * N))
call("cuMemAlloc_v2", ref(targets), ctypes.c_size_t(4 * N))
call("cuMemsetD32_v2", weights, ctypes.c_uint32(0), ctypes.c_size_t(N))
data = struct.pack(f"{N}f", *((i * 7919 % 1000) / 500 - 1 for i in range(N)))
call("cuMemcpyHtoD_v2", targets, data, ctypes.c_size_t(len(data)))
count, loss = ctypes.c_uint32(N), ctypes.c_float()
params = (ctypes.c_void_p * 3)(*(ctypes.cast(ref(v), ctypes.c_void_p) for v in (weights, targets, count)))
for n in range(steps):
    call("cuLaunchKernel", function, 1, 1, 1, 1, 1, 1, 0, None, params, None)
    call("cuMemcpyDtoH_v2", ref(loss), total, ctypes.c_size_t(4))
    print("loss", n, loss.value.hex(), flush=True)
    time.sleep(pause)
back = ctypes.create_string_buffer(4 * N)
call("cuMemcpyDtoH_v2", back, weights, ctypes.c_size_t(4 * N))
print("weights", sum(struct.unpack(f"{N}I", back.raw)) % (1 << 32), flush=True)
