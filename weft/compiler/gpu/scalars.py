"""Elementwise ops in Triton: one row per op, an expression of the names of its arguments.

In registers a bool is an int1 and a 16-bit float is a float32; in memory a bool is a byte. 16-bit values are rounded when they are
stored and where a cast says so, not after every op.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ...dtypes import DType, bool_, converted, float64, int32, int64
from ...graph.node import Node

Flag = Callable[[str, str], None]  # (where it is wrong, the wrong value) reports an error of the run


def storage(dtype: DType) -> str:
    """The type of an element in memory."""
    return "tl.uint8" if dtype is bool_ else f"tl.{dtype.name}"


def register(dtype: DType) -> str:
    """The type of an element in registers."""
    if dtype is bool_:
        return "tl.int1"
    return "tl.float32" if dtype.is_half else f"tl.{dtype.name}"


def from_storage(value: str, dtype: DType) -> str:
    if dtype is bool_:
        return f"({value} != 0)"
    return f"{value}.to(tl.float32)" if dtype.is_half else value


def to_storage(value: str, dtype: DType) -> str:
    return f"{value}.to({storage(dtype)})"


def number(dtype: DType, value: Any) -> str:
    """A constant of a dtype; nan and infinities may come as text."""
    if dtype is bool_:
        return str(bool(value))
    if not dtype.is_float:
        return str(int(value))
    held = float(converted(np.asarray(float(value)), dtype))
    if math.isfinite(held):
        return repr(held)
    return f'float("{"-" if math.copysign(1.0, held) < 0 else ""}{abs(held)}")'


def filled(dtype: DType, value: Any, shape: str) -> str:
    """A tile full of a number."""
    return f"tl.full({shape}, {number(dtype, value)}, {register(dtype)})"


class ScalarCall:
    """An op to emit: the node, the names of its arguments, and where errors are reported."""

    def __init__(self, node: Node, args: Sequence[str], flag: Flag) -> None:
        self.node, self.args, self.flag = node, list(args), flag
        self.x = args[0]
        self.y = args[1] if len(args) > 1 else args[0]
        self.dtype = node.inputs[0].dtype

    @property
    def is_float(self) -> bool:
        return self.dtype.is_float

    @property
    def signed(self) -> bool:
        return self.dtype.kind == "int"


def emit(node: Node, args: Sequence[str], flag: Flag) -> str:
    """The op of a node applied to the values of its inputs."""
    name = node.op.name
    if name in MATHS and node.dtype.is_float:
        return f"{MATHS[name]}({', '.join(args)})"
    return TABLE[name](ScalarCall(node, args, flag))


def _sign(c: ScalarCall) -> str:
    if c.is_float:
        return f"tl.where({c.x} > 0, 1.0, tl.where({c.x} < 0, -1.0, tl.where({c.x} == 0, 0.0, {c.x})))"
    below = f"tl.where({c.x} < 0, -1, 1)" if c.signed else "1"
    return f"tl.where({c.x} == 0, 0, {below}).to({register(c.dtype)})"


def _negative(c: ScalarCall) -> str:
    """Triton computes -x as 0 - x, which is 0.0 for 0.0."""
    if c.is_float:
        return f"{c.x} * -1.0"
    return f"-{c.x}" if c.signed else f"(0 - {c.x}).to({register(c.dtype)})"


def _next_whole(c: ScalarCall, function: str, between: str, result: str) -> str:
    """ceil or floor. GPUs flush subnormal float32 numbers to 0, so values next to 0 are handled separately."""
    if not c.is_float:
        return c.x
    return f"tl.where({between.format(x=c.x)}, {result}, {function}({c.x}))"


def _rounding(function: str) -> Callable[[ScalarCall], str]:
    return lambda c: f"{function}({c.x})" if c.is_float else c.x


def _arithmetic(sign: str, of_bools: str) -> Callable[[ScalarCall], str]:
    return lambda c: f"{c.x} {of_bools if c.dtype is bool_ else sign} {c.y}"  # NumPy: + of bools is or, * is and


def extreme(x: str, y: str, dtype: DType, greater: bool) -> str:
    """The greater (or less) of two; nan if either is nan."""
    if dtype is bool_:
        return f"{x} {'|' if greater else '&'} {y}"
    nan = ", propagate_nan=tl.PropagateNan.ALL" if dtype.is_float else ""
    return f"tl.{'maximum' if greater else 'minimum'}({x}, {y}{nan})"


def _divided(c: ScalarCall) -> str:
    return f"tl.div_rn({c.x}, {c.y})" if c.dtype.bits <= 32 else f"{c.x} / {c.y}"


def _floor_divide(c: ScalarCall) -> str:
    if c.is_float:
        return f"float_floor_divide({c.x}, {c.y})"
    return f"int_floor_divide({c.x}, {_checked_divisor(c)})" if c.signed else f"{c.x} // {_checked_divisor(c)}"


def _remainder(c: ScalarCall) -> str:
    if c.is_float:
        return f"float_remainder({c.x}, {c.y})"
    return f"int_remainder({c.x}, {_checked_divisor(c)})" if c.signed else f"{c.x} % {_checked_divisor(c)}"


def _checked_divisor(c: ScalarCall) -> str:
    c.flag(f"{c.y} == 0", c.y)
    return f"tl.where({c.y} == 0, 1, {c.y}).to({register(c.dtype)})"


def _pow(c: ScalarCall) -> str:
    if c.signed:
        c.flag(f"{c.y} < 0", c.y)
    return f"int_pow({c.x}, {c.y}, {c.dtype.bits})"


def _nextafter(c: ScalarCall) -> str:
    """The next 16-bit float is found in its 16 bits: in registers it is a float32, whose neighbours are nearer."""
    if not c.dtype.is_half:
        return f"libdevice.nextafter({c.x}, {c.y})"
    bits = f"{to_storage(c.x, c.dtype)}.to(tl.int16, bitcast=True)"
    moved = f"half_step({c.x}, {c.y}, {bits}).to({storage(c.dtype)}, bitcast=True).to(tl.float32)"
    return f"tl.where({c.x} == {c.y}, {c.y}, tl.where({c.x} == {c.x}, tl.where({c.y} == {c.y}, {moved}, {c.y}), {c.x}))"


def _shift(left: bool) -> Callable[[ScalarCall], str]:
    def write(c: ScalarCall) -> str:
        if c.signed:
            c.flag(f"{c.y} < 0", c.y)
        width = c.dtype.bits
        if not left and c.signed:
            return f"({c.x} >> tl.minimum({c.y}, {width - 1}))"
        moved = f"{c.x} {'<<' if left else '>>'} tl.minimum({c.y}, {width - 1})"
        return f"tl.where({c.y} >= {width}, 0, {moved}).to({register(c.dtype)})"

    return write


def _cast(c: ScalarCall) -> str:
    return convert(c.x, c.dtype, c.node.param("dtype"))


def convert(x: str, source: DType, target: DType) -> str:
    """The value as another dtype."""
    if source is target:
        return x
    if target is bool_:
        return f"({x} != 0)"
    if target.is_half:
        near = f"rounded_to_odd({x})" if source is float64 else f"{x}.to(tl.float32)"
        return f"{near}.to({storage(target)}).to(tl.float32)"
    if source.is_float and not target.is_float:
        return _saturated(x, source, target)
    return f"{x}.to({register(target)})"


def _saturated(x: str, source: DType, target: DType) -> str:
    """A float as an integer: truncated towards zero, clamped to the range, and 0 for nan."""
    signed = target.kind == "int"
    least, most = (-(1 << target.bits - 1), (1 << target.bits - 1) - 1) if signed else (0, (1 << target.bits) - 1)
    safe = f"tl.where(({x} > {float(least)}) & ({x} < {float(most)}), {x}, 0.0).to({register(target)})"
    return f"tl.where({x} >= {float(most)}, {most}, tl.where({x} <= {float(least)}, {least}, {safe})).to({register(target)})"


def _round_8_bits(c: ScalarCall) -> str:
    return _saturated(f"libdevice.rint({c.x})", c.dtype, c.node.param("dtype"))


def _bitcast(c: ScalarCall) -> str:
    target = c.node.param("dtype")
    return from_storage(f"{to_storage(c.x, c.dtype)}.to({storage(target)}, bitcast=True)", target)


def _in_range(c: ScalarCall) -> str:
    size = c.node.param("size")
    wide = convert(c.x, c.dtype, int64)
    place = f"tl.where({wide} < 0, {wide} + {size}, {wide})"
    bad = f"(({place}) < 0) | (({place}) >= {size})"
    c.flag(bad, wide)
    return f"tl.where({bad}, 0, {place}).to({register(int32)})"


TABLE: dict[str, Callable[[ScalarCall], str]] = {
    "neg": _negative,
    "abs": lambda c: f"tl.abs({c.x})" if c.is_float or c.signed else c.x,
    "sign": _sign,
    "floor": lambda c: _next_whole(c, "tl.floor", "({x} < 0.0) & ({x} > -1.0)", "-1.0"),
    "ceil": lambda c: _next_whole(c, "tl.ceil", "({x} > 0.0) & ({x} < 1.0)", "1.0"),
    "trunc": _rounding("libdevice.trunc"),
    "round": _rounding("libdevice.rint"),
    "sqrt": lambda c: f"tl.sqrt_rn({c.x})" if c.dtype.bits <= 32 else f"tl.sqrt({c.x})",
    "add": _arithmetic("+", "|"),
    "sub": _arithmetic("-", "^"),
    "mul": _arithmetic("*", "&"),
    "div": _divided,
    "floor_divide": _floor_divide,
    "remainder": _remainder,
    "pow": _pow,
    "maximum": lambda c: extreme(c.x, c.y, c.dtype, True),
    "minimum": lambda c: extreme(c.x, c.y, c.dtype, False),
    "copysign": lambda c: f"libdevice.copysign({c.x}, {c.y})",
    "nextafter": _nextafter,
    "and_": lambda c: f"{c.x} & {c.y}",
    "or_": lambda c: f"{c.x} | {c.y}",
    "xor": lambda c: f"{c.x} ^ {c.y}",
    "not_": lambda c: f"{c.x} == 0" if c.dtype is bool_ else f"~{c.x}",
    "shl": _shift(True),
    "shr": _shift(False),
    "eq": lambda c: f"{c.x} == {c.y}",
    "lt": lambda c: f"{c.x} < {c.y}",
    "le": lambda c: f"{c.x} <= {c.y}",
    "where": lambda c: f"tl.where({c.args[0]}, {c.args[1]}, {c.args[2]})",
    "cast": _cast,
    "bitcast": _bitcast,
    "stop_gradient": lambda c: c.x,
    "in_range": _in_range,
    "round_8_bits": _round_8_bits,
    "from_float8": lambda c: f"{c.node.param('format')}_half({c.x}).to(tl.float32)",
}
MATHS = {
    "exp": "libdevice.exp", "log": "libdevice.log", "sin": "libdevice.sin", "cos": "libdevice.cos", "erf": "libdevice.erf",
    "sigmoid": "sigmoid", "pow": "libdevice.pow",
    **{name: f"libdevice.{name}" for name in (
        "expm1", "log1p", "log2", "log10", "tan", "asin", "acos", "atan", "sinh", "cosh", "tanh", "asinh", "acosh", "atanh", "atan2", "hypot",
    )},
    "logaddexp": "logaddexp",
}  # fmt: skip
