"""Finds which layer reads the result of which other in the traced graph, so it works for any `forward`."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import Any

from ..graph.node import Node, toposort
from ..nn.module import Module
from ..nn.summary import ModuleCall, traced_calls
from ..tensor import Tensor


def only_readers(model: Module, example: Any) -> dict[Module, Module]:
    """For each layer that is called once: the only layer that reads its result, if there is just one. Layers are modules without submodules.

    Layers that are the identity in evaluation mode (Identity, Dropout) are skipped.
    """
    traced, calls = traced_calls(model, example)
    leaves = [call for call in calls if len(_layers_in(call.module)) == 1 and isinstance(call.result, Tensor)]
    times = Counter(call.module for call in leaves)
    users: dict[Node, list[Node]] = defaultdict(list)
    for node in toposort(traced.outputs):
        for i in node.inputs:
            users[i].append(node)
    found = {}
    for call in leaves:
        node = call.result._node
        readers = {layer_of_node(user, leaves) for user in users[node]}
        reader = readers.pop() if len(readers) == 1 and node not in traced.outputs else None
        if reader is not None and times[call.module] == times[reader] == 1 and reader is not call.module:
            if not _computes_nothing(call, leaves):
                found[call.module] = reader
    return found


def _layers_in(module: Module) -> list[Module]:
    """A module and its submodules, without parametrizations."""
    return [part for path, part in module.named_modules().items() if "_parametrization" not in path]


def layer_of_node(node: Node, calls: list[ModuleCall]) -> Module | None:
    """The layer whose call created a node."""
    for call in calls:
        if call.begin < node.serial <= call.end:
            return call.module
    return None


def _computes_nothing(call: ModuleCall, calls: list[ModuleCall]) -> bool:
    """Whether the result of a call existed before it."""
    return any(
        call is not other and call.result._node is other.result._node and other.end <= call.begin for other in calls
    )
