"""What follows from an op's declaration without further writing.

From its samples: values on a device against the definition in float64, in every float dtype and with strided inputs; the
shape and dtype it promised; the round trip of its text; derivatives against differences, to second order, in a random
direction. From its error samples: the text of its errors.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ..derivatives import grad, jvp, vjp
from ..dtypes import DType, bfloat16, float16, float32, float64
from ..errors import WeftError
from ..graph import Node, Op, check, data, make, parse, to_text
from ..graph.text import externs
from ..ops.convert import asarray
from ..ops.declare import Sample
from ..ops.reduce import sum
from ..runtime import Device, device
from ..runtime.reference import compute
from ..tensor import Tensor, emit, emit_all
from ..tracing.trace import make_graph
from .counter import counted

# How far a result may be from the definition computed in float64, relative to the largest value: a few roundings.
TOLERANCE: dict[DType, float] = {float64: 1e-12, float32: 5e-6, float16: 4e-3, bfloat16: 3e-2}


def close(actual: Any, expected: Any, dtype: DType, slack: float = 1.0) -> None:
    """Assert that values agree: floats to the dtype's tolerance, all others exactly; nan equals nan."""
    actual, expected = np.asarray(actual), np.asarray(expected)
    counted()
    assert actual.shape == expected.shape, f"shape {actual.shape}, expected {expected.shape}"
    if not dtype.is_float:
        assert np.array_equal(actual, expected), f"{actual}, expected {expected}"
        return
    actual, expected = actual.astype(np.float64), expected.astype(np.float64)
    finite = np.abs(expected[np.isfinite(expected)])
    scale = max(1.0, float(finite.max()) if finite.size else 1.0)
    tolerance = slack * TOLERANCE[dtype]
    np.testing.assert_allclose(actual, expected, rtol=tolerance, atol=tolerance * scale)


def check_op(op: Op, on: str | Device | None = None, *, rng: np.random.Generator, grads: bool = True) -> None:
    """Everything that follows from the samples of an op."""
    assert op.samples is not None, f"{op.name} has no samples"
    for sample in op.samples(rng):
        dtypes = _float_dtypes(sample)
        for dtype in dtypes:
            _check_value(op, sample, dtype, device(on))
        sample = sample._replace(inputs=[_as_dtype(i, dtypes[0]) for i in sample.inputs])
        _check_strides(op, sample, device(on))
        _check_text(op, sample)
        if grads and op.vjp is not None and dtypes[0] is float64 and any(_is_float(i) for i in sample.inputs):
            _check_derivatives(op, sample, rng)


def _is_float(array: Any) -> bool:
    return bool(np.asarray(array).dtype.kind == "f")


def _float_dtypes(sample: Sample) -> Sequence[DType]:
    return sample.dtypes if any(_is_float(i) for i in sample.inputs) else (float64,)


def _as_dtype(array: Any, dtype: DType) -> np.ndarray:
    return np.asarray(array).astype(dtype.numpy) if _is_float(array) else np.asarray(array)


def _apply(op: Op, tensors: Sequence[Tensor], params: tuple[Any, ...]) -> tuple[Tensor, ...]:
    """All results."""
    one = emit(op, tuple(tensors), params)
    return emit_all(op, tuple(tensors), params) if one.node.outputs else (one,)


def _check_value(op: Op, sample: Sample, dtype: DType, on: Device) -> None:
    arrays = [_as_dtype(i, dtype) for i in sample.inputs]
    results = _apply(op, [asarray(a, device=on) for a in arrays], sample.params)
    for result, expected in zip(results, _define_all(op, arrays, sample.params, sample.dtypes[0]), strict=True):
        actual = result.numpy()
        assert actual.shape == result.shape, f"{op.name} promised shape {result.shape}, gave {actual.shape}"
        assert actual.dtype == result.dtype.numpy, f"{op.name} promised {result.dtype}, gave {actual.dtype}"
        close(actual, expected, result.dtype)


def _define(op: Op, arrays: Sequence[np.ndarray], params: tuple[Any, ...]) -> np.ndarray:
    """The definition of an op with one result, in float64, on the very numbers the dtype under test can hold."""
    [value] = _define_all(op, arrays, params)
    return value


def _define_all(
    op: Op, arrays: Sequence[np.ndarray], params: tuple[Any, ...], widest: DType = float64
) -> tuple[np.ndarray, ...]:
    """All results by the definition, in the widest dtype that the op takes."""
    wide = [a.astype(widest.numpy) if a.dtype.kind not in "biu" else a for a in arrays]
    with np.errstate(all="ignore"):
        found = compute(_node(op, wide, params), wide)
    return found if isinstance(found, tuple) else (np.asarray(found),)


def _node(op: Op, arrays: Sequence[np.ndarray], params: tuple[Any, ...]) -> Node:
    return make(op, tuple(data(device("reference").put(a, asarray(a).dtype)) for a in arrays), params)


def _check_strides(op: Op, sample: Sample, on: Device) -> None:
    """Inputs that are not laid out in order (reversed, transposed, every second element) give the same result."""
    arrays = [np.asarray(i) for i in sample.inputs]
    plain = _apply(op, [asarray(a, device=on) for a in arrays], sample.params)
    odd = [_odd_layout(a) for a in arrays]
    strided = _apply(op, [asarray(a, device=on, copy=False) for a in odd], sample.params)
    for expected, actual in zip(plain, strided, strict=True):
        close(actual.numpy(), expected.numpy(), actual.dtype)


def _odd_layout(array: np.ndarray) -> np.ndarray:
    if not array.ndim:
        return array
    wide = np.repeat(array, 2, axis=-1)[..., ::2]
    return np.ascontiguousarray(wide.T[::-1])[::-1].T


def _check_text(op: Op, sample: Sample) -> None:
    """The op prints, parses back to the same node, and is legal."""
    types = [asarray(np.asarray(i))._node.type for i in sample.inputs]
    graph = make_graph(lambda *xs: _apply(op, xs, sample.params), *types)
    assert parse(to_text(graph), externs(graph)) == graph
    check(graph)
    counted(2)


def _check_derivatives(op: Op, sample: Sample, rng: np.random.Generator) -> None:
    floats = [np.asarray(i) for i in sample.inputs if _is_float(i)]
    if any(f.size == 0 for f in floats):
        return _check_empty(op, sample)

    def f(*xs: Tensor, number: int = 0) -> Tensor:
        rest = iter(xs)
        full = [next(rest) if _is_float(i) else asarray(np.asarray(i)) for i in sample.inputs]
        return _apply(op, full, sample.params)[number]

    for number in range(len(_node(op, [np.asarray(i) for i in sample.inputs], sample.params).outputs) or 1):
        check_grads(functools.partial(f, number=number), floats, rng=rng)
    return None


def _check_empty(op: Op, sample: Sample) -> None:
    tensors = [asarray(np.asarray(i)) for i in sample.inputs]
    y, back = vjp(lambda *xs: _apply(op, xs, sample.params)[0], *tensors)
    if not y.dtype.is_float:
        return
    for x, g in zip(tensors, back(y), strict=True):
        assert g.shape == x.shape
        counted()


def check_grads(
    f: Callable[..., Tensor],
    inputs: Sequence[Any],
    *,
    rng: np.random.Generator,
    order: int = 2,
    step: float = 1e-5,
    tolerance: float = 2e-6,
) -> None:
    """Compare derivatives with differences in one random direction, and again for the derivative itself.

    First order both ways: forward (jvp) and backward (vjp). Inputs are taken as float64.
    """
    points = [asarray(np.asarray(i, np.float64)) for i in inputs]
    moves = [asarray(rng.normal(size=p.shape)) for p in points]
    shift = [[p + sign * step * m for p, m in zip(points, moves, strict=True)] for sign in (1.0, -1.0)]
    value = f(*points)
    if value.dtype is not float64:
        return  # differences of anything less precise say nothing
    expected = (f(*shift[0]).numpy() - f(*shift[1]).numpy()) / (2 * step)
    forward = jvp(f, points, moves)[1]
    _near(forward.numpy(), expected, tolerance)
    weights = asarray(rng.normal(size=value.shape))
    cotangents = vjp(f, *points)[1](weights)
    inner = float(np.sum([np.vdot(c.numpy(), m.numpy()) for c, m in zip(cotangents, moves, strict=True)]))
    _near(inner, float(np.vdot(weights.numpy(), expected)), tolerance)
    if order > 1:
        curve = asarray(rng.normal(size=value.shape))

        def slope(*xs: Tensor) -> Tensor:
            # A weighted sum of the squares too: the derivative of an op that is linear would be constant.
            partial = grad(lambda *ys: sum(curve * f(*ys) * f(*ys)), argnums=range(len(points)))(*xs)
            return sum_all([p * m for p, m in zip(partial, moves, strict=True)])

        check_grads(slope, inputs, rng=rng, order=order - 1, step=step, tolerance=20 * tolerance)


def sum_all(tensors: Sequence[Tensor]) -> Tensor:
    """The sum of all elements of all tensors."""
    total = sum(tensors[0])
    for t in tensors[1:]:
        total = total + sum(t)
    return total


def _near(actual: Any, expected: Any, tolerance: float) -> None:
    counted()
    scale = max(1.0, float(np.max(np.abs(expected), initial=0.0)))
    np.testing.assert_allclose(actual, expected, rtol=tolerance, atol=tolerance * scale)


def check_errors(op: Op) -> None:
    """Every declared wrong call fails with the declared text."""
    for wrong in op.errors:
        said = _what_it_says(wrong.call)
        assert wrong.text in said, f"{op.name} said {said!r}, expected {wrong.text!r}"
        assert said.splitlines()[-1].startswith("["), said
        counted()


def _what_it_says(call: Callable[[], Any]) -> str:
    try:
        call()
    except WeftError as error:
        return str(error)
    return "nothing"
