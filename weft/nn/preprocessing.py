"""Preprocessing layers: normalization, resizing, cropping, category encoding, discretization.

Their statistics of the data, such as the mean, are state: `adapt` computes them from examples, they are saved and loaded
with the network, and training does not change them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Self

import numpy as np

from ..dtypes import int64
from ..errors import UserError
from ..ops.conv import Sizes, per_axis
from ..ops.convert import asarray
from ..ops.creation import one_hot
from ..ops.declare import accept, as_float, normal_axis
from ..ops.elementwise import astype, maximum
from ..ops.indexing import take
from ..ops.movement import expand_dims, reshape, slice_
from ..ops.reduce import max, sum
from ..tensor import ArrayLike, Tensor, as_tensor
from . import checks
from .module import Module, Unknown, state

Values = float | Sequence[float]


class Rescaling(Module):
    """y = scale x + offset

    >>> Rescaling(0.25, -1.0)(as_tensor([0, 4, 8])).tolist()
    [-1.0, 0.0, 1.0]
    """

    def __init__(self, scale: float, offset: float = 0.0) -> None:
        for what, value in (("scale", scale), ("offset", offset)):
            if not np.isfinite(value):
                raise UserError("Rescaling", f"the {what} must be finite, got {value}.")
        self.scale, self.offset = float(scale), float(offset)

    def forward(self, x: ArrayLike) -> Tensor:
        return as_float(as_tensor(x), "Rescaling") * self.scale + self.offset


class Normalization(Module):
    """y = (x - mean) / max(std, eps), with a mean and a std per entry of an axis; axis None: one for all.

    They are passed, or computed by `adapt`. Until then the layer is the identity: the mean is 0 and the std 1.

    >>> layer = Normalization().adapt([[1.0, 10.0], [3.0, 30.0]])
    >>> layer([[2.0, 40.0]]).tolist()
    [[0.0, 2.0]]
    """

    def __init__(
        self,
        features: int | None = None,
        *,
        axis: int | None = 1,
        mean: Values | None = None,
        std: Values | None = None,
        eps: float = 1e-7,
    ) -> None:
        features = checks.check_optional_count("Normalization", "features", features)
        if std is not None and not np.all(np.asarray(std) >= 0.0):
            raise UserError("Normalization", f"a std of 0 or more is required, got {std}.")
        self.axis, self.eps = axis, checks.check_above("Normalization", "eps", eps)
        shape = _statistics_shape(axis, features, mean, std)
        self.mean: Any = state(shape, _start(0.0 if mean is None else mean))
        self.std: Any = state(shape, _start(1.0 if std is None else std))

    def sizes(self, x: ArrayLike) -> Mapping[str, tuple[int, ...]]:
        return dict.fromkeys(("mean", "std"), self._entries(as_tensor(x).shape))

    def forward(self, x: ArrayLike) -> Tensor:
        x = _numeric("Normalization", x, self.mean)
        if self._entries(x.shape) != self.mean.shape:
            raise UserError(
                "Normalization",
                f"an input with {self.mean.size} entries along axis {self.axis} is required, got shape {x.shape}.",
            )
        return (x - self._broadcastable(x, self.mean)) / maximum(self._broadcastable(x, self.std), self.eps)

    def adapt(self, data: ArrayLike) -> Self:
        """Compute the mean and the std (population, divided by n) from one array of examples."""
        values = _array("Normalization.adapt", data)
        entries = self._entries(values.shape)
        others = tuple(i for i in range(values.ndim) if self.axis is None or i != self.axis % values.ndim)
        found = {"mean": values.mean(others), "std": values.std(others)}
        for name, value in found.items():
            own = getattr(self, name)
            if isinstance(own, Unknown):
                setattr(self, name, own := state(entries))
            if own.shape != value.shape:
                raise UserError(
                    "Normalization.adapt", f"{own.size} entries along axis {self.axis} are required, got {entries[0]}."
                )
            own.assign(asarray(value, dtype=own.dtype))
        return self

    def _entries(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        return () if self.axis is None else (shape[normal_axis("Normalization", self.axis, len(shape))],)

    def _broadcastable(self, x: Tensor, values: Tensor) -> Tensor:
        """The mean or std in a shape that broadcasts over x."""
        return values if self.axis is None else _along_axis(values, x.ndim, self.axis % x.ndim)


def _statistics_shape(
    axis: int | None, features: int | None, mean: Values | None, std: Values | None
) -> tuple[int | None, ...]:
    """The shape of the mean and the std, which must agree."""
    shapes = [np.shape(v) for v in (mean, std) if v is not None]
    known = {s[0] for s in shapes if len(s) == 1} | ({features} if features is not None else set())
    if len(known) > 1 or (axis is None and known) or any(len(s) > 1 for s in shapes):
        raise UserError(
            "Normalization",
            f"numbers, or one for each feature along an axis, are required, got features={features}, axis={axis}, "
            f"mean={mean}, std={std}.",
        )
    return () if axis is None else (known.pop() if known else None,)


def _start(value: Values) -> Any:
    """The initial value of given state: one number, or one per entry."""
    return float(value) if isinstance(value, int | float) else lambda shape: np.broadcast_to(np.asarray(value), shape)


def _numeric(layer: str, x: ArrayLike, beside: Tensor) -> Tensor:
    """A numeric input; integers are converted to the dtype of the layer's state."""
    x = as_tensor(x)
    accept(layer, x.dtype, "numeric")
    return x if x.dtype.is_float else astype(x, beside.dtype)


def _array(where: str, data: ArrayLike) -> np.ndarray:
    """Examples for `adapt`, in float64."""
    values = (data if isinstance(data, np.ndarray) else as_tensor(data).numpy()).astype(np.float64)
    if not values.size or not np.isfinite(values).all():
        raise UserError(where, f"finite examples, at least one, are required, got an array of shape {values.shape}.")
    return values


def _along_axis(values: Tensor, ndim: int, axis: int) -> Tensor:
    """A vector in a shape that broadcasts over the other axes."""
    return reshape(values, tuple(-1 if i == axis else 1 for i in range(ndim)))


# --- images ------------------------------------------------------------------------------------------------------------------


class Resizing(Module):
    """Resize to one size for all spatial dimensions, or to (height, width).

    Result i of m is at p = (i + 1/2) n / m - 1/2 of the n elements: interpolated linearly ("bilinear"), or the nearest
    element ("nearest", which preserves integers). There is no antialiasing.

    >>> Resizing(2, "nearest")(as_tensor([[[1, 2, 3, 4, 5, 6]]])).tolist()
    [[[2, 5]]]
    """

    def __init__(self, size: Sizes, mode: str = "bilinear") -> None:
        self.size = checks.check_sizes("Resizing", "size", size, len(size) if isinstance(size, Sequence) else 1)
        if mode not in ("bilinear", "nearest"):
            raise UserError("Resizing", f"the mode must be 'bilinear' or 'nearest', got {mode!r}.")
        self.mode = mode

    def forward(self, x: ArrayLike) -> Tensor:
        x = _image("Resizing", x)
        if self.mode == "bilinear":
            x = as_float(x, "Resizing")
        for axis, size in enumerate(per_axis("Resizing", "size", self.size, x.ndim - 2), 2):
            if size != x.shape[axis]:
                x = _nearest(x, axis, size) if self.mode == "nearest" else _linear_interpolation(x, axis, size)
        return x


def _image(layer: str, x: ArrayLike) -> Tensor:
    x = as_tensor(x)
    if x.ndim < 3 or 0 in x.shape[2:]:
        raise UserError(layer, f"an input (batch, channels, spatial...) is required, got shape {x.shape}.")
    return x


def _nearest(x: Tensor, axis: int, size: int) -> Tensor:
    places = (2 * np.arange(size) + 1) * x.shape[axis] // (2 * size)  # in integers, because cell borders are sharp
    return take(x, asarray(places), axis=axis)


def _linear_interpolation(x: Tensor, axis: int, size: int) -> Tensor:
    """Linear interpolation by two gathers: a matrix product would multiply many zeros and spread nan and inf."""
    n = x.shape[axis]
    places = np.clip((np.arange(size) + 0.5) * n / size - 0.5, 0.0, n - 1.0)
    before = np.floor(places).astype(np.int64)
    share = _along_axis(asarray((places - before).astype(x.dtype.numpy)), x.ndim, axis)
    low, high = (take(x, asarray(np.minimum(before + i, n - 1)), axis=axis) for i in (0, 1))
    return low * (1.0 - share) + high * share


class CenterCrop(Module):
    """Crop the centre, to one size for all spatial dimensions or to (height, width).

    >>> CenterCrop(2)(as_tensor([[[1, 2, 3, 4, 5]]])).tolist()
    [[[2, 3]]]
    """

    def __init__(self, size: Sizes) -> None:
        self.size = checks.check_sizes("CenterCrop", "size", size, len(size) if isinstance(size, Sequence) else 1)

    def forward(self, x: ArrayLike) -> Tensor:
        x = _image("CenterCrop", x)
        size = per_axis("CenterCrop", "size", self.size, x.ndim - 2)
        if any(n < m for n, m in zip(x.shape[2:], size, strict=True)):
            raise UserError(
                "CenterCrop", f"an image of at least {size} is required, got shape {x.shape}. Resize it first."
            )
        starts = (0, 0, *((n - m) // 2 for n, m in zip(x.shape[2:], size, strict=True)))
        stops = (*x.shape[:2], *(start + m for start, m in zip(starts[2:], size, strict=True)))
        return slice_(x, starts, stops, (1,) * x.ndim)


# --- categories --------------------------------------------------------------------------------------------------------------


class CategoryEncoding(Module):
    """Encode categories 0 to count - 1 as vectors: one per category ("one_hot"), or one for the whole last axis.

    The latter marks the categories that occur ("multi_hot": 0 or 1), or counts them ("count"). Others are ignored.

    >>> CategoryEncoding(3, "count")(as_tensor([[0, 2, 2, -1]])).tolist()
    [[1.0, 0.0, 2.0]]
    """

    def __init__(self, count: int, mode: str = "one_hot") -> None:
        if mode not in ("one_hot", "multi_hot", "count"):
            raise UserError("CategoryEncoding", f"the mode must be 'one_hot', 'multi_hot' or 'count', got {mode!r}.")
        self.count, self.mode = checks.check_count("CategoryEncoding", "categories", count), mode

    def forward(self, x: ArrayLike) -> Tensor:
        x = as_tensor(x)
        accept("CategoryEncoding", x.dtype, "integer")
        if self.mode == "one_hot":
            return one_hot(x, self.count)
        if x.ndim < 1 or not x.shape[-1]:
            raise UserError("CategoryEncoding", f"an input (..., categories) is required, got shape {x.shape}.")
        return (max if self.mode == "multi_hot" else sum)(one_hot(x, self.count), axis=-2)


class Discretization(Module):
    """Replace numbers by bin indices: y = the number of edges <= x, from 0 to the number of edges.

    The edges are passed, or computed by `adapt` for a number of bins: until then everything is in bin 0, as nan always is.

    >>> Discretization([0.0, 1.0])([-0.5, 0.0, 0.5, 7.0]).tolist()
    [0, 1, 1, 2]
    """

    def __init__(self, edges: Sequence[float] | None = None, *, bins: int | None = None) -> None:
        if (edges is None) == (bins is None):
            raise UserError("Discretization", f"either edges or bins are required, got {edges} and {bins}.")
        if edges is None:
            self.edges: Any = state((_bins("Discretization", bins) - 1,), float("nan"))
            return
        values = np.asarray(edges, np.float64)
        if values.ndim != 1 or not values.size or not np.all(np.diff(values) > 0.0):
            raise UserError("Discretization", f"edges, each above the one before, are required, got {edges}.")
        self.edges = state(values.shape, lambda shape: values)

    def forward(self, x: ArrayLike) -> Tensor:
        x = expand_dims(_numeric("Discretization", x, self.edges), axis=-1)
        return sum(astype(x >= self.edges, int64), axis=-1)

    def adapt(self, data: ArrayLike, bins: int | None = None) -> Self:
        """Compute the edges as quantiles of the examples, for the layer's or the given number of bins."""
        bins = self.edges.size + 1 if bins is None else _bins("Discretization.adapt", bins)
        edges = np.quantile(_array("Discretization.adapt", data), np.arange(1, bins) / bins)
        if self.edges.size != bins - 1:
            self.edges = astype(state((bins - 1,)), self.edges.dtype).realize()
        self.edges.assign(asarray(edges, dtype=self.edges.dtype))
        return self


def _bins(where: str, bins: Any) -> int:
    if checks.check_count(where, "bins", bins) < 2:
        raise UserError(where, "2 or more bins are required, got 1.")
    return int(bins)
