"""Finds the density for a target size. Pruning and sharing without training predict the size of the trained result closely, in seconds."""

from __future__ import annotations

import copy

from ..errors import UserError
from ..nn.module import Module
from ..packing.packed_tensors import Coder, pack_tensors
from .layers import weights_of
from .pack import packed_weights
from .prune import prune
from .share import share

POWER = 0.25  # a layer that is 16 times smaller keeps twice the fraction of its weights
LEAST = 1e-4  # density of the largest layer
_STEPS = 10  # of the search: densities to 1 %


def scaled_densities(model: Module, density: float) -> dict[str, float]:
    """A density for each layer: `density` for the largest, more for smaller ones, which have fewer weights to spare.

    >>> from weft import nn
    >>> scaled_densities(nn.Sequential(nn.Linear(320, 50), nn.Linear(50, 20)), 0.1)
    {'layers.0.weight': 0.1, 'layers.1.weight': 0.2}
    """
    if not 0.0 < density <= 1.0:
        raise UserError("scaled_densities", f"a density above 0 and up to 1 is required, got {density}.")
    sizes = {path: one.value.size for path, one in weights_of(model).items()}
    most = max(sizes.values(), default=1)
    return {path: min(1.0, density * (most / max(size, 1)) ** POWER) for path, size in sizes.items()}


def packed_bytes(model: Module, density: float, bits: int | None, *, half: bool = False, coder: Coder = "rans") -> int:
    """The bytes of all tensors of a network after pruning and sharing, without training. The network itself is not changed."""
    made = copy.deepcopy(model)
    prune(made, scaled_densities(made, density))
    if bits is not None:
        share(made, bits)
    return len(pack_tensors(packed_weights(made, half), coder).content)


def density_for(
    model: Module, size: float, bits: int | None, *, half: bool = False, coder: Coder = "rans"
) -> float | None:
    """The largest density of the largest layer at which all tensors take at most `size` bytes; None if there is none.

    >>> from weft import nn
    >>> net = nn.Sequential(nn.Linear(200, 100), nn.Linear(100, 10))
    >>> found = density_for(net, 84_440 / 20, bits=4)
    >>> packed_bytes(net, found, 4) <= 84_440 / 20
    True
    """
    if packed_bytes(model, LEAST, bits, half=half, coder=coder) > size:
        return None
    low, high = LEAST, 1.0
    for _ in range(_STEPS):
        middle = (low * high) ** 0.5
        fits = packed_bytes(model, middle, bits, half=half, coder=coder) <= size
        low, high = (middle, high) if fits else (low, middle)
    return low
