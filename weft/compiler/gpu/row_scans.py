"""Scans as one kernel, where no row depends on other rows: recurrent layers, whose rows are the examples of a batch.

A step of such a scan is a few small kernels, which take less time than their launches. Here a program does all steps for a few rows: it
runs the kernels of a step one after another for its rows alone, and only its own threads wait for each other. What a step computes goes
through memory, which stays in the cache, and every temporary has memory of its own, because programs are at different steps.

Rows are the first axis of every value that a step computes, and products multiply rows by a matrix that is the same in all steps. Every
program reads these matrices in every step, so large ones are left to kernels that share them among all multiprocessors.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import prod

from ...graph.node import Node
from ...records import dataclass
from ..ir.index import IndexExpr, Loop
from ..ir.kernel import Kernel, View, is_widening
from ..ir.nest import ReadyNest, row_nest
from ..ir.program import FRAME_RESERVED, Call, KernelProgram
from ..ir.storage import ARENA, KEPT, Slot, nbytes
from .anchors import anchor_of, is_contraction, is_product
from .commands import ControlFlow
from .contraction import ContractionTile, write_contraction
from .kernel_utils import next_power_of_two, scratch_bytes, scratch_offsets
from .kernels import LoopTile, write_kernel
from .source import KernelSource, as_part

ROWS, MOST_ROWS = 16, 64  # of a program: at least what tensor cores multiply
PROGRAMS = 264  # from which on programs take more rows
FEWEST_STEPS = 4
MATRIX_BYTES = 512 << 10  # of all matrices that a step reads
COLUMNS = 1024  # of a product's result
LARGE = 1 << 31  # elements of all steps together, whose positions do not fit into 32 bits
DEPTH = 32  # of the strips of a product
TILE = 4096  # elements that a program computes together
WARPS = 8
BUFFER = "rows"  # of the temporaries of a step


@dataclass(frozen=True, eq=False)
class RowScan:
    """A scan that runs as one kernel: the calls of its body that run in every step, and those that run once, before."""

    rows: int
    body: KernelProgram
    steps: tuple[Call, ...]
    before: tuple[Call, ...]
    products: Mapping[Kernel, Kernel]  # with other operands
    nests: Mapping[Kernel, ReadyNest]

    @property
    def height(self) -> int:
        """The rows of a program."""
        height = ROWS
        while height < MOST_ROWS and -(-self.rows // height) > PROGRAMS:
            height *= 2
        return height

    @property
    def temporaries(self) -> list[Node]:
        """What the steps store for themselves."""
        stored = [node for call in self.steps for node in call.kernel.outputs]
        return [node for node in dict.fromkeys(stored) if self.body.memory.slots[node].base == ARENA]


def buffers(kernel: Kernel, bodies: Sequence[KernelProgram]) -> dict[str, int]:
    """The scratch memory that a scan needs to run as one kernel, in bytes; none if it does not."""
    scan = row_scan(kernel, bodies)
    return {} if scan is None else {BUFFER: scratch_bytes(scan.temporaries)}


def row_scan(kernel: Kernel, bodies: Sequence[KernelProgram]) -> RowScan | None:
    """How a scan runs as one kernel. None if its rows depend on each other, or if it is no scan."""
    node, body = anchor_of(kernel), bodies[-1]
    if node.op.name != "scan" or node.param("length") < FEWEST_STEPS or body.bodies or body.updates:
        return None
    carried = body.graph.inputs[: node.param("carried")]
    counts = {rows_of(value) for value in carried}
    if len(counts) != 1 or min(counts) < 2:
        return None
    steps = _once_each([call for call in body.calls if not call.once])
    computed = {*carried, *(value for call in steps for value in call.kernel.outputs)}
    found = _Rows(counts.pop(), body, computed)
    if not all(found.holds(call) for call in steps) or found.matrix_bytes > MATRIX_BYTES:
        return None
    longest = max(prod(value.shape) for value in (*body.graph.inputs, *body.graph.outputs))
    if node.param("length") * longest >= LARGE:
        return None
    return RowScan(
        found.count, body, steps, tuple(call for call in body.calls if call.once), found.changed, found.nests
    )


def _once_each(calls: Sequence[Call]) -> tuple[Call, ...]:
    """Calls without further phases of the same kernel: a product is one part of the kernel."""
    kernels: set[Kernel] = set()
    found = []
    for call in calls:
        if call.kind == "copy" or call.kernel not in kernels:
            found.append(call)
        kernels.add(call.kernel)
    return tuple(found)


def copied_result(body: KernelProgram, call: Call) -> Node:
    """The result that a copy at the end of a body hands on."""
    return body.graph.outputs[call.writes[0].base - FRAME_RESERVED - len(body.graph.inputs)]


def rows_of(node: Node) -> int:
    """The length of the first axis that is longer than 1."""
    return next((size for size in node.shape if size != 1), 1)


class _Rows:
    """Whether a row of what kernels compute depends on the same row of what was computed before, alone."""

    def __init__(self, count: int, body: KernelProgram, computed: set[Node]) -> None:
        self.count, self.body, self.computed = count, body, computed
        self.nests: dict[Kernel, ReadyNest] = {}
        self.changed: dict[Kernel, Kernel] = {}
        self.matrix_bytes = 0

    def holds(self, call: Call) -> bool:
        kernel = call.kernel
        if call.kind == "copy":
            node = copied_result(self.body, call)
            return prod(node.shape) % self.count == 0 and (node not in self.computed or rows_of(node) == self.count)
        if call.kind == "loops":
            return self._loops(kernel)
        return call.kind == "plan" and is_contraction(kernel) and self._product(kernel)

    def _loops(self, kernel: Kernel) -> bool:
        assert kernel.nest is not None
        row = next((l for l in kernel.nest.outer if l.size == self.count and self._along(kernel, l)), None)
        nest = None if row is None else row_nest(kernel, row)
        if nest is None:
            return False
        self.nests[kernel] = nest
        return not write_kernel("kernel", nest, _tile(nest, ROWS)).errors

    def _product(self, kernel: Kernel) -> bool:
        anchor = anchor_of(kernel)
        left, right = kernel.views[:2]
        narrow = left.base.inputs[0] if is_widening(left.base) else left.base
        if narrow in self.computed:  # the same numbers in 16 bits
            left = replace(left, base=narrow)
            self.changed[kernel] = replace(kernel, views=(left, *kernel.views[1:]))
        if not is_product(anchor) or anchor.shape[:2] != (1, self.count) or anchor.shape[2] > COLUMNS:
            return False
        if right.base in self.computed or not self._is_of_rows(left, anchor.inputs[0].shape):
            return False
        self.matrix_bytes += nbytes(anchor.inputs[1])
        return kernel.nest is None or self._along(kernel, kernel.rows[1])

    def _is_of_rows(self, view: View, shape: Sequence[int]) -> bool:
        """Whether a view of matrices (1, rows, columns) has the rows of a value of the step as its own."""
        if view.base not in self.computed:
            return True
        length = prod(view.base.shape) // self.count
        last = view.offset + (shape[2] - 1) * view.strides[2]
        return rows_of(view.base) == self.count and view.strides[1] == length and 0 <= min(view.offset, last) <= max(view.offset, last) < length  # fmt: skip

    def _along(self, kernel: Kernel, row: Loop) -> bool:
        """Whether one iteration of the loop writes a row, and reads the same row of what steps compute."""
        assert kernel.nest is not None
        written = [(s.node, s.place) for p in kernel.nest.phases for s in p.stores]
        read = [(s.node, s.place) for b in kernel.bodies for s in b.steps if s.kind == "load" and s.node in self.computed]  # fmt: skip
        return all(self._is_row(node, place, row) for node, place in (*written, *read))

    def _is_row(self, node: Node, place: Sequence[IndexExpr], row: Loop) -> bool:
        axis = next((i for i, size in enumerate(node.shape) if size != 1), None)
        return axis is not None and node.shape[axis] == self.count and place[axis] == IndexExpr(0, ((row, 1),))


def _tile(nest: ReadyNest, height: int) -> LoopTile:
    width = max((prod(l.size for l in phase.loops) for phase in nest.phases), default=1)
    return LoopTile(height, min(next_power_of_two(width), TILE // height), WARPS)


# --- the kernel -----------------------------------------------------------------------------------------------------------------


def write_row_scan(scan: RowScan, flow: ControlFlow[KernelSource]) -> tuple[KernelSource, list[Slot]]:
    """The source of the kernel, and the memory of its arguments in the frame of the program that the scan is part of."""
    return _ScanWriter(scan, flow).written()


def outer_slot(flow: ControlFlow[KernelSource], slot: Slot) -> Slot:
    """The memory of what runs before the steps: an input, or what is kept."""
    if slot.base in (ARENA, KEPT):
        buffer = flow.buffers["arena0" if slot.base == ARENA else "kept0"]
    else:
        buffer = flow.inputs[slot.base - FRAME_RESERVED]
    return Slot(buffer.base, buffer.offset + slot.offset, slot.nbytes)


class _ScanWriter:
    def __init__(self, scan: RowScan, flow: ControlFlow[KernelSource]) -> None:
        self.scan, self.flow, self.graph = scan, flow, scan.body.graph
        self.offsets = scratch_offsets(scan.temporaries)
        self.arguments: dict[object, tuple[str, Node, Slot]] = {}
        self.parts: list[str] = []
        self.shared = 0

    def written(self) -> tuple[KernelSource, list[Slot]]:
        flow = self.flow
        begin = [self._copied(node, self._input(i, 0), self._first(i)) for i, node in enumerate(self._carried)]
        history = flow.outputs[len(flow.results) :] if flow.history else ()
        steps = [
            self._copied(node, self._stacked(("history", i), node, slot), self._input(i))
            for i, (node, slot) in enumerate(zip(self._carried, history, strict=False)) if slot is not None
        ]  # fmt: skip
        steps += [line for call in self.scan.steps for line in (BARRIER, self._step(call))][1:]
        end = [
            self._copied(node, self._argument(("last", i), node, slot), self._input(i, flow.length))
            for i, (node, slot) in enumerate(zip(self._carried, flow.outputs, strict=False)) if slot is not None
        ]  # fmt: skip
        time = f"{flow.length - 1} - step" if flow.reverse else "step"
        lines = ["number = tl.program_id(0)", *begin, f"for step in range(0, {flow.length}):"]
        lines += [f"    {line}" for line in (BARRIER, f"time = {time}", *steps)] + [BARRIER, *end]
        names, nodes, slots = zip(*self.arguments.values(), strict=True)
        main = f"@triton.jit\ndef kernel({', '.join((*names, 'status'))}):\n" + "".join(f"    {l}\n" for l in lines)
        writes = tuple(node for call in self.scan.steps for node in call.kernel.outputs)
        programs = -(-self.scan.rows // self.scan.height)
        text = "\n\n".join([*self.parts, main])
        source = KernelSource("kernel", text, nodes, writes, programs, WARPS, 1, (), shared=self.shared)
        return source, list(slots)

    @property
    def _carried(self) -> Sequence[Node]:
        return self.graph.inputs[: self.flow.carried]

    # --- the parts ----------------------------------------------------------------------------------------------------------

    def _step(self, call: Call) -> str:
        """A line that does a kernel's work for the rows of this program."""
        if call.kind == "copy":
            number = call.writes[0].base - FRAME_RESERVED - len(self.graph.inputs)
            node = copied_result(self.scan.body, call)
            return self._copied(node, self._result(number), self._pointer(node))
        kernel, height = call.kernel, self.scan.height
        if call.kind == "loops":
            nest = self.scan.nests[kernel]
            made = write_kernel("kernel", nest, _tile(nest, height))
        else:
            columns = max(16, next_power_of_two(anchor_of(kernel).shape[2]))
            depth = max(16, min(DEPTH, next_power_of_two(anchor_of(kernel).inputs[0].shape[2])))
            kernel = self.scan.products.get(kernel, kernel)
            made = write_contraction("kernel", kernel, ContractionTile(height, columns, depth, WARPS, 1))
        self.shared = max(self.shared, made.shared)
        return self._call(as_part(made, f"part{len(self.parts)}", 0), [*map(self._pointer, made.arguments), "status"])

    def _copied(self, node: Node, target: str, source: str) -> str:
        """A line that copies the rows of this program."""
        height, length = self.scan.height, prod(node.shape) // self.scan.rows
        width = min(next_power_of_two(length), TILE // height)
        text = (
            f"@triton.jit\ndef part{len(self.parts)}(number, target, source):\n"
            f"    row = number * {height} + tl.arange(0, {height})[:, None]\n"
            f"    for start in range(0, {length}, {width}):\n"
            f"        place = start + tl.arange(0, {width})[None, :]\n"
            f"        inside = (row < {self.scan.rows}) & (place < {length})\n"
            f"        value = tl.load(source + (row * {length} + place), mask=inside)\n"
            f"        tl.store(target + (row * {length} + place), value, mask=inside)\n"
        )
        return self._call(text, [target, source])

    def _call(self, text: str, given: Sequence[str]) -> str:
        self.parts.append(text)
        return f"part{len(self.parts) - 1}(number, {', '.join(given)})"

    # --- memory -------------------------------------------------------------------------------------------------------------

    def _pointer(self, node: Node) -> str:
        """Where a value of the current step is."""
        slot = self.scan.body.memory.slots[node]
        first_result = FRAME_RESERVED + len(self.graph.inputs)
        if node in self.offsets:
            buffer = self.flow.buffers[BUFFER]
            return self._argument(node, node, Slot(buffer.base, buffer.offset + self.offsets[node], nbytes(node)))
        if slot.base >= first_result:
            return self._result(slot.base - first_result)
        if slot.base >= FRAME_RESERVED:
            return self._input(slot.base - FRAME_RESERVED)
        return self._argument(node, node, outer_slot(self.flow, slot))

    def _input(self, number: int, step: str | int = "step") -> str:
        node, flow = self.graph.inputs[number], self.flow
        if number < flow.carried:
            return self._state(number, step)
        if number < flow.carried + flow.sequences:
            return self._stacked(("input", number), node, flow.inputs[number])
        return self._argument(("input", number), node, flow.inputs[number])

    def _result(self, number: int) -> str:
        """Where a result of a step goes: the state of the next one, or an element of what the steps make."""
        node, slot = self.graph.outputs[number], self.flow.outputs[number]
        if number < self.flow.carried:
            return self._state(number, "(step + 1)")
        if slot is None:
            return self._argument(("output", number), node, self.flow.buffers[f"unread{number}"])
        return self._stacked(("output", number), node, slot)

    def _state(self, number: int, step: str | int) -> str:
        """A carried value before a step: steps alternate between two buffers."""
        node, even, odd = self.graph.inputs[number], *(self.flow.buffers[f"{side}{number}"] for side in ("even", "odd"))
        assert (odd.offset - even.offset) % node.dtype.itemsize == 0
        apart = (odd.offset - even.offset) // node.dtype.itemsize
        offset = step % 2 * apart if isinstance(step, int) else f"{step} % 2 * {apart}"
        return f"{self._argument(('state', number), node, even)} + {offset}"

    def _first(self, number: int) -> str:
        return self._argument(("input", number), self.graph.inputs[number], self.flow.inputs[number])

    def _stacked(self, key: object, node: Node, slot: Slot) -> str:
        return f"{self._argument(key, node, slot)} + time * {prod(node.shape)}"

    def _argument(self, key: object, node: Node, slot: Slot) -> str:
        return self.arguments.setdefault(key, (f"p{len(self.arguments)}", node, slot))[0]


BARRIER = "tl.debug_barrier()"
