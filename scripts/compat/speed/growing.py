#: speed: spawn 3 growing_cold
#: speed: spawn 3 growing_warm
# Decoding with a cache that grows by a token a step, through PyTorch's default attention. For bfloat16 on Hopper that is cuDNN, which
# makes a plan for each new length and has NVRTC compile it. cold: the compile cache is empty when the process starts; warm: it is what
# earlier processes of the same side left.
import os
import sys
import tempfile

name = sys.argv[1]
empty = tempfile.TemporaryDirectory()
os.environ["CUDA_CACHE_PATH"] = empty.name if name == "growing_cold" else os.path.abspath("compute-cache")  # a folder for each side

import speed
import torch
import torch.nn.functional as F

LAYERS, HEADS, HEAD, PROMPT, STEPS = 24, 14, 64, 32, 48
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
first = speed.clock(lambda: decode(1))
rest = speed.clock(lambda: decode(STEPS))
print(f"{name}_first_token {first * 1e3} ms <=1.02")
print(f"{name} {STEPS / rest} tokens/s >=0.98")
