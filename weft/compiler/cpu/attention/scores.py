"""Rows of scores: which keys of a block a query attends to, what is added to the scores, and which weights dropout keeps."""

from __future__ import annotations

import functools
from collections.abc import Callable

from llvmlite import ir

from ....dtypes import as_dtype
from ....records import dataclass
from ..combiners import philox
from ..gemm.packing import ELEMENTS, read_as
from ..ir_builder import F32, F64, I8, I32, I64, PTR, Code, Value, constant, like, vector

INFINITY = float("inf")
SHORT = {"float32": "f32", "float64": "f64", "float16": "f16", "bfloat16": "bf16"}  # dtypes as they are part of symbols
# Numbers that all kernels of attention take, after their own.
NUMBERS = (
    "tid", "threads", "batch", "heads", "key_heads", "queries", "keys", "width", "values", "left", "right", "shift", "scale", "work",
)  # fmt: skip
# The pointers and numbers that each feature of a kernel reads.
FEATURES: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "left": ((), ()),
    "right": ((), ()),
    "aligned": ((), ()),  # to the last key that counts: with lengths
    "lengths": (("lengths",), ()),
    "mask": (("mask",), ("mask_batch", "mask_head", "mask_row", "mask_step")),
    "bias": (("bias",), ("bias_batch", "bias_head", "bias_row", "bias_step")),
    "slopes": (("slopes",), ()),
    "dropout": (("key", "offset"), ("kept", "kept_scale")),
}


@dataclass(frozen=True)
class Variant:
    """A kernel as its symbol names it: attention.PART.TYPE.DTYPE.WIDTH.VALUES.FEATURES.BIAS.SLOPES.LENGTHS.RESULTS."""

    part: str
    kind: str
    dtype: str
    width: int
    values: int
    features: tuple[str, ...]
    types: tuple[str, str, str]  # of the bias, the slopes and the lengths, if there are any
    results: tuple[str, ...]

    @property
    def symbol(self) -> str:
        sizes = (str(self.width), str(self.values))
        return ".".join(
            [
                "attention",
                self.part,
                self.kind,
                self.dtype,
                *sizes,
                "-".join(self.features),
                *self.types,
                "-".join(self.results),
            ]
        )

    @classmethod
    def parse(cls, symbol: str) -> Variant:
        _, part, kind, dtype, width, values, features, bias, slopes, lengths, results = symbol.split(".")
        listed = tuple(f for f in features.split("-") if f)
        return cls(
            part, kind, dtype, int(width), int(values), listed, (bias, slopes, lengths), tuple(results.split("-"))
        )

    def arguments(self, pointers: tuple[str, ...], numbers: tuple[str, ...]) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """The pointers and numbers of the kernel, its own first."""
        more = [FEATURES[feature] for feature in self.features]
        return (
            (*pointers, *(name for names, _ in more for name in names)),
            (*numbers, *NUMBERS, *(name for _, names in more for name in names)),
        )


def begin(
    module: ir.Module, variant: Variant, pointers: tuple[str, ...], numbers: tuple[str, ...]
) -> tuple[Code, dict[str, Value]]:
    """Begin the function of a kernel, with its arguments by name."""
    first, second = variant.arguments(pointers, numbers)
    code = Code.begin(module, variant.symbol, [PTR] * len(first) + [I64] * len(second))
    return code, dict(zip((*first, *second), code.arguments, strict=True))


class RowWriter:
    """Emits what happens to a row of scores."""

    def __init__(self, code: Code, of: dict[str, Value], variant: Variant, lanes: int) -> None:
        self.code, self.of, self.variant, self.lanes = code, of, variant, lanes
        self.element = ELEMENTS[variant.kind]
        self.type = vector(self.element, lanes)
        self.scale = self._number(of["scale"])
        self.numbers, self.wide_numbers = (
            ir.Constant(ir.VectorType(t, lanes), [ir.Constant(t, i) for i in range(lanes)])
            if lanes > 1
            else constant(t, 0)
            for t in (I32, I64)
        )

    def has(self, feature: str) -> bool:
        return feature in self.variant.features

    def _number(self, bits: Value) -> Value:
        """A float that was passed as the bits of a float64."""
        value = self.code.bitcast(bits, F64)
        return self.code.fptrunc(value, F32) if self.element == F32 else value

    def example(self, b: Value) -> None:
        """Begin an example: how many keys count, and the position of its first query."""
        code, of = self.code, self.of
        self.limit, self.shift = of["keys"], of["shift"]
        if self.has("lengths"):
            length = code.read(of["lengths"], b, ir.IntType(as_dtype(self.variant.types[2]).bits))
            length = length if length.type == I64 else code.sext(length, I64)
            self.limit = code.maximum(0, code.minimum(of["keys"], length))
            if self.has("aligned"):
                self.shift = code.sub(length, of["queries"])

    def key_range(self, first: Value, last: Value) -> tuple[Value, Value]:
        """The keys [begin, end) that queries from first to last (inclusive) attend to."""
        code, of = self.code, self.of
        begin: Value = code.i64(0)
        end = self.limit
        if self.has("left"):
            begin = code.maximum(0, code.sub(code.plus(first, self.shift), of["left"]))
        if self.has("right"):
            end = code.maximum(0, code.minimum(end, code.plus(last, self.shift, of["right"], 1)))
        return begin, end

    def query_range(self, first: Value, last: Value) -> tuple[Value, Value]:
        """The queries [begin, end) that attend to keys from first to last (inclusive)."""
        code, of = self.code, self.of
        begin: Value = code.i64(0)
        end = of["queries"]
        if self.has("right"):
            begin = code.maximum(0, code.sub(code.sub(first, self.shift), of["right"]))
        if self.has("left"):
            end = code.minimum(end, code.plus(code.sub(last, self.shift), of["left"], 1))
        return begin, code.select(code.icmp_signed("<", first, self.limit), end, code.i64(0))

    def row(self, b: Value, h: Value, i: Value, key: Value, count: Value) -> tuple[Value, Value]:
        """Begin the row of query i and a block of `count` keys from `key` on; the vectors [first, end) of it that it attends to."""
        code, of = self.code, self.of
        self.key = key
        begin, end = self.key_range(i, i)
        self.begin = code.maximum(0, code.minimum(count, code.sub(begin, key))) if self.has("left") else code.i64(0)
        self.end = code.maximum(self.begin, code.minimum(count, code.sub(end, key)))
        self.position = code.plus(i, self.shift)
        for name in ("mask", "bias"):
            if self.has(name):
                parts = zip((b, h, i), ("batch", "head", "row"), strict=True)
                setattr(self, name, code.plus(*(code.mul(at, of[f"{name}_{part}"]) for at, part in parts)))
        if self.has("slopes"):
            slope = read_as(code, of["slopes"], h, self.variant.types[1], self._kind(self.variant.types[1]), 1)
            self.slope = code.splat(self._as_element(slope), self.lanes)
        if self.has("dropout"):
            line = code.plus(code.mul(code.plus(code.mul(b, of["heads"]), h), of["queries"]), i)
            self.counter = code.plus(code.mul(line, of["keys"]), key)
        whole = constant(I64, -self.lanes)
        return code.and_(self.begin, whole), code.and_(code.plus(self.end, self.lanes - 1), whole)

    def _kind(self, source: str) -> str:
        return "f64" if source == "f64" else "f32"

    def _as_element(self, value: Value) -> Value:
        if value.type == like(value.type, self.element):
            return value
        return (self.code.fpext if self.element == F64 else self.code.fptrunc)(value, like(value.type, self.element))

    def segments(self, first: Value, end: Value) -> list[tuple[Value, Value, bool]]:
        """The vectors [first, end) of a row in three parts (begin, end, whether it has places that do not count): only the ends have some."""
        code, whole = self.code, constant(I64, -self.lanes)
        inner = code.minimum(end, code.and_(code.plus(self.begin, self.lanes - 1), whole))
        outer = code.maximum(inner, code.and_(self.end, whole))
        return [(first, inner, True), (inner, outer, False), (outer, end, True)]

    @property
    def is_plain(self) -> bool:
        """Whether scores are products times the scale, and nothing more."""
        return not any(map(self.has, ("bias", "slopes", "mask")))

    def scores(self, products: Value, at: Value, edge: bool) -> Value:
        """The scores of a vector of products, from a place of the block: -inf where the query does not attend."""
        code = self.code
        scores = code.fmul(products, code.splat(self.scale, self.lanes))
        place = (
            code.add(code.splat(code.trunc(at, I32), self.lanes), self.numbers)
            if self.lanes > 1
            else code.trunc(at, I32)
        )
        if self.has("bias"):
            scores = code.fadd(scores, self._as_element(self._given("bias", at)))
        if self.has("slopes"):
            away = code.sub(self._many(code.sub(self.position, self.key)), place)
            away = code.select(code.icmp_signed("<", away, constant(away.type, 0)), code.neg(away), away)
            scores = code.fsub(scores, code.fmul(self.slope, code.sitofp(away, self.type)))
        tests = []
        if edge:
            tests += [
                code.icmp_signed(">=", place, self._many(self.begin)),
                code.icmp_signed("<", place, self._many(self.end)),
            ]
        if self.has("mask"):
            given = self._given("mask", at)
            tests.append(code.icmp_unsigned("!=", given, constant(given.type, 0)))
        if not tests:
            return scores
        inside = functools.reduce(code.and_, tests)
        return code.select(inside, scores, constant(self.type, -INFINITY))

    def _many(self, value: Value) -> Value:
        return self.code.splat(self.code.trunc(value, I32), self.lanes)

    def _given(self, name: str, at: Value) -> Value:
        """A vector of a mask or bias; beyond the last key, that of the last key."""
        code, of = self.code, self.of
        step = of[f"{name}_step"]
        start = code.plus(getattr(self, name), code.mul(code.plus(self.key, at), step))
        source = self.variant.types[0]

        def read(index: Value, lanes: int) -> Value:
            if name == "mask":
                return code.read(of["mask"], index, vector(I8, lanes))
            return read_as(code, of["bias"], index, source, self._kind(source), lanes)

        inside = code.icmp_signed("<=", code.plus(self.key, at, self.lanes), of["keys"])
        whole = code.and_(inside, code.icmp_signed("==", step, code.i64(1)))
        if self.lanes == 1:
            return read(start, 1)
        last = code.sub(code.plus(of["keys"], -1), code.plus(self.key, at))

        def one_by_one() -> Value:
            places = [code.plus(start, code.mul(code.minimum(lane, last), step)) for lane in range(self.lanes)]
            return code.gather_lanes([read(p, 1) for p in places])

        return _either(code, whole, lambda: read(start, self.lanes), one_by_one)

    def kept(self, at: Value) -> Value:
        """Which weights of a vector dropout keeps."""
        code = self.code
        place = (
            code.add(code.splat(code.plus(self.counter, at), self.lanes), self.wide_numbers)
            if self.lanes > 1
            else code.plus(self.counter, at)
        )
        bits = philox(code, place, self.key_of_stream, self.offset_of_stream)
        wide = code.zext(bits, like(bits.type, I64))
        return code.icmp_unsigned("<", wide, code.splat(self.of["kept"], self.lanes))

    def begin_dropout(self) -> None:
        if self.has("dropout"):
            self.key_of_stream = self.code.read(self.of["key"], 0, I64)
            self.offset_of_stream = self.code.read(self.of["offset"], 0, I64)
            self.kept_scale = self.code.splat(self._number(self.of["kept_scale"]), self.lanes)

    def dropped(self, weights: Value, at: Value) -> Value:
        """Weights after dropout, or the gradients of weights before it."""
        if not self.has("dropout"):
            return weights
        code = self.code
        return code.select(self.kept(at), code.fmul(weights, self.kept_scale), constant(self.type, 0.0))


def _either(code: Code, test: Value, first: Callable[[], Value], second: Callable[[], Value]) -> Value:
    """One of two values, of which only one is computed."""
    with code.if_else(test) as (then, otherwise):
        with then:
            a = first()
            from_a = code.block
        with otherwise:
            b = second()
            from_b = code.block
    result = code.phi(a.type)
    result.add_incoming(a, from_a)
    result.add_incoming(b, from_b)
    return result
