"""The device `cpu`: graphs that recur, or that are large, run compiled; small ones that occur once are interpreted.

Its buffers are NumPy arrays, as those of the reference device.
"""

from __future__ import annotations

from .array_device import ArrayDevice
from .compiling_device import CompilingDevice
from .device import Buffer, NodeProgram, register
from .reference import interpreted


class CpuDevice(ArrayDevice, CompilingDevice):
    """See the head of this file."""

    name = "cpu"
    is_host_processor = True

    def interpret(self, program: NodeProgram) -> list[Buffer]:
        return interpreted(self, program)


cpu = CpuDevice()
register(cpu)
