#: title: JAX
#: part: 2
#: compare: numbers 2e-4
#: timeout: 120
#: row: jax_basic basic
#: row: jax_conv conv
#: row: jax_train train
#: row: jax_prealloc prealloc
#: alone: jax_prealloc
import os
import sys

if sys.argv[1] != "prealloc":
    os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"
import compat
import jax
import jax.numpy as jnp


def number(name, x):
    compat.fact(name, float(x))


def basic():
    compat.fact("devices", [d.device_kind for d in jax.devices()])
    x = jax.random.normal(jax.random.key(0), (512, 512))
    number("tanh", jax.jit(lambda x: jnp.tanh(x @ x / 32).sum())(x))
    number("bf16", jax.jit(lambda x: (x.astype(jnp.bfloat16) @ x.astype(jnp.bfloat16)).astype(jnp.float32).std())(x))
    number("grad", jax.grad(lambda w: jnp.tanh(w @ x[0]).sum())(x)[0, 0])
    number("vmap", jax.vmap(lambda v: jnp.sort(v)[3])(x).sum())
    number("scan", jax.lax.scan(lambda c, v: (c + v.sum(), c), 0.0, x)[0])
    number("while", jax.lax.while_loop(lambda v: v < 1000, lambda v: v * 2, jnp.float32(1)))
    number("cond", jax.jit(lambda f: jax.lax.cond(f > 0, lambda v: v + 1, lambda v: v - 1, f))(jnp.float32(3)))
    number("fft", jnp.abs(jnp.fft.fft2(x)).mean())
    number("cholesky", jnp.linalg.cholesky(x @ x.T + 512 * jnp.eye(512)).sum())
    number("svd", jnp.linalg.svd(x[:64, :64], compute_uv=False).sum())
    number("solve", jnp.linalg.solve(x + 64 * jnp.eye(512), x[0]).sum())
    number("conv", jax.lax.conv(x[:64, :64].reshape(1, 1, 64, 64), jnp.ones((4, 1, 3, 3)), (1, 1), "SAME").std())
    number("attention", jax.nn.dot_product_attention(*(x.reshape(2, 256, 8, 64).astype(jnp.bfloat16),) * 3, is_causal=True).astype(jnp.float32).std())
    number("copy", jax.device_get(x).sum())


def conv():
    x = jax.random.normal(jax.random.key(2), (8, 16, 32, 32))
    w = jax.random.normal(jax.random.key(3), (32, 16, 3, 3)) / 12
    number("conv", jax.lax.conv(x, w, (1, 1), "SAME").std())
    number("strided", jax.lax.conv(x, w, (2, 2), "VALID").std())
    number("grad", jax.grad(lambda w: jnp.tanh(jax.lax.conv(x, w, (1, 1), "SAME")).sum())(w).std())


def train():
    k1, k2, k3 = jax.random.split(jax.random.key(1), 3)
    params = {"a": jax.random.normal(k1, (64, 256)) / 8, "b": jax.random.normal(k2, (256, 10)) / 16}
    data = jax.random.normal(k3, (128, 64))

    def loss(p):
        return jnp.mean((jax.nn.relu(data @ p["a"]) @ p["b"] - data[:, :10]) ** 2)

    @jax.jit
    def step(p, m):
        value, g = jax.value_and_grad(loss)(p)
        m = jax.tree.map(lambda m, g: 0.9 * m + g, m, g)
        return jax.tree.map(lambda p, m: p - 0.1 * m, p, m), m, value

    m = jax.tree.map(jnp.zeros_like, params)
    for _ in range(10):
        params, m, value = step(params, m)
        number("loss", value)


def prealloc():
    number("sum", jnp.ones((1000, 1000)).sum())
    s = jax.devices()[0].memory_stats()
    compat.fact("limit over 60 GiB", s["bytes_limit"] > 60 << 30)
    compat.note("stats", s)


globals()[sys.argv[1]]()
