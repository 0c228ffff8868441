"""What is measured on a GPU, the most important first; what takes torch.compile long to prepare comes last.

A case is made when its turn comes. In a dry run everything is small: the work is other, the way through the script the same.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Any

import gpu_attention
import gpu_jax
import gpu_published
import gpu_torch
import gpu_weft
import numpy as np
from cases import networks, with_weft
from cases.convolutions import Layer
from cases.networks import Shapes, Supply, Task
from cases.peers import need
from gpu_measure import Case, Contestant, Place

import weft
from weft import zoo
from weft.knobs import GPU_ALGORITHMS as ALL_ALGORITHMS

TRAINING, INFERENCE, PRODUCT, SMALL = "training step", "inference", "matrix product", "memory and calls"
FORWARD, RELU = "convolution forward", "convolution with bias and ReLU"
DATA, FILTER = "convolution data gradient", "convolution filter gradient"
LATE = ", torch.compile"  # behind the name of a row that only adds this contestant
ALGORITHMS = "algorithms"


def resnet50(o: Any, p: Supply, x: Any) -> Any:
    """ResNet-50 for training: with batch norms, the statistics of the batch."""

    def normal(x: Any, size: int) -> Any:
        return o.batch_norm(x, p.scale(size), p.bias(size), p.statistic(size, 0.0), p.statistic(size, 1.0))

    def conv(x: Any, channels: int, width: int, size: int, stride: int = 1) -> Any:
        return normal(o.conv(x, p.weight(width, channels, size, size), stride=stride, padding=size // 2), width)

    x = o.max_pool(o.relu(conv(x, 3, 64, 7, 2)), 3, 2, 1)
    channels = 64
    for width, count, first in ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)):
        for i in range(count):
            stride = first if i == 0 else 1
            y = o.relu(conv(x, channels, width, 1))
            y = conv(o.relu(conv(y, width, width, 3, stride)), width, 4 * width, 1)
            if i == 0:
                x = conv(x, channels, 4 * width, 1, stride)
            x, channels = o.relu(o.add(x, y)), 4 * width
    return o.linear(o.mean_pool(x), p.weight(1000, 2048), p.bias(1000))


with_weft.MODELS[resnet50] = zoo.resnet50


@lru_cache(maxsize=1)
def _task(network: networks.Network, shape: tuple[int, ...], classes: int) -> Task:
    """One for all contestants of a row: the parameters of some take long to make."""
    return Task(network, shape, classes=classes)


class _Blank(networks.Fresh):
    """Parameters that have shapes only."""

    def weight(self, *shape: int) -> np.ndarray:
        return np.broadcast_to(np.float32(0.0), shape)


@dataclass(frozen=True)
class Network:
    """A row of a network: which one, in which numbers, and what is aimed at."""

    name: str
    network: networks.Network
    shape: tuple[int, ...]
    precision: str | None = None  # bfloat16, float16; None: float32
    tf32: bool = False
    goal: float | None = None  # milliseconds
    before: float | None = None  # the best milliseconds of torch, as measured before there was weft on GPUs
    allowed: float = 1e-3
    classes: int = 10
    chaotic: bool = False  # updates in 16 bits have little in common, whoever computes them: only losses are compared
    late: bool = False  # torch.compile takes minutes
    graph: bool = True  # also captured in a CUDA graph; not where memory for one contestant more would be short
    dry: tuple[int, ...] = ()  # the shape of a dry run; none: not part of it

    def task(self) -> Task:
        return _task(self.network, self.shape if Place.is_gpu() else self.dry or (2, *self.shape[1:]), self.classes)

    def flops(self, training: bool) -> float:
        """Of products and convolutions: forward and, in training, two gradients; the first layer needs but one."""
        shapes = Shapes()
        self.network(shapes, _Blank(), self.task().shape)
        first, *others = (operations for operations, _ in shapes.layers)
        return 2 * first + 3 * sum(others) if training else first + sum(others)

    @property
    def ahead(self) -> float:
        return self.before / self.goal if self.before and self.goal else 1.0


BF16, FP16 = "bfloat16", "float16"
IMAGE = (3, 224, 224)
# Differences are those of whole updates. In 16 bits some relus open here and stay shut there, the more the deeper.
TRAINED = [
    Network("MLP 784-300-100-10, batch 128, float32", networks.mlp, (128, 784), goal=0.05, before=0.098, dry=(4, 784)),
    Network("LeNet-5, batch 128, float32", networks.lenet, (128, 1, 28, 28), goal=0.15, before=0.364, dry=(4, 1, 28, 28)),
    Network("LeNet-5, batch 128, bfloat16", networks.lenet, (128, 1, 28, 28), BF16, goal=0.15, before=0.352, allowed=0.1, dry=(4, 1, 28, 28)),
    Network("GPT-2's feed-forward layers, two pairs, 8192 tokens, bfloat16", networks.feed_forward, (8192, 768), BF16, allowed=0.1, classes=768, dry=(16, 768)),
    Network("CIFAR CNN, batch 512, bfloat16", networks.cifar_cnn, (512, 3, 32, 32), BF16, goal=1.1, before=1.49, allowed=0.15),
    Network("ResNet-18 for 32x32, batch 512, bfloat16", networks.resnet18, (512, 3, 32, 32), BF16, goal=6.0, before=6.69, allowed=0.5, late=True),
    Network("ResNet-50, batch 256, bfloat16", resnet50, (256, *IMAGE), BF16, goal=36.0, before=37.9, allowed=0.05, chaotic=True, classes=1000, late=True),
    Network("ResNet-50, batch 256, TF32", resnet50, (256, *IMAGE), tf32=True, goal=64.0, before=66.9, allowed=0.05, chaotic=True, classes=1000, late=True, graph=False),
]  # fmt: skip
INFERRED = [
    Network("AlexNet, batch 1", networks.alexnet, (1, *IMAGE), FP16, goal=0.20, before=0.264, allowed=0.02, classes=1000),
    Network("AlexNet, batch 128", networks.alexnet, (128, *IMAGE), FP16, goal=1.0, before=1.27, allowed=0.02, classes=1000),
    Network("ResNet-50, batch 1", networks.resnet50, (1, *IMAGE), FP16, allowed=0.02, classes=1000, late=True),
    Network("ResNet-50, batch 128", networks.resnet50, (128, *IMAGE), FP16, allowed=0.02, classes=1000, late=True),
    Network("VGG-16, batch 1", networks.vgg16, (1, *IMAGE), FP16, allowed=0.02, classes=1000, late=True),
    Network("VGG-16, batch 128", networks.vgg16, (128, *IMAGE), FP16, allowed=0.02, classes=1000, late=True),
]  # fmt: skip


def cases() -> Iterator[Case]:
    """Every row, in the order of importance."""
    big = [n for n in TRAINED if n.late]
    yield from gpu_published.cases()
    yield from (training(n) for n in TRAINED if not n.late)
    yield from (training(n) for n in big if n.precision)
    yield from products()
    yield from gpu_attention.cases()
    yield from (inference(n) for n in INFERRED)
    yield from (training(n) for n in big if not n.precision)
    yield from small()
    yield from convolutions()
    yield from algorithms()
    yield from (_late(n, TRAINING, training) for n in big)
    yield from (_late(n, INFERENCE, inference) for n in INFERRED if n.late)


# --- networks -----------------------------------------------------------------------------------------------------------------


def training(n: Network) -> Case:
    how: dict[str, Any] = {"precision": n.precision, "last": len(n.shape) == 4 and bool(n.precision or n.tf32)}
    found = _contestants(n, lambda way: gpu_torch.training(n.task(), way, **how))
    found |= {
        "jax": lambda: gpu_jax.training(n.task(), n.precision),
        "weft": lambda: gpu_weft.training(n.task(), n.precision),
    }
    return _network_case(n, TRAINING, found, n.flops(training=True))


def inference(n: Network) -> Case:
    found = _contestants(n, lambda way: gpu_torch.inference(n.task(), way, n.precision, last=True))
    found |= {
        "jax": lambda: gpu_jax.inference(n.task(), n.precision),
        "weft": lambda: gpu_weft.inference(n.task(), n.precision),
    }
    case = _network_case(n, INFERENCE, found, n.flops(training=False))
    return replace(case, name=f"{n.name}, {n.precision}", items=n.task().shape[0])


def _contestants(n: Network, make: Callable[[str], Contestant]) -> dict[str, Callable[[], Contestant]]:
    found = {"torch": lambda: make(gpu_torch.EAGER)}
    if n.graph and Place.is_gpu():
        found["torch graph"] = lambda: make(gpu_torch.GRAPH)
    if not n.late:
        found["torch compiled"] = lambda: make(gpu_torch.COMPILED)
    return found


def _network_case(n: Network, group: str, contestants: dict[str, Callable[[], Contestant]], flops: float) -> Case:
    if n.chaotic:
        contestants = {name: partial(_losses_only, make) for name, make in contestants.items()}
    note = f"torch was seen at {n.before} ms before" if n.before else ""
    goal = None if n.goal is None else 1e-3 * n.goal
    return Case(
        group, n.name, contestants, tf32=n.tf32, goal=goal, ahead=n.ahead, flops=flops, allowed=n.allowed, dry=bool(n.dry), note=note
    )  # fmt: skip


def _losses_only(make: Callable[[], Contestant]) -> Contestant:
    made = make()
    return replace(made, values=lambda: made.values()[:1])


def _late(n: Network, group: str, make: Callable[[Network], Case]) -> Case:
    """The row once more, with torch.compile alone against weft."""
    case = make(replace(n, late=False))
    few = {name: made for name, made in case.contestants.items() if name in ("torch compiled", "weft")}
    return replace(case, name=case.name + LATE, contestants=few, dry=False)


# --- products, and what is small ------------------------------------------------------------------------------------------------


def _pattern() -> np.ndarray:
    return np.random.default_rng(0).standard_normal(1_000_003, np.float32)


@dataclass(frozen=True)
class Function:
    """A function of some tensors that all libraries spell the same way."""

    f: Callable[..., Any]
    shapes: tuple[tuple[int, ...], ...]
    dtype: str
    look: Callable[[Any], Any] = lambda y: y

    def contestants(self) -> dict[str, Callable[[], Contestant]]:
        return {name: partial(self._made, library) for name, library in LIBRARIES.items()}

    def _made(self, library: Any) -> Contestant:
        pattern = _pattern()
        inputs = [library.tensor(pattern[i:], shape, self.dtype) for i, shape in enumerate(self.shapes)]
        made: Contestant = library.function(self.f, inputs, self.look)
        return made


LIBRARIES = {"torch": gpu_torch, "jax": gpu_jax, "weft": gpu_weft}


def _size(full: int, dry: int) -> int:
    return full if Place.is_gpu() else dry


def products() -> Iterator[Case]:
    for dtype, tf32, allowed in (
        (BF16, False, 1e-2),
        (FP16, False, 2e-3),
        ("float32", True, 2e-3),
        ("float32", False, 1e-4),
    ):
        n = _size(8192, 64)
        work = Function(lambda a, b: a @ b, ((n, n), (n, n)), dtype, lambda y: y[:128])
        name = f"{n} square, {'TF32' if tf32 else dtype}"
        yield Case(PRODUCT, name, work.contestants(), tf32=tf32, ahead=0.97, flops=2.0 * n**3, allowed=allowed, dry=True)  # fmt: skip


def small() -> Iterator[Case]:
    one = Function(lambda x: x + 1.0, ((1,),), "float32")
    yield Case(SMALL, "x + 1 of one number", one.contestants(), ahead=1.0, dry=True)
    many = Function(lambda x: x * 2.0 + 1.0, ((_size(1 << 28, 1 << 12),),), "float32", lambda y: y[: 1 << 16])
    yield Case(SMALL, f"2 x + 1 of {many.shapes[0][0]} numbers", many.contestants(), ahead=1.0, dry=True)


# --- convolutions -----------------------------------------------------------------------------------------------------------------


class _Layers(Shapes):
    """Notes every convolution of a network."""

    def __init__(self) -> None:
        super().__init__()
        self.found: dict[Layer, int] = {}

    def conv(self, x: Any, w: np.ndarray, b: Any = None, stride: int = 1, padding: int = 0) -> Any:
        kernel, size = w.shape[2], x[2]
        name = f"{kernel}x{kernel}{f'/{stride}' if stride > 1 else ''}, {x[1]} to {w.shape[0]} at {size}"
        layer = Layer(name, x[0], x[1], size, w.shape[0], kernel, stride, padding)
        self.found[layer] = self.found.get(layer, 0) + 1
        return super().conv(x, w, b, stride, padding)


def layers() -> dict[Layer, int]:
    """The different convolutions of ResNet-50, and how often each stands in it."""
    shapes, shape = _Layers(), (_size(256, 1), 3, _size(224, 32), _size(224, 32))
    networks.resnet50(shapes, _Blank(), shape)
    return shapes.found


def convolutions() -> Iterator[Case]:
    for group, ahead in ((FORWARD, 1.0), (RELU, 1.5), (DATA, 1.0), (FILTER, 1.0)):
        for number, (layer, count) in enumerate(layers().items()):
            if group == DATA and number == 0:
                continue  # nobody asks for the gradient of the images
            work = Convolution(group, layer)
            name = f"{layer.name}, batch {layer.batch}, {BF16}"
            yield Case(
                group, name, work.contestants(), ahead=ahead, flops=layer.flops, allowed=1e-2, dry=number in (0, 2), note=f"{count} in ResNet-50"
            )  # fmt: skip


@dataclass(frozen=True)
class Convolution:
    """A convolution or one of its gradients, images and filters channels last: as all libraries keep them inside a network."""

    group: str
    layer: Layer

    def contestants(self) -> dict[str, Callable[[], Contestant]]:
        found: dict[str, Callable[[], Contestant]] = {"torch": self.torch, "weft": self.weft}
        if self.group == RELU and Place.is_gpu():
            found = {"torch": self.torch, "torch fused": lambda: self.torch(fused=True), "weft": self.weft}
        return found

    @property
    def names(self) -> str:
        return {FORWARD: "xw", RELU: "xwb", DATA: "yw", FILTER: "xy"}[self.group]

    def shape(self, name: str) -> tuple[int, ...]:
        return (self.layer.filters,) if name == "b" else self.layer.shapes[name]

    def _look(self, y: Any) -> Any:
        """The gradient of the filter whole, of a batch of images the first."""
        return y if self.group == FILTER else y[:1]

    def torch(self, fused: bool = False) -> Contestant:
        torch, layer = need("torch"), self.layer
        pairs = [layer.stride] * 2, [layer.padding] * 2, [1, 1]

        def backward(g: Any, x: Any, w: Any, data: bool) -> Any:
            found = torch.ops.aten.convolution_backward(
                g, x, w, None, *pairs, False, [0, 0], 1, [data, not data, False]
            )
            return found[0 if data else 1]

        def f(a: Any, b: Any, c: Any = None) -> Any:
            if self.group == DATA:
                return backward(a, other, b, True)
            if self.group == FILTER:
                return backward(b, a, other, False)
            if fused:
                return torch.cudnn_convolution_relu(a, b, c, *pairs, 1)
            y = torch.nn.functional.conv2d(a, b, c, stride=layer.stride, padding=layer.padding)
            return y if c is None else torch.relu(y)

        pattern = _pattern()
        inputs = [gpu_torch.tensor(pattern[i:], self.shape(n), BF16, last=True) for i, n in enumerate(self.names)]
        other = gpu_torch.tensor(pattern, self.shape("w" if self.group == FILTER else "x"), BF16, last=True)
        return gpu_torch.function(f, inputs, self._look)

    def weft(self) -> Contestant:
        layer = self.layer
        how: dict[str, Any] = {"stride": layer.stride, "padding": layer.padding}

        def back(f: Any, name: str, g: Any) -> Any:
            """The derivative of a linear function does not depend on where it is taken."""
            return weft.vjp(f, weft.zeros(self.shape(name), dtype=BF16))[1](g)[0]

        def f(*given: Any) -> Any:
            given = tuple(_first(t) if t.ndim == 4 else t for t in given)
            if self.group == FILTER:
                return _last(back(lambda w: weft.conv(given[0], w, **how), "w", given[1]))
            if self.group == DATA:
                return _last(back(lambda x: weft.conv(x, given[1], **how), "x", given[0]))
            y = weft.conv(*given, **how)
            return _last(y if self.group == FORWARD else weft.relu(y))

        pattern = _pattern()
        tensors = [gpu_weft.tensor(pattern[i:], self.shape(n), BF16) for i, n in enumerate(self.names)]
        inputs = [_last(t).realize() if t.ndim == 4 else t for t in tensors]
        return gpu_weft.function(f, inputs, lambda y: self._look(_first(y)))


def _first(x: Any) -> Any:
    return weft.permute_dims(x, (0, 3, 1, 2))


def _last(x: Any) -> Any:
    return weft.permute_dims(x, (0, 2, 3, 1))


# --- weft's algorithms among themselves ---------------------------------------------------------------------------------------------


def algorithms() -> Iterator[Case]:
    """All ways weft has to compute one convolution, the teaching ones too. One that cannot do it leaves it to another."""
    layer = Layer("3x3, 64 to 64 at 56", _size(32, 1), _size(64, 4), _size(56, 8), _size(64, 4), 3, padding=1)
    for dtype in ("float32", BF16):
        name = f"{layer.name}, batch {layer.batch}, {dtype}"
        yield Case(ALGORITHMS, name, _algorithms(layer, dtype), flops=layer.flops, allowed=math.inf, dry=True)
    for kernel in (_size(7, 5), _size(15, 6), _size(31, 7)):
        sizes = _size(32, 1), _size(64, 4), _size(56, 8), _size(64, 4)
        layer = Layer(f"{kernel}x{kernel}, 64 to 64 at 56", *sizes, kernel, padding=kernel // 2)
        contestants = _algorithms(layer, "float32", ("IMPLICIT_GEMM", "CUDNN", "FFT_TILED"))
        name = f"{layer.name}, batch {layer.batch}, float32"
        yield Case(ALGORITHMS, name, contestants, flops=layer.flops, allowed=math.inf, dry=True)


def _algorithms(layer: Layer, dtype: str, names: Sequence[str] = ALL_ALGORITHMS) -> dict[str, Callable[[], Contestant]]:
    def made(name: str) -> Contestant:
        pattern = _pattern()
        x, w = (gpu_weft.tensor(pattern[i:], layer.shapes[n], dtype) for i, n in enumerate("xw"))
        return gpu_weft.function(
            lambda x, w: weft.conv(x, w, padding=layer.padding, algorithm=name), [x, w], lambda y: y[:1]
        )

    return {f"weft {name}": partial(made, name) for name in names}
