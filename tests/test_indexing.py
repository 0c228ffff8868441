"""Checks x[key], x.at[key] and their relatives against NumPy, which defines what they mean.

Keys are drawn at random from everything NumPy allows. Where NumPy refuses a key, weft must refuse it too. What a write
must do is read off `np.arange(size).reshape(shape)[key]`: the places it writes to, in order.
"""

import sys
from collections.abc import Callable
from typing import Any

import hypothesis.extra.numpy as hnp
import numpy as np
import pytest
from hypothesis import example, given, reject, settings
from hypothesis import strategies as st

import weft
from sampling import some

FORMS: list[Callable[[np.ndarray], Any]] = [np.ndarray.tolist, np.copy, weft.asarray]


def set_in_order(flat: np.ndarray, where: np.ndarray, values: np.ndarray) -> None:
    for place, value in zip(where, values, strict=True):
        flat[place] = value


# How a write changes a flat array at places that may repeat: of several values the last one stays, or all are added.
WRITES: dict[str, Callable[..., None]] = {"set": set_in_order, "add": np.add.at}


# --- random keys -----------------------------------------------------------------------------------------------------


@st.composite
def one_axis(draw: Any, size: int, common: tuple[int, ...], advanced: bool) -> Any:
    """What can stand for one axis: an int, a slice, or integers that broadcast to a common shape."""
    kind = draw(st.sampled_from(["slice", *["int"] * (size > 0), *["array"] * (2 * advanced * (size > 0))]))
    if kind == "int":
        return draw(st.integers(-size, size - 1))
    if kind == "slice":
        edge = st.none() | st.integers(-size - 2, size + 2)
        return slice(draw(edge), draw(edge), draw(st.none() | st.integers(-4, 4).filter(bool)))
    shape = draw(st.sampled_from([common, common[1:], (1,) * len(common)]))
    dtype, low = draw(st.sampled_from([("int64", -size), ("int32", -size), ("int8", -size), ("uint8", 0)]))
    return draw(hnp.arrays(dtype, shape, elements=st.integers(low, size - 1)))


@st.composite
def keys(draw: Any, shape: tuple[int, ...], advanced: bool) -> tuple[Any, ...]:
    """A key that leaves the axes between `first` and `last` to '...', or to nobody where they are the last ones."""
    first = draw(st.integers(0, len(shape)))
    last = draw(st.integers(first, len(shape)))
    common = draw(hnp.array_shapes(min_dims=1, max_dims=2, max_side=3))
    parts: list[Any] = []

    def cover(axis: int, end: int) -> None:
        while axis < end:
            count = 1
            if advanced and draw(st.integers(0, 4)) == 0:
                count = draw(st.integers(1, end - axis))
                parts.append(draw(hnp.arrays(bool, shape[axis : axis + count])))
            else:
                parts.append(draw(one_axis(shape[axis], common, advanced)))
            axis += count

    cover(0, first)
    if first < last < len(shape) or draw(st.booleans()):
        parts.append(...)
    cover(last, len(shape))
    for _ in range(draw(st.integers(0, 2))):
        parts.insert(draw(st.integers(0, len(parts))), None)
    return tuple(parts)


@st.composite
def cases(draw: Any, advanced: bool) -> tuple[np.ndarray, Any, Any]:
    """An array, a key for NumPy, and the same key for weft."""
    shape = draw(hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=4))
    key = draw(keys(shape, advanced))
    form = draw(st.sampled_from(FORMS))
    spelled = tuple(form(p) if isinstance(p, np.ndarray) and p.size else p for p in key)
    x = np.arange(float(np.prod(shape))).reshape(shape) + 1.0
    return (x, key[0], spelled[0]) if len(key) == 1 and draw(st.booleans()) else (x, key, spelled)


any_case = st.booleans().flatmap(cases)


def places(x: np.ndarray, key: Any) -> np.ndarray:
    """The flat places a key names, in the order in which they are written to."""
    try:
        return np.arange(x.size).reshape(x.shape)[key]
    except IndexError:  # a mask and an array that do not broadcast together
        reject()


def check_read(x: np.ndarray, key: Any, spelled: Any) -> None:
    try:
        expected = x[key]
    except IndexError:
        with pytest.raises(weft.UserError):
            weft.asarray(x)[spelled]
        return
    got = weft.asarray(x)[spelled]
    assert got.shape == expected.shape
    np.testing.assert_array_equal(got.numpy(), expected)


# --- reading ---------------------------------------------------------------------------------------------------------


@given(any_case)
@settings(max_examples=some(500))
def test_reading_by_key_as_in_numpy(case: Any) -> None:
    check_read(*case)


# Keys that random search seldom meets, for an array of shape (2, 3, 4).
RARE_KEYS: list[Any] = [
    ([0, 1], slice(None), [0, 1]),  # apart: the new axis comes first
    ([0, 1], None, [0, 1]),  # apart by a new axis
    (slice(None), [0, 2], [1, 3]),  # neighbours: the new axis stays there
    (0, slice(None), [1, 2]),  # a number counts as an array beside one
    (slice(None), [0, 1], ..., [0, 1]),  # apart by '...', even where it stands for nothing
    ([[0], [1]], slice(None, None, -1), [0, 2, 3]),
    (..., [], slice(0, 0)),
    ([[]],),
    (np.zeros((2, 3), bool), 1),
    (np.ones((2, 3, 4), bool),),
    (slice(None), np.ones((3, 4), bool), None),
    (np.array([True, False]), slice(None), np.array([True, False, False, True])),
    (np.int64(1), np.array(2), np.uint8(3)),
    (slice(np.int64(0), np.int64(2)),),
]


@pytest.mark.parametrize("key", RARE_KEYS, ids=str)
def test_rare_keys_read_as_in_numpy(key: Any) -> None:
    check_read(np.arange(24).reshape(2, 3, 4), key, key)


def test_a_traced_number_can_be_an_index() -> None:
    x = weft.asarray(np.arange(12.0).reshape(3, 4))
    picked = weft.scan(lambda s, i: (s, x[i, ::2]), weft.asarray(0), weft.asarray([2, 0, -1]))[1]
    np.testing.assert_array_equal(picked.numpy(), x.numpy()[[2, 0, -1], ::2])


# --- writing ---------------------------------------------------------------------------------------------------------


def draw_value(data: Any, shape: tuple[int, ...]) -> np.ndarray:
    """A value that fits a selection of some shape: as it is, with sizes of 1, with axes missing, or with one more."""
    ones = tuple(1 if data.draw(st.booleans()) else n for n in shape)
    fitting = data.draw(st.sampled_from([shape, ones, shape[len(shape) // 2 :], (), (1, *shape)]))
    return np.arange(1.0, 1.0 + np.prod(fitting)).reshape(fitting) * 10.0


def written(x: np.ndarray, where: np.ndarray, value: np.ndarray, how: str) -> np.ndarray:
    flat = x.ravel().copy()
    value = value.reshape(value.shape[max(value.ndim - where.ndim, 0) :])
    WRITES[how](flat, where.ravel(), np.broadcast_to(value, where.shape).ravel())
    return flat.reshape(x.shape)


@pytest.mark.parametrize("how", WRITES)
@given(any_case, st.data())
@settings(max_examples=some(200))
def test_writing_by_key_as_in_numpy(how: str, case: Any, data: Any) -> None:
    x, key, spelled = case
    where = places(x, key)
    value = draw_value(data, where.shape)
    before = weft.asarray(x)
    after = getattr(before.at[spelled], how)(value)
    np.testing.assert_array_equal(after.numpy(), written(x, where, value, how))
    np.testing.assert_array_equal(before.numpy(), x)  # at[] leaves the tensor as it was
    if how == "set":
        before[spelled] = value
        np.testing.assert_array_equal(before.numpy(), after.numpy())


def test_a_written_value_takes_the_dtype_of_the_tensor() -> None:
    x = weft.asarray([1, 2, 3])
    assert x.at[0].set(7.9).tolist() == [7, 2, 3]
    assert x.at[[0, 0]].add(weft.asarray([1.5, 2.5])).dtype is weft.int64
    assert weft.asarray([True, False]).at[1].set(True).tolist() == [True, True]


@pytest.mark.parametrize("how", ["set", "add"])
@pytest.mark.parametrize("key", [slice(1, None), [1]], ids=str)
def test_elements_that_are_not_written_keep_their_bits(how: str, key: Any) -> None:
    after = getattr(weft.asarray([-0.0, 1.0]).at[key], how)(5.0).numpy()
    assert np.signbit(after[0])


# --- derivatives -----------------------------------------------------------------------------------------------------


@given(cases(advanced=True))
@settings(max_examples=some(100))
def test_derivative_of_reading(case: Any) -> None:
    x, key, spelled = case
    where = places(x, key)
    weight = np.cos(np.arange(1.0, 1.0 + where.size)).reshape(where.shape)
    got = weft.grad(lambda t: (t[spelled] * weight).sum())(weft.asarray(x))
    expected = np.zeros(x.size)
    np.add.at(expected, where.ravel(), weight.ravel())  # an element read twice is counted twice
    np.testing.assert_allclose(got.numpy(), expected.reshape(x.shape), atol=1e-12)


@given(any_case, st.sampled_from(["set", "add"]))
@settings(max_examples=some(150))
def test_derivatives_of_writing(case: Any, how: str) -> None:
    x, key, spelled = case
    where = places(x, key)
    weight = np.cos(np.arange(1.0, 1.0 + x.size))
    loss = lambda t, v: (getattr(t.at[spelled], how)(v) * weight.reshape(x.shape)).sum()  # noqa: E731
    got_x, got_v = weft.grad(loss, (0, 1))(weft.asarray(x), weft.asarray(np.ones(where.shape)))
    expected_x, expected_v = weight.copy(), weight[where]
    if how == "set":
        expected_x[where] = 0.0
        last = {place: i for i, place in enumerate(where.ravel().tolist())}
        survives = [last[place] == i for i, place in enumerate(where.ravel().tolist())]
        expected_v = np.where(np.reshape(survives, where.shape).astype(bool), expected_v, 0.0)
    np.testing.assert_allclose(got_x.numpy(), expected_x.reshape(x.shape), atol=1e-12)
    np.testing.assert_allclose(got_v.numpy(), expected_v, atol=1e-12)


def test_derivative_of_a_spread_value_is_summed() -> None:
    x, v = weft.asarray(np.zeros((3, 4))), weft.asarray(np.ones((1, 4)))
    assert weft.grad(lambda v: x.at[[0, 2]].add(v).sum())(v).tolist() == [[2.0] * 4]
    assert weft.grad(lambda v: x.at[[0, 0]].set(v).sum())(v).tolist() == [[1.0] * 4]


def test_derivatives_through_item_assignment() -> None:
    w = weft.parameter([1.0, 2.0, 3.0])
    x = w * w
    x[1] = w[0] * 10.0
    x.sum().backward()
    assert w.grad is not None
    assert w.grad.tolist() == [12.0, 0.0, 6.0]


def test_second_derivative_of_reading() -> None:
    f = lambda x: (x[[0, 0, 2]] ** 3).sum()  # noqa: E731
    second = weft.grad(lambda x: weft.grad(f)(x).sum())(weft.asarray([1.0, 2.0, 3.0]))
    assert second.tolist() == [12.0, 0.0, 18.0]


# --- take, sort, search, repeat --------------------------------------------------------------------------------------

small_ints = hnp.arrays(
    "int64", hnp.array_shapes(min_dims=1, max_dims=3, min_side=0, max_side=5), elements=st.integers(-3, 3)
)


def test_take_counts_from_the_end_and_spreads() -> None:
    x, index = np.arange(24.0).reshape(2, 3, 4), np.array([[-1, 0], [1, 1]], "int32")
    for axis in range(-3, 3):
        np.testing.assert_array_equal(
            weft.take(weft.asarray(x), weft.asarray(index) % 2, axis=axis).numpy(), np.take(x, index % 2, axis=axis)
        )
    got = weft.take_along_axis(weft.asarray(x), weft.asarray(index[None, :1]), axis=2)
    np.testing.assert_array_equal(got.numpy(), x[:, :, [3, 0]])
    assert weft.take(weft.asarray([10, 20, 30]), weft.asarray([-1, -3])).tolist() == [30, 10]


@given(small_ints, st.booleans(), st.data())
def test_sort_and_its_relatives(x: np.ndarray, descending: bool, data: Any) -> None:
    axis = data.draw(st.integers(-x.ndim, x.ndim - 1))
    order = np.argsort(-x if descending else x, axis=axis, kind="stable")
    tensor, sorted_x = weft.asarray(x), np.take_along_axis(x, order, axis=axis)
    options = {"axis": axis, "descending": descending}
    np.testing.assert_array_equal(weft.argsort(tensor, **options).numpy(), order)
    np.testing.assert_array_equal(weft.sort(tensor, **options).numpy(), sorted_x)
    np.testing.assert_array_equal(weft.take_along_axis(tensor, weft.asarray(order), axis=axis).numpy(), sorted_x)
    k = data.draw(st.integers(0, x.shape[axis]))
    if descending:
        best = weft.top_k(tensor, k, axis=axis)
        np.testing.assert_array_equal(best.indices.numpy(), np.take(order, range(k), axis=axis))
        np.testing.assert_array_equal(best.values.numpy(), np.take(sorted_x, range(k), axis=axis))


def test_nan_is_sorted_as_the_greatest() -> None:
    x = weft.asarray([2.0, float("nan"), 1.0, float("inf"), float("nan")])
    assert weft.argsort(x).tolist() == [2, 0, 3, 1, 4]
    assert weft.argsort(x, descending=True).tolist() == [1, 4, 3, 0, 2]


def test_derivatives_of_sort_and_top_k() -> None:
    x, weight = weft.asarray([3.0, 1.0, 2.0]), weft.asarray([1.0, 10.0, 100.0])
    assert weft.grad(lambda x: (weft.sort(x) * weight).sum())(x).tolist() == [100.0, 1.0, 10.0]
    assert weft.grad(lambda x: weft.top_k(x, 2).values.sum())(x).tolist() == [1.0, 0.0, 1.0]


numbers = st.sampled_from([-2.0, -0.0, 0.0, 0.5, 7.0, float("inf"), -float("inf"), float("nan"), float("nan")])


@example([1.0, 2.0], [float("nan")], "left", False)  # nan belongs to the end, where sort puts it
@given(st.lists(numbers, max_size=9), st.lists(numbers, max_size=5), st.sampled_from(["left", "right"]), st.booleans())
def test_searchsorted(table: list[float], values: list[float], side: Any, shuffled: bool) -> None:
    x = np.array(table, "float64")
    sorter = np.argsort(x, kind="stable") if shuffled else None
    x = x if shuffled else np.sort(x)
    wanted = np.searchsorted(x, np.array(values, "float64"), side, sorter)
    order = None if sorter is None else weft.asarray(sorter)
    got = weft.searchsorted(weft.asarray(x), weft.asarray(np.array(values, "float64")), side=side, sorter=order)
    np.testing.assert_array_equal(got.numpy(), wanted)


@given(small_ints, st.data())
def test_repeat(x: np.ndarray, data: Any) -> None:
    axis = data.draw(st.none() | st.integers(-x.ndim, x.ndim - 1))
    size = x.size if axis is None else x.shape[axis]
    counts = st.integers(0, 3)
    repeats = data.draw(
        counts | st.lists(counts, min_size=size, max_size=size) | st.lists(counts, min_size=1, max_size=1)
    )
    given_repeats = repeats if isinstance(repeats, int) else weft.asarray(np.array(repeats, "int64"))
    got = weft.repeat(weft.asarray(x), given_repeats, axis=axis)
    np.testing.assert_array_equal(got.numpy(), np.repeat(x, np.array(repeats, "int64"), axis=axis))


# --- errors ----------------------------------------------------------------------------------------------------------

X = weft.asarray(np.zeros((2, 3)))
MISTAKES: list[tuple[Callable[[], Any], str]] = [
    (lambda: X[2], "[index] index 2 is out of range for axis 0 of size 2."),
    (lambda: X[0, -4], "[index] index -4 is out of range for axis 1 of size 3."),
    (lambda: X[5, [0]], "[index] index 5 is out of range for axis 0 of size 2."),
    (lambda: X[0, 0, 0], "[index] 3 indices are too many for a tensor of 2 dimensions."),
    (lambda: X[1.0], "[index] an index is made of ints, slices, '...', None, and arrays of ints or bools, got 1.0."),
    (lambda: X[(0, 1),], "[index] an index is made of ints, slices"),
    (lambda: X[weft.asarray([0.0])], "[index] an integer dtype is required, got float32."),
    (lambda: X[[True, False, True]], "[index] a mask of shape (3,) does not fit shape (2, 3)."),
    (lambda: X[np.ones((2, 2), bool)], "[index] a mask of shape (2, 2) does not fit shape (2, 3)."),
    (lambda: X[..., 0, ...], "[index] only one '...' can stand in an index."),
    (lambda: X[::0], "[index] "),
    (lambda: X["a":], "[index] a slice of ints is required"),
    (lambda: X[[0, 1], [0, 1, 2]], "[index] the shapes (2,) and (3,) do not fit together"),
    (lambda: X.at[0].set(np.zeros(2)), "[broadcast_to] shape (2,) cannot be broadcast to (3,)."),
    (lambda: X.at[[0]].set(np.zeros((2, 3))), "[broadcast_to] shape (2, 3) cannot be broadcast to (1, 3)."),
    (lambda: weft.take(X, weft.asarray([0])), "[take] an axis is required for 2 dimensions."),
    (lambda: weft.take(X, weft.asarray([0]), axis=2), "[take] axis 2 does not exist in a tensor of 2 dimensions."),
    (lambda: weft.take_along_axis(X, weft.asarray([0])), "[take_along_axis] as many dimensions are required"),
    (lambda: weft.top_k(X, 4), "[top_k] k must be between 0 and 3, the size of axis 1, got 4."),
    (lambda: weft.searchsorted(X, X), "[searchsorted] a vector and side 'left' or 'right' are required"),
    (lambda: weft.repeat(X, -1), "[repeat] 0 or more repetitions are required, got -1."),
    (lambda: weft.repeat(X, [1, 2, 3], axis=0), "[repeat] one count of 0 or more for each of 2 elements is required."),
    (lambda: weft.repeat(X, 1.5), "[repeat] "),  # half a repetition means nothing
]


@pytest.mark.parametrize(("call", "text"), MISTAKES, ids=[text for _, text in MISTAKES])
def test_mistakes_are_named(call: Callable[[], Any], text: str) -> None:
    with pytest.raises(weft.UserError) as caught:
        call()
    assert text in str(caught.value)


# (tensor of indices or several, the index to be named, the axis and its size), for an array of shape (2, 3)
OUTSIDE: list[tuple[Any, str]] = [
    (weft.asarray([0, 7]), "index 7 is out of range for axis 0 of size 2"),
    (weft.asarray([-3]), "index -3 is out of range for axis 0 of size 2"),
    ((slice(None), weft.asarray([3])), "index 3 is out of range for axis 1 of size 3"),
    ((weft.asarray([0]), weft.asarray([3])), "index 3 is out of range for axis 1 of size 3"),
    ((weft.asarray([1]), weft.asarray([-4])), "index -4 is out of range for axis 1 of size 3"),
    ((weft.asarray([2]), weft.asarray([0])), "index 2 is out of range for axis 0 of size 2"),
]


@pytest.mark.whole_errors
@pytest.mark.parametrize(("key", "text"), OUTSIDE, ids=[text for _, text in OUTSIDE])
def test_an_index_found_out_of_range_when_computed(key: Any, text: str) -> None:
    y, line = X[key], sys._getframe().f_lineno
    with pytest.raises(weft.RunError) as caught:
        y.numpy()
    assert str(caught.value).startswith(f"test_indexing.py:{line}: y, line = X[key]")  # not the line that looks
    assert text in str(caught.value)
    with pytest.raises(weft.RunError, match="out of range"):
        X.at[key].set(0.0).numpy()
