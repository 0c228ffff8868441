"""Ops that are made of others, that have a rule for each backend, and that have kernels of their own, with one result and with two."""

import numpy as np

import weft
from weft import extend
from weft.extend import Op, Sample, Type
from weft.graph.node import Node
from weft.tensor import emit, emit_all

# Made of other ops: one declaration, no rule.
softsign = extend.unary(
    "ext_softsign", lambda x: x / (1 + np.abs(x)), lambda g, y, x: (g / (1.0 + weft.abs(x)) ** 2.0,), "x / (1 + |x|).",
    decompose=lambda x: x / (1.0 + weft.abs(x)),
)  # fmt: skip

# One declaration, and one line for each backend.
cube = extend.unary(
    "ext_cube", lambda x: x * x * x, lambda g, y, x: (g * x * x * 3.0,), "x to the power of 3.", cost=2, label="cube"
)
extend.lower("cpu", "ext_cube")(lambda c: c.code.fmul(c.code.fmul(c.x, c.x), c.x))
extend.lower("gpu", "ext_cube")(lambda c: f"{c.x} * {c.x} * {c.x}")


# Kernels of its own: the declaration here, the kernels in cpu.py and gpu.py.
def _infer(x: Node) -> Type:
    if x.dtype is not weft.float32 or len(x.shape) != 2:
        raise weft.UserError("ext_rotate", f"a float32 matrix is required, got {x.type}.")
    return x.type


def _batched(call, op):
    """The batching rule: the rows of all examples are the rows of one matrix."""
    x = call.each(0)
    return emit(op, (x.reshape(-1, x.shape[-1]),)).reshape(x.shape)


ROTATE = Op(
    "ext_rotate", "along", _infer, lambda x: np.roll(x, 1, axis=1), lambda g, y, x: (rotate(g[:, ::-1])[:, ::-1],), arity=1,
    samples=lambda rng: (Sample([rng.normal(size=s)], dtypes=(weft.float32,)) for s in [(1, 1), (3, 5), (2, 7)]),
    own_kernels=True, batch=_batched,
)  # fmt: skip


def rotate(x):
    """The columns of a matrix, one place to the right; the last comes first."""
    return emit(ROTATE, (weft.asarray(x),))


# Two results, made of other ops: one declaration, no rule.
def _extremes_batched(call, op):
    return emit_all(op, (call.each(0),))


EXTREMES = Op(
    "ext_extremes", "along", lambda x: (Type(x.shape[:-1], x.dtype),) * 2, lambda x: (x.min(axis=-1), x.max(axis=-1)), arity=1,
    samples=lambda rng: (Sample([rng.normal(size=s)]) for s in [(3,), (2, 7)]),
    decompose=extend.on_nodes(lambda x: (x.min(axis=-1), x.max(axis=-1))), batch=_extremes_batched,
)  # fmt: skip


def extremes(x):
    """The least and the greatest element of each row."""
    return emit_all(EXTREMES, (weft.asarray(x),))


# Two results with kernels of its own.
def _moments_infer(x: Node) -> tuple[Type, Type]:
    if x.dtype is not weft.float32 or len(x.shape) != 2 or not x.shape[1]:
        raise weft.UserError("ext_moments", f"a float32 matrix is required, got {x.type}.")
    return Type(x.shape[:1], x.dtype), Type(x.shape[:1], x.dtype)


def _moments_vjp(gs, ys, x):
    """The derivative gets the gradients and the values of all results."""
    (g_mean, g_variance), (mean, _), n = gs, ys, x.shape[1]
    return ((g_mean[:, None] + g_variance[:, None] * (x - mean[:, None]) * 2.0) / n,)


def _moments_batched(call, op):
    x = call.each(0)
    return tuple(y.reshape(x.shape[:2]) for y in emit_all(op, (x.reshape(-1, x.shape[-1]),)))


MOMENTS = Op(
    "ext_moments", "along", _moments_infer, lambda x: (x.mean(axis=1), x.var(axis=1)), _moments_vjp, arity=1,
    samples=lambda rng: (Sample([rng.normal(size=s)], dtypes=(weft.float32,)) for s in [(1, 1), (3, 5), (0, 2)]),
    own_kernels=True, batch=_moments_batched,
)  # fmt: skip


def moments(x):
    """The mean and the variance of each row of a matrix."""
    return emit_all(MOMENTS, (weft.asarray(x),))
