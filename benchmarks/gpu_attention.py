"""Rows of attention alone on a GPU, bfloat16, forward and backward: torch's flash and cuDNN kernels, recorded as CUDA graphs, against weft.

Batch x length x heads x features is about 2**23 in all rows but the longest. Backward is all three gradients, given the results of forward. Errors against float64
are the tests' business (tests/gpu/test_gpu_attention.py); here contestants must agree.

A call does several attentions of different inputs, as a step of a network does, so that kernels are compared and not the host time of a call. Times are of one. Inputs
and results have fixed addresses for everyone, and nothing is copied: torch's graph writes to static results, weft to tensors that the function assigns to.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import chain
from math import prod, sqrt
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
COUNTS = {4096: 4, 16384: 2}  # attentions of a call, by their length
COUNT = 8  # of a call with shorter ones
SHIFT = 1009  # from the first number of a tensor to that of the next: a prime, so that no rows of queries and keys are equal
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
    def shape(self) -> tuple[int, int, int, int]:
        return self.batch, self.length, self.heads, self.features

    @property
    def count(self) -> int:
        """How many attentions a call does."""
        return COUNTS.get(self.length, COUNT)

    @property
    def flops(self) -> float:
        return 4.0 * self.batch * self.heads * self.length**2 * self.features * (0.5 if self.causal else 1.0)


@lru_cache(maxsize=1)
def _numbers(count: int) -> np.ndarray:
    return np.random.default_rng(0).standard_normal(count, np.float32)


def _arrays(sizes: Sizes) -> list[list[np.ndarray]]:
    """For each attention of a call: queries, keys, values and the gradient of the result, (batch, length, heads, features)."""
    size = prod(sizes.shape)
    numbers = _numbers(size + 4 * COUNT * SHIFT)
    begins = [[(4 * i + j) * SHIFT for j in range(4)] for i in range(sizes.count)]
    return [[numbers[begin : begin + size].reshape(sizes.shape) for begin in some] for some in begins]


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
        note = f"{sizes.count} in a call"
        yield Case(
            group, sizes.name, found, ahead=1.0, flops=flops, repeats=sizes.count, allowed=0.03, dry=dry, note=note
        )


def _torch(sizes: Sizes, kernel: str, backward: bool) -> Contestant:
    torch = need("torch")
    chosen = getattr(torch.nn.attention.SDPBackend, kernel)

    def input_of(array: np.ndarray, tracked: bool) -> Any:
        given = torch.from_numpy(array).to(Place.device, torch.bfloat16).transpose(1, 2)
        return given.detach().requires_grad_(tracked)

    inputs = [[input_of(a, backward) for a in arrays[:3]] for arrays in _arrays(sizes)]

    def forward() -> list[Any]:
        with torch.nn.attention.sdpa_kernel(chosen) if Place.is_gpu() else torch.enable_grad():
            attend = torch.nn.functional.scaled_dot_product_attention
            return [attend(*qkv, is_causal=sizes.causal) for qkv in inputs]

    work = forward
    if backward:
        given = [input_of(arrays[3], False) for arrays in _arrays(sizes)]
        outputs = forward()

        def work() -> list[Any]:
            every = zip(outputs, inputs, given, strict=True)
            return [t for out, qkv, g in every for t in torch.autograd.grad(out, qkv, g, retain_graph=True)]

    call = gpu_torch.Captured(work) if Place.is_gpu() else work

    def seen() -> list[np.ndarray]:
        results = _first_and_last(call(), sizes.count)
        return [_seen(t.transpose(1, 2).float().cpu().detach().numpy()) for t in results]

    return Contestant(call, gpu_torch.wait, seen)


def _weft(sizes: Sizes, backward: bool) -> Contestant:
    """Results are assigned to tensors from outside: they are written to the memory of these, without a copy.

    Of the inputs, the queries or the gradients of results are arguments: the same tensors in every call, so they are read in place. The others are captured. If all
    were, they would be constants: the compiler would do the attentions once, and each call would copy the results.
    """
    inputs = [[weft.asarray(a).astype("bfloat16").realize() for a in arrays] for arrays in _arrays(sizes)]
    step, arguments, results = _weft_backward(sizes, inputs) if backward else _weft_forward(sizes, inputs)

    def call() -> None:
        step(*arguments)

    def seen() -> list[np.ndarray]:
        call()
        return [_seen(t.astype("float32").numpy()) for t in _first_and_last(results, sizes.count)]

    return Contestant(call, gpu_weft.wait, seen)


_Step = tuple[Callable[..., None], list[weft.Tensor], list[weft.Tensor]]  # with its arguments and its results


def _weft_forward(sizes: Sizes, inputs: Sequence[Sequence[weft.Tensor]]) -> _Step:
    results = _room(sizes, sizes.count)

    def step(*queries: weft.Tensor) -> None:
        for result, q, (_, k, v, _) in zip(results, queries, inputs, strict=True):
            result.assign(attention(q, k, v, causal=sizes.causal)[0])

    return weft.jit(step), [q for q, *_ in inputs], results


def _weft_backward(sizes: Sizes, inputs: Sequence[Sequence[weft.Tensor]]) -> _Step:
    forward = weft.jit(lambda q, k, v: attention(q, k, v, causal=sizes.causal))
    read = [(q, k, v, *forward(q, k, v)) for q, k, v, _ in inputs]
    params = (-1, 0 if sizes.causal else -1, "lower_right", 1 / sqrt(sizes.features), 0.0, ())
    results = _room(sizes, 3 * sizes.count)

    def step(*given: weft.Tensor) -> None:
        found = [emit_all(OPS["attention_gradients"], (*some, g), params) for some, g in zip(read, given, strict=True)]
        for result, gradient in zip(results, chain.from_iterable(found), strict=True):
            result.assign(gradient)

    return weft.jit(step), [g for *_, g in inputs], results


def _room(sizes: Sizes, count: int) -> list[weft.Tensor]:
    return [weft.zeros(sizes.shape, dtype="bfloat16").realize() for _ in range(count)]


def _first_and_last(results: Sequence[Any], count: int) -> list[Any]:
    """The results of the first and the last of so many attentions."""
    each = len(results) // count
    return [*results[:each], *results[-each:]]


def _seen(value: np.ndarray) -> np.ndarray:
    flat = value.reshape(-1)
    return flat[:: max(1, flat.size // SEEN)]
