"""Facts of a network, declared where it is defined: `@network("classification", input=(3, 224, 224), ...)` above its constructor.

The arguments of the decorator are literals: zoo/catalogue.py reads them from the source, so that `weft models` builds and imports no
network.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from ..records import dataclass


@dataclass(frozen=True)
class NetworkFacts:
    """What is known about a network without building it.

    Parameters and multiply-adds hold for one example of `input`; those of a network for text hold for a vocabulary of 65 characters,
    those of gpt2 for its own. A test counts them on the graph of each network.
    """

    task: str  # classification, regression, segmentation or text
    parameters: int
    macs: int | None = None  # of one example; those of a text depend on its length
    input: tuple[int, int, int] | None = None  # channels, height, width
    classes: int | None = None
    needs_size: bool = False  # images must have the size of `input`, unless another is given to the constructor
    takes_vectors: bool = False  # inputs are flattened
    rate_scale: float = 1.0  # factor of the default learning rate


DECLARED: dict[
    str, NetworkFacts
] = {}  # of the networks that were imported, to compare with what the catalogue has read

Constructor = TypeVar("Constructor", bound=Callable[..., Any])


def network(task: str, *, parameters: int, **facts: Any) -> Callable[[Constructor], Constructor]:
    """Declare the facts of a network; see `NetworkFacts` for the names."""
    declared = NetworkFacts(task, parameters, **facts)

    def declare(constructor: Constructor) -> Constructor:
        DECLARED[constructor.__name__] = declared
        return constructor

    return declare
