"""A compiled program explained: its kernels, their time and work, their distance from the machine's roofline, and its memory.

`jit(f).explain(*args)` gives it for one call; `WEFT_DEBUG=2` prints it for every program before its first run.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

from .compiler import planning
from .compiler.ir.frame import nbytes
from .dtypes import float32
from .errors import RunError, Scope
from .records import dataclass
from .runtime.device import Executable
from .runtime.facts import CallTime, ModelledStage, Profile, Roofline
from .runtime.native import OBSERVERS

if TYPE_CHECKING:
    from .compiler.ir.program import KernelProgram
    from .compiler.planning.cost_model import KernelCost
    from .compiler.planning.describe import Life

LONGEST = {"what": 52, "ends because": 34, "source": 60}  # columns that are cut off
LARGEST = 5  # values of the arena that are shown


@dataclass(frozen=True)
class Row:
    """A call of a program: a kernel, or one phase of a kernel that has several."""

    kernel: int
    name: str
    why: str  # it ends where it does
    sources: tuple[str, ...]  # the user's lines, those with the most work first
    seconds: float
    share: float  # of the program's time
    flops: int
    nbytes: int  # read and written
    roof: float  # the least time that the machine would allow, as a fraction of the time; more than 1: fewer operations were needed
    format: str = "float32"  # of its widest floats, or of its integers if there are none
    live: int = 0  # bytes of the arena that are in use while it runs
    scopes: tuple[tuple[Scope, float], ...] = ()  # the layers that it computes, and their shares of its work
    workspace: int = 0  # bytes that it needs beside its tensors
    persistent: int = 0  # those of its bytes that outlive a run: arguments, parameters, packed weights
    waiting: float = 0.0  # share of the threads' time in which they waited for others
    starts: int = 1  # kernels that it starts one after the other: many for a scan
    limit: str = ""  # what bounds it, if the device knows: compute, memory or waiting
    anchor: str = ""  # class of the op that it is built around: contraction, convolution, control; "" for loops

    @property
    def gflops(self) -> float:
        """Billions of operations a second."""
        return self.flops / self.seconds / 1e9

    @property
    def gbytes(self) -> float:
        """Billions of bytes a second."""
        return self.nbytes / self.seconds / 1e9


@dataclass(frozen=True)
class MemoryUse:
    """Bytes: `arena` holds what lives during a run only, `needed` of them at one time; inputs and results come with the call."""

    arena: int
    needed: int
    inputs: int
    state: int  # those inputs that are updated in place
    results: int
    largest: tuple[Life, ...]
    kept: int = 0  # operands that are prepared once, such as packed weights
    persistent: int = 0  # what a run reads and writes of inputs and of what is kept
    recomputed: int = 0  # bytes that are computed again instead of being kept
    recomputed_flops: int = 0  # operations for that


@dataclass(frozen=True)
class Explanation:
    """See the head of this file. `print` it, or read `rows`."""

    rows: tuple[Row, ...]
    memory: MemoryUse
    roof: Roofline
    where: str  # it ran
    runs: int  # that the times are the medians of
    plain: float = 0.0  # seconds of a run without a clock; 0: not measured
    overhead: float | None = None  # share of time that the clock adds
    prepared: int = 0  # kernels that run once, until constants change: they are not among the rows
    is_modelled: bool = False  # no clock measured it

    @property
    def seconds(self) -> float:
        return sum(row.seconds for row in self.rows)

    @property
    def kernels(self) -> int:
        return len({row.kernel for row in self.rows})

    def to_json(self) -> str:
        """Everything as JSON."""
        known = asdict(self) | {"seconds": self.seconds, "kernels": self.kernels}
        for row, text in zip(self.rows, known["rows"], strict=True):
            text |= {"gflops": row.gflops, "gbytes": row.gbytes}
        return json.dumps(known, indent=1)

    def text(self, most: int | None = None, *, by_time: bool = False, sources: bool = True) -> str:
        """The table: all calls or those that take `most` time, in their order or the longest first; with the user's lines or not."""
        longest = sorted(range(len(self.rows)), key=lambda i: -self.rows[i].seconds)[:most]
        shown = [self.rows[i] for i in (longest if by_time else sorted(longest))]
        hidden = len(self.rows) - len(shown)
        more = [f"{hidden} shorter ones are not shown"] if hidden else []
        if self.prepared:
            more.append(f"not counted: what prepares constants, which runs once ({self.prepared} kernels)")
        return "\n".join([*_table(self, shown, sources), *more, "", _roof_text(self.roof), *_memory_text(self.memory)])

    def __str__(self) -> str:
        return self.text()


def explain(executable: Executable, inputs: Sequence[int], repeats: int | None = None) -> Explanation:
    """Run a compiled program on inputs at these addresses, without changing them, and say what it does with its time."""
    found, limit = executable.profile(inputs, repeats), executable.roof()
    if found.stages:
        rows = tuple(_stage_row(number, stage, found.stages) for number, stage in enumerate(found.stages))
        return Explanation(rows, _stage_memory(found), limit, executable.where, found.runs, is_modelled=True)
    why = planning.describe.reasons(found.program)
    numbers = {kernel: i for i, kernel in enumerate(dict.fromkeys(c.kernel for c in found.program.calls))}
    total = sum(c.seconds for c in found.calls)
    live = planning.describe.live_bytes(found.program)
    prepared = len({c.kernel for c in found.program.calls if c.once} - {c.call.kernel for c in found.calls})
    rows = tuple(
        _row(found, c, numbers[c.call.kernel], why.get(c.call.kernel, ""), total, limit, live.get(c.call.kernel, 0))
        for c in found.calls
    )
    return Explanation(
        rows, _memory(found.program), limit, executable.where, found.runs, found.plain, found.overhead, prepared
    )


def _row(found: Profile, timed: CallTime, number: int, why: str, total: float, limit: Roofline, live: int) -> Row:
    call, kernel = timed.call, timed.call.kernel
    done: KernelCost = planning.cost_model.work(found.program, call)
    touched = [view.base for view in kernel.views] or kernel.outputs
    types = [n.dtype for n in touched if n.dtype.is_float] or [n.dtype for n in touched] or [float32]  # a copy has none
    widest = max(types, key=lambda dtype: dtype.itemsize)
    itemsize = widest.itemsize if widest.is_float else min(widest.itemsize, 4)
    least = limit.seconds(done.flops, done.nbytes, itemsize=itemsize)
    lines = tuple(str(s) for s in planning.describe.sources(kernel)[:3])
    share = timed.seconds / total
    name = planning.describe.name(found.program, call)
    scopes = tuple(planning.describe.scopes(kernel, found.program).items())
    roof = least / timed.seconds
    space = found.program.memory.scratch.get(kernel)
    return Row(
        number,
        name,
        why,
        lines,
        timed.seconds,
        share,
        done.flops,
        done.nbytes,
        roof,
        widest.name,
        live,
        scopes,
        space.nbytes if space is not None else 0,
        done.persistent,
        timed.waiting,
        planning.cost_model.starts(found.program, call),
        anchor=(kernel.anchor and kernel.anchor.op.kernel) or "",
    )


def _stage_row(number: int, stage: ModelledStage, every: Sequence[ModelledStage]) -> Row:
    lines = tuple(str(s) for s in planning.describe.source_lines(stage.nodes)[:3])
    return Row(
        number, stage.name, "", lines, stage.seconds, stage.seconds / sum(one.seconds for one in every), stage.flops, stage.nbytes,
        stage.least / stage.seconds, stage.format, stage.live, tuple(planning.describe.scope_shares(stage.nodes).items()),
        persistent=stage.persistent, limit=stage.limit,
    )  # fmt: skip


def _stage_memory(found: Profile) -> MemoryUse:
    graph, most = found.program.graph, max(stage.live for stage in found.stages)
    inputs, results = sum(map(nbytes, graph.inputs)), sum(map(nbytes, graph.outputs))
    return MemoryUse(most, most, inputs, 0, results, (), persistent=sum(stage.persistent for stage in found.stages))


def _memory(program: KernelProgram) -> MemoryUse:
    graph = program.graph
    state = {graph.inputs[i] for i in program.updates.values()}
    return MemoryUse(
        program.memory.arena,
        program.memory.needed,
        sum(map(nbytes, graph.inputs)),
        sum(map(nbytes, state)),
        sum(nbytes(o) for i, o in enumerate(graph.outputs) if i not in program.updates),
        tuple(planning.describe.lives(program)[:LARGEST]),
        program.memory.kept,
        planning.cost_model.persistent_bytes(program),
        program.memory.recomputed,
        sum(planning.cost_model.work(program, c).flops for c in program.calls if c.kernel in program.recomputed),
    )


# --- for people -----------------------------------------------------------------------------------------------------------------


def _table(found: Explanation, rows: Sequence[Row], sources: bool) -> list[str]:
    every = ("", "what", "ms", "share", "MFLOP", "GFLOP/s", "MB", "GB/s", "roof", "ends because", "source")
    titles = every if sources else every[:-1]
    cells = [line[: len(titles)] for line in (every, *(_cells(row) for row in rows), _total_cells(found))]
    cells = [tuple(_cut(text, LONGEST.get(t)) for t, text in zip(titles, line, strict=True)) for line in cells]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    justify = [str.ljust if title in LONGEST else str.rjust for title in titles]
    lines = ["  ".join(map(lambda j, c, w: j(c, w), justify, line, widths)).rstrip() for line in cells]
    return [lines[0], "-" * max(map(len, lines)), *lines[1:]]


def _cells(row: Row) -> tuple[str, ...]:
    source = row.sources[0] if row.sources else ""
    return (str(row.kernel), row.name, *_numbers(row), row.why, source)


def _numbers(row: Row) -> tuple[str, ...]:
    return (
        f"{1e3 * row.seconds:.3f}", f"{row.share:.1%}", f"{row.flops / 1e6:.2f}", f"{row.gflops:.1f}",
        f"{row.nbytes / 1e6:.2f}", f"{row.gbytes:.1f}", f"{row.roof:.0%}",
    )  # fmt: skip


def _total_cells(found: Explanation) -> tuple[str, ...]:
    flops, moved = sum(r.flops for r in found.rows), sum(r.nbytes for r in found.rows)
    seconds = found.seconds or 1e-9  # a program may have nothing to do
    least = sum(r.roof * r.seconds for r in found.rows)
    row = Row(0, "", "", (), seconds, 1.0, flops, moved, least / seconds)
    runs = f"medians of {found.runs} runs" if found.runs > 1 else "one run"
    what = f"total of {found.kernels} kernels, {found.where}, {runs}"
    return ("", what, *_numbers(row), "", "")


def _cut(text: str, longest: int | None) -> str:
    return text if longest is None or len(text) <= longest else text[: longest - 3] + "..."


def _roof_text(limit: Roofline) -> str:
    return f"roof: {limit}"


def _memory_text(memory: MemoryUse) -> list[str]:
    lines = [
        f"memory: arena {_size(memory.arena)} ({_size(memory.needed)} needed at the worst moment), inputs "
        f"{_size(memory.inputs)} (of which {_size(memory.state)} are updated in place), results {_size(memory.results)}"
    ]
    if memory.recomputed:
        done = f"{memory.recomputed_flops / 1e6:.2f} MFLOP"
        lines.append(f"computed again instead of being kept: {_size(memory.recomputed)}, {done}")
    for life in memory.largest:
        span = f"kernel {life.first}" if life.first == life.last else f"kernels {life.first} to {life.last}"
        lines.append(f"  {_size(life.nbytes):>10}  {life.type}, {span}")
    return lines


def _size(n: int) -> str:
    return f"{n / 1e6:.2f} MB" if n >= 10_000 else f"{n} bytes"


# --- WEFT_DEBUG=2 ---------------------------------------------------------------------------------------------------------------


def _show(executable: Executable, addresses: Sequence[int]) -> None:
    inputs = addresses[: len(executable.graph.inputs)]
    try:
        print(f"weft: kernels\n{explain(executable, inputs, repeats=1)}", file=sys.stderr)
    except RunError:
        pass  # the run that follows will say it


OBSERVERS.append(_show)

__all__ = ["Explanation", "MemoryUse", "Row", "explain"]
