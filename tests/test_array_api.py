"""Checks that weft has the names, signatures and dtypes of the Python array API standard 2024.12.

The other files test_array_api_*.py check what the functions compute.
"""

import inspect
import itertools
from typing import Any

import array_api_strict as strict
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import weft
from array_api_tools import (
    BITS,
    DTYPES,
    FLOATS,
    HALVES,
    INTEGERS,
    NUMERIC,
    STANDARD_DTYPES,
    check,
    dtype_of,
    numpy_dtype,
)

# What array_api_strict has beside the standard, what came after 2024.12, and what weft leaves out on purpose.
NOT_STANDARD = {
    "ArrayAPIStrictFlags",
    "Device",
    "ModuleType",
    "get_array_api_strict_flags",
    "set_array_api_strict_flags",
    "reset_array_api_strict_flags",
    "broadcast_shapes",
    "isin",
    "complex64",
    "complex128",
    "linalg",
    "fft",
}
NAMES = [n for n in dir(strict) if not n.startswith("_") and n not in NOT_STANDARD]
FUNCTIONS = [n for n in NAMES if inspect.isfunction(getattr(strict, n))]


def test_the_list_of_names_is_the_whole_standard():
    # Guards the tests below: a change in array_api_strict must not empty their list.
    assert len(NAMES) >= 149
    assert len(FUNCTIONS) >= 133


@pytest.mark.parametrize("name", [*NAMES, "__array_namespace_info__", "__array_api_version__"])
def test_name_exists(name):
    assert hasattr(weft, name)


def standard_calls(signature: inspect.Signature) -> list[tuple[list[Any], dict[str, Any]]]:
    """Ways the standard allows to call a function: all arguments, by place or by name, and the required ones only."""
    by_place: list[Any] = []
    by_name: dict[str, Any] = {}
    either: dict[str, Any] = {}
    required: list[Any] = []
    for p in signature.parameters.values():
        if p.kind is p.KEYWORD_ONLY:
            by_name[p.name] = p.default
        elif p.kind is p.VAR_POSITIONAL:
            by_place += [0, 0, 0]
        else:
            by_place.append(0)
            required += [0] if p.default is p.empty else []
            if p.kind is p.POSITIONAL_OR_KEYWORD:
                either[p.name] = 0
    places = len(by_place) - len(either)
    return [(by_place, by_name), (by_place[:places], {**either, **by_name}), (required, {})]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_signature_accepts_the_standard_calls(name):
    signature = inspect.signature(getattr(weft, name))
    for args, kwargs in standard_calls(inspect.signature(getattr(strict, name))):
        signature.bind(*args, **kwargs)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_defaults_are_the_standard_ones(name):
    ours = inspect.signature(getattr(weft, name)).parameters
    for p in inspect.signature(getattr(strict, name)).parameters.values():
        if isinstance(p.default, bool | int | float | str) or p.default is None:
            assert ours[p.name].default == p.default, p.name


def test_constants_and_version():
    assert (weft.e, weft.pi, weft.inf, weft.newaxis) == (np.e, np.pi, np.inf, None)
    assert np.isnan(weft.nan)
    assert weft.__array_api_version__ == "2024.12"


# --- dtypes --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", DTYPES)
def test_dtypes_compare_and_hash(name):
    dtype = dtype_of(name)
    assert [other for other in DTYPES if dtype_of(other) == dtype] == [name]
    assert {dtype: 1}[dtype_of(name)] == 1
    assert weft.zeros(1, dtype=dtype).dtype == dtype


KINDS = {
    "bool": ("bool",),
    "signed integer": tuple(n for n in INTEGERS if n.startswith("int")),
    "unsigned integer": tuple(n for n in INTEGERS if n.startswith("uint")),
    "integral": INTEGERS,
    "real floating": FLOATS,
    "complex floating": (),
    "numeric": NUMERIC,
}


@pytest.mark.parametrize("name", DTYPES)
def test_isdtype(name):
    dtype = dtype_of(name)
    for kind, members in KINDS.items():
        assert weft.isdtype(dtype, kind) is (name in members)
    for a, b in itertools.combinations(KINDS, 2):
        assert weft.isdtype(dtype, (a, b)) is (name in KINDS[a] + KINDS[b])
    for other in DTYPES:
        assert weft.isdtype(dtype, dtype_of(other)) is (name == other)
        assert weft.isdtype(dtype, (dtype_of(other), "bool")) is (name in (other, "bool"))
    with pytest.raises(weft.UserError, match="no kind"):
        weft.isdtype(dtype, "whole")


@pytest.mark.parametrize("name", FLOATS)
def test_finfo(name):
    dtype = dtype_of(name)
    for info in (weft.finfo(dtype), weft.finfo(weft.zeros(2, dtype=dtype))):
        one = np.asarray(1, numpy_dtype(name))
        assert info.bits == 8 * one.itemsize
        assert info.eps == float(np.nextafter(one, 2 * one)) - 1
        assert info.max == float(np.nextafter(np.asarray(np.inf, one.dtype), one)) == -info.min
        # The exponents lie around zero, so the greatest power of two tells the least.
        assert info.smallest_normal == np.ldexp(1.0, 2 - np.frexp(info.max)[1])
        assert info.dtype is dtype
        assert {type(info.eps), type(info.max), type(info.min), type(info.smallest_normal)} == {float}


@pytest.mark.parametrize("name", INTEGERS)
def test_iinfo(name):
    dtype, limits = dtype_of(name), np.iinfo(name)
    for info in (weft.iinfo(dtype), weft.iinfo(weft.zeros(2, dtype=dtype))):
        assert (info.bits, info.min, info.max) == (limits.bits, limits.min, limits.max)
        assert info.dtype is dtype
        assert {type(info.bits), type(info.min), type(info.max)} == {int}


@pytest.mark.parametrize("info", [weft.finfo, weft.iinfo])
def test_limits_take_what_asarray_takes_as_dtype(info):
    kind = "float32" if info is weft.finfo else "int32"
    for way in (kind, np.dtype(kind), getattr(np, kind), dtype_of(kind)):
        assert info(way).dtype is dtype_of(kind)


def test_limits_refuse_the_other_kind():
    for dtype in (weft.int8, weft.bool):
        with pytest.raises(weft.UserError):
            weft.finfo(dtype)
    for dtype in (weft.float32, weft.bool):
        with pytest.raises(weft.UserError):
            weft.iinfo(dtype)


# --- promotion -----------------------------------------------------------------------------------------------------------


def promoted(a: str, b: str) -> str | None:
    """The standard's table, as array_api_strict has it; where that is silent, what weft's documentation says."""
    if a in STANDARD_DTYPES and b in STANDARD_DTYPES:
        try:
            return np.dtype(str(strict.result_type(getattr(strict, a), getattr(strict, b))).split(".")[-1]).name
        except TypeError:
            pass
    if "bool" in (a, b):
        return b if a == "bool" else a
    if (a in FLOATS) != (b in FLOATS):
        return a if a in FLOATS else b
    if a in FLOATS:
        return a if a == b else "float32" if a in HALVES and b in HALVES else max(a, b, key=FLOATS.index)
    return None  # uint64 and a signed integer


PAIRS = list(itertools.product(DTYPES, DTYPES))


@pytest.mark.parametrize(("a", "b"), PAIRS)
def test_promotion(a, b):
    x, y, expected = weft.ones(2, dtype=dtype_of(a)), weft.ones(2, dtype=dtype_of(b)), promoted(a, b)
    if expected is None:
        for call in (lambda: weft.result_type(x, y), lambda: x + y, lambda: weft.concat([x, y])):
            with pytest.raises(weft.UserError, match="no common"):
                call()
        return
    dtype = dtype_of(expected)
    for arguments in ((x, y), (x.dtype, y.dtype), (x, y.dtype), (x, y, x), (y.dtype,) * 2 + (x,)):
        assert weft.result_type(*arguments) is dtype
    check(weft.where(weft.asarray([True, False]), x, y), [1, 1], expected)
    check(weft.concat([x, y]), [1] * 4, expected)
    check(weft.equal(x, y), [True, True], "bool")
    if expected != "bool":  # there is no arithmetic on bools
        check(weft.add(x, y), [2, 2], expected)
        check(x * y, [1, 1], expected)


@pytest.mark.parametrize("dtype", DTYPES)
def test_python_scalars_take_the_dtype_of_the_tensor(dtype):
    x = weft.ones(2, dtype=dtype_of(dtype))
    scalars = [True] if dtype == "bool" else [1] if dtype in INTEGERS else [1, 1.0]
    for scalar in scalars:
        assert weft.result_type(x, scalar) is weft.result_type(scalar, x.dtype) is x.dtype
        check(weft.where(weft.asarray([True, False]), x, scalar), [1, 1], dtype)
        check(weft.where(weft.asarray([True, False]), scalar, x), [1, 1], dtype)
        for f in (weft.bitwise_or, weft.bitwise_and) if dtype == "bool" else (weft.multiply, weft.pow, weft.maximum):
            check(f(x, scalar), [1, 1], dtype)
            check(f(scalar, x), [1, 1], dtype)


@pytest.mark.parametrize("dtype", BITS)
def test_a_python_float_turns_integers_into_the_default_float(dtype):
    assert weft.result_type(dtype_of(dtype), 1.5) is weft.float32
    if dtype != "bool":
        check(weft.ones(2, dtype=dtype_of(dtype)) * 1.5, [1.5, 1.5], "float32")


@pytest.mark.parametrize("dtype", INTEGERS)
def test_a_scalar_out_of_range_is_refused(dtype):
    x, limits = weft.ones(2, dtype=dtype_of(dtype)), np.iinfo(dtype)
    for value in (int(limits.min) - 1, int(limits.max) + 1):
        with pytest.raises(weft.UserError, match="does not fit"):
            weft.add(x, value)
    check(weft.maximum(x, int(limits.max)), [limits.max] * 2, dtype)
    check(weft.minimum(int(limits.min), x), [limits.min] * 2, dtype)


def test_an_integer_beyond_all_floats_is_refused():
    for dtype in FLOATS:
        with pytest.raises(weft.UserError):
            weft.add(weft.ones(2, dtype=dtype_of(dtype)), 10**400)


def test_result_type_needs_a_dtype():
    with pytest.raises(weft.UserError):
        weft.result_type(1, 2.0)


@pytest.mark.parametrize("source", DTYPES)
def test_can_cast(source):
    for target in DTYPES:
        mixed = "bool" in (source, target) or (source in FLOATS) != (target in FLOATS)
        if not mixed or source == target:
            expected = promoted(source, target) == target
            assert weft.can_cast(dtype_of(source), dtype_of(target)) is expected, target
            assert weft.can_cast(weft.zeros(1, dtype=dtype_of(source)), dtype_of(target)) is expected, target
        elif target == "bool" or (target in INTEGERS and source in FLOATS):
            assert not weft.can_cast(dtype_of(source), dtype_of(target))


# --- what the namespace says about itself --------------------------------------------------------------------------------


def test_info():
    info = weft.__array_namespace_info__()
    assert info.capabilities() == {"boolean indexing": True, "data-dependent shapes": True, "max dimensions": 64}
    assert info.default_device() in info.devices()
    defaults = info.default_dtypes()
    assert (defaults["real floating"], defaults["integral"], defaults["indexing"]) == (
        weft.ones(1).dtype,
        weft.asarray([1]).dtype,
        weft.argmax(weft.ones(1)).dtype,
    )
    assert info.default_dtypes(device=info.default_device()) == defaults
    assert weft.ones((1,) * 64).sum().item() == 1


def test_info_names_the_dtypes_of_the_standard_only():
    info = weft.__array_namespace_info__()
    assert info.dtypes() == {n: dtype_of(n) for n in STANDARD_DTYPES}
    for kind, members in KINDS.items():
        assert info.dtypes(kind=kind) == {n: dtype_of(n) for n in members if n in STANDARD_DTYPES}
    assert set(info.dtypes(kind=("bool", "real floating"), device=info.default_device())) == {
        "bool",
        "float32",
        "float64",
    }


# --- any shapes, any dtypes ----------------------------------------------------------------------------------------------

ANY_SHAPE = hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=3)


@given(ANY_SHAPE, ANY_SHAPE)
def test_any_two_shapes_broadcast_as_in_numpy(a, b):
    x, y = weft.ones(a), weft.ones(b)
    try:
        expected = np.broadcast_shapes(a, b)
    except ValueError:
        with pytest.raises(weft.UserError, match="do not fit together"):
            weft.add(x, y)
        return
    check(weft.add(x, y), np.full(expected, 2.0), "float32")
    assert [t.shape for t in weft.broadcast_arrays(x, y)] == [expected] * 2


@given(hnp.mutually_broadcastable_shapes(num_shapes=3, max_dims=4, max_side=3, min_side=0))
def test_three_shapes_broadcast(shapes):
    a, b, c = (weft.ones(s) for s in shapes.input_shapes)
    check(weft.where(a > 0, b, c), np.ones(shapes.result_shape), "float32")
    assert [t.shape for t in weft.broadcast_arrays(a, b, c)] == [shapes.result_shape] * 3


@given(hnp.mutually_broadcastable_shapes(num_shapes=2, max_dims=3, max_side=3), st.data())
def test_any_two_dtypes_and_shapes_add(shapes, data):
    a, b = (data.draw(st.sampled_from(NUMERIC)) for _ in range(2))
    x, y = (weft.full(s, 3, dtype=dtype_of(d)) for s, d in zip(shapes.input_shapes, (a, b), strict=True))
    expected = promoted(a, b)
    if expected is None:
        with pytest.raises(weft.UserError, match="no common"):
            weft.add(x, y)
    else:
        check(weft.add(x, y), np.full(shapes.result_shape, 6), expected)


@given(st.sampled_from(NUMERIC), st.integers(-(2**70), 2**70) | st.floats() | st.booleans(), st.booleans())
def test_any_scalar_keeps_the_dtype_or_is_refused(dtype, scalar, left):
    x = weft.zeros(2, dtype=dtype_of(dtype))
    if dtype in INTEGERS and type(scalar) is int and not np.iinfo(dtype).min <= scalar <= np.iinfo(dtype).max:
        with pytest.raises(weft.UserError, match="does not fit"):
            weft.add(x, scalar)
        return
    with np.errstate(over="ignore"):
        rounded = np.asarray(float(scalar)).astype(x.dtype.numpy) if dtype in FLOATS else np.zeros(())
    if type(scalar) is int and not np.isfinite(rounded):
        with pytest.raises(weft.UserError, match="does not fit"):
            weft.add(x, scalar)
        return
    wanted = "float32" if dtype in INTEGERS and type(scalar) is float else dtype
    check(weft.add(scalar, x) if left else weft.add(x, scalar), [0 + scalar] * 2, wanted, zero_signs=False)
