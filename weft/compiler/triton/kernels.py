"""From loops to Triton: the source of one fused kernel, to be read by people too.

A program takes `ROWS` places of the outer loops. Each phase walks through its own loops in strips of `WIDTH`: values are tiles of
ROWS x WIDTH, or columns and rows that broadcast. A reduction keeps a tile of partial results and combines it at the end, always in the
same order. A kernel without inner loops works on plain rows of elements.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod

from ...dtypes import DType
from ...graph.node import Node
from ..index import Index, Inside, Loop, Quotient, Read, Remainder, Term
from ..loops import Step
from ..nest import ReadyNest, ReadyPhase, Reduced
from . import scalar
from .helpers import with_helpers

FLAT = 1024  # places a program takes when there are no inner loops
MOST_TILE = 4096  # elements of a tile: more would not fit into registers


@dataclass(frozen=True)
class Tile:
    """How much one program does: `rows` places of the outer loops, strips of `width` of the inner ones."""

    rows: int
    width: int
    warps: int


@dataclass(frozen=True)
class KernelSource:
    """A kernel as text, and how it is launched: tensors in the order of its arguments, and the number of programs."""

    name: str
    text: str
    arguments: tuple[Node, ...]
    writes: tuple[Node, ...]
    programs: int
    warps: int
    errors: tuple[tuple[str, str, object], ...] = field(default=())


def tile_for(nest: ReadyNest) -> Tile:
    """Strips as long as the inner loops, up to a tile; the rows fill up the tile."""
    rows = prod(l.size for l in nest.outer)
    widest = max((prod(l.size for l in p.loops) for p in nest.phases), default=1)
    if widest <= 1:
        return Tile(min(FLAT, _power(rows)), 1, 4)
    if nest.vector is not None:  # neighbours lie along the outer loops: many rows side by side
        height = min(_power(rows), 128)
        return Tile(height, max(1, min(_power(widest), MOST_TILE // height // 4)), 4)
    width = min(_power(widest), MOST_TILE)
    height = max(1, min(_power(rows), MOST_TILE // width // 2))
    return Tile(height, width, 8 if width >= 2048 else 4)


def _power(count: int) -> int:
    """The least power of two that is not below."""
    return 1 << max(0, count - 1).bit_length()


def write_kernel(name: str, nest: ReadyNest, tile: Tile | None = None) -> KernelSource:
    """The source of a nest."""
    return _Writer(name, nest, tile or tile_for(nest)).source()


class _Writer:
    """Writes one kernel."""

    def __init__(self, name: str, nest: ReadyNest, tile: Tile) -> None:
        self.name, self.nest, self.tile = name, nest, tile
        self.flat = all(not p.loops for p in nest.phases)
        self.lines: list[str] = []
        self.depth = 1
        self.pointers: dict[Node, str] = {}
        self.written: list[Node] = []
        self.at: dict[Loop, str] = {}
        self.rows: dict[Node, str] = {}  # reductions that are done
        self.errors: list[tuple[str, str, object]] = []
        self.names = 0

    def source(self) -> KernelSource:
        count = prod(l.size for l in self.nest.outer)
        programs = -(-count // self.tile.rows)
        self._outer(count)
        for phase in self.nest.phases:
            self._phase(phase)
        arguments = ", ".join([*self.pointers.values(), "status"])
        text = f"@triton.jit\ndef {self.name}({arguments}):\n" + "\n".join(self.lines) + "\n"
        return KernelSource(
            self.name, with_helpers(text), tuple(self.pointers), tuple(self.written), programs, self.tile.warps, tuple(self.errors)
        )  # fmt: skip

    # --- lines --------------------------------------------------------------------------------------------------------------

    def line(self, text: str) -> None:
        self.lines.append("    " * self.depth + text)

    def let(self, stem: str, expression: str) -> str:
        """A name for a value."""
        name = f"{stem}{self.names}"
        self.names += 1
        self.line(f"{name} = {expression}")
        return name

    # --- loops --------------------------------------------------------------------------------------------------------------

    def _outer(self, count: int) -> None:
        rows = self.tile.rows
        places = f"tl.arange(0, {rows})" if self.flat else f"tl.arange(0, {rows})[:, None]"
        self.line(f"row = tl.program_id(0) * {rows} + {places}")
        self.line(f"inside_rows = row < {count}")
        self._set(self.nest.outer, "row")

    def _set(self, loops: Sequence[Loop], number: str) -> None:
        """Loops from the number of a place."""
        below = 1
        for loop in reversed(loops):
            part = number if below == 1 else f"({number} // {below})"
            self.at[loop] = part if loop is loops[0] else f"({part} % {loop.size})"
            below *= loop.size

    def _phase(self, phase: ReadyPhase) -> None:
        count = prod(l.size for l in phase.loops)
        self.line(f"# {', '.join(self._about(phase))}")
        totals = [_Total(self, r) for r in phase.reductions]
        for total in totals:
            total.begin()
        looped = count > self.tile.width
        if phase.loops:
            self.line(f"for start in range(0, {count}, {self.tile.width}):" if looped else "start = 0")
            self.depth += looped
            self.line(f"place = start + tl.arange(0, {self.tile.width})[None, :]")
            self.line(f"inside_strip = place < {count}")
            self._set(phase.loops, "place")
        values = _Values(self, phase)
        for total in totals:
            total.add(values)
        computed = [values.names[w.step] for w in phase.stores]  # all are read before any is written
        for written, value in zip(phase.stores, computed, strict=True):
            values.store(written.node, written.position, value)
        if phase.loops:
            self.depth -= looped
        for total in totals:
            self.rows[total.reduced.node] = total.end()

    def _about(self, phase: ReadyPhase) -> Iterable[str]:
        for reduced in phase.reductions:
            yield f"{reduced.node.op.name} over {' x '.join(str(l.size) for l in phase.loops) or 1}"
        for written in phase.stores:
            yield f"{written.node.dtype.name}[{', '.join(map(str, written.node.shape))}]"

    def pointer(self, node: Node) -> str:
        return self.pointers.setdefault(node, f"p{len(self.pointers)}")

    def site(self, op: str, message: str, source: object) -> int:
        entry = (op, message, source)
        if entry not in self.errors:
            self.errors.append(entry)
        return self.errors.index(entry) + 1


# --- reductions ---------------------------------------------------------------------------------------------------------------

_COMBINE = {"sum": "add", "prod": "mul", "max": "greater", "min": "less", "window_sum": "add", "window_max": "greater"}


class _Total:
    """The running state of a reduction: a tile of values so far, and for argmax where they were found."""

    def __init__(self, writer: _Writer, reduced: Reduced) -> None:
        self.writer, self.reduced = writer, reduced
        self.kind, self.dtype = reduced.node.op.name, reduced.node.inputs[0].dtype
        self.finds = self.kind in ("argmax", "argmin", "window_argmax")
        self.state: list[str] = []

    def begin(self) -> None:
        tile = self.writer.tile
        shape = f"({tile.rows}, {tile.width})" if not self.writer.flat else f"({tile.rows},)"
        self.state = [self.writer.let("t", scalar.filled(self.dtype, self._neutral(), shape))]
        if self.finds:
            self.state.append(self.writer.let("t", f"tl.full({shape}, -1, tl.int64)"))

    def _neutral(self) -> object:
        return neutral(self.kind, self.dtype)

    def add(self, values: _Values) -> None:
        write = self.writer
        new = values.names[self.reduced.steps[0]]
        for step in self.reduced.steps[1:]:
            new = write.let("v", f"{new} * {values.names[step]}")
        inside = values.all_of(
            ["inside_rows", *(["inside_strip"] if values.phase.loops else [])], self.reduced.conditions
        )
        if self.finds:
            position = f"tl.where({inside}, {values.index(self.reduced.positions[0])}, -1).to(tl.int64)"
            name = "smallest" if self.kind == "argmin" else "greatest"
            write.line(f"{', '.join(self.state)} = {name}({', '.join(self.state)}, {new}, {position})")
            return
        new = f"tl.where({inside}, {new}, {scalar.number(self.dtype, self._neutral())})"
        write.line(f"{self.state[0]} = {_combined(self.kind, self.state[0], new, self.dtype)}")

    def end(self) -> str:
        write = self.writer
        if write.flat or write.tile.width == 1:
            return self.state[-1]
        if self.finds:
            name = "smallest" if self.kind == "argmin" else "greatest"
            first = write.let("r", f"tl.reduce(({', '.join(self.state)}), 1, {name}, keep_dims=True)[1]")
            return first
        combine = "either" if self.dtype.name == "bool" else _COMBINE.get(self.kind, "add")
        return write.let("r", f"tl.reduce({self.state[0]}, 1, {combine}, keep_dims=True)")


def neutral(kind: str, dtype: DType) -> object:
    """What a reduction of nothing gives."""
    if kind == "prod":
        return 1
    if kind not in ("max", "min", "argmax", "argmin", "window_max", "window_argmax", "window_tap"):
        return 0
    greatest = kind in ("min", "argmin")
    if dtype.is_float:
        return "inf" if greatest else "-inf"
    if dtype.kind == "int":
        return (1 << (dtype.bits - 1)) - 1 if greatest else -(1 << (dtype.bits - 1))
    return (1 << dtype.bits) - 1 if greatest else 0


def _combined(kind: str, a: str, b: str, dtype: DType) -> str:
    if kind == "prod":
        return f"{a} * {b}"
    if kind in ("max", "window_max"):
        return scalar.extreme(a, b, dtype, True)
    if kind == "min":
        return scalar.extreme(a, b, dtype, False)
    return f"{a} | {b}" if dtype.name == "bool" else f"{a} + {b}"


# --- the steps of a phase ---------------------------------------------------------------------------------------------------------


class _Values:
    """The steps of a phase as names of values."""

    def __init__(self, writer: _Writer, phase: ReadyPhase) -> None:
        self.writer, self.phase = writer, phase
        self.names: list[str] = []
        for step in phase.steps:  # in order: each after its arguments
            self.names.append(self._compute(step))

    def _compute(self, step: Step) -> str:
        node, args = step.node, [self.names[a] for a in step.args]
        ways: Mapping[str, Callable[[], str]] = {
            "load": lambda: self._load(node, step.indices[0]),
            "row": lambda: self.writer.rows[node],
            "const": lambda: self._constant(node),
            "iota": lambda: f"{self._tile(step.indices[0])}.to({scalar.register(node.dtype)})",
            "op": lambda: scalar.emit(node, args, lambda bad, value: self._flag_op(node, bad, value)),
            "same": lambda: args[0] if args else scalar.number(node.dtype, 0),  # of nothing; it is never used
            "guard": lambda: self._guarded(step, args),
            "choose": lambda: self._chosen(step, args),
            "bits": lambda: f"philox({self._tile(step.indices[0])}, {args[0]}, {args[1]})",
            "window": lambda: self._window(step, args),
        }
        expression = ways[step.kind]()
        return expression if expression.isidentifier() else self.writer.let("v", expression)

    def _constant(self, node: Node) -> str:
        return f"tl.full((1,), {scalar.number(node.dtype, node.params[0])}, {scalar.register(node.dtype)})"

    def _guarded(self, step: Step, args: list[str]) -> str:
        filler = scalar.number(step.node.dtype, step.node.params[1])
        if not args:
            return f"tl.full((1,), {filler}, {scalar.register(step.node.dtype)})"
        holds = self.all_of([], step.conditions[0])
        return args[0] if holds == "True" else f"tl.where({holds}, {args[0]}, {filler})"

    def _chosen(self, step: Step, args: list[str]) -> str:
        result = args[-1]
        for value, conditions in zip(reversed(args[:-1]), reversed(step.conditions[:-1]), strict=True):
            holds = self.all_of([], conditions)
            result = value if holds == "True" else f"tl.where({holds}, {value}, {result})"
        return result

    def _window(self, step: Step, args: list[str]) -> str:
        dtype, kind, write = step.node.inputs[0].dtype, step.node.op.name, self.writer
        if kind == "window_spread":
            return self._spread_back(step, args)
        state: list[str] | None = None
        for arg, conditions, position in zip(args, step.conditions, step.indices, strict=True):
            holds = self.all_of([], conditions)
            if kind in ("window_argmax", "window_tap"):
                where = f"{self._tile(position)}.to(tl.int64)"
                where = where if holds == "True" else f"tl.where({holds}, {where}, -1).to(tl.int64)"
                if state is None:
                    state = [write.let("w", arg), write.let("w", where)]
                else:
                    write.line(f"{', '.join(state)} = greatest({', '.join(state)}, {arg}, {where})")
                continue
            new = arg if holds == "True" else f"tl.where({holds}, {arg}, {scalar.number(dtype, neutral(kind, dtype))})"
            state = [write.let("w", new if state is None else _combined(kind, state[0], new, dtype))]
        assert state is not None
        return f"{state[1]}.to(tl.int32)" if kind == "window_tap" else state[-1]

    def _spread_back(self, step: Step, args: list[str]) -> str:
        """The sum over the windows that this element won."""
        parts = []
        for number, conditions in enumerate(step.conditions):
            tap, g = args[2 * number : 2 * number + 2]
            won = self.all_of([f"({tap} == {number})"], conditions)
            parts.append(f"tl.where({won}, {g}, 0)")
        return " + ".join(parts)

    # --- places -------------------------------------------------------------------------------------------------------------

    def all_of(self, first: Sequence[str], conditions: Sequence[Inside]) -> str:
        """Whether all hold; "True" if there is nothing to ask."""
        words = [*first, *(f"({self._inside(f'({self.index(c.inner)})', c)})" for c in conditions)]
        return " & ".join(words) or "True"

    def _inside(self, inner: str, term: Inside) -> str:
        top = (term.size - 1) * term.step
        holds = f"({inner} >= 0) & ({inner} <= {top})"
        return f"{holds} & ({inner} % {term.step} == 0)" if term.step > 1 else holds

    def index(self, index: Index) -> str:
        """A place as an expression of the loops."""
        words = [f"{self._term(term)} * {c}" if c != 1 else self._term(term) for term, c in index.parts]
        if index.offset or not words:
            words.append(str(index.offset))
        return " + ".join(words)

    def _tile(self, index: Index) -> str:
        """A place as a tile of numbers, also where it is the same for all."""
        return f"({self.index(index)}{'' if self._mask(index) else ' + 0 * row'})"

    def _term(self, term: Term) -> str:
        if isinstance(term, Loop):
            return self.writer.at[term]
        if isinstance(term, Read):
            return self._read(term)
        inner = f"({self.index(term.inner)})"
        if isinstance(term, Quotient):
            return f"({inner} // {term.by})"
        if isinstance(term, Remainder):
            return f"({inner} % {term.size})"
        quotient = inner if term.step == 1 else f"{inner} // {term.step}"
        return f"tl.where({self._inside(inner, term)}, {quotient}, 0)"

    def _read(self, term: Read) -> str:
        """An index that comes from a tensor: checked, and counted from the front."""
        value = f"{self.names[self.phase.number[(term.node, term.place)]]}.to(tl.int64)"
        axes, wraps = term.gather.params
        axis = axes[term.gather.inputs[1:].index(term.node)]
        place = self.writer.let("i", f"tl.where({value} < 0, {value} + {term.size}, {value})" if wraps else value)
        bad = self.writer.let("bad", f"({place} < 0) | ({place} >= {term.size})")
        message = "index {value} is out of range for axis " + f"{axis} of size {term.size}."
        self._flag(
            bad, value, self.writer.site("gather", message, term.gather.source), self._mask(Index(0, ((term, 1),)))
        )
        return f"tl.where({bad}, 0, {place})"

    def _flag_op(self, node: Node, bad: str, value: str) -> None:
        name = node.op.name
        if name == "in_range":
            size, axis = node.params
            message = "index {value} is out of range for axis " + f"{axis} of size {size}."
            self._flag(bad, value, self.writer.site("scatter", message, node.source), None)
            return
        self._flag(bad, "0", self.writer.site(name, MESSAGES[name], node.source), None)

    def _flag(self, bad: str, value: str, site: int, mask: str | None) -> None:
        """Where something is wrong, remember which site and which value; the run goes on with safe numbers."""
        inside = mask or self._everything()
        wrong = self.writer.let("bad", f"tl.where({bad}, {inside}, False)")
        here = f"tl.zeros_like({wrong}.to(tl.int32))"
        self.writer.line(f"tl.store(status + {here}, {site}, mask={wrong})")
        self.writer.line(f"tl.store(status + 1 + {here}, {value}, mask={wrong})")

    # --- memory -------------------------------------------------------------------------------------------------------------

    def _mask(self, position: Index) -> str | None:
        """Which of the elements at this place exist; None where there is one for all."""
        outer, inner = position.loops & set(self.writer.nest.outer), position.loops & set(self.phase.loops)
        words = [*(["inside_rows"] if outer else []), *(["inside_strip"] if inner else [])]
        return " & ".join(words) or None

    def _everything(self) -> str:
        return "inside_rows & inside_strip" if self.phase.loops else "inside_rows"

    def _load(self, node: Node, position: Index) -> str:
        mask = self._mask(position)
        where = f"{self.writer.pointer(node)} + ({self.index(position)})"
        raw = f"tl.load({where}, mask={mask}, other=0)" if mask else f"tl.load({where})"
        return scalar.from_storage(raw, node.dtype)

    def store(self, node: Node, position: Index, value: str) -> None:
        where = f"{self.writer.pointer(node)} + {self._tile(position)}"
        self.writer.written.append(node)
        self.writer.line(
            f"tl.store({where}, {scalar.to_storage(value, node.dtype)}, mask={self._mask(position) or 'inside_rows'})"
        )


MESSAGES = {
    "floor_divide": "an integer was divided by zero. Guard the divisor with weft.where().",
    "remainder": "an integer was divided by zero. Guard the divisor with weft.where().",
    "pow": "an integer cannot be raised to a negative power. Convert the base with astype().",
    "shl": "a shift by a negative number has no meaning.",
    "shr": "a shift by a negative number has no meaning.",
}
