#: title: jiterator, custom inline CUDA through NVRTC, float16 atomics, sparse, complex, scatter, interpolation, LSTM, CTC
#: part: 1
#: compare: numbers 1e-5
import compat

torch = compat.deterministic()
torch.use_deterministic_algorithms(False)
x = torch.randn(4096, device="cuda")
code = "template <typename T> T my(T x, T y) { return x * y + T(1); }"
compat.show("jiterator", torch.cuda.jiterator._create_jit_fn(code)(x, x))
k = torch.cuda._compile_kernel('extern "C" __global__ void add(float* a, int n) { int i = blockIdx.x * blockDim.x + threadIdx.x; if (i < n) a[i] += 1; }', "add")
y = x.clone()
k(grid=(16, 1, 1), block=(256, 1, 1), args=(y, y.numel()))
compat.show("compile_kernel", y)
i = torch.randint(0, 64, (4096,), device="cuda")
compat.fact("scatter", torch.zeros(64, device="cuda", dtype=torch.float64).scatter_add_(0, i, x.double()).sum().item())
s = torch.eye(64, device="cuda").to_sparse_csr()
compat.show("sparse", s @ x.view(64, 64))
compat.show("complex", torch.view_as_real(torch.polar(x.abs(), x) * 2))
lstm = torch.nn.LSTM(32, 64, 2).cuda()
compat.fact("lstm", lstm(x.view(16, 8, 32))[0].double().abs().sum().item())
compat.fact("interpolate", torch.nn.functional.interpolate(x.view(1, 4, 32, 32), scale_factor=2, mode="bicubic").double().abs().sum().item())
lp = torch.randn(50, 4, 20, device="cuda").log_softmax(2)
compat.fact("ctc", torch.nn.functional.ctc_loss(lp, torch.randint(1, 20, (4, 10), device="cuda"), (50,) * 4, (10,) * 4).item())
compat.fact("conv3d", torch.nn.functional.conv3d(x.view(1, 1, 16, 16, 16), torch.ones(4, 1, 3, 3, 3, device="cuda")).double().abs().sum().item())
compat.fact("group_norm", torch.nn.functional.group_norm(x.view(1, 64, 64), 8).double().abs().sum().item())
compat.fact("histc", torch.histc(x, 16, -4, 4).tolist())
compat.fact("einsum", torch.einsum("ij,jk->ik", x.view(64, 64), x.view(64, 64)).double().abs().sum().item())
