"""The source of a scan that runs as one kernel: see row_scans.py.

Before the steps: matrices, initial states and what the first step reads are loaded.
At each step: what the next step reads is loaded first, then the kernels of the step run, tile by tile.
After the steps: final states are stored.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from ...graph.node import Node
from ..ir.index import IndexExpr, Loop
from ..ir.nest import ReadyNest, ReadyPhase, ReadyStore
from ..ir.program import FRAME_RESERVED, Call
from ..ir.storage import ARENA, KEPT, Slot
from . import scalars as scalar
from .commands import ControlFlow
from .kernels import LoopTile, LoopWriter, ReductionWriter
from .row_scans import COLUMNS, Piece, RowProduct, RowScan, RowStep, copied_result
from .source import KernelSource
from .values import PhaseValues

TIME, NEXT = "time", "next_time"  # in the source: the places of this step and of the next one in sequences


def write_row_scan(scan: RowScan, flow: ControlFlow[KernelSource]) -> tuple[KernelSource, list[Slot]]:
    """The source of the kernel, and the memory of its arguments in the frame of the program that the scan is part of."""
    return _ScanWriter(scan, flow).source_and_slots()


def outer_slot(flow: ControlFlow[KernelSource], slot: Slot) -> Slot:
    """The memory of what runs before the steps: an input, or what is kept."""
    if slot.base in (ARENA, KEPT):
        buffer = flow.buffers["arena0" if slot.base == ARENA else "kept0"]
    else:
        buffer = flow.inputs[slot.base - FRAME_RESERVED]
    return Slot(buffer.base, buffer.offset + slot.offset, slot.nbytes)


class _TileValues(PhaseValues):
    """The values of a phase, which reads tiles where the step has computed them."""

    writer: _ScanWriter

    def _load(self, node: Node, position: IndexExpr) -> str:
        if node in self.writer.scan.pieces:
            return self.writer.tiles[node, position.offset]
        value = super()._load(node, position)
        known = all(isinstance(term, Loop) for term, _ in position.parts)  # before the phase computes anything
        return self.writer.loaded(value) if known else value


class _ScanWriter(LoopWriter):
    def __init__(self, scan: RowScan, flow: ControlFlow[KernelSource]) -> None:
        super().__init__("kernel", ReadyNest((scan.row,), [], None), LoopTile(scan.tile_rows, 1, scan.warps))
        self.scan, self.flow, self.graph, self.flat = scan, flow, scan.body.graph, False
        self.arguments: dict[object, tuple[str, Node, Slot]] = {}
        self.tiles: dict[tuple[Node, int], str] = {}  # by value and first column
        self.places: dict[str, None] = {}  # lines that define columns
        self.before: dict[str, str] = {}  # names by expression
        self.loads: dict[str, str] = {}  # of a step: names by expression
        self.at[scan.row], self.masks[scan.row] = "row", "inside_rows"
        self.depth = 2

    def source_and_slots(self) -> tuple[KernelSource, list[Slot]]:
        self._start()
        for step in self.scan.steps:
            self._step(step)
        self._advance()
        for name in self.loads.values():
            self.line(f"{name} = {name}_next")
        steps, self.lines, self.depth = self.lines, [], 1
        self._finish()
        text = "\n".join([*self._opening(), *steps, *self.lines])
        names, nodes, slots = zip(*self.arguments.values(), strict=True)
        source = KernelSource(
            "kernel", f"@triton.jit\ndef kernel({', '.join((*names, 'status'))}):\n{text}\n", nodes,
            tuple(dict.fromkeys(self.written)), self.scan.programs, self.scan.warps, 1, (), shared=self.scan.matrix_bytes,
        )  # fmt: skip
        return source, list(slots)

    def _opening(self) -> list[str]:
        """The lines until the first kernel of a step."""
        last = self.flow.length - 1
        count = self.scan.tile_rows
        rows = [
            f"row = tl.program_id(0) * {count} + tl.arange(0, {count})[:, None]",
            f"inside_rows = row < {self.scan.rows}",
        ]
        first = str(last if self.flow.reverse else 0)
        before = [f"{name} = {expression}" for expression, name in self.before.items()]
        before += [f"{name} = {read.replace(TIME, first)}" for read, name in self.loads.items()]
        following = f"tl.minimum(step + 1, {last})"
        times = [f"{last} - step", f"{last} - {following}"] if self.flow.reverse else ["step", following]
        step = [f"{TIME} = {times[0]}", f"{NEXT} = {times[1]}"]
        step += [f"{name}_next = {read.replace(TIME, NEXT)}" for read, name in self.loads.items()]
        lines = [*rows, *self.places, *before, f"for step in range(0, {last + 1}):", *(f"    {line}" for line in step)]
        return [f"    {line}" for line in lines]

    # --- states -------------------------------------------------------------------------------------------------------------

    @property
    def _states(self) -> list[tuple[int, Node, Piece]]:
        carried = self.graph.inputs[: self.flow.carried]
        return [(number, node, piece) for number, node in enumerate(carried) for piece in self.scan.pieces[node]]

    def _start(self) -> None:
        """Initial states; every step keeps those that it begins with, if they are wanted."""
        flow = self.flow
        history = flow.outputs[len(flow.results) :] if flow.history else ()
        for number, node, piece in self._states:
            name = self.tiles[node, piece.begin] = f"state{number}_{piece.begin}"
            self.before[self._read(self._argument(("first", number), node, flow.inputs[number]), node, piece)] = name
            if number < len(history) and (slot := history[number]) is not None:
                self._write(self._stacked(("history", number), node, slot), node, piece, name)

    def _advance(self) -> None:
        """The states of the next step. They may be those of each other, so that all are known before any is replaced."""
        found = []
        for number, given, piece in self._states:
            value, whole = (
                self._tile(self.graph.outputs[number], piece),
                f"tl.full(({self.scan.tile_rows}, {piece.width}), True, tl.int1)",
            )
            found.append((self.tiles[given, piece.begin], self.let("next", f"tl.where({whole}, {value}, {value})")))
        for name, value in found:
            self.line(f"{name} = {value}")

    def _finish(self) -> None:
        for number, node, piece in self._states:
            slot = self.flow.outputs[number]
            if slot is not None:
                self._write(self._argument(("last", number), node, slot), node, piece, self.tiles[node, piece.begin])

    # --- kernels ------------------------------------------------------------------------------------------------------------

    def _step(self, step: RowStep) -> None:
        """What a kernel does for the rows of this program."""
        if step.call.kind == "copy":
            self._copied(step.call)
            return
        self.rows = {}
        if step.product is not None:
            self._product(step.product)
        for begin, phase in step.phases:
            if step.product is not None:
                self.rows[step.product.anchor] = self.tiles[step.product.anchor, begin]
            self._run(phase)

    def _copied(self, call: Call) -> None:
        """A result of the body that is an input, or the same as another result."""
        node, number = copied_result(self.scan.body, call), self._number(call.writes[0])
        slot = self.flow.outputs[number]
        if number >= self.flow.carried and slot is not None:
            target = self._stacked(("output", number), self.graph.outputs[number], slot)
            for piece in self.scan.pieces.get(node) or _pieces(prod(node.shape) // self.scan.rows):
                self._write(target, node, piece, self._tile(node, piece))

    def _run(self, phase: ReadyPhase) -> None:
        self.about(phase)
        self.inside = "inside_rows"
        piece = Piece(0, phase.loops[0].size if phase.loops else 1)
        if phase.loops:
            self.at[phase.loops[0]], self.masks[phase.loops[0]] = self._columns(piece.count)
            self.inside = f"inside_rows & {self.masks[phase.loops[0]]}"
        self.tile = LoopTile(self.scan.tile_rows, piece.width, self.scan.warps)
        totals = [ReductionWriter(self, reduction, piece.width) for reduction in phase.reductions]
        values = _TileValues(self, phase)
        for total in totals:
            total.add(values)
            self.rows[total.reduced.node] = total.end()
        for stored in phase.stores:
            self._keep(stored, values)

    def _keep(self, stored: ReadyStore, values: PhaseValues) -> None:
        """A value in registers, rounded as if loaded from memory; results of the scan are stored too."""
        node, value = stored.node, values.names[stored.step]
        held = scalar.from_storage(scalar.to_storage(value, node.dtype), node.dtype)
        self.tiles[node, stored.position.offset] = self.let("tile", held)
        if self._is_result(node):
            values.store(node, stored.position, value)

    def _product(self, product: RowProduct) -> None:
        """All tiles of a product: sums of the products of tiles."""
        anchor = product.anchor
        for columns in self.scan.pieces[anchor]:
            total = ""
            for terms in self.scan.left_pieces(product):
                factors = f"{self._left(product, terms)}, {self._matrix(product, terms, columns)}"
                total = self.let("total", f"tl.dot({factors}, {f'{total}, ' if total else ''}out_dtype=tl.float32)")
            held = scalar.from_storage(scalar.to_storage(total, anchor.dtype), anchor.dtype)
            name = self.tiles[anchor, columns.begin] = self.let("tile", held)
            if product.kernel.nest is None and self._is_result(anchor):
                self._write(self.pointer(anchor), anchor, columns, name)

    def _left(self, product: RowProduct, terms: Piece) -> str:
        view, dtype = product.left, f"tl.{product.dtype.name}"
        place, inside = self._columns(terms.count)
        tile = self.tiles.get((view.base, view.offset + terms.begin))
        if tile is None:
            where = (
                f"{self.pointer(view.base)} + ({view.offset} + row * {view.strides[1]} + {place} * {view.strides[2]})"
            )
            tile = self.loaded(f"tl.load({where}, mask=inside_rows & {inside}, other=0)")
        elif terms.count < terms.width:
            tile = self.let("left", f"tl.where({inside}, {tile}, 0.0)")
        return f"{tile}.to({dtype})"

    def _matrix(self, product: RowProduct, terms: Piece, columns: Piece) -> str:
        """A part of a matrix, which is read before the steps."""
        view = product.kernel.views[1]
        down, across = f"tl.arange(0, {terms.width})[:, None]", f"tl.arange(0, {columns.width})[None, :]"
        first = view.offset + terms.begin * view.strides[1] + columns.begin * view.strides[2]
        where = f"{self.pointer(view.base)} + ({first} + {down} * {view.strides[1]} + {across} * {view.strides[2]})"
        inside = f"({down} < {terms.count}) & ({across} < {columns.count})"
        return self.before.setdefault(f"tl.load({where}, mask={inside}, other=0)", f"matrix{len(self.before)}")

    # --- tiles and memory ---------------------------------------------------------------------------------------------------

    def loaded(self, expression: str) -> str:
        """The name of what is read from memory: before the steps if it is the same for all, else a step ahead."""
        if TIME not in expression:
            return self.before.setdefault(expression, f"constant{len(self.before)}")
        return self.loads.setdefault(expression, f"in{len(self.loads)}")

    def _tile(self, node: Node, piece: Piece) -> str:
        """Columns of a value, or of an input."""
        return self.tiles.get((node, piece.begin)) or self.loaded(self._read(self.pointer(node), node, piece))

    def _columns(self, count: int) -> tuple[str, str]:
        """The names of so many columns, and of the condition that they exist."""
        self.places[f"place{count} = tl.arange(0, {Piece(0, count).width})[None, :]"] = None
        self.places[f"inside{count} = place{count} < {count}"] = None
        return f"place{count}", f"inside{count}"

    def _where(self, node: Node, piece: Piece) -> tuple[str, str]:
        """The positions of columns in memory, and the condition that they exist."""
        row = f"row * {prod(node.shape) // self.scan.rows} + {piece.begin}"
        if piece.count == 1:
            return row, "inside_rows"
        place, inside = self._columns(piece.count)
        return f"{row} + {place}", f"inside_rows & {inside}"

    def _read(self, pointer: str, node: Node, piece: Piece) -> str:
        where, inside = self._where(node, piece)
        return scalar.from_storage(f"tl.load({pointer} + ({where}), mask={inside}, other=0)", node.dtype)

    def _write(self, pointer: str, node: Node, piece: Piece, value: str) -> None:
        where, inside = self._where(node, piece)
        self.written.append(node)
        self.line(f"tl.store({pointer} + ({where}), {scalar.to_storage(value, node.dtype)}, mask={inside})")

    def _number(self, slot: Slot) -> int:
        """The number of a result of the body; below 0 if it is none."""
        return slot.base - FRAME_RESERVED - len(self.graph.inputs)

    def _is_result(self, node: Node) -> bool:
        """Whether a value is a result of every step that something reads. States are not: they stay in registers."""
        number = self._number(self.scan.body.memory.slots[node])
        return number >= self.flow.carried and self.flow.outputs[number] is not None

    def pointer(self, node: Node) -> str:
        """Where an input or a result of a step is."""
        slot, flow = self.scan.body.memory.slots[node], self.flow
        number, given = self._number(slot), slot.base - FRAME_RESERVED
        if number >= 0:
            target = flow.outputs[number]
            assert target is not None
            return self._stacked(("output", number), node, target)
        if flow.carried <= given < flow.carried + flow.sequences:
            return self._stacked(("input", given), node, flow.inputs[given])
        return self._argument(node, node, outer_slot(flow, slot))

    def _stacked(self, key: object, node: Node, slot: Slot) -> str:
        return f"{self._argument(key, node, slot)} + {TIME} * {prod(node.shape)}"

    def _argument(self, key: object, node: Node, slot: Slot) -> str:
        return self.arguments.setdefault(key, (f"p{len(self.arguments)}", node, slot))[0]


def _pieces(columns: int) -> Sequence[Piece]:
    return [Piece(begin, min(begin + COLUMNS, columns)) for begin in range(0, columns, COLUMNS)]
