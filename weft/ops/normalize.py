"""Normalizations to mean 0 and variance 1; they differ in the axes over which statistics are computed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from ..errors import UserError
from ..graph.node import Shape
from ..tensor import ArrayLike, Axis, Tensor, as_tensor, function
from .conv import per_axis
from .creation import ones
from .declare import as_float, in_float32, normal_axes, whole
from .elementwise import sqrt
from .math import rsqrt
from .movement import broadcast_to, reshape
from .statistics import mean, var
from .window import window_sum


class BatchNormResult(NamedTuple):
    """The normalized batch, and the statistics it was normalized with."""

    value: Tensor
    mean: Tensor
    var: Tensor


def _float(x: ArrayLike, name: str, least: int = 1) -> Tensor:
    x = as_float(as_tensor(x), name)
    if x.ndim < least:
        raise UserError(name, f"{least} or more dimensions are required, got shape {x.shape}.")
    return x


def _scaled(name: str, x: Tensor, scale: Any, shift: Any, shape: Shape, place: Shape) -> Tensor:
    """x * scale + shift, where both have `shape` and are reshaped to `place` to broadcast."""
    for what, value in (("scale", scale), ("shift", shift)):
        if value is None:
            continue
        value = as_tensor(value, x.dtype)
        if value.shape != shape:
            raise UserError(name, f"a {what} of shape {shape} is required, got {value.shape}.")
        value = reshape(value, place).astype(x.dtype)
        x = x * value if what == "scale" else x + value
    return x


def _channels(x: Tensor) -> tuple[Shape, Shape]:
    return (x.shape[1],), (x.shape[1], *[1] * (x.ndim - 2))


def _standard(x: Tensor, axes: Axis, eps: float) -> Tensor:
    return (x - mean(x, axis=axes, keepdims=True)) * rsqrt(var(x, axis=axes, keepdims=True) + eps)


@function
@in_float32
def batch_norm(
    x: ArrayLike, scale: Any = None, shift: Any = None, *, mean_: Any = None, var_: Any = None, eps: float = 1e-5
) -> BatchNormResult:
    """Normalize each channel over the batch and all positions; x is (batch, channels, ...).

    `mean_` and `var_` are running statistics for inference; by default the statistics of the batch are used.
    """
    x = _float(x, "batch_norm", 2)
    axes = [i for i in range(x.ndim) if i != 1]
    shape, place = _channels(x)
    if (mean_ is None) != (var_ is None):
        raise UserError("batch_norm", "mean_ and var_ must be given together.")
    centre = mean(x, axis=axes) if mean_ is None else as_tensor(mean_, x.dtype)
    spread = var(x, axis=axes) if var_ is None else as_tensor(var_, x.dtype)
    if centre.shape != shape or spread.shape != shape:
        raise UserError(
            "batch_norm", f"statistics of shape {shape} are required, got {centre.shape} and {spread.shape}."
        )
    centre, spread = centre.astype(x.dtype), spread.astype(x.dtype)
    # One factor per channel: its derivative needs fewer sums over all elements than two factors.
    factor = _scaled("batch_norm", rsqrt(spread + eps), scale, None, shape, shape)
    normal = (x - reshape(centre, place)) * reshape(factor, place)
    return BatchNormResult(_scaled("batch_norm", normal, None, shift, shape, place), centre, spread)


@function
@in_float32
def layer_norm(x: ArrayLike, scale: Any = None, shift: Any = None, *, axis: Axis = -1, eps: float = 1e-5) -> Tensor:
    """Normalize each example over the last axis (or the given last axes).

    >>> layer_norm(as_tensor([1.0, 3.0]), eps=0.0).tolist()
    [-1.0, 1.0]
    """
    x = _float(x, "layer_norm")
    axes = normal_axes("layer_norm", axis, x.ndim)
    shape = tuple(x.shape[a] for a in axes)
    return _scaled("layer_norm", _standard(x, axes, eps), scale, shift, shape, _place(x, axes))


def _place(x: Tensor, axes: Sequence[int]) -> Shape:
    return tuple(n if i in axes else 1 for i, n in enumerate(x.shape))


@function
@in_float32
def rms_norm(x: ArrayLike, scale: Any = None, *, axis: Axis = -1, eps: float = 1e-6) -> Tensor:
    """Divide each example by its root mean square over the last axes."""
    x = _float(x, "rms_norm")
    axes = normal_axes("rms_norm", axis, x.ndim)
    normal = x * rsqrt(mean(x * x, axis=axes, keepdims=True) + eps)
    return _scaled("rms_norm", normal, scale, None, tuple(x.shape[a] for a in axes), _place(x, axes))


@function
@in_float32
def group_norm(x: ArrayLike, groups: int, scale: Any = None, shift: Any = None, *, eps: float = 1e-5) -> Tensor:
    """Normalize each group of channels of each example over its positions; x is (batch, channels, ...)."""
    x = _float(x, "group_norm", 2)
    if groups < 1 or x.shape[1] % groups:
        raise UserError("group_norm", f"{x.shape[1]} channels cannot be divided into {groups} groups.")
    if groups == 1:
        normal = _standard(x, tuple(range(1, x.ndim)), eps)
    else:
        normal = _standard_by_group(x, groups, eps)
    return _scaled("group_norm", normal, scale, shift, *_channels(x))


def _standard_by_group(x: Tensor, groups: int, eps: float) -> Tensor:
    """Each channel by the statistics of its group. Only those are computed in groups: elements keep their axes, which may be stored in
    another order."""
    batch, channels, *spatial = x.shape
    parts = reshape(x, (batch, groups, channels // groups, *spatial))
    axes = tuple(range(2, parts.ndim))

    def of_channels(statistic: Tensor) -> Tensor:
        each = broadcast_to(statistic, (batch, groups, channels // groups, *(1,) * len(spatial)))
        return reshape(each, (batch, channels, *(1,) * len(spatial)))

    centre, spread = mean(parts, axis=axes, keepdims=True), var(parts, axis=axes, keepdims=True)
    return (x - of_channels(centre)) * of_channels(rsqrt(spread + eps))


@function
@in_float32
def instance_norm(x: ArrayLike, scale: Any = None, shift: Any = None, *, eps: float = 1e-5) -> Tensor:
    """Normalize each channel of each example over its positions; x is (batch, channels, spatial...)."""
    x = _float(x, "instance_norm", 3)
    normal = _standard(x, tuple(range(2, x.ndim)), eps)
    return _scaled("instance_norm", normal, scale, shift, *_channels(x))


@function
@in_float32
def local_response_norm(
    x: ArrayLike, size: int = 5, *, alpha: float = 1e-4, beta: float = 0.75, k: float = 1.0
) -> Tensor:
    """Each element divided by (k + alpha * mean of squares over `size` neighbouring channels) ** beta."""
    x = _float(x, "local_response_norm", 2)
    size = whole("local_response_norm", "number of channels", size, least=1)
    window = _one_axis(x, 1, size)
    return x / (k + (alpha / size) * window_sum(x * x, *window)) ** beta


def _one_axis(x: Tensor, axis: int, size: int) -> tuple[Any, ...]:
    """A centred window along one axis, padded so that the size does not change."""
    ones = (1,) * x.ndim
    sizes = tuple(size if i == axis else 1 for i in range(x.ndim))
    padding = tuple((size // 2, (size - 1) // 2) if i == axis else (0, 0) for i in range(x.ndim))
    return sizes, ones, padding, ones


@function
@in_float32
def local_contrast_norm(x: ArrayLike, size: int | Sequence[int] = 9, *, eps: float = 1e-4) -> Tensor:
    """Subtract the mean of the neighbourhood over all channels, and divide by its standard deviation (at least eps).

    The neighbourhood is a box of `size` around each position, clipped at the border of the image.
    """
    x = _float(x, "local_contrast_norm", 3)
    sizes = per_axis("local_contrast_norm", "size", size, x.ndim - 2)
    window = (
        (1, 1, *sizes), (1,) * x.ndim, ((0, 0), (0, 0), *((s // 2, (s - 1) // 2) for s in sizes)), (1,) * x.ndim,
    )  # fmt: skip
    count = window_sum(ones((1, 1, *x.shape[2:]), dtype=x.dtype), *window)
    centred = x - window_sum(mean(x, axis=1, keepdims=True), *window) / count
    spread = sqrt(window_sum(mean(centred * centred, axis=1, keepdims=True), *window) / count + eps * eps)
    return centred / spread
