"""Gradient descent with momentum, and sign-based optimizers.

In all formulas g is the gradient, p the parameter, t the number of the step and u the update: p = p - rate u.
"""

from __future__ import annotations

from ..errors import UserError
from ..ops.elementwise import sign, where
from ..ops.math import clip
from ..tensor import Tensor
from .checks import fractions, not_negative, positive
from .constructors import optimizer
from .optimizer import Rate
from .transform import State, Transform, choice, without_subnormals, zeros_like


@optimizer
def sgd(
    rate: Rate = 0.01,
    momentum: float = 0.0,
    nesterov: bool = False,
    dampening: float = 0.0,
    weight_decay: float = 0.0,
) -> list[Transform]:
    """Stochastic gradient descent, with momentum (Polyak 1964; Nesterov 1983, as in Sutskever et al. 2013).

    g = g + weight_decay p;  v = momentum v + (1 - dampening) g, at first v = g;  u = v, or g + momentum v with nesterov
    """
    fractions("sgd", momentum=momentum, dampening=dampening)
    not_negative("sgd", weight_decay=weight_decay)
    if nesterov and (momentum == 0.0 or dampening != 0.0):
        raise UserError("sgd", f"nesterov requires a momentum and no dampening, got {momentum=} and {dampening=}.")
    moving: list[Transform] = [Momentum(momentum, nesterov, dampening)] if momentum else []
    return [*decay_transforms(weight_decay), *moving]


@optimizer
def signum(rate: Rate = 1e-3, momentum: float = 0.9, weight_decay: float = 0.0) -> list[Transform]:
    """The sign of the momentum (Bernstein et al. 2018); weight decay is decoupled.

    m = momentum m + (1 - momentum) g;  u = sign(m) + weight_decay p
    """
    fractions("signum", momentum=momentum)
    not_negative("signum", weight_decay=weight_decay)
    return [GradientAverage(momentum), Sign(), *decay_transforms(weight_decay)]


@optimizer
def lion(rate: Rate = 1e-4, b1: float = 0.9, b2: float = 0.99, weight_decay: float = 0.0) -> list[Transform]:
    """Lion (Chen et al. 2023): the sign of an interpolation between the momentum and the gradient.

    u = sign(b1 m + (1 - b1) g) + weight_decay p;  m = b2 m + (1 - b2) g
    """
    fractions("lion", b1=b1, b2=b2)
    not_negative("lion", weight_decay=weight_decay)
    return [Lion(b1, b2), *decay_transforms(weight_decay)]


@optimizer
def rprop(
    rate: Rate = 0.01, grow: float = 1.2, shrink: float = 0.5, least: float = 1e-4, most: float = 5e3
) -> list[Transform]:
    """Rprop without backtracking (Riedmiller and Braun 1993; Igel and Hüsken 2000), for full-batch gradients.

    Every element has a step size e, initially 1, between least and most: e = grow e where g has the sign of the last step,
    shrink e where the sign changed, and there g = 0;  u = e sign(g)
    """
    fractions("rprop", shrink=shrink)
    positive("rprop", shrink=shrink, least=least)
    if not grow > 1.0 or not least <= 1.0 <= most:
        raise UserError("rprop", f"grow > 1 and least <= 1 <= most are required, got {grow=}, {least=}, {most=}.")
    return [Rprop(grow, shrink, least, most)]


# --- transforms -------------------------------------------------------------------------------------------------------------


class Decay(Transform):
    """g + weight_decay p. Before an adaptive transform it is an L2 penalty, after it decoupled weight decay."""

    def __init__(self, weight_decay: float) -> None:
        self.weight_decay = weight_decay

    def apply(self, g: Tensor, p: Tensor, s: State, t: Tensor) -> Tensor:
        return g + p * self.weight_decay


def decay_transforms(weight_decay: float) -> list[Transform]:
    """The weight decay transform, or none if it is 0."""
    return [Decay(weight_decay)] if weight_decay else []


class Momentum(Transform):
    """Momentum: a decaying sum of gradients."""

    def __init__(self, keep: float, nesterov: bool = False, dampening: float = 0.0) -> None:
        self.keep, self.nesterov, self.dampening = keep, nesterov, dampening

    def start(self, p: Tensor) -> State:
        return {"velocity": zeros_like(p)}

    def apply(self, g: Tensor, p: Tensor, s: State, t: Tensor) -> Tensor:
        part = choice(t == 1, 1.0, 1.0 - self.dampening, g.dtype) if self.dampening else 1.0
        velocity = without_subnormals(s["velocity"] * self.keep + g * part)
        s["velocity"].assign(velocity)
        return g + velocity * self.keep if self.nesterov else velocity


class GradientAverage(Transform):
    """The moving average of gradients."""

    def __init__(self, keep: float) -> None:
        self.keep = keep

    def start(self, p: Tensor) -> State:
        return {"mean": zeros_like(p)}

    def apply(self, g: Tensor, p: Tensor, s: State, t: Tensor) -> Tensor:
        return update_moving_average(s, "mean", g, self.keep)


def update_moving_average(s: State, name: str, value: Tensor, keep: float | Tensor) -> Tensor:
    """Update a moving average: keep * average + (1 - keep) * value."""
    new = without_subnormals(s[name] * keep + value * (1.0 - keep))
    s[name].assign(new)
    return new


class Sign(Transform):
    """The sign of the gradient: -1, 0 or 1."""

    def apply(self, g: Tensor, p: Tensor, s: State, t: Tensor) -> Tensor:
        return sign(g)


class Lion(Transform):
    """The rule of `lion`."""

    def __init__(self, b1: float, b2: float) -> None:
        self.b1, self.b2 = b1, b2

    def start(self, p: Tensor) -> State:
        return {"mean": zeros_like(p)}

    def apply(self, g: Tensor, p: Tensor, s: State, t: Tensor) -> Tensor:
        direction = sign(s["mean"] * self.b1 + g * (1.0 - self.b1))
        update_moving_average(s, "mean", g, self.b2)
        return direction


class Rprop(Transform):
    """The rule of `rprop`."""

    def __init__(self, grow: float, shrink: float, least: float, most: float) -> None:
        self.grow, self.shrink, self.least, self.most = grow, shrink, least, most

    def start(self, p: Tensor) -> State:
        return {"size": (zeros_like(p) + 1.0).realize(), "last": zeros_like(p)}

    def apply(self, g: Tensor, p: Tensor, s: State, t: Tensor) -> Tensor:
        agreement = sign(g) * sign(s["last"])  # a product of the gradients themselves could underflow
        factor = where(agreement > 0.0, self.grow, choice(agreement < 0.0, self.shrink, 1.0, g.dtype))
        size = clip(s["size"] * factor, self.least, self.most)
        kept = where(agreement < 0.0, 0.0, g)
        s["size"].assign(size)
        s["last"].assign(kept)
        return size * sign(kept)
