"""Equalisation of residual streams, which several layers add to and several layers read, without an activation between them, as in MobileNetV2.

Channel i is divided by s_i in all layers that write the stream, and the weights of all layers that read it are multiplied by s_i: additions commute with such factors, so
the function of the network is unchanged. s_i is the square root of the channel's range, a compromise between finer activations and less equal weights.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import field
from typing import Any

import numpy as np

from ..graph.node import Node, toposort
from ..nn.module import Module
from ..nn.summary import ModuleCall, traced_calls
from ..records import dataclass
from ..tensor import Tensor
from .connections import layer_of_node
from .equalize import centred_factor, divide_outputs, multiply_inputs
from .folding import PRODUCTS, can_scale, channel_axis
from .layers import sharing_layers
from .observers import ObservedPlace, observe
from .taps import BEFORE


@dataclass
class Stream:
    """The layers that write a stream, and those that read it."""

    writers: list[Any] = field(default_factory=list)
    readers: list[Any] = field(default_factory=list)


def equalize_streams(model: Module, batches: list[Any]) -> int:
    """Equalise the channels of all residual streams, by their ranges on batches; returns the number of streams."""
    found = streams(model, batches[0])
    paths = {module: path for path, module in model.named_modules().items()}
    readers = {reader for stream in found for reader in stream.readers}
    places = {one: ObservedPlace(paths[one], one, BEFORE, channel_axis(one)) for one in readers}
    seen = observe("equalize", model, places.values(), batches, per_channel=True) if places else {}
    for stream in found:
        values = [seen[places[reader]].values for reader in stream.readers]
        ranges = np.max([np.maximum(np.abs(v.low), np.abs(v.high)) for v in values], axis=0)
        factor = centred_factor(np.log(np.where(ranges > 0, ranges, 1.0)) / 2, ranges > 0)
        for writer in stream.writers:
            divide_outputs(writer, factor)
        for reader in stream.readers:
            multiply_inputs(reader, factor)
    return len(found)


def streams(model: Module, example: Any) -> list[Stream]:
    """The residual streams of a network that only convolutions (or only linear layers) without activation write, and only such layers read."""
    traced, calls = traced_calls(model, example)
    products = [c for c in calls if isinstance(c.module, PRODUCTS) and isinstance(c.result, Tensor)]
    graph = _StreamGraph(products, traced.outputs)
    sharing = sharing_layers(model)
    found, done = [], set[Node]()
    for call in products:
        if call.result._node not in done:
            stream = graph.follow(call.result._node, done)
            if stream is not None and _can_equalize([*stream.writers, *stream.readers], stream.writers, sharing):
                found.append(stream)
    return found


def _can_equalize(layers: list[Any], writers: list[Any], sharing: set[Module]) -> bool:
    return (
        len({channel_axis(layer) for layer in layers}) == 1
        and all(can_scale(layer, sharing) for layer in layers)
        and all(writer.activation in (None, "linear", "identity") for writer in writers)
    )


class _StreamGraph:
    """Follows tensors through additions."""

    def __init__(self, products: list[ModuleCall], outputs: Any) -> None:
        self.products, self.outputs = products, set(outputs)
        self.results = {call.result._node: call.module for call in products}
        self.calls_of = Counter(call.module for call in products)
        self.users: dict[Node, list[Node]] = defaultdict(list)
        for node in toposort(outputs):
            for i in node.inputs:
                self.users[i].append(node)

    def follow(self, start: Node, done: set[Node]) -> Stream | None:
        """The stream that a result is part of; None if anything but additions and layers uses it, or nothing is added."""
        stream, waiting, adds, fits = Stream(), [start], 0, True
        while waiting:
            node = waiting.pop()
            if node in done:
                continue
            done.add(node)
            if node in self.results:
                stream.writers.append(self.results[node])
            elif self._is_addition(node):
                adds += 1
                waiting += node.inputs
            else:
                fits = False
                continue
            fits = fits and node not in self.outputs
            for user in self.users[node]:
                layer = layer_of_node(user, self.products)
                if layer is not None and layer not in stream.readers:
                    stream.readers.append(layer)
                elif layer is None:
                    waiting.append(user)
        once = all(self.calls_of[layer] == 1 for layer in (*stream.writers, *stream.readers))
        return stream if fits and adds and once and stream.readers else None

    def _is_addition(self, node: Node) -> bool:
        return node.op.name == "add" and layer_of_node(node, self.products) is None
