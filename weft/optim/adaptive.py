"""Adam and its variants: a moving average of gradients over the root of a moving average of their squares.

In all formulas g is the gradient, p the parameter, t the number of the step and u the update: p = p - rate u. m and v are the
moving averages m = b1 m + (1 - b1) g and v = b2 v + (1 - b2) g², which start at 0; m^ = m / (1 - b1^t) and v^ = v / (1 - b2^t)
are bias-corrected.
"""

from __future__ import annotations

from ..dtypes import float64
from ..ops.elementwise import abs, maximum, sign, sqrt, where
from ..tensor import Tensor
from .checks import fractions, not_negative, positive
from .constructors import optimizer
from .momentum import decay_transforms, update_moving_average
from .optimizer import Rate
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
    """Adam (Kingma and Ba 2015); with amsgrad v never decreases (Reddi et al. 2018).

    g = g + weight_decay p;  u = m^ / (√v^ + eps)
    """
    _check("adam", b1, b2, eps, weight_decay)
    return [*decay_transforms(weight_decay), Adam(b1, b2, eps, amsgrad)]


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
    return [Adam(b1, b2, eps, amsgrad), *decay_transforms(weight_decay)]


@optimizer
def adamax(
    rate: Rate = 2e-3, b1: float = 0.9, b2: float = 0.999, eps: float = 1e-8, weight_decay: float = 0.0
) -> list[Transform]:
    """Adam with the infinity norm instead of the root mean square (Kingma and Ba 2015).

    g = g + weight_decay p;  n = max(b2 n, |g| + eps);  u = m^ / n
    """
    _check("adamax", b1, b2, eps, weight_decay)
    return [*decay_transforms(weight_decay), Adamax(b1, b2, eps)]


@optimizer
def nadam(
    rate: Rate = 2e-3,
    b1: float = 0.9,
    b2: float = 0.999,
    eps: float = 1e-8,
    weight_decay: float = 0.0,
    growth: float = 0.004,
) -> list[Transform]:
    """Adam with Nesterov momentum (Dozat 2016), which increases from b1 / 2 to b1.

    g = g + weight_decay p;  c_t = b1 (1 - 0.96^(growth t) / 2);  P_t = c_1 ... c_t;
    u = (c_(t+1) m / (1 - P_(t+1)) + (1 - c_t) g / (1 - P_t)) / (√v^ + eps)
    """
    _check("nadam", b1, b2, eps, weight_decay)
    not_negative("nadam", growth=growth)
    return [*decay_transforms(weight_decay), Nadam(b1, b2, eps, growth)]


@optimizer
def radam(
    rate: Rate = 1e-3, b1: float = 0.9, b2: float = 0.999, eps: float = 1e-8, weight_decay: float = 0.0
) -> list[Transform]:
    """Rectified Adam: it adapts only once the variance of v is bounded (Liu et al. 2020).

    g = g + weight_decay p;  n = 2 / (1 - b2) - 1;  k = n - 2 t b2^t / (1 - b2^t);
    u = m^ √((k - 4)(k - 2) n / ((n - 4)(n - 2) k)) / (√v^ + eps) if k > 5, else m^
    """
    _check("radam", b1, b2, eps, weight_decay)
    return [*decay_transforms(weight_decay), Radam(b1, b2, eps)]


@optimizer
def yogi(
    rate: Rate = 0.01, b1: float = 0.9, b2: float = 0.999, eps: float = 1e-3, weight_decay: float = 0.0
) -> list[Transform]:
    """Adam with an additive update of v that does not depend on the size of v (Zaheer et al. 2018).

    g = g + weight_decay p;  v = v - (1 - b2) sign(v - g²) g²;  u = m^ / (√v^ + eps)
    """
    _check("yogi", b1, b2, eps, weight_decay)
    return [*decay_transforms(weight_decay), Yogi(b1, b2, eps)]


@optimizer
def adabelief(
    rate: Rate = 1e-3, b1: float = 0.9, b2: float = 0.999, eps: float = 1e-16, weight_decay: float = 0.0
) -> list[Transform]:
    """Adam that divides by the deviation of gradients from their mean (Zhuang et al. 2020); weight decay is decoupled.

    v = b2 v + (1 - b2) (g - m)² + eps;  u = m^ / (√v^ + eps) + weight_decay p
    """
    _check("adabelief", b1, b2, eps, weight_decay)
    return [AdaBelief(b1, b2, eps), *decay_transforms(weight_decay)]


@optimizer
def adan(
    rate: Rate = 1e-3,
    b1: float = 0.98,
    b2: float = 0.92,
    b3: float = 0.99,
    eps: float = 1e-8,
    weight_decay: float = 0.0,
) -> list[Transform]:
    """Adam with Nesterov momentum from differences of gradients (Xie et al. 2022); weight decay is decoupled.

    d = g - g of the last step, at first 0;  w = b2 w + (1 - b2) d;  n = b3 n + (1 - b3) (g + b2 d)²;
    u = (m^ + b2 w^) / (√n^ + eps) + weight_decay p
    """
    _check("adan", b1, b2, eps, weight_decay)
    fractions("adan", b3=b3)
    return [Adan(b1, b2, b3, eps), *decay_transforms(weight_decay)]


def _check(where: str, b1: float, b2: float, eps: float, weight_decay: float) -> None:
    fractions(where, b1=b1, b2=b2)
    positive(where, eps=eps)
    not_negative(where, weight_decay=weight_decay)


# --- transforms -------------------------------------------------------------------------------------------------------------


def bias_corrected(mean: Tensor, keep: float, t: Tensor) -> Tensor:
    """A bias-corrected moving average: x / (1 - keep^t). The factor is computed in float64, because it is large at first."""
    return mean * (1.0 / (1.0 - keep ** t.astype(float64))).astype(mean.dtype)


class AdamFamily(Transform):
    """Base class of Adam's variants: the moving averages of gradients and of their squares."""

    def __init__(self, b1: float, b2: float, eps: float) -> None:
        self.b1, self.b2, self.eps = b1, b2, eps

    def start(self, p: Tensor) -> State:
        return {"mean": zeros_like(p), "square": zeros_like(p)}

    def ratio(self, mean: Tensor, square: Tensor, t: Tensor) -> Tensor:
        """m^ / (√v^ + eps)."""
        return bias_corrected(mean, self.b1, t) / (sqrt(bias_corrected(square, self.b2, t)) + self.eps)


class Adam(AdamFamily):
    """The rule of `adam`."""

    def __init__(self, b1: float, b2: float, eps: float, amsgrad: bool = False) -> None:
        super().__init__(b1, b2, eps)
        self.amsgrad = amsgrad

    def start(self, p: Tensor) -> State:
        greatest = {"greatest": zeros_like(p)} if self.amsgrad else {}
        return {**super().start(p), **greatest}

    def apply(self, g: Tensor, p: Tensor, s: State, t: Tensor) -> Tensor:
        mean, square = update_moving_average(s, "mean", g, self.b1), update_moving_average(s, "square", g * g, self.b2)
        if self.amsgrad:
            square = maximum(s["greatest"], square)
            s["greatest"].assign(square)
        return self.ratio(mean, square, t)


class Adamax(AdamFamily):
    """The rule of `adamax`."""

    def apply(self, g: Tensor, p: Tensor, s: State, t: Tensor) -> Tensor:
        mean = update_moving_average(s, "mean", g, self.b1)
        greatest = maximum(s["square"] * self.b2, abs(g) + self.eps)
        s["square"].assign(greatest)
        return bias_corrected(mean, self.b1, t) / greatest


class Nadam(AdamFamily):
    """The rule of `nadam`."""

    def __init__(self, b1: float, b2: float, eps: float, growth: float) -> None:
        super().__init__(b1, b2, eps)
        self.growth = growth

    def start(self, p: Tensor) -> State:
        return {**super().start(p), "product": (zeros_like(p, ()) + 1.0).realize()}

    def apply(self, g: Tensor, p: Tensor, s: State, t: Tensor) -> Tensor:
        mean, square = update_moving_average(s, "mean", g, self.b1), update_moving_average(s, "square", g * g, self.b2)
        now, then = self._momentum(t).astype(g.dtype), self._momentum(t + 1).astype(g.dtype)
        product = s["product"] * now
        s["product"].assign(product)
        ahead = mean * (then / (1.0 - product * then)) + g * ((1.0 - now) / (1.0 - product))
        return ahead / (sqrt(bias_corrected(square, self.b2, t)) + self.eps)

    def _momentum(self, t: Tensor) -> Tensor:
        return self.b1 * (1.0 - 0.5 * 0.96 ** (t.astype(float64) * self.growth))


class Radam(AdamFamily):
    """The rule of `radam`."""

    def apply(self, g: Tensor, p: Tensor, s: State, t: Tensor) -> Tensor:
        mean, square = update_moving_average(s, "mean", g, self.b1), update_moving_average(s, "square", g * g, self.b2)
        n = 2.0 / (1.0 - self.b2) - 1.0
        steps = t.astype(float64)  # k is a small difference of large numbers
        k = n - 2.0 * steps * self.b2**steps / (1.0 - self.b2**steps)
        known = k > 5.0
        safe = where(known, k, 5.0)
        factor = sqrt((safe - 4.0) * (safe - 2.0) * n / ((n - 4.0) * (n - 2.0) * safe)).astype(g.dtype)
        return where(known, self.ratio(mean, square, t) * factor, bias_corrected(mean, self.b1, t))


class Yogi(AdamFamily):
    """The rule of `yogi`."""

    def apply(self, g: Tensor, p: Tensor, s: State, t: Tensor) -> Tensor:
        mean = update_moving_average(s, "mean", g, self.b1)
        square = s["square"] - sign(s["square"] - g * g) * (g * g) * (1.0 - self.b2)
        s["square"].assign(square)
        return self.ratio(mean, square, t)


class AdaBelief(AdamFamily):
    """The rule of `adabelief`."""

    def apply(self, g: Tensor, p: Tensor, s: State, t: Tensor) -> Tensor:
        mean = update_moving_average(s, "mean", g, self.b1)
        surprise = s["square"] * self.b2 + (g - mean) * (g - mean) * (1.0 - self.b2) + self.eps
        s["square"].assign(surprise)
        return self.ratio(mean, surprise, t)


class Adan(AdamFamily):
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
        mean, change = (
            update_moving_average(s, "mean", g, self.b1),
            update_moving_average(s, "change", difference, self.b2),
        )
        square = update_moving_average(s, "square", ahead * ahead, self.b3)
        direction = bias_corrected(mean, self.b1, t) + bias_corrected(change, self.b2, t) * self.b2
        return direction / (sqrt(bias_corrected(square, self.b3, t)) + self.eps)
