"""The device `tpu`: a simulated Tensor Processing Unit and its host.

Compiled functions run on it: int8 products on its array, exactly, everything else on the host. Operations outside `weft.jit` run on the host, one by one.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping

from ..errors import UserError
from ..graph.graph import Graph
from ..graph.node import Node
from ..nn.module import Module
from ..nn.replace import replace_tensors
from ..options import CompileOptions
from ..runtime import native
from ..runtime.array_device import ArrayDevice
from ..runtime.device import STATE_LOCK, Buffer, Device, NodeProgram, register
from ..runtime.reference import interpreted
from .executable import HostExecutable, TpuExecutable
from .machine import TpuMachine
from .partition import partitioned


class TpuDevice(ArrayDevice):
    """The simulated device; see the top of this file."""

    is_modelled = True
    trains = False

    def __init__(self, name: str = "tpu", machine: TpuMachine | None = None) -> None:
        self.name, self.machine = name, machine or TpuMachine()

    def about(self) -> str:
        return f"simulated TPU: {self.machine}"

    def hardware_name(self) -> str:
        return "TPU v1" if self.machine == TpuMachine() else self.about()

    def run(self, program: NodeProgram) -> list[Buffer]:
        with STATE_LOCK:
            return interpreted(self, program)

    def executable(
        self, graph: Graph, updates: Mapping[int, int], options: CompileOptions, constants: frozenset[int]
    ) -> native.NativeExecutable:
        options = native.fitting(graph, options)
        if partitioned(graph, constants).products:
            return TpuExecutable(graph, updates, options, constants, self.machine)
        _refuse_other_products(graph)
        return HostExecutable(graph, updates, options, constants)


def _refuse_other_products(graph: Graph) -> None:
    """Reject a program whose products all run on the host: it would not use the array at all."""
    found: Node | None = next((n for n in graph.nodes if n.op.kernel in ("contraction", "convolution")), None)
    if found is not None:
        raise UserError(
            "tpu",
            f"products of int8 with constant weights are required, got {found.op.name} of {found.dtype.name}. "
            "Quantize the network: weft compress RUN method=int8, or weft.compress.int8 and then weft.compress.to_int8.",
            found.source,
        )


def register_machine(name: str, machine: TpuMachine) -> Device:
    """Register a simulated machine with other settings as a device.

    >>> register_machine("tpu-small", TpuMachine(rows=4, columns=4)).about()
    'simulated TPU: 4 x 4 cells at 700 MHz (0.0224 TOPS), accumulators 4 MiB, unified buffer 24 MiB, weights at 34 GB/s through 4 tiles, host at 14 GB/s'
    """
    return register(TpuDevice(name, machine))


_found: list[Device] = [TpuDevice()]


def find() -> list[Device]:
    """The simulated TPU of 2015."""
    return _found


def to_tpu(network: Module, device: str = "tpu") -> Module:
    """A copy of a network with its tensors on the device, for `weft.jit` while it is the current device.

    fast = weft.tpu.to_tpu(weft.compress.to_int8(model))
    with weft.knobs.set(device="tpu"):
        weft.jit(fast)(x)
    """
    made = copy.deepcopy(network)
    replace_tensors(made, {tensor: tensor.to_device(device).realize() for tensor in made.named_tensors().values()})
    return made
