"""The device `reference`: NumPy runs every op's own definition, one node after the other.

It defines the results of every op: tests compare all other devices with this one. 16-bit floats are
stored as such and computed in float32.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any

import numpy as np

from ..dtypes import bfloat16, float16
from ..errors import RunError, WeftError
from ..graph.graph import Graph
from ..graph.node import DATA, PLACEHOLDER, VARIABLE, Node, dependencies
from ..options import CompileOptions
from ..timeline import recorded
from . import native
from .array_device import ArrayDevice
from .device import STATE_LOCK, Buffer, Device, NodeProgram, register

_NARROW = (float16, bfloat16)


class ReferenceDevice(ArrayDevice):
    """See the head of this file."""

    name = "reference"
    has_kernels = False

    def run(self, program: NodeProgram) -> list[Buffer]:
        with STATE_LOCK:
            return interpreted(self, program)

    def executable(
        self, graph: Graph, updates: Mapping[int, int], options: CompileOptions, constants: frozenset[int]
    ) -> InterpretedExecutable:
        return InterpretedExecutable(graph, updates, native.fitting(graph, options), constants)


class InterpretedExecutable(native.NativeExecutable):
    """A program whose values are computed by the definitions of its ops. Its kernels, sources and times are those of the code for the CPU."""

    def __init__(
        self, graph: Graph, updates: Mapping[int, int], options: CompileOptions, constants: frozenset[int]
    ) -> None:
        self.describe(graph, updates, options, constants)
        self.values: Callable[..., Sequence[np.ndarray]] = interpret(graph)

    def call(self, inputs: Sequence[int], again: bool = True) -> list[np.ndarray]:
        given = [_array_at(address, node) for address, node in zip(inputs, self.graph.inputs, strict=True)]
        with STATE_LOCK, recorded(self.label, "call"):
            # Copies: a result may be a view of an input, and an input is replaced.
            found = [np.array(array, order="C") for array in self.values(*given)]
            for number, position in self.updates.items():
                given[position][...] = found[number]
        return [array for number, array in enumerate(found) if number not in self.updates]


def _array_at(address: int, node: Node) -> np.ndarray:
    """The array at an address, which the caller keeps alive."""
    memory = (ctypes.c_byte * (prod(node.shape) * node.dtype.itemsize)).from_address(address)
    array: np.ndarray = np.ctypeslib.as_array(memory).view(node.dtype.numpy).reshape(node.shape)
    return array


def interpreted(device: Device, program: NodeProgram) -> list[Buffer]:
    """The program computed node by node, its results as buffers of a device whose buffers are arrays."""
    known: dict[Node, Any] = {}
    wanted = set(program.wanted)
    last = _last_uses(program.order)
    with np.errstate(all="ignore"):
        for node, finished_here in zip(program.order, last, strict=True):
            inputs = [known[i] if i in known else _value(i, known) for i in dependencies(node)]
            known[node] = compute(node, inputs)
            for finished in finished_here:
                if finished not in wanted:
                    known.pop(finished, None)
    return [Buffer(device, node.shape, node.dtype, _own(known[node])) for node in program.wanted]


def _own(content: Any) -> Any:
    """A small part of a large array is copied, so that the large one can be freed. Several results are a tuple."""
    if isinstance(content, tuple):
        return tuple(map(_own, content))
    base = content.base
    return content.copy() if isinstance(base, np.ndarray) and base.nbytes > 2 * content.nbytes + 1024 else content


def compute(node: Node, inputs: Sequence[Any]) -> Any:
    """The value of one node, given the values of its inputs: an array, or a tuple of arrays."""
    op = node.op
    if not node.inputs and inputs:
        return inputs[0]  # a parameter whose new value was pending
    if op.widen and node.inputs[0].dtype in _NARROW:
        pairs = zip(inputs, node.inputs, strict=True)
        inputs = [np.asarray(array, np.float32) if i.dtype in _NARROW else array for array, i in pairs]
    try:
        result = op.reference(tuple(inputs), *node.params) if op.arity is None else op.reference(*inputs, *node.params)
    except WeftError as error:  # report the line that created the op, not the one that read its value
        raise type(error)(error.where, error.message, node.source) from None
    except MemoryError:
        raise RunError(op.name, f"not enough memory for a result of type {node.type}.", node.source) from None
    except (ValueError, TypeError, OverflowError) as error:
        raise RunError(op.name, f"NumPy cannot compute a result of type {node.type}: {error}.", node.source) from error
    if node.outputs:
        return tuple(np.asarray(r, t.dtype.numpy) for r, t in zip(result, node.outputs, strict=True))
    return np.asarray(result, node.dtype.numpy)


def interpret(graph: Graph) -> Callable[..., tuple[Any, ...]]:
    """The graph as a function from arrays to arrays."""
    order = [n for n in graph.nodes if n.op not in (PLACEHOLDER, DATA, VARIABLE)]
    last, kept = _last_uses(order), {*graph.inputs, *graph.outputs}

    def call(*arrays: Any) -> tuple[Any, ...]:
        known = dict(zip(graph.inputs, arrays, strict=True))
        with np.errstate(all="ignore"):
            for node, finished_here in zip(order, last, strict=True):
                known[node] = compute(node, [_value(i, known) for i in node.inputs])
                for finished in finished_here:
                    if finished not in kept:
                        known.pop(finished, None)
        return tuple(_value(o, known) for o in graph.outputs)

    return call


def _value(node: Node, known: dict[Node, Any]) -> Any:
    if node in known:
        return known[node]
    assert node.value is not None
    return node.value.content


def _last_uses(order: Sequence[Node]) -> list[list[Node]]:
    """For each position, the nodes that are not read after it."""
    seen: set[Node] = set()
    ends: list[list[Node]] = []
    for node in reversed(order):
        ends.append([i for i in (*dependencies(node), node) if i not in seen])
        seen.update(ends[-1])
    return ends[::-1]


reference = register(ReferenceDevice())
