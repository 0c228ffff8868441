"""Weight regularization: penalties to add to a loss, and a max-norm constraint to apply after a step.

loss = nn.cross_entropy(model(x), y) + nn.l2(model, 1e-4)
...
nn.max_norm(model, 3.0)  # after the optimizer's step
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from ..dtypes import float32
from ..errors import UserError
from ..ops.creation import zeros
from ..ops.declare import accept, normal_axis
from ..ops.elementwise import abs, astype, sqrt, where
from ..ops.reduce import sum
from ..tensor import Tensor
from . import checks
from .module import Module

Weights = Module | Tensor | Iterable[Tensor]


def l1(weights: Weights, factor: float) -> Tensor:
    """factor * sum of |w|, over tensors or all trainable parameters of a module: it drives weights to exactly 0.

    >>> float(l1(Tensor([1.0, -2.0]), 0.5))
    1.5
    """
    return checks.check_at_least("l1", "factor", factor) * _total("l1", weights, abs)


def l2(weights: Weights, factor: float) -> Tensor:
    """factor * sum of w², over tensors or all trainable parameters of a module.

    >>> float(l2(Tensor([1.0, -2.0]), 0.5))
    2.5
    """
    return checks.check_at_least("l2", "factor", factor) * _total("l2", weights, _square)


def elastic(weights: Weights, l1_factor: float, l2_factor: float) -> Tensor:
    """l1_factor * sum of |w| + l2_factor * sum of w² (Zou and Hastie 2005)."""
    first = checks.check_at_least("elastic", "l1_factor", l1_factor)
    second = checks.check_at_least("elastic", "l2_factor", l2_factor)
    return _total("elastic", weights, lambda w: first * abs(w) + second * _square(w))


def max_norm(weights: Weights, longest: float, axis: int = 0) -> None:
    """The max-norm constraint w = w min(1, longest / |w|) for each slice w along an axis (Srebro and Shraibman 2005).

    Axis 0 of a weight (outputs, inputs, kernel...) is that of its outputs: a slice holds the weights of one output. Of a
    module, only trainable parameters of two or more dimensions are constrained, not biases and scales.
    """
    longest = checks.check_above("max_norm", "longest", longest)
    for tensor in _tensors("max_norm", weights):
        if tensor.ndim > 1 or not isinstance(weights, Module):
            tensor.assign(_shortened(tensor.detach(), longest, normal_axis("max_norm", axis, tensor.ndim)))


def _shortened(w: Tensor, longest: float, axis: int) -> Tensor:
    wide = _wide(w)
    length = sqrt(sum(wide * wide, axis=tuple(i for i in range(w.ndim) if i != axis), keepdims=True))
    return where(length > longest, astype(wide * (longest / length), w.dtype), w)


def _total(name: str, weights: Weights, of_each: Callable[[Tensor], Tensor]) -> Tensor:
    terms = [sum(of_each(_wide(w))) for w in _tensors(name, weights)]
    total = terms[0] if terms else zeros(())
    for term in terms[1:]:
        total = total + term
    return total


def _square(w: Tensor) -> Tensor:
    return w * w


def _wide(w: Tensor) -> Tensor:
    """Convert 16-bit floats to float32, because sums of many squares overflow."""
    return astype(w, float32) if w.dtype.is_half else w


def _tensors(name: str, weights: Weights) -> list[Tensor]:
    if isinstance(weights, Module):
        return weights.parameters()
    tensors = [weights] if isinstance(weights, Tensor) else list(weights)
    for tensor in tensors:
        if not isinstance(tensor, Tensor):
            raise UserError(name, f"a module or tensors are required, got {type(tensor).__name__}.")
        accept(name, tensor.dtype, "float")
    return tensors
