"""Checks the creation functions of the array API: shapes, dtypes, defaults, devices, and what asarray accepts."""

import array
import math

import numpy as np
import pytest

import weft
from array_api_tools import DTYPES, FLOATS, INTEGERS, NUMERIC, SHAPES, check, check_same, draw, dtype_of

# --- filled with one number ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
def test_filled(dtype):
    to = dtype_of(dtype)
    for shape in (*SHAPES, (2, 0, 3)):
        check(weft.zeros(shape, dtype=to), np.zeros(shape), dtype)
        check(weft.ones(shape, dtype=to), np.ones(shape), dtype)
        check(weft.full(shape, 1, dtype=to), np.ones(shape), dtype)
        assert weft.empty(shape, dtype=to).numpy().shape == shape
        assert weft.empty(shape, dtype=to).dtype is to


@pytest.mark.parametrize("dtype", DTYPES)
def test_filled_like(dtype):
    for shape in SHAPES:
        x = weft.asarray(draw(dtype, shape))
        check(weft.zeros_like(x), np.zeros(shape), dtype)
        check(weft.ones_like(x), np.ones(shape), dtype)
        check(weft.full_like(x, 1), np.ones(shape), dtype)
        check(weft.ones_like(x, dtype=weft.int8), np.ones(shape), "int8")
        check(weft.full_like(x, 1.5, dtype=weft.float64), np.full(shape, 1.5), "float64")
        assert weft.empty_like(x).numpy().shape == shape
        assert (weft.empty_like(x).dtype, weft.empty_like(x, dtype=weft.bool).dtype) == (x.dtype, weft.bool)


def test_defaults():
    for f in (weft.zeros, weft.ones, weft.empty):
        assert (f(3).dtype, f(3).shape) == (weft.float32, (3,))
    for value, dtype in ((True, "bool"), (2, "int64"), (2.5, "float32")):
        check(weft.full((2, 1), value), np.full((2, 1), value), dtype)
        check(weft.full(2, value), np.full(2, value), dtype)
    check(weft.eye(2), np.eye(2), "float32")
    check(weft.linspace(0, 2, 3), [0, 1, 2], "float32")
    check(weft.arange(3), [0, 1, 2], "int64")
    check(weft.arange(3.0), [0, 1, 2], "float32")


def test_devices():
    device = weft.__array_namespace_info__().default_device()
    x = weft.ones(2)
    tensors = [
        weft.zeros(2, device=device), weft.ones(2, device=device), weft.empty(2, device=device),
        weft.full(2, 1, device=device), weft.arange(2, device=device), weft.linspace(0, 1, 2, device=device),
        weft.eye(2, device=device), weft.asarray([1], device=device), weft.zeros_like(x, device=device),
        weft.ones_like(x, device=device), weft.full_like(x, 1, device=device), weft.empty_like(x, device=device),
        weft.from_dlpack(np.ones(2), device=device), weft.astype(x, weft.int8, device=device),
    ]  # fmt: skip
    assert {t.device for t in tensors} == {device}


def test_bad_shapes_and_values_are_refused():
    for shape in (-1, (2, -1), 1.5, ("a",)):
        with pytest.raises(weft.UserError):
            weft.zeros(shape)
    for value, dtype in ((300, weft.uint8), (-1, weft.uint64), (2**63, None), (math.nan, weft.int32), ("x", None)):
        with pytest.raises(weft.UserError):
            weft.full(2, value, dtype=dtype)


# --- ranges and matrices -------------------------------------------------------------------------------------------------

RANGES = [
    (5,), (0,), (-3,), (2, 8), (2, 8, 3), (2, 9, 3), (8, 2, -3), (8, 2, 3), (2, 8, -1), (0, 1, 2), (5, 5), (-4, 4, 2),
    (3, 0, -1), (10, 1, -4), (1, 2, 100),
]  # fmt: skip
FLOAT_RANGES = [
    (2.5,),
    (0.5, 3),
    (0, 1, 0.25),
    (1, 0, -0.25),
    (0, 1.1, 0.25),
    (1.0, 1.0),
    (0.0, -1.0),
    (-1.5, 1.5, 0.5),
]


@pytest.mark.parametrize("dtype", NUMERIC)
def test_arange(dtype):
    for arguments in RANGES:
        expected = np.arange(*arguments)
        if dtype.startswith("u") and (expected < 0).any():
            continue
        check(weft.arange(*arguments, dtype=dtype_of(dtype)), expected, dtype)
    if dtype in FLOATS:
        for arguments in FLOAT_RANGES:
            check(weft.arange(*arguments, dtype=dtype_of(dtype)), np.arange(*arguments), dtype)


def test_arange_infers_its_dtype():
    for arguments in RANGES:
        check(weft.arange(*arguments), np.arange(*arguments), "int64")
    for arguments in FLOAT_RANGES:
        check(weft.arange(*arguments), np.arange(*arguments), "float32")
    check(weft.arange(0, stop=6, step=2), [0, 2, 4], "int64")
    check(weft.arange(2**40, 2**40 + 2), [2**40, 2**40 + 1], "int64")
    check(weft.arange(np.int64(3)), [0, 1, 2], "int64")
    with pytest.raises(weft.UserError):
        weft.arange(0, 5, 0)


@pytest.mark.parametrize("dtype", INTEGERS)
def test_arange_reaches_the_ends_of_the_range(dtype):
    top, bottom = int(np.iinfo(dtype).max), int(np.iinfo(dtype).min)
    for start, stop, step in ((top - 2, top, 1), (top, top - 3, -1), (bottom, bottom + 3, 1), (bottom + 2, bottom, -1)):
        check(weft.arange(start, stop, step, dtype=dtype_of(dtype)), list(range(start, stop, step)), dtype)


@pytest.mark.parametrize("dtype", FLOATS)
def test_linspace(dtype):
    for start, stop in ((0, 1), (-2.5, 4), (3, 3), (5, -5), (0.1, 0.7)):
        for num in (0, 1, 2, 5, 50):
            for endpoint in (True, False):
                result = weft.linspace(start, stop, num, dtype=dtype_of(dtype), endpoint=endpoint)
                # Near zero the rounding of the other terms shows, hence the tolerance in ulps of the largest value.
                expected = np.linspace(start, stop, num, endpoint=endpoint)
                assert (result.shape, result.dtype) == (expected.shape, dtype_of(dtype))
                room = 2 * weft.finfo(result).eps * max(abs(start), abs(stop))
                np.testing.assert_allclose(result.numpy().astype(float), expected, rtol=0, atol=room)
                if num > 1 and endpoint:
                    check(result[-1], stop, dtype)


@pytest.mark.parametrize("dtype", DTYPES)
def test_eye(dtype):
    for rows, columns in ((3, None), (2, 4), (4, 2), (0, None), (3, 0), (1, 1)):
        for k in (-5, -2, -1, 0, 1, 2, 5):
            check(weft.eye(rows, columns, k=k, dtype=dtype_of(dtype)), np.eye(rows, columns, k=k), dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ["tril", "triu"])
def test_triangles(name, dtype):
    for shape in ((3, 3), (2, 4), (4, 2), (2, 3, 3), (0, 3), (3, 0)):
        x = draw(dtype, shape)
        for k in (-4, -1, 0, 1, 4):
            check(getattr(weft, name)(weft.asarray(x), k=k), getattr(np, name)(x, k=k), dtype)


def test_triangles_hide_what_they_cut_off():
    x = np.full((3, 3), math.nan)
    check(weft.tril(weft.asarray(x)), np.where(np.tri(3), math.nan, 0), "float64")
    with pytest.raises(weft.UserError):
        weft.triu(weft.ones(3))


@pytest.mark.parametrize("indexing", ["xy", "ij"])
def test_meshgrid(indexing):
    vectors = [draw("int16", (n,)) for n in (3, 2, 4, 1)]
    for count in range(5):
        result = weft.meshgrid(*(weft.asarray(v) for v in vectors[:count]), indexing=indexing)
        check_same(result, np.meshgrid(*vectors[:count], indexing=indexing))
    empty = np.zeros(0, np.int16)
    result = weft.meshgrid(weft.asarray(empty), weft.asarray(vectors[0]), indexing=indexing)
    check_same(result, np.meshgrid(empty, vectors[0], indexing=indexing))
    with pytest.raises(weft.UserError):
        weft.meshgrid(weft.ones(2), indexing="yx")


# --- asarray -------------------------------------------------------------------------------------------------------------

NESTS = [
    (True, "bool"), (3, "int64"), (2.5, "float32"), ([True, False], "bool"), ([1, 2], "int64"), ([True, 2], "int64"),
    ([1, 2.5], "float32"), ([True, 2.5], "float32"), ([[1, 2], [3, 4]], "int64"), (((1.0,), (2.0,)), "float32"),
    ([], "float32"), ([[], []], "float32"), ([[[1]]], "int64"), (range(3), "int64"),
]  # fmt: skip


@pytest.mark.parametrize(("value", "dtype"), NESTS)
def test_asarray_of_python_numbers(value, dtype):
    check(weft.asarray(value), np.asarray(value), dtype)
    check(weft.asarray(value, copy=True), np.asarray(value), dtype)
    for target in FLOATS:
        check(weft.asarray(value, dtype=dtype_of(target)), np.asarray(value), target)


@pytest.mark.parametrize("dtype", DTYPES)
def test_asarray_keeps_the_dtype_of_arrays(dtype):
    for shape in SHAPES:
        x = draw(dtype, shape)
        check(weft.asarray(x), x, dtype)
        check(weft.asarray(weft.asarray(x)), x, dtype)
        check(weft.asarray(x, dtype=dtype_of(dtype), copy=True), x, dtype)
        check(weft.asarray(x, dtype=weft.float64), x, "float64")
        check(weft.asarray(weft.asarray(x), dtype=weft.float64), x, "float64")
    check(weft.asarray(x[::-1, ::2]), x[::-1, ::2], dtype)
    check(weft.asarray(x.T), x.T, dtype)
    check(weft.asarray(x[0, 0]), x[0, 0], dtype)


@pytest.mark.parametrize("dtype", INTEGERS)
def test_asarray_of_numbers_at_the_ends_of_the_range(dtype):
    top, bottom = int(np.iinfo(dtype).max), int(np.iinfo(dtype).min)
    to = dtype_of(dtype)
    for values in ([top], [bottom], [top, 0], [top, bottom], [[top - 1, 1], [2, 3]]):
        check(weft.asarray(values, dtype=to), np.asarray(values, dtype), dtype)
    for value in (top + 1, bottom - 1):
        for nest in (value, [value], [0, value], [[value], [0]]):
            with pytest.raises(weft.UserError):
                weft.asarray(nest, dtype=to)


def test_asarray_converts_floats_as_astype_does():
    values = [300.7, -300.7, math.nan, math.inf, -math.inf, 1e300]
    x = weft.asarray(np.asarray(values))
    for dtype in ("uint8", "int32", "int64", "float16", "float32"):
        expected = x.astype(dtype).numpy()
        for given in (np.asarray(values), values, x, [weft.asarray(v, dtype=weft.float64) for v in values]):
            check(weft.asarray(given, dtype=dtype_of(dtype)), expected, dtype)
    check(weft.asarray([1e300]), [math.inf], "float32")


BUFFERS = [
    (b"\x01\x02\xff", [1, 2, 255], "uint8"), (bytearray(b"\x01\x02"), [1, 2], "uint8"), (b"", [], "uint8"),
    (memoryview(b"\x01\x02"), [1, 2], "uint8"), (array.array("d", [1.5, 2]), [1.5, 2], "float64"),
    (array.array("f", [1.5]), [1.5], "float32"), (array.array("b", [-1]), [-1], "int8"),
    (array.array("H", [7]), [7], "uint16"), (array.array("i", []), [], "int32"),
    (memoryview(array.array("q", [1, -2])), [1, -2], "int64"),
    (memoryview(bytes(range(6))).cast("B", (2, 3)), [[0, 1, 2], [3, 4, 5]], "uint8"),
    (memoryview(np.arange(6.0)[::2]), [0, 2, 4], "float64"),
]  # fmt: skip


@pytest.mark.parametrize(("value", "expected", "dtype"), BUFFERS)
def test_asarray_of_buffers(value, expected, dtype):
    check(weft.asarray(value), expected, dtype)
    check(weft.asarray(value, copy=True), expected, dtype)
    check(weft.asarray(value, dtype=weft.float64), expected, "float64")


def test_asarray_copies_what_can_be_written_to():
    for value in (np.arange(3.0), array.array("d", [0, 1, 2]), memoryview(array.array("d", [0, 1, 2]))):
        x = weft.asarray(value)
        value[1] = 9
        check(x, [0, 1, 2], "float64")
    data = bytearray(b"\x00\x01\x02")
    x = weft.asarray(data)
    data[1] = 9
    check(x, [0, 1, 2], "uint8")


def test_asarray_copies_what_can_be_written_to_through_a_base():
    # A view that cannot be written to guards nothing while its base can.
    base = np.arange(3.0)
    view = base[:]
    view.flags.writeable = False
    x = weft.asarray(view)
    base[1] = 9
    check(x, [0, 1, 2], "float64")


def test_asarray_shares_what_cannot_be_written_to():
    x = np.arange(3.0)
    x.flags.writeable = False
    assert np.shares_memory(weft.asarray(x).numpy(), x)
    assert not np.shares_memory(weft.asarray(x, copy=True).numpy(), x)
    text = b"\x01\x02"
    assert np.shares_memory(weft.asarray(text).numpy(), np.frombuffer(text, np.uint8))


def test_asarray_without_a_copy():
    for x in (np.arange(3.0), np.zeros(0), np.zeros((2, 0)), np.ones(())):
        shared = weft.asarray(x, copy=False)
        check(shared, x, "float64")
        assert x.size == 0 or np.shares_memory(shared.numpy(), x)
    for value in ([1, 2], 3, np.arange(3, dtype=np.int8)):
        with pytest.raises(ValueError, match="copy"):
            weft.asarray(value, dtype=weft.float32, copy=False)
    with pytest.raises(ValueError, match="copy"):
        weft.asarray(weft.ones(2), dtype=weft.int8, copy=False)


@pytest.mark.parametrize(
    "value", ["text", [1, "a"], [1j], None, [[1], [1, 2]], object(), {1: 2}, [None], np.ones(1, complex)]
)
def test_asarray_refuses_what_is_not_numbers(value):
    with pytest.raises(weft.UserError):
        weft.asarray(value)


def test_asarray_of_tensors_in_a_list():
    x = weft.asarray([1, 2], dtype=weft.int8)
    check(weft.asarray([x, x]), [[1, 2], [1, 2]], "int8")
    check(weft.asarray([x[0], x[1]], dtype=weft.int16), [1, 2], "int16")


def test_asarray_turns_round_foreign_byte_orders():
    for dtype in (">i4", ">f8", ">u2"):
        x = np.arange(3).astype(dtype)
        check(weft.asarray(x), x.astype(x.dtype.newbyteorder("=")), x.dtype.newbyteorder("=").name)
