"""Argument checks of layers, whose error messages name the layer."""

from __future__ import annotations

from typing import Any

from ..errors import UserError
from ..knobs import preference
from ..ops.conv import Padding, Sizes, normal_padding, per_axis
from ..ops.declare import whole
from ..tensor import ArrayLike, Tensor, as_tensor


def check_count(layer: str, what: str, value: Any) -> int:
    """Check a number of features, channels or groups: 1 or more."""
    return whole(layer, f"number of {what}", value, least=1)


def check_optional_count(layer: str, what: str, value: Any) -> int | None:
    """Check a count, or None: inferred from the first input."""
    return None if value is None else check_count(layer, what, value)


def check_rate(layer: str, value: float) -> float:
    """Check a dropout rate in [0, 1)."""
    if not 0.0 <= value < 1.0:
        raise UserError(layer, f"a rate in [0, 1) is required, got {value}.")
    return float(value)


def check_at_least(layer: str, what: str, value: float, least: float = 0.0) -> float:
    """Check that a number is at least `least`."""
    if not value >= least:
        raise UserError(layer, f"the {what} must be {least:g} or more, got {value}.")
    return float(value)


def check_above(layer: str, what: str, value: float, least: float = 0.0) -> float:
    """Check that a number is greater than `least`."""
    if not value > least:
        raise UserError(layer, f"the {what} must be above {least:g}, got {value}.")
    return float(value)


def check_sizes(layer: str, what: str, value: Sizes, rank: int, least: int = 1) -> int | tuple[int, ...]:
    """Check an int, or one per spatial dimension, and return it as given."""
    values = per_axis(layer, what, value, rank, least)
    return values[0] if isinstance(value, int) else values


def check_padding(layer: str, value: Padding, rank: int) -> Any:
    """Check a padding and return it as given, lists as tuples."""
    ones = (1,) * rank
    pairs = normal_padding(layer, value, ones, ones, ones, ones)
    return value if isinstance(value, int | str) else pairs


def check_algorithm(layer: str, value: str | None) -> str | None:
    """Check a convolution algorithm preference, or None: the global preference at the time of the call."""
    try:
        return None if value is None else preference(value)
    except ValueError as error:
        raise UserError(layer, f"algorithm {value!r}: {error}.") from None


def check_groups(layer: str, what: str, value: int | None, groups: int) -> None:
    """Check that channels can be split into groups."""
    if value is not None and value % groups:
        raise UserError(layer, f"{value} {what} cannot be divided into {groups} groups.")


def check_spatial(layer: str, x: ArrayLike, rank: int) -> Tensor:
    """Check an input with `rank` spatial dimensions."""
    x = as_tensor(x)
    if x.ndim != rank + 2:
        places = ", ".join(("depth", "height", "width")[-rank:]) if rank > 1 else "length"
        raise UserError(layer, f"an input (batch, channels, {places}) is required, got shape {x.shape}.")
    return x


def feature_size(layer: str, x: ArrayLike, axis: int) -> int:
    """The number of channels (axis 1) or features (axis -1) of an input."""
    shape = as_tensor(x).shape
    if len(shape) < (2 if axis == 1 else 1):
        wanted = "(batch, channels, ...)" if axis == 1 else "(..., features)"
        raise UserError(layer, f"an input {wanted} is required, got shape {shape}.")
    return shape[axis]


def check_channels(layer: str, x: ArrayLike, expected: int, axis: int = 1) -> Tensor:
    """Check that an input has the expected number of channels or features."""
    x = as_tensor(x)
    if feature_size(layer, x, axis) != expected:
        what = "features in the last dimension" if axis == -1 else "channels"
        raise UserError(layer, f"an input with {expected} {what} is required, got shape {x.shape}.")
    return x
