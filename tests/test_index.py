"""Checks the arithmetic of places: divisions and reshapes keep every value, and what was divided comes back as a plain sum."""

from collections.abc import Iterable, Mapping
from math import prod

import numpy as np
import pytest

from weft.compiler.ir.index import (
    IndexExpr,
    Inside,
    Loop,
    Place,
    Quotient,
    Remainder,
    Term,
    fresh,
    inside,
    linear,
    loop,
    reshaped,
    strides,
    substituted,
)
from weft.testing import counted, generator

Values = Mapping[Loop, int]


def value(index: IndexExpr, at: Values) -> int:
    """What an index is where the loops are there. No term may leave its range on the way."""
    total = index.offset
    for term, coefficient in index.parts:
        number = term_value(term, at)
        assert 0 <= number < term.size, f"{term} is {number}"
        total += coefficient * number
    return total


def term_value(term: Term, at: Values) -> int:
    match term:
        case Loop():
            return at[term]
        case Quotient():
            return value(term.inner, at) // term.by
        case Remainder():
            return value(term.inner, at) % term.size
        case Inside():
            quotient, rest = divmod(value(term.inner, at), term.step)
            return quotient if rest == 0 and 0 <= quotient < term.size else 0
    raise AssertionError(term)


def loops_in(place: Iterable[IndexExpr]) -> list[Loop]:
    return sorted({l for index in place for l in index.loops}, key=lambda l: l.serial)


def somewhere(loops: Iterable[Loop], rng: np.random.Generator) -> Values:
    return {l: int(rng.integers(l.size)) for l in loops}


def is_plain(index: IndexExpr) -> bool:
    """Whether nothing is divided."""
    return all(isinstance(term, Loop) for term, _ in index.parts)


def same_sum(a: IndexExpr, b: IndexExpr) -> bool:
    return (a.offset, dict(a.parts)) == (b.offset, dict(b.parts))


# --- division ---------------------------------------------------------------------------------------------------------------------


def random_index(rng: np.random.Generator, depth: int = 2) -> IndexExpr:
    """A sum of loops, and of quotients and remainders of other such sums."""
    total = IndexExpr(int(rng.integers(-20, 20)))
    for _ in range(rng.integers(1, 4)):
        part = loop(int(rng.integers(1, 9)))
        if depth and rng.random() < 0.5:
            part = random_index(rng, depth - 1).divided(int(rng.choice([2, 3, 4, 6, 8])))[int(rng.integers(2))]
        total = total + part * int(rng.choice([-6, -4, -1, 1, 1, 2, 3, 4, 8, 12]))
    return total


def test_quotient_and_remainder_are_those_of_numbers() -> None:
    rng = generator("divided")
    for _ in range(1500):
        index, by = random_index(rng), int(rng.choice([1, 2, 3, 4, 6, 8, 12, 16, 24]))
        quotient, rest = index.divided(by)
        for _ in range(6):
            at = somewhere(index.loops, rng)
            assert (value(quotient, at), value(rest, at)) == divmod(value(index, at), by), (index, by)
        assert quotient.loops <= index.loops
        assert same_sum(quotient * by + rest, index) or not is_plain(index)
        counted()


def test_sums_keep_their_value() -> None:
    """Also where quotients and remainders of the same, which may become one, meet others."""
    rng = generator("sums")
    for _ in range(1500):
        index, other, by = random_index(rng), random_index(rng), int(rng.choice([2, 3, 4, 8]))
        quotient, rest = index.divided(by)
        factor, wrong = int(rng.integers(-3, 4)), int(rng.choice([by, by, by + 1, 1]))
        total = other + quotient * (wrong * factor) + (other.divided(by)[1] + rest * factor)
        for _ in range(4):
            at = somewhere([*index.loops, *other.loops], rng)
            q, r = divmod(value(index, at), by)
            wanted = value(other, at) + wrong * factor * q + value(other, at) % by + factor * r
            assert value(total, at) == wanted, (index, other, by, wrong, factor)
        counted()


I, J, K = (IndexExpr(0, ((Loop(n), 1),)) for n in (16, 8, 5))


@pytest.mark.parametrize(("index", "by", "quotient", "rest"), [
    (I * 8 + J, 8, I, J),  # the rest lies below the divisor
    (I * 8 + J + 24, 8, I + 3, J),
    (I * 24 + J, 8, I * 3, J),
    (I * 8 + J * -1 + 7, 8, I, J * -1 + 7),  # backwards
    (I, 16, IndexExpr(), I),
    (IndexExpr(29), 8, IndexExpr(3), IndexExpr(5)),
    (IndexExpr(-1), 8, IndexExpr(-1), IndexExpr(7)),
])  # fmt: skip
def test_what_divides_evenly_leaves_nothing_opaque(
    index: IndexExpr, by: int, quotient: IndexExpr, rest: IndexExpr
) -> None:
    assert index.divided(by) == (quotient, rest)


def opaque(index: IndexExpr) -> tuple[Term, int]:
    [(term, coefficient)] = index.parts
    return term, coefficient


def test_only_what_does_not_divide_is_divided() -> None:
    """(8 i + j) // 64 is i // 8: neither j nor the factor is left inside."""
    quotient, rest = (I * 8 + J).divided(64)
    assert opaque(quotient) == (Quotient(I, 8, 2), 1)
    assert same_sum(rest, IndexExpr(0, ((Remainder(I, 8), 8),)) + J)


def test_a_common_factor_is_taken_out() -> None:
    """(6 i + 1) // 4 is 3 i // 2, and 6 i + 1 % 4 is 2 (3 i % 2) + 1."""
    quotient, rest = (K * 6 + 1).divided(4)
    assert opaque(quotient) == (Quotient(K * 3, 2, 7), 1)
    assert same_sum(rest, IndexExpr(1, ((Remainder(K * 3, 2), 2),)))


def test_division_of_a_quotient_is_one_division() -> None:
    quotient = I.divided(2)[0]
    assert quotient.divided(4)[0] == I.divided(8)[0]


def test_a_remainder_of_a_remainder_is_one_remainder() -> None:
    remainder = I.divided(8)[1]
    assert remainder.divided(4)[1] == I.divided(4)[1]
    assert remainder.divided(4)[0] == I.divided(4)[0].divided(2)[1]


def test_quotient_and_remainder_come_together_again() -> None:
    total = I * 3 + K * -1
    for by in (2, 4, 7):
        quotient, rest = total.divided(by)
        assert not is_plain(quotient)
        assert same_sum(quotient * by + rest, total)
        assert same_sum(rest + quotient * by, total)
        assert same_sum(quotient * (5 * by) + J + rest * 5, total * 5 + J)
        assert not is_plain(quotient * (by + 1) + rest)
        assert not is_plain(quotient * by + rest * 2)
        assert not is_plain(quotient * by + (I * 5 + K).divided(by)[1])


def test_places_between_come_together_too() -> None:
    """4 (i // 4 % 2) + i % 4 is i % 8."""
    high, low = I.divided(4)
    middle = high.divided(2)[1]
    assert opaque(middle * 4 + low) == (Remainder(I, 8), 1)
    assert len((middle * 5 + low).parts) == 2


def test_a_remainder_with_an_offset_comes_together_too() -> None:
    """(2 i + 1) // 3 // 2 is one quotient, and the remainder by 6 is 2 (i % 3) + 1."""
    index = I * 2 + 1
    quotient, rest = index.divided(3)[0].divided(2)[0], index.divided(6)[1]
    assert rest.offset == 1
    assert same_sum(quotient * 6 + rest, index)


def test_a_multiple_of_a_quotient_is_none() -> None:
    """3 (2 (i // 3) % 5) + i % 3 is not i % 15."""
    quotient, rest = I.divided(3)
    total = (quotient * 2).divided(5)[1] * 3 + rest
    [(only, _)] = I.parts
    assert [value(total, {only: i}) for i in range(16)] == [3 * (2 * (i // 3) % 5) + i % 3 for i in range(16)]


# --- reshapes ---------------------------------------------------------------------------------------------------------------------


def random_shape(total: int, rng: np.random.Generator) -> tuple[int, ...]:
    """Some shape with so many elements."""
    found = []
    while total > 1:
        found.append(int(rng.choice([d for d in range(2, total + 1) if total % d == 0])))
        total //= found[-1]
    for _ in range(rng.integers(2)):
        found.insert(int(rng.integers(len(found) + 1)), 1)
    return tuple(found) or (1,)


def test_reshapes_keep_the_position() -> None:
    rng = generator("reshapes")
    plain = rounds = 0
    for _ in range(800):
        shape = tuple(int(n) for n in rng.choice([1, 2, 3, 4, 6, 8], rng.integers(1, 5)))
        start = place = fresh(shape)
        now = shape
        for _ in range(rng.integers(1, 4)):
            target = random_shape(prod(now), rng)
            place, now = reshaped(place, now, target), target
        assert len(place) == len(now)
        position = linear(place, now)
        for _ in range(8):
            at = somewhere(loops_in(start), rng)
            assert value(position, at) == value(linear(start, shape), at)
            found = [value(index, at) for index in place]
            assert all(0 <= f < n for f, n in zip(found, now, strict=True))
            assert np.ravel_multi_index(found, now) == value(linear(start, shape), at)
        plain += same_sum(position, linear(start, shape))
        rounds += 1
        counted()
    assert plain >= 0.98 * rounds  # the position is the plain sum that it was before


def back_and_forth(shape: tuple[int, ...], *others: tuple[int, ...]) -> tuple[Place, Place]:
    """A place, and what it is after reshapes to others and back."""
    start = place = fresh(shape)
    for before, after in zip((shape, *others), (*others, shape), strict=True):
        place = reshaped(place, before, after)
    return start, place


SHAPES = [
    ((4, 6), (24,)),
    ((24,), (4, 6)),
    ((4, 6), (6, 4)),
    ((8, 9), (2, 4, 3, 3)),
    ((2, 4, 3, 3), (8, 9)),
    ((2, 4, 3, 3), (24, 3)),
    ((5, 7), (7, 5)),
    ((12, 10), (8, 15)),
    ((2, 1, 12), (3, 8)),
    ((4, 6), (3, 8), (24,), (2, 12)),
    ((64, 56), (8, 8, 7, 8), (3584,), (64, 7, 8)),
]


@pytest.mark.parametrize("shapes", SHAPES, ids=str)
def test_there_and_back_is_nothing(shapes: tuple[tuple[int, ...], ...]) -> None:
    start, end = back_and_forth(*shapes)
    assert len(end) == len(start)
    assert all(map(same_sum, end, start))


@pytest.mark.parametrize(("shape", "target"), [
    ((8, 9), (2, 4, 3, 3)), ((24,), (4, 6)), ((2, 4, 3, 3), (8, 9)), ((4, 6), (24,)), ((3, 4, 5), (12, 5)), ((1, 6, 1), (6,)),
])  # fmt: skip
def test_rows_and_columns_as_images_and_back(shape: tuple[int, ...], target: tuple[int, ...]) -> None:
    """Axes that are joined are a plain sum; one that is cut divides its own loop alone, and only in the sums for its parts."""
    start = fresh(shape)
    place = reshaped(start, shape, target)
    assert same_sum(linear(place, target), linear(start, shape))
    assert all(len(index.loops) <= 1 for index in place) or len(target) < len(shape)
    if len(target) <= len(shape):
        assert all(map(is_plain, place))


def test_loops_that_were_cut_need_no_division() -> None:
    """Of 8 loops by 9, as (2, 4, 3, 3) loops: a place in the matrix divides nothing."""
    inner = fresh((2, 4, 3, 3))
    outer = reshaped(inner, (2, 4, 3, 3), (8, 9))
    assert all(map(is_plain, outer))
    assert reshaped(outer, (8, 9), (2, 4, 3, 3)) == inner


def test_substitution_divides_again() -> None:
    rng = generator("substituted")
    for _ in range(300):
        index = random_index(rng)
        values = {l: (loop(2) * 3 + loop(3)) if l.size >= 6 else IndexExpr(0, ((l, 1),)) for l in index.loops}
        found = substituted(index, values)
        for _ in range(4):
            at = somewhere(loops_in(values.values()), rng)
            assert value(found, at) == value(index, {l: value(v, at) for l, v in values.items()})
        counted()
    [wide] = fresh((24,))
    [(only, _)] = wide.parts
    rows, columns = fresh((4, 6))
    quotient, rest = wide.divided(6)
    assert substituted(quotient, {only: rows * 6 + columns}) == rows
    assert substituted(rest, {only: rows * 6 + columns}) == columns


# --- padding ------------------------------------------------------------------------------------------------------------------------


def test_places_that_are_safe() -> None:
    rng = generator("inside")
    for _ in range(300):
        index, size, step = random_index(rng), int(rng.integers(1, 12)), int(rng.integers(1, 4))
        safe = inside(index, size, step)
        for _ in range(4):
            at = somewhere(index.loops, rng)
            quotient, rest = divmod(value(index, at), step)
            assert value(safe, at) == (quotient if rest == 0 and 0 <= quotient < size else 0)
        counted()
    assert inside(I, 16) == I
    assert inside(I * 2, 16, 2) == I
    assert not is_plain(inside(I, 15))
    assert not is_plain(inside(I * 2 + 1, 16, 2))


def test_strides_are_those_of_numpy() -> None:
    for shape in ((), (3,), (2, 3, 4), (5, 1, 2)):
        assert strides(shape) == tuple(s // 8 for s in np.zeros(shape).strides)
