"""Records the calls of a network's modules with their inputs and outputs: what hooks are elsewhere."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from ..errors import UserError
from ..hints import nearest
from ..nn.module import Module, listening
from ..records import dataclass
from ..tensor import Tensor


@dataclass
class LayerCall:
    """One call of a module: its path, its first input and its output, and how deep it is nested.

    `ended` is its place in the order in which calls end.
    """

    name: str
    module: Module
    input: Any
    depth: int
    output: Any = None
    ended: int = -1

    @property
    def tensor(self) -> Tensor | None:
        """The output, or the first of several; None for outputs that are no tensors."""
        found = self.output[0] if isinstance(self.output, tuple) and self.output else self.output
        return found if isinstance(found, Tensor) else None

    @property
    def is_spatial(self) -> bool:
        """Whether it gives maps: (batch, channels, height, width) with more than one pixel."""
        found = self.tensor
        return found is not None and found.ndim == 4 and found.shape[2] * found.shape[3] > 1


class CallRecorder:
    """A listener that keeps all calls of a network's parts, in the order in which they begin."""

    def __init__(self, network: Module) -> None:
        self.names = {module: path for path, module in network.named_modules().items()}
        self.calls: list[LayerCall] = []
        self._open: list[LayerCall | None] = []
        self._counts: dict[Module, int] = {}
        self._ended = 0

    def begins(self, module: Module, args: tuple[Any, ...]) -> None:
        call = None
        if module in self.names:
            again = self._counts[module] = self._counts.get(module, 0) + 1
            name = self.names[module] + (f"#{again}" if again > 1 else "")
            call = LayerCall(name, module, args[0] if args else None, sum(one is not None for one in self._open))
            self.calls.append(call)
        self._open.append(call)

    def ends(self, module: Module, result: Any) -> None:
        call = self._open.pop()
        if call is not None:
            call.output, call.ended = result, self._ended
            self._ended += 1


def recorded(network: Module, x: Any) -> tuple[Any, list[LayerCall]]:
    """The output of a network, and the calls of its parts."""
    recorder = CallRecorder(network)
    with listening(recorder):
        output = network(x)
    return output, recorder.calls


@contextmanager
def evaluating(*networks: Module) -> Iterator[None]:
    """Inside, networks are in evaluation mode; afterwards each part is in the mode that it was in."""
    parts = [part for network in networks for part in network.modules() if part.training]
    for part in parts:
        part.training = False
    try:
        yield
    finally:
        for part in parts:
            part.training = True


def find_call(where: str, calls: Sequence[LayerCall], layer: str) -> LayerCall:
    """The call of a layer by its path."""
    for call in calls:
        if call.name == layer:
            return call
    raise UserError(
        where, f"the path of a layer is required, got {layer!r}. {nearest(layer, [call.name for call in calls])}"
    )


def last_maps(where: str, calls: Sequence[LayerCall]) -> LayerCall:
    """The layer that Grad-CAM looks at: the last output at the resolution of the last convolution.

    That is after its batch norm and activation, and after the addition of a residual block, but before pooling.
    """
    maps = [call for call in calls if call.is_spatial]
    convolutions = [call for call in maps if weight_rank(call.module) == 4]
    if not convolutions:
        raise UserError(
            where,
            "a network with convolutions whose outputs are (batch, channels, height, width) is required, got one without.",
        )
    size = _size(convolutions[-1])
    return max((call for call in maps if _size(call) == size), key=lambda call: call.ended)


def _size(call: LayerCall) -> tuple[int, ...]:
    assert call.tensor is not None
    return call.tensor.shape[2:]


def head_of(where: str, calls: Sequence[LayerCall]) -> LayerCall:
    """The last linear layer or convolution: its input is what the network knows about an example."""
    heads = [call for call in calls if weight_rank(call.module) in (2, 4) and isinstance(call.input, Tensor)]
    if not heads:
        raise UserError(where, "a network with a linear layer or a convolution is required, got one without.")
    return heads[-1]


def weight_rank(module: Module) -> int:
    """The number of axes of a module's weight: 2 for linear layers, 4 for convolutions of images, 0 without one."""
    weight = getattr(module, "weight", None)
    return weight.ndim if isinstance(weight, Tensor) else 0
