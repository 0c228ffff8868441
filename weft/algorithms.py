"""How convolutions are computed: preferences for the user, and `find_algorithms`, which measures all there are.

What is measured is the program that runs in earnest, operands channels last. On the CPU that is one native call on as many threads
as the settings say, the packing of the filter included; the times are kept on disk, and PREFER_FASTEST goes by them from then on.
On a GPU it is recorded work; PREFER_FASTEST measures there by itself, with what follows the convolution in the same program.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from .compiler.cpu.conv.choice import candidates, refusal, remember
from .compiler.ir.conv_shape import DIRECTIONS, described
from .compiler.planning.algorithms import LOOPS, NO_WORKSPACE, PREFER_FASTEST, WORKSPACE_LIMIT, algorithms
from .derivatives import vjp
from .dtypes import DType, float32
from .errors import UserError
from .graph import Graph
from .graph.node import OPS, Node, Type
from .knobs import ALGORITHMS
from .ops.conv import Padding, Sizes, conv
from .ops.creation import zeros
from .ops.movement import permute_dims, same_dtype
from .options import CompileOptions
from .runtime import Device
from .runtime import device as find_device
from .runtime.device import Executable
from .runtime.native import NativeExecutable, thread_count
from .tensor import ArrayLike, Tensor
from .tracing.trace import make_graph

WORDS = ("forward", "data", "filter")
REPETITIONS = 7
HOPELESS = 8.0  # times the fastest: not run again after its first time
SHORTEST = 1e-3  # seconds: what is faster is run several times in a row
CHECKED = 8  # channels of a result that are compared with float64


@dataclass(frozen=True)
class Row:
    """One algorithm in one direction."""

    name: str
    direction: str
    milliseconds: float
    gflops: float
    workspace: int  # bytes
    deterministic: bool  # the same bits in every run, on any number of threads
    error: float  # the largest one against float64, relative to the largest result


@dataclass(frozen=True)
class Table:
    """What `find_algorithms` measured: the fastest first in each direction. Printed, it is a table."""

    title: str
    rows: tuple[Row, ...]
    refused: dict[str, dict[str, str]]  # direction -> algorithm -> why it was not measured

    def best(self, direction: str = "forward") -> Row:
        """The fastest algorithm of a direction."""
        return next(row for row in self.rows if row.direction == direction)

    def __str__(self) -> str:
        head = f"{'direction':9}  {'algorithm':21}  {'ms':>9}  {'GFLOP/s':>7}  {'workspace':>11}  {'same bits':9}  {'error':>7}"
        lines = [self.title, head, *(_line(row) for row in self.rows)]
        for reason in dict.fromkeys(why for reasons in self.refused.values() for why in reasons.values()):
            directions = [d for d, reasons in self.refused.items() if reason in reasons.values()]
            lines.append(f"not {', '.join(directions)}: {reason}.")
        return "\n".join(lines)


def _line(row: Row) -> str:
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
) -> Table:
    """Measure every algorithm for a convolution of x with w, and remember the times for PREFER_FASTEST.

    Only the shapes and the dtype of x and w matter. The direction is "forward", "data" (towards x), "filter" (towards w) or
    "all". Programs compiled from now on use the fastest; those already compiled stay as they are. On GPUs the times are for you
    alone: there every program measures what it needs.

    >>> import weft
    >>> table = find_algorithms(weft.ones((1, 16, 6, 6)), weft.ones((16, 16, 3, 3)), direction="forward", repetitions=1)
    >>> sorted(row.name for row in table.rows)
    ['DIRECT', 'GEMM', 'IMPLICIT_GEMM', 'IMPLICIT_PRECOMP_GEMM', 'LOOPS', 'WINOGRAD', 'WINOGRAD_2X2']
    """
    if direction != "all" and direction not in WORDS:
        raise UserError("find_algorithms", f"a direction is required: {', '.join(WORDS)} or all, got {direction!r}.")
    if not isinstance(repetitions, int) or repetitions < 1:
        raise UserError("find_algorithms", f"1 repetition or more is required, got {repetitions!r}.")
    x, w = same_dtype("conv", [x, w])
    how: dict[str, Any] = {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups}
    y = conv(
        zeros(x.shape, dtype=x.dtype), zeros(w.shape, dtype=x.dtype), **how
    )  # never computed: only its shape counts
    if not all((*x.shape, *w.shape)):
        raise UserError("find_algorithms", f"tensors with elements are required, got shapes {x.shape} and {w.shape}.")
    machine = _machine(find_device())
    rows: list[Row] = []
    refused: dict[str, dict[str, str]] = {}
    for word in WORDS if direction == "all" else (direction,):
        case = _Case(word, x.shape, w.shape, y.shape, x.dtype, how, machine.filter_order(w.ndim))
        found, refused[word] = machine.measured(case, repetitions)
        rows += sorted(found, key=lambda row: row.milliseconds)
    title = f"conv of {x.node.type} with {w.node.type}, {_spelled(how)}, {machine.about}"
    return Table(title, tuple(rows), {word: reasons for word, reasons in refused.items() if reasons})


def _spelled(how: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in how.items())


class _Case:
    """A convolution in one direction, with numbers to try it on."""

    def __init__(
        self,
        word: str,
        x: Sequence[int],
        w: Sequence[int],
        y: Sequence[int],
        dtype: DType,
        how: dict[str, Any],
        filter_order: tuple[int, ...],
    ) -> None:
        self.word, self.dtype, self.how, self.filter_order = word, dtype, how, filter_order
        self.x, self.w, self.y = tuple(x), tuple(w), tuple(y)
        # Where plans put the gradient of a filter; on the CPU they read filters as they come, but do not write them so.
        usual = filter_order == tuple(range(len(self.w)))
        self.gradient_order = (*range(2, len(self.w)), 1, 0) if usual else filter_order
        self.node = next(n for n in self.graph(PREFER_FASTEST).nodes if n.op.name in DIRECTIONS)
        self.direction, self.shape = described(self.node)

    def graph(self, algorithm: str) -> Graph:
        """The convolution by one algorithm, of operands and result as its plan has them: nothing else is to be measured."""

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
        """Channels first."""
        shapes = {"forward": (self.x, self.w), "data": (self.y, self.w), "filter": (self.x, self.y)}[self.word]
        return [fill(shape) for shape in shapes]

    def laid_out(self, operands: Sequence[np.ndarray]) -> list[np.ndarray]:
        """As the graph takes them."""
        a, b = operands
        both = [
            np.moveaxis(a, 1, -1),
            np.moveaxis(b, 1, -1) if self.word == "filter" else b.transpose(self.filter_order),
        ]
        return [np.ascontiguousarray(o, self.dtype.numpy) for o in both]

    def row(self, name: str, seconds: float, workspace: int, operands: Sequence[np.ndarray], result: np.ndarray) -> Row:
        """What is to be said of an algorithm that gave a result, laid out as its plan has it."""
        usual = (
            result.transpose(np.argsort(self.gradient_order)) if self.word == "filter" else np.moveaxis(result, -1, 1)
        )
        error = _error(self.node, operands, usual, self.dtype)
        return Row(name, self.word, 1e3 * seconds, self.shape.flops / seconds / 1e9, workspace, True, error)


Measured = tuple[list[Row], dict[str, str]]  # rows, and why the other algorithms have none


class _Machine(Protocol):
    """On what is measured."""

    @property
    def about(self) -> str: ...
    def filter_order(self, rank: int) -> tuple[int, ...]: ...
    def measured(self, case: _Case, repetitions: int) -> Measured: ...


def _machine(device: Device) -> _Machine:
    return _ByDevice(device) if device.measures_algorithms else _ByThreads()


class _ByThreads:
    """All threads of this machine; what is measured is remembered."""

    def __init__(self) -> None:
        self.options = CompileOptions.current("cpu", threads=thread_count())
        self.about = f"{self.options.threads} threads"

    def filter_order(self, rank: int) -> tuple[int, ...]:
        return tuple(range(rank))

    def measured(self, case: _Case, repetitions: int) -> Measured:
        plans, operands = self._plans(case), case.operands(_numbers(case.dtype))
        runs = {name: _Run(case.graph(name), case.laid_out(operands), self.options) for name in plans}
        seconds = _interleaved(runs, repetitions)
        if len(runs) > 1:
            times = {name: 1e3 * s for name, s in seconds.items() if name != LOOPS}
            remember(case.direction, case.shape, times)
        rows = [case.row(name, seconds[name], plans[name], operands, run.result) for name, run in runs.items()]
        return rows, _refused(case, ALGORITHMS, plans, self.options)

    def _plans(self, case: _Case) -> dict[str, int]:
        """The workspace of each algorithm that can do it."""
        strides = tuple(int(np.prod(case.w[i + 1 :])) for i in range(len(case.w)))
        found = candidates(case.direction, case.shape, strides, self.options) if _has_plans(case.dtype) else {}
        return {name: plan.workspace for name, plan in found.items()} | {LOOPS: 0}


def _refused(case: _Case, names: Sequence[str], measured: Mapping[str, Any], options: CompileOptions) -> dict[str, str]:
    missing = [name for name in names if name not in measured]
    if not _has_plans(case.dtype):
        return dict.fromkeys(missing, f"{case.dtype.name} is computed by {LOOPS} only")
    return {name: refusal(name, options) for name in missing}


class _ByDevice:
    """A device that times its own programs. Its clock takes the median of a few runs by itself, however many are asked for."""

    def __init__(self, device: Device) -> None:
        self.device, self.about = device, device.name

    def filter_order(self, rank: int) -> tuple[int, ...]:
        return self.device.filter_order(rank)

    def measured(self, case: _Case, repetitions: int) -> Measured:
        names = self.device.conv_algorithms if _has_plans(case.dtype) else (LOOPS,)
        options = self.device.compile_options()
        programs: dict[str, Executable] = {
            name: self.device.executable(case.graph(name), {}, options, frozenset()) for name in names
        }
        refused = {name: note for name, program in programs.items() for note in program.notes()}
        rows = [self._row(case, name, program) for name, program in programs.items() if name not in refused]
        return rows, refused | _refused(case, self.device.conv_algorithms, programs, options)

    def _row(self, case: _Case, name: str, executable: Executable) -> Row:
        operands = case.operands(_numbers(case.dtype))
        held = [executable.argument(i, array) for i, array in enumerate(case.laid_out(operands))]
        addresses = [address for _, address in held]
        result = executable.call(addresses)[0].numpy()
        return case.row(name, executable.seconds(addresses), executable.workspace_bytes, operands, result)


def _has_plans(dtype: DType) -> bool:
    """Numbers of 16 bits are converted and take the same plans; other kinds have loops only."""
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


# --- the clock --------------------------------------------------------------------------------------------------------------


class _Run:
    """A compiled graph with its operands, ready to be run."""

    def __init__(self, graph: Graph, operands: Sequence[np.ndarray], options: CompileOptions) -> None:
        self.executable, self.operands = NativeExecutable(graph, {}, options), operands
        [output] = graph.outputs
        self.result = np.empty(output.shape, output.dtype.numpy)
        self.addresses = [a.ctypes.data for a in (*operands, self.result)]

    def seconds(self, times: int = 1) -> float:
        start = time.perf_counter()
        for _ in range(times):
            self.executable.run(self.addresses)
        return (time.perf_counter() - start) / times


def _interleaved(runs: Mapping[str, _Run], repetitions: int) -> dict[str, float]:
    """The median of each, run in turns so that a slow moment of the machine hits all of them."""
    first = {name: min(run.seconds(), run.seconds()) for name, run in runs.items()}  # the first one warms up
    best = min(first.values())
    samples = {name: [] if s < HOPELESS * best else [s] for name, s in first.items()}
    for _ in range(repetitions):
        for name, run in runs.items():
            if first[name] < HOPELESS * best:
                samples[name].append(run.seconds(max(1, int(SHORTEST / first[name]))))
    return {name: statistics.median(s) for name, s in samples.items()}


# --- the error --------------------------------------------------------------------------------------------------------------


def _error(node: Node, operands: Sequence[np.ndarray], got: np.ndarray, dtype: DType) -> float:
    """Against float64, in some channels of the first image: all of them would take long. Everything is channels first."""
    a, b = (o.astype(np.float64 if dtype.is_float else o.dtype) for o in operands)
    name, groups = node.op.name, node.params[3]
    few = slice(CHECKED if groups == 1 else None)
    if name == "conv":
        a, b, got = a[:1], b[few], got[:1, few]
    elif name == "conv_data":
        a, b, got = a[:1], b[:, few], got[:1, few]
    else:
        a, b, got = a[:, few], b[:, few], got[few, few]
    want = OPS[name].reference(a, b, *node.params)
    return float(np.max(abs(got.astype(want.dtype) - want)) / (np.max(abs(want)) or 1))


__all__ = ["NO_WORKSPACE", "PREFER_FASTEST", "WORKSPACE_LIMIT", "Row", "Table", "algorithms", "find_algorithms"]
