"""The device `null`: takes everything and computes nothing. Tests of later passes run on it without hardware."""

from __future__ import annotations

import numpy as np

from ..dtypes import DType
from ..errors import RunError
from .device import Buffer, Device, Program, register


class NullDevice(Device):
    """See the head of this file."""

    name = "null"

    def put(self, array: np.ndarray, dtype: DType) -> Buffer:
        return Buffer(self, array.shape, dtype, None)

    def get(self, buffer: Buffer) -> np.ndarray:
        raise RunError("null", "the null device computes nothing, so there is no value to read. Use another device.")

    def run(self, program: Program) -> list[Buffer]:
        return [Buffer(self, node.shape, node.dtype, None) for node in program.wanted]


null = register(NullDevice())
