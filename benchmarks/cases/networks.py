"""The networks, written once over the words that every library has (`Ops`), so that all do the same arithmetic.

A network is a function of (ops, supply, x). The supply hands out the parameters in the order of use: fresh ones when
the network is first made, each library's own later. `Shapes` walks through a network without computing: it finds the
parameters, and how much every layer must compute and move at least.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import numpy as np

Shape = tuple[int, ...]


class Ops(Protocol):
    """The words of a library. Images are (batch, channels, height, width); filters (filters, channels, height, width)."""

    def conv(self, x: Any, w: Any, b: Any = None, stride: int = 1, padding: int = 0) -> Any: ...
    def linear(self, x: Any, w: Any, b: Any) -> Any: ...
    def relu(self, x: Any) -> Any: ...
    def gelu(self, x: Any) -> Any: ...  # by tanh
    def add(self, x: Any, y: Any) -> Any: ...
    def max_pool(self, x: Any, size: int, stride: int, padding: int = 0) -> Any: ...
    def mean_pool(self, x: Any) -> Any: ...
    def flatten(self, x: Any) -> Any: ...
    def batch_norm(self, x: Any, scale: Any, shift: Any, mean: Any, var: Any) -> Any: ...


class Supply:
    """Hands out parameters, and statistics that are kept but not trained, in the order of use."""

    def __init__(self, parameters: Sequence[Any], statistics: Sequence[Any] = ()) -> None:
        self._parameters, self._statistics = iter(parameters), iter(statistics)

    def weight(self, *shape: int) -> Any:
        return next(self._parameters)

    def bias(self, size: int) -> Any:
        return next(self._parameters)

    def scale(self, size: int) -> Any:
        return next(self._parameters)

    def statistic(self, size: int, start: float) -> Any:
        return next(self._statistics)


class Fresh(Supply):
    """Makes parameters, and remembers them."""

    def __init__(self) -> None:
        super().__init__(())
        self.rng = np.random.default_rng(0)
        self.parameters: list[np.ndarray] = []
        self.statistics: list[np.ndarray] = []

    def weight(self, *shape: int) -> np.ndarray:
        spread = math.sqrt(2.0 / math.prod(shape[1:]))
        return self._parameter(self.rng.standard_normal(shape, np.float32) * np.float32(spread))

    def bias(self, size: int) -> np.ndarray:
        return self._parameter(self.rng.standard_normal(size, np.float32) * np.float32(0.05))

    def scale(self, size: int) -> np.ndarray:
        return self._parameter(np.ones(size, np.float32))

    def statistic(self, size: int, start: float) -> np.ndarray:
        self.statistics.append(np.full(size, start, np.float32))
        return self.statistics[-1]

    def _parameter(self, value: np.ndarray) -> np.ndarray:
        self.parameters.append(value)
        return value


class Shapes:
    """Ops that compute shapes only. `layers` are the (operations, bytes) of products and convolutions, forward."""

    def __init__(self) -> None:
        self.layers: list[tuple[float, float]] = []

    def conv(self, x: Shape, w: np.ndarray, b: Any = None, stride: int = 1, padding: int = 0) -> Shape:
        n, c, *size = x
        assert w.shape[1] == c, f"{c} channels meet a filter of {w.shape}"
        out = (n, w.shape[0], *((s + 2 * padding - k) // stride + 1 for s, k in zip(size, w.shape[2:], strict=True)))
        return self._layer(x, w, out, math.prod(w.shape[1:]))

    def linear(self, x: Shape, w: np.ndarray, b: Any) -> Shape:
        assert x[1] == w.shape[1], f"{x} meets weights of {w.shape}"
        return self._layer(x, w, (x[0], w.shape[0]), x[1])

    def _layer(self, x: Shape, w: np.ndarray, out: Shape, terms: int) -> Shape:
        self.layers.append((2.0 * math.prod(out) * terms, 4.0 * (math.prod(x) + w.size + math.prod(out))))
        return out

    def relu(self, x: Shape) -> Shape:
        return x

    gelu = relu

    def add(self, x: Shape, y: Shape) -> Shape:
        assert x == y
        return x

    def max_pool(self, x: Shape, size: int, stride: int, padding: int = 0) -> Shape:
        return (*x[:2], *((s + 2 * padding - size) // stride + 1 for s in x[2:]))

    def mean_pool(self, x: Shape) -> Shape:
        return x[:2]

    def flatten(self, x: Shape) -> Shape:
        return (x[0], math.prod(x[1:]))

    def batch_norm(self, x: Shape, *rest: Any) -> Shape:
        return x


Network = Callable[[Any, Supply, Any], Any]


@dataclass(frozen=True)
class Task:
    """A network on inputs of one shape, and how it is trained."""

    network: Network
    shape: Shape  # of a batch
    momentum: float = 0.9
    rate: float = 0.01
    classes: int = 10
    batch_axis: int = 0

    @cached_property
    def fresh(self) -> Fresh:
        return self._walk[1]

    @cached_property
    def layers(self) -> list[tuple[float, float]]:
        return self._walk[0].layers

    @cached_property
    def _walk(self) -> tuple[Shapes, Fresh]:
        shapes, fresh = Shapes(), Fresh()
        self.network(shapes, fresh, self.shape)
        return shapes, fresh

    def training_layers(self) -> list[tuple[float, float]]:
        """Forward, data gradient and filter gradient of all layers; the first needs no data gradient."""
        return [layer for i, layer in enumerate(self.layers) for _ in range(3 if i else 2)]

    def batch(self) -> tuple[np.ndarray, np.ndarray]:
        rng = np.random.default_rng(1)
        x = rng.standard_normal(self.shape, np.float32)
        return x, rng.integers(0, self.classes, self.shape[self.batch_axis])


def lstm(o: Any, p: Supply, x: Any) -> Any:
    """The parameters and layers of one layer of long short-term memory, hidden size 128, and a classifier. Each library
    has its own words for the recurrence."""
    time, batch, features = x
    w_in, w_hidden = p.weight(512, features), p.weight(512, 128)
    b_in, b_hidden = p.bias(512), p.bias(512)
    o.linear((time * batch, features), w_in, b_in)
    for _ in range(time):
        o.linear((batch, 128), w_hidden, b_hidden)
    return o.linear((batch, 128), p.weight(10, 128), p.bias(10))


def mlp(o: Any, p: Supply, x: Any) -> Any:
    x = o.relu(o.linear(x, p.weight(300, 784), p.bias(300)))
    x = o.relu(o.linear(x, p.weight(100, 300), p.bias(100)))
    return o.linear(x, p.weight(10, 100), p.bias(10))


def feed_forward(o: Any, p: Supply, x: Any) -> Any:
    """What stands beside attention in two blocks of GPT-2; what leaves the second is taken for logits."""
    for _ in range(2):
        x = o.gelu(o.linear(x, p.weight(3072, 768), p.bias(3072)))
        x = o.linear(x, p.weight(768, 3072), p.bias(768))
    return x


def lenet(o: Any, p: Supply, x: Any) -> Any:
    x = o.max_pool(o.relu(o.conv(x, p.weight(6, 1, 5, 5), p.bias(6), padding=2)), 2, 2)
    x = o.max_pool(o.relu(o.conv(x, p.weight(16, 6, 5, 5), p.bias(16))), 2, 2)
    x = o.relu(o.linear(o.flatten(x), p.weight(120, 400), p.bias(120)))
    x = o.relu(o.linear(x, p.weight(84, 120), p.bias(84)))
    return o.linear(x, p.weight(10, 84), p.bias(10))


def cifar_cnn(o: Any, p: Supply, x: Any) -> Any:
    channels = 3
    for width in (32, 64):
        for _ in range(2):
            x = o.relu(o.conv(x, p.weight(width, channels, 3, 3), p.bias(width), padding=1))
            channels = width
        x = o.max_pool(x, 2, 2)
    x = o.relu(o.linear(o.flatten(x), p.weight(512, 4096), p.bias(512)))
    return o.linear(x, p.weight(10, 512), p.bias(10))


def resnet18(o: Any, p: Supply, x: Any) -> Any:
    """The one for 32 x 32 images: a 3 x 3 convolution at the entry, no pooling behind it."""
    x = o.relu(_normal(o, p, o.conv(x, p.weight(64, 3, 3, 3), padding=1), 64))
    channels = 64
    for width, first in ((64, 1), (128, 2), (256, 2), (512, 2)):
        for stride in (first, 1):
            y = o.relu(_normal(o, p, o.conv(x, p.weight(width, channels, 3, 3), stride=stride, padding=1), width))
            y = _normal(o, p, o.conv(y, p.weight(width, width, 3, 3), padding=1), width)
            if stride != 1 or channels != width:
                x = _normal(o, p, o.conv(x, p.weight(width, channels, 1, 1), stride=stride), width)
            x, channels = o.relu(o.add(x, y)), width
    return o.linear(o.mean_pool(x), p.weight(10, 512), p.bias(10))


def _normal(o: Any, p: Supply, x: Any, size: int) -> Any:
    return o.batch_norm(x, p.scale(size), p.bias(size), p.statistic(size, 0.0), p.statistic(size, 1.0))


def alexnet(o: Any, p: Supply, x: Any) -> Any:
    """The one-tower version, for inference: no dropout."""
    x = o.max_pool(o.relu(o.conv(x, p.weight(64, 3, 11, 11), p.bias(64), stride=4, padding=2)), 3, 2)
    x = o.max_pool(o.relu(o.conv(x, p.weight(192, 64, 5, 5), p.bias(192), padding=2)), 3, 2)
    for width, channels in ((384, 192), (256, 384), (256, 256)):
        x = o.relu(o.conv(x, p.weight(width, channels, 3, 3), p.bias(width), padding=1))
    x = o.flatten(o.max_pool(x, 3, 2))
    for size in (9216, 4096):
        x = o.relu(o.linear(x, p.weight(4096, size), p.bias(4096)))
    return o.linear(x, p.weight(1000, 4096), p.bias(1000))


def vgg16(o: Any, p: Supply, x: Any) -> Any:
    channels = 3
    for width, count in ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3)):
        for _ in range(count):
            x = o.relu(o.conv(x, p.weight(width, channels, 3, 3), p.bias(width), padding=1))
            channels = width
        x = o.max_pool(x, 2, 2)
    x = o.flatten(x)
    for size in (25088, 4096):
        x = o.relu(o.linear(x, p.weight(4096, size), p.bias(4096)))
    return o.linear(x, p.weight(1000, 4096), p.bias(1000))


def resnet50(o: Any, p: Supply, x: Any) -> Any:
    """For inference: the batch norms are folded into the filters and biases, for all contestants alike."""
    x = o.max_pool(o.relu(o.conv(x, p.weight(64, 3, 7, 7), p.bias(64), stride=2, padding=3)), 3, 2, 1)
    channels = 64
    for width, count, first in ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)):
        for i in range(count):
            stride, wide = (first if i == 0 else 1), 4 * width
            y = o.relu(o.conv(x, p.weight(width, channels, 1, 1), p.bias(width)))
            y = o.relu(o.conv(y, p.weight(width, width, 3, 3), p.bias(width), stride=stride, padding=1))
            y = o.conv(y, p.weight(wide, width, 1, 1), p.bias(wide))
            if i == 0:
                x = o.conv(x, p.weight(wide, channels, 1, 1), p.bias(wide), stride=stride)
            x, channels = o.relu(o.add(x, y)), wide
    return o.linear(o.mean_pool(x), p.weight(1000, 2048), p.bias(1000))
