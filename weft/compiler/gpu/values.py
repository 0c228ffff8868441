"""The steps of a phase as Triton: names of values, indices as expressions of the loops, masked loads and stores."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

from ...dtypes import DType
from ...graph.node import Node
from ..ir.index import IndexExpr, Inside, Loop, Quotient, Read, Remainder, Term
from ..ir.loops import Step
from ..ir.nest import ReadyPhase
from . import scalars as scalar
from .source import KernelWriter

# The function of device_functions.py that combines two values of a reduction. All others are sums: products and convolutions too.
COMBINING_FUNCTIONS = {
    "prod": "mul", "max": "greater", "argmax": "greater", "min": "less", "argmin": "less",
    "window_max": "greater", "window_argmax": "greater", "window_tap": "greater",
}  # fmt: skip


def combining_function(kind: str) -> str:
    return COMBINING_FUNCTIONS.get(kind, "add")


def neutral(kind: str, dtype: DType) -> object:
    """The result of a reduction over no elements."""
    function = combining_function(kind)
    if function in ("add", "mul"):
        return int(function == "mul")
    greatest = function == "less"
    if dtype.is_float:
        return "inf" if greatest else "-inf"
    if dtype.kind == "int":
        return (1 << (dtype.bits - 1)) - 1 if greatest else -(1 << (dtype.bits - 1))
    return (1 << dtype.bits) - 1 if greatest else 0


def combined(kind: str, a: str, b: str, dtype: DType) -> str:
    """Two values of a reduction combined."""
    function = combining_function(kind)
    if function in ("greater", "less"):
        return scalar.extreme(a, b, dtype, function == "greater")
    if function == "mul":
        return f"{a} * {b}"
    return f"{a} | {b}" if dtype.name == "bool" else f"{a} + {b}"


def invariant_steps(phase: ReadyPhase) -> list[int]:
    """The steps of a phase that are the same along all of its loops. None if they are constants and results alone, which cost nothing."""
    found: set[int] = set()
    for number, step in enumerate(phase.steps):
        places = [*step.indices, *(c.inner for conditions in step.conditions for c in conditions)]
        varies = any(loop in place.loops for place in places for loop in phase.loops)
        if not varies and found.issuperset(step.args):
            found.add(number)
    costs = any(phase.steps[number].kind not in ("const", "row", "same") for number in found)
    return sorted(found) if costs else []


class PhaseValues:
    """The steps of a phase as names of values. `known` has the names of some that were computed before; with `only`, others than these are left out."""

    def __init__(
        self, writer: KernelWriter, phase: ReadyPhase, known: Mapping[int, str] | None = None, only: Collection[int] | None = None
    ) -> None:  # fmt: skip
        self.writer, self.phase = writer, phase
        self.names: list[str] = []
        self._places: dict[
            Inside, str
        ] = {}  # names of indices that may be out of range: windows of windows use them repeatedly
        for number, step in enumerate(phase.steps):  # in order: each after its arguments
            left_out = only is not None and number not in only
            self.names.append((known or {}).get(number) or ("" if left_out else self._compute(step)))

    def _compute(self, step: Step) -> str:
        node, args = step.node, [self.names[a] for a in step.args]
        ways: Mapping[str, Callable[[], str]] = {
            "load": lambda: self.writer.rows.get(node) or self._load(node, step.indices[0]),
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
        return scalar.filled(node.dtype, node.param("value"), "(1,)")

    def _guarded(self, step: Step, args: list[str]) -> str:
        filler = scalar.number(step.node.dtype, step.node.param("value"))
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
            state = [write.let("w", new if state is None else combined(kind, state[0], new, dtype))]
        assert state is not None
        return f"{state[1]}.to(tl.int32)" if kind == "window_tap" else state[-1]

    def _spread_back(self, step: Step, args: list[str]) -> str:
        """The sum over the windows whose maximum this element is."""
        parts = []
        for number, conditions in enumerate(step.conditions):
            tap, g = args[2 * number : 2 * number + 2]
            won = self.all_of([f"({tap} == {number})"], conditions)
            parts.append(f"tl.where({won}, {g}, 0)")
        return " + ".join(parts)

    # --- places -------------------------------------------------------------------------------------------------------------

    def all_of(self, first: Sequence[str], conditions: Sequence[Inside]) -> str:
        """The conjunction of conditions; "True" if there are none."""
        words = [*first, *(f"({self._inside(f'({self.index(c.inner)})', c)})" for c in conditions)]
        return " & ".join(words) or "True"

    def _inside(self, inner: str, term: Inside) -> str:
        top = (term.size - 1) * term.step
        holds = f"({inner} >= 0) & ({inner} <= {top})"
        return f"{holds} & ({inner} % {term.step} == 0)" if term.step > 1 else holds

    def index(self, index: IndexExpr) -> str:
        """A place as an expression of the loops."""
        words = [f"{self._term(term)} * {c}" if c != 1 else self._term(term) for term, c in index.parts]
        if index.offset or not words:
            words.append(str(index.offset))
        return " + ".join(words)

    def _tile(self, index: IndexExpr) -> str:
        """A place as a tile of numbers, also where it is the same for all."""
        return f"({self.index(index)})" if self._mask(index) else f"({self.index(index)} + {self.writer.zero})"

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
        if term not in self._places:
            quotient = inner if term.step == 1 else f"{inner} // {term.step}"
            self._places[term] = self.writer.let("i", f"tl.where({self._inside(inner, term)}, {quotient}, 0)")
        return self._places[term]

    def _read(self, term: Read) -> str:
        """An index that comes from a tensor: checked, and counted from the front."""
        value = f"{self.names[self.phase.number[(term.node, term.place)]]}.to(tl.int64)"
        axes, wraps = term.gather.get_params("axes", "wraps")
        axis = axes[term.gather.inputs[1:].index(term.node)]
        place = self.writer.let("i", f"tl.where({value} < 0, {value} + {term.size}, {value})" if wraps else value)
        bad = self.writer.let("bad", f"({place} < 0) | ({place} >= {term.size})")
        message = "index {value} is out of range for axis " + f"{axis} of size {term.size}."
        self._flag(
            bad, value, self.writer.site("gather", message, term.gather.source), self._mask(IndexExpr(0, ((term, 1),)))
        )
        return f"tl.where({bad}, 0, {place})"

    def _flag_op(self, node: Node, bad: str, value: str) -> None:
        name = node.op.name
        if name == "in_range":
            size, axis = node.get_params("size", "axis")
            message = "index {value} is out of range for axis " + f"{axis} of size {size}."
            self._flag(bad, value, self.writer.site("scatter", message, node.source), None)
            return
        self._flag(bad, "0", self.writer.site(name, MESSAGES[name], node.source), None)

    def _flag(self, bad: str, value: str, site: int, mask: str | None) -> None:
        """Record the site and the value of the first error; the run continues with safe numbers."""
        inside = mask or self.writer.inside
        wrong = self.writer.let("bad", f"tl.where({bad}, {inside}, False)")
        here = f"tl.zeros_like({wrong}.to(tl.int32))"
        self.writer.line(f"tl.store(status + {here}, first_error + {site}, mask={wrong})")
        self.writer.line(f"tl.store(status + 1 + {here}, {value}, mask={wrong})")

    # --- memory -------------------------------------------------------------------------------------------------------------

    def _mask(self, position: IndexExpr) -> str | None:
        """The mask of elements that exist at this place; None if all share one element."""
        words = dict.fromkeys(mask for loop, mask in self.writer.masks.items() if loop in position.loops)
        return " & ".join(words) or None

    def _load(self, node: Node, position: IndexExpr) -> str:
        mask = self._mask(position)
        where = f"{self.writer.pointer(node)} + ({self.index(position)})"
        raw = f"tl.load({where}, mask={mask}, other=0)" if mask else f"tl.load({where})"
        return scalar.from_storage(raw, node.dtype)

    def store_all(self) -> None:
        """Emit the stores of the phase; all loads come before them."""
        for written in self.phase.stores:
            self.store(written.node, written.position, self.names[written.step])

    def store(self, node: Node, position: IndexExpr, value: str, begin: str = "") -> None:
        """Store a value of a node; `begin` is the offset in its memory, if it is not 0."""
        varies = (
            self._mask(position) == self.writer.inside
        )  # with every loop: loops of one iteration do not occur in places
        where = self.index(position) if varies else f"{self.index(position)} + {self.writer.zero}"
        self.writer.written.append(node)
        stored = scalar.to_storage(value, node.dtype)
        pointer = f"{self.writer.pointer(node)} + {begin}" if begin else self.writer.pointer(node)
        self.writer.line(f"tl.store({pointer} + ({where}), {stored}, mask={self.writer.inside})")


MESSAGES = {
    "floor_divide": "an integer was divided by zero. Guard the divisor with weft.where().",
    "remainder": "an integer was divided by zero. Guard the divisor with weft.where().",
    "pow": "an integer cannot be raised to a negative power. Convert the base with astype().",
    "shl": "a shift by a negative number has no meaning.",
    "shr": "a shift by a negative number has no meaning.",
}
