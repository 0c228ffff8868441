"""From IR to machine code in memory: optimise, make object code, load it. Object code is kept on disk (see cache.py)."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable
from typing import Any

import llvmlite.binding as llvm
from llvmlite import ir

from .target import Target, host


def object_code(
    module: ir.Module | str, target: Target | None = None, *, level: int = 2, vectorize: bool = False
) -> bytes:
    """The module as relocatable object code."""
    return host_machine(target).emit_object(optimised(module, target, level=level, vectorize=vectorize))  # type: ignore[no-any-return]


def assembly(module: ir.Module | str, target: Target | None = None) -> str:
    return host_machine(target).emit_assembly(optimised(module, target))  # type: ignore[no-any-return]


def host_machine(target: Target | None) -> llvm.TargetMachine:
    return (target or host()).machine


def optimised(
    module: ir.Module | str, target: Target | None = None, *, level: int = 2, vectorize: bool = False
) -> llvm.ModuleRef:
    parsed = llvm.parse_assembly(str(module))
    parsed.verify()
    machine = host_machine(target)
    parsed.triple = machine.triple
    parsed.data_layout = str(machine.target_data)
    tuning = llvm.create_pipeline_tuning_options(speed_level=level)
    tuning.loop_vectorization = tuning.slp_vectorization = vectorize
    tuning.loop_unrolling = False  # the emitters unroll what is worth it
    builder = llvm.create_pass_builder(machine, tuning)
    builder.getModulePassManager().run(parsed, builder)
    return parsed


class Loaded:
    """Object code in memory, as long as this object lives."""

    def __init__(self, code: bytes, symbols: Iterable[tuple[str, int]] = ()) -> None:
        for name, address in symbols:
            llvm.add_symbol(name, address)
        empty = llvm.parse_assembly("")
        self._engine = llvm.create_mcjit_compiler(empty, host().new_machine())
        self._engine.add_object_file(llvm.ObjectFileRef.from_data(code))
        self._engine.finalize_object()

    def address(self, name: str) -> int:
        found: int = self._engine.get_function_address(name)
        if not found:
            raise KeyError(name)
        return found

    def function(self, name: str, arguments: Iterable[type], result: type | None = None) -> Any:
        return ctypes.CFUNCTYPE(result, *arguments)(self.address(name))


def load(module: ir.Module | str) -> Loaded:
    """Compile and load without a cache: for tests and trials."""
    return Loaded(object_code(module))
