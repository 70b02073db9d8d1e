#: title: ResNet training, AMP bf16, channels last, AdamW
#: part: 1
#: row: resnet18
#: row: resnet50 50
import sys

import compat

torch = compat.deterministic()
import torchvision

model = (torchvision.models.resnet50 if "50" in sys.argv else torchvision.models.resnet18)()
model = model.cuda().to(memory_format=torch.channels_last)
optim = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
x = torch.randn(32, 3, 128, 128, device="cuda").contiguous(memory_format=torch.channels_last)
t = torch.randint(0, 1000, (32,), device="cuda")
for step in range(5):
    with torch.autocast("cuda", dtype=torch.bfloat16):
        loss = torch.nn.functional.cross_entropy(model(x), t)
    optim.zero_grad(set_to_none=True)
    loss.backward()
    optim.step()
    compat.fact("loss", loss.item())
compat.show("weights", torch.cat([p.flatten() for p in model.parameters()]))
compat.show("running", torch.cat([b.flatten().float() for b in model.buffers()]))
