"""The published networks in JAX: functions of their weights by torch's names, as people write them without a library on top.

Products are of 16-bit floats, norms and the loss of float32; attention is cuDNN's, through JAX. AdamW is written out, its state donated.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
from cases.peers import need
from gpu_measure import Contestant, Place

Weights = Mapping[str, Any]
Network = Callable[[Weights, Any], Any]
BETAS, EPS, DECAY = (0.9, 0.999), 1e-8, 0.01
CHANNELS_LAST = ("NHWC", "OIHW", "NHWC")


# --- layers -----------------------------------------------------------------------------------------------------------------------


def _linear(w: Weights, name: str, x: Any) -> Any:
    return x @ w[f"{name}.weight"].astype(x.dtype).T + w[f"{name}.bias"].astype(x.dtype)


def _norm(w: Weights, name: str, x: Any, eps: float = 1e-5) -> Any:
    wide = x.astype("float32")
    centred = wide - wide.mean(-1, keepdims=True)
    scaled = centred / need("jax").numpy.sqrt((centred * centred).mean(-1, keepdims=True) + eps)
    return (scaled * w[f"{name}.weight"] + w[f"{name}.bias"]).astype(x.dtype)


def _conv(w: Weights, name: str, x: Any, stride: int = 1, padding: int = 0, groups: int = 1) -> Any:
    made = need("jax").lax.conv_general_dilated(
        x, w[f"{name}.weight"].astype(x.dtype), (stride, stride), [(padding, padding)] * 2,
        dimension_numbers=CHANNELS_LAST, feature_group_count=groups,
    )  # fmt: skip
    return made + w[f"{name}.bias"].astype(x.dtype)


def _attention(joined: Any, heads: int, causal: bool) -> Any:
    """Attention of queries, keys and values that lie side by side."""
    batch, time, width = joined.shape
    q, k, v = (part.reshape(batch, time, heads, -1) for part in need("jax").numpy.split(joined, 3, axis=-1))
    way = "cudnn" if Place.is_gpu() and joined.dtype != "float32" else "xla"
    found = need("jax").nn.dot_product_attention(q, k, v, is_causal=causal, implementation=way)
    return found.reshape(batch, time, width // 3)


# --- networks ---------------------------------------------------------------------------------------------------------------------


def gpt2(w: Weights, x: Any, dtype: str) -> Any:
    """GPT-2: tokens to logits."""
    gelu = partial(need("jax").nn.gelu, approximate=True)
    y = (w["wte.weight"][x] + w["wpe.weight"][: x.shape[1]]).astype(dtype)
    for i in range(12):
        at = f"h.{i}"
        heads = _attention(_linear(w, f"{at}.attn.c_attn", _norm(w, f"{at}.ln_1", y)), 12, True)
        y = y + _linear(w, f"{at}.attn.c_proj", heads)
        y = y + _linear(w, f"{at}.mlp.c_proj", gelu(_linear(w, f"{at}.mlp.c_fc", _norm(w, f"{at}.ln_2", y))))
    return _norm(w, "ln_f", y) @ w["wte.weight"].astype(dtype).T


def vit_base(w: Weights, x: Any, dtype: str) -> Any:
    """ViT-B/16: images, channels last, to logits."""
    jax = need("jax")
    patches = _conv(w, "conv_proj", x.astype(dtype), stride=16)
    batch, width = len(x), patches.shape[-1]
    first = jax.numpy.broadcast_to(w["class_token"].astype(dtype), (batch, 1, width))
    y = jax.numpy.concatenate([first, patches.reshape(batch, -1, width)], axis=1) + w["encoder.pos_embedding"].astype(
        dtype
    )
    for i in range(12):
        at = f"encoder.layers.encoder_layer_{i}"
        joined = {
            "in.weight": w[f"{at}.self_attention.in_proj_weight"],
            "in.bias": w[f"{at}.self_attention.in_proj_bias"],
        }
        heads = _attention(_linear(joined, "in", _norm(w, f"{at}.ln_1", y, 1e-6)), 12, False)
        y = y + _linear(w, f"{at}.self_attention.out_proj", heads)
        hidden = jax.nn.gelu(_linear(w, f"{at}.mlp.0", _norm(w, f"{at}.ln_2", y, 1e-6)), approximate=False)
        y = y + _linear(w, f"{at}.mlp.3", hidden)
    return _linear(w, "heads.head", _norm(w, "encoder.ln", y, 1e-6)[:, 0])


def convnext_tiny(w: Weights, x: Any, dtype: str) -> Any:
    """ConvNeXt-T: images, channels last, to logits."""
    gelu = partial(need("jax").nn.gelu, approximate=False)
    y = _norm(w, "features.0.1", _conv(w, "features.0.0", x.astype(dtype), stride=4), 1e-6)
    for stage, blocks in enumerate((3, 3, 9, 3)):
        if stage:
            at = f"features.{2 * stage}"
            y = _conv(w, f"{at}.1", _norm(w, f"{at}.0", y, 1e-6), stride=2)
        for i in range(blocks):
            at = f"features.{2 * stage + 1}.{i}"
            z = _conv(w, f"{at}.block.0", y, padding=3, groups=y.shape[-1])
            z = _linear(w, f"{at}.block.5", gelu(_linear(w, f"{at}.block.3", _norm(w, f"{at}.block.2", z, 1e-6))))
            y = y + w[f"{at}.layer_scale"].astype(dtype).reshape(-1) * z
    return _linear(w, "classifier.2", _norm(w, "classifier.0", y.mean((1, 2)), 1e-6))


NETWORKS: dict[str, Callable[[Weights, Any, str], Any]] = {
    "gpt2": gpt2,
    "vit_base": vit_base,
    "convnext_tiny": convnext_tiny,
}


# --- contestants ------------------------------------------------------------------------------------------------------------------


def _given(x: np.ndarray) -> Any:
    return need("jax").numpy.asarray(np.ascontiguousarray(np.moveaxis(x, 1, -1)) if x.ndim == 4 else x)


def loss(network: str, dtype: str, w: Weights, x: Any, y: Any) -> Any:
    """The cross entropy of a batch."""
    jax = need("jax")
    logits = NETWORKS[network](w, x, dtype).astype("float32").reshape(len(y), -1)
    picked = jax.numpy.take_along_axis(logits, y[:, None], 1)[:, 0]
    return (jax.nn.logsumexp(logits, axis=1) - picked).mean()


def training(
    network: str, dtype: str, weights: Mapping[str, np.ndarray], x: np.ndarray, y: np.ndarray, rate: float
) -> Contestant:
    """Steps of AdamW."""
    jax = need("jax")
    jnp = jax.numpy
    start = {name: jnp.asarray(value) for name, value in weights.items()}
    state = [start, *({n: jnp.zeros_like(p) for n, p in start.items()} for _ in range(2)), jnp.zeros((), "int32")]
    images, labels = _given(x), jnp.asarray(y)

    def step(state: Any, x: Any, y: Any) -> Any:
        w, m, v, count = state
        value, gradients = jax.value_and_grad(partial(loss, network, dtype))(w, x, y)
        count = count + 1
        m = {n: BETAS[0] * m[n] + (1 - BETAS[0]) * gradients[n] for n in w}
        v = {n: BETAS[1] * v[n] + (1 - BETAS[1]) * gradients[n] ** 2 for n in w}
        first, second = (1 - beta ** count.astype("float32") for beta in BETAS)
        w = {n: p - rate * (m[n] / first / (jnp.sqrt(v[n] / second) + EPS) + DECAY * p) for n, p in w.items()}
        return value, (w, m, v, count)

    compiled = jax.jit(step, donate_argnums=0)
    held = [tuple(state)]

    def call() -> Any:
        value, held[0] = compiled(held[0], images, labels)
        return value

    return Contestant(call, lambda: jax.block_until_ready(held[0]), lambda: [np.asarray(call()).reshape(1)])


def inference(network: str, dtype: str, weights: Mapping[str, np.ndarray], x: np.ndarray) -> Contestant:
    """Logits."""
    jax = need("jax")
    narrow = {n: jax.numpy.asarray(v).astype(dtype if v.ndim > 1 else v.dtype) for n, v in weights.items()}
    images = _given(x)
    compiled = jax.jit(lambda w, x: NETWORKS[network](w, x, dtype))
    last = [compiled(narrow, images)]

    def call() -> Any:
        last[0] = compiled(narrow, images)
        return last[0]

    return Contestant(
        call, lambda: jax.block_until_ready(last[0]), lambda: [np.asarray(call()).astype(np.float32).reshape(-1)[:1000]]
    )
