"""Models that several programs use; weights are random, made on the GPU from a seed."""
import torch
from torch import nn
import torch.nn.functional as F


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.ln1, self.ln2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = (y.view(b, t, self.heads, c // self.heads).transpose(1, 2) for y in self.qkv(self.ln1(x)).split(c, 2))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(y.transpose(1, 2).reshape(b, t, c))
        return x + self.down(F.gelu(self.up(self.ln2(x))))


class GPT(nn.Module):
    def __init__(self, vocab=8192, width=256, heads=4, layers=4, context=512):
        super().__init__()
        self.tok, self.pos = nn.Embedding(vocab, width), nn.Embedding(context, width)
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(layers)))
        self.ln, self.head = nn.LayerNorm(width), nn.Linear(width, vocab, bias=False)

    def forward(self, ids, targets):
        x = self.tok(ids) + self.pos(torch.arange(ids.shape[1], device=ids.device))
        logits = self.head(self.ln(self.blocks(x)))
        return F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())


SIZES = {
    "0.5B": dict(hidden_size=896, num_hidden_layers=24, num_attention_heads=14, num_key_value_heads=2, intermediate_size=4864),
    "1.5B": dict(hidden_size=1536, num_hidden_layers=28, num_attention_heads=12, num_key_value_heads=2, intermediate_size=8960),
}


def qwen2(size, seed=0):
    """A transformers model of the size's class, in bfloat16 on the GPU; weights wide enough that tokens vary."""
    import transformers

    torch.manual_seed(seed)
    config = transformers.Qwen2Config(vocab_size=151936, tie_word_embeddings=True, initializer_range=0.05,
                                      bos_token_id=None, eos_token_id=None, pad_token_id=0, **SIZES[size])
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    try:
        with torch.device("cuda"):
            model = transformers.Qwen2ForCausalLM(config)
    finally:
        torch.set_default_dtype(before)
    return model.eval()


class Decoder:
    """Greedy decoding of one token a step for a batch, with a static cache; optionally captured into a CUDA graph."""

    def __init__(self, model, batch, context=256, mode="eager"):
        import transformers

        self.model, self.batch, self.mode = model, batch, mode
        self.cache = transformers.StaticCache(config=model.config, max_cache_len=context)
        self.ids = torch.zeros(batch, 1, dtype=torch.long, device="cuda")
        self.run = self._step
        if mode == "compiled":
            torch._dynamo.mark_static_address(self.ids)
            self.next = torch.compile(self._next, mode="reduce-overhead")
        else:
            self.next = self._next

    def _next(self):
        return self.model(input_ids=self.ids, past_key_values=self.cache, use_cache=True).logits[:, -1:].argmax(-1)

    def _step(self):  # the copy stays outside what is compiled: a graph that changes its input would not be replayed
        self.ids.copy_(self.next())

    @torch.inference_mode()
    def prefill(self, prompt):
        out = self.model(input_ids=prompt, past_key_values=self.cache, use_cache=True)
        self.ids.copy_(out.logits[:, -1:].argmax(-1))
        if self.mode == "graphed":
            self._capture()

    def _capture(self):
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(2):
                self._step()
        torch.cuda.current_stream().wait_stream(side)
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self._step()
        self.run = self.graph.replay

    @torch.inference_mode()
    def decode(self, steps):
        tokens = []
        for _ in range(steps):
            self.run()
            tokens.append(self.ids.clone())
        return torch.cat(tokens, 1)
