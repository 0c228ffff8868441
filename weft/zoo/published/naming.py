"""What a table of published names is made of.

A table is a function that walks a network and yields, for each module with tensors of its own, the published name of that module. Modules come in the order of
`named_tensors`, so a table reads as the network does. Within a module the names of tensors differ by a fixed rule (`ROLES`); where they do not, the table yields
the source of each tensor instead.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import groupby

import numpy as np

from ... import nn

# weft's name of a tensor -> the name in PyTorch
ROLES = {
    "weight": "weight", "bias": "bias", "scale": "weight", "shift": "bias", "mean": "running_mean", "var": "running_var",
}  # fmt: skip
IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))  # mean and standard deviation of images with values of 0 to 1
HALF = ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5))
Statistics = tuple[tuple[float, ...], tuple[float, ...]]


@dataclass(frozen=True)
class WeightSource:
    """Where the value of a tensor is: under a name, as one of several equal `parts` of the first axis, or transposed."""

    name: str
    part: int = 0
    parts: int = 1
    transposed: bool = False  # Conv1D of Hugging Face stores (inputs, outputs)

    def value(self, values: Mapping[str, np.ndarray]) -> np.ndarray:
        array = values[self.name]
        array = array.T if self.transposed else array
        if self.parts == 1:
            return array
        size = array.shape[0] // self.parts if array.ndim else 0
        return array[self.part * size : (self.part + 1) * size]


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


def sources(model: nn.Module, naming: Naming) -> dict[str, WeightSource]:
    """The source of every tensor of a network, by weft's name."""
    found: dict[str, WeightSource] = {}
    owners = groupby(model.named_tensors(), lambda name: name.rpartition(".")[0])
    for (path, tensors), published in zip(owners, naming.names(model), strict=True):
        for name in tensors:
            role = name.removeprefix(f"{path}.") if path else name
            found[name] = WeightSource(f"{published}.{ROLES[role]}") if isinstance(published, str) else published[role]
    return found
