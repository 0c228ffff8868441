"""Packs matrices into panels of a few rows or columns, in the order in which a register tile reads them.

Panel p of `width` lines holds, for k = 0, 1, ..., the elements of its lines at k contiguously. Both operands of a product use it: lines
are columns of the right operand, or rows of the left one. Elements are converted to the type of the product. The last panel is padded
with copies of the last line, whose results are discarded; nothing outside of the matrix is read.
"""

from __future__ import annotations

from collections.abc import Sequence

from llvmlite import ir

from ..half_floats import from_bfloat16, from_float16
from ..ir_builder import (
    F32,
    F64,
    I16,
    I32,
    I64,
    PTR,
    VOID,
    Code,
    Int,
    Value,
    constant,
    lanes_of,
    like,
    new_module,
    vector,
)
from ..library import library
from ..target import current_target
from .arithmetic import INTEGERS
from .register_tile import pieces

ELEMENTS: dict[str, ir.Type] = {"f32": F32, "f64": F64, "f16": I16, "bf16": I16}  # as they lie in memory
ELEMENTS |= dict.fromkeys(INTEGERS, I32)  # words of 8-bit integers, see arithmetic.py
_HALF_FLOATS = {"f16": from_float16, "bf16": from_bfloat16}
BYTES = {"f32": 4, "f64": 8, "f16": 2, "bf16": 2} | dict.fromkeys(INTEGERS, 4)

# The arguments of a packing phase, by name, in order. Strides are in elements: `across` from line to line, `along` from k to k.
PACK = ("source", "target", "tid", "threads", "lines", "k", "across", "along", "batch", "source_batch", "target_offset", "chunk")  # fmt: skip
_AHEAD = 12  # prefetch distance in ks: hardware prefetchers do not follow large strides


@library("pack")
def make(symbol: str) -> ir.Module:
    """pack.TYPE.SOURCE.WIDTH: all panels of a batch of matrices, by all threads together."""
    _, kind, source, width = symbol.split(".")
    module = new_module(symbol)
    pack = pack_panels(module, source, kind, int(width))
    code = Code.begin(module, symbol, [PTR, PTR] + [I64] * (len(PACK) - 2))
    of = dict(zip(PACK, code.arguments, strict=True))
    group = int(width) * panels_together(int(width))
    groups, pieces = code.ceil_div(of["lines"], group), code.sdiv(code.plus(of["k"], of["chunk"], -1), of["chunk"])
    size = code.times(code.mul(code.ceil_div(of["lines"], int(width)), of["k"]), int(width))  # of a packed matrix
    first, last = code.share(code.mul(code.mul(groups, pieces), of["batch"]), of["tid"], of["threads"])
    with code.loop(first, last) as task:
        line, rest = code.times(code.srem(task, groups), group), code.sdiv(task, groups)
        k0, z = code.mul(code.srem(rest, pieces), of["chunk"]), code.sdiv(rest, pieces)
        start = code.plus(code.mul(z, of["source_batch"]), code.mul(line, of["across"]), code.mul(k0, of["along"]))
        home = code.plus(code.mul(z, size), code.mul(line, of["k"]), code.times(k0, int(width)), of["target_offset"])
        lines = code.minimum(code.sub(of["lines"], line), group)
        length = code.minimum(of["chunk"], code.sub(of["k"], k0))
        source_at = code.at(of["source"], start, ELEMENTS[source])
        target_at = code.at(of["target"], home, ELEMENTS[kind])
        apart = code.times(of["k"], int(width))
        code.call(pack, [source_at, target_at, lines, length, of["across"], of["along"], apart])
    code.done()
    return module


def panels_together(width: int) -> int:
    """The number of panels packed together: about 128 lines."""
    return max(1, 128 // width)


def pack_panels(module: ir.Module, source: str, kind: str, width: int) -> ir.Function:
    """A private function (source, target, lines, k, across, along, apart) that packs panels `apart` elements from each other.

    Where adjacent lines are contiguous in memory it reads along them for all panels at once, which uses the memory far better than
    packing one narrow panel after the other.
    """
    panel = pack_panel(module, source, kind, width)
    code = Code.begin(module, f"panels.{source}.{kind}.{width}", [PTR, PTR] + [I64] * 5, private=True)
    code.function.attributes.add("noinline")
    pointer, target, lines, k, across, along, apart = code.arguments
    panels = code.sdiv(lines, code.i64(width))
    flat = code.select(code.icmp_signed("==", across, code.i64(1)), panels, code.i64(0))
    with code.if_then(code.icmp_signed(">", flat, code.i64(0))), code.loop(0, k, name="k") as at:
        start, home = code.mul(at, along), code.times(at, width)
        with code.loop(0, flat, name="panel") as p:
            here = code.plus(start, code.times(p, width))
            ahead = code.plus(here, code.times(along, _AHEAD))
            code.prefetch(pointer, ahead, ELEMENTS[source])
            _copy_line(code, (pointer, here), (target, code.plus(home, code.mul(p, apart))), source, kind, width)
    with code.loop(flat, code.ceil_div(lines, width), name="panel") as p:
        line = code.times(p, width)
        valid = code.minimum(code.sub(lines, line), width)
        source_at = code.at(pointer, code.mul(line, across), ELEMENTS[source])
        code.call(panel, [source_at, code.at(target, code.mul(p, apart), ELEMENTS[kind]), valid, k, across, along])
    return code.done()


def pack_panel(module: ir.Module, source: str, kind: str, width: int) -> ir.Function:
    """A private function (source, target, valid lines, k, across, along) that packs one panel."""
    name = f"panel.{source}.{kind}.{width}"
    if name in module.globals:
        return module.globals[name]
    code = Code.begin(module, name, [PTR, PTR, I64, I64, I64, I64], private=True)
    code.function.attributes.add("noinline")
    valid, across, along = code.arguments[2], code.arguments[4], code.arguments[5]
    whole = code.and_(code.icmp_signed("==", across, code.i64(1)), code.icmp_signed("==", valid, code.i64(width)))
    with code.if_else(whole) as (then, otherwise):
        with then:
            _copy(code, source, kind, width)
        with otherwise, code.if_else(code.icmp_signed("==", along, code.i64(1))) as (then, otherwise):
            with then:
                _turn(code, source, kind, width)
            with otherwise:
                _copy_or_collect(code, source, kind, width)
    return code.done()


def _copy_or_collect(code: Code, source: str, kind: str, width: int) -> None:
    """On CPUs with masked loads, contiguous lines are copied even if a panel has more."""
    if current_target().arch == "aarch64" or source != kind:
        _collect(code, source, kind, width)
        return
    with code.if_else(code.icmp_signed("==", code.arguments[4], code.i64(1))) as (then, otherwise):
        with then:
            _copy_part(code, kind, width)
        with otherwise:
            _collect(code, source, kind, width)


def _copy_part(code: Code, kind: str, width: int) -> None:
    """The lines of one k are contiguous, but fewer than the panel has; the rest is zeros."""
    pointer, target, valid, k, _, along = code.arguments
    some = [
        (first, vector(ELEMENTS[kind], size)) for first, size in pieces(width, current_target().lanes(8 * BYTES[kind]))
    ]
    masks = [before(code, code.plus(valid, -first), lanes_of(type)) for first, type in some]
    with code.loop(0, k) as at:
        start, home = code.mul(at, along), code.times(at, width)
        for (first, type), mask in zip(some, masks, strict=True):
            here = code.gep(pointer, [code.plus(start, first)], source_etype=ELEMENTS[kind])
            code.write(read_masked(code, here, mask, type), target, code.plus(home, first))


def before(code: Code, count: Value, lanes: int) -> Value:
    """The mask of the first `count` lanes."""
    if lanes == 1:
        return code.icmp_signed(">", count, code.i64(0))
    numbers = ir.Constant(ir.VectorType(I64, lanes), [ir.Constant(I64, lane) for lane in range(lanes)])
    return code.icmp_signed("<", numbers, code.splat(count, lanes))


def read_masked(code: Code, pointer: Value, mask: Value, type: ir.Type) -> Value:
    """A masked load: zeros where the mask is not set."""
    if lanes_of(type) > 1:
        align = ir.Constant(I32, 4)
        return code.intrinsic("masked.load", pointer, align, mask, constant(type, 0.0), types=[type, PTR], result=type)
    safe = code.select(mask, pointer, code.arguments[0])  # the first line is always there
    return code.select(mask, code.read(safe, 0, type), constant(type, 0.0))


def write_masked(code: Code, value: Value, pointer: Value, mask: Value) -> None:
    """A masked store."""
    align = ir.Constant(I32, 4)
    code.intrinsic("masked.store", value, pointer, align, mask, types=[value.type, PTR], result=VOID)


def _copy(code: Code, source: str, kind: str, width: int) -> None:
    """The lines of one k are contiguous."""
    pointer, target, _, k, _, along = code.arguments
    with code.loop(0, k) as at:
        _copy_line(code, (pointer, code.mul(at, along)), (target, code.times(at, width)), source, kind, width)


def _copy_line(
    code: Code, here: tuple[Value, Int], there: tuple[Value, Int], source: str, kind: str, width: int
) -> None:
    for first, size in pieces(width, current_target().lanes(8 * BYTES[kind])):
        value = read_as(code, here[0], code.plus(here[1], first), source, kind, size)
        code.write(value, there[0], code.plus(there[1], first))


def _turn(code: Code, source: str, kind: str, width: int) -> None:
    """The ks of one line are contiguous: square blocks are transposed in registers."""
    pointer, target, valid, k, across, _ = code.arguments
    size = 16 // BYTES[kind]
    lines = [code.mul(code.minimum(line, code.plus(valid, -1)), across) for line in range(width)]
    whole = code.sub(k, code.srem(k, code.i64(size)))
    with code.loop(0, whole, size) as at:
        for first in range(0, width, size):
            block = lines[first : first + size]
            block += block[-1:] * (size - len(block))
            transposed = transpose(
                code, [read_as(code, pointer, code.plus(line, at), source, kind, size) for line in block]
            )
            for step, value in enumerate(transposed):
                some = min(size, width - first)
                home = code.plus(code.times(code.plus(at, step), width), first)
                code.write(code.lanes_between(value, 0, some), target, home)
    with code.loop(whole, k) as at:
        for line, start in enumerate(lines):
            value = read_as(code, pointer, code.plus(start, at), source, kind, 1)
            code.write(value, target, code.plus(code.times(at, width), line))


def _collect(code: Code, source: str, kind: str, width: int) -> None:
    """Any strides, and edges: one element at a time."""
    pointer, target, valid, k, across, along = code.arguments
    with code.loop(0, k) as at, code.loop(0, width) as line:
        start = code.mul(code.minimum(line, code.plus(valid, -1)), across)
        value = read_as(code, pointer, code.plus(start, code.mul(at, along)), source, kind, 1)
        code.write(value, target, code.plus(code.times(at, width), line))


# --- elements -----------------------------------------------------------------------------------------------------------


def read_as(code: Code, pointer: Value, index: Int, source: str, kind: str, lanes: int) -> Value:
    """Load elements of one type, converted to another at least as wide."""
    value = code.read(pointer, index, vector(ELEMENTS[source], lanes))
    if source == kind:
        return value
    if source in _HALF_FLOATS:
        value = _HALF_FLOATS[source](code, value)
        if kind == "f32":
            return value
    return code.fpext(value, like(value.type, ELEMENTS[kind]))


def transpose(code: Code, lines: Sequence[Value]) -> list[Value]:
    """Transpose a square of vectors in registers: each round interleaves the first half with the second."""
    values, half = list(lines), len(lines) // 2
    zip_low = [lane + side * len(values) for lane in range(half) for side in (0, 1)]
    zip_high = [lane + half for lane in zip_low]
    rounds = len(values).bit_length() - 1
    for _ in range(rounds):
        pairs = list(zip(values[:half], values[half:], strict=True))
        values = [_shuffle(code, a, b, zips) for a, b in pairs for zips in (zip_low, zip_high)]
    return values


def _shuffle(code: Code, a: Value, b: Value, lanes: Sequence[int]) -> Value:
    mask = ir.Constant(ir.VectorType(I32, len(lanes)), [ir.Constant(I32, lane) for lane in lanes])
    return code.shuffle_vector(a, b, mask)
