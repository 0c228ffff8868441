"""Runs emitted kernels on NumPy arrays, under Triton's interpreter, which wants arguments that look like torch's tensors."""

import ctypes
import dataclasses
import functools
import importlib.util
import inspect
import math
import os
import tempfile
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import triton.language as tl
from triton.language.extra import libdevice
from triton.language.semantic import TritonSemantic
from triton.runtime import interpreter

import weft
from weft.compiler.cpu.backend import apply_passes
from weft.compiler.gpu.anchors import is_contraction
from weft.compiler.gpu.commands import Copy
from weft.compiler.gpu.contraction import write_contraction
from weft.compiler.gpu.kernels import write_kernel
from weft.compiler.gpu.program import LANES, LOWERINGS, commands
from weft.compiler.gpu.source import KernelSource
from weft.compiler.gpu.special import plans as special
from weft.compiler.ir.kernel import Kernel
from weft.compiler.ir.nest import ready_nest
from weft.compiler.ir.program import FRAME_RESERVED, KernelProgram
from weft.compiler.ir.storage import ARENA, Slot
from weft.compiler.passes.decompose import decompose
from weft.compiler.planning.fuse import fuse
from weft.dtypes import bfloat16, bool_
from weft.errors import RunError
from weft.graph import Graph, Node
from weft.runtime.reference import compute
from weft.tracing.state import memory_of

_FOLDER = tempfile.TemporaryDirectory(prefix="weft-triton-")
_UNARY = {
    "rint": np.rint,
    "trunc": np.trunc,
    "exp": np.exp,
    "log": np.log,
    "erf": np.vectorize(math.erf, otypes=[float]),
}
_UNARY |= {n: getattr(np, n) for n in ("expm1", "log1p", "log2", "log10", "sin", "cos", "tan", "sinh", "cosh", "tanh")}
_UNARY |= {n: getattr(np, f"arc{n[1:]}") for n in ("asin", "acos", "atan", "asinh", "acosh", "atanh")}
_BINARY = {
    "pow": np.power,
    "fmod": np.fmod,
    "copysign": np.copysign,
    "nextafter": np.nextafter,
    "atan2": np.arctan2,
    "hypot": np.hypot,
}


class _Dtype:
    def __init__(self, name: str) -> None:
        self.name = name

    def __str__(self) -> str:
        return f"torch.{self.name}"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Dtype) and self.name == other.name

    def __hash__(self) -> int:
        return hash(self.name)


class _Array:
    """A NumPy array as the interpreter wants to see it."""

    def __init__(self, array: np.ndarray, name: str) -> None:
        self.array, self.dtype = array, _Dtype(name)

    def data_ptr(self) -> int:
        return int(self.array.ctypes.data)

    def untyped_storage(self) -> "_Array":
        return self

    def cpu(self) -> "_Array":
        return self

    def new_empty(self, *size: int, device: str) -> "_Array":
        return _Array(self.array, self.dtype.name)

    def set_(self, *facts: Any) -> None:
        pass

    def copy_(self, other: "_Array") -> None:
        pass

    def storage_offset(self) -> int:
        return 0

    def size(self) -> tuple[int, ...]:
        return self.array.shape

    def stride(self) -> tuple[int, ...]:
        return self.array.strides


def _by_numpy(function: Any) -> Any:
    """A mathematical function of the device, which the interpreter does not have, by NumPy's."""

    def call(*args: tl.tensor) -> tl.tensor:
        first = max(args, key=lambda a: a.handle.data.size)
        with np.errstate(all="ignore"):
            data = np.asarray(function(*(a.handle.data for a in args))).astype(first.handle.data.dtype)
        return tl.tensor(interpreter.TensorHandle(data, first.handle.dtype), first.type)

    return call


assert os.environ.get("WEFT_GPU_TESTS_DEVICE") != "cuda", "functions of the interpreter would be compiled for the GPU"
for _name, _function in {**_UNARY, **_BINARY}.items():
    setattr(libdevice, _name, _by_numpy(_function))


_KEPT_AS = {
    tl.bfloat16: ml_dtypes.bfloat16,
    tl.float8e4nv: ml_dtypes.float8_e4m3fn,
    tl.float8e5: ml_dtypes.float8_e5m2,
}


def _dot(self: Any, a: Any, b: Any, d: Any, precision: Any, most: Any) -> Any:
    """A product of strips. The interpreter keeps bfloat16 as uint16, 8-bit floats as uint8, and would multiply those."""
    left, right = (v.data.view(_KEPT_AS[v.dtype]).astype(np.float32) if v.dtype in _KEPT_AS else v.data for v in (a, b))
    return interpreter.TensorHandle(np.matmul(left, right, dtype=d.data.dtype) + d.data, d.dtype.scalar)


_cast = interpreter.InterpreterBuilder.cast_impl


def _rounded(self: Any, source: Any, target: Any) -> Any:
    """A cast. To bfloat16 the interpreter cuts digits off, where GPUs round; from it, it loses what is below 2^-126. It takes integers for bits."""
    if target.scalar == tl.bfloat16 and source.dtype.scalar in (tl.float32, tl.int8):
        return interpreter.TensorHandle(source.data.astype(bfloat16.numpy).view(np.uint16), target.scalar)
    if (source.dtype.scalar, target.scalar) == (tl.bfloat16, tl.float32):
        return interpreter.TensorHandle((source.data.astype(np.uint32) << 16).view(np.float32), target.scalar)
    return _cast(self, source, target)


def _greater(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """The maximum as GPUs have it (IEEE 754-2019): 0.0 is above -0.0. NumPy's takes either of the two, depending on the machine."""
    return np.where((a == 0) & (b == 0), a + b, np.maximum(a, b))


def _reduced(self: Any, given: tuple[tl.tensor, ...]) -> list[tl.tensor]:
    """A reduction by a function of ours: neighbours are combined, all pairs at once, until one is left. The interpreter's own loop calls
    the function for every single element, which takes a hundred times as long.
    """
    given, axis = self.unravel(given, self.axis)
    parts = [np.moveaxis(one.handle.data, axis, 0) for one in given]
    while (count := len(parts[0])) > 1:
        assert count % 2 == 0, "Triton's blocks have powers of two"
        halves = [self.to_tensor(p[i::2], one.dtype) for i in range(2) for p, one in zip(parts, given, strict=True)]
        found = self.combine_fn.fn(*halves)
        parts = [one.handle.data for one in (found if isinstance(found, tuple) else (found,))]
    results = [np.expand_dims(p[0], axis) if self.keep_dims else p[0] for p in parts]
    return [self.to_tensor(result, one.dtype) for result, one in zip(results, given, strict=True)]


_broadcast = TritonSemantic.broadcast_impl_value


def _broadcast_others(self: Any, left: tl.tensor, right: tl.tensor) -> tuple[tl.tensor, tl.tensor]:
    """Blocks of the same shape as they are: comparing their shapes as Triton does was half of the time of an operation."""
    if left.type.is_block() and right.type.is_block() and left.type.shape.values == right.type.shape.values:
        return left, right
    found: tuple[tl.tensor, tl.tensor] = _broadcast(self, left, right)
    return found


TritonSemantic.broadcast_impl_value = _broadcast_others
interpreter.ReduceOps.generic_reduce = _reduced
# That no sum of whole numbers overflows it would ask with every one of them, and take twice as long.
interpreter.interpreter_builder.options = dataclasses.replace(
    interpreter.interpreter_builder.options, sanitize_overflow=False
)
interpreter.InterpreterBuilder.create_dot = _dot
interpreter.InterpreterBuilder.cast_impl = _rounded
interpreter.InterpreterBuilder.create_maximumf = lambda self, a, b: self.binary_op(a, b, _greater)
interpreter.InterpreterBuilder.create_minimumf = lambda self, a, b: self.binary_op(a, b, lambda a, b: -_greater(-a, -b))


@functools.cache
def _builtins(package: Any) -> list[tuple[str, Any]]:
    return [(name, member) for name, member in inspect.getmembers(package) if tl.core.is_builtin(member)]


def _patch_builtin(package: Any, builder: Any, scope: Any) -> None:
    """As the interpreter's own, which lists all members of the package again at every call of a function in a kernel."""
    for name, member in _builtins(package):
        if getattr(package, name) is member:
            interpreter._patch_attr(package, name, member, builder, scope)


_numpy_dtype_of_scalar = functools.cache(interpreter._get_np_dtype)


def _get_np_dtype(of: tl.dtype) -> np.dtype:
    """As the interpreter's own, which makes its table of dtypes again at every call."""
    return np.dtype(np.uint64) if isinstance(of.scalar, tl.pointer_type) else _numpy_dtype_of_scalar(of.scalar)


interpreter._patch_builtin = _patch_builtin
interpreter._get_np_dtype = _get_np_dtype


@functools.cache  # networks of several tests have the same kernels
def interpreted_function(text: str, name: str) -> Any:
    """The kernel of a text, as the interpreter's function."""
    path = Path(_FOLDER.name) / f"kernel{len(list(Path(_FOLDER.name).iterdir()))}.py"
    path.write_text(text)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    function = getattr(module, name)
    assert isinstance(function, interpreter.InterpretedFunction), "set TRITON_INTERPRET=1 before triton is imported"
    return function


_LONG = {"fp64": "float64", "fp32": "float32", "fp16": "float16", "bf16": "bfloat16"}


def pointer(address: int, kind: str) -> _Array:
    """Memory at an address, of a type as Triton's signatures write it."""
    short = kind.removeprefix("*")
    long = _LONG.get(short) or f"{'uint' if short[0] == 'u' else 'int'}{short[1:]}"
    return _Array(np.ctypeslib.as_array((ctypes.c_uint8 * 1).from_address(address or 1)), long)


def run_kernel(source: KernelSource, values: dict[Node, np.ndarray]) -> np.ndarray:
    """Run a kernel; what it writes is in `values` afterwards. Gives the status: which error, and the wrong value."""
    function = interpreted_function(source.text, source.name)
    status = np.zeros(2, np.int64)
    arrays = []
    for node in source.arguments:
        if node not in values:
            values[node] = np.full(node.shape, 99, node.dtype.numpy)  # poisoned: what is not written shows
        name = "uint8" if node.dtype is bool_ else node.dtype.name
        if not values[node].flags.c_contiguous:
            values[node] = np.array(values[node], order="C")
        arrays.append(_Array(values[node], name))
    with np.errstate(all="ignore"):
        function[(source.programs,)](*arrays, _Array(status, "int64"))
    return status


def run_graph(graph: Graph, arrays: list[np.ndarray]) -> list[np.ndarray]:
    """The results of a graph: by emitted kernels where there are some, otherwise by definition."""
    graph = apply_passes(decompose(graph, LOWERINGS.lowers_node))
    values = dict(zip(graph.inputs, map(np.asarray, arrays), strict=True))
    for number, kernel in enumerate(fuse(graph).kernels):
        if kernel.anchor is not None and kernel.anchor.op.own_kernels:
            _run_special(kernel, values)
            continue
        if is_contraction(kernel) and all(kernel.anchor.shape):
            source = write_contraction(f"kernel{number}", kernel)
        else:
            if kernel.anchor is not None:
                values[kernel.anchor] = _defined(kernel.anchor, values)
            if kernel.nest is None:
                continue
            source = write_kernel(f"kernel{number}", ready_nest(kernel, LANES))
        _run_checked(source, values)
    return [values[o] if o in values else _defined(o, values) for o in graph.outputs]


def _run_special(kernel: Kernel, values: dict[Node, np.ndarray]) -> None:
    """A sort, a scatter, a running total: phase after phase."""
    for phase in special.plan(kernel).phases:
        made = {kernel.anchor, *kernel.outputs, *special.scratch_layout(kernel)}
        _run_checked(special.write(kernel, phase), values, made)


def _run_checked(source: KernelSource, values: dict[Node, np.ndarray], made: Collection[Node] = ()) -> None:
    """Run a kernel on what it reads; `made` is memory that kernels write before they read it."""
    for node in source.arguments:
        if node not in source.writes and node not in values and node not in made:
            values[node] = _defined(node, values)
    status = run_kernel(source, values) if source.programs else np.zeros(2)
    if status[0]:
        where, message, _ = source.errors[int(status[0]) - 1]
        raise RunError(where, message.format(value=int(status[1])))


def _defined(node: Node, values: dict[Node, np.ndarray]) -> np.ndarray:
    """A node by the definition of its op, from what is there."""
    if node in values:
        return values[node]
    if node.value is not None:
        return np.asarray(node.value.content)
    with np.errstate(all="ignore"):
        return compute(node, [_defined(i, values) for i in node.inputs])


def training_step(
    model: Any, optimizer: Any, x: np.ndarray, y: np.ndarray
) -> tuple[Graph, Mapping[int, int], list[np.ndarray]]:
    """A step of training with all its inputs: the graph, what it updates, and the arrays."""

    @weft.jit
    def step(x: Any, y: Any) -> Any:
        loss = weft.cross_entropy(model(x), y)
        optimizer.minimize(loss)
        return loss

    made = step._for((x, y), {})
    arrays = [*(s.offset.numpy() for s in made.traced.streams), x, y, *(memory_of(s, made.home) for s in made.states)]
    return made.graph, made.executable.updates, arrays


def run_program(program: KernelProgram, arrays: list[np.ndarray]) -> list[np.ndarray]:
    """The results of a program: its launches in one arena, on memory as it was planned. State is updated in its own memory."""
    graph = program.graph
    arena = np.full(program.memory.arena + 64, 0x7F, np.uint8)  # poisoned
    inputs = [np.array(a, order="C") for a in arrays]
    outputs = [np.zeros(o.shape, o.dtype.numpy) for o in graph.outputs]
    frame = {ARENA: arena} | dict(enumerate([*inputs, *outputs], FRAME_RESERVED))

    def memory(slot: Slot) -> np.ndarray:
        return frame[slot.base].reshape(-1).view(np.uint8)[slot.offset : slot.offset + slot.nbytes]

    for launch in commands(program):
        if isinstance(launch, Copy):
            memory(launch.target)[:] = memory(launch.source)
            continue
        pairs = list(zip(launch.kernel.arguments, launch.slots, strict=True))
        status = run_kernel(launch.kernel, {n: memory(s).view(n.dtype.numpy).reshape(n.shape) for n, s in pairs})
        assert not status[0], launch.kernel.errors
    return [inputs[program.updates[i]] if i in program.updates else o for i, o in enumerate(outputs)]
