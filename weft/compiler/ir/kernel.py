"""Kernels: loops, or an anchor (a matrix product, a convolution, control flow) with the loops of its epilogue.

An anchor reads its operands in place, through views: movement of data between a stored node and an anchor costs nothing as
long as it can be written as an offset and strides.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import field
from math import prod

from ...dtypes import float32
from ...graph.node import CONST, ITEM, Node
from ...records import dataclass
from ..thresholds import thresholds
from .elements import Elements
from .index import IndexExpr, Loop, Place, fresh, linear, reshaped, strides
from .loops import Body, Key, Nest, sources


@dataclass(frozen=True)
class View:
    """An operand that is read in place: a stored node, where it begins, and its strides, in elements."""

    base: Node
    offset: int
    strides: tuple[int, ...]


@dataclass(eq=False)
class Kernel:
    """One kernel: loops, or an anchor (a matrix product, a convolution, a sort, control flow) with the loops of its epilogue."""

    anchor: Node | None
    nest: Nest | None
    views: tuple[View, ...] = ()
    outputs: list[Node] = field(default_factory=list)  # stored nodes that it writes
    reads: set[Node] = field(default_factory=set)  # stored nodes of other kernels
    bodies: list[Body] = field(default_factory=list)  # one a phase
    rows: tuple[Loop, ...] = ()  # the loops of an anchor's result: batch, row, column

    @property
    def name(self) -> str:
        return self.anchor.op.name if self.anchor is not None else "loops"

    @property
    def results(self) -> dict[int, Node]:
        """The results, by number, of an anchor with several results that are read: only these have memory."""
        return {n.param("index"): n for n in self.outputs if n.op is ITEM}

    def elements(self) -> list[Elements]:
        """What each phase computes and reads, while kernels are merged; later, `bodies` replaces it."""
        return [p.elements for p in self.nest.phases] if self.nest is not None else []

    def loads(self) -> Iterator[Key]:
        """What its loops read from memory."""
        return ((node, place) for part in self.elements() for node, places in part.loads.items() for place in places)


def is_copy(kernel: Kernel) -> bool:
    """Whether a kernel only widens. Merged with the producer of the narrow value, it would run too early, and its copy would be live too long."""
    return all(map(is_wide_copy, kernel.outputs))


ByLoops = Callable[[Node], bool]  # whether a backend computes a convolution by plain loops, as if it were elementwise


def has_epilogue(node: Node, by_loops: ByLoops) -> bool:
    """Whether the node is a matrix product or convolution with a kernel of its own, which takes an epilogue."""
    return node.op.kernel == "contraction" or (node.op.kernel == "convolution" and not by_loops(node))


def is_control(node: Node) -> bool:
    """Whether the node runs bodies: call, cond, while_loop, scan."""
    return node.op.kernel == "control"


def is_anchor(node: Node, by_loops: ByLoops) -> bool:
    """Whether a kernel is built around the node; its inputs are read as views."""
    return has_epilogue(node, by_loops) or node.op.own_kernels or is_control(node)


def view(node: Node, stored: Iterable[Node], widens: bool = False) -> View | None:
    """The node as a view of a stored one, if only movement of data is between them.

    `widens`: the reader converts 16-bit floats to float32 itself.
    """
    place = fresh(node.shape)
    axes = [i.parts[0][0] if i.parts else None for i in place]
    while node not in stored:
        if widens and is_widening(node):
            node = node.inputs[0]
            continue
        if node.op.kind != "move":
            return None
        found = sources(node, place)
        if len(found) != 1 or found[0][2]:
            return None
        node, place, _ = found[0]
    position = linear(place, node.shape)
    steps = []
    for axis in axes:
        step = 0 if axis is None else position.coefficient(axis)  # type: ignore[arg-type]
        if step is None:
            return None
        steps.append(step)
    return View(node, position.offset, tuple(steps))


def base_of(anchor: Node, number: int, stored: Iterable[Node], widens: bool) -> Node:
    """The node that must be stored so that an anchor can read one of its inputs: the first node below that the input is a view of."""
    node = anchor.inputs[number]
    any_strides = number in anchor.op.strided_inputs
    best = below = node
    while below not in stored and _is_read_through(below, widens):
        below = below.inputs[0]
        found = view(node, {below}, widens)
        if found is None or any(s < 0 for s in found.strides):
            break
        if any_strides or is_contiguous(found.strides, node.shape):
            best = below
    return node if best.op is CONST else best


def _is_read_through(node: Node, widens: bool) -> bool:
    return node.op.kernel == "view" or (widens and is_widening(node))


def unmoved(node: Node) -> Node:
    """The node below all movement ops."""
    while node.op.kind == "move" and len(node.inputs) == 1:
        node = node.inputs[0]
    return node


def is_widening(node: Node) -> bool:
    """Whether a node converts 16-bit floats to float32."""
    return node.op.name == "cast" and node.dtype is float32 and node.inputs[0].dtype.is_half


def is_narrowing(node: Node) -> bool:
    """Whether a node converts float32 to 16 bits in order to be stored; not if the wide value is stored anyway."""
    if node.op.name != "cast" or not node.dtype.is_half:
        return False
    below = unmoved(node.inputs[0])
    return below.dtype is float32 and below.op.kernel != "input" and below.op is not CONST


def is_wide_copy(node: Node) -> bool:
    """Whether it is a float32 copy of 16-bit floats for a kernel that reads float32 only. It should be live for that kernel only."""
    return is_widening(unmoved(node))


def is_group(node: Node) -> bool:
    """Whether it is a group of pieces of a longer concat, as many as one kernel should choose from."""
    return node.op.name == "concat" and len(node.inputs) >= thresholds.concat_pieces


def is_contiguous(steps: Sequence[int], shape: Sequence[int]) -> bool:
    return all(n == 1 or s == t for s, t, n in zip(steps, strides(tuple(shape)), shape, strict=True))


# --- the loops of an anchor's result: (batch, row, column) ----------------------------------------------------------------------


def anchor_shape(anchor: Node) -> tuple[int, int, int]:
    """The result as a batch of matrices, as the library sees it."""
    shape = anchor.shape
    if anchor.op.kernel == "contraction":
        return shape[0], shape[1], shape[2]
    return 1, prod(shape[:-1]), shape[-1]


def anchor_loops(anchor: Node) -> tuple[Loop, ...]:
    return tuple(Loop(n) for n in anchor_shape(anchor))


def anchor_place(anchor: Node, rows: tuple[Loop, ...]) -> Place:
    """The element of the result that belongs to these loops."""
    place = tuple(IndexExpr(0, ((l, 1),)) if l.size != 1 else IndexExpr() for l in rows)
    return reshaped(place, anchor_shape(anchor), anchor.shape)
