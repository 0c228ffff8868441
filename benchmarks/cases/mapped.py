"""Derivatives of each example for itself, and second derivatives: `vmap` and what is made of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np

import weft

from . import with_jax, with_torch, with_weft
from .measure import Case, Ready
from .peers import need

GROUP = "each example"


def cases(quick: bool) -> Iterator[Case]:
    for name, words, shapes in _WORK:
        rng = np.random.default_rng(0)
        arrays = [rng.standard_normal(s, np.float32) * np.float32(0.3) for s in shapes]
        contestants: dict[str, Callable[[], Ready]] = {
            "torch": partial(_ready, with_torch.function, _Torch, words, arrays),
            "jax": partial(_ready, with_jax.function, _Jax, words, arrays),
            "weft": partial(_ready, with_weft.function, _Weft, words, arrays),
        }
        if words is _filters:
            contestants["jax channels last"] = partial(_ready, with_jax.function, _JaxLast, words, arrays)
        if not quick:
            contestants["torch compiled"] = partial(_ready, _compiled, _Torch, words, arrays)
        yield Case(GROUP, name, contestants)


def _ready(
    function: Callable[..., Ready], library: Callable[[], Any], words: Callable[[Any], Any], arrays: list[np.ndarray]
) -> Ready:
    return function(words(library()), arrays)


def _compiled(f: Callable[..., Any], arrays: list[np.ndarray]) -> Ready:
    return with_torch.function(need("torch").compile(f), arrays)


# --- the work, over words that each library spells in its own way ----------------------------------------------------------------


def _dense(lib: Any) -> Any:
    """The gradient of two layers for each example."""

    def loss(parameters: Any, x: Any) -> Any:
        return (lib.tanh(lib.tanh(x @ parameters[0]) @ parameters[1]) ** 2).sum()

    each = lib.vmap(lib.grad(loss), (None, 0))
    return lambda a, b, x: list(each([a, b], x))


def _filters(lib: Any) -> Any:
    """The gradient of the filters of a convolution for each image."""

    def loss(w: Any, x: Any) -> Any:
        return (lib.tanh(lib.conv(x[None], w)) ** 2).sum()

    each = lib.vmap(lib.grad(loss), (None, 0))
    return lambda w, x: [each(w, x)]


def _second(lib: Any) -> Any:
    """All second derivatives of a function of 64 numbers."""
    return lambda a, x: [lib.hessian(lambda x: lib.tanh(a @ x).sum())(x)]


_WORK: list[tuple[str, Callable[[Any], Any], list[tuple[int, ...]]]] = [
    ("gradients of 64-128-10 for 128 examples", _dense, [(64, 128), (128, 10), (128, 64)]),
    ("gradients of 3x3 filters, 3 to 16 at 32, for 32 images", _filters, [(16, 3, 3, 3), (32, 3, 32, 32)]),
    ("Hessian of 64 numbers", _second, [(64, 64), (64,)]),
]


class _Weft:
    def __init__(self) -> None:
        self.tanh, self.grad, self.vmap, self.hessian = weft.tanh, weft.grad, weft.vmap, weft.hessian

    def conv(self, x: Any, w: Any) -> Any:
        return weft.conv(x, w, padding=1)


class _Torch:
    def __init__(self) -> None:
        torch = need("torch")
        self.tanh, self.grad, self.vmap, self.hessian = torch.tanh, torch.func.grad, torch.func.vmap, torch.func.hessian

    def conv(self, x: Any, w: Any) -> Any:
        return need("torch").conv2d(x, w, padding=1)


class _Jax:
    def __init__(self) -> None:
        jax = need("jax")
        self.tanh, self.grad, self.vmap, self.hessian = jax.numpy.tanh, jax.grad, jax.vmap, jax.hessian

    def conv(self, x: Any, w: Any) -> Any:
        return need("jax").lax.conv(x, w, (1, 1), "SAME")


class _JaxLast(_Jax):
    def conv(self, x: Any, w: Any) -> Any:
        x, w = x.transpose(0, 2, 3, 1), w.transpose(2, 3, 1, 0)
        return need("jax").lax.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
