"""Normalizations: statistics in float32 or wider, results in the dtype of the input."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...errors import UserError
from ...ops.elementwise import abs, astype, pow, sqrt, where
from ...ops.movement import reshape
from ...ops.normalize import batch_norm
from ...ops.reduce import sum as reduce_sum
from ...ops.statistics import mean
from ...ops.window import window_sum
from ...tensor import Tensor
from ..registry import OnnxCall, op

Ints = tuple[int, ...]


def _wide(x: Tensor) -> Tensor:
    return astype(x, "float32") if x.dtype.is_half else x


def _moments(x: Tensor, axes: Sequence[int]) -> tuple[Tensor, Tensor]:
    average = mean(x, axis=tuple(axes), keepdims=True)
    centred = x - average
    return average, mean(centred * centred, axis=tuple(axes), keepdims=True)


def _per_channel(v: Tensor, x: Tensor) -> Tensor:
    return reshape(astype(v, x.dtype), (1, -1, *[1] * (x.ndim - 2)))


@op("BatchNormalization")
def batch_normalization(
    x: Tensor,
    scale: Tensor,
    bias: Tensor,
    average: Tensor,
    variance: Tensor,
    *,
    epsilon: float = 1e-5,
    momentum: float = 0.9,
    spatial: int = 1,
    training_mode: int = 0,
) -> Any:
    """With the given statistics; with `training_mode` with those of the batch, and the running statistics are results, too."""
    if not spatial:
        raise UserError("onnx", "BatchNormalization over channels is required, got spatial=0.")
    if not training_mode:  # the graph of nn.BatchNorm, so that both compile to the same kernels
        return batch_norm(x, scale, bias, mean_=average, var_=variance, eps=epsilon).value
    wide = _wide(x)
    axes = [i for i in range(x.ndim) if i != 1]
    now, spread = _moments(wide, axes)
    y = (wide - now) / sqrt(spread + epsilon) * _per_channel(scale, wide) + _per_channel(bias, wide)
    running = [
        astype(old * momentum + astype(reshape(new, (-1,)), old.dtype) * (1.0 - momentum), old.dtype)
        for old, new in ((average, now), (variance, spread))
    ]
    return astype(y, x.dtype), *running


@op("InstanceNormalization")
def instance_normalization(x: Tensor, scale: Tensor, bias: Tensor, *, epsilon: float = 1e-5) -> Tensor:
    wide = _wide(x)
    average, variance = _moments(wide, range(2, x.ndim))
    y = (wide - average) / sqrt(variance + epsilon) * _per_channel(scale, wide) + _per_channel(bias, wide)
    return astype(y, x.dtype)


@op("GroupNormalization")
def group_normalization(
    x: Tensor,
    scale: Tensor,
    bias: Tensor,
    *,
    num_groups: int,
    epsilon: float = 1e-5,
    stash_type: int = 1,
    call: OnnxCall,
) -> Tensor:
    """Until opset 20 scale and bias are of groups, since then of channels."""
    grouped = reshape(_wide(x), (x.shape[0], num_groups, -1))
    average, variance = _moments(grouped, (2,))
    y = (grouped - average) / sqrt(variance + epsilon)
    if call.version < 21:
        return astype(reshape(y * _per_channel(scale, y) + _per_channel(bias, y), x.shape), x.dtype)
    y = astype(reshape(y, x.shape), x.dtype)
    return y * _per_channel(scale, y) + _per_channel(bias, y)


@op("LayerNormalization")
def layer_normalization(
    x: Tensor,
    scale: Tensor,
    bias: Tensor | None = None,
    *,
    axis: int = -1,
    epsilon: float = 1e-5,
    stash_type: int = 1,
    call: OnnxCall,
) -> Any:
    wide = _wide(x)
    average, variance = _moments(wide, range(axis % x.ndim, x.ndim))
    inverse = 1.0 / sqrt(variance + epsilon)
    y = astype((wide - average) * inverse, x.dtype) * scale
    y = y if bias is None else y + bias
    return (y, average, inverse)[: call.outputs] if call.outputs > 1 else y


@op("RMSNormalization")
def rms_normalization(
    x: Tensor, scale: Tensor, *, axis: int = -1, epsilon: float = 1e-5, stash_type: int = 1
) -> Tensor:
    wide = _wide(x)
    axes = tuple(range(axis % x.ndim, x.ndim))
    y = wide / sqrt(mean(wide * wide, axis=axes, keepdims=True) + epsilon)
    return astype(y, x.dtype) * scale


@op("MeanVarianceNormalization")
def mean_variance_normalization(x: Tensor, *, axes: Ints = (0, 2, 3)) -> Tensor:
    wide = _wide(x)
    average, variance = _moments(wide, axes)
    return astype((wide - average) / (sqrt(variance) + 1e-9), x.dtype)


@op("LpNormalization")
def lp_normalization(x: Tensor, *, axis: int = -1, p: int = 2) -> Tensor:
    """x divided by its norm; a norm of 0 gives 0."""
    if p == 1:
        norm = reduce_sum(abs(x), axis=axis, keepdims=True)
    else:
        norm = sqrt(reduce_sum(x * x, axis=axis, keepdims=True))
    return where(norm == 0, 0, x / where(norm == 0, 1, norm))


@op("LRN")
def local_response_normalization(
    x: Tensor, *, size: int, alpha: float = 1e-4, beta: float = 0.75, bias: float = 1.0
) -> Tensor:
    wide = _wide(x)
    one = (1,) * x.ndim
    window = tuple(size if i == 1 else 1 for i in range(x.ndim))
    before = (size - 1) // 2
    padding = tuple((before, size - 1 - before) if i == 1 else (0, 0) for i in range(x.ndim))
    total = window_sum(wide * wide, window, one, padding, one)
    return astype(wide / pow(bias + alpha / size * total, beta), x.dtype)
