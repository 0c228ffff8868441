"""Free dimensions: one text for a graph at every size.

A function is traced at several sizes. The texts of its graphs must differ in numbers only, and each number that differs is
expressed by the free dimensions:

    batch=7:  v1 = expand(x2, shape=(7, 10))
    batch=11: v1 = expand(x2, shape=(11, 10))     ->     v1 = expand(x2, shape=(batch, 10))

Integers are polynomials that are linear in each dimension (2*batch + 1, batch*length), or a quarter of a product, rounded up: the random
numbers that a stream draws come in blocks of four. Floats may also be quotients of such
(batch / (batch - 1), the correction of a variance). Sizes that were not used to find an expression verify it.
"""

from __future__ import annotations

import ast
import itertools
import re
from collections.abc import Mapping, Sequence
from fractions import Fraction
from math import isqrt, lcm, prod

from ..errors import UserError
from ..graph.text import evaluate

Sizes = dict[str, int]
_NUMBER = re.compile(r"(?<![\w.])-?(?:\d+\.\d*(?:e[+-]?\d+)?|\d+e[+-]?\d+|\d+)(?![\w.])")
_PRIMES = [p for p in range(3, 400) if all(p % d for d in range(2, p))]
_LARGE = [p for p in range(10_000, 12_000) if all(p % d for d in range(2, 110))]
_BLOCK = 4  # numbers of a random stream that are drawn together
_ANY = 1 << 30  # the largest size of a dimension without a limit
_FINEST = 10**6  # the largest denominator of the fractions that floats are read as


def sample_sizes(dimensions: Mapping[str, int | None], avoid: frozenset[int] = frozenset()) -> list[Sizes]:
    """The sizes to trace at: two for each dimension in all combinations, then three points that verify.

    `dimensions` gives the largest size of each, or None. The sizes are small numbers that no other size of the function equals, so that
    equal numbers are not equal by accident. At the last point they are multiples of 4, elsewhere primes: a size that is rounded or
    halved is found out. The point before it is large, or the limit, so that a size that is clipped (`x[:512]`) is found out, too.
    """
    taken = set(avoid)
    chosen = {
        name: _sizes_of(name, dimensions[name], taken)
        for name in sorted(dimensions, key=lambda n: dimensions[n] or _ANY)
    }
    corners = itertools.product(*(chosen[name][:2] for name in dimensions))
    points = [*corners, *(tuple(chosen[name][i] for name in dimensions) for i in (2, 3, 4))]
    return [dict(zip(dimensions, point, strict=True)) for point in points]


def _sizes_of(name: str, largest: int | None, taken: set[int]) -> list[int]:
    """Three primes, a large prime and a multiple of 4 that are not taken yet."""
    most = _ANY if largest is None else largest
    primes = [p for p in _PRIMES if p <= most and p not in taken][:3]
    fours = [4 * p for p in _PRIMES if 4 * p <= most and 4 * p not in taken][:1]
    if len(primes) < 3 or not fours:
        raise UserError(
            "save",
            f"{name!r} of up to {largest} is too small to be free: it cannot be told from the other sizes. Fix it.",
        )
    taken.update(primes, fours)
    large = _large_prime(most, taken, otherwise=primes[-1])
    taken.add(large)
    return [*primes, large, *fours]


def _large_prime(most: int, taken: set[int], otherwise: int) -> int:
    """A prime above the sizes at which functions usually clip, or the largest below the limit: at the limit itself slices vanish."""
    if most > _LARGE[0]:
        return next(p for p in _LARGE if p not in taken)
    return max(
        (p for p in range(3, most) if p not in taken and all(p % d for d in range(2, isqrt(p) + 1))), default=otherwise
    )


def merge_texts(texts: Sequence[str], points: Sequence[Sizes]) -> str:
    """One text with expressions for those at `points`; an error says where they differ in more than numbers."""
    lines = [text.split("\n") for text in texts]
    if len({len(own) for own in lines}) > 1:
        counts = ", ".join(f"{len(own)} for {show_sizes(at)}" for own, at in zip(lines, points, strict=True))
        raise refuse_sizes(f"the number of operations depends on the size ({counts})")
    return "\n".join(_merge_line(versions, points) for versions in zip(*lines, strict=True))


def merge_types(versions: Sequence[str], points: Sequence[Sizes]) -> str:
    """One type for those at `points`, such as float32[batch, 3]; empty if a size has no expression."""
    return _merge(versions, points) or ""


def _merge_line(versions: Sequence[str], points: Sequence[Sizes]) -> str:
    if all(v == versions[0] for v in versions):
        return versions[0]
    code = [v.partition("  # ") for v in versions]
    merged = _merge([c[0] for c in code], points)
    if merged is None:
        raise refuse_sizes(
            f"'{versions[0].strip()}' for {show_sizes(points[0])} and '{versions[-1].strip()}' for {show_sizes(points[-1])}"
        )
    comment = _merge([c[2] for c in code], points)  # for readers only: a type without an expression is left out
    return merged + (f"  # {comment}" if comment else "")


def _merge(versions: Sequence[str], points: Sequence[Sizes]) -> str | None:
    parts = [_NUMBER.split(v) for v in versions]
    if any(p != parts[0] for p in parts):
        return None
    text = parts[0][0]
    for numbers, after in zip(zip(*map(_NUMBER.findall, versions), strict=True), parts[0][1:], strict=True):
        found = expression(numbers, points)
        if found is None:
            return None
        text += found + after
    return text


def expression(numbers: Sequence[str], points: Sequence[Sizes]) -> str | None:
    """An expression of the free dimensions with these values at these points, or None."""
    if all(n == numbers[0] for n in numbers):
        return numbers[0]
    whole = all(re.fullmatch(r"-?\d+", n) for n in numbers)
    values = [Fraction(n) if whole else Fraction(float(n)).limit_denominator(_FINEST) for n in numbers]
    names = list(points[0])
    for text in _candidates(values, names, points, whole):
        tree = ast.parse(text, mode="eval").body
        if all(_equal(evaluate(tree, at), n, whole) for n, at in zip(numbers, points, strict=True)):
            return text
    return None


def _equal(value: float, text: str, whole: bool) -> bool:
    return (isinstance(value, int) and value == int(text)) if whole else float(value) == float(text)


def _candidates(values: Sequence[Fraction], names: Sequence[str], points: Sequence[Sizes], whole: bool) -> list[str]:
    found = []
    linear = _fit(values, names, points)
    if linear is not None:
        scale = lcm(*(c.denominator for c in linear.values()))
        text = _polynomial({term: int(c * scale) for term, c in linear.items()})
        if not whole:
            found.append(f"({text}) / {scale}")
        elif scale == 1:
            found.append(text)
    if whole:
        found += _blocks(values[-1], names, points[-1])
    elif all(used := values[: max(3, 2 ** len(names))]):  # at a large size, a small number is no fraction any more
        inverse = _fit([1 / v for v in used], names, points)
        if inverse is not None:
            scale = lcm(*(c.denominator for c in inverse.values()))
            found.append(f"{scale} / ({_polynomial({term: int(c * scale) for term, c in inverse.items()})})")
        if len(names) == 1:
            found += _quotient(values, names[0], points)
    return found


def _blocks(value: Fraction, names: Sequence[str], at: Sizes) -> list[str]:
    """c n / 4, rounded up; nothing is rounded at the last point, where all sizes are multiples of 4."""
    found = []
    for term in (t for r in range(1, len(names) + 1) for t in itertools.combinations(names, r)):
        factor = value * _BLOCK / prod(at[n] for n in term)
        if factor.denominator == 1:
            found.append(f"-(-({_polynomial({term: int(factor)})}) // {_BLOCK})")
    return found


def _fit(
    values: Sequence[Fraction], names: Sequence[str], points: Sequence[Sizes]
) -> dict[tuple[str, ...], Fraction] | None:
    """The coefficients of the polynomial, linear in each dimension, through the first 2**k points."""
    terms = [t for r in range(len(names) + 1) for t in itertools.combinations(names, r)]
    rows = [[Fraction(prod(at[n] for n in term)) for term in terms] for at in points[: len(terms)]]
    solved = _solve(rows, list(values[: len(terms)]))
    return None if solved is None else {t: c for t, c in zip(terms, solved, strict=True) if c}


def _quotient(values: Sequence[Fraction], name: str, points: Sequence[Sizes]) -> list[str]:
    """(a n + b) / (n + d) through three points: v n + v d = a n + b."""
    sizes = [at[name] for at in points[:3]]
    rows = [[Fraction(n), Fraction(1), -v] for n, v in zip(sizes, values, strict=False)]
    solved = _solve(rows, [v * n for n, v in zip(sizes, values, strict=False)])
    if solved is None:
        return []
    a, b, d = solved
    scale = lcm(a.denominator, b.denominator, d.denominator)
    top, bottom = {(name,): int(a * scale), (): int(b * scale)}, {(name,): scale, (): int(d * scale)}
    return [f"({_polynomial(top)}) / ({_polynomial(bottom)})"]


def _solve(rows: list[list[Fraction]], values: list[Fraction]) -> list[Fraction] | None:
    """Gaussian elimination with exact fractions; None for a singular system."""
    size = len(rows)
    rows = [[*row, value] for row, value in zip(rows, values, strict=True)]
    for i in range(size):
        pivot = next((r for r in range(i, size) if rows[r][i]), None)
        if pivot is None:
            return None
        rows[i], rows[pivot] = rows[pivot], rows[i]
        rows[i] = [x / rows[i][i] for x in rows[i]]
        for r in range(size):
            if r != i and rows[r][i]:
                rows[r] = [x - rows[r][i] * y for x, y in zip(rows[r], rows[i], strict=True)]
    return [row[-1] for row in rows]


def _polynomial(terms: dict[tuple[str, ...], int]) -> str:
    """{("batch",): 2, (): -1} as 2*batch - 1."""
    texts = []
    for term, factor in sorted(terms.items(), key=lambda item: -len(item[0])):
        if factor:
            body = "*".join([*([str(abs(factor))] if abs(factor) != 1 or not term else []), *term])
            texts.append(("- " if factor < 0 else "+ ") + body)
    text = " ".join(texts) or "0"
    return text.removeprefix("+ ").replace("- ", "-", 1) if text.startswith("- ") else text.removeprefix("+ ")


def show_sizes(sizes: Sizes) -> str:
    """`batch=5, length=7`."""
    return ", ".join(f"{name}={size}" for name, size in sizes.items())


def refuse_sizes(why: str) -> UserError:
    """The error for a function that cannot be saved for all sizes."""
    return UserError(
        "save",
        f"the function cannot be saved for all sizes of its free dimensions: {why}. Save it for one size with dynamic=False, or "
        "name fewer free dimensions.",
    )
