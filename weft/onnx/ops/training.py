"""Optimizer steps of the domain ai.onnx.preview.training."""

from __future__ import annotations

from collections.abc import Callable

from ...ops.elementwise import astype, pow, sqrt, where
from ...tensor import Tensor
from ..registry import TRAINING, op

Update = Callable[..., tuple[Tensor, ...]]


def _each(rate: Tensor, step: Tensor, tensors: tuple[Tensor, ...], kinds: int, update: Update) -> tuple[Tensor, ...]:
    """Apply an update to each parameter; inputs and outputs are grouped by kind, not by parameter."""
    count = len(tensors) // kinds
    results = [update(rate, step, *(tensors[i + k * count] for k in range(kinds))) for i in range(count)]
    return tuple(values for kind in zip(*results, strict=True) for values in kind)


@op("Adagrad", domain=TRAINING, foldable=False)
def adagrad(
    rate: Tensor,
    step: Tensor,
    *tensors: Tensor,
    decay_factor: float = 0.0,
    epsilon: float = 0.0,
    norm_coefficient: float = 0.0,
) -> tuple[Tensor, ...]:
    def update(rate: Tensor, step: Tensor, x: Tensor, gradient: Tensor, total: Tensor) -> tuple[Tensor, ...]:
        r = rate / (1 + astype(step, x.dtype) * decay_factor)
        g = gradient + norm_coefficient * x
        new = total + g * g
        return x - r * g / (sqrt(new) + epsilon), new

    return _each(rate, step, tensors, 3, update)


@op("Adam", domain=TRAINING, foldable=False)
def adam(
    rate: Tensor,
    step: Tensor,
    *tensors: Tensor,
    alpha: float = 0.9,
    beta: float = 0.999,
    epsilon: float = 0.0,
    norm_coefficient: float = 0.0,
    norm_coefficient_post: float = 0.0,
) -> tuple[Tensor, ...]:
    def update(rate: Tensor, step: Tensor, x: Tensor, gradient: Tensor, v: Tensor, h: Tensor) -> tuple[Tensor, ...]:
        g = gradient + norm_coefficient * x
        first, second = alpha * v + (1 - alpha) * g, beta * h + (1 - beta) * g * g
        t = astype(step, x.dtype)
        bias = sqrt(1 - pow(beta, t)) / (1 - pow(alpha, t))
        r = rate * where(t > 0, bias, 1)
        new = x - r * first / (sqrt(second) + epsilon)
        return (1 - norm_coefficient_post) * new, first, second

    return _each(rate, step, tensors, 4, update)


@op("Momentum", domain=TRAINING, foldable=False)
def momentum(
    rate: Tensor, step: Tensor, *tensors: Tensor, alpha: float, beta: float, mode: str, norm_coefficient: float
) -> tuple[Tensor, ...]:
    def update(rate: Tensor, step: Tensor, x: Tensor, gradient: Tensor, v: Tensor) -> tuple[Tensor, ...]:
        g = gradient + norm_coefficient * x
        new = alpha * v + where(step > 0, beta, 1.0) * g
        return x - rate * (g + alpha * new if mode == "nesterov" else new), new

    return _each(rate, step, tensors, 3, update)
