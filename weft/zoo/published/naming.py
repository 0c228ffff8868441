"""What a table of published names is made of.

A table is a function that walks a network and yields, for each module with tensors of its own, the published name of that module. Modules come in the order of
`named_tensors`, so a table reads as the network does. Within a module the names of tensors differ by a fixed rule (`ROLES`); where they do not, the table yields
the source of each tensor instead.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import field, replace
from itertools import groupby
from math import prod

import numpy as np

from ... import nn
from ...records import dataclass

# weft's name of a tensor -> the name in PyTorch
ROLES = {
    "weight": "weight", "bias": "bias", "scale": "weight", "shift": "bias", "mean": "running_mean", "var": "running_var",
}  # fmt: skip
KERAS_ROLES = {
    "weight": "kernel", "bias": "bias", "scale": "gamma", "shift": "beta", "mean": "moving_mean", "var": "moving_variance",
}  # fmt: skip
IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))  # mean and standard deviation of images with values of 0 to 1
CAFFE = ((123.68 / 255, 116.779 / 255, 103.939 / 255), (1 / 255, 1 / 255, 1 / 255))  # values of 0 to 255 less a mean
HALF = ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5))
Statistics = tuple[tuple[float, ...], tuple[float, ...]]


@dataclass(frozen=True)
class WeightSource:
    """Where the value of a tensor is: under a name, as one of several equal `parts` of the first axis, or in another layout."""

    name: str
    part: int = 0
    parts: int = 1
    transposed: bool = False  # Conv1D of Hugging Face stores (inputs, outputs)
    channels_last: bool = False  # Keras stores (height, width, inputs, outputs), and (inputs, outputs)
    image: tuple[int, int] | None = (
        None  # height and width of the image that is flattened in front of a linear layer of Keras
    )
    reversed_inputs: bool = False  # its images have blue, green, red
    added: float = 0.0

    def value(self, values: Mapping[str, np.ndarray]) -> np.ndarray:
        array = values[self.name]
        array = array.T if self.transposed else array
        array = self._channels_first(array) if self.channels_last else array
        array = array[:, ::-1] if self.reversed_inputs and array.ndim == 4 else array
        array = array + np.asarray(self.added, array.dtype) if self.added else array
        if self.parts == 1:
            return array
        size = array.shape[0] // self.parts if array.ndim else 0
        return array[self.part * size : (self.part + 1) * size]

    def _channels_first(self, array: np.ndarray) -> np.ndarray:
        if array.ndim == 4:
            return array.transpose(3, 2, 0, 1)
        if self.image is not None and array.ndim == 2 and array.shape[0] % prod(self.image) == 0:
            return array.reshape(*self.image, -1, array.shape[1]).transpose(3, 2, 0, 1).reshape(array.shape[1], -1)
        return array.T


Names = Iterator[str | Mapping[str, WeightSource]]


@dataclass(frozen=True)
class Naming:
    """How one library names the tensors of a network, and which images its weights expect."""

    library: str
    names: Callable[[nn.Module], Names]
    statistics: Statistics | None = IMAGENET
    prefix: str = ""  # of the names of all tensors but those of the head; files may lack it
    renamed: Mapping[str, str] = field(default_factory=dict)  # regular expressions of names in old files
    ignored: str = ""  # regular expression of names that hold no weights, or those of auxiliary heads
    tied: Mapping[str, str] = field(default_factory=dict)  # names whose values must equal those under another name
    roles: Mapping[str, str] = field(default_factory=lambda: ROLES)
    channels_last: bool = False
    reversed_colours: bool = False  # the first convolution takes blue, green, red
    eps: float | None = None  # of its batch norms, where the zoo has another: the difference is added to the variances


def sources(model: nn.Module, naming: Naming) -> dict[str, WeightSource]:
    """The source of every tensor of a network, by weft's name."""
    found: dict[str, WeightSource] = {}
    modules = model.named_modules()
    owners = groupby(model.named_tensors(), lambda name: name.rpartition(".")[0])
    for (path, tensors), published in zip(owners, naming.names(model), strict=True):
        for name in tensors:
            role = name.removeprefix(f"{path}.") if path else name
            source = (
                WeightSource(f"{published}.{naming.roles[role]}") if isinstance(published, str) else published[role]
            )
            found[name] = _in_layout(source, naming, role, modules[path], is_first=not found)
    return found


def _in_layout(source: WeightSource, naming: Naming, role: str, module: nn.Module, is_first: bool) -> WeightSource:
    """The source with what holds for all tensors of a library."""
    added = 0.0
    if naming.eps is not None and role == "var" and isinstance(module, nn.BatchNorm2d):
        added = naming.eps - module.eps
    return replace(
        source,
        channels_last=naming.channels_last,
        reversed_inputs=naming.reversed_colours and is_first,
        added=added,
    )
