"""From a saved program to a compiled library: sizes of free dimensions, constants and state."""

from __future__ import annotations

import re
from collections.abc import Mapping

import numpy as np

from ..compiler.cpu.target import find_target
from ..errors import UserError
from ..hints import nearest
from ..saved.program import ClosedFunction, Program
from .compile import ClosedProgram, CompiledLibrary, compile_closed

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]*")


def compile_library(
    program: Program,
    name: str = "net",
    target: str = "host",
    sizes: Mapping[str, int] | None = None,
    *,
    weights_inside: bool = True,
    threads: int = 1,
) -> CompiledLibrary:
    """Compile the function of a program's current mode. `sizes` fixes its free dimensions; a batch is 1 if it is not given."""
    if not _NAME.fullmatch(name):
        raise UserError("export_c", f"a name must be one of C (letters, digits, _), got {name!r}.")
    machine = find_target(target)
    if threads < 1 or (threads > 1 and target == "wasm32"):
        allowed = "1 thread" if target == "wasm32" else "1 thread or more"
        raise UserError("export_c", f"{allowed} for {target} is required, got threads={threads}.")
    closed = program.closed(_fixed_sizes(program, sizes or {}))
    return compile_closed(_closed(closed), machine, name, weights_inside=weights_inside, threads=threads)


def _fixed_sizes(program: Program, given: Mapping[str, int]) -> dict[str, int]:
    """A size for each free dimension."""
    free = program.manifest.dimensions
    for name in given:
        if name not in free and not (name == "batch" and given[name] == 1):
            known = nearest(name, list(free)) if free else "All sizes are fixed."
            raise UserError("export_c", f"a free dimension of the program is required, got {name!r}. {known}")
    sizes = {"batch": 1, **given}
    missing = [name for name in free if name not in sizes]
    if missing:
        example = ", ".join(f"{name!r}: 64" for name in missing)
        words = ",".join(f"{name}:64" for name in missing)
        raise UserError(
            "export_c",
            f"a C library has fixed sizes: {', '.join(missing)} of {', '.join(program.argument_types())} must be given: sizes={{{example}}}, or sizes={words} on the command line.",
        )
    return {name: sizes[name] for name in free}


def _closed(function: ClosedFunction) -> ClosedProgram:
    """Tensors that the function replaces are state; all others are constants."""
    manifest = function.manifest
    _check_results(function)
    places = {(port.kind, port.name): i for i, port in enumerate(manifest.inputs)}
    updates = {o: places[p.kind, p.name] for o, p in enumerate(manifest.outputs) if p.kind != "result"}
    values = {i: np.ascontiguousarray(tensor.numpy()) for i, tensor in function.tensors.items()}
    changed = set(updates.values())
    state = {i: array for i, array in values.items() if i in changed}
    return ClosedProgram(function.graph, {i: a for i, a in values.items() if i not in changed}, state, updates)


def _check_results(function: ClosedFunction) -> None:
    manifest = function.manifest
    read = {(port.kind, port.name) for port in manifest.inputs}
    if any(port.kind == "state" and ("state", port.name) not in read for port in manifest.outputs):
        raise UserError(
            "export_c", "state that the program replaces without reading it cannot be exported. Return it instead."
        )
    if any(port.kind == "grad" for port in manifest.outputs) or manifest.cleared:
        raise UserError(
            "export_c", "a C library has no gradients: the program sets .grad of a tensor. Return it instead."
        )
    others = [str(which) for source, which in manifest.results if source != "computed"]
    if others:
        raise UserError(
            "export_c", f"all results must be computed by the program, but it returns {', '.join(others)} as it is."
        )
