"""Number formats: binary floating point of any widths, and integers with a radix point.

A float of e exponent bits and f fraction bits is (-1)^s x 2^(E - bias) x 1.f, and below the smallest normal number (-1)^s x 2^(1 - bias) x 0.f.
A fixed-point number Qm.n is an integer of m + n bits and a sign, times 2^-n; UQm.n has no sign. int8 is Q7.0.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable

import numpy as np

from ..errors import UserError
from ..hints import nearest
from ..records import dataclass

LONGEST = 53  # bits of a fixed-point number: round_to computes in float64


@dataclass(frozen=True)
class FloatFormat:
    """A binary floating-point format.

    >>> FLOATS["float16"].largest, FLOATS["float16"].unit_roundoff
    (65504.0, 0.00048828125)
    """

    name: str
    exponent_bits: int
    fraction_bits: int
    bits: int  # in memory: TF32 occupies 32
    has_infinity: bool = True

    @property
    def bias(self) -> int:
        return (1 << (self.exponent_bits - 1)) - 1

    @property
    def precision(self) -> int:
        """Bits of the significand, with the leading 1 that is not stored."""
        return self.fraction_bits + 1

    @property
    def least_exponent(self) -> int:
        """Of normal numbers."""
        return 1 - self.bias

    @property
    def largest_exponent(self) -> int:
        """A format without infinity uses the largest exponent for numbers, too."""
        return self.bias if self.has_infinity else self.bias + 1

    @property
    def largest(self) -> float:
        # e4m3 has no infinity; its one code for nan takes the place of the largest significand.
        top = 2.0 - 2.0**-self.fraction_bits if self.has_infinity else 2.0 - 2.0 ** (1 - self.fraction_bits)
        return float(np.ldexp(top, self.largest_exponent))

    @property
    def lowest(self) -> float:
        return -self.largest

    @property
    def smallest_normal(self) -> float:
        return float(np.ldexp(1.0, self.least_exponent))

    @property
    def step(self) -> float:
        """The smallest number above 0, which is the distance of subnormal numbers."""
        return float(np.ldexp(1.0, self.least_exponent - self.fraction_bits))

    @property
    def unit_roundoff(self) -> float:
        """The largest relative error of rounding a number in the normal range."""
        return 2.0**-self.precision

    @property
    def decimal_digits(self) -> float:
        return self.precision * math.log10(2)

    @property
    def is_integer(self) -> bool:
        return False

    def values(self) -> np.ndarray:
        """All finite numbers of the format from 0 on, in order; for formats of at most 16 bits."""
        if self.bits > 16:
            raise UserError(
                "formats", f"a format of at most 16 bits is required, got {self.name}: it has too many values."
            )
        fractions = np.arange(1 << self.fraction_bits) * 2.0**-self.fraction_bits
        rows = [np.ldexp(fractions, self.least_exponent)]
        for exponent in range(self.least_exponent, self.largest_exponent + 1):
            rows.append(np.ldexp(1.0 + fractions, exponent))
        found = np.concatenate(rows)
        return found[found <= self.largest]


@dataclass(frozen=True)
class FixedFormat:
    """Integers times 2^-fraction: int8, Q3.12, UQ4.4.

    >>> number_format("q3.12").largest, number_format("q3.12").step
    (7.999755859375, 0.000244140625)
    """

    name: str
    bits: int
    fraction: int = 0
    signed: bool = True

    @property
    def step(self) -> float:
        return 2.0**-self.fraction

    @property
    def low_code(self) -> int:
        return -(1 << (self.bits - 1)) if self.signed else 0

    @property
    def high_code(self) -> int:
        return (1 << (self.bits - self.signed)) - 1

    @property
    def largest(self) -> float:
        return self.high_code * self.step

    @property
    def lowest(self) -> float:
        return self.low_code * self.step

    @property
    def smallest_normal(self) -> float:
        """All steps are the same."""
        return self.step

    @property
    def unit_roundoff(self) -> None:
        """The error is absolute: half a step, whatever the number."""
        return None

    @property
    def decimal_digits(self) -> float:
        return (self.bits - self.signed) * math.log10(2)

    @property
    def is_integer(self) -> bool:
        """Whether its numbers are whole: networks use such a format with a scale."""
        return self.fraction == 0 and self.name.lstrip("u").startswith("int")

    def values(self) -> np.ndarray:
        """All numbers of the format from 0 on, in order; for formats of at most 16 bits."""
        if self.bits > 16:
            raise UserError(
                "formats", f"a format of at most 16 bits is required, got {self.name}: it has too many values."
            )
        return np.arange(self.high_code + 1) * self.step


NumberFormat = FloatFormat | FixedFormat

FLOATS = {
    one.name: one
    for one in (
        FloatFormat("float64", 11, 52, 64),
        FloatFormat("float32", 8, 23, 32),
        FloatFormat("tf32", 8, 10, 32),
        FloatFormat("float16", 5, 10, 16),
        FloatFormat("bfloat16", 8, 7, 16),
        FloatFormat("float8_e4m3", 4, 3, 8, has_infinity=False),
        FloatFormat("float8_e5m2", 5, 2, 8),
    )
}
INTEGERS = {f"int{bits}": FixedFormat(f"int{bits}", bits) for bits in (32, 16, 8, 4)}
NAMES = (*FLOATS, *INTEGERS)
FIXED = ("q7.8", "q3.4")  # examples of fixed point that the table shows
ALIASES = {
    "double": "float64", "fp64": "float64", "single": "float32", "fp32": "float32", "half": "float16", "fp16": "float16",
    "bf16": "bfloat16", "e4m3": "float8_e4m3", "float8_e4m3fn": "float8_e4m3", "e5m2": "float8_e5m2", "float8": "float8_e4m3", "fp8": "float8_e4m3",
}  # fmt: skip


def number_format(name: str | NumberFormat) -> NumberFormat:
    """The format of a name: float64, float32, tf32, float16, bfloat16, float8_e4m3, float8_e5m2, int2 to int53, uint8, q3.12, uq4.4.

    >>> number_format("q3.12").bits, number_format("bf16").name
    (16, 'bfloat16')
    """
    if isinstance(name, FloatFormat | FixedFormat):
        return name
    word = str(name).strip().lower()
    word = ALIASES.get(word, word)
    if word in FLOATS:
        return FLOATS[word]
    if match := re.fullmatch(r"(u?)int(\d{1,2})", word):
        return _fixed(word, int(match[2]), 0, not match[1])
    if match := re.fullmatch(r"(u?)q(-?\d{1,3})\.(-?\d{1,3})", word):
        whole, fraction, signed = int(match[2]), int(match[3]), not match[1]
        return _fixed(word, whole + fraction + signed, fraction, signed)
    raise UserError(
        "formats",
        f"there is no format {str(name)[:40]!r}. {nearest(word, NAMES)} Fixed point is written q3.12, or uq4.4 without a sign.",
    )


def number_formats(names: Iterable[str | NumberFormat]) -> list[NumberFormat]:
    """The formats of names, each once."""
    return list({found.name: found for found in map(number_format, names)}.values())


def _fixed(name: str, bits: int, fraction: int, signed: bool) -> FixedFormat:
    if not 2 <= bits <= LONGEST:
        raise UserError("formats", f"a fixed-point format of 2 to {LONGEST} bits is required, got {name} with {bits}.")
    return FixedFormat(name, bits, fraction, signed)
