#: title: cuDNN through PyTorch: convolutions, benchmark mode, attention back ends, RNN, batch norm
#: part: 2
#: compare: numbers 1e-2
import compat

torch = compat.deterministic()
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

compat.fact("version", torch.backends.cudnn.version())
for dtype in (torch.float32, torch.bfloat16, torch.float16):
    for fmt in (torch.contiguous_format, torch.channels_last):
        for groups in (1, 16):
            x = torch.randn(8, 16, 56, 56, device="cuda", dtype=dtype).to(memory_format=fmt).requires_grad_()
            w = torch.randn(32, 16 // groups, 3, 3, device="cuda", dtype=dtype, requires_grad=True)
            y = F.conv2d(x, w, padding=1, groups=groups)
            y.float().square().mean().backward()
            compat.fact("conv", str(dtype), groups, y.double().square().sum().item(), w.grad.double().square().sum().item())
torch.backends.cudnn.benchmark = True
x = torch.randn(16, 64, 28, 28, device="cuda")
w = torch.randn(64, 64, 3, 3, device="cuda")
compat.fact("benchmark", F.conv2d(x, w).double().square().sum().item())
compat.fact("transpose", F.conv_transpose2d(x, w, stride=2).double().square().sum().item())
q, k, v = (torch.randn(2, 8, 256, 64, device="cuda", dtype=torch.bfloat16, requires_grad=True) for _ in range(3))
for b in (SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH):
    with sdpa_kernel(b):
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        y.float().square().sum().backward()
        compat.fact("sdpa", b.name, y.double().square().sum().item(), q.grad.double().square().sum().item())
        q.grad = None
gru = torch.nn.GRU(64, 128, 2, bidirectional=True).cuda()
compat.fact("gru", gru(torch.randn(20, 8, 64, device="cuda"))[0].double().square().sum().item())
bn = torch.nn.BatchNorm2d(64).cuda()
compat.fact("bn", bn(x).double().square().sum().item(), bn.running_var.double().sum().item())
