"""What the compiler knows of sums: those of differences from the mean are zero, factors that stay the same are multiplied afterwards."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import weft
from test_simplify import assert_same_values, graph, names
from weft.compiler.passes.simplify import simplify
from weft.graph import Type
from weft.runtime.reference import interpret
from weft.testing import check_grads, counted, generator

F = Callable[..., Any]
MATRIX, SQUARE, IMAGE = (Type(s, weft.float32) for s in ((4, 6), (5, 5), (2, 3, 4, 5)))
ROW, COLUMN, CHANNELS = (Type(s, weft.float32) for s in ((6,), (4,), (3,)))


def centred(x: Any, axis: Any, keepdims: bool = True) -> Any:
    return x - x.mean(axis=axis, keepdims=keepdims)


ZERO: dict[str, tuple[F, tuple[Type, ...]]] = {
    "of rows": (lambda x: centred(x, 1).sum(axis=1), (MATRIX,)),
    "of columns": (lambda x: centred(x, 0).sum(axis=0), (MATRIX,)),
    "of columns, the mean without its axis": (lambda x: centred(x, 0, keepdims=False).sum(axis=0), (MATRIX,)),
    "of everything": (lambda x: centred(x, None).sum(), (MATRIX,)),
    "of channels": (lambda x: centred(x, (0, 2, 3)).sum(axis=(0, 2, 3)), (IMAGE,)),
    "of channels, the mean moved by reshapes": (
        lambda x: (x - x.mean(axis=(0, 2, 3)).reshape(1, 3).reshape(3, 1, 1)).sum(axis=(0, 2, 3)), (IMAGE,)
    ),
    "of something computed": (lambda x: (weft.sin(x) - weft.sin(x).mean(axis=1, keepdims=True)).sum(axis=1), (MATRIX,)),
    "negated and doubled": (lambda x: (-(centred(x, 1) + centred(x, 1))).sum(axis=1), (MATRIX,)),
    "times a number": (lambda x: (0.5 * centred(x, 1) * 3.0 / 7.0).sum(axis=1), (MATRIX,)),
    "times one weight a row": (lambda x, w: (w[:, None] * centred(x, 1)).sum(axis=1), (MATRIX, COLUMN)),
    "divided by one number a row": (lambda x, w: (centred(x, 1) / weft.exp(w)[:, None]).sum(axis=1), (MATRIX, COLUMN)),
    "times one weight a channel": (lambda x, w: (centred(x, (0, 2, 3)) * w[:, None, None]).sum(axis=(0, 2, 3)), (IMAGE, CHANNELS)),
}  # fmt: skip


@pytest.mark.parametrize("name", ZERO)
def test_the_sum_is_zero_without_being_added_up(name: str) -> None:
    f, types = ZERO[name]
    before = graph(f, *types)
    found = simplify(before)
    assert names(found).count("sum") == names(before).count("sum") - 1, found.text()  # that of the mean is left
    rng = generator(name)
    values = interpret(found)(*[rng.normal(size=t.shape).astype(np.float32) for t in types])
    assert all((v == 0).all() for v in values)
    assert_same_values(before, found, tolerance=1e-5)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("name", ZERO)
def test_the_sum_is_not_finite_where_an_element_is_not(name: str, bad: float) -> None:
    """Each argument in turn has such an element; results are finite where they were before."""
    f, types = ZERO[name]
    before = graph(f, *types)
    found, rng = simplify(before), generator(name)
    for number, t in enumerate(types):
        values = [rng.normal(size=u.shape).astype(np.float32) for u in types]
        values[number].reshape(-1)[t.shape[-1] // 2] = bad
        with np.errstate(all="ignore"):
            want, got = interpret(before)(*values), interpret(found)(*values)
        counted()
        for w, g in zip(want, got, strict=True):
            np.testing.assert_array_equal(np.isfinite(g), np.isfinite(w))


# Each with a sum that is not zero, but for the count, whose sum is near it.
OTHERS: dict[str, tuple[F, tuple[Type, ...]]] = {
    "the mean of something else": (lambda x: (x - (x + 1.0).mean(axis=1, keepdims=True)).sum(axis=1), (MATRIX,)),
    "the mean over other axes": (lambda x: centred(x, 0).sum(axis=1), (MATRIX,)),
    "the mean over other axes of a square": (lambda x: (x - x.mean(axis=1)).sum(axis=1), (SQUARE,)),
    "the mean of columns, put beside rows": (lambda x: (x - x.mean(axis=0)[:, None]).sum(axis=1), (SQUARE,)),
    "the mean over more axes": (lambda x: centred(x, None).sum(axis=1), (MATRIX,)),
    "the mean over fewer axes than are summed, with weights": (
        lambda x, w: (centred(x, 1) * w[:, None]).sum() + (x * w[:, None]).sum(), (MATRIX, COLUMN)
    ),
    "the mean of other rows": (lambda x: (x - x.mean(axis=1, keepdims=True)[::-1]).sum(axis=1), (MATRIX,)),
    "the mean of other channels": (
        lambda x: (x - weft.flip(x.mean(axis=(0, 2, 3), keepdims=True), axis=1)).sum(axis=(0, 2, 3)), (IMAGE,)
    ),
    "weights that vary": (lambda x, w: (centred(x, 1) * w).sum(axis=1), (MATRIX, ROW)),
    "divided by what varies": (lambda x, w: (centred(x, 1) / weft.exp(w)).sum(axis=1), (MATRIX, ROW)),
    "weights that vary along one of the axes": (
        lambda x, w: (centred(x, (0, 2, 3)) * w).sum(axis=(0, 2, 3)), (IMAGE, Type((5,), weft.float32))
    ),
    "the square": (lambda x: (centred(x, 1) * centred(x, 1)).sum(axis=1), (MATRIX,)),
    "a number divided by it": (lambda x: (1.0 / centred(x, 1)).sum(axis=1), (MATRIX,)),
    "too small a count": (lambda x: (x - x.sum(axis=1, keepdims=True) / 5.0).sum(axis=1), (MATRIX,)),
    "too large a count": (lambda x: (x - x.sum(axis=(0, 2, 3), keepdims=True) / 120.0).sum(axis=(0, 2, 3)), (IMAGE,)),
    "a count that is computed": (lambda x, n: (x - x.sum(axis=1, keepdims=True) / n[:, None]).sum(axis=1), (MATRIX, COLUMN)),
    "the greatest instead of the sum": (lambda x: (x - x.max(axis=1, keepdims=True) / 6.0).sum(axis=1), (MATRIX,)),
    "the maximum instead of the sum of the differences": (lambda x: centred(x, 1).max(axis=1), (MATRIX,)),
    "added instead": (lambda x: (x + x.mean(axis=1, keepdims=True)).sum(axis=1), (MATRIX,)),
    "two of them": (lambda x, y: (centred(x, 1) + y).sum(axis=1), (MATRIX, MATRIX)),
    "whole numbers": (lambda n: (n - n.sum(axis=1, keepdims=True) // 6).sum(axis=1), (Type((4, 6), weft.int32),)),
}  # fmt: skip


@pytest.mark.parametrize("name", OTHERS)
def test_other_sums_stay(name: str) -> None:
    f, types = OTHERS[name]
    before = graph(f, *types)
    found = simplify(before)
    rng = generator(name)
    arrays = [rng.uniform(1, 9, i.shape).astype(i.dtype.numpy) for i in before.inputs]
    assert np.abs(interpret(found)(*arrays)[0]).min() > 0
    assert_same_values(before, found, arrays, tolerance=1e-6)


# --- multiples ----------------------------------------------------------------------------------------------------------------------

MULTIPLES: dict[str, tuple[F, F, tuple[Type, ...]]] = {
    "by a number": (lambda x: (x * 3.0).sum(axis=1), lambda x: x.sum(axis=1) * 3.0, (MATRIX,)),
    "divided by a number": (lambda x: (x / 3.0).sum(axis=1), lambda x: x.sum(axis=1) / 3.0, (MATRIX,)),
    "negated": (lambda x: (-x).sum(axis=1), lambda x: -x.sum(axis=1), (MATRIX,)),
    "negated twice, in between a factor": (lambda x: (-(2.0 * -x)).sum(axis=1), lambda x: x.sum(axis=1) * 2.0, (MATRIX,)),
    "one factor a row": (lambda x, w: (w[:, None] * x).sum(axis=1), lambda x, w: x.sum(axis=1) * w, (MATRIX, COLUMN)),
    "one factor a column": (lambda x, w: (x * w).sum(axis=0), lambda x, w: x.sum(axis=0) * w, (MATRIX, ROW)),
    "one factor for all": (lambda x, w: (x * w.sum()).sum(axis=0), lambda x, w: x.sum(axis=0) * w.sum().reshape(1), (MATRIX, ROW)),
    "inside a product": (
        lambda x, y, w: ((x * w[:, None, None]) * y).sum(axis=(0, 2, 3)), lambda x, y, w: (x * y).sum(axis=(0, 2, 3)) * w,
        (IMAGE, IMAGE, CHANNELS),
    ),
    "a divisor inside a product": (
        lambda x, y, w: (x * (y / w[:, None, None])).sum(axis=(0, 2, 3)), lambda x, y, w: (x * y).sum(axis=(0, 2, 3)) / w,
        (IMAGE, IMAGE, CHANNELS),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", MULTIPLES)
def test_what_stays_the_same_is_multiplied_afterwards(name: str) -> None:
    f, wanted, types = MULTIPLES[name]
    before, expected = graph(f, *types), graph(wanted, *types)
    assert names(simplify(before)) == names(before)
    found = simplify(before, fast_math=True)
    assert found == simplify(expected, fast_math=True), found.text()
    assert_same_values(before, found, tolerance=1e-5)


UNCHANGED: dict[str, tuple[F, tuple[Type, ...]]] = {
    "a factor that varies": (lambda x, w: (x * w).sum(axis=1), (MATRIX, ROW)),
    "a divisor that varies": (lambda x, w: (x / w).sum(axis=1), (MATRIX, ROW)),
    "16 bits, which overflow": (lambda x: (x * 0.5).sum(axis=1), (Type((4, 6), weft.float16),)),
    "whole numbers": (lambda x: (x * 3).sum(axis=1), (Type((4, 6), weft.int32),)),
    "of nothing": (lambda x, w: (x / w[:, None]).sum(axis=1), (Type((4, 0), weft.float32), COLUMN)),
    "the greatest": (lambda x: (x * 3.0).max(axis=1), (MATRIX,)),
    "nothing but what stays": (lambda w: weft.broadcast_to(w[:, None], (4, 6)).sum(axis=1), (COLUMN,)),
    "exponentials, which are kept as a multiple": (
        lambda x, g, w: (g * (weft.exp(x) * w[:, None])).sum(axis=1), (MATRIX, MATRIX, COLUMN)
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", UNCHANGED)
def test_other_products_are_summed_as_they_are(name: str) -> None:
    f, types = UNCHANGED[name]
    before = graph(f, *types)
    assert names(simplify(before, fast_math=True)) == names(before)


@pytest.mark.parametrize("shape", [(5,), (3, 5)])
def test_scaling_that_prevents_overflow_is_kept(shape: tuple[int, ...]) -> None:
    x = weft.asarray(np.full(shape, 1e30, np.float32))

    def length(x: Any) -> Any:
        largest = x.max(axis=-1, keepdims=True)
        return largest[..., 0] * weft.sqrt(((x / largest) ** 2).sum(axis=-1))

    assert np.isfinite(weft.jit(length)(x).numpy()).all()
    np.testing.assert_allclose(weft.jit(length)(x).numpy(), length(x).numpy(), rtol=1e-6)


# --- derivatives --------------------------------------------------------------------------------------------------------------------


@pytest.fixture
def compiled() -> Iterator[None]:
    """Small computations are compiled at once; otherwise the first few times are by definition."""
    with weft.knobs.set(compile_after=1):
        yield


def sums(f: F, *types: Type, fast_math: bool = False) -> int:
    return names(simplify(graph(f, *types), fast_math=fast_math)).count("sum")


def total_variance(x: Any, axis: Any) -> Any:
    return x.var(axis=axis).sum()


@pytest.mark.parametrize(("axis", "kind"), [(1, MATRIX), (0, MATRIX), (None, MATRIX), ((0, 2, 3), IMAGE)])
def test_the_derivative_of_a_variance_needs_the_mean_alone(axis: Any, kind: Type, compiled: None) -> None:
    assert sums(weft.grad(lambda x: total_variance(x, axis)), kind) == 1
    x = generator("variance").normal(size=kind.shape) + 3.0
    count = x.size if axis is None else x.size // x.var(axis=axis).size
    found = weft.grad(lambda x: total_variance(x, axis))(weft.asarray(x)).numpy()
    np.testing.assert_allclose(found, 2 / count * (x - x.mean(axis=axis, keepdims=True)), rtol=1e-12, atol=1e-14)
    counted()


@pytest.mark.parametrize(("axis", "correction"), [(0, 1), (1, 0), (None, 1)])
def test_derivatives_of_variances_and_deviations(axis: Any, correction: int, compiled: None) -> None:
    """First and second ones, against differences in float64."""
    x = generator("deviation").normal(size=(4, 6))
    check_grads(lambda x: x.var(axis=axis, correction=correction), [x], rng=generator("var"))
    check_grads(lambda x: weft.sin(x.std(axis=axis, correction=correction)), [x], rng=generator("std"))


def test_the_second_derivative_by_its_formula(compiled: None) -> None:
    """Of the variance it is 2 / n (1 where i = j, less 1 / n)."""
    x = weft.asarray(generator("second").normal(size=6))
    row = [weft.grad(lambda x, i=i: weft.grad(lambda x: x.var())(x)[i])(x).numpy() for i in range(6)]
    np.testing.assert_allclose(row, 2 / 6 * (np.eye(6) - 1 / 6), rtol=1e-12, atol=1e-15)


def normalised(x: Any, scale: Any, shift: Any) -> Any:
    return weft.batch_norm(x, scale, shift).value


def test_derivatives_of_batch_norm(compiled: None) -> None:
    rng = generator("batch norm")
    inputs = [rng.normal(size=s) for s in ((2, 3, 2, 2), (3,), (3,))]
    check_grads(normalised, inputs, rng=rng, tolerance=1e-5)
    check_grads(lambda x: weft.layer_norm(x, weft.ones(6), weft.zeros(6)), [rng.normal(size=(4, 6))], rng=rng, tolerance=1e-5)  # fmt: skip


def test_the_derivative_of_batch_norm_by_its_formula(compiled: None) -> None:
    rng = generator("formula")
    x, g = rng.normal(size=(2, 3, 4, 5, 6))
    scale, shift = rng.normal(size=(2, 4))
    _, back = weft.vjp(normalised, *map(weft.asarray, (x, scale, shift)))
    by_x, by_scale, by_shift = (t.numpy() for t in back(weft.asarray(g)))
    axes, wide = (0, 2, 3), (4, 1, 1)
    deviation = np.sqrt(x.var(axis=axes, keepdims=True) + 1e-5)
    steady = (x - x.mean(axis=axes, keepdims=True)) / deviation
    less = g - g.mean(axis=axes, keepdims=True) - steady * (g * steady).mean(axis=axes, keepdims=True)
    np.testing.assert_allclose(by_x, scale.reshape(wide) / deviation * less, rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(by_scale, (g * steady).sum(axis=axes), rtol=1e-10)
    np.testing.assert_allclose(by_shift, g.sum(axis=axes), rtol=1e-10)
    counted(3)


def test_batch_norm_sums_what_it_must() -> None:
    """Forward the mean and the squares; backward the gradients of shift, of the factor and of the mean. All else is made of these.

    That of the mean is a multiple of that of the shift, which `fast_math` may use.
    """
    step = weft.grad(lambda x, a, b, y: (normalised(x, a, b) * y).sum(), argnums=(0, 1, 2))
    assert sums(step, IMAGE, CHANNELS, CHANNELS, IMAGE) == 5
    assert sums(step, IMAGE, CHANNELS, CHANNELS, IMAGE, fast_math=True) == 4
