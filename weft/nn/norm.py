"""Normalization layers; they differ in the axes over which mean and variance are computed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from ..errors import UserError
from ..ops import normalize as ops
from ..ops.conv import Sizes
from ..ops.declare import as_ints
from ..tensor import ArrayLike, Tensor, as_tensor
from . import checks
from .module import Module, parameter, state
from .statistics_of_ranks import apply_statistics


class BatchNorm(Module):
    """y = (x - mean) / sqrt(var + eps) * scale + shift, for each channel (Ioffe and Szegedy 2015)

    In training mode, mean and var are those of the batch, and the running statistics are updated by `momentum`:
    mean += momentum * (batch_mean - mean), and likewise var, with the unbiased variance of the batch (n / (n - 1)). In
    evaluation mode the running statistics are used. Without `track` there are none: batch statistics are always used. With
    scaled=False, only the shift is learned; with affine=False, neither.
    """

    ranks: ClassVar[tuple[int, ...]] = ()  # accepted ranks of inputs; empty: any

    def __init__(
        self,
        features: int | None = None,
        *,
        eps: float = 1e-5,
        momentum: float = 0.1,
        affine: bool = True,
        scaled: bool = True,
        track: bool = True,
    ) -> None:
        name = type(self).__name__
        features = checks.check_optional_count(name, "features", features)
        if not 0.0 < momentum <= 1.0:
            raise UserError(name, f"a momentum in (0, 1] is required, got {momentum}.")
        self.eps, self.momentum, self.track = checks.check_above(name, "eps", eps), float(momentum), bool(track)
        self.scale = parameter((features,), "ones") if affine and scaled else None
        self.shift = parameter((features,), "zeros") if affine else None
        self.mean: Any = state((features,), "zeros") if track else None
        self.var: Any = state((features,), "ones") if track else None

    def sizes(self, x: ArrayLike) -> Mapping[str, tuple[int, ...]]:
        return dict.fromkeys(("scale", "shift", "mean", "var"), (self._checked(x).shape[1],))

    def forward(self, x: ArrayLike) -> Tensor:
        x = self._checked(x)
        if not self.training and self.track:
            return ops.batch_norm(x, self.scale, self.shift, mean_=self.mean, var_=self.var, eps=self.eps).value
        normal = ops.batch_norm(x, self.scale, self.shift, eps=self.eps)
        if self.training and self.track:
            self._move(x.size // x.shape[1], normal.mean.detach(), normal.var.detach())
        return normal.value

    def _checked(self, x: ArrayLike) -> Tensor:
        name, x = type(self).__name__, as_tensor(x)
        if x.ndim < 2 or (self.ranks and x.ndim not in self.ranks):
            wanted = f"{' or '.join(map(str, self.ranks))} dimensions" if self.ranks else "2 or more dimensions"
            raise UserError(name, f"an input (batch, channels, ...) of {wanted} is required, got shape {x.shape}.")
        return _as_known(name, x, self.mean if self.scale is None else self.scale)

    def _move(self, count: int, mean: Tensor, var: Tensor) -> None:
        if count < 2:
            raise UserError(type(self).__name__, "more than one value of a channel is required in training, got one.")
        apply_statistics(self._track, mean, var * (count / (count - 1)))

    def _track(self, mean: Tensor, var: Tensor) -> None:
        """Move the running statistics towards those of a batch."""
        for running, batch in ((self.mean, mean), (self.var, var)):
            wide = running.astype(batch.dtype)  # small updates are lost in 16 bits
            running.assign((wide + self.momentum * (batch - wide)).astype(running.dtype))


class BatchNorm1d(BatchNorm):
    """BatchNorm of (batch, channels) or (batch, channels, length)."""

    ranks = (2, 3)


class BatchNorm2d(BatchNorm):
    """BatchNorm of (batch, channels, height, width)."""

    ranks = (4,)


class BatchNorm3d(BatchNorm):
    """BatchNorm of (batch, channels, depth, height, width)."""

    ranks = (5,)


def _as_known(layer: str, x: Tensor, known: Any) -> Tensor:
    """Check that the input has as many channels as the layer."""
    return checks.check_channels(layer, x, known.shape[0]) if isinstance(known, Tensor) else x


class LayerNorm(Module):
    """y = (x - mean) / sqrt(var + eps) * scale + shift, over the last axis or axes of each example (Ba et al. 2016)

    `shape` is the shape of those axes; None: the last axis, its size inferred from the first input.
    """

    def __init__(self, shape: int | Sequence[int] | None = None, *, eps: float = 1e-5, affine: bool = True) -> None:
        self.shape = None if shape is None else as_ints([shape] if isinstance(shape, int) else shape)
        if self.shape is not None and (not self.shape or min(self.shape) < 1):
            raise UserError("LayerNorm", f"sizes of 1 or more are required, got {shape!r}.")
        self.eps = checks.check_above("LayerNorm", "eps", eps)
        self.scale = parameter(self.shape or (None,), "ones") if affine else None
        self.shift = parameter(self.shape or (None,), "zeros") if affine else None

    def sizes(self, x: ArrayLike) -> Mapping[str, tuple[int, ...]]:
        return dict.fromkeys(("scale", "shift"), (checks.feature_size("LayerNorm", x, -1),))

    def forward(self, x: ArrayLike) -> Tensor:
        x = as_tensor(x)
        shape = self.shape or (x.shape[-1:] if self.scale is None else self.scale.shape)
        if x.shape[-len(shape) :] != shape:
            raise UserError("LayerNorm", f"an input whose shape ends in {shape} is required, got {x.shape}.")
        return ops.layer_norm(x, self.scale, self.shift, axis=tuple(range(-len(shape), 0)), eps=self.eps)


class RMSNorm(Module):
    """y = x / sqrt(mean(x**2) + eps) * scale, over the last axis (Zhang and Sennrich 2019)"""

    def __init__(self, features: int | None = None, *, eps: float = 1e-6) -> None:
        self.eps = checks.check_above("RMSNorm", "eps", eps)
        self.scale = parameter((checks.check_optional_count("RMSNorm", "features", features),), "ones")

    def sizes(self, x: ArrayLike) -> Mapping[str, tuple[int, ...]]:
        return {"scale": (checks.feature_size("RMSNorm", x, -1),)}

    def forward(self, x: ArrayLike) -> Tensor:
        x = checks.check_channels("RMSNorm", x, self.scale.shape[0], axis=-1)
        return ops.rms_norm(x, self.scale, eps=self.eps)


class GroupNorm(Module):
    """y = (x - mean) / sqrt(var + eps) * scale + shift, over each group of channels of each example (Wu and He 2018)"""

    def __init__(self, groups: int, features: int | None = None, *, eps: float = 1e-5, affine: bool = True) -> None:
        self.groups = checks.check_count("GroupNorm", "groups", groups)
        features = checks.check_optional_count("GroupNorm", "features", features)
        checks.check_groups("GroupNorm", "features", features, groups)
        self.eps = checks.check_above("GroupNorm", "eps", eps)
        self.scale = parameter((features,), "ones") if affine else None
        self.shift = parameter((features,), "zeros") if affine else None

    def sizes(self, x: ArrayLike) -> Mapping[str, tuple[int, ...]]:
        return dict.fromkeys(("scale", "shift"), (checks.feature_size("GroupNorm", x, 1),))

    def forward(self, x: ArrayLike) -> Tensor:
        x = _as_known("GroupNorm", as_tensor(x), self.scale)
        return ops.group_norm(x, self.groups, self.scale, self.shift, eps=self.eps)


class InstanceNorm(Module):
    """y = (x - mean) / sqrt(var + eps) * scale + shift, over the positions of each channel of each example"""

    def __init__(self, features: int | None = None, *, eps: float = 1e-5, affine: bool = False) -> None:
        features = checks.check_optional_count("InstanceNorm", "features", features)
        self.eps = checks.check_above("InstanceNorm", "eps", eps)
        self.scale = parameter((features,), "ones") if affine else None
        self.shift = parameter((features,), "zeros") if affine else None

    def sizes(self, x: ArrayLike) -> Mapping[str, tuple[int, ...]]:
        return dict.fromkeys(("scale", "shift"), (checks.feature_size("InstanceNorm", x, 1),))

    def forward(self, x: ArrayLike) -> Tensor:
        x = _as_known("InstanceNorm", as_tensor(x), self.scale)
        return ops.instance_norm(x, self.scale, self.shift, eps=self.eps)


class LRN(Module):
    """y = x / (k + alpha * mean of x**2 over `size` adjacent channels)**beta (Krizhevsky et al. 2012)"""

    def __init__(self, size: int = 5, *, alpha: float = 1e-4, beta: float = 0.75, k: float = 1.0) -> None:
        self.size = checks.check_count("LRN", "channels", size)
        self.alpha, self.beta = checks.check_at_least("LRN", "alpha", alpha), float(beta)
        self.k = checks.check_above("LRN", "k", k)

    def forward(self, x: ArrayLike) -> Tensor:
        return ops.local_response_norm(x, self.size, alpha=self.alpha, beta=self.beta, k=self.k)


class LCN(Module):
    """y = (x - m) / sqrt(mean of (x - m)**2 + eps**2), m and the mean over a box of `size` and all channels

    Local contrast normalization (Jarrett et al. 2009) with a flat box, which is clipped at the border of the image.
    """

    def __init__(self, size: Sizes = 9, *, eps: float = 1e-4) -> None:
        rank = len(size) if isinstance(size, Sequence) else 1
        self.size = checks.check_sizes("LCN", "size", size, rank)
        self.eps = checks.check_above("LCN", "eps", eps)

    def forward(self, x: ArrayLike) -> Tensor:
        return ops.local_contrast_norm(x, self.size, eps=self.eps)
