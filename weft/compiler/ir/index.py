"""Indices of tensor elements as formulas of loop variables: the arithmetic behind all movement of data.

An `Index` is a sum `offset + coefficient * term + ...`. A term is a loop, or something that is not linear in loops but known
to lie in `range(term.size)`: a quotient, a remainder, a clamped index, a number read from a tensor. Reshapes divide; most divisions are
exact because the parts of a sum have known ranges, and then no opaque term remains.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import field
from functools import cached_property, partial
from math import gcd
from typing import NamedTuple

from ...graph.node import Node, Shape
from ...records import dataclass

_serial = itertools.count().__next__


@dataclass(frozen=True, eq=False)
class Loop:
    """A loop variable that runs through range(size)."""

    size: int
    serial: int = field(default_factory=_serial)

    def __repr__(self) -> str:
        return f"i{self.serial}<{self.size}"


@dataclass(frozen=True)
class Quotient:
    """inner // by."""

    inner: IndexExpr
    by: int
    size: int


@dataclass(frozen=True)
class Remainder:
    """inner % size."""

    inner: IndexExpr
    size: int


@dataclass(frozen=True)
class Inside:
    """inner where low <= inner < high, else 0: an index that is safe to read even if inner is in the padding. With a `step` above 1, inner
    must also be a multiple of it, and is divided by it.
    """

    inner: IndexExpr
    size: int  # after the division
    step: int = 1


@dataclass(frozen=True)
class Read:
    """A number read from an integer tensor: the index of a gather along an axis of this size."""

    node: Node
    place: tuple[IndexExpr, ...]
    size: int
    gather: Node


Term = Loop | Quotient | Remainder | Inside | Read


class _Fields(NamedTuple):
    offset: int = 0
    parts: tuple[tuple[Term, int], ...] = ()  # no term twice, no coefficient 0


class IndexExpr(_Fields):
    """offset + the sum of coefficient * term. A tuple, because the compiler creates, compares and hashes a large number of them."""

    def __add__(self, other: IndexExpr | int) -> IndexExpr:  # type: ignore[override]
        if isinstance(other, int):
            return IndexExpr(self.offset + other, self.parts) if other else self
        if not other.parts:
            return self + other.offset
        total = dict(self.parts)
        for term, coefficient in other.parts:
            total[term] = total.get(term, 0) + coefficient
        return _recombined(self.offset + other.offset, {t: c for t, c in total.items() if c})

    def __mul__(self, factor: int) -> IndexExpr:  # type: ignore[override]
        if factor == 1:
            return self
        return IndexExpr(self.offset * factor, tuple((t, c * factor) for t, c in self.parts)) if factor else IndexExpr()

    def __rsub__(self, number: int) -> IndexExpr:
        return self * -1 + number

    @property
    def low(self) -> int:
        return self.offset + sum(c * (t.size - 1) for t, c in self.parts if c < 0 and t.size)

    @property
    def high(self) -> int:
        """The greatest value."""
        return self.offset + sum(c * (t.size - 1) for t, c in self.parts if c > 0 and t.size)

    @cached_property
    def loops(self) -> frozenset[Loop]:
        """All loops it depends on, also inside opaque terms."""
        found: set[Loop] = set()
        for term, _ in self.parts:
            found |= loops_of(term)
        return frozenset(found)

    def coefficient(self, loop: Loop) -> int | None:
        """The coefficient of a loop; None if the index is not linear in it."""
        result = 0
        for term, c in self.parts:
            if term is loop:
                result = c
            elif loop in loops_of(term):
                return None
        return result

    def divided(self, by: int) -> tuple[IndexExpr, IndexExpr]:
        """Quotient and remainder by a number above 0."""
        if by == 1:
            return self, IndexExpr()
        # Terms that are divisible go to the quotient; the others are the remainder if their sum is known to be less than the divisor.
        whole = tuple((t, c // by) for t, c in self.parts if c % by == 0)
        rest = IndexExpr(self.offset % by, tuple((t, c) for t, c in self.parts if c % by))
        quotient = IndexExpr(self.offset // by, whole)
        if rest.low >= 0 and rest.high < by:
            return quotient, rest
        common = gcd(by, *(c for _, c in rest.parts))
        if common > 1:  # (6 i + 1) // 4 == (3 i + 0) // 2
            small = IndexExpr(rest.offset // common, tuple((t, c // common) for t, c in rest.parts))
            q, r = small.divided(by // common)
            return quotient + q, r * common + rest.offset % common
        for step in sorted({c for _, c in rest.parts if c > 1 and by % c == 0}, reverse=True):
            # (8 i + j) // 128 == i // 16 for j below 8, and the remainder is 8 (i % 16) + j
            below = IndexExpr(rest.offset % step, tuple((t, c) for t, c in rest.parts if c % step))
            if below.low >= 0 and below.high < step:
                above = IndexExpr(rest.offset // step, tuple((t, c // step) for t, c in rest.parts if c % step == 0))
                q, r = above.divided(by // step)
                return quotient + q, r * step + below
        if len(rest.parts) == 1 and rest.parts[0][1] == 1 and not rest.offset:
            [(lone, _)] = rest.parts
            if isinstance(lone, Quotient):  # x // a // b == x // (a b)
                q = IndexExpr(0, ((Quotient(lone.inner, lone.by * by, -(-lone.size // by)), 1),))
                return quotient + q, IndexExpr(0, ((Remainder(rest, by), 1),))
            if (
                isinstance(lone, Remainder) and lone.size % by == 0
            ):  # x % (a b) // b == x // b % a, x % (a b) % b == x % b
                q, r = lone.inner.divided(by)
                return quotient + q.divided(lone.size // by)[1], r
        lift = -(rest.low // by)  # opaque terms count from 0
        lifted = rest + lift * by
        size = lifted.high // by + 1
        return quotient + IndexExpr(-lift, ((Quotient(lifted, by, size), 1),)), IndexExpr(
            0, ((Remainder(lifted, by), 1),)
        )

    def __repr__(self) -> str:
        words = [f"{c}*{t}" if c != 1 else f"{t}" for t, c in self.parts]
        return " + ".join(words + ([str(self.offset)] if self.offset or not words else []))


Place = tuple[IndexExpr, ...]


def _recombined(offset: int, parts: dict[Term, int]) -> IndexExpr:
    """The sum, with n * (x // n) + x % n written as x, and m * (x // m % n) + x % m as x % (m * n)."""
    for term, c in parts.items():
        if type(term) is Loop:
            continue
        for inner, by, joined in _undivided(term):
            if c % by:
                continue
            rest = inner.divided(by)[1] * (c // by)
            if all(parts.get(t) == k for t, k in rest.parts):
                gone = {term, *(t for t, _ in rest.parts)}
                others = IndexExpr(offset - rest.offset, tuple((t, k) for t, k in parts.items() if t not in gone))
                return others + joined() * (c // by)
    return IndexExpr(offset, tuple(parts.items()))


def _undivided(term: Term) -> Iterable[tuple[IndexExpr, int, Callable[[], IndexExpr]]]:
    """The dividend and divisor of a quotient, and the term that `by * term + x % by` simplifies to."""
    if isinstance(term, Quotient):
        yield term.inner, term.by, lambda: term.inner
    if isinstance(term, Remainder):
        for part, c in term.inner.parts:
            if isinstance(part, Quotient) and c == 1:
                others = IndexExpr(term.inner.offset, tuple(p for p in term.inner.parts if p[0] is not part))
                inner = others * part.by + part.inner
                yield inner, part.by, partial(_rest, inner, part.by * term.size)


def _rest(x: IndexExpr, by: int) -> IndexExpr:
    return x.divided(by)[1]


def loops_of(term: Term) -> frozenset[Loop]:
    if isinstance(term, Loop):
        return frozenset((term,))
    if isinstance(term, Read):
        return frozenset().union(*(i.loops for i in term.place))
    return term.inner.loops


def loop(size: int) -> IndexExpr:
    """A new loop as an index; 0 for an axis of size 1."""
    return IndexExpr(0, ((Loop(size), 1),)) if size != 1 else IndexExpr()


def fresh(shape: Sequence[int]) -> Place:
    """A place with a new loop for every axis."""
    return tuple(loop(n) for n in shape)


def strides(shape: Shape) -> Shape:
    """The strides of a contiguous tensor, in elements."""
    result, step = [], 1
    for n in reversed(shape):
        result.append(step)
        step *= n
    return tuple(reversed(result))


def linear(place: Place, shape: Shape) -> IndexExpr:
    """The position of a place in a contiguous tensor."""
    offset, parts = 0, dict[Term, int]()
    for index, stride in zip(place, strides(shape), strict=True):
        offset += index.offset * stride
        for term, c in index.parts if stride else ():
            if type(term) is not Loop or term in parts:
                return _sum(i * stride for i, stride in zip(place, strides(shape), strict=True))
            parts[term] = c * stride
    return IndexExpr(offset, tuple(parts.items()))


def _sum(indices: Iterable[IndexExpr]) -> IndexExpr:
    total = IndexExpr()
    for index in indices:
        total = total + index
    return total


def reshaped(place: Place, shape: Shape, target: Shape) -> Place:
    """The place in a tensor of shape `target` with the same position as `place` in one of shape `shape`."""
    if 0 in shape:
        return (IndexExpr(),) * len(target)  # there is no place at all
    # Axes are matched in groups of equal size, so that only axes that are regrouped are divided.
    result: list[IndexExpr] = []
    i = j = 0
    while i < len(shape) or j < len(target):
        if i < len(shape) and shape[i] == 1:
            i += 1
            continue
        if j < len(target) and target[j] == 1:
            result.append(IndexExpr())
            j += 1
            continue
        first, second = i, j
        left, right = shape[i], target[j]
        i, j = i + 1, j + 1
        while left != right:
            if left < right:
                left, i = left * shape[i], i + 1
            else:
                right, j = right * target[j], j + 1
        result.extend(_regrouped(place[first:i], shape[first:i], target[second:j]))
    return tuple(result)


def _regrouped(place: Place, shape: Shape, target: Shape) -> Iterable[IndexExpr]:
    if len(place) == 1 and len(target) == 1:
        return place
    position = linear(place, shape)
    parts = []
    for n in reversed(target[1:]):
        position, rest = position.divided(n)
        parts.append(rest)
    return [position, *reversed(parts)]


def substituted(index: IndexExpr, values: Mapping[Loop, IndexExpr]) -> IndexExpr:
    """The index with loops replaced; divisions are simplified again, since more may be exact."""
    if index.loops.isdisjoint(values):
        return index
    total = IndexExpr(index.offset)
    for term, c in index.parts:
        total = total + _substituted_term(term, values) * c
    return total


def _substituted_term(term: Term, values: Mapping[Loop, IndexExpr]) -> IndexExpr:
    if isinstance(term, Loop):
        return values.get(term, IndexExpr(0, ((term, 1),)))
    if isinstance(term, Read):
        place = tuple(substituted(i, values) for i in term.place)
        return IndexExpr(0, ((Read(term.node, place, term.size, term.gather), 1),))
    inner = substituted(term.inner, values)
    if isinstance(term, Quotient):
        return inner.divided(term.by)[0]
    if isinstance(term, Remainder):
        return inner.divided(term.size)[1]
    return inside(inner, term.size, term.step)


def inside(index: IndexExpr, size: int, step: int = 1) -> IndexExpr:
    """A safe index in range(size): index // step where that is in the range, else 0."""
    if index.low >= 0 and index.high <= (size - 1) * step:
        quotient, rest = index.divided(step)
        if rest == IndexExpr():
            return quotient
    return IndexExpr(0, ((Inside(index, size, step), 1),))


def moved(node: Node, place: Place) -> list[tuple[Node, Place, tuple[Inside, ...]]]:
    """Where a movement op reads the element of its result at a place: (input, place in it, the conditions under which it is read).

    Several entries (of `concat`) are alternatives, tried in order; if no condition holds, `pad` has its filler.
    """
    name, x = node.op.name, node.inputs[0]
    if name == "reshape":
        return [(x, reshaped(place, node.shape, x.shape), ())]
    if name == "permute":
        order: Sequence[int] = node.param("axes")
        back = [IndexExpr()] * len(order)
        for position, axis in enumerate(order):
            back[axis] = place[position]
        return [(x, tuple(back), ())]
    if name == "expand":
        extra = len(node.shape) - len(x.shape)
        return [(x, tuple(IndexExpr() if n == 1 else i for n, i in zip(x.shape, place[extra:], strict=True)), ())]
    if name == "slice":
        starts, steps = node.get_params("starts", "steps")
        return [(x, tuple(i * s + a for i, a, s in zip(place, starts, steps, strict=True)), ())]
    if name == "flip":
        axes = node.param("axes")
        return [
            (x, tuple((n - 1) - i if a in axes else i for a, (i, n) in enumerate(zip(place, x.shape, strict=True))), ())
        ]
    if name == "pad":
        return [_padded(x, place, node.param("widths"))]
    assert name == "concat", name
    return list(_concatenated(node, place))


def _padded(x: Node, place: Place, widths: Sequence[tuple[int, int, int]]) -> tuple[Node, Place, tuple[Inside, ...]]:
    found, conditions = [], []
    for i, n, (low, _, gap) in zip(place, x.shape, widths, strict=True):
        safe = inside(i + -low, n, gap + 1)
        if safe.parts and isinstance(safe.parts[0][0], Inside) and safe.parts[0][0].inner == i + -low:
            conditions.append(safe.parts[0][0])
        found.append(safe)
    return x, tuple(found), tuple(conditions)


def _concatenated(node: Node, place: Place) -> Iterable[tuple[Node, Place, tuple[Inside, ...]]]:
    axis, start = node.param("axis"), 0
    for x in node.inputs:
        n = x.shape[axis]
        here = place[axis] + -start
        if n and here.high >= 0 and here.low < n:
            safe = inside(here, n)
            opaque = safe.parts[0][0] if safe.parts else None
            conditions = (opaque,) if isinstance(opaque, Inside) and opaque.inner == here else ()
            yield x, (*place[:axis], safe, *place[axis + 1 :]), conditions
        start += n
