#: speed: serve growing_first
#: speed: serve growing_next
#: speed: spawn 3 growing_start
# Decoding with a cache that grows by a token a step, through PyTorch's default attention. For bfloat16 on Hopper that is cuDNN, which
# makes a plan for each new length and has NVRTC compile it. growing_first begins with an empty compile cache, growing_next with what
# earlier processes of the same side left, and so do the processes of growing_start, which end after two tokens.
import os
import shutil
import sys

name = sys.argv[1]
os.environ["CUDA_CACHE_PATH"] = folder = os.path.abspath("compute-cache")  # each side has a folder of its own
if name == "growing_first":
    shutil.rmtree(folder, ignore_errors=True)

import speed
import torch
import torch.nn.functional as F

LAYERS, HEADS, HEAD, PROMPT, STEPS = 24, 14, 64, 32, 24
WIDTH = HEADS * HEAD


class Layer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.qkv, self.out = torch.nn.LayerNorm(WIDTH), torch.nn.Linear(WIDTH, 3 * WIDTH), torch.nn.Linear(WIDTH, WIDTH)
        self.k = self.v = None

    def forward(self, x):
        q, k, v = (t.view(1, -1, HEADS, HEAD).transpose(1, 2) for t in self.qkv(self.norm(x)).split(WIDTH, 2))
        causal = self.k is None
        self.k = k if causal else torch.cat((self.k, k), 2)
        self.v = v if causal else torch.cat((self.v, v), 2)
        y = F.scaled_dot_product_attention(q, self.k, self.v, is_causal=causal)
        return x + self.out(y.transpose(1, 2).reshape(x.shape))


@torch.inference_mode()
def decode(steps):
    global x
    for _ in range(steps):
        x = layers(x)


torch.manual_seed(0)
layers = torch.nn.Sequential(*(Layer() for _ in range(LAYERS))).to("cuda", torch.bfloat16).eval()
with torch.inference_mode():
    x = layers(torch.randn(1, PROMPT, WIDTH, device="cuda", dtype=torch.bfloat16))[:, -1:]
if name == "growing_start":
    print(name, speed.clock(lambda: decode(2)) * 1e3, "ms", "<=1.02")
else:
    decode(2)
    speed.serve((name, "tokens/s", ">=0.98", lambda: STEPS / speed.clock(lambda: decode(STEPS))))
