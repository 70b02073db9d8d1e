#: title: CuPy: elementwise, reductions, RawKernel, RawModule (NVRTC), ElementwiseKernel, ReductionKernel, sorting, indexing
#: part: 2
import compat
import cupy as cp


@cp.fuse()
def fused(x):
    return cp.sqrt(x) + 1


a = cp.arange(100000, dtype=cp.float32)
compat.show("elementwise", cp.sin(a) * 2 + a)
compat.fact("sum", float(a.sum()), int(a.argmax()))
k = cp.RawKernel(r'extern "C" __global__ void k(float* a, int n) { int i = blockIdx.x * blockDim.x + threadIdx.x; if (i < n) a[i] = a[i] * 3 + i; }', "k")
k((391,), (256,), (a, cp.int32(a.size)))
compat.show("raw", a)
m = cp.RawModule(code=r"""
__constant__ float scale[4];
template <typename T> __global__ void mul(T* a, int n) { int i = blockIdx.x * blockDim.x + threadIdx.x; if (i < n) a[i] *= scale[i & 3]; }
extern "C" __global__ void shared(float* o) { extern __shared__ float s[]; s[threadIdx.x] = threadIdx.x; __syncthreads(); o[threadIdx.x] = s[blockDim.x - 1 - threadIdx.x]; }
""", options=("--std=c++17",), name_expressions=["mul<float>", "mul<double>"])
cp.ndarray(4, cp.float32, m.get_global("scale"))[:] = cp.array([1, 2, 3, 4], dtype=cp.float32)
m.get_function("mul<float>")((391,), (256,), (a, cp.int32(a.size)))
compat.show("module", a)
o = cp.zeros(1024, cp.float32)
f = m.get_function("shared")
f.max_dynamic_shared_size_bytes = 65536
f((1,), (1024,), (o,), shared_mem=65536)
compat.show("shared", o)
compat.fact("attributes", f.attributes["max_threads_per_block"], f.attributes["shared_size_bytes"])
e = cp.ElementwiseKernel("T x, T y", "T z", "z = x * y + 1", "e")
compat.show("ek", e(a, a))
r = cp.ReductionKernel("T x", "T y", "x", "a + b", "y = a", "0", "r")
compat.show("rk", r(cp.arange(1000, dtype=cp.int64)))
cp.random.seed(7)
x = cp.random.random(10000)
compat.show("random", x)
compat.show("normal", cp.random.standard_normal(1001))
compat.show("sort", cp.sort(x))
compat.show("unique", cp.unique((x * 50).astype(cp.int32)))
compat.show("fancy", x[cp.array([5, 3, 1])])
compat.show("fuse", fused(x))
compat.show("cub", cp.histogram(x, bins=10)[0])
compat.show("matmul", cp.ones((128, 64), cp.float32) @ cp.ones((64, 32), cp.float32))
compat.note("runtime", cp.cuda.runtime.runtimeGetVersion(), cp.cuda.runtime.driverGetVersion())
