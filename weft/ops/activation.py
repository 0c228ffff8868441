"""Activation functions. All are compositions of other ops, which define their derivatives."""

from __future__ import annotations

import math

from ..errors import UserError
from ..tensor import ArrayLike, Tensor, as_tensor, function, number
from .declare import as_float, in_float32, normal_axis
from .elementwise import abs, erf, expm1, logaddexp, sigmoid, tanh, where
from .math import clip
from .movement import reshape, split
from .reduce import max


def _float(x: ArrayLike, name: str) -> Tensor:
    return as_float(as_tensor(x), name)


@function
def relu(x: ArrayLike, /) -> Tensor:
    """max(x, 0); the derivative at 0 is 0, and nan is propagated.

    >>> relu(as_tensor([-1.0, 2.0])).tolist()
    [0.0, 2.0]
    """
    x = as_tensor(x)
    return where(x <= 0, 0, x)


@function
def relu6(x: ArrayLike, /) -> Tensor:
    """min(max(x, 0), 6)."""
    x = _float(x, "relu6")
    return where((x <= 0.0) | (x >= 6.0), where(x <= 0.0, number(0.0, x.dtype), 6.0), x)


@function
def leaky_relu(x: ArrayLike, slope: float = 0.01) -> Tensor:
    """x where it is positive, slope * x where it is not."""
    x = _float(x, "leaky_relu")
    return where(x > 0.0, x, x * slope)


@function
def prelu(x: ArrayLike, slope: ArrayLike, axis: int = 1) -> Tensor:
    """leaky_relu with a learned slope: one number, or one for each element along an axis (channels)."""
    x = _float(x, "prelu")
    slope = as_float(as_tensor(slope, x.dtype), "prelu")
    if slope.size != 1:
        axis = normal_axis("prelu", axis, x.ndim)
        if slope.shape != (x.shape[axis],):
            raise UserError("prelu", f"one slope, or {x.shape[axis]} for axis {axis}, are required, got {slope.shape}.")
        slope = reshape(slope, (-1, *[1] * (x.ndim - axis - 1)))
    return where(x > 0.0, x, x * slope)


@function
def elu(x: ArrayLike, alpha: float = 1.0) -> Tensor:
    """x where it is positive, alpha * (exp(x) - 1) where it is not."""
    x = _float(x, "elu")
    return where(x > 0.0, x, alpha * expm1(where(x > 0.0, 0.0, x)))


@function
@in_float32
def selu(x: ArrayLike, /) -> Tensor:
    """The scaled elu that preserves mean 0 and variance 1 from layer to layer."""
    return 1.0507009873554805 * elu(x, 1.6732632423543772)


@function
def celu(x: ArrayLike, alpha: float = 1.0) -> Tensor:
    """An elu whose derivative is continuous for every alpha."""
    x = _float(x, "celu")
    return where(x > 0.0, x, alpha * expm1(where(x > 0.0, 0.0, x) / alpha))


@function
@in_float32
def gelu(x: ArrayLike, approximate: bool | str = False) -> Tensor:
    """x * P(Z <= x) for a standard normal Z; `approximate` uses the tanh approximation."""
    x = _float(x, "gelu")
    if approximate not in (False, True, "none", "tanh"):
        raise UserError("gelu", f"approximate must be True, False, 'tanh' or 'none', got {approximate!r}.")
    if approximate in (True, "tanh"):
        near = clip(x, -10.0, 10.0)  # for larger x tanh is 1, and the cube could overflow
        return 0.5 * x * (1.0 + tanh(math.sqrt(2 / math.pi) * (near + 0.044715 * (near * near * near))))
    return 0.5 * x * (1.0 + erf(x * math.sqrt(0.5)))


@function
@in_float32
def silu(x: ArrayLike, /) -> Tensor:
    """x * sigmoid(x), also called swish."""
    x = _float(x, "silu")
    return x * sigmoid(x)


@function
@in_float32
def mish(x: ArrayLike, /) -> Tensor:
    """x * tanh(softplus(x))."""
    x = _float(x, "mish")
    return x * tanh(softplus(x))


@function
def softplus(x: ArrayLike, /) -> Tensor:
    """log(1 + exp(x)) without overflow."""
    return logaddexp(_float(x, "softplus"), 0.0)


@function
def log_sigmoid(x: ArrayLike, /) -> Tensor:
    """log(sigmoid(x)) without overflow."""
    return -softplus(-_float(x, "log_sigmoid"))


@function
def softsign(x: ArrayLike, /) -> Tensor:
    """x / (1 + |x|)."""
    x = _float(x, "softsign")
    return x / (1.0 + abs(x))


@function
@in_float32
def hard_sigmoid(x: ArrayLike, /) -> Tensor:
    """x / 6 + 1/2, clipped to [0, 1]."""
    # Divisions take longer than products.
    return clip(_float(x, "hard_sigmoid") * (1 / 6) + 0.5, 0.0, 1.0)


@function
@in_float32
def hard_swish(x: ArrayLike, /) -> Tensor:
    """x * hard_sigmoid(x)."""
    x = _float(x, "hard_swish")
    return x * hard_sigmoid(x)


@function
def hard_tanh(x: ArrayLike, min: float = -1.0, max: float = 1.0) -> Tensor:
    """x, clipped to [min, max]."""
    return clip(_float(x, "hard_tanh"), min, max)


@function
def soft_shrink(x: ArrayLike, threshold: float = 0.5) -> Tensor:
    """sign(x) * max(|x| - threshold, 0)."""
    x = _float(x, "soft_shrink")
    return where(x > threshold, x - threshold, where(x < -threshold, x + threshold, x * 0.0))


@function
def hard_shrink(x: ArrayLike, threshold: float = 0.5) -> Tensor:
    """x where |x| > threshold, else 0."""
    x = _float(x, "hard_shrink")
    return where(abs(x) <= threshold, 0.0, x)


@function
def tanh_shrink(x: ArrayLike, /) -> Tensor:
    """x - tanh(x)."""
    x = _float(x, "tanh_shrink")
    return x - tanh(x)


@function
def glu(x: ArrayLike, axis: int = -1) -> Tensor:
    """The gated linear unit a * sigmoid(b), where a and b are the halves of x along an axis."""
    x = _float(x, "glu")
    axis = normal_axis("glu", axis, x.ndim)
    if x.shape[axis] % 2:
        raise UserError("glu", f"an axis of even size is required, got {x.shape[axis]}.")
    values, gates = split(x, 2, axis)
    return values * sigmoid(gates)


@function
def maxout(x: ArrayLike, pieces: int, axis: int = 1) -> Tensor:
    """The maximum of each group of `pieces` adjacent channels.

    >>> maxout(as_tensor([[1.0, 4.0, 3.0, 2.0]]), 2).tolist()
    [[4.0, 3.0]]
    """
    x = as_tensor(x)
    axis = normal_axis("maxout", axis, x.ndim)
    if pieces < 1 or x.shape[axis] % pieces:
        raise UserError("maxout", f"axis {axis} of size {x.shape[axis]} cannot be divided into pieces of {pieces}.")
    parts = reshape(x, (*x.shape[:axis], x.shape[axis] // pieces, pieces, *x.shape[axis + 1 :]))
    return max(parts, axis=axis + 1)
