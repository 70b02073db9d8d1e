#: title: Triton
#: part: 2
#: row: triton_softmax softmax
#: row: triton_matmul matmul
#: row: triton_tma tma
#: row: triton_tma_device tma_device
#: row: triton_misc misc
import sys

import compat

torch = compat.deterministic()
import triton
import triton.language as tl
from triton.language.extra import libdevice


@triton.jit
def softmax_kernel(o, x, n, B: tl.constexpr):
    row = tl.program_id(0)
    i = tl.arange(0, B)
    v = tl.load(x + row * n + i, mask=i < n, other=-float("inf"))
    e = tl.exp(v - tl.max(v, 0))
    tl.store(o + row * n + i, e / tl.sum(e, 0), mask=i < n)


@triton.jit
def matmul_kernel(a, b, c, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    m, n = tl.program_id(0) * BM + tl.arange(0, BM), tl.program_id(1) * BN + tl.arange(0, BN)
    acc = tl.zeros((BM, BN), tl.float32)
    for k in range(0, K, BK):
        kk = k + tl.arange(0, BK)
        acc = tl.dot(tl.load(a + m[:, None] * K + kk[None, :]), tl.load(b + kk[:, None] * N + n[None, :]), acc)
    tl.store(c + m[:, None] * N + n[None, :], acc.to(tl.float16))


@triton.jit
def tma_kernel(a, b, c, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    m, n = tl.program_id(0) * BM, tl.program_id(1) * BN
    acc = tl.zeros((BM, BN), tl.float32)
    for k in range(0, K, BK):
        acc = tl.dot(a.load([m, k]), b.load([n, k]).T, acc)
    c.store([m, n], acc.to(tl.float16))


@triton.jit
def tma_device_kernel(pa, pb, pc, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    a = tl.make_tensor_descriptor(pa, [M, K], [K, 1], [BM, BK])
    b = tl.make_tensor_descriptor(pb, [N, K], [K, 1], [BN, BK])
    c = tl.make_tensor_descriptor(pc, [M, N], [N, 1], [BM, BN])
    m, n = tl.program_id(0) * BM, tl.program_id(1) * BN
    acc = tl.zeros((BM, BN), tl.float32)
    for k in range(0, K, BK):
        acc = tl.dot(a.load([m, k]), b.load([n, k]).T, acc)
    c.store([m, n], acc.to(tl.float16))


@triton.jit
def misc_kernel(x, o, count, n, B: tl.constexpr):
    i = tl.program_id(0) * B + tl.arange(0, B)
    v = tl.load(x + i, mask=i < n, other=0.0)
    tl.store(o + i, libdevice.erf(v) + tl.cumsum(v, 0), mask=i < n)
    tl.atomic_add(count, tl.sum((v > 0).to(tl.int32), 0))


def softmax():
    x = torch.randn(1823, 781, device="cuda")
    o = torch.empty_like(x)
    softmax_kernel[(1823,)](o, x, 781, B=1024)
    assert torch.allclose(o, torch.softmax(x, 1), atol=1e-6)
    compat.show("softmax", o)


def operands():
    a, b = torch.randn(512, 256, device="cuda").half(), torch.randn(1024, 256, device="cuda").half()
    return a, b, torch.empty(512, 1024, device="cuda", dtype=torch.float16)


def check(a, b, c):
    assert torch.allclose(c, a @ b.T, atol=5e-2, rtol=1e-2)
    compat.show("matmul", c)


def matmul():
    a, b, c = operands()
    tuned = triton.autotune([triton.Config(dict(BM=64, BN=64, BK=32), num_warps=4, num_stages=s) for s in (2, 3)], key=["M"])(matmul_kernel)
    tuned[lambda m: (512 // m["BM"], 1024 // m["BN"])](a, b.T.contiguous(), c, 512, 1024, 256)
    check(a, b, c)


def tma():
    from triton.tools.tensor_descriptor import TensorDescriptor as D

    a, b, c = operands()
    tma_kernel[(4, 8)](D.from_tensor(a, [128, 64]), D.from_tensor(b, [128, 64]), D.from_tensor(c, [128, 128]), 256,
                       BM=128, BN=128, BK=64, num_warps=8)
    check(a, b, c)


def tma_device():
    triton.set_allocator(lambda size, align, stream: torch.empty(size, device="cuda", dtype=torch.int8))
    a, b, c = operands()
    tma_device_kernel[(4, 8)](a, b, c, 512, 1024, 256, BM=128, BN=128, BK=64, num_warps=8)
    check(a, b, c)


def misc():
    x = torch.randn(10000, device="cuda")
    o, count = torch.empty_like(x), torch.zeros(1, device="cuda", dtype=torch.int32)
    k = misc_kernel[(40,)](x, o, count, 10000, B=256)
    compat.show("misc", o)
    compat.fact("count", count.item(), (x > 0).sum().item())
    compat.fact("kernel", k.metadata.num_warps, k.n_spills)


globals()[sys.argv[1]]()
