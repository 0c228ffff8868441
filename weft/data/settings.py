"""Checks of what augmentations are given, with texts that name the augmentation."""

from __future__ import annotations

from collections.abc import Sequence

from ..errors import UserError
from ..ops.conv import per_axis
from ..tensor import ArrayLike, Tensor, as_tensor

Range = float | Sequence[float]  # a number d for -d..d (or another range that the augmentation says), or (low, high)


def span(
    layer: str, what: str, value: Range, least: float = float("-inf"), most: float = float("inf")
) -> tuple[float, float]:
    """A range: (low, high), or one number d for (-d, d)."""
    pair = tuple(map(float, value)) if isinstance(value, Sequence) else (0.0 - abs(float(value)), abs(float(value)))
    if len(pair) != 2 or not least <= pair[0] <= pair[1] <= most:
        bounds = "" if (least, most) == (float("-inf"), float("inf")) else f" between {least:g} and {most:g}"
        raise UserError(layer, f"the {what} must be low <= high{bounds}, got {value!r}.")
    return pair[0], pair[1]


def chance(layer: str, p: float) -> float:
    """A probability."""
    if not 0.0 <= p <= 1.0:
        raise UserError(layer, f"a probability in [0, 1] is required, got {p}.")
    return float(p)


def size_of(layer: str, size: int | Sequence[int]) -> tuple[int, int]:
    """The size of a picture: (height, width), or one number for both."""
    height, width = per_axis(layer, "size", size, 2)
    return height, width


def pictures(layer: str, x: ArrayLike, floats: bool = True) -> Tensor:
    """A batch of pictures, of a floating dtype where it is computed with."""
    x = as_tensor(x)
    if x.ndim != 4:
        raise UserError(layer, f"pictures (batch, channels, height, width) are required, got shape {x.shape}.")
    if floats:
        floating(layer, x)
    return x


def floating(layer: str, x: Tensor) -> None:
    """Pixels that can lie between others."""
    if not x.dtype.is_float:
        raise UserError(layer, f"pixels of a floating dtype are required, got {x.dtype.name}. Put ToFloat() before it.")


def coloured(layer: str, x: ArrayLike) -> Tensor:
    """Pictures in red, green and blue, or in grey."""
    x = pictures(layer, x)
    if x.shape[1] not in (1, 3):
        raise UserError(layer, f"pictures with 1 or 3 channels are required, got shape {x.shape}.")
    return x
