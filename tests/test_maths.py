"""The elementary functions of the CPU's code against wider floats: one table of bounds, special values, equal bits."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache
from itertools import product
from typing import Any

import numpy as np
import pytest
from scipy import special

from weft.compiler.cpu import engine
from weft.compiler.cpu.ir_builder import F32, F64, I64, PTR, Code, new_module, vector
from weft.compiler.cpu.math import functions as maths
from weft.compiler.cpu.math.float_builder import Num
from weft.compiler.thresholds import thresholds

# How far results may be from the exact ones, in units of the last place of float32 and float64.
BOUNDS = {
    "exp": (1.1, 1.1),
    "expm1": (1.8, 2.3),
    "log": (1.4, 1.7),
    "log1p": (1.9, 2.0),
    "log2": (2.5, 2.5),
    "log10": (2.8, 2.8),
    "sin": (1.7, 1.7),
    "cos": (1.7, 1.7),
    "tan": (3.7, 3.7),
    "asin": (2.5, 2.5),
    "acos": (1.5, 1.5),
    "atan": (3.0, 3.0),
    "sinh": (2.8, 2.8),
    "cosh": (1.8, 1.8),
    "tanh": (2.0, 2.3),
    "asinh": (3.0, 3.0),
    "acosh": (3.0, 3.0),
    "atanh": (3.0, 3.0),
    "erf": (1.8, 3.1),  # 1 in truth; the reference, scipy in float64, is two places off
    "sigmoid": (2.0, 2.0),
    "pow": (3.0, 3.0),
    "atan2": (3.2, 3.2),
    "hypot": (1.3, 1.3),
    "logaddexp": (3.0, 3.0),  # places of the greatest of |x|, |y| and the result, which may cancel
}
TWO_ARGUMENTS = ("pow", "atan2", "hypot", "logaddexp")
NUMPY = {"asin": "arcsin", "acos": "arccos", "atan": "arctan", "atan2": "arctan2", "pow": "power"}
NUMPY |= {"asinh": "arcsinh", "acosh": "arccosh", "atanh": "arctanh"}
SPECIAL = (0.0, 1.0, 0.5, 2.0, 3.0, 0.1, 1.5, 88.0, 1e9, float("inf"))
FLOATS = [pytest.param(np.float32, id="float32"), pytest.param(np.float64, id="float64")]
Array = Any  # of NumPy
Float = Any  # np.float32 or np.float64


def test_every_function_has_a_bound() -> None:
    assert set(BOUNDS) == set(maths.NAMES)


@pytest.mark.sweep("name", share=0.0)
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("name", maths.NAMES)
def test_error_and_lanes(name: str, dtype: Float) -> None:
    inputs = _sweep(name, dtype)
    got = _apply(name, 4, *inputs)
    error = _places(name, got, inputs)
    worst = int(np.argmax(error))
    assert error[worst] <= BOUNDS[name][dtype is np.float64], (error[worst], [x[worst] for x in inputs], got[worst])
    few = [x[::7] for x in inputs]
    assert _bits(_apply(name, 1, *few)) == _bits(got[::7])


def _bits(values: Array) -> bytes:
    """The bits of numbers, with all NaNs alike: a sum of two NaNs is either of them, since LLVM may swap its operands."""
    return np.where(np.isnan(values), values.dtype.type(np.nan), values).tobytes()


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("name", maths.NAMES)
def test_special_values(name: str, dtype: Float) -> None:
    limits = np.finfo(dtype)
    edges = [*SPECIAL, limits.max, limits.smallest_normal, limits.smallest_subnormal, np.nextafter(dtype(1), dtype(2))]
    values = np.array([*edges, *(-x for x in edges), np.nan], dtype)
    pairs = list(product(values, values)) if name in TWO_ARGUMENTS else [(x,) for x in values]
    inputs = [np.array(column, dtype) for column in zip(*pairs, strict=True)]
    got = _apply(name, 4, *inputs)
    with np.errstate(all="ignore"):
        want = _reference(name, *inputs).astype(dtype)
    plain = np.isfinite(want) & (want != 0)
    for where in np.flatnonzero(~plain):
        assert np.array_equal(got[where], want[where], equal_nan=True), ([x[where] for x in inputs], got[where])
        assert np.isnan(want[where]) or np.signbit(got[where]) == np.signbit(want[where]), [x[where] for x in inputs]
    assert (_places(name, got, inputs)[plain] <= BOUNDS[name][dtype is np.float64]).all()


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("name", ["exp", "sigmoid", "logaddexp", "pow"])
def test_where_results_become_subnormal_and_where_they_become_zero(name: str, dtype: Float) -> None:
    """Results that round to 0 are not computed as products that underflow."""
    limits = np.finfo(dtype)
    scale = 1.0 if name == "pow" else np.log(2.0)
    powers = [
        limits.minexp,
        limits.minexp - limits.nmant,
        limits.minexp - limits.nmant - 1,
        limits.minexp - limits.nmant - 2,
    ]
    x = np.concatenate([p * scale + np.linspace(-1.5, 1.5, 301) for p in powers] + [[-1e4, -1e30, -np.inf]]).astype(
        dtype
    )
    inputs = {"pow": [np.full_like(x, 2), x], "logaddexp": [np.zeros_like(x), x]}.get(name, [x])
    got = _apply(name, 8, *inputs)
    assert (_places(name, got, inputs) <= BOUNDS[name][dtype is np.float64]).all()
    if name != "logaddexp":
        assert (got[:301] != 0).all()
        assert (got[-3:] == 0).all()


@pytest.mark.parametrize("dtype", FLOATS)
def test_exp_without_subnormals(dtype: Float) -> None:
    limits = np.finfo(dtype)
    x = np.concatenate(
        [np.log(float(limits.tiny)) + np.linspace(-2, 2, 401), [-1e3, -1e30, -np.inf, np.nan, 0, 0.3]]
    ).astype(dtype)
    got = _apply("exp_without_subnormals", 8, x)
    low = np.ceil(np.log(float(limits.tiny)))
    kept = ~(x < low)
    assert (got[~kept] == 0).all()
    assert kept.sum() > 100 < (~kept).sum()
    assert (got[kept] >= limits.smallest_normal).sum() == kept.sum() - 1
    assert np.isnan(got[-3])
    assert (_places("exp", got, [x])[kept] <= BOUNDS["exp"][dtype is np.float64]).all()


@pytest.mark.parametrize("name", ["exp", "sin", "pow"])
def test_a_lane_does_not_depend_on_its_neighbours(name: str) -> None:
    inputs = [np.array([0.3, 1e20, 2.5, np.nan, -np.inf, 7.25, -3.0, 0.0] * 2, np.float32)] * (1 + (name == "pow"))
    wanted = _apply(name, 1, *inputs).tobytes()
    assert [_apply(name, lanes, *inputs).tobytes() == wanted for lanes in (2, 4, 8, 16)] == [True] * 4


def test_functions_are_made_once_for_each_type() -> None:
    code = Code.begin(new_module("test"), "twice", [F32], F32)
    x = maths.emit(code, "exp", maths.emit(code, "exp", code.arguments[0]))
    assert [f.name for f in code.done(x).module.functions if f.blocks] == ["twice", "weft.exp.f32"]


def test_a_vector_is_computed_in_place_until_its_block_is_long() -> None:
    code = Code.begin(new_module("test"), "chain", [vector(F32, 8)], vector(F32, 8))
    x = code.arguments[0]
    for _ in range(40):
        x = maths.emit(code, "exp", x)
    function = code.done(x)
    assert [f.name for f in function.module.functions if f.blocks] == ["chain", "weft.exp.v8f32"]
    assert thresholds.inlined_block <= len(function.blocks[0].instructions) < 2 * thresholds.inlined_block


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", maths.NAMES)
def test_calls_have_the_bits_of_what_is_computed_in_place(name: str, dtype: Float) -> None:
    inputs = [x[:4003] for x in _sweep(name, dtype)]
    wanted = _apply(name, 8, *inputs).tobytes()
    with thresholds.set(inlined_block=0):
        _compiled.cache_clear()
        called = _apply(name, 8, *inputs).tobytes()
    _compiled.cache_clear()
    assert called == wanted


# --- what they are tested with ----------------------------------------------------------------------------------------


@cache
def _compiled(name: str, dtype: Float, lanes: int) -> tuple[engine.Loaded, Callable[..., None]]:
    """void run(count, inputs..., output) for arrays of a multiple of so many elements."""
    inputs = 2 if name in TWO_ARGUMENTS else 1
    code = Code.begin(new_module(name), "run", [I64] + [PTR] * (inputs + 1))
    count, *pointers = code.arguments
    type = vector(F32 if dtype is np.float32 else F64, lanes)
    with code.loop(0, count, lanes) as i:
        values = [code.read(p, i, type) for p in pointers[:-1]]
        if name in maths.NAMES:
            result = maths.emit(code, name, *values)
        else:
            result = getattr(maths, name)(*(Num(code, value) for value in values)).value
        code.write(result, pointers[-1], i)
    loaded = engine.load(code.done().module)
    return loaded, loaded.function("run", [ctypes.c_int64] + [ctypes.c_void_p] * (inputs + 1))


def _apply(name: str, lanes: int, *inputs: Array) -> Array:
    size = len(inputs[0])
    padded = [np.append(x, np.zeros(-size % lanes, x.dtype)) for x in inputs]
    out = np.empty_like(padded[0])
    _compiled(name, out.dtype.type, lanes)[1](len(out), *(x.ctypes.data for x in padded), out.ctypes.data)
    return out[:size]


def _sweep(name: str, dtype: Float) -> list[Array]:
    """Numbers of all sizes, of the usual sizes, near 1, near the zeros of sin and cos; for powers, all sizes of results."""
    rng = np.random.default_rng(len(name))
    n, word = (300_000, np.uint32) if dtype is np.float32 else (15_000, np.uint64)

    def numbers() -> Array:
        patterns = rng.integers(0, np.iinfo(word).max, n, word, endpoint=True).view(dtype)
        usual = [rng.uniform(-top, top, n) for top in (1, 10, 100, 1000)]
        near_one = rng.choice([-1, 1], n) * (1 + rng.uniform(-1, 1, n) * np.exp2(rng.uniform(-30, 0, n)))
        turns = rng.integers(-60_000, 60_000, n) * (np.pi / 2)
        return np.concatenate([patterns, *(x.astype(dtype) for x in (*usual, near_one, turns))])

    if name not in TWO_ARGUMENTS:
        return [numbers()]
    x, y = numbers(), rng.permutation(numbers())
    if name == "pow":
        base = rng.uniform(1e-3, 3, 4 * n).astype(dtype)
        top = np.log2(float(np.finfo(dtype).max)) * 1.1
        exponent = (rng.uniform(-top, top, 4 * n) / np.log2(base)).astype(dtype)
        whole = rng.integers(-40, 40, len(x)).astype(dtype)
        x, y = np.concatenate([x, x, base]), np.concatenate([y, whole, exponent])
    return [x, y]


def _reference(name: str, *inputs: Array) -> Array:
    """In wider floats: float64, and the platform's long double."""
    wide = [x.astype(np.float64 if x.dtype == np.float32 else np.longdouble) for x in inputs]
    if name == "erf":
        return special.erf(inputs[0].astype(np.float64)).astype(wide[0].dtype)
    if name == "sigmoid":
        e = np.exp(-np.abs(wide[0]))
        return np.where(wide[0] < 0, e, 1) / (1 + e)
    return getattr(np, NUMPY.get(name, name))(*wide)


def _places(name: str, got: Array, inputs: list[Array]) -> Array:
    """Errors in units of the last place; 0 where both are nan or the same infinity, infinite where only one is."""
    limits = np.finfo(got.dtype)
    with np.errstate(all="ignore"):
        want = _reference(name, *inputs)
        scale = np.abs(want)
        if name == "logaddexp":
            scale = np.max([scale, *np.abs(inputs)], axis=0)
        exponent = np.frexp(np.clip(scale, float(limits.smallest_normal), float(limits.max)))[1]
        error = np.abs(got.astype(want.dtype) - want) / np.ldexp(want.dtype.type(1), exponent - 1 - limits.nmant)
        same = (got == want.astype(got.dtype)) & ~np.isfinite(got) | np.isnan(got) & np.isnan(want)
    return np.where(same, 0, np.where(np.isnan(error), np.inf, error)).astype(np.float64)
