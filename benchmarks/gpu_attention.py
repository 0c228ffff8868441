"""Rows of attention alone on a GPU, bfloat16, forward and backward: torch's flash and cuDNN kernels, recorded as CUDA graphs, against weft.

Batch x length x heads x features is about 2**23 in all rows but the longest. Backward is all three gradients, given the results of forward. Errors against float64
are the tests' business (tests/gpu/test_gpu_attention.py); here contestants must agree.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, partial
from math import sqrt
from typing import Any

import gpu_torch
import gpu_weft
import numpy as np
from cases.peers import need
from gpu_measure import Case, Contestant, Place

import weft
from weft.graph import OPS
from weft.ops.attention import attention
from weft.tensor import emit_all

FORWARD, BACKWARD = "attention, forward, bfloat16", "attention, backward, bfloat16"
LENGTHS = {128: 64, 512: 32, 1024: 16, 2048: 8, 4096: 4, 16384: 1}  # and batches
HEADS = ((16, 64), (8, 128))  # heads and features of each
KERNELS = {"torch flash": "FLASH_ATTENTION", "torch cudnn": "CUDNN_ATTENTION"}
SEEN = 2048  # numbers of each result that are compared


@dataclass(frozen=True)
class Sizes:
    """Attention of `heads` heads of `features` features, all queries to all keys or to those before them."""

    batch: int
    length: int
    heads: int
    features: int
    causal: bool

    @property
    def name(self) -> str:
        kind = "causal" if self.causal else "full"
        return f"{self.batch} x {self.length}, {self.heads} heads of {self.features}, {kind}"

    @property
    def flops(self) -> float:
        return 4.0 * self.batch * self.heads * self.length**2 * self.features * (0.5 if self.causal else 1.0)


@cache
def _arrays(sizes: Sizes) -> list[np.ndarray]:
    """Queries, keys, values and the gradient of the result: (batch, length, heads, features)."""
    rng = np.random.default_rng(0)
    return [rng.standard_normal((sizes.batch, sizes.length, sizes.heads, sizes.features), np.float32) for _ in range(4)]


def cases() -> Iterator[Case]:
    """Every row."""
    for length, batch in LENGTHS.items():
        for heads, features in HEADS:
            for causal in (False, True):
                yield from _both(Sizes(batch, length, heads, features, causal), dry=False)
    yield from _both(Sizes(2, 16, 2, 8, True), dry=True)


def _both(sizes: Sizes, dry: bool) -> Iterator[Case]:
    for group, backward in ((FORWARD, False), (BACKWARD, True)):
        found: dict[str, Callable[[], Contestant]] = {
            name: partial(_torch, sizes, kernel, backward) for name, kernel in KERNELS.items()
        }
        found["weft"] = partial(_weft, sizes, backward)
        flops = sizes.flops * (2.5 if backward else 1.0)
        yield Case(group, sizes.name, found, ahead=1.0, flops=flops, allowed=0.03, dry=dry)


def _torch(sizes: Sizes, kernel: str, backward: bool) -> Contestant:
    torch = need("torch")
    chosen = getattr(torch.nn.attention.SDPBackend, kernel)
    inputs = [torch.from_numpy(a).to(Place.device, torch.bfloat16).transpose(1, 2) for a in _arrays(sizes)]
    q, k, v = (t.detach().requires_grad_(backward) for t in inputs[:3])

    def forward() -> Any:
        with torch.nn.attention.sdpa_kernel(chosen) if Place.is_gpu() else torch.enable_grad():
            return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=sizes.causal)

    result = forward()

    def work() -> Any:
        return torch.autograd.grad(result, (q, k, v), inputs[3], retain_graph=True) if backward else (forward(),)

    call = gpu_torch.Captured(work) if Place.is_gpu() else work
    return Contestant(
        call, gpu_torch.wait, lambda: [_seen(t.transpose(1, 2).float().cpu().detach().numpy()) for t in call()]
    )


def _weft(sizes: Sizes, backward: bool) -> Contestant:
    q, k, v, g = (weft.asarray(a).astype("bfloat16").realize() for a in _arrays(sizes))
    forward = weft.jit(lambda q, k, v: attention(q, k, v, causal=sizes.causal))
    out, stats = forward(q, k, v)
    params = (-1, 0 if sizes.causal else -1, "lower_right", 1 / sqrt(sizes.features), 0.0, ())
    gradients = weft.jit(lambda *given: emit_all(OPS["attention_gradients"], given, params))

    def call() -> Any:
        return gradients(q, k, v, out, stats, g) if backward else forward(q, k, v)[:1]

    return Contestant(call, gpu_weft.wait, lambda: [_seen(t.astype("float32").numpy()) for t in call()])


def _seen(value: np.ndarray) -> np.ndarray:
    flat = value.reshape(-1)
    return flat[:: max(1, flat.size // SEEN)]
