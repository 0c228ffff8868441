"""update_slice: a copy of a tensor with one slice replaced. In place there is nothing to copy, and only the slice is touched."""

from __future__ import annotations

from math import prod

from ....graph.node import Node
from ...ir.index import Loop
from ...ir.kernel import Kernel
from ...ir.plan import PlanPhase
from ..anchors import anchor_of
from ..kernel_utils import ceil_div, element
from ..source import KernelSource, KernelWriter, decomposed

BLOCK = 1024  # elements of a program


def phases(kernel: Kernel) -> tuple[PlanPhase, ...]:
    x, value, *indices = anchor_of(kernel).inputs
    result = frozenset(("y",))
    copy = PlanPhase("update_slice.copy", (), frozenset(("x0",)), result, copies=True)
    if not prod(value.shape):
        return (copy,) if prod(x.shape) else ()
    reads = frozenset(("x1", *(f"x{2 + i}" for i in range(len(indices)))))
    return copy, PlanPhase("update_slice", (), reads, result, prod(value.shape) * x.dtype.itemsize)


def scratch_tensors(kernel: Kernel) -> tuple[Node, ...]:
    return ()


def write(kernel: Kernel, phase: PlanPhase) -> KernelSource:
    writer = KernelWriter("kernel")
    return _copy(writer, kernel) if phase.symbol == "update_slice.copy" else _update(writer, kernel)


def _copy(writer: KernelWriter, kernel: Kernel) -> KernelSource:
    anchor = anchor_of(kernel)
    count = _elements(writer, prod(anchor.shape))
    writer.line(f"x = tl.load({element(writer, kernel.views[0], anchor.shape, 'item')}, mask=inside)")
    _store(writer, anchor, "item", "x", "inside")
    return writer.finished(count, 4)


def _update(writer: KernelWriter, kernel: Kernel) -> KernelSource:
    anchor, value = anchor_of(kernel), anchor_of(kernel).inputs[1]
    axes, starts, steps = anchor.get_params("axes", "starts", "steps")
    writer.line(f"# update_slice: {prod(value.shape)} of {prod(anchor.shape)} elements")
    count = _elements(writer, prod(value.shape))
    loops = tuple(Loop(n) for n in value.shape)
    at, each = decomposed(loops, "item"), iter(loops)
    place, mask = "0 * item", "inside"
    for a, size in enumerate(anchor.shape):
        if a in axes:
            index, mask = _index(writer, kernel, axes.index(a), size, mask)
        else:
            index = f"({starts[a]} + {at[next(each)]} * {steps[a]})"
        place = f"({place}) * {size} + {index}"
    where = writer.let("place", place)
    writer.line(f"x = tl.load({element(writer, kernel.views[1], value.shape, 'item')}, mask=inside)")
    _store(writer, anchor, where, "x", mask)
    return writer.finished(count, 4)


def _index(writer: KernelWriter, kernel: Kernel, number: int, size: int, mask: str) -> tuple[str, str]:
    """An index counted from the front, and the mask of elements to be written: none if the index is out of range."""
    anchor, view = anchor_of(kernel), kernel.views[2 + number]
    axis, dtype = anchor.param("axes")[number], anchor.inputs[2 + number].dtype
    value = writer.let("value", f"tl.load({writer.pointer(view.base)} + {view.offset} + 0 * item).to(tl.int64)")
    at = writer.let("at", f"tl.where({value} < 0, {value} + {size}, {value})" if dtype.kind == "int" else value)
    wrong = writer.let("wrong", f"inside & (({at} < 0) | ({at} >= {size}))")
    message = f"index {{value}} is out of range for axis {axis} of size {size}."
    site = writer.site("update_slice", message, anchor.source)
    writer.line(f"tl.store(status + 0 * item, first_error + {site}, mask={wrong})")
    writer.line(f"tl.store(status + 1 + 0 * item, {value}, mask={wrong})")
    return at, writer.let("write", f"{mask} & ({wrong} == 0)")


def _elements(writer: KernelWriter, count: int) -> int:
    """The elements of a program, and how many programs there are."""
    writer.line(f"item = tl.program_id(0) * {BLOCK} + tl.arange(0, {BLOCK})")
    writer.line(f"inside = item < {count}")
    return ceil_div(count, BLOCK)


def _store(writer: KernelWriter, node: Node, place: str, value: str, mask: str) -> None:
    writer.written.append(node)
    writer.line(f"tl.store({writer.pointer(node)} + {place}, {value}, mask={mask})")
