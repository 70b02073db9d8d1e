#: speed: serve
import speed
import models
import torch
import torchvision

torch.manual_seed(0)
resnet = torchvision.models.resnet50().cuda().to(memory_format=torch.channels_last)
resnet_optim = torch.optim.AdamW(resnet.parameters(), fused=True)
x = torch.randn(64, 3, 224, 224, device="cuda").contiguous(memory_format=torch.channels_last)
t = torch.randint(0, 1000, (64,), device="cuda")


def resnet_step():
    with torch.autocast("cuda", dtype=torch.bfloat16):
        loss = torch.nn.functional.cross_entropy(resnet(x), t)
    resnet_optim.zero_grad(set_to_none=True)
    loss.backward()
    resnet_optim.step()


stack = torch.nn.Sequential(*(models.Block(1024, 16) for _ in range(12))).cuda()
stack_optim = torch.optim.AdamW(stack.parameters(), fused=True)
ids = torch.randn(8, 512, 1024, device="cuda")


def gpt_step():
    with torch.autocast("cuda", dtype=torch.bfloat16):
        loss = stack(ids).float().square().mean()
    stack_optim.zero_grad(set_to_none=True)
    loss.backward()
    stack_optim.step()


mlp = torch.nn.Sequential(*(m for _ in range(6) for m in (torch.nn.Linear(1024, 1024), torch.nn.ReLU()))).cuda()
mlp_optim = torch.optim.AdamW(mlp.parameters(), foreach=True)
small = torch.randn(64, 1024, device="cuda")


def mlp_step():
    mlp_optim.zero_grad(set_to_none=True)
    mlp(small).square().mean().backward()
    mlp_optim.step()


for step in (resnet_step, gpt_step, mlp_step):
    for _ in range(8):
        step()
speed.serve(
    ("torch_resnet50_step", "ms", "<=1.02", lambda: 1e3 * speed.clock(resnet_step, 10)),
    ("torch_gpt_12x1024_step", "ms", "<=1.02", lambda: 1e3 * speed.clock(gpt_step, 10)),
    ("torch_mlp_step", "ms", "<=1.02", lambda: 1e3 * speed.clock(mlp_step, 50)),
)
