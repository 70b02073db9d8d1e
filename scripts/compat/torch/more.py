#: title: int8 GEMM, torchvision operators, a vision transformer (timm), grid_sample, embedding_bag, flex attention inputs, channels-last pooling
#: part: 1
#: compare: numbers 1e-4
import compat

torch = compat.deterministic()
torch.use_deterministic_algorithms(False)
import torch.nn.functional as F
import torchvision

a = torch.randint(-128, 127, (128, 128), device="cuda", dtype=torch.int8)
compat.show("int_mm", torch._int_mm(a, a.t()))
boxes = torch.rand(500, 4, device="cuda") * 100
boxes[:, 2:] += boxes[:, :2]
compat.show("nms", torchvision.ops.nms(boxes, torch.rand(500, device="cuda"), 0.5))
x = torch.randn(2, 8, 64, 64, device="cuda")
compat.fact("roi_align", torchvision.ops.roi_align(x, [boxes[:10] / 2, boxes[10:20] / 2], (7, 7)).double().abs().sum().item())
compat.fact("deform", torchvision.ops.deform_conv2d(x, torch.randn(2, 18, 62, 62, device="cuda"), torch.randn(4, 8, 3, 3, device="cuda")).double().abs().sum().item())
grid = torch.rand(2, 32, 32, 2, device="cuda") * 2 - 1
compat.fact("grid_sample", F.grid_sample(x, grid, align_corners=False).double().abs().sum().item())
table = torch.randn(1000, 64, device="cuda", requires_grad=True)
bags = F.embedding_bag(torch.randint(0, 1000, (512,), device="cuda"), table, torch.arange(0, 512, 16, device="cuda"))
bags.sum().backward()
compat.fact("embedding_bag", bags.double().abs().sum().item(), table.grad.double().abs().sum().item())
compat.fact("pool", F.max_pool2d(x.to(memory_format=torch.channels_last), 3).double().sum().item(), F.adaptive_avg_pool2d(x, 5).double().sum().item())
compat.fact("quantile", torch.quantile(x.flatten()[:10000], 0.3).item(), torch.median(x).item(), torch.kthvalue(x.flatten(), 77).values.item())
compat.fact("unfold", F.unfold(x, 3).double().abs().sum().item())
compat.fact("cdist", torch.cdist(x[0, 0], x[0, 1]).double().sum().item())
compat.fact("bincount", torch.bincount(torch.randint(0, 10, (1000,), device="cuda")).tolist())
compat.fact("nested", torch.nested.nested_tensor([x[0, 0, :5], x[0, 0, :9]]).to_padded_tensor(0).shape)
import timm

vit = timm.create_model("vit_tiny_patch16_224", num_classes=10).cuda()
with torch.autocast("cuda", dtype=torch.bfloat16):
    loss = vit(torch.randn(8, 3, 224, 224, device="cuda")).float().square().mean()
loss.backward()
compat.fact("vit", loss.item())
