"""The layers of a network as people read them: a title, the shape of the output, parameters and multiply-adds, and statistics."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np

from ...interpret import Explainer, TensorStatistics
from ...interpret.statistics import channel_axis, effective_rank, near_copies, statistics_of
from ...nn.containers import Sequential
from ...nn.module import Module
from ...records import dataclass

MOST_PARTS = 3  # of a sequence that is named after its parts
LARGEST_MATRIX = 1 << 21  # values of a weight whose singular values are computed


@dataclass(frozen=True)
class LayerRow:
    """A layer: its path, what it is, the shape of its output for one example, and its cost with all that is inside of it."""

    name: str
    title: str
    kind: str
    depth: int
    shape: tuple[int, ...]
    parameters: int
    norm: float  # of all its parameters
    has_parts: bool
    module: Module

    @property
    def channels(self) -> int:
        return self.shape[channel_axis(len(self.shape) + 1) - 1] if self.shape else 1


class WeightDetails:
    """The statistics of a layer's weight. What takes long is computed when it is asked for."""

    def __init__(self, weight: np.ndarray) -> None:
        self.shape = weight.shape
        self.statistics = statistics_of(weight)
        self._matrix = weight if weight.ndim in (2, 4) and weight.size <= LARGEST_MATRIX else None

    @cached_property
    def rank(self) -> float | None:
        """The effective rank, of matrices that are not too large."""
        return None if self._matrix is None else effective_rank(self._matrix)

    @cached_property
    def copies(self) -> int | None:
        """Pairs of filters that are nearly the same."""
        return None if self._matrix is None else near_copies(self._matrix)


@dataclass(frozen=True)
class LayerDetails:
    """The statistics of a layer for one image, and of its weight."""

    activations: TensorStatistics
    silent: int  # channels that are zero everywhere in this image
    weight: WeightDetails | None


def layer_rows(explainer: Explainer, shape: Sequence[int]) -> list[LayerRow]:
    """The layers in the order in which they are called, without the network itself."""
    found = []
    for call in explainer.layers(np.zeros((1, *shape), np.uint8)):
        if call.tensor is None or not call.name:
            continue
        tensors = [t.numpy() for t in call.module.parameters()]
        found.append(
            LayerRow(
                call.name, _numbered(call.name, call.module), type(call.module).__name__, call.depth - 1, call.tensor.shape[1:],
                sum(t.size for t in tensors), math.hypot(*(float(np.linalg.norm(t.ravel().astype(np.float32, copy=False))) for t in tensors)),
                len(call.module.modules()) > 1, call.module,
            )
        )  # fmt: skip
    return found


def _numbered(name: str, module: Module) -> str:
    """The title, with the number in the path of what is made of other layers: Residual 3."""
    title, number = layer_title(module), name.rpartition(".")[2]
    return (
        f"{title} {number}"
        if title == type(module).__name__ and number.isdigit() and len(module.modules()) > 1
        else title
    )


def layer_details(values: np.ndarray, weight: WeightDetails | None) -> LayerDetails:
    """Statistics of a layer's output for one image, with those of its weight."""
    others = tuple(a - 1 for a in range(1, values.ndim + 1) if a != channel_axis(values.ndim + 1))
    largest = np.abs(values).max(axis=others) if values.ndim else np.abs(values)
    return LayerDetails(statistics_of(values), int((largest == 0).sum()), weight)


def layer_title(module: Module) -> str:
    """What a layer is, in a few words.

    >>> from weft import nn
    >>> layer_title(nn.Conv2d(3, 8, 5, stride=2)), layer_title(nn.BatchNorm2d(8)), layer_title(nn.MaxPool2d(2))
    ('Conv 5 × 5 / 2', 'Batch norm', 'Max pool 2')
    """
    parts = [part for part in module.modules() if part is not module]
    if isinstance(module, Sequential) and 0 < len(parts) <= MOST_PARTS and all(len(p.modules()) == 1 for p in parts):
        first, *rest = map(layer_title, parts)
        return ", ".join([first, *(word if word[1:2].isupper() or "LU" in word else word.lower() for word in rest)])
    kind = re.sub(r"[123]d$", "", type(module).__name__)
    apart = re.sub(r"(?<=[a-z])(?=[A-Z][a-z])", " ", kind)  # BatchNorm, not ReLU
    words = apart if apart == kind else apart.capitalize()
    weight = getattr(module, "weight", None)
    if weight is not None and weight.ndim == 4:
        return f"{words} {weight.shape[2]} × {weight.shape[3]}{_stride(module)}"
    size = getattr(module, "size", None)
    return f"{words} {_one(size)}" if "pool" in words and size is not None else words


def _stride(module: Module) -> str:
    stride = _one(getattr(module, "stride", 1))
    return "" if stride == 1 else f" / {stride}"


def _one(value: Any) -> Any:
    """One number for all axes where they are equal."""
    if isinstance(value, tuple | list) and value:
        return value[0] if len(set(value)) == 1 else " × ".join(map(str, value))
    return value


def shape_text(shape: Sequence[int]) -> str:
    """The shape of one example's output: 64 × 112².

    >>> shape_text((64, 112, 112)), shape_text((64, 7, 9)), shape_text((10,))
    ('64 × 112²', '64 × 7 × 9', '10')
    """
    if len(shape) == 3 and shape[1] == shape[2]:
        return f"{shape[0]} × {shape[1]}²" if shape[1] > 1 else str(shape[0])
    return " × ".join(map(str, shape))
