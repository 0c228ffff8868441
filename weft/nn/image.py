"""Layers for spatial dimensions: padding, cropping, upsampling, pixel and channel shuffles."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from ..errors import UserError
from ..ops.conv import Padding, Sizes, normal_padding, per_axis
from ..ops.declare import whole
from ..ops.movement import cut, pad, permute_dims, reshape, slice_, stack
from ..ops.selection import repeat
from ..tensor import ArrayLike, Tensor, as_tensor
from . import checks
from .module import Module


def _border(layer: str, given: Any) -> Any:
    """Check a padding and return it as given: an int, or an int or a pair (before, behind) per spatial dimension."""
    if isinstance(given, str):
        raise UserError(layer, f"an int, or an int or a pair for each spatial dimension, is required, got {given!r}.")
    return checks.check_padding(layer, given, len(given) if isinstance(given, Sequence) else 1)


def _pairs(layer: str, x: Tensor, border: Padding) -> tuple[tuple[int, int], ...]:
    if x.ndim < 3:
        raise UserError(layer, f"an input (batch, channels, spatial...) is required, got shape {x.shape}.")
    ones = (1,) * (x.ndim - 2)
    return normal_padding(layer, border, ones, ones, ones, ones)


class _Pad(Module):
    """Base class of padding layers."""

    mode: ClassVar[str]

    def __init__(self, padding: Padding) -> None:
        self.padding = _border(type(self).__name__, padding)

    def forward(self, x: ArrayLike) -> Tensor:
        x = as_tensor(x)
        return pad(x, ((0, 0), (0, 0), *_pairs(type(self).__name__, x, self.padding)), self.mode)


class ZeroPad(_Pad):
    """Zero padding: an int, or an int or a pair (before, behind) per spatial dimension."""

    mode = "constant"


class ReflectPad(_Pad):
    """Reflection padding, without repeating the outermost elements: c b | a b c | b a."""

    mode = "reflect"


class ReplicatePad(_Pad):
    """Replication padding with the outermost elements: a a | a b c | c c."""

    mode = "edge"


class CircularPad(_Pad):
    """Circular padding: b c | a b c | a b."""

    mode = "wrap"


class Crop(Module):
    """Crop a border: an int, or an int or a pair (before, behind) per spatial dimension."""

    def __init__(self, border: Padding) -> None:
        self.border = _border("Crop", border)

    def forward(self, x: ArrayLike) -> Tensor:
        x = as_tensor(x)
        pairs = ((0, 0), (0, 0), *_pairs("Crop", x, self.border))
        stops = tuple(n - hi for n, (_, hi) in zip(x.shape, pairs, strict=True))
        if any(lo >= stop for (lo, _), stop in zip(pairs[2:], stops[2:], strict=True)):
            raise UserError("Crop", f"nothing is left of shape {x.shape} without a border of {self.border}.")
        return slice_(x, tuple(lo for lo, _ in pairs), stops, (1,) * x.ndim)


class Upsample(Module):
    """Upsample by an integer factor: repeat each element ("nearest"), or interpolate linearly ("bilinear").

    Bilinear: result i is at (i + 1/2) / scale - 1/2 of the input, with the outermost elements replicated beyond the border.
    """

    def __init__(self, scale: Sizes, mode: str = "nearest") -> None:
        self.scale = checks.check_sizes("Upsample", "scale", scale, len(scale) if isinstance(scale, Sequence) else 1)
        if mode not in ("nearest", "bilinear"):
            raise UserError("Upsample", f"the mode must be 'nearest' or 'bilinear', got {mode!r}.")
        self.mode = mode

    def forward(self, x: ArrayLike) -> Tensor:
        x = as_tensor(x)
        enlarge = repeat if self.mode == "nearest" else _interpolate
        for axis, scale in enumerate(per_axis("Upsample", "scale", self.scale, x.ndim - 2), 2):
            x = enlarge(x, scale, axis=axis)
        return x


def _interpolate(x: Tensor, scale: int, *, axis: int) -> Tensor:
    """Linear interpolation along an axis by a factor `scale`: each element yields `scale` results."""
    if scale == 1:
        return x
    n = x.shape[axis]
    widths = [(1, 1) if i == axis else (0, 0) for i in range(x.ndim)]
    wide = pad(x, widths, "edge")
    before, behind = cut(wide, axis, 0, n), cut(wide, axis, 2, n + 2)
    phases = [(i + 0.5) / scale - 0.5 for i in range(scale)]
    results = [x * (1.0 + p) - before * p if p < 0.0 else x * (1.0 - p) + behind * p for p in phases]
    return reshape(stack(results, axis=axis + 1), (*x.shape[:axis], n * scale, *x.shape[axis + 1 :]))


class PixelShuffle(Module):
    """(batch, c * scale**2, h, w) becomes (batch, c, h * scale, w * scale): channels become pixels (Shi et al. 2016)."""

    def __init__(self, scale: int) -> None:
        self.scale = whole("PixelShuffle", "scale", scale, least=1)

    def forward(self, x: ArrayLike) -> Tensor:
        n, c, h, w = (x := checks.check_spatial("PixelShuffle", x, 2)).shape
        s = self.scale
        if c % s**2:
            raise UserError("PixelShuffle", f"channels in multiples of {s**2} are required, got shape {x.shape}.")
        parts = permute_dims(reshape(x, (n, c // s**2, s, s, h, w)), (0, 1, 4, 2, 5, 3))
        return reshape(parts, (n, c // s**2, h * s, w * s))


class PixelUnshuffle(Module):
    """(batch, c, h * scale, w * scale) becomes (batch, c * scale**2, h, w): pixels become channels."""

    def __init__(self, scale: int) -> None:
        self.scale = whole("PixelUnshuffle", "scale", scale, least=1)

    def forward(self, x: ArrayLike) -> Tensor:
        n, c, h, w = (x := checks.check_spatial("PixelUnshuffle", x, 2)).shape
        s = self.scale
        if h % s or w % s:
            raise UserError(
                "PixelUnshuffle", f"height and width in multiples of {s} are required, got shape {x.shape}."
            )
        parts = permute_dims(reshape(x, (n, c, h // s, s, w // s, s)), (0, 1, 3, 5, 2, 4))
        return reshape(parts, (n, c * s**2, h // s, w // s))


class ChannelShuffle(Module):
    """Interleave the channels of all groups (Zhang et al. 2018)."""

    def __init__(self, groups: int) -> None:
        self.groups = checks.check_count("ChannelShuffle", "groups", groups)

    def forward(self, x: ArrayLike) -> Tensor:
        x = as_tensor(x)
        if x.ndim < 2:
            raise UserError("ChannelShuffle", f"an input (batch, channels, ...) is required, got shape {x.shape}.")
        checks.check_groups("ChannelShuffle", "channels", x.shape[1], self.groups)
        parts = reshape(x, (x.shape[0], self.groups, x.shape[1] // self.groups, *x.shape[2:]))
        return reshape(permute_dims(parts, (0, 2, 1, *range(3, parts.ndim))), x.shape)
