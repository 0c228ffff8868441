"""What NVIDIA's libraries are asked for: recorded by a judge that agrees to everything, and answered by definition, in float64.

So a claim that says too much (a relu that is none, a bias that is not one number a filter) gives wrong numbers here.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import weft
from weft.compiler.gpu.commands import Copy, LibraryCall
from weft.compiler.gpu.program import commands, gpu_program
from weft.compiler.gpu.vendor.claims import Claim
from weft.compiler.gpu.vendor.specs import ConvSpec, ProductSpec
from weft.compiler.ir.program import FRAME_RESERVED, KernelProgram
from weft.compiler.ir.storage import ARENA, Slot
from weft.dtypes import as_dtype
from weft.graph import OPS, Graph
from weft.options import CompileOptions
from weft.testing import counted, generator

pytest.importorskip("triton")
from fake_vendors import gelu_slope
from triton_runner import run_kernel

F = Callable[..., Any]


def first(x: np.ndarray) -> np.ndarray:
    return np.moveaxis(x, -1, 1)


def convolved(spec: ConvSpec, operands: list[np.ndarray]) -> np.ndarray:
    """A convolution or its derivative, of channels last, in float64."""
    a, b = (first(o) for o in operands[:2])
    padding = tuple(zip(spec.padding_before, spec.padding_after, strict=True))
    how = (spec.stride, padding, spec.dilation, spec.groups, "")
    match spec.direction:
        case "forward":
            value = OPS["conv"].reference(a, b, *how)
        case "data_gradient":
            value = OPS["conv_data"].reference(a, b, *how, spec.spatial)
        case _:
            value = OPS["conv_filter"].reference(a, b, *how, spec.kernel)
    value = np.moveaxis(value, 1, -1)
    for addend in operands[2:]:  # a bias, a residual
        value = value + addend
    return np.maximum(value, 0) if "relu" in spec.epilogue else value


def multiplied(spec: ProductSpec, memory: list[np.ndarray]) -> np.ndarray:
    """A product with its epilogue, in float64."""
    a, b = (_matrices(spec, memory[n], n).astype(np.float64) for n in (0, 1))
    value = a @ b
    if spec.has_bias:
        value = value + _typed(memory[2], spec.c_dtype)[: spec.n].astype(np.float64)
    if spec.residual:
        added = _typed(memory[spec.arguments.index("residual")], spec.c_dtype)[: value.size]
        value = value + added.astype(np.float64).reshape(value.shape)
    if spec.epilogue.endswith("relu"):
        value = np.maximum(value, 0)
    if spec.has_sum:
        kept = _typed(memory[-2], spec.c_dtype)[: spec.m * spec.n].reshape(value.shape)
        if spec.epilogue == "dgelu_tanh":
            return gelu_slope(value, kept.astype(np.float64))
        kept[...] = value
    if "gelu_tanh" in spec.epilogue:
        value = value / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (value + 0.044715 * value**3)))
    return value


def answer(spec: ConvSpec | ProductSpec, memory: list[np.ndarray]) -> None:
    """Do what a library is asked for, on the bytes of its arguments."""
    if isinstance(spec, ProductSpec):
        assert len(memory) == len(spec.arguments)
        _typed(memory[-1], spec.c_dtype)[: spec.batch * spec.m * spec.n] = multiplied(spec, memory).reshape(-1)
        return
    kinds = {spec.arguments[-1]: spec.result_dtype, "residual": spec.result_dtype}
    arrays = []
    for name, here in zip(spec.arguments, memory, strict=True):
        sizes = spec.sizes(name)
        arrays.append(_typed(here, kinds.get(name, spec.dtype))[: np.prod(sizes)].reshape(sizes))
    arrays[-1][...] = convolved(spec, [a.astype(np.float64) for a in arrays[:-1]])


def _typed(memory: np.ndarray, name: str) -> np.ndarray:
    return memory.view(as_dtype(name, "test").numpy)


def _matrices(spec: ProductSpec, memory: np.ndarray, number: int) -> np.ndarray:
    shape = (spec.batch, spec.m, spec.k) if number == 0 else (spec.batch, spec.k, spec.n)
    flat = _typed(memory, (spec.a_dtype, spec.b_dtype)[number])
    steps = tuple(s * flat.itemsize for s in (spec.a_strides, spec.b_strides)[number])
    return np.lib.stride_tricks.as_strided(flat, shape, steps)


def played(program: KernelProgram, arrays: list[np.ndarray]) -> list[np.ndarray]:
    """The results of a program, its libraries played by the definition."""
    graph = program.graph
    arena = np.full(program.memory.arena + 64, 0x7F, np.uint8)  # poisoned
    outputs = [np.zeros(o.shape, o.dtype.numpy) for o in graph.outputs]
    frame = {ARENA: arena} | dict(enumerate([*map(np.ascontiguousarray, arrays), *outputs], FRAME_RESERVED))

    def memory(slot: Slot) -> np.ndarray:
        return frame[slot.base].reshape(-1).view(np.uint8)[slot.offset : slot.offset + slot.nbytes]

    for step in commands(program):
        if isinstance(step, LibraryCall):
            answer(step.spec, [memory(s) for s in step.slots])
        elif isinstance(step, Copy):
            memory(step.target)[:] = memory(step.source)
        else:
            pairs = zip(step.kernel.arguments, step.slots, strict=True)
            assert not run_kernel(step.kernel, {n: memory(s).view(n.dtype.numpy).reshape(n.shape) for n, s in pairs})[0]
    return outputs


def claims_of(graph: Graph, narrow: Any = None, plain: bool = False) -> tuple[KernelProgram, list[Claim]]:
    """The program, and what libraries do of it. `plain`: they know no epilogues."""
    found: dict[Any, Claim] = {}

    def judge(kernel: Any, wanted: Claim) -> bool:
        if plain and wanted.spec.epilogue:
            return False
        found[kernel] = wanted
        return True

    program = gpu_program(graph, {}, CompileOptions("cuda", narrow), judge=judge)
    return program, list(found.values())


def usual(w: Any) -> Any:
    """Filters with their channels before their kernels, of such that lie with channels last."""
    return weft.permute_dims(w, (0, w.ndim - 1, *range(1, w.ndim - 1)))


def asked(
    f: F,
    *shapes: tuple[int, ...],
    narrow: Any = None,
    tolerance: float = 3e-6,
    plain: bool = False,
    filters: tuple[int, ...] = (1,),
    dtype: Any = weft.float32,
) -> list[Claim]:
    """What is claimed for a function; its numbers are right. `filters`: the arguments that lie as libraries want filters."""
    rng = generator(str(shapes))
    arrays = [rng.normal(size=s).astype(dtype.numpy) for s in shapes]
    lying = [np.moveaxis(a, 1, -1).copy() if n in filters and a.ndim > 2 else a for n, a in enumerate(arrays)]

    def seen(*given: Any) -> Any:
        return f(*(usual(a) if n in filters and a.ndim > 2 else a for n, a in enumerate(given)))

    program, found = claims_of(weft.make_graph(seen, *lying), narrow, plain)
    with weft.knobs.set(device="reference"):
        exact = f(*(weft.asarray(a.astype(np.float64)) for a in arrays))
    exact = exact if isinstance(exact, tuple) else (exact,)
    for actual, e in zip(played(program, lying), exact, strict=True):
        scale = np.abs(e.numpy().astype(np.float64)).max() or 1.0
        np.testing.assert_allclose(
            actual.astype(np.float64), e.numpy().astype(np.float64), rtol=0, atol=tolerance * scale
        )
        counted()
    return found
