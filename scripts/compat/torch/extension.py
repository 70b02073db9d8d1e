#: title: a C++/CUDA extension built by torch.utils.cpp_extension with this machine's nvcc
#: part: 1
#: timeout: 150
import os

os.environ.setdefault("CUDA_HOME", "/usr/local/cuda")
os.environ["TORCH_CUDA_ARCH_LIST"] = "9.0"
os.environ["TORCH_EXTENSIONS_DIR"] = os.path.join(os.environ.get("TMPDIR", "/tmp"), "ext")
import compat

torch = compat.deterministic()
from torch.utils.cpp_extension import load_inline

cuda = """
__global__ void scale(float* o, const float* x, float a, int n) { int i = blockIdx.x * blockDim.x + threadIdx.x; if (i < n) o[i] = a * x[i]; }
torch::Tensor run(torch::Tensor x, double a) {
  auto o = torch::empty_like(x);
  scale<<<(x.numel() + 255) / 256, 256, 0, at::cuda::getCurrentCUDAStream()>>>(o.data_ptr<float>(), x.data_ptr<float>(), (float)a, (int)x.numel());
  C10_CUDA_KERNEL_LAUNCH_CHECK();
  return o;
}
"""
m = load_inline("scale_ext", "torch::Tensor run(torch::Tensor x, double a);", cuda, functions=["run"], with_cuda=True,
                extra_cuda_cflags=["-include", "ATen/cuda/CUDAContext.h", "-include", "c10/cuda/CUDAException.h"], verbose=False)
x = torch.randn(100000, device="cuda")
compat.show("scaled", m.run(x, 2.5))
compat.fact("right", torch.equal(m.run(x, 2.5), x * 2.5))
