"""The six production networks of Jouppi et al. 2017 (Tables 1 and 3), as far as the paper describes them.

Layers, weights, batch sizes and operations per byte of weights are the paper's. What it does not state (the sizes of single layers) is assumed;
the assumption is documented beside each network, and none was chosen to reproduce the published TOPS.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import field
from itertools import pairwise

from ..records import dataclass
from .lowering import lowered
from .machine import TpuMachine
from .report import TpuReport
from .stages import CONVOLVE, MULTIPLY, HostStage, MatrixStage, Stage, TpuValue, VectorStage


@dataclass
class _Layers:
    """A sequence of stages, each applied to the result of the previous one."""

    batch: int
    value: TpuValue = field(init=False)
    stages: list[Stage] = field(default_factory=list)

    def inputs(self, nbytes: int) -> None:
        self.value = TpuValue("input", nbytes)
        self.stages.append(HostStage("input", (), (self.value,)))

    def dense(self, inner: int, columns: int, *, matrices: int = 1, cycles_per_row: int = 1) -> None:
        """A fully connected layer with one matrix, or several that read the same activations."""
        name, read = f"fc{len(self.stages)}", (self.value,)
        self.value = TpuValue(name, self.batch * columns * cycles_per_row)
        for number in range(matrices):
            each = name if matrices == 1 else f"{name}.{number}"
            self.stages.append(
                MatrixStage(
                    each, read, (self.value,), self.batch, inner, columns, kind=MULTIPLY, cycles_per_row=cycles_per_row
                )
            )

    def convolution(self, side: int, channels: int, filters: int, kernel: int) -> None:
        name, rows = f"conv{len(self.stages)}", self.batch * side * side
        written = TpuValue(name, rows * filters)
        inner = channels * kernel * kernel
        self.stages.append(MatrixStage(name, (self.value,), (written,), rows, inner, filters, kind=CONVOLVE))
        self.value = written

    def vector(self, elements: int, function: str) -> None:
        name = f"{function}{len(self.stages)}"
        written = TpuValue(name, elements)
        self.stages.append(VectorStage(name, (self.value,), (written,), elements, function))
        self.value = written

    def results(self) -> list[Stage]:
        return [*self.stages, HostStage("result", (self.value,), ())]


def _mlp0() -> list[Stage]:
    layers = _Layers(200)
    layers.inputs(200 * 2000)
    for _ in range(5):
        layers.dense(2000, 2000)
    return layers.results()


def _mlp1() -> list[Stage]:
    layers = _Layers(168)
    layers.inputs(168 * 1200)
    for inner, columns in pairwise((1200, 1200, 1200, 1200, 600)):
        layers.dense(inner, columns)
    return layers.results()


def _lstm0() -> list[Stage]:
    layers = _Layers(64)
    layers.inputs(64 * 1024 * 2)
    for number in range(24):
        layers.dense(1024, 2048, cycles_per_row=2)
        for _ in range(2 if number < 10 else 1):  # 34 vector layers after 24 products
            layers.vector(64 * 2048, "gate")
    return layers.results()


def _lstm1() -> list[Stage]:
    layers = _Layers(96)
    layers.inputs(96 * 600 * 2)
    for number in range(37):
        layers.dense(600, 600, matrices=3 if number < 20 else 2, cycles_per_row=2)  # 94 matrices
        if number < 19:
            layers.vector(96 * 600, "gate")
    return layers.results()


def _cnn0() -> list[Stage]:
    layers = _Layers(8)
    layers.inputs(8 * 19 * 19 * 48)
    layers.convolution(19, 48, 256, 5)
    for _ in range(13):
        layers.convolution(19, 256, 256, 3)
    layers.convolution(19, 256, 256, 1)
    layers.convolution(19, 256, 1, 1)
    return layers.results()


def _cnn1() -> list[Stage]:
    layers = _Layers(32)
    layers.inputs(32 * 28 * 28 * 128)
    for number in range(72):
        side = 28 if number < 38 else 14
        layers.convolution(side, 128, 128, 3)
        if number % 5 == 0 and number < 65:  # 13 pooling layers
            layers.vector(32 * side * side * 128, "pool")
    for _ in range(4):
        layers.dense(4728, 4728)
    return layers.results()


@dataclass(frozen=True)
class PublishedNetwork:
    """A network of Table 1, its performance counters in Table 3, and the stages that represent it here."""

    name: str
    layers: str
    weights: float  # in millions
    intensity: int  # multiply-accumulates per byte of weights
    batch: int
    tops: float  # measured, Table 3 row 9
    active: float  # fraction of cycles in which the array computes, row 1
    useful: float  # fraction of all cells in all cycles, row 2
    weight_wait: float  # row 4
    weight_shift: float  # row 5
    stages: Callable[[], list[Stage]]
    assumed: str

    def simulate(self, machine: TpuMachine | None = None) -> TpuReport:
        """Simulate one batch."""
        return TpuReport(lowered(self.stages(), machine or TpuMachine()))


PUBLISHED: tuple[PublishedNetwork, ...] = (
    PublishedNetwork(
        "MLP0", "5 FC", 20, 200, 200, 12.3, 0.127, 0.125, 0.539, 0.159, _mlp0,
        "five layers of 2000 x 2000: 20 M weights",
    ),
    PublishedNetwork(
        "MLP1", "4 FC", 5, 168, 168, 9.7, 0.106, 0.094, 0.442, 0.134, _mlp1,
        "widths 1200, 1200, 1200, 1200, 600: 5.04 M weights in tiles that are 85 % full (rows 1 and 2 of Table 3: 89 %)",
    ),
    PublishedNetwork(
        "LSTM0", "24 FC, 34 vector", 52, 64, 64, 3.7, 0.082, 0.082, 0.581, 0.158, _lstm0,
        "24 products of 1024 x 2048: 50 M weights in full tiles (row 3: no unused cells); activations of 16 bits at half speed, since "
        "row 2 is twice row 9",
    ),
    PublishedNetwork(
        "LSTM1", "37 FC, 19 vector", 34, 96, 96, 2.8, 0.105, 0.063, 0.621, 0.171, _lstm1,
        "94 matrices of 600 x 600 (section 7) in 37 layers: 33.8 M weights; activations of 16 bits at half speed, since row 2 is twice row 9",
    ),
    PublishedNetwork(
        "CNN0", "16 Conv", 8, 2888, 8, 86.0, 0.782, 0.782, 0.0, 0.0, _cnn0,
        "AlphaGo: 2888 / 8 = 19 x 19 positions of a board with 48 feature planes; 256 channels, since row 3 has no unused cells: a layer of 5 x 5, 13 of 3 x 3 and 2 of "
        "1 x 1, 8.0 M weights",
    ),
    PublishedNetwork(
        "CNN1", "4 FC, 72 Conv, 13 pool", 100, 1750, 32, 14.1, 0.462, 0.225, 0.281, 0.07, _cnn1,
        "72 convolutions of 3 x 3 with 128 channels (about half of the cells used), 38 on 28 x 28 and 34 on 14 x 14 so that each weight is used 1750 "
        "times on average; four FC layers of 4728 x 4728 hold the other 89 M weights",
    ),
)  # fmt: skip
