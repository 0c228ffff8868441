"""Convolution layers of well-known networks: forward, data gradient and filter gradient, each alone.

Contestants get their images in both layouts where they have two; weft's "last" means that the program takes and gives
images channels last, as it keeps them inside a network.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

import weft

from . import with_jax, with_torch, with_weft
from .measure import Case, Ready
from .peers import need


@dataclass(frozen=True)
class Layer:
    name: str
    batch: int
    channels: int
    size: int
    filters: int
    kernel: int
    stride: int = 1
    padding: int = 0
    quick: bool = False

    @property
    def out(self) -> int:
        return (self.size + 2 * self.padding - self.kernel) // self.stride + 1

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        return {
            "x": (self.batch, self.channels, self.size, self.size),
            "w": (self.filters, self.channels, self.kernel, self.kernel),
            "y": (self.batch, self.filters, self.out, self.out),
        }

    @property
    def flops(self) -> float:
        return 2.0 * math.prod(self.shapes["y"]) * self.channels * self.kernel**2

    @property
    def moved(self) -> float:
        return 4.0 * sum(math.prod(s) for s in self.shapes.values())


LAYERS = [
    Layer("ResNet 3x3, 64 at 56", 8, 64, 56, 64, 3, padding=1, quick=True),
    Layer("ResNet 3x3, 128 at 28", 8, 128, 28, 128, 3, padding=1),
    Layer("ResNet 3x3, 256 at 14", 8, 256, 14, 256, 3, padding=1, quick=True),
    Layer("ResNet 3x3, 512 at 7", 8, 512, 7, 512, 3, padding=1),
    Layer("ResNet 1x1, 64 to 256 at 56", 8, 64, 56, 256, 1, quick=True),
    Layer("ResNet 1x1, 512 to 128 at 28", 8, 512, 28, 128, 1),
    Layer("ResNet 1x1, 1024 to 256 at 14", 8, 1024, 14, 256, 1),
    Layer("ResNet 1x1, 512 to 2048 at 7", 8, 512, 7, 2048, 1),
    Layer("AlexNet conv1 11x11/4, 3 to 64", 8, 3, 224, 64, 11, 4, 2, quick=True),
    Layer("AlexNet conv2 5x5, 64 to 192 at 27", 8, 64, 27, 192, 5, padding=2),
    Layer("LeNet conv2 5x5, 6 to 16 at 14", 64, 6, 14, 16, 5, quick=True),
]
LARGE = [
    Layer("large 7x7, 64 at 56", 4, 64, 56, 64, 7, padding=3, quick=True),
    Layer("large 7x7, 256 at 14", 4, 256, 14, 256, 7, padding=3),
    Layer("large 9x9, 128 at 28", 4, 128, 28, 128, 9, padding=4),
    Layer("large 11x11, 64 at 28", 4, 64, 28, 64, 11, padding=5),
    Layer("large 15x15, 32 at 56", 4, 32, 56, 32, 15, padding=7),
    Layer("large 31x31, 16 at 56", 4, 16, 56, 16, 31, padding=15),
]
STRIDED = [
    Layer("ResNet 3x3/2, 128 at 56", 8, 128, 56, 128, 3, 2, 1, quick=True),
    Layer("ResNet 1x1/2, 256 to 512 at 56", 8, 256, 56, 512, 1, 2),
    Layer("ResNet conv1 7x7/2, 3 to 64", 4, 3, 224, 64, 7, 2, 3),
]

FORWARD, DATA, FILTER = "convolution forward", "convolution data gradient", "convolution filter gradient"
DIRECT = "convolution forward, without WINOGRAD"
NEEDS = {FORWARD: "xw", DIRECT: "xw", DATA: "yw", FILTER: "xy"}  # which tensors are given


def cases() -> Iterator[Case]:
    for layer in (*LAYERS, *STRIDED):
        threefold = layer.kernel == 3 and layer.stride == 1
        yield _case(FORWARD, layer, 2.0 if threefold else 1.1)
    if "winograd" in weft.knobs.__dict__:
        for layer in LAYERS:
            if layer.kernel == 3:
                yield _case(DIRECT, layer, 1.1)
    for group in (DATA, FILTER):
        for layer in (*LAYERS, *STRIDED):
            yield _case(group, layer, 1.5)
    for group in (FORWARD, DATA, FILTER):
        for layer in LARGE:
            yield _case(group, layer, 2.0)


def _case(group: str, layer: Layer, goal: float) -> Case:
    work = _Work(group, layer)
    contestants = {
        "torch": lambda: work.torch(False),
        "torch last": lambda: work.torch(True),
        "jax last": work.jax,
        "weft": lambda: work.weft(False),
        "weft last": lambda: work.weft(True),
    }
    return Case(
        group, f"{layer.name}, batch {layer.batch}", contestants, [(layer.flops, layer.moved)], goal, quick=layer.quick
    )


class _Work:
    def __init__(self, group: str, layer: Layer) -> None:
        self.group, self.layer = group, layer

    def arrays(self) -> list[np.ndarray]:
        rng = np.random.default_rng(0)
        return [rng.standard_normal(self.layer.shapes[name], np.float32) for name in NEEDS[self.group]]

    def weft(self, last: bool) -> Ready:
        layer, group = self.layer, self.group
        how: dict[str, Any] = {"stride": layer.stride, "padding": layer.padding}

        def back(shape: str, f: Any, g: Any) -> Any:
            """The derivative of a linear function does not depend on where it is taken."""
            _, pullback = weft.vjp(f, weft.zeros(layer.shapes[shape]))
            return pullback(g)[0]

        def f(a: Any, b: Any) -> list[Any]:
            a, b = (_first(t) if last and n != "w" else t for t, n in zip((a, b), NEEDS[group], strict=True))
            if group == DATA:
                result = back("x", lambda x: weft.conv(x, b, **how), a)
            elif group == FILTER:
                return [back("w", lambda w: weft.conv(a, w, **how), b)]
            else:
                result = weft.conv(a, b, **how)
            return [_last(result) if last else result]

        arrays = [
            np.ascontiguousarray(_last_array(a)) if last and n != "w" else a
            for a, n in zip(self.arrays(), NEEDS[group], strict=True)
        ]
        ready = with_weft.function(f, arrays)

        def call() -> Any:
            with _without_winograd(group == DIRECT):  # compiled functions follow the setting
                return ready.call()

        def values() -> list[np.ndarray]:
            with _without_winograd(group == DIRECT):
                found = ready.values()
            return list(found) if not last or group == FILTER else [v.transpose(0, 3, 1, 2) for v in found]

        return Ready(call, values)

    def torch(self, last: bool) -> Ready:
        torch, layer = need("torch"), self.layer
        pairs = [layer.stride] * 2, [layer.padding] * 2, [1, 1]

        def backward(g: Any, x: Any, w: Any, mask: list[bool]) -> Any:
            return torch.ops.aten.convolution_backward(g, x, w, None, *pairs, False, [0, 0], 1, mask)

        def f(a: Any, b: Any) -> list[Any]:
            if self.group == DATA:
                return [backward(a, shaped["x"], b, [True, False, False])[0]]
            if self.group == FILTER:
                return [backward(b, a, shaped["w"], [False, True, False])[1]]
            return [torch.nn.functional.conv2d(a, b, stride=layer.stride, padding=layer.padding)]

        form = torch.channels_last if last else torch.contiguous_format
        shaped = {n: torch.empty(s, memory_format=form) for n, s in layer.shapes.items()}
        return with_torch.function(f, self.arrays(), last)

    def jax(self) -> Ready:
        """Images channels last: what XLA's convolutions on a CPU like best."""
        jax, layer = need("jax"), self.layer

        def conv(x: Any, w: Any) -> Any:
            pads = [(layer.padding, layer.padding)] * 2
            strides = (layer.stride, layer.stride)
            return jax.lax.conv_general_dilated(x, w, strides, pads, dimension_numbers=("NHWC", "OIHW", "NHWC"))

        def f(a: Any, b: Any) -> list[Any]:
            if self.group == DATA:
                x = jax.numpy.zeros(tuple(layer.shapes["x"][i] for i in (0, 2, 3, 1)), a.dtype)
                return [jax.vjp(lambda x: conv(x, b), x)[1](a)[0]]
            if self.group == FILTER:
                w = jax.numpy.zeros(layer.shapes["w"], a.dtype)
                return [jax.vjp(lambda w: conv(a, w), w)[1](b)[0]]
            return [conv(a, b)]

        names = NEEDS[self.group]
        arrays = [a if n == "w" else _last_array(a) for a, n in zip(self.arrays(), names, strict=True)]
        ready = with_jax.function(f, arrays)
        if self.group == FILTER:
            return ready
        return Ready(ready.call, lambda: [v.transpose(0, 3, 1, 2) for v in ready.values()])


def _first(x: Any) -> Any:
    return weft.permute_dims(x, (0, 3, 1, 2))


def _last(x: Any) -> Any:
    return weft.permute_dims(x, (0, 2, 3, 1))


def _last_array(x: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(x.transpose(0, 2, 3, 1))


def _without_winograd(wanted: bool) -> Any:
    return weft.knobs.set(winograd=0) if wanted else weft.knobs.set()
