"""Three ops: one that is made of others, one with a rule for each backend, and one with kernels of its own."""

import numpy as np

import weft
from weft import extend
from weft.extend import Op, Sample, Type
from weft.graph.node import Node
from weft.tensor import emit

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
    samples=lambda rng: (Sample([rng.normal(size=s).astype(np.float32)]) for s in [(1, 1), (3, 5), (2, 7)]),
    own_kernels=True, batch=_batched,
)  # fmt: skip


def rotate(x):
    """The columns of a matrix, one place to the right; the last comes first."""
    return emit(ROTATE, (weft.asarray(x),))
