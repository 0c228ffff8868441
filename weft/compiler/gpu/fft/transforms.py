"""The transforms of convolutions by FFT: from windows to spectra, and back with the epilogue.

With at most 64 points, a transform is a product with the matrix of its cosines and sines, on tensor cores. A program transforms one window of
a few channels along both axes; what lies between the two stays in the program. Matrices of the axis that is transformed have the rest of the
window as columns: (x, y * channels), (y, frequency * channels). Frequencies along x are taken in blocks of 16.
"""

from __future__ import annotations

from ...ir.index import Loop
from ...ir.kernel import Kernel, View, anchor_shape
from ..contraction import finish
from ..kernel_utils import ceil_div, next_power_of_two
from ..source import KernelSource
from .problem import LEAST_SIDE, FftAxis, FftProblem, WindowedTensor
from .writer import FftWriter, dot

BLOCK = LEAST_SIDE  # frequencies along x; pixels along y, on the way back
LINES = 256  # points along y times channels of a program: more would not fit into its registers


def write_spectra(name: str, problem: FftProblem, number: int) -> KernelSource:
    """The spectra of the first or second operand."""
    return _ForwardTransform(name, problem, problem.every[number]).source(problem.views[number])


def write_result(name: str, problem: FftProblem, kernel: Kernel) -> KernelSource:
    """The tiles of the result, with the epilogue."""
    return _InverseTransform(name, problem, problem.result).source(kernel)


class _Transform(FftWriter):
    def __init__(self, name: str, problem: FftProblem, windows: WindowedTensor) -> None:
        super().__init__(name, problem)
        self.windows = windows
        self.ny, self.nx = problem.window
        self.in_two = self.ny > 1
        self.high = _padded(self.ny) if self.in_two else 1
        least = 1 if self.in_two else LEAST_SIDE
        self.channels = max(least, min(LINES // max(self.high, LEAST_SIDE), next_power_of_two(windows.channels)))
        self.blocks = ceil_div(problem.columns, BLOCK)

    def _begin(self, parts: int) -> int:
        """The window and the channels of a program, and which of several parts of them; the number of programs."""
        w, across = self.windows, ceil_div(self.windows.channels, self.channels)
        self.line("program = tl.program_id(0)")
        self.line(f"part = program % {parts}")
        self.line(f"first_channel = program // {parts} % {across} * {self.channels}")
        self.line(f"window = program // {parts * across}")
        self.line(f"image = window // {w.y.windows * w.x.windows}")
        self.line(f"first_y = window // {w.x.windows} % {w.y.windows} * {w.y.step} + {w.y.first}")
        self.line(f"first_x = window % {w.x.windows} * {w.x.step} + {w.x.first}")
        return w.count * across * parts

    def _places(self, block: str) -> tuple[str, str]:
        """The places of a block of spectra, (y, frequency * channels), and which of them exist."""
        p, w = self.problem, self.windows
        self.line(f"place = tl.arange(0, {BLOCK * self.channels})[None, :]")
        self.line(
            f"frequency, channel = {block} * {BLOCK} + place // {self.channels}, first_channel + place % {self.channels}"
        )
        inside = f"(line < {self.ny}) & (frequency < {p.columns}) & (channel < {w.channels})"
        where = f"((line * {p.columns} + frequency) * {w.count} + window) * {w.channels} + channel"
        return self.let("where", where), self.let("inside", inside)

    def _matrix(self, axis: str, a: str, b: str) -> None:
        """The matrix of the transform along an axis."""
        size = self.ny if axis == "y" else self.nx
        self.line(f"cosine_{axis}, sine_{axis} = cosine_and_sine({a} * {b} % {size}, {size})")

    def _along_y(self, forward: bool) -> tuple[str, str]:
        """The product with cosine - i sine, or + on the way back. Sums are negated, since one more matrix would need more registers."""
        signs = ("", "-") if forward else ("-", "")
        real, imaginary = (
            f"{sign}{dot('cosine_y', part)}" for sign, part in zip(signs, ("real", "imaginary"), strict=True)
        )
        return f"{signs[0]}{dot('sine_y', 'imaginary', real)}", f"{signs[1]}{dot('sine_y', 'real', imaginary)}"

    def _swap(self, rows: int, columns: int) -> None:
        """From (rows, columns * channels) to (columns, rows * channels)."""
        for name in ("real", "imaginary"):
            block = f"tl.permute(tl.reshape({name}, ({rows}, {columns}, {self.channels})), (1, 0, 2))"
            self.line(f"{name} = tl.reshape({block}, ({columns}, {rows * self.channels}))")

    def _finished(self, programs: int) -> KernelSource:
        block = self.high * BLOCK * self.channels
        return self.finished(programs, 8 if block >= BLOCK * LINES else 4, shared=5 * 4 * block)


class _ForwardTransform(_Transform):
    def source(self, view: View) -> KernelSource:
        w = self.windows
        self.line(f"# spectra of {w.count} windows of {self.ny} x {self.nx} pixels, {w.channels} channels")
        programs = self._begin(self.blocks)
        lines = _padded(w.y.count) if self.in_two else 1
        self._along_x(view, lines)
        self._swap(BLOCK, lines)
        values = ("real", "imaginary")
        if self.in_two:
            self.line(f"for strip in range({ceil_div(self.ny, BLOCK)}):")
            self.depth += 1
            self.line(f"line = strip * {BLOCK} + tl.arange(0, {BLOCK})[:, None]")
            self._matrix("y", "line", f"(tl.arange(0, {lines}) * {w.y.spacing})[None, :]")
            values = self._along_y(forward=True)
        else:
            self.line("line = tl.arange(0, 1)[:, None]")
        where, inside = self._places("part")
        for pointer, value in zip(self.memory(w).values(), values, strict=True):
            self.line(f"tl.store({pointer} + {where}, {value}, mask={inside})")
        self.depth = 1
        self.written.append(self.problem.spectra(w))
        return self._finished(programs)

    def _along_x(self, view: View, lines: int) -> None:
        """A block of frequencies of every line."""
        w = self.windows
        self.line(f"y = tl.arange(0, {lines * self.channels}) // {self.channels}")
        self.line(f"c = first_channel + tl.arange(0, {lines * self.channels}) % {self.channels}")
        self.line(f"inside_lines = {_inside('y', w.y)} & (c < {w.channels})")
        channel = f"c // {w.group} * {w.group_stride} + c % {w.group} * {w.channel_stride}"
        self.line(f"lines = {w.offset} + image * {w.image_stride} + (first_y + y) * {w.y.stride} + {channel}")
        for name in ("real", "imaginary"):
            self.line(f"{name} = tl.zeros(({BLOCK}, {lines * self.channels}), tl.float32)")
        self.line(f"for strip in range({ceil_div(w.x.count, LEAST_SIDE)}):")
        self.depth += 1
        self.line(f"x = strip * {LEAST_SIDE} + tl.arange(0, {LEAST_SIDE})")
        self._matrix("x", f"(part * {BLOCK} + tl.arange(0, {BLOCK}))[:, None]", f"(x * {w.x.spacing})[None, :]")
        mask = f"({_inside('x', w.x)})[:, None] & inside_lines[None, :]"
        where = f"((first_x + x) * {w.x.stride})[:, None] + lines[None, :]"
        self.line(f"pixels = tl.load({self.pointer(view.base)} + {where}, mask={mask}, other=0).to(tl.float32)")
        self.line(f"real, imaginary = {dot('cosine_x', 'pixels', 'real')}, {dot('sine_x', 'pixels', 'imaginary')}")
        self.depth -= 1
        self.line("imaginary = -imaginary")


class _InverseTransform(_Transform):
    def source(self, kernel: Kernel) -> KernelSource:
        w, loops = self.windows, kernel.rows or tuple(Loop(n) for n in anchor_shape(self.problem.anchor))
        high, wide = BLOCK if self.in_two else 1, _padded(w.x.count)
        self.line(
            f"# {self.problem.anchor.op.name}: {w.count} tiles of {w.y.count} x {w.x.count}, {w.channels} channels"
        )
        programs = self._begin(ceil_div(w.y.count, high))
        self.line(f"total = tl.zeros(({wide}, {high * self.channels}), tl.float32)")
        self.line(f"for block in range({self.blocks}):")
        self.depth += 1
        self._add_block(high, wide)
        self.depth -= 1
        self.line(f"total = tl.reshape(total * {1 / (self.ny * self.nx)}, ({wide * high}, {self.channels}))")
        self.line(f"pixel = tl.arange(0, {wide * high})[:, None]")
        self.line(f"x, y = pixel // {high}, part * {high} + pixel % {high}")
        self.line(f"row = image * {w.image_stride} + (first_y + y) * {w.y.stride} + (first_x + x) * {w.x.stride}")
        self.line(f"filter = first_channel + tl.arange(0, {self.channels})[None, :]")
        self.line(f"inside_rows = {_inside('y', w.y)} & {_inside('x', w.x)}")
        self.line(f"inside_columns = filter < {w.channels}")
        self.inside, self.zero = "inside_rows & inside_columns", "0 * (row + filter)"
        self.at |= dict(zip(loops, ("0", "row", "filter"), strict=True))
        self.masks |= {loops[1]: "inside_rows", loops[2]: "inside_columns"}
        finish(self, kernel, loops, "total")
        return self._finished(programs)

    def _add_block(self, high: int, wide: int) -> None:
        """The contribution of a block of frequencies along x to all pixels."""
        w = self.windows
        self.line(f"line = tl.arange(0, {self.high})[:, None]")
        where, inside = self._places("block")
        for part, pointer in self.memory(w).items():
            self.line(f"{part} = tl.load({pointer} + {where}, mask={inside}, other=0)")
        if self.in_two:
            y = f"((part * {high} + tl.arange(0, {high})) * {w.y.spacing})[:, None]"
            self._matrix("y", y, f"tl.arange(0, {self.high})[None, :]")
            self.line("real, imaginary = {}, {}".format(*self._along_y(forward=False)))
        self._swap(high, BLOCK)
        self.line(f"column = block * {BLOCK} + tl.arange(0, {BLOCK})[None, :]")
        self._matrix("x", f"(tl.arange(0, {wide}) * {w.x.spacing})[:, None]", "column")
        self.line(f"times = tl.where((column == 0) | (column == {self.nx // 2}), 1.0, 2.0)  # with its conjugate")
        self.line(f"total = {dot('-sine_x * times', 'imaginary', dot('cosine_x * times', 'real', 'total'))}")


def _inside(name: str, axis: FftAxis) -> str:
    """Which elements of a window exist."""
    place = f"(first_{name} + {name})"
    return f"({name} < {axis.count}) & ({place} >= 0) & ({place} < {axis.size})"


def _padded(size: int) -> int:
    """The side of a block."""
    return max(LEAST_SIDE, next_power_of_two(size))
