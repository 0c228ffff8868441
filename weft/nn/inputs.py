"""Layers at the entrance of a network: raw numbers brought to a scale, images to a size, categories to vectors.

What they know of the data, such as its mean, is state: it is learned by `adapt` from examples, saved and loaded with the
network, and no step of training changes it.
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
    """y = (x - mean) / max(std, eps), with a mean and a std for each entry of an axis; axis None: one for everything.

    They are given, or learned by `adapt`. Until then nothing changes: the mean is 0 and the std 1.

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
        shape = _one_for_each(axis, features, mean, std)
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
        return (x - self._beside(x, self.mean)) / maximum(self._beside(x, self.std), self.eps)

    def adapt(self, data: ArrayLike) -> Self:
        """Learn the mean and the std (of all examples, not of a sample: divided by n) from one array of examples."""
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

    def _beside(self, x: Tensor, values: Tensor) -> Tensor:
        """The mean or std in a shape that broadcasts over x."""
        return values if self.axis is None else _along(values, x.ndim, self.axis % x.ndim)


def _one_for_each(
    axis: int | None, features: int | None, mean: Values | None, std: Values | None
) -> tuple[int | None, ...]:
    """The shape of the mean and the std: what was given must agree."""
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
    """How state begins that is given: a number for all, or each its own."""
    return float(value) if isinstance(value, int | float) else lambda shape: np.broadcast_to(np.asarray(value), shape)


def _numeric(layer: str, x: ArrayLike, beside: Tensor) -> Tensor:
    """An input of numbers; whole ones get the dtype of what the layer knows."""
    x = as_tensor(x)
    accept(layer, x.dtype, "numeric")
    return x if x.dtype.is_float else astype(x, beside.dtype)


def _array(where: str, data: ArrayLike) -> np.ndarray:
    """Examples to learn from, in full precision."""
    values = (data if isinstance(data, np.ndarray) else as_tensor(data).numpy()).astype(np.float64)
    if not values.size or not np.isfinite(values).all():
        raise UserError(where, f"finite examples, at least one, are required, got an array of shape {values.shape}.")
    return values


def _along(values: Tensor, ndim: int, axis: int) -> Tensor:
    """A vector in a shape that broadcasts over the other axes."""
    return reshape(values, tuple(-1 if i == axis else 1 for i in range(ndim)))


# --- images ------------------------------------------------------------------------------------------------------------------


class Resizing(Module):
    """The image at another size, given for all spatial dimensions together or for each: (height, width).

    Result i of m lies at p = (i + 1/2) n / m - 1/2 of the n elements: straight lines between its two neighbours
    ("bilinear"), or the element whose cell it lies in ("nearest", which keeps whole numbers). Nothing is smoothed before.

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
                x = _nearest(x, axis, size) if self.mode == "nearest" else _between(x, axis, size)
        return x


def _image(layer: str, x: ArrayLike) -> Tensor:
    x = as_tensor(x)
    if x.ndim < 3 or 0 in x.shape[2:]:
        raise UserError(layer, f"an input (batch, channels, spatial...) is required, got shape {x.shape}.")
    return x


def _nearest(x: Tensor, axis: int, size: int) -> Tensor:
    places = (2 * np.arange(size) + 1) * x.shape[axis] // (2 * size)  # in whole numbers: cells have sharp borders
    return take(x, asarray(places), axis=axis)


def _between(x: Tensor, axis: int, size: int) -> Tensor:
    """Two gathers: a product with a matrix would do much work for zeros, and spread what is not finite."""
    n = x.shape[axis]
    places = np.clip((np.arange(size) + 0.5) * n / size - 0.5, 0.0, n - 1.0)
    before = np.floor(places).astype(np.int64)
    share = _along(asarray((places - before).astype(x.dtype.numpy)), x.ndim, axis)
    low, high = (take(x, asarray(np.minimum(before + i, n - 1)), axis=axis) for i in (0, 1))
    return low * (1.0 - share) + high * share


class CenterCrop(Module):
    """The middle of the image, in a size given for all spatial dimensions together or for each: (height, width).

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
    """Categories 0 to count - 1 as vectors: one for each ("one_hot"), or one for all of the last axis together.

    The latter say which categories there are ("multi_hot": 0 or 1), or how often ("count"). What is outside counts as none.

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
    """Numbers as the bins they lie in: y = how many edges are not above x, from 0 to the number of edges.

    The edges are given, or they are learned by `adapt`, for so many bins: until then everything is in bin 0, as nan always is.

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
        """Learn edges between which equally many examples lie, for as many bins as there are or as are given."""
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
