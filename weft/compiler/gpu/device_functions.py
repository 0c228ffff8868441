"""Functions in Triton that emitted kernels call, as source: each kernel's file holds those that it uses."""

from __future__ import annotations

import re

HEAD = "import triton\nimport triton.language as tl\nfrom triton.language.extra import libdevice\n"

HELPERS = {
    "add": """
@triton.jit
def add(a, b):
    return a + b
""",
    "mul": """
@triton.jit
def mul(a, b):
    return a * b
""",
    "either": """
@triton.jit
def either(a, b):
    return a | b
""",
    "greater": """
@triton.jit
def greater(a, b):
    return tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)
""",
    "less": """
@triton.jit
def less(a, b):
    return tl.minimum(a, b, propagate_nan=tl.PropagateNan.ALL)
""",
    # Of two (value, position) the one to keep: nan first, then the first of equals; position -1 means no value.
    "greatest": """
@triton.jit
def greatest(x, i, y, j):
    wins = (y > x) | ((y != y) & (x == x))
    equal = (x == y) | ((x != x) & (y != y))
    take = (wins & (x == x)) | (equal & (j < i)) | (i < 0)
    take = take & (j >= 0)
    return tl.where(take, y, x), tl.where(take, j, i)
""",
    "smallest": """
@triton.jit
def smallest(x, i, y, j):
    wins = (y < x) | ((y != y) & (x == x))
    equal = (x == y) | ((x != x) & (y != y))
    take = (wins & (x == x)) | (equal & (j < i)) | (i < 0)
    take = take & (j >= 0)
    return tl.where(take, y, x), tl.where(take, j, i)
""",
    # Of number / size turns: the nearest quarter is exact, the rest is at most an eighth.
    "cosine_and_sine": """
@triton.jit
def cosine_and_sine(number, size: tl.constexpr):
    quarter = (4 * number + size // 2) // size
    x = (4 * number - quarter * size).to(tl.float32) * (1.5707963267948966 / size)
    y = x * x
    cosine = 1.0 + y * (-1 / 2 + y * (1 / 24 + y * (-1 / 720 + y * (1 / 40320 - y * (1 / 3628800)))))
    sine = x + x * y * (-1 / 6 + y * (1 / 120 + y * (-1 / 5040 + y * (1 / 362880))))
    swaps = quarter % 2 == 1
    a, b = tl.where(swaps, sine, cosine), tl.where(swaps, cosine, sine)
    return tl.where((quarter + 1) & 2 != 0, -a, a), tl.where(quarter & 2 != 0, -b, b)
""",
    # Word i % 4 of block offset + i // 4 (Philox 4x32-10).
    "philox": """
@triton.jit
def philox(position, key, offset):
    position = position.to(tl.uint64)
    counter = (position >> 2) + offset.to(tl.uint64)
    c0 = counter.to(tl.uint32)
    c1 = (counter >> 32).to(tl.uint32)
    c2 = c0 * 0
    c3 = c0 * 0
    k0 = key.to(tl.uint64).to(tl.uint32)
    k1 = (key.to(tl.uint64) >> 32).to(tl.uint32)
    a = tl.full(c0.shape, 0xD2511F53, tl.uint32)
    b = tl.full(c0.shape, 0xCD9E8D57, tl.uint32)
    for _ in tl.static_range(10):
        low_a, high_a = a * c0, tl.umulhi(a, c0)
        low_b, high_b = b * c2, tl.umulhi(b, c2)
        c0, c1, c2, c3 = high_b ^ c1 ^ k0, low_b, high_a ^ c3 ^ k1, low_a
        k0 = k0 + 0x9E3779B9
        k1 = k1 + 0xBB67AE85
    which = (position & 3).to(tl.uint32)
    return tl.where(which == 0, c0, tl.where(which == 1, c1, tl.where(which == 2, c2, c3)))
""",
    # The words of four neighbouring positions, from the tile of every fourth (a multiple of 4), in their order along the last axis.
    "philox_words": """
@triton.jit
def philox_words(position, key, offset, rows: tl.constexpr, columns: tl.constexpr):
    counter = (position.to(tl.uint64) >> 2) + offset.to(tl.uint64)
    c0 = counter.to(tl.uint32)
    c1 = (counter >> 32).to(tl.uint32)
    c2 = c0 * 0
    c3 = c0 * 0
    k0 = key.to(tl.uint64).to(tl.uint32)
    k1 = (key.to(tl.uint64) >> 32).to(tl.uint32)
    a = tl.full(c0.shape, 0xD2511F53, tl.uint32)
    b = tl.full(c0.shape, 0xCD9E8D57, tl.uint32)
    for _ in tl.static_range(10):
        low_a, high_a = a * c0, tl.umulhi(a, c0)
        low_b, high_b = b * c2, tl.umulhi(b, c2)
        c0, c1, c2, c3 = high_b ^ c1 ^ k0, low_b, high_a ^ c3 ^ k1, low_a
        k0 = k0 + 0x9E3779B9
        k1 = k1 + 0xBB67AE85
    return tl.join(tl.join(c0, c2), tl.join(c1, c3)).reshape(rows, columns)
""",
    "sigmoid": """
@triton.jit
def sigmoid(x):
    small = libdevice.exp(-tl.abs(x))
    return tl.where(x < 0, small, 1.0) / (1.0 + small)
""",
    "logaddexp": """
@triton.jit
def logaddexp(x, y):
    most = tl.maximum(x, y, propagate_nan=tl.PropagateNan.ALL)
    apart = tl.where(x == y, 0.0, -tl.abs(x - y))
    return most + libdevice.log1p(libdevice.exp(apart))
""",
    "int_floor_divide": """
@triton.jit
def int_floor_divide(x, by):
    safe = tl.where(by == -1, 1, by).to(by.dtype)
    quotient = x // safe
    rest = x - quotient * safe
    below = (rest != 0) & ((rest ^ safe) < 0)
    return tl.where(by == -1, 0 - x, quotient - below.to(x.dtype)).to(x.dtype)
""",
    "int_remainder": """
@triton.jit
def int_remainder(x, by):
    safe = tl.where(by == -1, 1, by).to(by.dtype)
    rest = x - (x // safe) * safe
    return tl.where((rest != 0) & ((rest ^ safe) < 0), rest + safe, rest).to(x.dtype)
""",
    "int_pow": """
@triton.jit
def int_pow(x, y, bits: tl.constexpr):
    result = x * 0 + 1
    square = x
    for bit in tl.static_range(bits):
        result = tl.where((y >> bit) & 1 != 0, result * square, result).to(x.dtype)
        square = square * square
    return result
""",
    # float64 to float32 before a conversion to 16 bits: inexact values get an odd last bit, so that only the second conversion rounds.
    "rounded_to_odd": """
@triton.jit
def rounded_to_odd(x):
    near = x.to(tl.float32)
    back = near.to(tl.float64)
    bits = near.to(tl.int32, bitcast=True) - (tl.abs(back) > tl.abs(x)).to(tl.int32)
    inexact = (back != x) & (x == x)
    return (bits | inexact.to(tl.int32)).to(tl.float32, bitcast=True)
""",
    # The bits of the 16-bit float next to x, whose bits these are, towards another number y.
    "half_step": """
@triton.jit
def half_step(x, y, bits):
    moved = tl.where((x < y) == (x > 0), bits + 1, bits - 1)
    return tl.where(x == 0, tl.where(y < 0, -32767, 1), moved).to(tl.int16)
""",
    # Quotient rounded down and remainder with the divisor's sign, exact as NumPy has them; with infinities the quotient itself.
    "float_floor_divide": """
@triton.jit
def float_floor_divide(x, y):
    mod = libdevice.fmod(x, y)
    fix = (mod != 0) & ((y < 0) != (mod < 0))
    quotient = (x - mod) / y
    quotient = tl.where(fix, quotient - 1.0, quotient)
    floor = tl.floor(quotient)
    floor = tl.where(quotient - floor > 0.5, floor + 1.0, floor)
    floor = tl.where(quotient == 0, libdevice.copysign(quotient * 0.0, x / y), floor)
    infinite = (tl.abs(x) == float("inf")) | (tl.abs(y) == float("inf"))
    return tl.where((y == 0) | infinite, x / y, floor)
""",
    "float_remainder": """
@triton.jit
def float_remainder(x, y):
    mod = libdevice.fmod(x, y)
    fix = (mod != 0) & ((y < 0) != (mod < 0))
    return tl.where(mod != 0, tl.where(fix, mod + y, mod), libdevice.copysign(mod * 0.0, y))
""",
}

# Codes of 8-bit floats as float16, which has all of their values, on GPUs whose tensor cores do not support them.
_HALVES = {
    "e4m3_half": """
@triton.jit
def e4m3_half(codes):
    wide = codes.to(tl.uint16)
    value = (((wide & 0x80) << 8) | ((wide & 0x7F) << 7)).to(tl.float16, bitcast=True) * 256.0
    return tl.where((wide & 0x7F) == 0x7F, float("nan"), value).to(tl.float16)
""",
    "e5m2_half": """
@triton.jit
def e5m2_half(codes):
    return (codes.to(tl.uint16) << 8).to(tl.float16, bitcast=True)
""",
}
_TYPES_OF_FLOAT8 = {"e4m3": "float8e4nv", "e5m2": "float8e5"}
FLOAT8_SINCE = 89  # the compute capability from which tensor cores support 8-bit floats


def _numbers(name: str, native: bool) -> str:
    """The function that decodes codes for a product."""
    value = f"codes.to(tl.{_TYPES_OF_FLOAT8[name]}, bitcast=True)" if native else f"{name}_half(codes)"
    return f"\n@triton.jit\ndef {name}_numbers(codes):\n    return {value}\n"


def with_helpers(source: str, capability: int = FLOAT8_SINCE) -> str:
    """A file that can be compiled for GPUs of a compute capability: imports, the helpers that the source calls or hands on, the source."""
    numbers = {f"{name}_numbers": _numbers(name, capability >= FLOAT8_SINCE) for name in _TYPES_OF_FLOAT8}
    used: list[str] = []
    for name, text in reversed((HELPERS | _HALVES | numbers).items()):  # later ones may call earlier ones
        if re.search(rf"\b{name}\b(?!=)", "\n".join([source, *used])):
            used.insert(0, text)
    return "\n".join([HEAD, *used, source])
