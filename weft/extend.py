"""Ops and devices from outside of weft: declared like weft's own, and traced, differentiated, mapped, compiled and tested like them.

    from weft import extend

    softsign = extend.unary(
        "softsign2", lambda x: x / (1 + abs(x)), lambda g, y, x: (g / (1.0 + abs(x)) ** 2,), "x / (1 + |x|).",
        decompose=lambda x: x / (1.0 + abs(x)),
    )

An op has a lowering rule for each backend that compiles it (`lower`), or says which other ops it is made of (`decompose`). A package
that is installed names the module that declares its ops and devices in the entry point group `weft.extensions`; it is loaded when
a device that weft does not know is asked for, or by `load_extensions()`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, TypeVar

from .compiler.cpu.backend import LOWERINGS as CPU
from .compiler.gpu.program import LOWERINGS as GPU
from .compiler.lowering import LoweringTable
from .errors import UserError
from .graph.node import Op as Op
from .graph.node import Type as Type
from .ops.declare import Sample as Sample
from .ops.declare import Wrong as Wrong
from .ops.declare import binary as binary
from .ops.declare import elementwise as elementwise
from .ops.declare import on_nodes as on_nodes
from .ops.declare import unary as unary
from .runtime.array_device import ArrayDevice as ArrayDevice
from .runtime.device import Buffer as Buffer
from .runtime.device import Device as Device
from .runtime.device import NodeProgram as NodeProgram
from .runtime.device import load_extensions as load_extensions
from .runtime.device import register as register_device  # noqa: F401  a public name

F = TypeVar("F", bound=Callable[..., Any])
BACKENDS: dict[str, LoweringTable] = {"cpu": CPU, "gpu": GPU}


def lower(backend: Literal["cpu", "gpu"], op: str) -> Callable[[F], F]:
    """Enter the lowering rule of an op for a backend.

    The rule of an elementwise op gets one call: `c.x` and `c.y` are its arguments, `c.dtype` their type. On CPUs it returns an LLVM
    value, built with `c.code` (llvmlite's builder, for single elements and vectors alike); on GPUs an expression in Triton, as text.

        @extend.lower("gpu", "softsign2")
        def _(c):
            return f"{c.x} / (1.0 + tl.abs({c.x}))"

    The rule of an op with `own_kernels` plans its kernels: on CPUs `(node, threads) -> Plan`, on GPUs an object with `phases`,
    `scratch_tensors` and `write` (see weft/compiler/cpu/special and weft/compiler/gpu/special). If the op has several results, the CPU's rule takes
    `(node, threads, wanted)`: the numbers of those that are read.
    """
    if backend not in BACKENDS:
        raise UserError("lower", f"one of the backends {', '.join(BACKENDS)} is required, got {backend!r}.")

    def enter(rule: F) -> F:
        BACKENDS[backend].add(op, rule)
        return rule

    return enter
