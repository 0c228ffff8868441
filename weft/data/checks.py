"""Argument checks of augmentations, whose error messages name the augmentation."""

from __future__ import annotations

from collections.abc import Sequence

from ..errors import UserError
from ..ops.conv import per_axis
from ..tensor import ArrayLike, Tensor, as_tensor

Range = (
    float | Sequence[float]
)  # (low, high), or a number d for (-d, d) or another range that the augmentation documents


def check_range(
    layer: str, what: str, value: Range, least: float = float("-inf"), most: float = float("inf")
) -> tuple[float, float]:
    """Check a range: (low, high), or one number d for (-d, d)."""
    pair = tuple(map(float, value)) if isinstance(value, Sequence) else (0.0 - abs(float(value)), abs(float(value)))
    if len(pair) != 2 or not least <= pair[0] <= pair[1] <= most:
        bounds = "" if (least, most) == (float("-inf"), float("inf")) else f" between {least:g} and {most:g}"
        raise UserError(layer, f"the {what} must be low <= high{bounds}, got {value!r}.")
    return pair[0], pair[1]


def check_probability(layer: str, p: float) -> float:
    """Check a probability."""
    if not 0.0 <= p <= 1.0:
        raise UserError(layer, f"a probability in [0, 1] is required, got {p}.")
    return float(p)


def check_size(layer: str, size: int | Sequence[int]) -> tuple[int, int]:
    """Check an image size: (height, width), or one number for both."""
    height, width = per_axis(layer, "size", size, 2)
    return height, width


def check_images(layer: str, x: ArrayLike, floats: bool = True) -> Tensor:
    """Check a batch of images, of a float dtype if `floats`."""
    x = as_tensor(x)
    if x.ndim != 4:
        raise UserError(layer, f"images (batch, channels, height, width) are required, got shape {x.shape}.")
    if floats:
        check_float(layer, x)
    return x


def check_float(layer: str, x: Tensor) -> None:
    """Check for a float dtype, which interpolation requires."""
    if not x.dtype.is_float:
        raise UserError(layer, f"pixels of a float dtype are required, got {x.dtype.name}. Put ToFloat() before it.")


def check_channels(layer: str, x: ArrayLike) -> Tensor:
    """Check a batch of RGB or grayscale images."""
    x = check_images(layer, x)
    if x.shape[1] not in (1, 3):
        raise UserError(layer, f"images with 1 or 3 channels are required, got shape {x.shape}.")
    return x
