"""The instructions of PTX that compiled kernels use. See ptx_machine.py."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import ml_dtypes
import numpy as np

from ptx_threads import WARP, Fault, Machine, Values, as_type

Operation = Callable[[Machine], None]

_TYPES: dict[str, Any] = {
    "pred": np.bool_, "f16": np.float16, "bf16": ml_dtypes.bfloat16, "f32": np.float32, "f64": np.float64,
    **{f"{letter}{bits}": np.dtype(f"u{bits // 8}") for letter in "bu" for bits in (8, 16, 32, 64)},
    **{f"s{bits}": np.dtype(f"i{bits // 8}") for bits in (8, 16, 32, 64)},
}  # fmt: skip
_TF32 = np.uint32(0xFFFFE000)  # the bits of a float32 that matrix units read of it as TF32
_COMPARE = {
    "eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal,
    "lo": np.less, "ls": np.less_equal, "hi": np.greater, "hs": np.greater_equal,
}  # fmt: skip

# --- operands ---------------------------------------------------------------------------------------------------------------------


def guarded(machine: Machine, guard: str) -> Values:
    value = machine.registers[guard.lstrip("!")]
    return machine.active & (~value if guard.startswith("!") else value)


def _source(text: str, kind: Any) -> Callable[[Machine], Values]:
    """How an operand is read as a type."""
    if text in ("%tid.x", "%ctaid.x", "%laneid", "%tid.y", "%tid.z", "%ctaid.y", "%ctaid.z"):
        return lambda machine: as_type(machine.special[text], kind)
    if text.startswith("%"):
        return lambda machine: as_type(machine.registers[text], kind)
    if text.startswith("{"):
        size = np.dtype(kind).itemsize
        names = [part.strip() for part in text[1:-1].split(",")]
        arbitrary = np.full(
            1, (1 << 8 * size // 2) - 1, f"u{size // 2}"
        )  # LLVM packs halves that nothing reads, nor has written

        def packed(machine: Machine) -> Values:
            halves = [as_type(machine.registers.get(name, arbitrary), f"u{size // 2}") for name in names]
            return as_type(np.stack(np.broadcast_arrays(*halves), -1).view(f"u{size}")[..., 0], kind)

        return packed
    constant = _constant(text, np.dtype(kind))
    return lambda machine: constant


def _constant(text: str, kind: Any) -> Values:
    if text.startswith("0f"):
        return as_type(np.array([int(text[2:], 16)], np.uint32), kind)
    if text.startswith("0d"):
        return as_type(np.array([int(text[2:], 16)], np.uint64), kind)
    if text == "global_smem":
        return np.zeros(1, kind)
    if kind == np.bool_:
        return np.array([int(text) != 0])
    nbytes = kind.itemsize
    return as_type(np.array([int(text.rstrip("U"), 0) & ((1 << 8 * nbytes) - 1)], np.dtype(f"u{nbytes}")), kind)


def _address(text: str) -> Callable[[Machine], Values]:
    inside = text.strip()[1:-1].replace(" ", "")
    found = re.fullmatch(r"(%\w+|global_smem)(?:\+(-?\d+))?", inside)
    assert found is not None, text
    base, offset = found[1], int(found[2] or 0)
    if base == "global_smem":
        return lambda machine: np.full(machine.active.shape, offset, np.int64)
    return lambda machine: machine.registers[base].astype(np.int64) + offset


# --- instructions -----------------------------------------------------------------------------------------------------------------


def decode(opcode: str, guard: str | None, operands: list[str]) -> Operation:
    name, *parts = opcode.split(".")
    writer = _SPECIAL.get(name)
    if writer is not None:
        return writer(parts, operands, guard)
    compute, kinds = _computation(name, parts)
    sources = [_source(text, kind) for text, kind in zip(operands[1:], kinds, strict=True)]
    target = operands[0]

    def run(machine: Machine) -> None:
        values = compute(*(source(machine) for source in sources))
        threads = None if guard is None else guarded(machine, guard)
        if target.startswith("{"):
            names = [one.strip() for one in target[1:-1].split(",")]
            whole = np.broadcast_to(values, machine.active.shape)
            halves = np.ascontiguousarray(whole).view(f"u{whole.dtype.itemsize // len(names)}")
            for i, one in enumerate(names):
                if one == "_":
                    continue
                machine.write(one, np.ascontiguousarray(halves.reshape(-1, len(names))[:, i]), threads)
        else:
            machine.write(target, values, threads)

    return run


def _computation(name: str, parts: list[str]) -> tuple[Callable[..., Values], list[Any]]:
    """What an instruction computes, and the types of its operands."""
    text = parts[-1] if parts else ""
    if name == "cvt":
        return _conversion(parts)
    if name == "selp":
        kind = _TYPES[text]
        return lambda a, b, chosen: np.where(chosen, a, b), [kind, kind, np.bool_]
    if name == "setp":
        return _comparison(parts[0], _TYPES[text])
    if text in ("f16x2", "bf16x2", "s16x2", "u16x2"):
        half, kinds = _computation(name, [*parts[:-1], text.removesuffix("x2")])
        return lambda *values: _by_halves(half, kinds[0], values), [np.dtype("u4")] * len(kinds)
    kind = np.dtype(_TYPES[text])
    if kind.kind in "iub":
        return _integers(name, parts, kind)
    return _floats(name, parts, kind)


def _by_halves(compute: Callable[..., Values], kind: Any, values: Sequence[Values]) -> Values:
    low = [as_type((v & np.uint32(0xFFFF)).astype(np.uint16), kind) for v in values]
    high = [as_type((v >> np.uint32(16)).astype(np.uint16), kind) for v in values]
    first, second = (as_type(np.asarray(compute(*part)), np.uint16).astype(np.uint32) for part in (low, high))
    return first | (second << np.uint32(16))


def _comparison(how: str, kind: Any) -> tuple[Callable[..., Values], list[Any]]:
    kind = np.dtype(kind)
    if kind.kind in "iu" or kind == np.bool_ or how in _COMPARE:
        return _COMPARE[how], [kind, kind]
    if how == "nan":
        return lambda a, b: np.isnan(a) | np.isnan(b), [kind, kind]
    if how == "num":
        return lambda a, b: ~(np.isnan(a) | np.isnan(b)), [kind, kind]
    ordered = _COMPARE[how.removesuffix("u")]  # ltu and others hold for NaN
    return lambda a, b: ordered(a, b) | np.isnan(a) | np.isnan(b), [kind, kind]


def _integers(name: str, parts: list[str], kind: np.dtype) -> tuple[Callable[..., Values], list[Any]]:
    bits, unsigned = 8 * kind.itemsize, np.dtype(f"u{kind.itemsize}")
    if kind == np.bool_:
        table: dict[str, Any] = {
            "and": np.logical_and, "or": np.logical_or, "xor": np.logical_xor, "not": np.logical_not, "mov": np.array,
        }  # fmt: skip
        return table[name], [kind] * (1 if name in ("not", "mov") else 2)
    wide = np.dtype(f"{kind.kind}{2 * kind.itemsize}") if bits < 64 else kind
    if name == "mul" and parts[0] == "wide":
        return lambda a, b: a.astype(wide) * b.astype(wide), [kind, kind]
    if name == "mul" and parts[0] == "hi":
        return lambda a, b: ((a.astype(wide) * b.astype(wide)) >> np.array(bits, wide)).astype(kind), [kind, kind]
    if name == "mad" and parts[0] == "wide":
        return lambda a, b, c: a.astype(wide) * b.astype(wide) + c, [kind, kind, wide]
    if name == "mad":
        return lambda a, b, c: a * b + c, [kind] * 3
    if name in ("shl", "shr"):
        shift = np.left_shift if name == "shl" else np.right_shift

        def shifted(a: Values, b: Values) -> Values:
            far = b >= bits
            amount = np.where(far, 0, b).astype(kind)
            beyond = (a >> np.array(bits - 1, kind)) if name == "shr" and kind.kind == "i" else np.zeros_like(a)
            return np.where(far, beyond, shift(a, amount))

        return shifted, [kind, np.dtype("u4")]
    if name == "bfe":

        def extracted(a: Values, begin: Values, count: Values) -> Values:
            """Bits of a number, which has copies of its sign above it; those of a signed one begin with their sign."""
            field = a.astype(np.int64) >> np.minimum(begin, 63).astype(np.int64)
            above = np.int64(64) - np.minimum(count, 64).astype(np.int64)
            wide = np.int64 if kind.kind == "i" else np.uint64
            kept = (field << np.minimum(above, 63)).view(wide) >> np.minimum(above, 63).astype(wide)
            return np.where(count == 0, 0, kept).astype(kind)

        assert bits < 64
        return extracted, [kind, np.dtype("u4"), np.dtype("u4")]
    table = {
        "mov": (np.array, 1), "not": (np.invert, 1), "neg": (np.negative, 1), "abs": (np.abs, 1), "add": (np.add, 2),
        "sub": (np.subtract, 2), "mul": (np.multiply, 2), "and": (np.bitwise_and, 2), "or": (np.bitwise_or, 2),
        "xor": (np.bitwise_xor, 2), "min": (np.minimum, 2), "max": (np.maximum, 2),
    }  # fmt: skip
    if name == "prmt":
        return _permuted, [unsigned] * 3
    compute, count = table[name]
    return compute, [kind] * count


def _permuted(a: Values, b: Values, choice: Values) -> Values:
    every = np.uint64(a).astype(np.uint64) | (b.astype(np.uint64) << np.uint64(32))
    found = np.zeros(np.broadcast(a, b, choice).shape, np.uint64)
    for i in range(4):
        which = (choice.astype(np.uint64) >> np.uint64(4 * i)) & np.uint64(7)
        found |= ((every >> (which * np.uint64(8))) & np.uint64(255)) << np.uint64(8 * i)
    return found.astype(np.uint32)


def _floats(name: str, parts: list[str], kind: np.dtype) -> tuple[Callable[..., Values], list[Any]]:
    flush, down = "ftz" in parts, "rm" in parts

    def rounded(value: Values) -> Values:
        """A result that was computed in float64: to the nearest, or down."""
        found = value.astype(kind)
        if down:
            found = np.where(found.astype(np.float64) > value, np.nextafter(found, np.array(-np.inf, kind)), found)
        return (
            np.where(np.abs(found) < np.finfo(np.float32).tiny, found * 0, found)
            if flush and kind == np.float32
            else found
        )

    table: dict[str, tuple[Any, int]] = {
        "mov": (lambda a: a, 1), "neg": (np.negative, 1), "abs": (np.abs, 1), "add": (np.add, 2), "sub": (np.subtract, 2),
        "mul": (np.multiply, 2), "fma": (lambda a, b, c: a * b + c, 3), "div": (np.divide, 2),
        "rcp": (np.reciprocal, 1), "sqrt": (np.sqrt, 1), "rsqrt": (lambda a: 1 / np.sqrt(a), 1), "ex2": (np.exp2, 1),
        "lg2": (np.log2, 1), "sin": (np.sin, 1), "cos": (np.cos, 1), "tanh": (np.tanh, 1),
        "min": (np.fmin if "NaN" not in parts else np.minimum, 2), "max": (np.fmax if "NaN" not in parts else np.maximum, 2),
    }  # fmt: skip
    compute, count = table[name]
    if name == "mov":
        return compute, [kind]
    return lambda *values: rounded(compute(*(v.astype(np.float64) for v in values))), [kind] * count


def _conversion(parts: list[str]) -> tuple[Callable[..., Values], list[Any]]:
    to, of = parts[-2:]
    source = np.dtype(_TYPES[of])
    if to in ("bf16x2", "f16x2"):
        half = np.dtype(_TYPES[to.removesuffix("x2")])

        def packed(high: Values, low: Values) -> Values:
            bits = [as_type(v.astype(half), np.uint16).astype(np.uint32) for v in np.broadcast_arrays(high, low)]
            return (bits[0] << np.uint32(16)) | bits[1]

        return packed, [source, source]
    if to == "tf32":  # to the nearest number with 10 bits behind the point, of two the one away from zero
        assert "rna" in parts, parts
        return lambda a: (as_type(a, np.uint32) + np.uint32(1 << 12)) & _TF32, [source]
    target = np.dtype(_TYPES[to])

    def converted(a: Values) -> Values:
        if source.kind not in "iu" and target.kind in "iu":
            rounding = {"rni": np.rint, "rzi": np.trunc, "rmi": np.floor, "rpi": np.ceil}
            value = next(rounding[p] for p in parts if p in rounding)(a.astype(np.float64))
            limits = np.iinfo(target)
            clipped = np.clip(np.nan_to_num(value, nan=0), limits.min, limits.max)
            return clipped.astype(target)
        if "sat" in parts:
            a = np.clip(np.nan_to_num(a.astype(np.float64), nan=0), 0, 1)
        return a.astype(target)

    return converted, [source]


# --- instructions with effects, and those of whole warps ------------------------------------------------------------------------------


def _load(machine: Machine, space: str, addresses: Values, threads: Values, kind: Any, count: int) -> list[Values]:
    """Elements at addresses, in some threads; zero in the others."""
    nbytes = np.dtype(kind).itemsize
    memory: Any = machine.shared if space == "shared" else machine.memory
    places = memory.places(addresses[threads], nbytes * count)
    if space == "shared":
        taken = machine.shared.load(places, nbytes * count, np.flatnonzero(threads) // WARP)
    else:
        taken = memory.bytes[places[:, None] + np.arange(nbytes * count)]
    values = np.zeros((count, threads.size), kind)
    values[:, threads] = np.ascontiguousarray(taken).view(kind).T
    return list(values)


def _store(machine: Machine, space: str, addresses: Values, threads: Values, values: list[Values]) -> None:
    nbytes = values[0].dtype.itemsize
    memory: Any = machine.shared if space == "shared" else machine.memory
    places = memory.places(addresses[threads], nbytes * len(values))
    stored = np.stack([value[threads] for value in values], -1).view(np.uint8)
    if space == "shared":
        machine.shared.store(places, stored, np.flatnonzero(threads) // WARP)
    else:
        memory.bytes[places[:, None] + np.arange(nbytes * len(values))] = stored


def _load_from(parts: list[str], operands: list[str], guard: str | None) -> Operation:
    space, kind = parts[0].split("::")[0], np.dtype(_TYPES[parts[-1]])
    names = [n.strip() for n in operands[0].strip("{} ").split(",")]
    if space == "param":
        number = int(re.search(r"_param_(\d+)", operands[1])[1])  # type: ignore[index]
        return lambda machine: machine.write(names[0], np.array([machine.arguments[number]], np.uint64).view(kind))
    where = _address(operands[1])

    def run(machine: Machine) -> None:
        threads = machine.active if guard is None else guarded(machine, guard)
        for one, values in zip(names, _load(machine, space, where(machine), threads, kind, len(names)), strict=True):
            machine.write(one, values, threads)

    return run


def _store_to(parts: list[str], operands: list[str], guard: str | None) -> Operation:
    space, kind = parts[0].split("::")[0], np.dtype(_TYPES[parts[-1]])
    where = _address(operands[0])
    sources = [_source(n.strip(), kind) for n in operands[1].strip("{} ").split(",")]

    def run(machine: Machine) -> None:
        threads = machine.active if guard is None else guarded(machine, guard)
        values = [np.broadcast_to(source(machine), threads.shape) for source in sources]
        _store(machine, space, where(machine), threads, values)

    return run


def _barrier(parts: list[str], operands: list[str], guard: str | None) -> Operation:
    def run(machine: Machine) -> None:
        if parts[0] == "warp":
            return
        if not machine.is_whole or guard is not None:
            raise Fault("a barrier that some threads do not reach")
        machine.shared.barrier()

    assert parts[0] == "warp" or operands == ["0"]
    return run


def _matrices(machine: Machine, where: Callable[[Machine], Values], count: int) -> tuple[Values, Values]:
    """Addresses of the rows of 8 x 8 matrices, and the warps that use them."""
    warps = np.flatnonzero(machine.whole_warps()[:, 0])
    rows = np.broadcast_to(where(machine), machine.active.shape).reshape(-1, WARP)[warps][:, : 8 * count]
    machine.shared.places(rows.ravel(), 16)
    return rows, warps


def _load_matrices(parts: list[str], operands: list[str], guard: str | None) -> Operation:
    assert guard is None
    assert parts[:3] == ["sync", "aligned", "m8n8"], parts
    names, where = [n.strip() for n in operands[0].strip("{} ").split(",")], _address(operands[1])

    def run(machine: Machine) -> None:
        rows, warps = _matrices(machine, where, len(names))
        taken = machine.shared.load(rows.ravel(), 16, np.repeat(warps, rows.shape[1]))
        found = np.ascontiguousarray(taken).view(np.uint16).reshape(*rows.shape, 8)  # [warps, matrices * 8, 8]
        for i, name in enumerate(names):
            matrix = found[:, 8 * i : 8 * i + 8]
            matrix = matrix.swapaxes(1, 2) if "trans" in parts else matrix
            values = np.zeros((machine.active.size // WARP, WARP), np.uint32)
            values[warps] = np.ascontiguousarray(matrix).reshape(len(warps), 64).view(np.uint32)
            machine.write(name, values.ravel())

    return run


def _store_matrices(parts: list[str], operands: list[str], guard: str | None) -> Operation:
    assert guard is None
    assert parts[:3] == ["sync", "aligned", "m8n8"], parts
    names, where = [n.strip() for n in operands[1].strip("{} ").split(",")], _address(operands[0])

    def run(machine: Machine) -> None:
        rows, warps = _matrices(machine, where, len(names))
        stored = np.empty((*rows.shape, 8), np.uint16)
        for i, name in enumerate(names):
            held = np.ascontiguousarray(machine.registers[name].reshape(-1, WARP)[warps]).view(np.uint16)
            matrix = held.reshape(len(warps), 8, 8)
            matrix = matrix.swapaxes(1, 2) if "trans" in parts else matrix
            stored[:, 8 * i : 8 * i + 8] = matrix
        machine.shared.store(rows.ravel(), stored.reshape(-1, 8).view(np.uint8), np.repeat(warps, rows.shape[1]))

    return run


_GROUP, _WITHIN = np.arange(WARP) // 4, np.arange(WARP) % 4


def _product(parts: list[str], operands: list[str], guard: str | None) -> Operation:
    """D = A B + C of a warp: 16 x 16 times 16 x 8, of TF32 16 x 8 times 8 x 8."""
    assert guard is None
    of_tf32 = parts[-2] == "tf32"
    assert parts[2] == ("m16n8k8" if of_tf32 else "m16n8k16"), parts
    assert parts[-1] == "f32", parts
    kind = np.dtype(np.float32 if of_tf32 else _TYPES[parts[-2]])
    d, a, b, c = ([n.strip() for n in one.strip("{} ").split(",")] for one in operands)
    sources = [[_source(n, np.uint32) for n in one] for one in (a, b)]
    sums = [_source(n, np.float32) for n in c]

    def pairs(machine: Machine, source: Callable[[Machine], Values]) -> Values:
        whole = np.ascontiguousarray(np.broadcast_to(source(machine), machine.active.shape))
        return whole.view(kind).reshape(-1, WARP, 2).astype(np.float32)

    def singles(machine: Machine, source: Callable[[Machine], Values]) -> Values:
        whole = np.broadcast_to(source(machine), machine.active.shape) & _TF32
        return whole.view(kind).reshape(-1, WARP)

    def factors(machine: Machine) -> tuple[Values, Values]:
        warps, depth = machine.active.size // WARP, 8 if of_tf32 else 16
        left, right = np.empty((warps, 16, depth), np.float32), np.empty((warps, depth, 8), np.float32)
        for i, source in enumerate(sources[0]):
            row = _GROUP + 8 * (i % 2)
            if of_tf32:
                left[:, row, _WITHIN + 4 * (i // 2)] = singles(machine, source)
                continue
            column, held = 2 * _WITHIN + 8 * (i // 2), pairs(machine, source)
            left[:, row, column], left[:, row, column + 1] = held[..., 0], held[..., 1]
        for i, source in enumerate(sources[1]):
            if of_tf32:
                right[:, _WITHIN + 4 * i, _GROUP] = singles(machine, source)
                continue
            row, held = 2 * _WITHIN + 8 * i, pairs(machine, source)
            right[:, row, _GROUP], right[:, row + 1, _GROUP] = held[..., 0], held[..., 1]
        return left, right

    def run(machine: Machine) -> None:
        machine.whole_warps()
        left, right = factors(machine)
        product = left.astype(np.float64) @ right.astype(np.float64)
        for i, name in enumerate(d):
            found = product[:, _GROUP + 8 * (i // 2), 2 * _WITHIN + i % 2].reshape(-1)
            machine.write(name, (found + sums[i](machine)).astype(np.float32))

    return run


def _shuffle(parts: list[str], operands: list[str], guard: str | None) -> Operation:
    """A value of another lane of the warp."""
    assert guard is None
    assert parts[0] == "sync", parts
    target = operands[0].split("|")
    value, amount, limit = (_source(text, np.uint32) for text in operands[1:4])

    def run(machine: Machine) -> None:
        machine.whole_warps()
        lanes = np.arange(machine.active.size) % WARP
        by, clamp = amount(machine).astype(np.int64), limit(machine).astype(np.int64)
        segment = (clamp >> 8) & 31
        last = (lanes & segment) | (clamp & 31 & ~segment)
        other = {"bfly": lanes ^ by, "up": lanes - by, "down": lanes + by, "idx": (lanes & segment) | (by & ~segment)}[
            parts[1]
        ]
        inside = other >= last if parts[1] == "up" else other <= last
        chosen = np.where(inside, other, lanes) + np.arange(machine.active.size) // WARP * WARP
        machine.write(target[0], np.broadcast_to(value(machine), machine.active.shape)[chosen])
        if len(target) > 1:
            machine.write(target[1], inside)

    return run


_SPECIAL: dict[str, Callable[[list[str], list[str], str | None], Operation]] = {
    "ld": _load_from, "st": _store_to, "bar": _barrier, "barrier": _barrier, "ldmatrix": _load_matrices,
    "stmatrix": _store_matrices, "mma": _product, "shfl": _shuffle,
}  # fmt: skip
