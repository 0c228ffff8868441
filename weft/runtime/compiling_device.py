"""The base of devices with a compiler: graphs that recur, or that are large, run compiled; small ones that occur once are interpreted."""

from __future__ import annotations

import threading
from abc import abstractmethod
from collections import OrderedDict
from collections.abc import Sequence
from math import prod
from typing import Any

from ..compiler.store import is_recording
from ..errors import RunError
from ..graph.graph import close
from ..graph.node import CONST, DATA, VARIABLE, Node, dependencies
from ..knobs import knobs
from ..options import CompileOptions
from ..timeline import recorded
from .device import EAGER, STATE_LOCK, Buffer, Device, Executable, NodeProgram
from .native import LARGE, work

IMPOSSIBLE = 1 << 48  # elements: more than the memory of any machine
REMEMBERED = 512  # the number of graph structures that are counted, and of programs that are kept
Structure = tuple[Any, ...]


class CompilingDevice(Device):
    """See the head of this file."""

    compiles_collectives = False  # when they are called outside of compiled functions; else they are interpreted

    def __init__(self) -> None:
        # Programs with collectives have a cache of their own: all processes run the same ones, so all evict the same ones.
        self._collectives: OrderedDict[Structure, Executable] = OrderedDict()
        self._seen: OrderedDict[Structure, int] = OrderedDict()
        self._compiled: OrderedDict[Structure, Executable] = OrderedDict()
        self._lock = threading.Lock()

    def is_large(self, program: NodeProgram) -> bool:
        """Whether a program is worth compiling even if it runs only once."""
        # A node takes milliseconds to compile: millions of operations that NumPy could have done meanwhile.
        return work(program.order) >= LARGE * (1 + len(program.order) // 16)

    @abstractmethod
    def interpret(self, program: NodeProgram) -> list[Buffer]:
        """Compute a program's nodes one after the other, by their definitions."""

    def run(self, program: NodeProgram) -> list[Buffer]:
        if not program.wanted:
            return []
        for node in program.wanted:
            if prod(node.shape) > IMPOSSIBLE:
                raise RunError(node.op.name, f"not enough memory for a result of type {node.type}.", node.source)
        collective = any(node.op.kind == "collective" and node.op.own_kernels for node in program.order)
        found = structure(program) if not collective or self.compiles_collectives else None
        if found is not None:
            key, leaves = found
            executable = self._executable((self.options_number(), *key), program, leaves, collective)
            if executable is not None:
                with STATE_LOCK:
                    return self._run(executable, leaves, program.wanted)
        with STATE_LOCK, recorded(EAGER, "interpret"):
            return self.interpret(program)

    def _executable(
        self, key: Structure, program: NodeProgram, leaves: Sequence[Node], collective: bool
    ) -> Executable | None:
        """The executable of a structure, compiled now if it has been seen often enough; None: interpret it.

        Programs with collectives are compiled when first seen: processes may differ in how often they compute the others.
        """
        kept = self._collectives if collective else self._compiled
        with self._lock:
            made = kept.get(key)
            if made is not None and not is_recording():
                kept.move_to_end(key)
                return made
            if not collective and not self._is_due(key, program):
                return None
            if not all(self.can_compile(node.op) for node in program.order):  # asked last: it imports the compiler
                return None
            with recorded(f"compile {EAGER}", "compile"):
                made = self.executable(close(leaves, program.wanted), {}, CompileOptions.numbered(key[0]), frozenset())
            kept[key] = made
            if len(kept) > REMEMBERED:
                kept.popitem(last=False)
            return made

    def _is_due(self, key: Structure, program: NodeProgram) -> bool:
        """Count a structure; whether it is compiled now."""
        times = self._seen.pop(key, 0) + 1
        self._seen[key] = times
        if len(self._seen) > REMEMBERED:
            self._seen.popitem(last=False)
        recurs = times >= knobs.compile_after and any(node.op is not CONST for node in program.order)
        return recurs or self.is_large(program)

    def _run(self, executable: Executable, leaves: Sequence[Node], wanted: Sequence[Node]) -> list[Buffer]:
        held = [executable.argument(i, leaf.value) for i, leaf in enumerate(leaves) if isinstance(leaf.value, Buffer)]
        contents = executable.call([address for _, address in held])
        return [Buffer(self, n.shape, n.dtype, content) for n, content in zip(wanted, contents, strict=True)]


def structure(program: NodeProgram) -> tuple[Structure, list[Node]] | None:
    """The structure of a computation, independent of values: a key, and the leaves whose values it needs.

    None if one program cannot compute it. Whether the ops can be compiled depends on the device.
    """
    number: dict[Node, int] = {}
    leaves: list[Node] = []
    parts: list[Any] = []
    for node in program.order:
        if node.outputs and node in program.wanted:
            return None  # only the interpreter keeps all results of a node
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
    return (tuple(parts), tuple(number[w] for w in program.wanted)), leaves
