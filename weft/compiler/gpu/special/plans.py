"""Kernels of ops that are neither loops nor products: sorting, scattering, cumulative sums and products, and collectives.

Each is a plan of a few phases, and each phase one launch. Phases pass intermediate results through the kernel's scratch.
"""

from __future__ import annotations

from typing import Protocol

from ....graph.node import Node
from ...ir.kernel import Kernel
from ...ir.plan import Plan, PlanPhase
from ..attention import plans as attention
from ..kernel_utils import scratch_bytes, scratch_offsets
from ..source import KernelSource
from . import collectives, scatter, semi_sparse, slice_update, sort
from . import cumulative as cumulate


class OwnKernels(Protocol):
    """A module that writes one kind of op."""

    def phases(self, kernel: Kernel) -> tuple[PlanPhase, ...]: ...
    def scratch_tensors(self, kernel: Kernel) -> tuple[Node, ...]: ...
    def write(self, kernel: Kernel, phase: PlanPhase) -> KernelSource: ...


METHODS = ("phases", "scratch_tensors", "write")
KERNELS: dict[str, OwnKernels] = {
    "argsort": sort, "top_k": sort, "scatter": scatter, "update_slice": slice_update, "cumsum": cumulate, "cumprod": cumulate,
    "attention": attention, "attention_gradients": attention, "compress_semi_sparse": semi_sparse,
    **dict.fromkeys(
        ("all_reduce", "all_reduce_bucket", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "shift", "axis_index"), collectives,
    ),
}  # fmt: skip


def plan(kernel: Kernel) -> Plan:
    """The phases of a kernel; they name the anchor's inputs "x0", "x1", ..., its result "y", and the scratch "work"."""
    phases = _kernels(kernel).phases(kernel)
    name = kernel.name if phases else "nothing"
    return Plan(name, phases, scratch_bytes(_kernels(kernel).scratch_tensors(kernel)) if phases else 0, 0)


def write(kernel: Kernel, phase: PlanPhase) -> KernelSource:
    """The source of one phase."""
    return _kernels(kernel).write(kernel, phase)


def scratch_layout(kernel: Kernel) -> dict[Node, int]:
    """The tensors in the kernel's scratch, and where in it they begin, in bytes."""
    return scratch_offsets(_kernels(kernel).scratch_tensors(kernel))


def _kernels(kernel: Kernel) -> OwnKernels:
    return KERNELS[kernel.name]
