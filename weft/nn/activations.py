"""Activation layers, and `activation`, which looks them up by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..errors import UserError
from ..ops import activation as ops
from ..ops.declare import whole
from ..ops.elementwise import sigmoid, tanh, where
from ..ops.statistics import log_softmax, softmax
from ..tensor import ArrayLike, Tensor, as_tensor
from . import checks
from .module import Module, parameter

Activation = str | Callable[[Any], Any] | None  # a name, a function, a layer, or None for the identity


def _identity(x: ArrayLike) -> Tensor:
    return as_tensor(x)


NAMES: dict[str, Callable[[Any], Tensor]] = {
    "relu": ops.relu,
    "relu6": ops.relu6,
    "leaky_relu": ops.leaky_relu,
    "elu": ops.elu,
    "selu": ops.selu,
    "celu": ops.celu,
    "gelu": ops.gelu,
    "silu": ops.silu,
    "swish": ops.silu,
    "mish": ops.mish,
    "sigmoid": sigmoid,
    "tanh": tanh,
    "softplus": ops.softplus,
    "softsign": ops.softsign,
    "softmax": softmax,
    "log_softmax": log_softmax,
    "log_sigmoid": ops.log_sigmoid,
    "hard_sigmoid": ops.hard_sigmoid,
    "hard_swish": ops.hard_swish,
    "hard_tanh": ops.hard_tanh,
    "linear": _identity,
    "identity": _identity,
}


def activation(which: Activation) -> Callable[[Any], Tensor]:
    """Look up an activation by name; a function or layer is returned unchanged, and None is the identity.

    >>> activation("relu")(as_tensor([-1.0, 2.0])).tolist()
    [0.0, 2.0]
    """
    if which is None:
        return _identity
    if isinstance(which, str):
        if which not in NAMES:
            raise UserError("activation", f"there is no activation {which!r}. Known: {', '.join(NAMES)}.")
        return NAMES[which]
    if isinstance(which, type):
        raise UserError("activation", f"a layer is required, got the class {which.__name__}. Write {which.__name__}().")
    if not callable(which):
        raise UserError("activation", f"a name, a function or a layer is required, got {which!r}.")
    return which


def known(which: Activation) -> Activation:
    """Check an activation and return it as given: layers store the name as a setting and look it up when called."""
    activation(which)
    return which


class ReLU(Module):
    """y = max(x, 0)"""

    def forward(self, x: ArrayLike) -> Tensor:
        return ops.relu(x)


class ReLU6(Module):
    """y = min(max(x, 0), 6)"""

    def forward(self, x: ArrayLike) -> Tensor:
        return ops.relu6(x)


class LeakyReLU(Module):
    """y = x if x > 0 else slope * x"""

    def __init__(self, slope: float = 0.01) -> None:
        self.slope = float(slope)

    def forward(self, x: ArrayLike) -> Tensor:
        return ops.leaky_relu(x, self.slope)


class PReLU(Module):
    """y = x if x > 0 else slope * x, with a learned slope: one, or one per channel (He et al. 2015)."""

    def __init__(self, count: int = 1, start: float = 0.25) -> None:
        self.slope = parameter(checks.check_count("PReLU", "slopes", count), float(start))

    def forward(self, x: ArrayLike) -> Tensor:
        return ops.prelu(x, self.slope)


class ELU(Module):
    """y = x if x > 0 else alpha * (exp(x) - 1)"""

    def __init__(self, alpha: float = 1.0) -> None:
        self.alpha = float(alpha)

    def forward(self, x: ArrayLike) -> Tensor:
        return ops.elu(x, self.alpha)


class SELU(Module):
    """y = s * (x if x > 0 else a * (exp(x) - 1)), s and a preserve mean 0 and variance 1 (Klambauer et al. 2017)."""

    def forward(self, x: ArrayLike) -> Tensor:
        return ops.selu(x)


class CELU(Module):
    """y = x if x > 0 else alpha * (exp(x / alpha) - 1)"""

    def __init__(self, alpha: float = 1.0) -> None:
        self.alpha = checks.check_above("CELU", "alpha", alpha)

    def forward(self, x: ArrayLike) -> Tensor:
        return ops.celu(x, self.alpha)


class GELU(Module):
    """y = x * P(Z < x) for a normal Z; approximately x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x**3)))"""

    def __init__(self, approximate: bool | str = False) -> None:
        if approximate not in (False, True, "none", "tanh"):
            raise UserError("GELU", f"approximate must be True, False, 'tanh' or 'none', got {approximate!r}.")
        self.approximate = approximate

    def forward(self, x: ArrayLike) -> Tensor:
        return ops.gelu(x, self.approximate)


class SiLU(Module):
    """y = x * sigmoid(x), also called swish"""

    def forward(self, x: ArrayLike) -> Tensor:
        return ops.silu(x)


class Mish(Module):
    """y = x * tanh(log(1 + exp(x)))"""

    def forward(self, x: ArrayLike) -> Tensor:
        return ops.mish(x)


class Sigmoid(Module):
    """y = 1 / (1 + exp(-x))"""

    def forward(self, x: ArrayLike) -> Tensor:
        return sigmoid(x)


class Tanh(Module):
    """y = tanh(x)"""

    def forward(self, x: ArrayLike) -> Tensor:
        return tanh(x)


class Softplus(Module):
    """y = log(1 + exp(x))"""

    def forward(self, x: ArrayLike) -> Tensor:
        return ops.softplus(x)


class Softsign(Module):
    """y = x / (1 + |x|)"""

    def forward(self, x: ArrayLike) -> Tensor:
        return ops.softsign(x)


class LogSigmoid(Module):
    """y = -log(1 + exp(-x))"""

    def forward(self, x: ArrayLike) -> Tensor:
        return ops.log_sigmoid(x)


class HardSigmoid(Module):
    """y = min(max(x / 6 + 1/2, 0), 1)"""

    def forward(self, x: ArrayLike) -> Tensor:
        return ops.hard_sigmoid(x)


class HardSwish(Module):
    """y = x * min(max(x / 6 + 1/2, 0), 1)"""

    def forward(self, x: ArrayLike) -> Tensor:
        return ops.hard_swish(x)


class HardTanh(Module):
    """y = min(max(x, low), high)"""

    def __init__(self, low: float = -1.0, high: float = 1.0) -> None:
        if not low < high:
            raise UserError("HardTanh", f"low < high is required, got {low} and {high}.")
        self.low, self.high = float(low), float(high)

    def forward(self, x: ArrayLike) -> Tensor:
        return ops.hard_tanh(x, self.low, self.high)


class Softshrink(Module):
    """y = sign(x) * max(|x| - threshold, 0)"""

    def __init__(self, threshold: float = 0.5) -> None:
        self.threshold = checks.check_at_least("Softshrink", "threshold", threshold)

    def forward(self, x: ArrayLike) -> Tensor:
        return ops.soft_shrink(x, self.threshold)


class Hardshrink(Module):
    """y = x if |x| > threshold else 0"""

    def __init__(self, threshold: float = 0.5) -> None:
        self.threshold = checks.check_at_least("Hardshrink", "threshold", threshold)

    def forward(self, x: ArrayLike) -> Tensor:
        return ops.hard_shrink(x, self.threshold)


class Tanhshrink(Module):
    """y = x - tanh(x)"""

    def forward(self, x: ArrayLike) -> Tensor:
        return ops.tanh_shrink(x)


class Threshold(Module):
    """y = x if x > threshold else value"""

    def __init__(self, threshold: float, value: float) -> None:
        self.threshold, self.value = float(threshold), float(value)

    def forward(self, x: ArrayLike) -> Tensor:
        x = as_tensor(x)
        return where(x > self.threshold, x, self.value)


class Softmax(Module):
    """y_i = exp(x_i) / sum over j of exp(x_j), along an axis"""

    def __init__(self, axis: int = -1) -> None:
        self.axis = axis

    def forward(self, x: ArrayLike) -> Tensor:
        return softmax(x, self.axis)


class Softmin(Module):
    """y_i = exp(-x_i) / sum over j of exp(-x_j), along an axis"""

    def __init__(self, axis: int = -1) -> None:
        self.axis = axis

    def forward(self, x: ArrayLike) -> Tensor:
        return softmax(-as_tensor(x), self.axis)


class LogSoftmax(Module):
    """y_i = x_i - log(sum over j of exp(x_j)), along an axis"""

    def __init__(self, axis: int = -1) -> None:
        self.axis = axis

    def forward(self, x: ArrayLike) -> Tensor:
        return log_softmax(x, self.axis)


class GLU(Module):
    """y = a * sigmoid(b), a and b being the halves of x along an axis (Dauphin et al. 2017)"""

    def __init__(self, axis: int = -1) -> None:
        self.axis = axis

    def forward(self, x: ArrayLike) -> Tensor:
        return ops.glu(x, self.axis)


class Maxout(Module):
    """y_i = the maximum of `pieces` adjacent channels (Goodfellow et al. 2013)"""

    def __init__(self, pieces: int, axis: int = 1) -> None:
        self.pieces, self.axis = whole("Maxout", "number of pieces", pieces, least=1), axis

    def forward(self, x: ArrayLike) -> Tensor:
        return ops.maxout(x, self.pieces, self.axis)
