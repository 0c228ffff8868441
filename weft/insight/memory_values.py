"""The values of a planned program: their memory, their lifetime in kernels, and the layer that created them.

There are two kinds of memory. Parameters, optimizer state, inputs and results have their own memory during the whole call. All other
values share the arena: they live from the kernel that writes them to the last one that reads them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from ..compiler.ir.kernel import Kernel
from ..compiler.ir.program import KernelProgram
from ..compiler.ir.storage import ARENA, nbytes
from ..compiler.planning import describe
from ..errors import OUTSIDE, Scope
from ..graph.node import Node
from ..nn.module import Module, is_made
from ..records import dataclass
from ..tensor import Tensor
from ..tracing.traced import TracedFunction

PARAMETERS, OPTIMIZER, CALL = "parameters", "optimizer state", "inputs and results"
ACTIVATIONS, GRADIENTS, TEMPORARIES = "activations", "gradients", "temporaries"
KINDS = (PARAMETERS, OPTIMIZER, CALL, ACTIVATIONS, GRADIENTS, TEMPORARIES)


@dataclass(frozen=True)
class LiveValue:
    """A value in memory, alive from kernel `first` to kernel `last`."""

    name: str  # of a parameter; "workspace" of a kernel; else ""
    type: str
    nbytes: int
    kind: str  # one of KINDS
    layer: str  # that created it
    phase: str  # forward, backward, update
    first: int
    last: int
    source: str = ""  # line of the user's program
    in_arena: bool = True  # it shares its memory with values of other lifetimes


@dataclass(frozen=True)
class StepKernel:
    """A kernel of the step, for the axis of the timeline."""

    number: int
    name: str
    layer: str
    phase: str


def step_kernels(program: KernelProgram) -> tuple[StepKernel, ...]:
    """The kernels in the order they run."""
    names = {call.kernel: describe.name(program, call) for call in reversed(program.calls) if call.kind != "copy"}
    scopes = [describe.main_scope(kernel) for kernel in program.kernels]
    return tuple(
        StepKernel(i, names[kernel], scope.label, scope.phase)
        for i, (kernel, scope) in enumerate(zip(program.kernels, scopes, strict=True))
    )


# --- memory for the whole call ----------------------------------------------------------------------------------------------------


def call_values(function: TracedFunction, program: KernelProgram) -> Iterator[LiveValue]:
    """Parameters, optimizer state, arguments, results, and prepared constants: alive during all kernels."""
    last = max(0, len(program.kernels) - 1)
    found = [*_inputs(function), *_results(function)]
    if program.memory.kept:
        found.append(_in_call("prepared constants", "", program.memory.kept, TEMPORARIES, OUTSIDE))  # packed weights
    return (replace(value, last=last) for value in found)


def _inputs(function: TracedFunction) -> Iterator[LiveValue]:
    graph = function.graph
    replaced_by = {position: graph.outputs[output] for output, position in function.updates.items()}
    names, tensors = tensor_names(function), {state.position: state.find() for state in function.states}
    outermost = next((type(module).__name__ for module in called_modules(function)), OUTSIDE)
    for position, node in enumerate(graph.inputs):
        if position not in tensors:
            yield _in_call("", str(node.type), nbytes(node), CALL, "argument")
            continue
        name, new = names.get(tensors[position], ""), replaced_by.get(position)
        is_moment = not name and new is not None and _scope(new, Scope()).phase == "update"
        layer = (name.rpartition(".")[0] or outermost) if name else ("optimizer" if is_moment else OUTSIDE)
        yield _in_call(name, str(node.type), nbytes(node), OPTIMIZER if is_moment else PARAMETERS, layer)


def _results(function: TracedFunction) -> Iterator[LiveValue]:
    donated = {donation.output for donation in function.donations}
    for number, node in enumerate(function.graph.outputs):
        if number >= function.first_result and number not in donated:
            scope = _scope(node, Scope())
            kind = GRADIENTS if scope.phase == "backward" else CALL
            made = _in_call("result", str(node.type), nbytes(node), kind, scope.label)
            yield replace(made, phase=scope.phase, source=_line(node))


def _in_call(name: str, type: str, size: int, kind: str, layer: str) -> LiveValue:
    return LiveValue(name, type, size, kind, layer, "", 0, 0, in_arena=False)


def tensor_names(function: TracedFunction) -> dict[Tensor, str]:
    """The names of parameters and running statistics in the modules that the function calls, the outermost first."""
    found: dict[Tensor, str] = {}
    for module in called_modules(function):
        if is_made(module):
            for name, tensor in module.named_tensors().items():
                found.setdefault(tensor, name)
    return found


def called_modules(function: TracedFunction) -> list[Module]:
    """The modules that the function calls, in order."""
    settings = function.guards.settings
    return [] if settings is None else [holder for holder, _ in settings.then if isinstance(holder, Module)]


# --- the arena ----------------------------------------------------------------------------------------------------------------


def arena_values(program: KernelProgram) -> list[LiveValue]:
    """The values that share the arena, and the workspaces of kernels. No byte is counted twice: see `_handed_over`."""
    kernels, slots = program.kernels, program.memory.slots
    scopes = [describe.main_scope(kernel) for kernel in kernels]
    readers: dict[Node, list[int]] = {}
    for i, kernel in enumerate(kernels):
        for node in kernel.reads:
            readers.setdefault(node, []).append(i)
    final = set(program.graph.outputs)  # copied to their own memory after the last kernel
    written: dict[Node, list[int]] = {}
    for i, kernel in enumerate(kernels):
        for node in _written(program, kernel):
            written.setdefault(node, []).append(i)
    found: list[tuple[tuple[int, int], LiveValue]] = []
    for i, kernel in enumerate(kernels):
        for node in _written(program, kernel):
            again = next((j for j in written[node] if j > i), len(kernels))  # it is computed again there
            slot, read = slots[node], [r for r in readers.get(node, []) if i < r < again]
            last = len(kernels) - 1 if node in final and again == len(kernels) else max([i, *read])
            value = _value(node, scopes[i], i, last, [scopes[r].phase for r in read])
            found.append(((slot.offset, slot.nbytes), value))
    return [*_handed_over(found), *_workspaces(program, kernels, scopes)]


def _written(program: KernelProgram, kernel: Kernel) -> Iterator[Node]:
    """The nodes that a kernel writes to the arena, including the result of a product before its epilogue, unless it is streamed."""
    scratch = program.memory.scratch.get(kernel)
    for node in dict.fromkeys([*kernel.outputs, *([kernel.anchor] if kernel.anchor is not None else [])]):
        slot = program.memory.slots.get(node)
        if slot is not None and slot.base == ARENA and slot.nbytes and slot != scratch:
            yield node


def _value(node: Node, kernel_scope: Scope, first: int, last: int, reading: Sequence[str]) -> LiveValue:
    scope, is_kept = _scope(node, kernel_scope), bool({"backward", "update"} & set(reading))
    if scope.phase == "backward" and kernel_scope.phase != "forward":
        kind = GRADIENTS
    else:  # a factor of a derivative that a forward kernel computes by the way, such as the places of maxima, is kept as well
        kind = ACTIVATIONS if is_kept and scope.phase != "update" else TEMPORARIES
    return LiveValue("", str(node.type), nbytes(node), kind, scope.label, scope.phase, first, last, _line(node))


def _handed_over(found: Sequence[tuple[tuple[int, int], LiveValue]]) -> Iterator[LiveValue]:
    """The values with corrected lifetimes: one that is overwritten in place ends before the kernel that overwrites it."""
    by_slot: dict[tuple[int, int], list[LiveValue]] = {}
    for slot, value in found:
        by_slot.setdefault(slot, []).append(value)
    for values in by_slot.values():
        ordered = sorted(
            values, key=lambda value: (value.first, value.last)
        )  # a product before its epilogue comes first
        for value, after in zip(ordered, [*ordered[1:], None], strict=True):
            last = value.last if after is None else min(value.last, after.first - 1)
            if last >= value.first:
                yield value if last == value.last else replace(value, last=last)


def _workspaces(program: KernelProgram, kernels: Sequence[Kernel], scopes: Sequence[Scope]) -> Iterator[LiveValue]:
    for i, kernel in enumerate(kernels):
        slot = program.memory.scratch.get(kernel)
        if slot is not None and slot.nbytes:
            layer, lines = scopes[i].label, describe.sources(kernel)
            line = str(lines[0]) if lines else ""
            yield LiveValue("workspace", "", slot.nbytes, TEMPORARIES, layer, scopes[i].phase, i, i, line)


def _scope(node: Node, otherwise: Scope) -> Scope:
    """The layer of a node; for a node that only changes the layout of another, the layer of that one."""
    while (node.source is None or node.source.scope is None) and len(node.inputs) == 1:
        node = node.inputs[0]
    return (node.source.scope if node.source is not None else None) or otherwise


def _line(node: Node) -> str:
    return str(node.source) if node.source else ""


def live_bytes(values: Sequence[LiveValue], kernels: int) -> dict[str, list[int]]:
    """The live bytes of each kind while each kernel runs."""
    found = {kind: [0] * (kernels + 1) for kind in KINDS}
    for value in values:
        found[value.kind][value.first] += value.nbytes
        found[value.kind][value.last + 1] -= value.nbytes
    for changes in found.values():
        for i in range(1, kernels + 1):
            changes[i] += changes[i - 1]
    return {kind: counts[:kernels] for kind, counts in found.items()}
