"""Optimizers for large batches and large networks, which scale updates by norms of whole tensors or treat them as matrices.

In all formulas g is the gradient, p the parameter, t the number of the step, |x| the norm of a tensor as one vector, and u the
update: p = p - rate u. As a matrix, a weight (outputs, inputs, kernel...) is (outputs, inputs * kernel).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from ..dtypes import float64
from ..ops.elementwise import maximum, sqrt, where
from ..tensor import Tensor
from .adaptive import Adam
from .checks import counts, fractions, not_negative, positive
from .constructors import optimizer
from .momentum import Momentum, decay_transforms, update_moving_average
from .optimizer import Rate
from .schedules import inverse_root
from .transform import State, Transform, choice, zeros_like


@optimizer
def lars(
    rate: Rate = 0.1, momentum: float = 0.9, weight_decay: float = 0.0, trust: float = 1e-3, eps: float = 1e-8
) -> list[Transform]:
    """LARS (You et al. 2017): each tensor's update is proportional to its norm. Use a group with trust=0 for vectors.

    u = momentum u + (g + weight_decay p) trust |p| / (|g| + weight_decay |p| + eps);  the factor is 1 where |p| or |g| is 0, and
    where trust is 0
    """
    fractions("lars", momentum=momentum)
    not_negative("lars", weight_decay=weight_decay, trust=trust, eps=eps)
    ratio: list[Transform] = [LayerwiseRate(weight_decay, trust, eps)] if trust else decay_transforms(weight_decay)
    moving: list[Transform] = [Momentum(momentum)] if momentum else []
    return [*ratio, *moving]


@optimizer
def lamb(
    rate: Rate = 1e-3, b1: float = 0.9, b2: float = 0.999, eps: float = 1e-6, weight_decay: float = 0.01
) -> list[Transform]:
    """LAMB (You et al. 2020): layerwise scaling, as in LARS, of Adam's updates.

    a = m^ / (√v^ + eps) + weight_decay p;  u = a |p| / |a|, or a where one of the lengths is 0
    """
    fractions("lamb", b1=b1, b2=b2)
    positive("lamb", eps=eps)
    not_negative("lamb", weight_decay=weight_decay)
    return [Adam(b1, b2, eps), *decay_transforms(weight_decay), TrustRatio()]


@optimizer
def novograd(
    rate: Rate = 0.01, b1: float = 0.95, b2: float = 0.98, eps: float = 1e-8, weight_decay: float = 0.0
) -> list[Transform]:
    """NovoGrad (Ginsburg et al. 2019): one second moment per tensor.

    v = b2 v + (1 - b2) |g|², at first v = |g|²;  u = b1 u + g / (√v + eps) + weight_decay p
    """
    fractions("novograd", b1=b1, b2=b2)
    positive("novograd", eps=eps)
    not_negative("novograd", weight_decay=weight_decay)
    return [UnitLength(b2, eps), *decay_transforms(weight_decay), Momentum(b1)]


@optimizer
def adafactor(
    rate: Rate = inverse_root(0.01, 10_000),
    decay: float = 0.8,
    clip: float = 1.0,
    eps: float = 1e-30,
    least: float = 1e-3,
    weight_decay: float = 0.0,
) -> list[Transform]:
    """Adafactor (Shazeer and Stern 2018): the second moments of a matrix from those of its rows and columns.

    b = 1 - t^-decay;  r = b r + (1 - b) mean of (g² + eps) over columns, c likewise over rows;  v = r c / mean(r)
    (for vectors v = b v + (1 - b) (g² + eps));  a = g / √v;  u = a / max(1, rms(a) / clip) max(least, rms(p)) + weight_decay p
    """
    positive("adafactor", decay=decay, clip=clip, eps=eps)
    not_negative("adafactor", least=least, weight_decay=weight_decay)
    return [FactoredSquares(decay, eps), Relative(clip, least), *decay_transforms(weight_decay)]


@optimizer
def muon(
    rate: Rate = 1e-3,
    momentum: float = 0.95,
    nesterov: bool = True,
    rounds: int = 5,
    weight_decay: float = 0.1,
    b1: float = 0.9,
    b2: float = 0.999,
    eps: float = 1e-8,
    orthogonalize: bool = True,
) -> list[Transform]:
    """Muon (Jordan et al. 2024, with the scale of Liu et al. 2025): orthogonalized momentum. Vectors are updated by AdamW.

    v = momentum v + g;  a = v, or g + momentum v with nesterov;  x = a / (|a| + 1e-7), then for some rounds
    x = 3.4445 x - 4.7750 (x xᵀ) x + 2.0315 (x xᵀ)² x;  u = 0.2 √max(rows, columns) x + weight_decay p.
    For embeddings and the last layer use a group with orthogonalize=False: they train better with AdamW.
    """
    fractions("muon", momentum=momentum, b1=b1, b2=b2)
    positive("muon", eps=eps)
    not_negative("muon", weight_decay=weight_decay)
    counts("muon", rounds=rounds)
    vectors = [Adam(b1, b2, eps)]
    matrices = [Momentum(momentum, nesterov), Orthogonal(rounds)] if orthogonalize else vectors
    return [ByShape(matrices, vectors), *decay_transforms(weight_decay)]


# --- transforms -------------------------------------------------------------------------------------------------------------


def length(x: Tensor) -> Tensor:
    """The norm of a tensor as one vector."""
    return sqrt((x * x).sum())


def _rms(x: Tensor) -> Tensor:
    return sqrt((x * x).mean())


def _ratio(a: Tensor, b: Tensor) -> Tensor:
    """a / b, or 1 where one of them is 0."""
    usable = (a > 0.0) & (b > 0.0)
    return where(usable, a / where(usable, b, 1.0), 1.0)


class LayerwiseRate(Transform):
    """The rule of `lars`, without the momentum."""

    elementwise = False

    def __init__(self, weight_decay: float, trust: float, eps: float) -> None:
        self.weight_decay, self.trust, self.eps = weight_decay, trust, eps

    def apply(self, g: Tensor, p: Tensor, s: State, t: Tensor) -> Tensor:
        size, steepness = length(p), length(g)
        whole = steepness + size * self.weight_decay + self.eps
        usable = (size > 0.0) & (steepness > 0.0)
        return (g + p * self.weight_decay) * where(usable, size * self.trust / whole, 1.0)


class TrustRatio(Transform):
    """Scale the update to the norm of the parameter."""

    elementwise = False

    def apply(self, g: Tensor, p: Tensor, s: State, t: Tensor) -> Tensor:
        return g * _ratio(length(p), length(g))


class UnitLength(Transform):
    """The gradient over the root of the moving average of its squared norm."""

    elementwise = False

    def __init__(self, keep: float, eps: float) -> None:
        self.keep, self.eps = keep, eps

    def start(self, p: Tensor) -> State:
        return {"square": zeros_like(p, ())}

    def apply(self, g: Tensor, p: Tensor, s: State, t: Tensor) -> Tensor:
        keep = choice(t == 1, 0.0, self.keep, g.dtype)
        return g / (sqrt(update_moving_average(s, "square", (g * g).sum(), keep)) + self.eps)


class FactoredSquares(Transform):
    """The gradient over its root mean square, which for a matrix is factored into rows and columns."""

    elementwise = False

    def __init__(self, decay: float, eps: float) -> None:
        self.decay, self.eps = decay, eps

    def start(self, p: Tensor) -> State:
        if p.ndim < 2:
            return {"square": zeros_like(p)}
        return {"rows": zeros_like(p, (p.shape[0], 1)), "columns": zeros_like(p, (1, math.prod(p.shape[1:])))}

    def apply(self, g: Tensor, p: Tensor, s: State, t: Tensor) -> Tensor:
        keep = (1.0 - t.astype(float64) ** -self.decay).astype(g.dtype)
        squares = g * g + self.eps
        if p.ndim < 2:
            return g / sqrt(update_moving_average(s, "square", squares, keep))
        matrix = _matrix(squares)
        rows = update_moving_average(s, "rows", matrix.mean(axis=1, keepdims=True), keep)
        columns = update_moving_average(s, "columns", matrix.mean(axis=0, keepdims=True), keep)
        # Divide first: the product of two small numbers would underflow.
        return g / sqrt((rows / rows.mean()) * columns).reshape(p.shape)


class Relative(Transform):
    """Clip the RMS of updates to `clip`, and scale them by the RMS of the parameter."""

    elementwise = False

    def __init__(self, clip: float, least: float) -> None:
        self.clip, self.least = clip, least

    def apply(self, g: Tensor, p: Tensor, s: State, t: Tensor) -> Tensor:
        return g / maximum(_rms(g) / self.clip, 1.0) * maximum(_rms(p), self.least)


class Orthogonal(Transform):
    """Orthogonalize the gradient as a matrix by the Newton-Schulz iteration."""

    elementwise = False

    def __init__(self, rounds: int) -> None:
        self.rounds = rounds

    def apply(self, g: Tensor, p: Tensor, s: State, t: Tensor) -> Tensor:
        matrix = _matrix(g)
        tall = matrix.shape[0] > matrix.shape[1]
        x = matrix.mT if tall else matrix  # the smaller of the two Gram matrices
        x = x / (length(x) + 1e-7)
        for _ in range(self.rounds):
            square = x @ x.mT
            x = x * 3.4445 + (square * -4.7750 + square @ square * 2.0315) @ x
        return (x.mT if tall else x).reshape(g.shape) * (0.2 * math.sqrt(max(matrix.shape)))


def _matrix(x: Tensor) -> Tensor:
    return x.reshape(x.shape[0], math.prod(x.shape[1:]))


class ByShape(Transform):
    """One chain for matrices, another for everything else."""

    elementwise = False

    def __init__(self, matrices: Sequence[Transform], others: Sequence[Transform]) -> None:
        self.matrices, self.others = matrices, others

    def _chain(self, p: Tensor) -> Sequence[Transform]:
        return self.matrices if p.ndim >= 2 else self.others

    def start(self, p: Tensor) -> State:
        return {name: tensor for part in self._chain(p) for name, tensor in part.start(p).items()}

    def apply(self, g: Tensor, p: Tensor, s: State, t: Tensor) -> Tensor:
        for part in self._chain(p):
            g = part.apply(g, p, s, t)
        return g
