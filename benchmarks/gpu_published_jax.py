"""The published networks in JAX: functions of their weights by torch's names, as people write them without a library on top.

Products are of 16-bit floats, norms and the loss of float32; attention is cuDNN's, through JAX. AdamW is written out, its state donated. Batch norms take the
statistics of the batch, and put the running ones into a dictionary that they are given.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
from cases.peers import need
from gpu_measure import Contestant, Place

Weights = Mapping[str, Any]
Statistics = dict[str, Any] | None  # running ones of batch norms, to be filled in; None: not trained
Network = Callable[[Weights, Any, str, Statistics], Any]  # weights, inputs, dtype, statistics
BETAS, EPS, DECAY = (0.9, 0.999), 1e-8, 0.01
MOMENTUM = 0.1  # of batch norms
STATISTICS = ("running_mean", "running_var")
CHANNELS_LAST = ("NHWC", "OIHW", "NHWC")
# Inverted blocks: how many times wider inside, channels, how many, stride of the first.
MOBILENET = ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1))
EFFICIENTNET = (
    (1, 16, 1, 1), (6, 24, 2, 2), (6, 40, 2, 2), (6, 80, 3, 2), (6, 112, 3, 1), (6, 192, 4, 2), (6, 320, 1, 1),
)  # fmt: skip


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
    return made + w[f"{name}.bias"].astype(x.dtype) if f"{name}.bias" in w else made


def _batch_norm(w: Weights, name: str, x: Any, statistics: Statistics) -> Any:
    assert statistics is not None
    wide, count = x.astype("float32"), x.size // x.shape[-1]
    mean = wide.mean((0, 1, 2))
    var = (wide * wide).mean((0, 1, 2)) - mean * mean
    for key, value in zip(STATISTICS, (mean, var * (count / (count - 1))), strict=True):
        statistics[f"{name}.{key}"] = (1 - MOMENTUM) * w[f"{name}.{key}"] + MOMENTUM * value
    scale = w[f"{name}.weight"] / need("jax").numpy.sqrt(var + 1e-5)
    return ((wide - mean) * scale + w[f"{name}.bias"]).astype(x.dtype)


def _conv_norm(w: Weights, conv: str, norm: str, x: Any, statistics: Statistics, stride: int = 1, groups: int = 1) -> Any:  # fmt: skip
    padding = w[f"{conv}.weight"].shape[-1] // 2
    return _batch_norm(w, norm, _conv(w, conv, x, stride, padding, groups), statistics)


def _attention(joined: Any, heads: int, causal: bool, trained: bool) -> Any:
    """Attention of queries, keys and values that lie side by side. JAX has no gradients of cuDNN's for odd lengths."""
    batch, time, width = joined.shape
    q, k, v = (part.reshape(batch, time, heads, -1) for part in need("jax").numpy.split(joined, 3, axis=-1))
    has_kernel = joined.dtype != "float32" and not (trained and time % 2)
    way = "cudnn" if Place.is_gpu() and has_kernel else "xla"
    found = need("jax").nn.dot_product_attention(q, k, v, is_causal=causal, implementation=way)
    return found.reshape(batch, time, width // 3)


# --- networks ---------------------------------------------------------------------------------------------------------------------


def gpt2(w: Weights, x: Any, dtype: str, statistics: Statistics) -> Any:
    """GPT-2: tokens to logits."""
    gelu = partial(need("jax").nn.gelu, approximate=True)
    y = (w["wte.weight"][x] + w["wpe.weight"][: x.shape[1]]).astype(dtype)
    for i in range(12):
        at = f"h.{i}"
        heads = _attention(_linear(w, f"{at}.attn.c_attn", _norm(w, f"{at}.ln_1", y)), 12, True, statistics is not None)
        y = y + _linear(w, f"{at}.attn.c_proj", heads)
        y = y + _linear(w, f"{at}.mlp.c_proj", gelu(_linear(w, f"{at}.mlp.c_fc", _norm(w, f"{at}.ln_2", y))))
    return _norm(w, "ln_f", y) @ w["wte.weight"].astype(dtype).T


def vit_base(w: Weights, x: Any, dtype: str, statistics: Statistics) -> Any:
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
        heads = _attention(_linear(joined, "in", _norm(w, f"{at}.ln_1", y, 1e-6)), 12, False, statistics is not None)
        y = y + _linear(w, f"{at}.self_attention.out_proj", heads)
        hidden = jax.nn.gelu(_linear(w, f"{at}.mlp.0", _norm(w, f"{at}.ln_2", y, 1e-6)), approximate=False)
        y = y + _linear(w, f"{at}.mlp.3", hidden)
    return _linear(w, "heads.head", _norm(w, "encoder.ln", y, 1e-6)[:, 0])


def convnext_tiny(w: Weights, x: Any, dtype: str, statistics: Statistics) -> Any:
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


def mobilenet_v2(w: Weights, x: Any, dtype: str, statistics: Statistics) -> Any:
    """MobileNetV2: images, channels last, to logits."""
    relu6 = need("jax").nn.relu6
    y = relu6(_conv_norm(w, "features.0.0", "features.0.1", x.astype(dtype), statistics, stride=2))
    place = 0
    for times, channels, count, first in MOBILENET:
        for i in range(count):
            place += 1
            at, stride, z = f"features.{place}.conv", first if i == 0 else 1, y
            if times > 1:
                z = relu6(_conv_norm(w, f"{at}.0.0", f"{at}.0.1", z, statistics))
            part = int(times > 1)
            z = relu6(_conv_norm(w, f"{at}.{part}.0", f"{at}.{part}.1", z, statistics, stride, z.shape[-1]))
            z = _conv_norm(w, f"{at}.{part + 1}", f"{at}.{part + 2}", z, statistics)
            y = y + z if stride == 1 and y.shape[-1] == channels else z
    y = relu6(_conv_norm(w, "features.18.0", "features.18.1", y, statistics))
    return _linear(w, "classifier.1", y.mean((1, 2)))


def efficientnet_b0(w: Weights, x: Any, dtype: str, statistics: Statistics) -> Any:
    """EfficientNet-B0: images, channels last, to logits."""
    jax = need("jax")
    silu = jax.nn.silu
    y = silu(_conv_norm(w, "features.0.0", "features.0.1", x.astype(dtype), statistics, stride=2))
    for stage, (times, channels, count, first) in enumerate(EFFICIENTNET, 1):
        for i in range(count):
            at, stride, z = f"features.{stage}.{i}.block", first if i == 0 else 1, y
            if times > 1:
                z = silu(_conv_norm(w, f"{at}.0.0", f"{at}.0.1", z, statistics))
            part = int(times > 1)
            z = silu(_conv_norm(w, f"{at}.{part}.0", f"{at}.{part}.1", z, statistics, stride, z.shape[-1]))
            gates = silu(_conv(w, f"{at}.{part + 1}.fc1", z.mean((1, 2), keepdims=True)))
            z = z * jax.nn.sigmoid(_conv(w, f"{at}.{part + 1}.fc2", gates))
            z = _conv_norm(w, f"{at}.{part + 2}.0", f"{at}.{part + 2}.1", z, statistics)
            y = y + z if stride == 1 and y.shape[-1] == channels else z
    y = silu(_conv_norm(w, "features.8.0", "features.8.1", y, statistics))
    return _linear(w, "classifier.1", y.mean((1, 2)))


NETWORKS: dict[str, Network] = {
    "gpt2": gpt2,
    "vit_base": vit_base,
    "convnext_tiny": convnext_tiny,
    "mobilenet_v2": mobilenet_v2,
    "efficientnet_b0": efficientnet_b0,
}


# --- contestants ------------------------------------------------------------------------------------------------------------------


def _given(x: np.ndarray) -> Any:
    return need("jax").numpy.asarray(np.ascontiguousarray(np.moveaxis(x, 1, -1)) if x.ndim == 4 else x)


def loss(network: str, dtype: str, w: Weights, x: Any, y: Any) -> tuple[Any, dict[str, Any]]:
    """The cross entropy of a batch, and the running statistics after it."""
    jax = need("jax")
    statistics: dict[str, Any] = {}
    logits = NETWORKS[network](w, x, dtype, statistics).astype("float32").reshape(len(y), -1)
    picked = jax.numpy.take_along_axis(logits, y[:, None], 1)[:, 0]
    return (jax.nn.logsumexp(logits, axis=1) - picked).mean(), statistics


def training(
    network: str, dtype: str, weights: Mapping[str, np.ndarray], x: np.ndarray, y: np.ndarray, rate: float
) -> Contestant:
    """Steps of AdamW."""
    jax = need("jax")
    jnp = jax.numpy
    given = {name: jnp.asarray(value) for name, value in weights.items() if not name.endswith("num_batches_tracked")}
    kept = {name: value for name, value in given.items() if name.endswith(STATISTICS)}
    start = {name: value for name, value in given.items() if name not in kept}
    state = [start, *({n: jnp.zeros_like(p) for n, p in start.items()} for _ in range(2)), jnp.zeros((), "int32"), kept]
    images, labels = _given(x), jnp.asarray(y)

    def step(state: Any, x: Any, y: Any) -> Any:
        w, m, v, count, kept = state
        of_weights = jax.value_and_grad(lambda w: loss(network, dtype, {**w, **kept}, x, y), has_aux=True)
        (value, kept), gradients = of_weights(w)
        count = count + 1
        m = {n: BETAS[0] * m[n] + (1 - BETAS[0]) * gradients[n] for n in w}
        v = {n: BETAS[1] * v[n] + (1 - BETAS[1]) * gradients[n] ** 2 for n in w}
        first, second = (1 - beta ** count.astype("float32") for beta in BETAS)
        w = {n: p - rate * (m[n] / first / (jnp.sqrt(v[n] / second) + EPS) + DECAY * p) for n, p in w.items()}
        return value, (w, m, v, count, kept)

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
    compiled = jax.jit(lambda w, x: NETWORKS[network](w, x, dtype, None))
    last = [compiled(narrow, images)]

    def call() -> Any:
        last[0] = compiled(narrow, images)
        return last[0]

    return Contestant(
        call, lambda: jax.block_until_ready(last[0]), lambda: [np.asarray(call()).astype(np.float32).reshape(-1)[:1000]]
    )
