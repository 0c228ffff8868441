"""Adam and its relatives: a mean of gradients over the root of a mean of their squares.

In all formulas g is the gradient, p the parameter, t the number of the step and u what is subtracted from p, times the rate. m and
v are the means m = b1 m + (1 - b1) g and v = b2 v + (1 - b2) g², which start at 0; m^ = m / (1 - b1^t) and v^ = v / (1 - b2^t)
are what they would be without that start.
"""

from __future__ import annotations

from ..dtypes import float64
from ..ops.elementwise import abs, maximum, sign, sqrt, where
from ..tensor import Tensor
from .checks import fractions, not_negative, positive
from .momentum import decaying, moving_mean
from .optimizer import Rate, optimizer
from .transform import State, Transform, zeros_like


@optimizer
def adam(
    rate: Rate = 1e-3,
    b1: float = 0.9,
    b2: float = 0.999,
    eps: float = 1e-8,
    weight_decay: float = 0.0,
    amsgrad: bool = False,
) -> list[Transform]:
    """Adam (Kingma and Ba 2015); with amsgrad v never shrinks (Reddi et al. 2018).

    g = g + weight_decay p;  u = m^ / (√v^ + eps)
    """
    _check("adam", b1, b2, eps, weight_decay)
    return [*decaying(weight_decay), Adam(b1, b2, eps, amsgrad)]


@optimizer
def adamw(
    rate: Rate = 1e-3,
    b1: float = 0.9,
    b2: float = 0.999,
    eps: float = 1e-8,
    weight_decay: float = 0.01,
    amsgrad: bool = False,
) -> list[Transform]:
    """Adam with decoupled weight decay (Loshchilov and Hutter 2019).

    u = m^ / (√v^ + eps) + weight_decay p
    """
    _check("adamw", b1, b2, eps, weight_decay)
    return [Adam(b1, b2, eps, amsgrad), *decaying(weight_decay)]


@optimizer
def adamax(
    rate: Rate = 2e-3, b1: float = 0.9, b2: float = 0.999, eps: float = 1e-8, weight_decay: float = 0.0
) -> list[Transform]:
    """Adam with the greatest gradient in place of the root mean square (Kingma and Ba 2015).

    g = g + weight_decay p;  n = max(b2 n, |g| + eps);  u = m^ / n
    """
    _check("adamax", b1, b2, eps, weight_decay)
    return [*decaying(weight_decay), Adamax(b1, b2, eps)]


@optimizer
def nadam(
    rate: Rate = 2e-3,
    b1: float = 0.9,
    b2: float = 0.999,
    eps: float = 1e-8,
    weight_decay: float = 0.0,
    growth: float = 0.004,
) -> list[Transform]:
    """Adam with Nesterov's momentum (Dozat 2016), which grows from half of b1 to b1.

    g = g + weight_decay p;  c_t = b1 (1 - 0.96^(growth t) / 2);  P_t = c_1 ... c_t;
    u = (c_(t+1) m / (1 - P_(t+1)) + (1 - c_t) g / (1 - P_t)) / (√v^ + eps)
    """
    _check("nadam", b1, b2, eps, weight_decay)
    not_negative("nadam", growth=growth)
    return [*decaying(weight_decay), Nadam(b1, b2, eps, growth)]


@optimizer
def radam(
    rate: Rate = 1e-3, b1: float = 0.9, b2: float = 0.999, eps: float = 1e-8, weight_decay: float = 0.0
) -> list[Transform]:
    """Adam that waits until v can be relied on (Liu et al. 2020).

    g = g + weight_decay p;  n = 2 / (1 - b2) - 1;  k = n - 2 t b2^t / (1 - b2^t);
    u = m^ √((k - 4)(k - 2) n / ((n - 4)(n - 2) k)) / (√v^ + eps) if k > 5, else m^
    """
    _check("radam", b1, b2, eps, weight_decay)
    return [*decaying(weight_decay), Radam(b1, b2, eps)]


@optimizer
def yogi(
    rate: Rate = 0.01, b1: float = 0.9, b2: float = 0.999, eps: float = 1e-3, weight_decay: float = 0.0
) -> list[Transform]:
    """Adam whose v follows by steps that do not depend on v itself (Zaheer et al. 2018).

    g = g + weight_decay p;  v = v - (1 - b2) sign(v - g²) g²;  u = m^ / (√v^ + eps)
    """
    _check("yogi", b1, b2, eps, weight_decay)
    return [*decaying(weight_decay), Yogi(b1, b2, eps)]


@optimizer
def adabelief(
    rate: Rate = 1e-3, b1: float = 0.9, b2: float = 0.999, eps: float = 1e-16, weight_decay: float = 0.0
) -> list[Transform]:
    """Adam that divides by how far gradients are from their mean (Zhuang et al. 2020); weight decay is decoupled.

    v = b2 v + (1 - b2) (g - m)² + eps;  u = m^ / (√v^ + eps) + weight_decay p
    """
    _check("adabelief", b1, b2, eps, weight_decay)
    return [AdaBelief(b1, b2, eps), *decaying(weight_decay)]


@optimizer
def adan(
    rate: Rate = 1e-3,
    b1: float = 0.98,
    b2: float = 0.92,
    b3: float = 0.99,
    eps: float = 1e-8,
    weight_decay: float = 0.0,
) -> list[Transform]:
    """Adam with Nesterov's momentum from differences of gradients (Xie et al. 2022); weight decay is decoupled.

    d = g - g of the last step, at first 0;  w = b2 w + (1 - b2) d;  n = b3 n + (1 - b3) (g + b2 d)²;
    u = (m^ + b2 w^) / (√n^ + eps) + weight_decay p
    """
    _check("adan", b1, b2, eps, weight_decay)
    fractions("adan", b3=b3)
    return [Adan(b1, b2, b3, eps), *decaying(weight_decay)]


def _check(where: str, b1: float, b2: float, eps: float, weight_decay: float) -> None:
    fractions(where, b1=b1, b2=b2)
    positive(where, eps=eps)
    not_negative(where, weight_decay=weight_decay)


# --- transforms -------------------------------------------------------------------------------------------------------------


def unbiased(mean: Tensor, keep: float, t: Tensor) -> Tensor:
    """A moving average as if it had not started at 0: x / (1 - keep^t). The factor in float64, since it is large at first."""
    return mean * (1.0 / (1.0 - keep ** t.astype(float64))).astype(mean.dtype)


class Moments(Transform):
    """What relatives of Adam have in common: a mean, a mean of squares, and how to start and use them."""

    def __init__(self, b1: float, b2: float, eps: float) -> None:
        self.b1, self.b2, self.eps = b1, b2, eps

    def start(self, p: Tensor) -> State:
        return {"mean": zeros_like(p), "square": zeros_like(p)}

    def ratio(self, mean: Tensor, square: Tensor, t: Tensor) -> Tensor:
        """m^ / (√v^ + eps)."""
        return unbiased(mean, self.b1, t) / (sqrt(unbiased(square, self.b2, t)) + self.eps)


class Adam(Moments):
    """The rule of `adam`."""

    def __init__(self, b1: float, b2: float, eps: float, amsgrad: bool = False) -> None:
        super().__init__(b1, b2, eps)
        self.amsgrad = amsgrad

    def start(self, p: Tensor) -> State:
        greatest = {"greatest": zeros_like(p)} if self.amsgrad else {}
        return {**super().start(p), **greatest}

    def apply(self, g: Tensor, p: Tensor, s: State, t: Tensor) -> Tensor:
        mean, square = moving_mean(s, "mean", g, self.b1), moving_mean(s, "square", g * g, self.b2)
        if self.amsgrad:
            square = maximum(s["greatest"], square)
            s["greatest"].assign(square)
        return self.ratio(mean, square, t)


class Adamax(Moments):
    """The rule of `adamax`."""

    def apply(self, g: Tensor, p: Tensor, s: State, t: Tensor) -> Tensor:
        mean = moving_mean(s, "mean", g, self.b1)
        greatest = maximum(s["square"] * self.b2, abs(g) + self.eps)
        s["square"].assign(greatest)
        return unbiased(mean, self.b1, t) / greatest


class Nadam(Moments):
    """The rule of `nadam`."""

    def __init__(self, b1: float, b2: float, eps: float, growth: float) -> None:
        super().__init__(b1, b2, eps)
        self.growth = growth

    def start(self, p: Tensor) -> State:
        return {**super().start(p), "product": (zeros_like(p, ()) + 1.0).realize()}

    def apply(self, g: Tensor, p: Tensor, s: State, t: Tensor) -> Tensor:
        mean, square = moving_mean(s, "mean", g, self.b1), moving_mean(s, "square", g * g, self.b2)
        now, then = self._momentum(t).astype(g.dtype), self._momentum(t + 1).astype(g.dtype)
        product = s["product"] * now
        s["product"].assign(product)
        ahead = mean * (then / (1.0 - product * then)) + g * ((1.0 - now) / (1.0 - product))
        return ahead / (sqrt(unbiased(square, self.b2, t)) + self.eps)

    def _momentum(self, t: Tensor) -> Tensor:
        return self.b1 * (1.0 - 0.5 * 0.96 ** (t.astype(float64) * self.growth))


class Radam(Moments):
    """The rule of `radam`."""

    def apply(self, g: Tensor, p: Tensor, s: State, t: Tensor) -> Tensor:
        mean, square = moving_mean(s, "mean", g, self.b1), moving_mean(s, "square", g * g, self.b2)
        n = 2.0 / (1.0 - self.b2) - 1.0
        steps = t.astype(float64)  # k is a small difference of large numbers
        k = n - 2.0 * steps * self.b2**steps / (1.0 - self.b2**steps)
        known = k > 5.0
        safe = where(known, k, 5.0)
        factor = sqrt((safe - 4.0) * (safe - 2.0) * n / ((n - 4.0) * (n - 2.0) * safe)).astype(g.dtype)
        return where(known, self.ratio(mean, square, t) * factor, unbiased(mean, self.b1, t))


class Yogi(Moments):
    """The rule of `yogi`."""

    def apply(self, g: Tensor, p: Tensor, s: State, t: Tensor) -> Tensor:
        mean = moving_mean(s, "mean", g, self.b1)
        square = s["square"] - sign(s["square"] - g * g) * (g * g) * (1.0 - self.b2)
        s["square"].assign(square)
        return self.ratio(mean, square, t)


class AdaBelief(Moments):
    """The rule of `adabelief`."""

    def apply(self, g: Tensor, p: Tensor, s: State, t: Tensor) -> Tensor:
        mean = moving_mean(s, "mean", g, self.b1)
        surprise = s["square"] * self.b2 + (g - mean) * (g - mean) * (1.0 - self.b2) + self.eps
        s["square"].assign(surprise)
        return self.ratio(mean, surprise, t)


class Adan(Moments):
    """The rule of `adan`."""

    def __init__(self, b1: float, b2: float, b3: float, eps: float) -> None:
        super().__init__(b1, b2, eps)
        self.b3 = b3

    def start(self, p: Tensor) -> State:
        return {**super().start(p), "change": zeros_like(p), "last": zeros_like(p)}

    def apply(self, g: Tensor, p: Tensor, s: State, t: Tensor) -> Tensor:
        difference = where(t == 1, 0.0, g - s["last"])
        s["last"].assign(g)
        ahead = g + difference * self.b2
        mean, change = moving_mean(s, "mean", g, self.b1), moving_mean(s, "change", difference, self.b2)
        square = moving_mean(s, "square", ahead * ahead, self.b3)
        direction = unbiased(mean, self.b1, t) + unbiased(change, self.b2, t) * self.b2
        return direction / (sqrt(unbiased(square, self.b3, t)) + self.eps)
