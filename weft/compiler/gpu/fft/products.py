"""Products of spectra: for every point and group a matrix product of complex numbers, as four products of real ones."""

from __future__ import annotations

from ..kernel_utils import ceil_div, next_power_of_two
from ..source import KernelSource
from .problem import LEAST_SIDE, SIDE, FftProblem, WindowedTensor
from .writer import FftWriter, dot

DEPTH = LEAST_SIDE  # terms of a strip of the factors: more would not fit into registers


def write_product(name: str, problem: FftProblem, tf32: bool) -> KernelSource:
    """Spectra of the first operand times conjugate ones of the second. `tf32`: factors are rounded to TF32."""
    return _FrequencyProduct(name, problem, "tf32" if tf32 else "tf32x3").source()


class _FrequencyProduct(FftWriter):
    def __init__(self, name: str, problem: FftProblem, precision: str) -> None:
        super().__init__(name, problem)
        self.precision = precision
        self.high, self.wide = (max(LEAST_SIDE, min(SIDE, next_power_of_two(n))) for n in (problem.rows, problem.width))

    def source(self) -> KernelSource:
        p = self.problem
        programs = self._begin()
        for part in ("real", "imaginary"):
            self.line(f"{part} = tl.zeros(({self.high}, {self.wide}), tl.float32)")
        self.line(f"for strip in range({ceil_div(p.depth, DEPTH)}):")
        self.depth += 1
        self.line(f"terms = strip * {DEPTH} + tl.arange(0, {DEPTH})")
        self.line("along, down = terms[None, :], terms[:, None]")
        inside = f"(along < {p.depth}) & inside_rows"
        if p.of_filter:
            self._load("first", p.first, "along", f"group * {p.rows} + row", inside)
        else:
            self._load("first", p.first, "row", f"group * {p.depth} + along", inside)
        self._load("second", p.second, "down", "column", f"(down < {p.depth}) & inside_columns")
        self.line(f"real = {self._dots('first_real', 'first_imaginary', 'real')}")
        self.line(f"imaginary = {self._dots('first_imaginary', '-first_real', 'imaginary')}")
        self.depth -= 1
        for part, pointer in self.memory(p.result).items():
            where = f"(point * {p.rows} + row) * {p.result.channels} + column"
            self.line(f"tl.store({pointer} + {where}, {part}, mask=inside_rows & inside_columns)")
        self.written.append(p.spectra(p.result))
        stages = 3
        return self.finished(programs, 4, stages, stages * 2 * 4 * DEPTH * (self.high + self.wide))

    def _begin(self) -> int:
        """The tile of a program, and the number of programs."""
        p = self.problem
        down, across, groups = ceil_div(p.rows, self.high), ceil_div(p.width, self.wide), p.shape.groups
        self.line(f"# {p.points} products of spectra: {groups} x {p.rows} x {p.width}, each a sum of {p.depth}")
        self.line("program = tl.program_id(0)")
        self.line(f"local = program % {across} * {self.wide} + tl.arange(0, {self.wide})[None, :]")
        self.line(f"row = program // {across} % {down} * {self.high} + tl.arange(0, {self.high})[:, None]")
        self.line(f"group = program // {across * down} % {groups}")
        self.line(f"point = program // {across * down * groups}")
        self.line(f"column = group * {p.width} + local")
        self.line(f"inside_rows, inside_columns = row < {p.rows}, local < {p.width}")
        return across * down * groups * p.points

    def _load(self, name: str, of: WindowedTensor, window: str, channel: str, inside: str) -> None:
        """A strip of a factor."""
        self.line(f"{name} = (point * {of.count} + {window}) * {of.channels} + {channel}")
        for part, pointer in self.memory(of).items():
            self.line(f"{name}_{part} = tl.load({pointer} + {name}, mask={inside}, other=0)")

    def _dots(self, by_real: str, by_imaginary: str, total: str) -> str:
        """The sum of two factors times the real and the imaginary part of the second operand."""
        first = dot(by_real, "second_real", total, self.precision)
        return dot(by_imaginary, "second_imaginary", first, self.precision)
