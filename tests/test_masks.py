"""Masks as keys, eager and compiled, against NumPy; functions whose shape depends on values, with a size; tensors without dimensions."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import weft
from weft.testing import counted

X = np.arange(24.0).reshape(2, 3, 4)
RNG = np.random.default_rng(3)
M3, M2, M1, FIRST = RNG.random((2, 3, 4)) < 0.5, RNG.random((3, 4)) < 0.5, RNG.random(4) < 0.5, RNG.random(2) < 0.5
YES, NO = np.array(True), np.array(False)
ROW = np.array([1.0, 2.0, 3.0, 4.0])
# (how the mask is made a key, the mask, the value): what is written does not depend on how many places the mask chooses
WRITES: dict[str, tuple[Callable[[Any], Any], np.ndarray, Any]] = {
    "all axes": (lambda m: m, M3, 0.5),
    "all axes, one element": (lambda m: m, M3, np.array([0.5])),
    "the first axis": (lambda m: m, FIRST, 0.5),
    "the first axis, a row": (lambda m: m, FIRST, ROW),
    "the first axis, a matrix": (lambda m: m, FIRST, X[0]),
    "the first axis, a matrix with a leading axis": (lambda m: m, FIRST, X[:1]),
    "the last axes": (lambda m: (slice(None), m), M2, 0.5),
    "behind dots": (lambda m: (..., m), M1, 0.5),
    "behind dots, a column": (lambda m: (..., m), M1, X[:, :, :1]),
    "before dots": (lambda m: (m, ...), FIRST, ROW),
    "behind an int": (lambda m: (1, m), M2, 0.5),
    "before an int": (lambda m: (slice(None), m, 0), M2[:, 1], 0.5),
    "between an int and a slice": (lambda m: (0, m, slice(None, None, 2)), M2[:, 0], 0.5),
    "beside a range": (lambda m: (slice(1, 2), m), M2, 0.5),
    "beside a range, a row": (lambda m: (slice(None, None, -1), m[:, 0]), M2, ROW),
    "beside a new axis": (lambda m: (None, m), FIRST, 0.5),
    "none chosen": (lambda m: m, np.zeros((2, 3, 4), bool), 0.5),
    "without dimensions, true": (lambda m: m, YES, 0.5),
    "without dimensions, false": (lambda m: m, NO, 0.5),
    "without dimensions, a row": (lambda m: m, YES, ROW),
    "without dimensions, beside a slice": (lambda m: (slice(1), m), YES, 0.5),
}

WAYS: dict[str, Callable[[Any, Any], Any]] = {
    "set": lambda old, new: new,
    "add": np.add,
    "subtract": np.subtract,
    "multiply": np.multiply,
    "min": np.minimum,
    "max": np.maximum,
}


@pytest.mark.parametrize("name", WRITES)
def test_writes_by_a_mask(name: str) -> None:
    """In every way, eager and compiled: the shape is known though the mask is not."""
    key, mask, value = WRITES[name]

    def all_ways(x: Any, m: Any) -> list[Any]:
        changed = x * 1.0
        changed[key(m)] = value
        return [*(getattr(x.at[key(m)], how)(value) for how in WAYS), changed]

    expected = []
    for way in (*WAYS.values(), WAYS["set"]):
        result = X.copy()
        result[key(mask)] = way(result[key(mask)], value)
        expected.append(result)
    x, m = weft.asarray(X), weft.asarray(mask)
    for actual in (all_ways(x, m), all_ways(x, mask), weft.jit(all_ways)(x, m)):
        for a, e in zip(actual, expected, strict=True):
            np.testing.assert_array_equal(a.numpy(), e)
            counted()


def test_derivatives_of_writes_by_a_mask() -> None:
    mask = weft.asarray(M3)

    def loss(x: Any, v: Any) -> Any:
        return (x.at[mask].set(v) * x.at[mask].add(v) * X).sum()

    for f in (weft.grad(loss, (0, 1)), weft.jit(weft.grad(loss, (0, 1)))):
        by_x, by_v = f(weft.asarray(X), weft.asarray(3.0, dtype="float64"))
        np.testing.assert_allclose(by_x.numpy(), np.where(M3, 3.0 * X, 2 * X * X))
        np.testing.assert_allclose(by_v.item(), (M3 * X * (X + 6.0)).sum())
        counted(2)


def test_a_mask_that_fits_nothing() -> None:
    x = weft.asarray(X)
    for f in (lambda x, m: x.at[m].set(0.0), lambda x, m: x[m]):
        with pytest.raises(IndexError, match=r"\[index\] a mask of shape \(3,\) does not fit shape \(2, 3, 4\)"):
            f(x, weft.ones(3, dtype=bool))
    with pytest.raises(IndexError, match="a mask of shape"):
        weft.jit(lambda x, m: x.at[m].set(0.0))(x, weft.ones(3, dtype=bool))
    with pytest.raises(weft.UserError, match=r"\[at\] multiply takes ints, slices and masks"):
        x.at[weft.asarray([0, 0])].multiply(2.0)


@pytest.mark.parametrize(
    "key",
    [
        True,
        False,
        YES,
        NO,
        (0, True),
        (slice(None), True),
        (True, True),
        (True, False),
        ([0, 1], True),
        (..., False),
        (None, YES),
        (True, slice(None), 0),
    ],
    ids=str,
)
def test_masks_without_dimensions(key: Any) -> None:
    np.testing.assert_array_equal(weft.asarray(X)[key].numpy(), X[key])
    for value in (7.0, np.float64(7.0)):
        expected = X.copy()
        expected[key] = value
        np.testing.assert_array_equal(weft.asarray(X).at[key].set(value).numpy(), expected)
    mine = weft.asarray(X)[weft.asarray(True)]
    assert mine.shape == (1, 2, 3, 4)
    counted()


# --- sizes --------------------------------------------------------------------------------------------------------------


def padded(values: np.ndarray, size: int, filler: Any) -> np.ndarray:
    return np.array([*values[:size], *[filler] * (size - len(values))], values.dtype)


@pytest.mark.parametrize("size", [0, 2, 5, 30])
def test_sizes(size: int) -> None:
    values = np.array([3, 0, 1, 3, 0, 2, 2, 0])
    table = np.where(M2, 5, 0)

    def of(x: Any, t: Any) -> tuple[Any, ...]:
        return (
            *weft.nonzero(t, size=size, fill_value=-1),
            weft.argwhere(t, size=size),
            weft.boolean_mask(x, x != 0, size=size, fill_value=9),
            weft.boolean_mask(t, x[:3] != 0, axis=0, size=size),
            weft.unique_values(x, size=size),
            weft.unique_values(x, size=size, fill_value=-5),
            weft.repeat(x[:3], x[-3:], size=size),
        )

    rows, columns = np.nonzero(table)
    chosen = table[[0, 2]]
    expected = (
        padded(rows, size, -1),
        padded(columns, size, -1),
        np.stack([padded(rows, size, 0), padded(columns, size, 0)], axis=1),
        padded(values[values != 0], size, 9),
        np.concatenate([chosen[:size], np.zeros((max(size - 2, 0), 4), int)]),
        padded(np.unique(values), size, 0),
        padded(np.unique(values), size, -5),
        padded(np.repeat(values[:3], values[-3:]), size, values[2]),
    )
    x, t = weft.asarray(values), weft.asarray(table)
    for results in (of(x, t), weft.jit(of)(x, t)):
        for actual, e in zip(results, expected, strict=True):
            np.testing.assert_array_equal(actual.numpy(), e)
            counted()


def test_without_a_size_shapes_follow_values() -> None:
    np.testing.assert_array_equal(weft.argwhere(weft.asarray(M2)).numpy(), np.argwhere(M2))
    np.testing.assert_array_equal(weft.boolean_mask(X, M1, axis=2).numpy(), np.compress(M1, X, axis=2))
    np.testing.assert_array_equal(weft.boolean_mask(X, M3).numpy(), X[M3])
    assert weft.unique_values(weft.zeros(0), size=2, fill_value=7.0).tolist() == [7.0, 7.0]
    assert weft.boolean_mask(weft.zeros(0), weft.zeros(0, dtype=bool), size=2).tolist() == [0.0, 0.0]
    counted(5)


@pytest.mark.parametrize(
    ("f", "text"),
    [
        (
            lambda x, m: x[m],
            r"\[index\] how many elements a mask chooses is not known.*weft.boolean_mask\(x, mask, size=n\)",
        ),
        (lambda x, m: x.at[m].set(weft.arange(3)), r"\[index\] how many elements a mask chooses is not known"),
        (lambda x, m: weft.nonzero(m), r"\[nonzero\] .* Use weft.nonzero\(x, size=n\)"),
        (lambda x, m: weft.argwhere(m), r"\[nonzero\] .* Use weft.nonzero\(x, size=n\)"),
        (lambda x, m: weft.boolean_mask(x, m), r"\[boolean_mask\] .* size=n"),
        (lambda x, m: weft.unique_values(x), r"\[unique_all\] .* Use weft.unique_values\(x, size=n\)"),
        (lambda x, m: weft.unique_counts(x), r"\[unique_all\] .* size=n"),
        (lambda x, m: weft.repeat(x, x), r"\[repeat\] .* size=n"),
    ],
)
def test_what_has_no_shape_while_it_is_traced_says_so(f: Callable[..., Any], text: str) -> None:
    with pytest.raises(weft.UserError, match=text):
        weft.jit(f)(weft.asarray([3, 1, 2]), weft.asarray([True, False, True]))
    counted()


# --- no dimensions, too many indices --------------------------------------------------------------------------------------

ALONG: dict[str, Callable[..., Any]] = {
    **{
        n: getattr(weft, n)
        for n in ("sum", "prod", "max", "min", "mean", "var", "std", "norm", "logsumexp", "count_nonzero")
    },
    **{
        n: getattr(weft, n)
        for n in ("argmax", "argmin", "softmax", "log_softmax", "sort", "argsort", "squeeze", "flip")
    },
    **{n: getattr(weft, n) for n in ("cumulative_sum", "cumulative_prod")},
    "any": lambda x, axis: weft.any(x > 0.0, axis=axis),
    "all": lambda x, axis: weft.all(x > 0.0, axis=axis),
    "top_k": lambda x, axis: weft.top_k(x, 1, axis=axis).values,
    "keepdims": lambda x, axis: weft.sum(x, axis=axis, keepdims=True),
    "argmax, keepdims": lambda x, axis: weft.argmax(x, axis=axis, keepdims=True),
    "a list of axes": lambda x, axis: weft.sum(x, axis=[axis]),
}


@pytest.mark.parametrize("name", ALONG)
def test_a_tensor_without_dimensions_takes_axis_0_and_minus_1(name: str) -> None:
    """As in PyTorch: along the one axis of a vector with this one element, and the result has no dimensions either."""
    f, x = ALONG[name], weft.asarray(3.0)
    expected = f(weft.asarray([3.0]), axis=0).item()
    for axis in (0, -1):
        for actual in (f(x, axis=axis), weft.jit(lambda x, a=axis: f(x, axis=a))(x)):
            assert (actual.shape, actual.item()) == ((), expected)
            counted()
    for axis in (1, -2):
        with pytest.raises(weft.UserError):
            f(x, axis=axis)
    with pytest.raises(weft.UserError):
        weft.sum(x, axis=(0, -1))


@pytest.mark.parametrize(
    "key", [(0, 0, 0, 0), (0, 0, 0, M1), (M3, 0), (..., 0, 0, 0, 0), 2, -3, (0, 5), "a", 1.5, (..., ...)], ids=str
)
def test_places_that_do_not_exist_are_index_errors(key: Any) -> None:
    for read in (lambda: X[key], lambda: weft.asarray(X)[key], lambda: weft.asarray(X).at[key].set(1.0)):
        with pytest.raises(IndexError):
            read()
        counted()
    with pytest.raises(IndexError, match="does not exist"):  # NumPy's AxisError is one too
        weft.sum(weft.asarray(X), axis=3)
    with pytest.raises(weft.UserError):
        weft.asarray(X)[key]
