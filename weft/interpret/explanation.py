"""Why a network predicts what it does for one image: its scores, and maps of what they depend on."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..errors import UserError
from ..records import dataclass
from .explainer import Explainer
from .pictures import Colour, overlay
from .recording import last_maps

WINDOWS = 6  # occlusion hides about a sixth of the height and width at a time
SMALL = 32  # pixels; larger images are hidden at eight places along each axis, which is one batch
ALONG = 8


@dataclass(frozen=True)
class ExplanationMap:
    """A map over the image: larger values matter more. `note` says what it was made with, such as the layer."""

    name: str
    title: str
    note: str
    values: np.ndarray
    colour: Colour
    smooth: bool

    def picture(self, image: np.ndarray, side: int = 224) -> np.ndarray:
        """The map over the image, whose longer side gets at least `side` pixels: (height, width, 3) bytes."""
        return overlay(image, self.values, self.colour, shown_size(image, side), self.smooth)


@dataclass(frozen=True)
class ImageExplanation:
    """What a network makes of an image, and why: `target` is the class or output that the maps explain."""

    image: np.ndarray
    scores: np.ndarray
    target: int
    maps: Sequence[ExplanationMap]
    is_multi_label: bool = False  # several classes may be right

    @property
    def probabilities(self) -> np.ndarray:
        """The softmax of the scores; where several classes may be right, the sigmoid of each."""
        if self.is_multi_label:
            return np.asarray(1.0 / (1.0 + np.exp(-self.scores)))
        shifted = np.exp(self.scores - self.scores.max())
        return np.asarray(shifted / shifted.sum())


def explained(
    explainer: Explainer, image: Any, target: int | None = None, is_multi_label: bool = False
) -> ImageExplanation:
    """Explain the prediction for one image (channels, height, width): Grad-CAM where there are convolutions, and occlusion."""
    pixels = np.asarray(image)
    if pixels.ndim != 3:
        raise UserError("explained", f"an image (channels, height, width) is required, got shape {pixels.shape}.")
    layer = maps_layer(explainer, pixels)
    if layer is None:
        scores, maps = explainer.scores(pixels[None])[0], []
    else:
        cams, rows = explainer.grad_cam_and_scores(pixels[None], target, layer)
        scores, maps = rows[0], [ExplanationMap("grad_cam", "Grad-CAM", layer, cams[0], "warm", True)]
    chosen = int(scores.argmax()) if target is None else int(target)
    if not 0 <= chosen < len(scores):
        raise UserError("explained", f"a class from 0 to {len(scores) - 1} is required, got {target}.")
    window, stride = occlusion_windows(pixels.shape[1:])
    falls = explainer.occlusion(pixels[None], window, stride, chosen)[0]
    maps.append(ExplanationMap("occlusion", "Occlusion", f"{window[0]} × {window[1]}", falls, "green", False))
    return ImageExplanation(pixels, scores, chosen, maps, is_multi_label)


def maps_layer(explainer: Explainer, image: np.ndarray) -> str | None:
    """The layer of Grad-CAM; None for networks without convolutions."""
    try:
        return last_maps("grad_cam", explainer.layers(image[None])).name
    except UserError:
        return None


def occlusion_windows(size: Sequence[int]) -> tuple[tuple[int, int], tuple[int, int]]:
    """The window and stride for an image of this size.

    >>> occlusion_windows((28, 28)), occlusion_windows((224, 160))
    (((5, 5), (2, 2)), ((37, 27), (27, 19)))
    """
    window = [min(n, max(2, round(n / WINDOWS))) for n in size]
    stride = [
        max(1, w // 2) if n <= SMALL else math.ceil((n - w) / (ALONG - 1)) for n, w in zip(size, window, strict=True)
    ]
    return (window[0], window[1]), (stride[0], stride[1])


def shown_size(image: np.ndarray, side: int) -> tuple[int, int]:
    """The size of a picture of an image: small ones are enlarged by a whole number, so that pixels stay squares."""
    height, width = image.shape[1:]
    factor = max(1, math.ceil(side / max(height, width)))
    return height * factor, width * factor
