"""Devices whose buffers are NumPy arrays and whose compiled programs are native code."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from ..compiler import cpu as compiler
from ..compiler.ir.conv_shape import described
from ..compiler.planning.algorithms import LOOPS
from ..dtypes import DType
from ..graph.graph import Graph
from ..graph.node import Node, Op
from ..options import CompileOptions
from . import native
from .device import STATE_LOCK, Buffer, Device
from .team import address_of

if TYPE_CHECKING:
    from ..compiler.ir.program import KernelProgram


class ArrayDevice(Device):
    """See the head of this file."""

    ignored_settings = frozenset({"tf32", "matmul_algorithm"})  # products have one algorithm, in full precision

    def put(self, array: np.ndarray, dtype: DType) -> Buffer:
        return Buffer(self, array.shape, dtype, array)

    def get(self, buffer: Buffer) -> np.ndarray:
        with (
            STATE_LOCK
        ):  # not while a program replaces it; after that, the view keeps the memory from being replaced in place
            content: np.ndarray = buffer.content
            return content.view()

    def compile_options(self, precision: DType | None = None) -> CompileOptions:
        return replace(super().compile_options(precision), threads=native.thread_count())

    def executable(
        self, graph: Graph, updates: Mapping[int, int], options: CompileOptions, constants: frozenset[int]
    ) -> native.NativeExecutable:
        return native.NativeExecutable(graph, updates, native.fitting(graph, options), constants)

    def planned_program(
        self, graph: Graph, updates: Mapping[int, int], options: CompileOptions, constants: frozenset[int]
    ) -> KernelProgram:
        return compiler.backend.compiled(graph, updates, native.fitting(graph, options), constants)

    def release_arenas(self) -> None:
        native.release_arenas()

    def can_compile(self, op: Op) -> bool:
        return compiler.backend.LOWERINGS.can_compile(op)

    def filter_order(self, rank: int) -> tuple[int, ...]:
        """The kernel's axes first and the filters last, as convolutions want them."""
        return (*range(2, rank), 1, 0)

    def refused_algorithms(self, node: Node) -> dict[str, str]:
        direction, shape = described(node)
        options = self.compile_options()
        strides = (1,) * (2 + len(shape.kernel))  # whether an algorithm is possible does not depend on strides
        found = compiler.conv_choice.candidates(direction, shape, strides, options)
        return {
            name: compiler.conv_choice.refusal(name, options)
            for name in self.conv_algorithms
            if name not in found and name != LOOPS
        }

    def remember_times(self, node: Node, milliseconds: Mapping[str, float]) -> None:
        if milliseconds:
            compiler.conv_choice.remember(*described(node), milliseconds)

    def memory(self, buffer: Buffer, order: tuple[int, ...] | None) -> np.ndarray:
        array = native.content(buffer)
        return native.contiguous(array if order is None else array.transpose(order))

    def copied(self, buffer: Buffer, order: tuple[int, ...] | None) -> tuple[np.ndarray, np.ndarray]:
        array = np.array(self.memory(buffer, order), order="C")
        return array, array if order is None else array.transpose(np.argsort(order))

    def owned(self, buffer: Buffer) -> np.ndarray | None:
        content: np.ndarray = buffer.content
        flags = content.flags
        is_whole = content.base is None and flags.c_contiguous and flags.aligned and flags.writeable
        return content if is_whole else None

    def address(self, memory: np.ndarray) -> int:
        return address_of()(memory)
