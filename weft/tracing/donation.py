"""Donated arguments: tensors whose memory a result takes, so that an update of a large tensor writes only what changes.

`weft.jit(f, donate=...)`: each donated tensor is paired with a result of its shape and dtype, which is written over it. The tensor cannot be
used afterwards, unless the function itself has assigned the result to it.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Collection, Sequence
from typing import Any

import numpy as np

from ..compiler.passes.slice_updates import is_updated_from
from ..dtypes import float32
from ..errors import UserError, user_source
from ..graph import Graph
from ..graph.node import Donated, data, placeholder
from ..records import dataclass
from ..runtime import Buffer, Device
from ..tensor import Tensor, as_tensor, wrap
from .arguments import Arguments


@dataclass(frozen=True)
class Donation:
    """An argument and the result that takes its memory."""

    value: int  # which of the values of a call
    position: int  # among the program's inputs
    output: int  # among its outputs
    is_changed: bool  # the function assigns the result to the argument


def donations_of(
    graph: Graph,
    arguments: Arguments,
    names: Sequence[str | int],
    donate: Collection[str | int],
    first_input: int,
    first_result: int,
) -> list[Donation]:
    """The pairs for a traced function. `names`: the argument that each value of a call belongs to."""
    if not donate:
        return []
    inputs = {i: first_input + k for k, i in enumerate(arguments.arrays) if names[i] in donate}
    last_result = len(graph.outputs) - len(arguments.changed)
    found = {i: Donation(i, inputs[i], last_result + k, True) for k, i in enumerate(arguments.changed) if i in inputs}
    free = list(range(first_result, last_result))
    for updates_slices in (True, False):
        for i, position in inputs.items():
            node = graph.inputs[position]
            fitting = [o for o in free if i not in found and graph.outputs[o].type == node.type]
            if updates_slices:
                fitting = [o for o in fitting if is_updated_from(graph.outputs[o], node)]
            if fitting:
                free.remove(fitting[0])
                found[i] = Donation(i, position, fitting[0], False)
    returned = {result.number for result in arguments.results if result.source == "argument"}
    unused = [i for i in inputs if i not in found and i not in returned]
    if unused:
        _warn([f"{names[i]!r} of type {graph.inputs[inputs[i]].type}" for i in unused])
    return sorted(found.values(), key=lambda donation: donation.output)


def _warn(unused: Sequence[str]) -> None:
    text = f"[jit] donated arguments are not used: no result has the shape and dtype of {', '.join(unused)}."
    source = user_source()
    if not source:
        warnings.warn(text, stacklevel=2)
    else:
        warnings.warn_explicit(text, UserWarning, source.file, source.line)


class Donor:
    """Takes the memory of donated arguments, call by call."""

    def __init__(self, home: Device, donations: Sequence[Donation], first_result: int, name: str) -> None:
        self.home, self.donations, self.first_result, self.name = home, donations, first_result, name
        self._alone = _references(home, wrap(data(home.put(np.zeros(1, np.float32), float32))))

    def take(self, arguments: Sequence[Any]) -> dict[int, tuple[Any, Any]]:
        """The memory of each donated argument, to be written to, and the content of a buffer with it, by the program's inputs."""
        return {d.position: self._memory(arguments[d.value], arguments) for d in self.donations}

    def _memory(self, given: Any, arguments: Sequence[Any]) -> tuple[Any, Any]:
        if not isinstance(given, Tensor):  # arrays belong to the caller
            given = as_tensor(given).realize()
            return self.home.copied(_value(given), None)
        if sum(other is given for other in arguments) > 1:
            raise UserError(
                "jit",
                f"a tensor that is donated to {self.name} is passed to it twice. Pass a copy, or do not donate it.",
            )
        given.realize()
        references = _references(self.home, given)
        if not references or references != self._alone:
            return self.home.copied(_value(given), None)
        value = _value(given)
        value.version += 1
        return self.home.owned(value), value.content

    def invalidate(self, arguments: Sequence[Any]) -> None:
        """The tensors that were donated have no value any more."""
        for donation in self.donations:
            given = arguments[donation.value]
            if not donation.is_changed and isinstance(given, Tensor):
                given._name(placeholder(Donated(self.name), given._node.type))

    def put_in(self, contents: list[Any], taken: dict[int, tuple[Any, Any]]) -> None:
        """Add the results that were written to donated memory to those in memory of their own."""
        for donation in self.donations:
            contents.insert(donation.output - self.first_result, taken[donation.position][1])


def _value(tensor: Tensor) -> Buffer:
    value = tensor._node.value
    assert isinstance(value, Buffer)
    return value


def _references(home: Device, tensor: Tensor) -> tuple[int, ...]:
    """How many refer to a tensor's value and memory; () if the memory is not the value's own. To be compared with that of a new tensor."""
    node = tensor._node
    value = node.value
    memory = home.owned(value) if isinstance(value, Buffer) and value.device is home else None
    if value is None or memory is None:
        return ()
    return (
        node.holders,
        node.users,
        sys.getrefcount(value),
        sys.getrefcount(value.content),
        sys.getrefcount(memory),
    )
