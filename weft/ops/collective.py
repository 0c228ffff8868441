"""Collectives: operations of all processes along an axis of a mesh, as part of the graph.

Every process runs the same program on its own values. The result of a collective depends on the values of all processes. It returns when
all have called it, so all must run the same collectives in the same order. Outside of compiled functions it runs
when it is called; inside, the compiler keeps the order.

What is differentiated is either the sum of the losses of all processes (`loss="summed"`: data parallel, each process has examples of its
own) or one loss that all of them compute (`loss="shared"`: model parallel).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from ..dtypes import int64
from ..errors import UserError
from ..graph.node import Node, Op, Type
from ..mesh import mesh as meshes
from ..tensor import TRACING, ArrayLike, Tensor, as_tensor, emit, emit_all, number
from .creation import zeros
from .declare import accept
from .elementwise import astype, where
from .movement import moveaxis, reshape

Axes = meshes.Axes
COMBINATIONS = ("sum", "max", "min")
LOSSES = ("summed", "shared")


def _size(name: str, axis: str, mesh: Axes) -> int:
    found = dict(mesh).get(axis, 0)
    if not found:
        raise UserError(name, f"an axis of the mesh is required, got {axis!r} of {dict(mesh)}.")
    return found


def _check(name: str, combine: str, loss: str) -> None:
    if combine not in COMBINATIONS or loss not in LOSSES:
        raise UserError(name, f"combine is one of {COMBINATIONS} and loss one of {LOSSES}, got {combine!r}, {loss!r}.")


# --- all_reduce ------------------------------------------------------------------------------------------------------------------------


def _reduce_infer(x: Node, axis: str, mesh: Axes, combine: str, loss: str) -> Type:
    _size("all_reduce", axis, mesh)
    _check("all_reduce", combine, loss)
    accept("all_reduce", x.dtype, "numeric")
    return x.type


def _reduce_vjp(g: Tensor, y: Tensor, x: Tensor, axis: str, mesh: Axes, combine: str, loss: str) -> tuple[Tensor]:
    total = _run(_ALL_REDUCE, g, (axis, mesh, "sum", loss)) if loss == "summed" else g
    if combine == "sum":
        return (total,)
    found = astype(x == y, g.dtype)  # ties share evenly
    return (where(x == y, total / _run(_ALL_REDUCE, found, (axis, mesh, "sum", loss)), 0.0),)


_ALL_REDUCE: Op = Op(
    "all_reduce", "collective", _reduce_infer, partial(meshes.run_collective, "all_reduce"), _reduce_vjp,
    ("axis", "mesh", "combine", "loss"), 1, own_kernels=True, overwrites_inputs=True, precision="exact",
    batch=lambda call, op, *params: _run(op, call.tensors[0], params),
)  # fmt: skip


def all_reduce(x: ArrayLike, axis: str, combine: str = "sum", loss: str = "summed") -> Tensor:
    """The sum (or "max", "min") of the values of all processes along an axis, the same bits in each of them.

    16-bit floats are summed in float32. The order of the sum is a tree over the processes.
    """
    return _collective(_ALL_REDUCE, x, axis, combine, loss)


def _bucket_infer(inputs: tuple[Node, ...], axis: str, mesh: Axes) -> tuple[Type, ...]:
    _size("all_reduce_bucket", axis, mesh)
    for x in inputs:
        accept("all_reduce_bucket", x.dtype, "numeric")
    return tuple(x.type for x in inputs)


_BUCKET: Op = Op(
    "all_reduce_bucket", "collective", _bucket_infer,
    lambda inputs, axis, mesh: tuple(meshes.run_collective("all_reduce", x, axis, mesh, "sum", "summed") for x in inputs),
    lambda gs, ys, inputs, axis, mesh: tuple(_run(_ALL_REDUCE, g, (axis, mesh, "sum", "summed")) for g in gs),
    ("axis", "mesh"), own_kernels=True, overwrites_inputs=True, precision="exact",
    batch=lambda call, op, *params: _run_bucket(tuple(call.all()), params),
)  # fmt: skip


def all_reduce_many(tensors: Sequence[Tensor], axis: str) -> list[Tensor]:
    """The sums of several tensors over all processes along an axis, as one collective: engines may send them as one message."""
    mesh = meshes.current()
    if mesh.is_single(axis) or not tensors:
        return list(tensors)
    return _run_bucket(tuple(tensors), (axis, mesh.axes))


# --- all_gather and reduce_scatter: each other's derivatives ------------------------------------------------------------------------------


def _gather_infer(x: Node, axis: str, mesh: Axes, loss: str) -> Type:
    size = _size("all_gather", axis, mesh)
    _check("all_gather", "sum", loss)
    return Type((size, *x.shape), x.dtype)


def _gather_vjp(g: Tensor, y: Tensor, x: Tensor, axis: str, mesh: Axes, loss: str) -> tuple[Tensor]:
    if loss == "summed":
        return (_run(_REDUCE_SCATTER, g, (axis, mesh, "sum")),)
    return (g[_index(axis, mesh)],)


_ALL_GATHER: Op = Op(
    "all_gather", "collective", _gather_infer,
    partial(meshes.run_collective, "all_gather"), _gather_vjp,
    ("axis", "mesh", "loss"), 1, own_kernels=True, precision="exact",
    batch=lambda call, op, *params: moveaxis(_run(op, call.tensors[0], params), 1, 0),
)  # fmt: skip


def all_gather(x: ArrayLike, axis: str, loss: str = "summed") -> Tensor:
    """The values of all processes along an axis, stacked in front: of shape (processes, ...)."""
    return _collective(_ALL_GATHER, x, axis, loss, alone=lambda x: reshape(x, (1, *x.shape)))


def _scatter_infer(x: Node, axis: str, mesh: Axes, combine: str) -> Type:
    size = _size("reduce_scatter", axis, mesh)
    _check("reduce_scatter", combine, "summed")
    accept("reduce_scatter", x.dtype, "numeric")
    if not x.shape or x.shape[0] != size:
        raise UserError("reduce_scatter", f"a part for each of {size} processes is required in front, got {x.type}.")
    return Type(x.shape[1:], x.dtype)


def _scatter_vjp(g: Tensor, y: Tensor, x: Tensor, axis: str, mesh: Axes, combine: str) -> tuple[Tensor]:
    if combine != "sum":
        raise UserError("reduce_scatter", f'it has a derivative for combine="sum" only, got {combine!r}.')
    return (_run(_ALL_GATHER, g, (axis, mesh, "summed")),)


_REDUCE_SCATTER: Op = Op(
    "reduce_scatter", "collective", _scatter_infer, partial(meshes.run_collective, "reduce_scatter"),
    _scatter_vjp, ("axis", "mesh", "combine"), 1, own_kernels=True, precision="exact",
    batch=lambda call, op, *params: _run(op, moveaxis(call.tensors[0], 1, 0), params),
)  # fmt: skip


def reduce_scatter(x: ArrayLike, axis: str, combine: str = "sum") -> Tensor:
    """The part x[i] of process i, summed over all processes along an axis: each process gets only its own part."""
    return _collective(_REDUCE_SCATTER, x, axis, combine, alone=lambda x: x[0])


# --- all_to_all ----------------------------------------------------------------------------------------------------------------------------


def _exchange_infer(x: Node, axis: str, mesh: Axes) -> Type:
    size = _size("all_to_all", axis, mesh)
    if not x.shape or x.shape[0] != size:
        raise UserError("all_to_all", f"a part for each of {size} processes is required in front, got {x.type}.")
    return x.type


_ALL_TO_ALL: Op = Op(
    "all_to_all", "collective", _exchange_infer, partial(meshes.run_collective, "all_to_all"),
    lambda g, y, x, axis, mesh: (_run(_ALL_TO_ALL, g, (axis, mesh)),),
    ("axis", "mesh"), 1, own_kernels=True, precision="commutes",
    batch=lambda call, op, *params: moveaxis(_run(op, moveaxis(call.tensors[0], 1, 0), params), 1, 0),
)  # fmt: skip


def all_to_all(x: ArrayLike, axis: str) -> Tensor:
    """Send the part x[i] to process i along an axis; part i of the result is what process i has sent."""
    return _collective(_ALL_TO_ALL, x, axis)


# --- broadcast and shift -------------------------------------------------------------------------------------------------------------------


def _broadcast_infer(x: Node, axis: str, mesh: Axes, detail: int) -> Type:
    if not 0 <= detail < _size("broadcast", axis, mesh):
        raise UserError("broadcast", f"a process along the axis {axis!r} of {dict(mesh)} is required, got {detail}.")
    return x.type


def _broadcast_vjp(g: Tensor, y: Tensor, x: Tensor, axis: str, mesh: Axes, detail: int) -> tuple[Tensor]:
    total = _run(_ALL_REDUCE, g, (axis, mesh, "sum", "summed"))
    return (where(_index(axis, mesh) == detail, total, 0.0),)


_BROADCAST: Op = Op(
    "broadcast", "collective", _broadcast_infer, partial(meshes.run_collective, "broadcast"), _broadcast_vjp,
    ("axis", "mesh", "detail"), 1, own_kernels=True, precision="commutes",
    batch=lambda call, op, *params: _run(op, call.tensors[0], params),
)  # fmt: skip


def broadcast(x: ArrayLike, axis: str, root: int = 0) -> Tensor:
    """The value of one process, in all processes along an axis."""
    return _collective(_BROADCAST, x, axis, root)


def _shift_infer(x: Node, axis: str, mesh: Axes, detail: int) -> Type:
    _size("shift", axis, mesh)
    if type(detail) is not int:
        raise UserError("shift", f"a number of processes is required, got {detail!r}.")
    return x.type


_SHIFT: Op = Op(
    "shift", "collective", _shift_infer, partial(meshes.run_collective, "shift"),
    lambda g, y, x, axis, mesh, detail: (_run(_SHIFT, g, (axis, mesh, -detail)),),
    ("axis", "mesh", "detail"), 1, own_kernels=True, precision="commutes",
    batch=lambda call, op, *params: _run(op, call.tensors[0], params),
)  # fmt: skip


def shift(x: ArrayLike, axis: str, by: int = 1) -> Tensor:
    """Send to the process `by` further along an axis, and receive from the one as far before; zeros where there is none."""
    return _collective(_SHIFT, x, axis, by, alone=lambda x: x if by == 0 else zeros(x.shape, dtype=x.dtype))


# --- which process this is -----------------------------------------------------------------------------------------------------------------

_AXIS_INDEX: Op = Op(
    "axis_index", "collective", lambda axis, mesh: Type((), int64) if _size("axis_index", axis, mesh) else None,
    lambda axis, mesh: np.asarray(meshes.with_axes(mesh).index(axis), np.int64), None, ("axis", "mesh"), 0, own_kernels=True,
)  # fmt: skip


def axis_index(axis: str) -> Tensor:
    """The number of this process along an axis. Programs that use it are the same in all processes."""
    return _index(axis, meshes.current().axes)


def _index(axis: str, axes: Axes) -> Tensor:
    mesh = meshes.with_axes(axes)
    if mesh.is_single(axis) or TRACING.watch is None:
        return number(mesh.index(axis), int64)
    return emit(_AXIS_INDEX, (), (axis, axes))


def _replicate_infer(x: Node, axis: str, mesh: Axes) -> Type:
    _size("replicate", axis, mesh)
    return x.type


_REPLICATE: Op = Op(
    "replicate", "collective", _replicate_infer, lambda x, axis, mesh: x,
    lambda g, y, x, axis, mesh: (_run(_ALL_REDUCE, g, (axis, mesh, "sum", "shared")),),
    ("axis", "mesh"), 1, kernel="alias", precision="commutes", batch=lambda call, op, *params: emit(op, (call.tensors[0],), params),
    derivative_marker=True,
)  # fmt: skip


def replicate(x: ArrayLike, axis: str) -> Tensor:
    """x itself, at the point where processes begin to use a value that is equal in all of them differently: its derivative is the sum of
    theirs."""
    x = as_tensor(x)
    mesh = meshes.current()
    return x if mesh.is_single(axis) else emit(_REPLICATE, (x,), (axis, mesh.axes))


def barrier(axis: str) -> None:
    """Wait until all processes along an axis have called this."""
    all_reduce(zeros((), dtype=int64), axis).numpy()


def _collective(
    op: Op, x: ArrayLike, axis: str, *params: Any, alone: Callable[[Tensor], Tensor] = lambda x: x
) -> Tensor:
    x, mesh = as_tensor(x), meshes.current()
    if mesh.is_single(axis):
        return alone(x)
    return _run(op, x, (axis, mesh.axes, *params))


def _run(op: Op, x: Tensor, params: tuple[Any, ...]) -> Tensor:
    """Outside of compiled functions a collective runs when it is called, so all processes run the same ones in the same order.

    Its operand is computed first: it may depend on the rank, and the program of a collective must not.
    """
    return emit(op, (x,), params) if _is_traced(x) else emit(op, (x.realize(),), params).realize()


def _run_bucket(tensors: tuple[Tensor, ...], params: tuple[Any, ...]) -> list[Tensor]:
    """The same for several tensors."""
    if any(map(_is_traced, tensors)):
        return list(emit_all(_BUCKET, tensors, params))
    return [y.realize() for y in emit_all(_BUCKET, tuple(x.realize() for x in tensors), params)]


def _is_traced(x: Tensor) -> bool:
    """Whether it is a value of a function that is being compiled or transformed (`vmap`)."""
    return TRACING.watch is not None or x.node.abstract
