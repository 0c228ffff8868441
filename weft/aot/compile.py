"""Compiles a saved program to one object file with a C function: `int NAME_run(input, ..., output, ..., workspace)`.

The code is what runs in process, planned for the target. Everything that depends on the weights alone (packed filters, folded
batch norms) is computed now: code generated for the target is compiled for this machine, and its results become constants.
"""

from __future__ import annotations

import ctypes
from collections.abc import Collection, Mapping, Sequence
from dataclasses import field, replace
from math import prod

import numpy as np
from llvmlite import ir

from ..compiler.cpu import library
from ..compiler.cpu.backend import can_compile, compiled
from ..compiler.cpu.engine import Loaded, kept_code, object_code, object_file
from ..compiler.cpu.ir_builder import I8, I32, I64, PTR, Code, Value, new_module
from ..compiler.cpu.module import EmittedModule, write
from ..compiler.cpu.target import CpuTarget, compiling_for
from ..compiler.ir.program import FRAME_RESERVED, KernelProgram
from ..compiler.ir.storage import ALIGN, ARENA, KEPT, Slot
from ..dtypes import DType
from ..errors import InternalError, UserError
from ..graph.graph import Graph
from ..graph.node import Node, Shape
from ..graph.text import subgraphs
from ..options import CompileOptions
from ..records import dataclass
from .object_reader import ObjectSummary, check_symbols, read_object
from .threads import SYMBOLS, write_barrier, write_team
from .weights import DATA, PackedWeights, data_module, filled, kept_ranges

_ENTRY = "program"  # not "main": LLVM gives that a meaning on some targets
MISALIGNED = -1  # what the function returns if the workspace is not aligned


@dataclass(frozen=True)
class Argument:
    """An argument of the C function: a pointer to a tensor in C order."""

    name: str
    dtype: DType
    shape: Shape
    changed: bool = False  # an input that the program modifies

    @property
    def nbytes(self) -> int:
        return prod(self.shape) * self.dtype.itemsize


@dataclass(frozen=True)
class ClosedProgram:
    """What is compiled: a graph, and which of its inputs are constants or state."""

    graph: Graph
    constants: Mapping[int, np.ndarray]  # by the position of the input
    state: Mapping[int, np.ndarray]  # inputs that runs replace, with their first values
    updates: Mapping[int, int]  # outputs that replace inputs in place

    @property
    def arguments(self) -> list[int]:
        """The positions of the inputs that the caller gives."""
        return [i for i in range(len(self.graph.inputs)) if i not in self.constants and i not in self.state]

    @property
    def results(self) -> list[int]:
        """The positions of the outputs that the caller gets."""
        return [i for i in range(len(self.graph.outputs)) if i not in self.updates]


@dataclass(frozen=True)
class CompiledLibrary:
    """An object file, and what its header says."""

    name: str
    target: CpuTarget
    object: bytes = field(repr=False)
    inputs: tuple[Argument, ...]
    outputs: tuple[Argument, ...]
    workspace: int  # bytes, aligned to ALIGN
    state: int  # bytes that runs change, aligned likewise; 0 for most programs
    weights: bytes = field(repr=False)  # constants, packed as the code reads them
    weights_inside: bool
    errors: tuple[str, ...]  # the function returns 1 + the position of one of them
    summary: ObjectSummary
    threads: int

    @property
    def function(self) -> str:
        return f"{self.name}_run"


def compile_closed(
    closed: ClosedProgram, target: CpuTarget, name: str, *, weights_inside: bool = True, threads: int = 1
) -> CompiledLibrary:
    """Compile a program for a CPU. The symbols of its functions begin with `name`."""
    _check_ops(closed.graph)
    functions = [f"{name}_run", *([f"{name}_init"] if closed.state else [])]
    with compiling_for(target):
        whole = compiled(
            closed.graph, closed.updates, CompileOptions.current("cpu", threads=threads), frozenset(closed.constants)
        )
        program = replace(whole, calls=[call for call in whole.calls if not call.once])
        slots = write(program, barriers=threads > 1).slots
        weights = _weights(whole, slots, closed)
        emitted = write(program, barriers=threads > 1, entry=_ENTRY, place_of=weights.place_of)
        modules: list[ir.Module | str] = [emitted.module, *map(library.module_of, emitted.symbols)]
        modules.append(_RunEmitter(program, closed, weights, weights_inside, threads).written(functions))
        if weights_inside and weights.size:
            modules.append(data_module(weights.size))
        code = object_file(modules, target, functions)
    changed = set(closed.updates.values())
    packed, summary = weights.packed(), read_object(code)
    check_symbols(summary, target.arch, SYMBOLS if threads > 1 else frozenset())
    return CompiledLibrary(
        name, target, filled(code, packed) if weights_inside and packed else code,
        _arguments("input", [closed.graph.inputs[i] for i in closed.arguments], [i in changed for i in closed.arguments]),
        _arguments("output", [closed.graph.outputs[i] for i in closed.results], [False] * len(closed.results)),
        program.memory.arena, weights.state_size, packed, weights_inside, _error_texts(emitted), summary, threads,
    )  # fmt: skip


def _arguments(name: str, nodes: Sequence[Node], changed: Sequence[bool]) -> tuple[Argument, ...]:
    names = [name] if len(nodes) == 1 else [f"{name}{i}" for i in range(len(nodes))]
    return tuple(
        Argument(own, node.dtype, node.shape, is_changed)
        for own, node, is_changed in zip(names, nodes, changed, strict=True)
    )


def _check_ops(graph: Graph) -> None:
    nodes = [node for part in (*subgraphs(graph), graph) for node in part.nodes]
    unknown = sorted({node.op.name for node in nodes if not can_compile(node.op)})
    if unknown:
        raise UserError(
            "export_c", f"every op must compile for CPUs, got {', '.join(unknown)}, which cannot be compiled."
        )


def _error_texts(emitted: EmittedModule) -> tuple[str, ...]:
    """The texts of errors. They are constants in C, so the value at fault is left out."""
    return tuple(f"[{where}] {message.replace('{value} ', '')}" for where, message, _ in emitted.sites)


def _weights(program: KernelProgram, read: Collection[Slot], closed: ClosedProgram) -> PackedWeights:
    """The constants that every run reads from these slots: what is prepared once, and inputs as they are."""
    kept, bases = [slot for slot in read if slot.base == KEPT], {slot.base for slot in read}
    memory = _prepared(program, closed.constants) if kept else np.empty(0, np.uint8)
    used = {position: array for position, array in closed.constants.items() if FRAME_RESERVED + position in bases}
    return PackedWeights(memory, kept_ranges(kept), used, closed.state)


def _prepared(program: KernelProgram, constants: Mapping[int, np.ndarray]) -> np.ndarray:
    """The memory that is kept from run to run, computed on this machine."""
    once = write(replace(program, calls=[call for call in program.calls if call.once]), barriers=False)
    with library.preparing(once.symbols):
        text = str(once.module)
        code = kept_code(f"prepared constants\n{text}", lambda: object_code(text))
    loaded = Loaded(code, [(symbol, library.address(symbol)) for symbol in once.symbols])
    kept, arena = aligned(_rounded(program.memory.kept)), aligned(program.memory.arena)
    status = (ctypes.c_int64 * 3)(0, 0, 1)
    frame = (ctypes.c_void_p * program.frame_size)()
    frame[ARENA], frame[1], frame[KEPT] = arena.ctypes.data, ctypes.addressof(status), kept.ctypes.data
    for position, array in constants.items():
        frame[FRAME_RESERVED + position] = array.ctypes.data
    loaded.function("main", [ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p])(
        ctypes.addressof(frame), 0, 1, None
    )
    if status[0]:
        raise InternalError("export_c", f"constants could not be prepared: {once.sites[status[0] - 1]}")
    return kept


def _rounded(size: int) -> int:
    return -(-size // ALIGN) * ALIGN


def aligned(size: int) -> np.ndarray:
    """Zeros that are aligned as programs expect their memory."""
    memory = np.zeros(size + ALIGN, np.uint8)
    first = -memory.ctypes.data % ALIGN
    return memory[first : first + size]


class _RunEmitter:
    """Emits the functions that C calls: `run` fills a frame with its arguments and runs the program, `init` copies the first state.

    run(inputs ..., outputs ..., [state], workspace, [weights]), init(state, [weights])
    """

    def __init__(
        self, program: KernelProgram, closed: ClosedProgram, weights: PackedWeights, weights_inside: bool, threads: int
    ) -> None:
        self.program, self.closed, self.weights, self.weights_inside = program, closed, weights, weights_inside
        self.module, self.threads = new_module("run"), threads

    def written(self, functions: Sequence[str]) -> ir.Module:
        self._run(functions[0])
        for name in functions[1:]:
            self._init(name)
        return self.module

    def _run(self, name: str) -> None:
        closed, inputs = self.closed, self.closed.graph.inputs
        count = len(closed.arguments) + len(closed.results) + bool(closed.state) + 1 + (not self.weights_inside)
        code = Code.begin(self.module, name, [PTR] * count, I32)
        given = iter(code.arguments)
        places = {FRAME_RESERVED + i: next(given) for i in closed.arguments}
        places |= {FRAME_RESERVED + len(inputs) + i: next(given) for i in closed.results}
        if closed.state:
            state = next(given)
            places |= {FRAME_RESERVED + i: code.at(state, at, I8) for i, at in self.weights.state_offsets.items()}
        workspace = next(given)
        data = self._data(code) if self.weights_inside else next(given)
        _refuse_misaligned(code, [workspace, *([state] if closed.state else [])])
        status = code.stack_array(I64, 3)
        for i in range(3):
            code.write(code.i64(0), status, i)
        places |= {FRAME_RESERVED + i: code.at(data, at, I8) for i, at in self.weights.offsets.items()}
        self._call_main(code, places | {ARENA: workspace, 1: status, KEPT: data})
        code.done(code.trunc(code.read(status, 0, I64), I32))

    def _call_main(self, code: Code, places: Mapping[int, Value]) -> None:
        frame = code.stack_array(PTR, self.program.frame_size)
        for i, pointer in places.items():
            code.write(pointer, frame, i)
        program = ir.Function(self.module, ir.FunctionType(ir.VoidType(), [PTR, I64, I64, PTR]), _ENTRY)
        if self.threads == 1:
            code.call(program, [frame, code.i64(0), code.i64(1), ir.Constant(PTR, None)])
            return
        write_barrier(self.module)
        code.call(write_team(self.module, program, self.threads), [frame])

    def _init(self, name: str) -> None:
        code = Code.begin(self.module, name, [PTR] * (1 + (not self.weights_inside)))
        data = self._data(code) if self.weights_inside else code.arguments[1]
        first = code.at(data, self.weights.state_begin, I8)
        size, volatile = code.i64(self.weights.state_size), ir.Constant(ir.IntType(1), 0)
        code.intrinsic("memcpy", code.arguments[0], first, size, volatile, types=[PTR, PTR, I64], result=ir.VoidType())
        code.done()

    def _data(self, code: Code) -> Value:
        if not self.weights.size:
            return ir.Constant(PTR, None)
        data = self.module.globals.get(DATA) or ir.GlobalVariable(
            self.module, ir.ArrayType(I8, self.weights.size), DATA
        )
        data.type = PTR  # llvmlite would say what it points to; LLVM no longer does
        return data


def _refuse_misaligned(code: Code, pointers: Sequence[Value]) -> None:
    for pointer in pointers:
        low = code.and_(code.ptrtoint(pointer, I64), code.i64(ALIGN - 1))
        with code.if_then(code.icmp_signed("!=", low, code.i64(0)), likely=False):
            code.ret(ir.Constant(I32, MISALIGNED))
