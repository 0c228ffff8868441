"""Optimizers that divide by accumulated squared gradients: Adagrad, RMSprop, Adadelta, SM3, FTRL.

In all formulas g is the gradient, p the parameter, t the number of the step and u the update: p = p - rate u.
"""

from __future__ import annotations

from functools import reduce

from ..errors import UserError
from ..ops.elementwise import abs, minimum, sign, sqrt, where
from ..tensor import Tensor, as_tensor
from .checks import fractions, not_negative, positive
from .constructors import optimizer
from .momentum import GradientAverage, Momentum, decay_transforms, update_moving_average
from .optimizer import Rate
from .transform import State, Transform, zeros_like


@optimizer
def adagrad(rate: Rate = 0.01, eps: float = 1e-10, start: float = 0.0, weight_decay: float = 0.0) -> list[Transform]:
    """Adagrad (Duchi et al. 2011).

    g = g + weight_decay p;  v = v + g², at first v = start;  u = g / (√v + eps)
    """
    positive("adagrad", eps=eps)
    not_negative("adagrad", start=start, weight_decay=weight_decay)
    return [*decay_transforms(weight_decay), Adagrad(eps, start)]


@optimizer
def rmsprop(
    rate: Rate = 0.01,
    decay: float = 0.99,
    eps: float = 1e-8,
    momentum: float = 0.0,
    centered: bool = False,
    weight_decay: float = 0.0,
) -> list[Transform]:
    """RMSprop (Tieleman and Hinton 2012; centered: Graves 2013).

    g = g + weight_decay p;  v = decay v + (1 - decay) g², centered less the square of the mean gradient;
    u = momentum u + g / (√v + eps)
    """
    fractions("rmsprop", decay=decay, momentum=momentum)
    positive("rmsprop", eps=eps)
    not_negative("rmsprop", weight_decay=weight_decay)
    moving: list[Transform] = [Momentum(momentum)] if momentum else []
    return [*decay_transforms(weight_decay), RootMeanSquare(decay, eps, centered), *moving]


@optimizer
def adadelta(rate: Rate = 1.0, decay: float = 0.9, eps: float = 1e-6, weight_decay: float = 0.0) -> list[Transform]:
    """Adadelta (Zeiler 2012): updates have the parameter's units, so the rate is 1.

    g = g + weight_decay p;  v = decay v + (1 - decay) g²;  u = g √(d + eps) / √(v + eps);  d = decay d + (1 - decay) u²
    """
    fractions("adadelta", decay=decay)
    positive("adadelta", eps=eps)
    not_negative("adadelta", weight_decay=weight_decay)
    return [*decay_transforms(weight_decay), Adadelta(decay, eps)]


@optimizer
def sm3(rate: Rate = 0.1, momentum: float = 0.9, eps: float = 1e-8) -> list[Transform]:
    """SM3-II (Anil et al. 2019): Adagrad with one accumulator vector per axis instead of one number per element.

    v = min over axes of a[axis] + g²;  a[axis] = max of v over all other axes;  u = momentum u + (1 - momentum) g / (√v + eps)
    """
    fractions("sm3", momentum=momentum)
    positive("sm3", eps=eps)
    moving: list[Transform] = [GradientAverage(momentum)] if momentum else []
    return [CoveredSquares(eps), *moving]


@optimizer
def ftrl(rate: Rate = 0.1, beta: float = 1.0, l1: float = 0.0, l2: float = 0.0) -> list[Transform]:
    """FTRL-Proximal (McMahan et al. 2013): an L1 penalty with exactly sparse parameters. For linear models initialized to 0.

    n' = n + g²;  z = z + g - p (√n' - √n) / rate;  p = 0 where |z| <= l1, else -(z - l1 sign(z)) / ((beta + √n') / rate + l2)
    """
    not_negative("ftrl", beta=beta, l1=l1, l2=l2)
    if callable(rate) or not rate > 0.0:
        raise UserError("ftrl", f"a number above 0 is required as the rate, not a schedule, got {rate!r}.")
    return [Ftrl(rate, beta, l1, l2)]


# --- transforms -------------------------------------------------------------------------------------------------------------


class Adagrad(Transform):
    """The rule of `adagrad`."""

    def __init__(self, eps: float, start: float) -> None:
        self.eps, self.first = eps, start

    def start(self, p: Tensor) -> State:
        return {"squares": (zeros_like(p) + self.first).realize()}

    def apply(self, g: Tensor, p: Tensor, s: State, t: Tensor) -> Tensor:
        squares = s["squares"] + g * g
        s["squares"].assign(squares)
        return g / (sqrt(squares) + self.eps)


class RootMeanSquare(Transform):
    """The gradient over the root of its mean square, or of its variance if centered."""

    def __init__(self, keep: float, eps: float, centered: bool = False) -> None:
        self.keep, self.eps, self.centered = keep, eps, centered

    def start(self, p: Tensor) -> State:
        means = {"mean": zeros_like(p)} if self.centered else {}
        return {"square": zeros_like(p), **means}

    def apply(self, g: Tensor, p: Tensor, s: State, t: Tensor) -> Tensor:
        spread = update_moving_average(s, "square", g * g, self.keep)
        if self.centered:
            mean = update_moving_average(s, "mean", g, self.keep)
            difference = spread - mean * mean
            spread = where(difference < 0.0, 0.0, difference)  # rounding can make it negative
        return g / (sqrt(spread) + self.eps)


class Adadelta(Transform):
    """The rule of `adadelta`."""

    def __init__(self, keep: float, eps: float) -> None:
        self.keep, self.eps = keep, eps

    def start(self, p: Tensor) -> State:
        return {"square": zeros_like(p), "moved": zeros_like(p)}

    def apply(self, g: Tensor, p: Tensor, s: State, t: Tensor) -> Tensor:
        square = update_moving_average(s, "square", g * g, self.keep)
        update = g * sqrt(s["moved"] + self.eps) / sqrt(square + self.eps)
        update_moving_average(s, "moved", update * update, self.keep)
        return update


class CoveredSquares(Transform):
    """The rule of `sm3`: the minimum of an element's accumulators, one per axis, bounds its sum of squares."""

    elementwise = False

    def __init__(self, eps: float) -> None:
        self.eps = eps

    def start(self, p: Tensor) -> State:
        return {f"axis{i}": zeros_like(p, _along(p, i)) for i in range(max(1, p.ndim))}

    def apply(self, g: Tensor, p: Tensor, s: State, t: Tensor) -> Tensor:
        squares = reduce(minimum, s.values()) + g * g
        for i, cover in enumerate(s.values()):
            others = tuple(axis for axis in range(p.ndim) if axis != i)
            cover.assign(squares.max(axis=others, keepdims=True) if others else squares)
        return g / (sqrt(squares) + self.eps)


def _along(p: Tensor, axis: int) -> tuple[int, ...]:
    """The broadcastable shape with one number per index of an axis."""
    return tuple(n if i == axis else 1 for i, n in enumerate(p.shape))


class Ftrl(Transform):
    """The rule of `ftrl`."""

    rated = True

    def __init__(self, rate: float, beta: float, l1: float, l2: float) -> None:
        self.rate, self.beta, self.l1, self.l2 = rate, beta, l1, l2

    def start(self, p: Tensor) -> State:
        return {"squares": zeros_like(p), "linear": zeros_like(p)}

    def apply(self, g: Tensor, p: Tensor, s: State, t: Tensor) -> Tensor:
        before = as_tensor(s["squares"])  # a second reference: the first is assigned the new value
        squares = before + g * g
        z = s["linear"] + g - p * ((sqrt(squares) - sqrt(before)) / self.rate)
        s["squares"].assign(squares)
        s["linear"].assign(z)
        curvature = (sqrt(squares) + self.beta) / self.rate + self.l2
        inside = (abs(z) <= self.l1) | (
            curvature == 0.0
        )  # without beta and l2 there is no curvature before the first gradient
        return p - where(inside, 0.0, (sign(z) * self.l1 - z) / where(inside, 1.0, curvature).astype(z.dtype))
