"""`Resize` in all its modes, and `Upsample`: along each axis in turn, every result is a weighted sum of a few elements.

Which elements and weights, is computed on the host from the sizes. Nearest neighbours are a plain gather.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from ...errors import UserError
from ...ops.contract import tensordot
from ...ops.elementwise import astype, where
from ...ops.indexing import take
from ...ops.movement import moveaxis, reshape
from ...records import dataclass
from ...tensor import Tensor
from ..registry import op
from ..values import tensor

Ints = tuple[int, ...]
MOST_TAPS = 8  # with more, a product with a matrix is faster than gathers


@dataclass(frozen=True)
class Method:
    """The settings of a Resize."""

    mode: str = "nearest"
    coordinates: str = "half_pixel"
    nearest: str = "round_prefer_floor"
    cubic: float = -0.75
    exclude_outside: bool = False
    antialias: bool = False


def _positions(method: Method, n: int, m: int, scale: float, start: float, end: float) -> np.ndarray:
    """Where each of m results lies among n elements."""
    x = np.arange(m, dtype=np.float64)
    kind = method.coordinates
    length = scale * n  # of the result, before it is rounded down to m
    if kind == "half_pixel" or (kind == "pytorch_half_pixel" and m > 1):
        return (x + 0.5) / scale - 0.5
    if kind == "half_pixel_symmetric":
        adjustment = m / (scale * n)
        return n / 2 * (1 - adjustment) + (x + 0.5) / scale - 0.5
    if kind == "pytorch_half_pixel":
        return np.zeros(m)
    if kind == "align_corners":
        return x * (n - 1) / (length - 1) if m > 1 else np.zeros(m)
    if kind == "asymmetric":
        return x / scale
    if kind == "tf_half_pixel_for_nn":
        return (x + 0.5) / scale
    if kind == "tf_crop_and_resize":
        if m > 1:
            return start * (n - 1) + x * (end - start) * (n - 1) / (length - 1)
        return np.full(m, 0.5 * (start + end) * (n - 1))
    raise UserError("onnx", f"a known coordinate_transformation_mode is required, got {kind!r}.")


_NEAREST: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "round_prefer_floor": lambda x: np.ceil(x - 0.5),
    "round_prefer_ceil": lambda x: np.floor(x + 0.5),
    "floor": np.floor,
    "ceil": np.ceil,
}


def _kernel(method: Method) -> tuple[Callable[[np.ndarray], np.ndarray], int]:
    """The weight of an element at a distance, and how far it reaches."""
    if method.mode == "linear":
        return lambda t: np.maximum(1 - np.abs(t), 0), 1
    a = method.cubic

    def cubic(t: np.ndarray) -> np.ndarray:
        d = np.abs(t)
        near = ((a + 2) * d - (a + 3)) * d * d + 1
        far = ((a * d - 5 * a) * d + 8 * a) * d - 4 * a
        return np.where(d <= 1, near, np.where(d < 2, far, 0))

    return cubic, 2


def _taps(method: Method, x: np.ndarray, n: int, scale: float) -> tuple[np.ndarray, np.ndarray]:
    """Indices and weights, (results, taps) each."""
    if method.mode == "nearest":
        if method.nearest not in _NEAREST:
            raise UserError("onnx", f"a nearest_mode of {', '.join(_NEAREST)} is required, got {method.nearest!r}.")
        index = np.clip(_NEAREST[method.nearest](x), 0, n - 1).astype(np.int64)
        return index[:, None], np.ones((x.size, 1))
    kernel, reach = _kernel(method)
    shrink = min(scale, 1.0) if method.antialias else 1.0
    radius = math.ceil(reach / shrink)
    index = np.floor(x)[:, None] + np.arange(1 - radius, radius + 1)
    weights = kernel((index - x[:, None]) * shrink)
    if method.exclude_outside:
        weights = np.where((index >= 0) & (index < n), weights, 0)
    if method.exclude_outside or method.antialias:
        weights = weights / weights.sum(1, keepdims=True)
    return np.clip(index, 0, n - 1).astype(np.int64), weights


def _along_axis(x: Tensor, axis: int, index: np.ndarray, weights: np.ndarray) -> Tensor:
    if (index.shape[1] == 1 and (weights == 1).all()) or index.shape[0] == 0:
        return take(x, tensor(index[:, 0]), axis=axis)
    if index.shape[1] > MOST_TAPS:
        matrix = np.zeros((index.shape[0], x.shape[axis]))
        np.add.at(matrix, (np.arange(index.shape[0])[:, None], index), weights)
        product = tensordot(x, tensor(matrix.astype(x.dtype.numpy)), axes=((axis,), (1,)))
        return moveaxis(product, -1, axis)
    shape = [-1 if i == axis else 1 for i in range(x.ndim)]
    parts = [
        take(x, tensor(index[:, k]), axis=axis) * reshape(tensor(weights[:, k].astype(x.dtype.numpy)), shape)
        for k in range(index.shape[1])
        if weights[:, k].any()
    ]
    return sum(parts[1:], parts[0])


def resized(
    x: Tensor,
    sizes: Sequence[int],
    scales: Sequence[float],
    method: Method,
    roi: Sequence[tuple[float, float]],
    extrapolation: float = 0.0,
) -> Tensor:
    """Resize every axis to its size."""
    if method.mode not in ("nearest", "linear", "cubic"):
        raise UserError("onnx", f"the mode nearest, linear or cubic is required, got {method.mode!r}.")
    y = astype(x, "float32") if method.mode != "nearest" and not (x.dtype.is_float and not x.dtype.is_half) else x
    beyond = np.zeros((1,) * x.ndim, bool)
    crops = method.coordinates == "tf_crop_and_resize"
    for axis, (m, scale, (start, end)) in enumerate(zip(sizes, scales, roi, strict=True)):
        n = x.shape[axis]
        if n == m and scale == 1 and (start, end) == (0.0, 1.0):
            continue
        place = _positions(method, n, m, scale, start, end)
        y = _along_axis(y, axis, *_taps(method, place, n, scale))
        outside = (place < 0) | (place > n - 1)
        if crops and outside.any():
            beyond = beyond | outside.reshape([-1 if i == axis else 1 for i in range(x.ndim)])
    if beyond.any():
        y = where(tensor(beyond), extrapolation, y)
    return astype(y, x.dtype)


def _full(values: Sequence[float], axes: Sequence[int], rank: int, default: float) -> list[float]:
    found = [default] * rank
    for axis, value in zip(axes, values, strict=True):
        found[axis] = value
    return found


@op("Resize", since=10, host=("scales",))
def resize_by_scales(x: Tensor, scales: np.ndarray, *, mode: str = "nearest") -> Tensor:
    """Opset 10: results lie at multiples of 1 / scale."""
    return _upsampled(x, scales.astype(np.float64).tolist(), mode)


def _upsampled(x: Tensor, scales: Sequence[float], mode: str) -> Tensor:
    method = Method({"bilinear": "linear"}.get(mode, mode), "asymmetric", "floor")
    sizes = [math.floor(n * s) for n, s in zip(x.shape, scales, strict=True)]
    return resized(x, sizes, scales, method, [(0.0, 1.0)] * x.ndim)


@op("Upsample")
def upsample_by_attribute(x: Tensor, *, scales: tuple[float, ...], mode: str = "nearest") -> Tensor:
    return _upsampled(x, scales, mode)


op("Upsample", since=9, host=("scales",))(resize_by_scales)


@op("Resize", since=11, host=("roi", "scales", "sizes"))
def resize(
    x: Tensor,
    roi: np.ndarray | None = None,
    scales: np.ndarray | None = None,
    sizes: np.ndarray | None = None,
    *,
    antialias: int = 0,
    axes: Ints | None = None,
    coordinate_transformation_mode: str = "half_pixel",
    cubic_coeff_a: float = -0.75,
    exclude_outside: int = 0,
    extrapolation_value: float = 0.0,
    keep_aspect_ratio_policy: str = "stretch",
    mode: str = "nearest",
    nearest_mode: str = "round_prefer_floor",
) -> Tensor:
    method = Method(
        mode, coordinate_transformation_mode, nearest_mode, cubic_coeff_a, bool(exclude_outside), bool(antialias)
    )
    along = list(range(x.ndim)) if axes is None else [a % x.ndim for a in axes]
    if scales is not None and scales.size:
        factors = _full(scales.astype(np.float64).tolist(), along, x.ndim, 1.0)
        wanted = [math.floor(n * s) for n, s in zip(x.shape, factors, strict=True)]
    elif sizes is not None and sizes.size:
        wanted, factors = _from_sizes(x.shape, sizes.tolist(), along, keep_aspect_ratio_policy)
    else:
        raise UserError("onnx", "Resize needs scales or sizes, got none.")
    parts = [(0.0, 1.0)] * x.ndim
    if coordinate_transformation_mode == "tf_crop_and_resize" and roi is not None and roi.size:
        edges = roi.astype(np.float64).tolist()
        for i, axis in enumerate(along):
            parts[axis] = (edges[i], edges[i + len(along)])
    return resized(x, wanted, factors, method, parts, extrapolation_value)


def _from_sizes(shape: Ints, sizes: list[int], axes: list[int], policy: str) -> tuple[list[int], list[float]]:
    ratios = [size / shape[a] for size, a in zip(sizes, axes, strict=True)]
    if policy != "stretch":
        ratio = min(ratios) if policy == "not_larger" else max(ratios)
        sizes = [math.floor(ratio * shape[a] + 0.5) for a in axes]
        ratios = [ratio] * len(axes)
    wanted = list(shape)
    for axis, size in zip(axes, sizes, strict=True):
        wanted[axis] = size
    return wanted, _full(ratios, axes, len(shape), 1.0)
