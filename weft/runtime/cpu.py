"""The device `cpu`: graphs that come again, or that are large, run compiled; small ones that come once are interpreted.

Its buffers are NumPy arrays, as those of the reference device.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from ..compiler.pipeline import can_compile
from ..dtypes import DType
from ..errors import RunError
from ..graph.graph import close
from ..graph.node import DATA, VARIABLE, Node, dependencies
from ..knobs import knobs
from .device import Buffer, Device, Program, register
from .native import LARGE, Executable, address, fitting_threads, settings, work
from .reference import interpreted

IMPOSSIBLE = 1 << 48  # elements: no machine has room for so many
REMEMBERED = 512  # structures
Structure = tuple[Any, ...]


class CpuDevice(Device):
    """See the head of this file."""

    name = "cpu"

    def __init__(self) -> None:
        self._seen: OrderedDict[Structure, int] = OrderedDict()
        self._compiled: OrderedDict[Structure, Executable] = OrderedDict()
        self._lock = threading.Lock()

    def put(self, array: np.ndarray, dtype: DType) -> Buffer:
        return Buffer(self, array.shape, dtype, array)

    def get(self, buffer: Buffer) -> np.ndarray:
        content: np.ndarray = buffer.content
        return content

    def run(self, program: Program) -> list[Buffer]:
        if not program.wanted:
            return []
        for node in program.wanted:
            if prod(node.shape) > IMPOSSIBLE:
                room(node)
        found = _structure(program)
        if found is not None:
            key, leaves = found
            executable = self._executable(key, program, leaves)
            if executable is not None:
                return self._run(executable, leaves, program.wanted)
        return interpreted(self, program)

    def _executable(self, key: Structure, program: Program, leaves: Sequence[Node]) -> Executable | None:
        """The compiled form, if there is one or it is time to make one."""
        with self._lock:
            made = self._compiled.get(key)
            if made is not None:
                self._compiled.move_to_end(key)
                return made
            times = self._seen.pop(key, 0) + 1
            self._seen[key] = times
            if len(self._seen) > REMEMBERED:
                self._seen.popitem(last=False)
            # A node takes milliseconds to compile: millions of operations that NumPy could have done meanwhile.
            if times < knobs.compile_after and work(program.order) < LARGE * (1 + len(program.order) // 16):
                return None
            graph = close(leaves, program.wanted)
            made = Executable(graph, {}, fitting_threads(graph))
            self._compiled[key] = made
            if len(self._compiled) > REMEMBERED:
                self._compiled.popitem(last=False)
            return made

    def _run(self, executable: Executable, leaves: Sequence[Node], wanted: Sequence[Node]) -> list[Buffer]:
        arrays = [contiguous(leaf.value.content) for leaf in leaves if leaf.value is not None]
        results = [room(n) for n in wanted]
        executable.run([address(a) for a in (*arrays, *results)])
        return [Buffer(self, n.shape, n.dtype, r) for n, r in zip(wanted, results, strict=True)]


def room(node: Node) -> np.ndarray:
    """Memory for the value of a node."""
    try:
        return np.empty(node.shape, node.dtype.numpy)
    except (MemoryError, ValueError):
        raise RunError(node.op.name, f"there is no memory for a result of type {node.type}.", node.source) from None


def contiguous(array: np.ndarray) -> np.ndarray:
    """The array as compiled code reads it."""
    flags = array.flags
    return array if flags.c_contiguous and flags.aligned else np.array(array, order="C")


def _structure(program: Program) -> tuple[Structure, list[Node]] | None:
    """What is computed, whatever the values: a key, and the leaves whose values it needs. None if it cannot be compiled."""
    number: dict[Node, int] = {}
    leaves: list[Node] = []
    parts: list[Any] = []
    for node in program.order:
        if (node.outputs and node in program.wanted) or not can_compile(node.op):
            return None  # several results at once are kept by the interpreter only
        entry: list[Any] = [node.op, node.params if node.op is not VARIABLE else None]
        for i in dependencies(node):
            if i not in number:
                if i.value is None or i.outputs:
                    return None
                number[i] = len(number)
                leaves.append(i)
                entry.append(i.type)
            entry.append(number[i])
        number[node] = len(number)
        if node.op is DATA:
            return None
        parts.append(tuple(entry))
    key = (settings(), tuple(parts), tuple(number[w] for w in program.wanted))
    return key, leaves


cpu = register(CpuDevice())
