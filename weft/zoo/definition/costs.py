"""What a network costs: multiply-adds, memory and weights of each layer, found by tracing it; and the memory of its training."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod

from ...graph.node import Type
from ...nn.module import without_values
from ...nn.summary import Summary, summary
from ...records import dataclass
from .picture import layer_title
from .plan import NetworkPlan, PlannedLayer, Shape

FLOAT = 4  # bytes
STATES = 3  # tensors for each parameter: its value and the two moments of Adam
KEPT = 1.1  # bytes of the workspace for each byte of the layers' outputs; planned ones have 0.7 (squeezenet) to 1.28 (lenet5)


@dataclass(frozen=True)
class LayerFacts:
    """A layer in the table of a network."""

    path: str
    title: str
    kind: str
    line: int
    depth: int
    output: Shape
    parameters: int
    macs: int
    nbytes: int  # of its output and those inside it, for one example
    has_parts: bool


@dataclass(frozen=True)
class NetworkCosts:
    """What a network costs for one example, and in training."""

    layers: tuple[LayerFacts, ...]
    parameters: int
    macs: int
    activations: int  # bytes of the outputs of all layers, for one example

    def training_bytes(self, batch: int) -> int:
        """An estimate of the memory that training with Adam takes."""
        return STATES * FLOAT * self.parameters + int(batch * KEPT * self.activations)

    def largest_batch(self, free: int) -> int:
        """The largest batch whose training fits into this many bytes, by the same estimate; 0 if none does."""
        left = free - STATES * FLOAT * self.parameters
        return max(0, int(left / max(1.0, KEPT * self.activations)))


def network_costs(plan: NetworkPlan) -> NetworkCosts:
    """Trace a network without values and add up what its layers cost."""
    with without_values():
        found = summary(plan.build(), Type((1, *plan.input), plan.dtype))
    return NetworkCosts(tuple(_facts(plan.layers, found)), found.parameters, found.macs, found.nbytes)


def _facts(layers: Sequence[PlannedLayer], found: Summary) -> Iterator[LayerFacts]:
    macs: dict[str, int] = {}
    nbytes: dict[str, int] = {}
    for line in found.lines:
        for path in _prefixes(line.name):
            macs[path] = macs.get(path, 0) + line.macs
            nbytes[path] = nbytes.get(path, 0) + (0 if line.has_parts else line.nbytes)

    def walk(layers: Sequence[PlannedLayer], depth: int) -> Iterator[LayerFacts]:
        for one in layers:
            yield LayerFacts(
                one.path, layer_title(one), one.text.spec.name, one.text.place.line, depth, one.output, one.parameters, macs.get(one.path, 0),
                nbytes.get(one.path) or FLOAT * prod(one.output), bool(one.parts),
            )  # fmt: skip
            for part in one.parts:
                yield from walk(part, depth + 1)

    return walk(layers, 0)


def _prefixes(path: str) -> Iterator[str]:
    """layers, layers.3, layers.3.body, ..."""
    parts = path.split(".")
    return (".".join(parts[: i + 1]) for i in range(len(parts)))
