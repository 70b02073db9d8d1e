#: title: cuda-bindings: driver API, NVRTC, nvJitLink, graphs, virtual memory
#: part: 2
import ctypes

import compat
import numpy as np
from cuda.bindings import driver as d
from cuda.bindings import nvrtc


def ok(r):
    assert int(r[0]) == 0, r[0]
    return r[1] if len(r) == 2 else r[1:]


ok(d.cuInit(0))
dev = ok(d.cuDeviceGet(0))
compat.fact("name", ok(d.cuDeviceGetName(64, dev)).split(b"\0")[0].decode(), int(ok(d.cuDriverGetVersion())))
ctx = ok(d.cuDevicePrimaryCtxRetain(dev))
ok(d.cuCtxSetCurrent(ctx))
src = b'extern "C" __global__ void axpy(float a, float* x, float* y, int n) { int i = blockIdx.x * blockDim.x + threadIdx.x; if (i < n) y[i] += a * x[i]; }'
prog = ok(nvrtc.nvrtcCreateProgram(src, b"axpy.cu", 0, [], []))
ok(nvrtc.nvrtcCompileProgram(prog, 1, [b"--gpu-architecture=sm_90"]))
image = b" " * ok(nvrtc.nvrtcGetCUBINSize(prog))
ok(nvrtc.nvrtcGetCUBIN(prog, image))
lib = ok(d.cuLibraryLoadData(image, [], [], 0, [], [], 0))
f = ok(d.cuKernelGetFunction(ok(d.cuLibraryGetKernel(lib, b"axpy"))))
n = 10000
x = np.arange(n, dtype=np.float32)
y = np.ones(n, dtype=np.float32)
dx, dy = ok(d.cuMemAlloc(x.nbytes)), ok(d.cuMemAlloc(y.nbytes))
ok(d.cuMemcpyHtoD(dx, x.ctypes.data, x.nbytes))
ok(d.cuMemcpyHtoD(dy, y.ctypes.data, y.nbytes))
stream = ok(d.cuStreamCreate(0))
args = ((2.0, dx, dy, n), (ctypes.c_float, None, None, ctypes.c_int))
ok(d.cuLaunchKernel(f, 40, 1, 1, 256, 1, 1, 0, stream, args, 0))
ok(d.cuStreamBeginCapture(stream, d.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_GLOBAL))
ok(d.cuLaunchKernel(f, 40, 1, 1, 256, 1, 1, 0, stream, args, 0))
g = ok(d.cuGraphInstantiate(ok(d.cuStreamEndCapture(stream)), 0))
for _ in range(3):
    ok(d.cuGraphLaunch(g, stream))
ok(d.cuStreamSynchronize(stream))
ok(d.cuMemcpyDtoH(y.ctypes.data, dy, y.nbytes))
compat.show("axpy", y)
prop = d.CUmemAllocationProp()
prop.type = d.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
prop.location.type = d.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
prop.location.id = 0
gran = ok(d.cuMemGetAllocationGranularity(prop, d.CUmemAllocationGranularity_flags.CU_MEM_ALLOC_GRANULARITY_MINIMUM))
va = ok(d.cuMemAddressReserve(4 * gran, 0, 0, 0))
h = ok(d.cuMemCreate(gran, prop, 0))
acc = d.CUmemAccessDesc()
acc.location = prop.location
acc.flags = d.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
for k in range(2):  # one piece mapped twice
    ok(d.cuMemMap(int(va) + k * gran, gran, 0, h, 0))
    ok(d.cuMemSetAccess(int(va) + k * gran, gran, [acc], 1))
ok(d.cuMemsetD32(va, 7, gran // 4))
got = np.zeros(16, np.uint32)
ok(d.cuMemcpyDtoH(got.ctypes.data, int(va) + gran, got.nbytes))
compat.show("alias", got)
compat.fact("granularity", gran)
for k in range(2):
    ok(d.cuMemUnmap(int(va) + k * gran, gran))
ok(d.cuMemRelease(h))
ok(d.cuMemAddressFree(va, 4 * gran))
compat.fact("error", str(d.cuMemFree(12345)[0]), ok(d.cuGetErrorString(d.CUresult.CUDA_ERROR_INVALID_VALUE)).decode())
for i in range(1, 60):
    r = d.cuDeviceGetAttribute(d.CUdevice_attribute(i), dev)
    if i not in (33, 34, 50):  # PCI ids may be the vGPU's own
        compat.fact("attribute", i, int(r[0]), r[1])
