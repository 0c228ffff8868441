"""Two-dimensional transforms of real images: private functions of a module, a vector of channels at a time.

A window of NY x NX real pixels has NY * NX / 2 + 2 points that are not conjugates of others (kx = 0 and kx = NX / 2 are spectra of real
columns, of which half is enough). They are numbered column by column: those of kx = 0, of kx = NX / 2, then whole columns.

Between the rows and the columns lies a buffer of complex vectors: (kx, y) on the way to the spectrum, (y, kx) on the way back, so that
the second pass reads memory in order.
"""

from __future__ import annotations

from collections.abc import Callable

from llvmlite import ir

from ...ir.fft_tiling import FftWindow
from ..ir_builder import F32, F64, I64, PTR, Code, Int, Value, constant, vector
from ..target import CpuTarget
from .transforms import Complex, complex_transform, real_inverse, real_transform

APART = 16  # elements between the matrices of two points: powers of 2 would cause conflict misses
ELEMENTS: dict[str, ir.Type] = {"f32": F32, "f64": F64}
BITS = {"f32": 32, "f64": 64}


def scratch_elements(window: FftWindow, lanes: int) -> int:
    """The scratch memory of a transform: the buffer between rows and columns, and one line of pixels."""
    return (2 * window.columns * window.y + window.x) * lanes


class SpectraEmitter:
    """Emits the transforms of one window. A complex vector is a vector of real parts, then one of imaginary parts."""

    def __init__(self, module: ir.Module, window: FftWindow, kind: str, target: CpuTarget) -> None:
        self.module, self.window, self.element = module, window, ELEMENTS[kind]
        self.lanes = target.lanes(BITS[kind])
        self.kind = vector(self.element, self.lanes)
        self.pair = 2 * self.lanes

    def line_of(self, code: Code, scratch: Value) -> Value:
        """The line of pixels in the scratch memory."""
        return code.at(scratch, self.window.columns * self.window.y * self.pair, self.element)

    # --- from pixels to points ----------------------------------------------------------------------------------------------

    def row_to_buffer(self, code: Code, pixels: Value, stride: Value, scratch: Value, y: Value) -> None:
        """Transform a row of pixels, `stride` elements apart."""
        function = self._function("row", [PTR, I64, PTR], self._write_row)
        code.call(function, [pixels, stride, code.at(scratch, code.times(y, self.pair), self.element)])

    def _write_row(self, code: Code) -> None:
        pixels, stride, buffer = code.arguments
        values = [code.read(pixels, code.times(stride, i), self.kind) for i in range(self.window.x)]
        for k, (real, imaginary) in enumerate(real_transform(code, values)):
            code.write(real, buffer, k * self.window.y * self.pair)
            if k not in self.window.real_columns:
                code.write(imaginary, buffer, k * self.window.y * self.pair + self.lanes)

    def clear_row(self, code: Code, scratch: Value, y: Value) -> None:
        """The transform of a row of zeros."""
        zero, row = constant(self.kind, 0.0), code.at(scratch, code.times(y, self.pair), self.element)
        with code.loop(0, self.window.columns) as k:
            here = code.times(k, self.window.y * self.pair)
            code.write(zero, row, here)
            code.write(zero, row, code.plus(here, self.lanes))

    def buffer_to_points(self, code: Code, scratch: Value, points: Value, apart: Value, row: Value) -> None:
        """Transform the columns. Points lie `apart` elements from each other.

        The next `row` of each point is prefetched: points lie far apart, and a store that misses the caches waits for the one before it.
        """
        real = self._function("real_column", [PTR, PTR, I64, I64], self._write_real_column)
        column = self._function("column", [PTR, PTR, I64, I64], self._write_column)
        self._columns(code, points, apart, lambda k: code.at(scratch, code.times(k, self.window.y * self.pair), self.element),
                      lambda real_one, buffer, home: code.call(real if real_one else column, [buffer, home, apart, row]))  # fmt: skip

    def _write_real_column(self, code: Code) -> None:
        buffer, points, apart, row = code.arguments
        values = [code.read(buffer, i * self.pair, self.kind) for i in range(self.window.y)]
        self._write_points(code, real_transform(code, values), points, apart, row)

    def _write_column(self, code: Code) -> None:
        buffer, points, apart, row = code.arguments
        values = [self._read_pair(code, buffer, i * self.pair) for i in range(self.window.y)]
        self._write_points(code, complex_transform(code, values, -1), points, apart, row)

    def _write_points(self, code: Code, values: list[Complex], points: Value, apart: Value, row: Value) -> None:
        for k, value in enumerate(values):
            for part in (0, 1):
                place = code.plus(code.times(apart, k), part * self.lanes)
                code.write(value[part], points, place)
                code.prefetch(points, code.plus(place, row), self.element, write=True)

    # --- from points to pixels ----------------------------------------------------------------------------------------------

    def points_to_buffer(self, code: Code, points: Value, apart: Value, scratch: Value) -> None:
        """The inverse transforms of the columns, without the factor 1 / pixels."""
        real = self._function("real_column_back", [PTR, I64, PTR], self._write_real_column_back)
        column = self._function("column_back", [PTR, I64, PTR], self._write_column_back)
        self._columns(code, points, apart, lambda k: code.at(scratch, code.times(k, self.pair), self.element),
                      lambda real_one, buffer, home: code.call(real if real_one else column, [home, apart, buffer]))  # fmt: skip

    def _write_real_column_back(self, code: Code) -> None:
        points, apart, buffer = code.arguments
        values = self._read_points(code, points, apart, self.window.half)
        for y, value in enumerate(real_inverse(code, values, self.window.y)):
            code.write(value, buffer, y * self.window.columns * self.pair)

    def _write_column_back(self, code: Code) -> None:
        points, apart, buffer = code.arguments
        values = self._read_points(code, points, apart, self.window.y)
        for y, (real, other) in enumerate(complex_transform(code, values, 1)):
            code.write(real, buffer, y * self.window.columns * self.pair)
            code.write(other, buffer, y * self.window.columns * self.pair + self.lanes)

    def _read_points(self, code: Code, points: Value, apart: Value, count: int) -> list[Complex]:
        return [self._read_pair(code, points, code.times(apart, k)) for k in range(count)]

    def buffer_to_row(self, code: Code, scratch: Value, y: Value, line: Value) -> None:
        """The inverse transform of a row, to contiguous vectors."""
        function = self._function("row_back", [PTR, PTR], self._write_row_back)
        code.call(function, [code.at(scratch, code.times(y, self.window.columns * self.pair), self.element), line])

    def _write_row_back(self, code: Code) -> None:
        buffer, line = code.arguments
        values = []
        for k in range(self.window.columns):
            real = code.read(buffer, k * self.pair, self.kind)
            known = k in self.window.real_columns
            values.append((real, real if known else code.read(buffer, k * self.pair + self.lanes, self.kind)))
        for i, value in enumerate(real_inverse(code, values, self.window.x)):
            code.write(value, line, i * self.lanes)

    # --- both -----------------------------------------------------------------------------------------------------------------

    def _columns(
        self,
        code: Code,
        points: Value,
        apart: Value,
        buffer: Callable[[Int], Value],
        call: Callable[[bool, Value, Value], object],
    ) -> None:
        """Call a function for every column of the spectrum."""
        window = self.window
        for i, k in enumerate(window.real_columns):
            call(True, buffer(k), code.at(points, code.times(apart, i * window.half), self.element))
        before = len(window.real_columns) * window.half - window.y  # of column 1, less a column
        with code.loop(1, window.columns - 1) as k:
            place = code.mul(apart, code.plus(code.times(k, window.y), before))
            call(False, buffer(k), code.at(points, place, self.element))

    def _read_pair(self, code: Code, pointer: Value, at: Int) -> Complex:
        return code.read(pointer, at, self.kind), code.read(pointer, code.plus(at, self.lanes), self.kind)

    def _function(self, name: str, arguments: list[ir.Type], write: Callable[[Code], None]) -> ir.Function:
        """A private function of the module, written on first use. Not inlined: each is called in a loop."""
        full = f"fft.{name}"
        if full not in self.module.globals:
            code = Code.begin(self.module, full, arguments, private=True)
            code.function.attributes.add("noinline")
            write(code)
            code.done()
        return self.module.globals[full]
