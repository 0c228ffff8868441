"""Algorithms of convolutions: preferences for the user, and `find_algorithms`, which measures all that a device has.

What is measured is the program that a compiled function would run, with channels last, including the packing of the filter. CPUs keep
the times on disk, and PREFER_FASTEST uses them from then on. On GPUs every program measures the algorithms that it could use.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from .compiler.ir.conv_shape import described
from .compiler.planning.algorithms import LOOPS, NO_WORKSPACE, PREFER_FASTEST, WORKSPACE_LIMIT, algorithms
from .derivatives import vjp
from .dtypes import DType, float32
from .errors import UserError
from .graph import Graph
from .graph.node import OPS, Node, Type
from .ops.conv import Padding, Sizes, conv
from .ops.creation import zeros
from .ops.movement import permute_dims, same_dtype
from .records import dataclass
from .runtime import Buffer, Device
from .runtime import device as find_device
from .runtime.device import Executable
from .tensor import ArrayLike, Tensor
from .tracing.trace import make_graph

DIRECTION_NAMES = ("forward", "data", "filter")
REPETITIONS = 7
SLOW_RATIO = 8.0  # an algorithm that takes so many times as long as the fastest is not run again
SHORTEST_SAMPLE = 1e-3  # seconds: faster programs are run several times in a row
CHECKED_CHANNELS = 8  # of a result, which are compared with float64


@dataclass(frozen=True)
class AlgorithmTiming:
    """One algorithm in one direction."""

    name: str
    direction: str
    milliseconds: float
    gflops: float
    workspace: int  # bytes
    deterministic: bool  # the same bits in every run, on any number of threads
    error: float  # the largest one against float64, relative to the largest result


@dataclass(frozen=True)
class AlgorithmTable:
    """What `find_algorithms` measured: the fastest first in each direction. Printed, it is a table."""

    title: str
    rows: tuple[AlgorithmTiming, ...]
    refused: dict[str, dict[str, str]]  # direction -> algorithm -> why it was not measured

    def best(self, direction: str = "forward") -> AlgorithmTiming:
        """The fastest algorithm of a direction."""
        return next(row for row in self.rows if row.direction == direction)

    def __str__(self) -> str:
        head = f"{'direction':9}  {'algorithm':21}  {'ms':>9}  {'GFLOP/s':>7}  {'workspace':>11}  {'same bits':9}  {'error':>7}"
        lines = [self.title, head, *(_line(row) for row in self.rows)]
        for reason in dict.fromkeys(why for reasons in self.refused.values() for why in reasons.values()):
            directions = [d for d, reasons in self.refused.items() if reason in reasons.values()]
            lines.append(f"not {', '.join(directions)}: {reason}.")
        return "\n".join(lines)


def _line(row: AlgorithmTiming) -> str:
    same = "yes" if row.deterministic else "no"
    return (
        f"{row.direction:9}  {row.name:21}  {row.milliseconds:9.3f}  {row.gflops:7.1f}  {row.workspace:11,}  {same:9}  "
        f"{row.error:7.1e}"
    )


def find_algorithms(
    x: ArrayLike,
    w: ArrayLike,
    *,
    stride: Sizes = 1,
    padding: Padding = 0,
    dilation: Sizes = 1,
    groups: int = 1,
    direction: str = "all",
    repetitions: int = REPETITIONS,
) -> AlgorithmTable:
    """Measure every algorithm for a convolution of x with w, and remember the times for PREFER_FASTEST.

    Only the shapes and the dtype of x and w matter. The direction is "forward", "data" (towards x), "filter" (towards w) or
    "all". Programs compiled from now on use the fastest; those already compiled are unchanged. On GPUs the times are informative
    only: there every program measures the algorithms that it could use.

    >>> import weft
    >>> table = find_algorithms(weft.ones((1, 16, 6, 6)), weft.ones((16, 16, 3, 3)), direction="forward", repetitions=1)
    >>> sorted(row.name for row in table.rows)
    ['DIRECT', 'GEMM', 'IMPLICIT_GEMM', 'IMPLICIT_PRECOMP_GEMM', 'LOOPS', 'WINOGRAD', 'WINOGRAD_2X2']
    """
    if direction != "all" and direction not in DIRECTION_NAMES:
        raise UserError(
            "find_algorithms", f"a direction is required: {', '.join(DIRECTION_NAMES)} or all, got {direction!r}."
        )
    if not isinstance(repetitions, int) or repetitions < 1:
        raise UserError("find_algorithms", f"1 repetition or more is required, got {repetitions!r}.")
    x, w = same_dtype("conv", [x, w])
    how: dict[str, Any] = {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups}
    y = conv(
        zeros(x.shape, dtype=x.dtype), zeros(w.shape, dtype=x.dtype), **how
    )  # never computed: only its shape counts
    if not all((*x.shape, *w.shape)):
        raise UserError("find_algorithms", f"tensors with elements are required, got shapes {x.shape} and {w.shape}.")
    device = find_device()
    rows: list[AlgorithmTiming] = []
    refused: dict[str, dict[str, str]] = {}
    for word in DIRECTION_NAMES if direction == "all" else (direction,):
        case = _Case(word, x.shape, w.shape, y.shape, x.dtype, how, device)
        found, refused[word], where = _measured(case, device, repetitions)
        rows += sorted(found, key=lambda row: row.milliseconds)
    title = f"conv of {x.node.type} with {w.node.type}, {_spelled(how)}, {device.name}, {where}"
    return AlgorithmTable(title, tuple(rows), {word: reasons for word, reasons in refused.items() if reasons})


def _spelled(how: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in how.items())


class _Case:
    """A convolution in one direction, as a graph for each algorithm, and its operands."""

    def __init__(
        self,
        word: str,
        x: Sequence[int],
        w: Sequence[int],
        y: Sequence[int],
        dtype: DType,
        how: dict[str, Any],
        device: Device,
    ) -> None:
        self.word, self.dtype, self.how = word, dtype, how
        self.x, self.w, self.y = tuple(x), tuple(w), tuple(y)
        # The layout of a filter's gradient, and of a filter that is only read.
        self.gradient_order = device.filter_order(len(w))
        self.filter_order = self.gradient_order if device.orders_constants else tuple(range(len(w)))
        self.node = next(n for n in self.graph(PREFER_FASTEST).nodes if n.op.kernel == "convolution")
        self.flops = described(self.node)[1].flops

    def graph(self, algorithm: str) -> Graph:
        """The convolution by one algorithm, with operands and result in the layout of its kernels, so that nothing is copied."""

        def convolved(x: Tensor, w: Tensor) -> Tensor:
            return conv(x, w, algorithm=algorithm, **self.how)

        def usual(w: Tensor) -> Tensor:
            return permute_dims(w, tuple(self.filter_order.index(a) for a in range(w.ndim)))

        def forward(x: Tensor, w: Tensor) -> Tensor:
            return _last(convolved(_first(x), usual(w)))

        def data(g: Tensor, w: Tensor) -> Tensor:
            _, back = vjp(lambda x: convolved(x, usual(w)), zeros(self.x, dtype=self.dtype))
            return _last(back(_first(g))[0])

        def filter(x: Tensor, g: Tensor) -> Tensor:
            _, back = vjp(lambda w: convolved(_first(x), w), zeros(self.w, dtype=self.dtype))
            return permute_dims(back(_first(g))[0], self.gradient_order)

        function = {"forward": forward, "data": data, "filter": filter}[self.word]
        return make_graph(function, *(Type(a.shape, self.dtype) for a in self.laid_out(self.operands(np.zeros))))

    def operands(self, fill: Callable[[Sequence[int]], np.ndarray]) -> list[np.ndarray]:
        """The operands, channels first."""
        shapes = {"forward": (self.x, self.w), "data": (self.y, self.w), "filter": (self.x, self.y)}[self.word]
        return [fill(shape) for shape in shapes]

    def laid_out(self, operands: Sequence[np.ndarray]) -> list[np.ndarray]:
        """The operands in the layout that the graph takes."""
        a, b = operands
        both = [
            np.moveaxis(a, 1, -1),
            np.moveaxis(b, 1, -1) if self.word == "filter" else b.transpose(self.filter_order),
        ]
        return [np.ascontiguousarray(o, self.dtype.numpy) for o in both]

    def row(
        self, name: str, seconds: float, workspace: int, operands: Sequence[np.ndarray], result: np.ndarray
    ) -> AlgorithmTiming:
        """The measurement of an algorithm, whose result is in the layout of the graph."""
        usual = (
            result.transpose(np.argsort(self.gradient_order)) if self.word == "filter" else np.moveaxis(result, -1, 1)
        )
        error = _error(self.node, operands, usual, self.dtype)
        return AlgorithmTiming(name, self.word, 1e3 * seconds, self.flops / seconds / 1e9, workspace, True, error)


def _measured(case: _Case, device: Device, repetitions: int) -> tuple[list[AlgorithmTiming], dict[str, str], str]:
    """The measurements of one direction, why the other algorithms have none, and on what was measured."""
    refused = device.refused_algorithms(case.node)
    if not _has_plans(case.dtype):
        why = f"{case.dtype.name} is computed by {LOOPS} only"
        refused = {name: why for name in device.conv_algorithms if name != LOOPS}
    operands = case.operands(_numbers(case.dtype))
    runs: dict[str, _TimedRun] = {}
    for name in device.conv_algorithms:
        if name not in refused:
            executable = device.executable(case.graph(name), {}, device.compile_options(), frozenset())
            notes = executable.notes()
            if notes:
                refused[name] = notes[-1]
            else:
                runs[name] = _TimedRun(device, executable, case.laid_out(operands))
    if device.is_accelerator:  # its clock takes the median of a few runs
        seconds = {name: run.seconds() for name, run in runs.items()}
    else:
        seconds = _interleaved(runs, repetitions)
    device.remember_times(case.node, {name: 1e3 * s for name, s in seconds.items() if name != LOOPS})
    rows = [
        case.row(name, seconds[name], run.executable.workspace_bytes, operands, run.result)
        for name, run in runs.items()
    ]
    return rows, refused, next(iter(runs.values())).executable.where


def _has_plans(dtype: DType) -> bool:
    """Whether there are kernels other than loops: 16-bit floats are converted and use those of float32."""
    return dtype is float32 or (dtype.is_float and dtype.bits < 32)


def _first(x: Tensor) -> Tensor:
    return permute_dims(x, (0, x.ndim - 1, *range(1, x.ndim - 1)))


def _last(x: Tensor) -> Tensor:
    return permute_dims(x, (0, *range(2, x.ndim), 1))


def _numbers(dtype: DType) -> Callable[[Sequence[int]], np.ndarray]:
    rng = np.random.default_rng(0)
    if dtype.is_float:
        return lambda shape: rng.standard_normal(shape, np.float32).astype(dtype.numpy)
    return lambda shape: rng.integers(0, 4, shape).astype(dtype.numpy)


# --- timing -----------------------------------------------------------------------------------------------------------------


class _TimedRun:
    """A compiled program with its operands."""

    result: np.ndarray  # of the last run

    def __init__(self, device: Device, executable: Executable, operands: Sequence[np.ndarray]) -> None:
        self.device, self.executable = device, executable
        self._held = [executable.argument(i, array) for i, array in enumerate(operands)]
        self._addresses = [address for _, address in self._held]

    def seconds(self, times: int = 1) -> float:
        """The time of one run, as the mean of several; an accelerator uses its own clock, without the launch."""
        start = time.perf_counter()
        for _ in range(times):
            [content] = self.executable.call(self._addresses)
        elapsed = (time.perf_counter() - start) / times
        [output] = self.executable.graph.outputs
        self.result = self.device.get(Buffer(self.device, output.shape, output.dtype, content))
        return self.executable.seconds(self._addresses) if self.device.is_accelerator else elapsed


def _interleaved(runs: Mapping[str, _TimedRun], repetitions: int) -> dict[str, float]:
    """The median time of each program, run in turns so that a slow moment of the machine affects all of them."""
    first = {name: min(run.seconds(), run.seconds()) for name, run in runs.items()}  # the first run warms up
    best = min(first.values())
    samples = {name: [] if s < SLOW_RATIO * best else [s] for name, s in first.items()}
    for _ in range(repetitions):
        for name, run in runs.items():
            if first[name] < SLOW_RATIO * best:
                samples[name].append(run.seconds(max(1, int(SHORTEST_SAMPLE / first[name]))))
    return {name: statistics.median(s) for name, s in samples.items()}


# --- accuracy ----------------------------------------------------------------------------------------------------------------


def _error(node: Node, operands: Sequence[np.ndarray], got: np.ndarray, dtype: DType) -> float:
    """The largest relative error against float64, channels first, in a few channels of the first image: all would take long."""
    a, b = (o.astype(np.float64 if dtype.is_float else o.dtype) for o in operands)
    name, groups = node.op.name, node.param("groups")
    few = slice(CHECKED_CHANNELS if groups == 1 else None)
    if name == "conv":
        a, b, got = a[:1], b[few], got[:1, few]
    elif name == "conv_data":
        a, b, got = a[:1], b[:, few], got[:1, few]
    else:
        a, b, got = a[:, few], b[:, few], got[few, few]
    want = OPS[name].reference(a, b, *node.params)
    return float(np.max(abs(got.astype(want.dtype) - want)) / (np.max(abs(want)) or 1))


__all__ = [
    "NO_WORKSPACE",
    "PREFER_FASTEST",
    "WORKSPACE_LIMIT",
    "AlgorithmTable",
    "AlgorithmTiming",
    "algorithms",
    "find_algorithms",
]
