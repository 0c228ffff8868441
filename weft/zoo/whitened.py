"""A small network for 32 x 32 images that trains in seconds: whitened patches, three blocks, no residual connections.

The first convolution is not trained: its filters are the principal components of small patches of the training images, scaled to unit variance
(Page 2019), once with each sign. So what the first block reads is uncorrelated from the first step on. Convolutions start as the
identity where they have as many inputs (Jordan 2024, "94 % on CIFAR-10 in 3.29 seconds on a single GPU"), batch norms have a shift only, and the
logits are scaled down.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, partial
from typing import Any

import numpy as np

from .. import nn
from ..errors import UserError
from ..nn.module import parameter, state
from ..ops.contract import matmul
from ..ops.conv import conv
from ..ops.convert import asarray
from ..ops.elementwise import add
from ..ops.movement import flip, pad, permute_dims, reshape, stack
from ..tensor import ArrayLike, Tensor, as_tensor
from ..tracing.jit import Jit, jit
from .facts import network

VIEWS = (1, 2, 6)  # the image; and its mirror image; and both shifted by a pixel
EPS = 5e-4  # added to the variance of components before they are scaled: those without variance would be noise


class WhiteningConv2d(nn.Module):
    """A convolution whose fixed filters whiten patches of `kernel` x `kernel` pixels, once with each sign; the bias is trained.

    >>> images = np.random.default_rng(0).normal(size=(64, 1, 8, 8)).astype(np.float32)
    >>> layer = WhiteningConv2d(1, 2).fit(images)
    >>> layer(images).shape, bool(abs(layer(images).numpy().var() - 1.0) < 0.1)
    ((64, 8, 7, 7), True)
    """

    def __init__(self, inputs: int, kernel: int = 2) -> None:
        components = inputs * kernel * kernel
        self.kernel = kernel
        self.weight = state((2 * components, inputs, kernel, kernel), "identity")
        self.bias = parameter((2 * components,), "zeros")

    def fit(self, images: ArrayLike) -> WhiteningConv2d:
        """Set the filters for images (batch, channels, height, width), as the layer will see them."""
        self.weight.assign(asarray(self.filters(images)))
        return self

    def filters(self, images: ArrayLike) -> np.ndarray:
        """The filters that whiten these images: principal components of their patches, scaled to unit variance, and their negatives."""
        shape = self.weight.shape[1:]
        covariance = _covariance_program(self.kernel)(images).numpy().astype(np.float64)
        values, vectors = np.linalg.eigh(covariance)
        filters = (vectors / np.sqrt(values + EPS)).T[::-1].reshape(-1, *shape)  # the largest component first
        return np.concatenate([filters, -filters]).astype(np.float32)

    def forward(self, x: ArrayLike) -> Tensor:
        return conv(x, self.weight, self.bias)


def _covariance(kernel: int, images: Tensor) -> Tensor:
    """The covariance of the values in patches, without removing their mean: images are normalized."""
    height, width = (n - kernel + 1 for n in images.shape[2:])
    shifted = [
        images[:, c, i : i + height, j : j + width]
        for c in range(images.shape[1]) for i in range(kernel) for j in range(kernel)
    ]  # fmt: skip
    patches = reshape(stack(shifted), (len(shifted), -1))
    return matmul(patches, permute_dims(patches, (1, 0))) / float(patches.shape[1])


@cache
def _covariance_program(kernel: int) -> Jit[Tensor]:
    return jit(partial(_covariance, kernel))


class WhitenedCNN(nn.Module):
    """See the head of this file. In evaluation mode the logits are the mean over `views` of each image."""

    def __init__(
        self, classes: int, channels: int, widths: Sequence[int], kernel: int, scale: float, momentum: float, views: int
    ) -> None:
        if views not in VIEWS:
            raise UserError("whitened_cnn", f"1, 2 or 6 views are required, got {views!r}.")
        self.views, self.scale = views, scale
        self.whitening = WhiteningConv2d(channels, kernel)
        inputs = [2 * channels * kernel * kernel, *widths]
        self.blocks = [_block(a, b, momentum) for a, b in zip(inputs, widths, strict=False)]
        self.head = nn.Linear(inputs[-1], classes, bias=False, init="fan_in_uniform")
        self.gelu, self.pool = nn.GELU(), nn.GlobalMaxPool()

    def whiten(self, images: ArrayLike) -> None:
        """Fit the first layer to normalized training images."""
        self.whitening.fit(images)

    def forward(self, x: ArrayLike) -> Tensor:
        x = as_tensor(x)
        if self.training or self.views == 1:
            return self._logits(x)
        logits = self._mirrored(x)
        if self.views == 2:
            return logits
        padded = pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)), mode="reflect")
        shifted = [padded[:, :, i : i + x.shape[2], i : i + x.shape[3]] for i in (0, 2)]
        return logits * 0.5 + add(*map(self._mirrored, shifted)) * 0.25

    def _mirrored(self, x: Tensor) -> Tensor:
        return (self._logits(x) + self._logits(flip(x, axis=3))) * 0.5

    def _logits(self, x: Tensor) -> Tensor:
        y: Tensor = self.gelu(self.whitening(x))
        for block in self.blocks:
            y = block(y)
        logits: Tensor = self.head(self.pool(y))
        return logits * self.scale


def _block(inputs: int, outputs: int, momentum: float) -> nn.Sequential:
    """Two convolutions, with pooling after the first."""
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, 3, padding=1, bias=False, init=_partly_identity), nn.MaxPool2d(2),
        nn.BatchNorm2d(outputs, scaled=False, momentum=momentum), nn.GELU(),
        nn.Conv2d(outputs, outputs, 3, padding=1, bias=False, init=_partly_identity),
        nn.BatchNorm2d(outputs, scaled=False, momentum=momentum), nn.GELU(),
    )  # fmt: skip


def _partly_identity(shape: tuple[int, ...]) -> Any:
    """The first filters return their input, the others are random."""
    values = np.array(nn.init.values("fan_in_uniform", shape))
    same = min(shape[:2])
    values[:same] = nn.init.values("identity", shape)[:same]
    return values


@network("classification", input=(3, 32, 32), classes=10, parameters=1_971_352, macs=118_147_360)
def whitened_cnn(
    classes: int = 10,
    channels: int = 3,
    *,
    widths: Sequence[int] = (64, 256, 256),
    kernel: int = 2,
    scale: float = 1 / 9,
    momentum: float = 0.4,
    views: int = 1,
) -> WhitenedCNN:
    """Whitened patches, three blocks of two convolutions and a scaled linear layer (Jordan 2024); for images from 20 x 20 on.

    `views` are averaged in evaluation mode: 2 with the mirror image, 6 with shifts by a pixel, too.

    >>> whitened_cnn(4, widths=(8, 8, 8), views=2).eval()(np.zeros((2, 3, 32, 32), np.float32)).shape
    (2, 4)
    """
    return WhitenedCNN(classes, channels, widths, kernel, scale, momentum, views)
