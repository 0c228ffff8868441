"""`SplitLayer`: a layer of which each process along an axis of a mesh computes a part.

It replaces a layer and has parameters of the same names: this process's parts of them, or whole ones. Its computation
consists of calls of the original layer on parts, with collectives around them.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from math import prod
from typing import Any, ClassVar, NamedTuple

import numpy as np

from ...dtypes import float32
from ...errors import UserError
from ...graph.node import CONST, PLACEHOLDER, Node, Shape, Type
from ...mesh import mesh as meshes
from ...mesh.parts import Part, note_part
from ...nn.activations import activation
from ...nn.module import Module, own_tensors
from ...ops.collective import replicate
from ...ops.convert import asarray
from ...ops.convert import parameter as as_parameter
from ...records import dataclass
from ...tensor import Tensor, as_tensor
from ...tracing.trace import make_graph
from .layout import Layout, Whole, read, write


@dataclass(frozen=True)
class Shapes:
    """The whole shapes of a layer's input and result, and the number of processes that share its work."""

    x: Shape
    y: Shape
    ranks: int


@dataclass(frozen=True)
class SplitPlace:
    """The context of a split layer: the axis of the mesh, the layouts around it, and its shapes."""

    axis: str
    given: Whole  # the layout of its input
    wanted: Whole  # the layout that it reads
    natural: Whole  # the layout that it computes
    result: Whole  # the layout that it returns: natural, or whole
    shapes: Shapes


class Message(NamedTuple):
    """A collective in a training step: its name, and the bytes of the whole value."""

    collective: str  # "all_reduce", "all_gather", "reduce_scatter" or "shift"
    nbytes: int


class SplitLayer(Module):
    """See the top of this file. A subclass has `layouts` and `compute`."""

    how: ClassVar[str]

    def __init__(self, layer: Module, place: SplitPlace) -> None:
        for name, value in vars(layer).items():
            setattr(self, name, value)
        self._layer, self._place, self.training = layer, place, layer.training
        self.cut_parameters()

    @classmethod
    def layouts(cls, layer: Any, given: Whole, shapes: Shapes) -> tuple[Whole, Whole] | None:
        """The layouts that it reads and computes; None if it needs its input whole. Raises an error if it cannot be split."""
        raise NotImplementedError

    @classmethod
    def traffic(cls, layer: Any, wanted: Whole, shapes: Shapes, itemsize: int, backward: bool) -> list[Message]:
        """Its messages in a training step, without those that convert the layouts of its input and result.

        `backward`: whether its input has gradients.
        """
        return []

    def cut_parameters(self) -> None:
        """Keep only this process's parts of the parameters, using `cut`."""

    def compute(self, x: Tensor) -> Tensor:
        """The result of this process, in its natural layout."""
        raise NotImplementedError

    def forward(self, x: Any) -> Tensor:
        place = self._place
        y = self.compute(read(as_tensor(x), place.given, place.wanted, place.axis))
        return write(y, place.natural, place.result, place.axis)

    def details(self) -> str:
        return f"{type(self._layer).__name__} split by {self.how}, {super().details()}"

    # --- for subclasses --------------------------------------------------------------------------------------------------

    def cut(self, name: str, dim: int) -> None:
        """Keep this process's part of a parameter along a dimension."""
        cut_tensor(self, name, dim, self._place)

    def call_layer(self, x: Tensor, through: Callable[[Tensor], Tensor] = lambda t: t, **settings: Any) -> Any:
        """Call the replaced layer with the tensors of this one, each passed through a function, and with other settings."""
        stand_in = copy.copy(self._layer)
        found = {name: through(tensor) for name, tensor in own_tensors(self)}
        vars(stand_in).update(found, training=self.training, **settings)
        return stand_in.forward(x)

    def shared(self, tensor: Tensor) -> Tensor:
        """A whole parameter that each process applies to its part of the data: its gradients are summed."""
        return replicate(tensor, self._place.axis)


def cut_tensor(module: Any, name: str, dim: int, place: SplitPlace) -> None:
    """Replace a tensor of a module with this process's part along a dimension."""
    whole = getattr(module, name)
    if whole is None:
        return
    ranks = meshes.current().size(place.axis)
    part = Part(place.axis, ranks, dim, whole.shape[dim])
    tensor = asarray(part_values(whole.numpy(), part), dtype=whole.dtype, copy=True).realize()
    if whole.requires_grad:
        tensor = as_parameter(tensor)
    note_part(tensor, part)
    setattr(module, name, tensor)


def part_values(whole: np.ndarray, part: Part) -> np.ndarray:
    """The values of this process's part."""
    first = meshes.current().index(part.axis) * part.length
    values = np.take(whole, range(min(first, part.size), min(first + part.length, part.size)), axis=part.dim)
    missing = [(0, part.length - values.shape[d] if d == part.dim else 0) for d in range(whole.ndim)]
    return np.pad(values, missing)


# --- checks --------------------------------------------------------------------------------------------------------------


def divisible(layer: Module, what: str, size: int, ranks: int) -> None:
    """Raise an error unless a size is divisible into equal parts."""
    if size % ranks:
        raise UserError("split", f"{what} of {kind(layer)} must be a multiple of the {ranks} processes, got {size}.")


def elementwise_activation(layer: Any) -> None:
    """Raise an error unless the activation of a layer can be computed on a part of the result, and has no parameters."""
    found = activation(layer.activation)
    nodes = make_graph(found, Type((2, 3), float32)).nodes
    if not all(n.op.kind == "elementwise" or n.op in (CONST, PLACEHOLDER) or is_number(n) for n in nodes):
        shown = layer.activation if isinstance(layer.activation, str) else type(found).__name__
        raise UserError(
            "split", f"the activation {shown} of {kind(layer)} is not elementwise. Make it a layer of its own."
        )


def is_number(node: Node) -> bool:
    """Whether a node is a scalar constant, broadcast to a shape."""
    while node.op.name in ("expand", "cast", "reshape"):
        node = node.inputs[0]
    return node.op is CONST


def kind(layer: Module) -> str:
    """The name of a layer in error messages."""
    return type(layer).__name__


def parameter_sums(layer: Module) -> list[Message]:
    """The all-reduces of the gradients of whole parameters."""
    trained = [t for _, t in own_tensors(layer) if t.requires_grad]
    return [Message("all_reduce", t.size * t.dtype.itemsize) for t in trained]


def result_sum(shapes: Shapes, itemsize: int) -> list[Message]:
    """The all-reduce of a partial result."""
    return [Message("all_reduce", prod(shapes.y) * itemsize)]


class ByBatch(SplitLayer):
    """Each process computes its share of the examples, with all parameters."""

    how = "batch"

    @classmethod
    def layouts(cls, layer: Any, given: Whole, shapes: Shapes) -> tuple[Whole, Whole]:
        if any(part is not layer and own_tensors(part) for part in layer.modules()):
            raise UserError(
                "split", f"{kind(layer)} has parts with parameters, which cannot be split by batch. Split those."
            )
        divisible(layer, "the batch", shapes.x[0], shapes.ranks)
        examples = Layout(0, None)
        return examples, examples

    @classmethod
    def traffic(cls, layer: Any, wanted: Whole, shapes: Shapes, itemsize: int, backward: bool) -> list[Message]:
        return parameter_sums(layer)

    def compute(self, x: Tensor) -> Tensor:
        return self.call_layer(x, self.shared)  # type: ignore[no-any-return]
