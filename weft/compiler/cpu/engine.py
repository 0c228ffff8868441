"""Optimizes LLVM IR, compiles it to object code and loads it. Object code is cached on disk (see store.py)."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import llvmlite.binding as llvm
from llvmlite.binding import ffi

from ...errors import InternalError
from ..store import kept
from .target import CpuTarget, current_target, host

if TYPE_CHECKING:
    from llvmlite import ir

# The emitters have blocked, unrolled and vectorized the code already. LLVM's -O2 pipeline takes five times as long and gives no
# measurable speedup.
_PASSES = (
    "sroa", "instruction_combine", "simplify_cfg", "new_gvn", "instruction_combine",
    "loop_simplify", "lcssa", "loop_rotate", "dead_code_elimination",
)  # fmt: skip


# Without optimization. Variables in memory would slow down the rest of the compilation by more than this pass takes.
_FEWEST_PASSES = ("sroa",)


def object_code(module: ir.Module | str, optimize: bool = True) -> bytes:
    """The module as relocatable object code. May be called from several threads."""
    machine, context = host().new_machine(optimize), llvm.create_context()
    passes = _PASSES if optimize else _FEWEST_PASSES
    return _emitted(machine, _optimise(llvm.parse_assembly(str(module), context), machine, passes))


def _emitted(machine: llvm.TargetMachine, module: llvm.ModuleRef) -> bytes:
    """The same as `machine.emit_object`, without llvmlite's global lock.

    The target machine and the module's context are private to this call, which is all that LLVM requires. Most of the compile time
    is spent here.
    """
    emit = ffi.lib.LLVMPY_TargetMachineEmitToMemory
    with ffi.OutputString() as error:
        buffer = getattr(emit, "_cfn", emit)(machine, module, 1, error)
        if not buffer:
            raise InternalError("llvm", str(error))
    try:
        return ctypes.string_at(ffi.lib.LLVMPY_GetBufferStart(buffer), ffi.lib.LLVMPY_GetBufferSize(buffer))
    finally:
        ffi.lib.LLVMPY_DisposeMemoryBuffer(buffer)


def object_file(modules: Sequence[ir.Module | str], target: CpuTarget, exported: Collection[str]) -> bytes:
    """Modules as one object file that a linker reads. Only the `exported` functions are visible outside of it.

    The modules are optimised together: arguments that are the same in all calls, such as the number of threads, become constants. The
    result is cached under the text of the modules.
    """
    texts = [str(module) for module in modules]
    key = "\n".join(["object file", target.key, *sorted(exported), *texts])
    return kept(key, lambda: _linked(texts, target, exported))


def _linked(texts: Sequence[str], target: CpuTarget, exported: Collection[str]) -> bytes:
    machine, context = target.new_linker_machine(), llvm.create_context()
    whole = llvm.parse_assembly(texts[0], context)
    for text in texts[1:]:
        whole.link_in(llvm.parse_assembly(text, context))
    for symbol in (*whole.functions, *whole.global_variables):
        if not symbol.is_declaration and symbol.name not in exported:
            symbol.linkage = "internal"
    return _emitted(machine, _optimise(whole, machine, ("ipsccp", "global_dead_code_eliminate", *_PASSES)))


def assembly(module: ir.Module | str, target: CpuTarget | None = None) -> str:
    """The module as text, for this CPU or another."""
    machine = (target or host()).machine
    return machine.emit_assembly(optimised(module, machine))  # type: ignore[no-any-return]


def optimised(module: ir.Module | str, machine: llvm.TargetMachine, context: Any = None) -> llvm.ModuleRef:
    return _optimise(llvm.parse_assembly(str(module), context), machine, _PASSES)


def _optimise(module: llvm.ModuleRef, machine: llvm.TargetMachine, passes: Sequence[str]) -> llvm.ModuleRef:
    module.verify()
    module.triple = machine.triple
    module.data_layout = str(machine.target_data)
    manager = llvm.create_new_module_pass_manager()
    for name in passes:
        getattr(manager, f"add_{name}_pass")()
    manager.run(module, llvm.create_pass_builder(machine, llvm.create_pipeline_tuning_options()))
    return module


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
    """Compile and load without the cache, for tests and experiments."""
    return Loaded(object_code(module))


def kept_code(key: str, make: Callable[[], bytes]) -> bytes:
    """Object code cached for this CPU under a key, or made now."""
    return kept(f"{host().key} for {current_target().key}\n{key}", make)
