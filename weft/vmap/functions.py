"""`weft.vmap`: vectorization of a function of one example; `jacobian` and `hessian` use it.

The function is traced once, with tensors that represent one example. Then each op is replaced by its batching rule (ops.py),
so that no loop is left.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ..derivatives import CustomVjpRule, by_arguments, grad, vjp
from ..errors import UserError
from ..graph.node import Node, Op, Type
from ..ops.creation import eye, zeros
from ..ops.declare import normal_axis
from ..ops.movement import moveaxis, reshape
from ..records import dataclass
from ..tensor import Tensor, as_tensor, wrap
from ..tracing.trace import trace
from ..tree import Structure, flatten, map_tree, unflatten
from .bodies import results
from .ops import BatchedCall, Each, rule, times_as_far, walk

Axes = int | None | Sequence[Any] | dict[str, Any]


@dataclass(frozen=True)
class _Axis:
    number: int | None


def vmap(f: Callable[..., Any], in_axes: Axes = 0, out_axes: Axes = 0) -> Callable[..., Any]:
    """Vectorize f, a function of one example: the result takes arrays with one more axis, and contains no loop.

    `in_axes` is the batch axis of each argument, or None for arguments that are shared: one for all, or one per argument, nested as the
    argument is. `out_axes` is the same for the results. Numbers and other plain values are shared. Each example draws its own random
    numbers.

    >>> import weft
    >>> lengths = vmap(lambda v: (v * v).sum())
    >>> lengths(weft.asarray([[3.0, 4.0], [6.0, 8.0]])).tolist()
    [25.0, 100.0]
    >>> each = vmap(weft.grad(lambda w, x: weft.tanh(w * x)), in_axes=(None, 0))  # a gradient for each example
    >>> each(weft.asarray(1.0), weft.zeros(3)).shape
    (3,)
    """

    @functools.wraps(f)
    def call(*args: Any, **kwargs: Any) -> Any:
        leaves, structure = flatten((args, kwargs))
        axes = [a.number for a in flatten((_axes("in_axes", in_axes, args), _axes("in_axes", 0, kwargs)))[0]]
        is_mapped = [a is not None and isinstance(x, Tensor | np.ndarray) for x, a in zip(leaves, axes, strict=True)]
        values = [_in_front(as_tensor(x), a) for x, a, m in zip(leaves, axes, is_mapped, strict=True) if m]
        size = _size(values)
        shared = [as_tensor(x) if isinstance(x, np.ndarray) else x for x in leaves]

        def one(*examples: Tensor) -> Any:
            rest = iter(examples)
            every = [next(rest) if m else x for x, m in zip(shared, is_mapped, strict=True)]
            args, kwargs = unflatten(structure, every)
            return f(*args, **kwargs)

        found, structure_of_results = _traced(one, values, size)
        wanted = flatten(_axes("out_axes", out_axes, unflatten(structure_of_results, found)))[0]
        return unflatten(structure_of_results, [_out(r, a.number) for r, a in zip(found, wanted, strict=True)])

    return call


def _traced(one: Callable[..., Any], values: Sequence[Tensor], size: int) -> tuple[list[BatchedCall], Structure]:
    """The results of the function for all examples; the random streams that it used are advanced."""
    types = [Type(v.shape[1:], v.dtype) for v in values]
    traced = trace(one, types, Structure(tuple, (), (Structure(None),) * len(types)))
    known: dict[Node, tuple[Node, bool]] = {p: (v.node, True) for p, v in zip(traced.inputs, values, strict=True)}
    before = {stream: stream.offset for stream in traced.streams}
    begin = {found: before[stream].node for stream, (found, _) in traced.streams.items()}
    known |= {found: (node, False) for found, node in begin.items()}
    roots = [*traced.outputs, *(left for _, left in traced.streams.values())]
    found = walk(roots, known, size, traced.start, begin)
    for stream, (left, _) in zip(traced.streams, found[len(traced.outputs) :], strict=True):
        stream.offset = times_as_far(before[stream], wrap(left), size)
    return [BatchedCall(size, [wrap(n)], [m]) for n, m in found[: len(traced.outputs)]], traced.structure


# --- axes ------------------------------------------------------------------------------------------------------------------------


def _axes(name: str, axes: Axes, value: Any) -> Any:
    """The axes in the structure of the value; one given for a subtree applies to all its leaves."""
    if axes is None or (isinstance(axes, int) and not isinstance(axes, bool)):
        return map_tree(lambda _: _Axis(axes), value)
    shape = flatten(value)[1]
    if shape.kind is dict and isinstance(axes, dict) and axes.keys() == value.keys():
        return {k: _axes(name, axes[k], value[k]) for k in value}
    if shape.children and shape.kind is not dict and isinstance(axes, tuple | list) and len(axes) == len(value):
        parts = [_axes(name, a, v) for a, v in zip(axes, value, strict=True)]
        return type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)
    raise UserError("vmap", f"{name} must be an int, None, or nested as {shape}, got {axes!r}.")


def _in_front(x: Tensor, axis: int | None) -> Tensor:
    if x.ndim == 0:
        raise UserError("vmap", "an argument without axes cannot be mapped. Pass it by position, with None in in_axes.")
    assert axis is not None
    return moveaxis(x, normal_axis("vmap", axis, x.ndim), 0)


def _size(values: Sequence[Tensor]) -> int:
    sizes = sorted({v.shape[0] for v in values})
    if len(sizes) != 1:
        given = "of sizes " + " and ".join(map(str, sizes)) if sizes else "for none"
        raise UserError("vmap", f"an axis of one size in all arguments that are mapped is required, got axes {given}.")
    return sizes[0]


def _out(result: BatchedCall, axis: int | None) -> Tensor:
    if axis is None:
        if result.mapped[0]:
            raise UserError("vmap", "a result differs from example to example: its axis in out_axes cannot be None.")
        return result.tensors[0]
    return moveaxis(result.each(0), 0, normal_axis("vmap", axis, result.each(0).ndim))


# --- derivatives of the user's own ------------------------------------------------------------------------------------------------


@rule("custom")
def _custom(call: BatchedCall, op: Op, own: CustomVjpRule, count: int) -> list[Each]:
    """Batch a custom vjp; cotangents of shared inputs are summed over the examples."""
    mapped = call.mapped[count:]

    def back(g: Any, y: Any, *inputs: Tensor) -> tuple[Tensor | None, ...]:
        def one(g: Any, y: Any, *inputs: Tensor) -> list[Any]:
            given = own.vjp(g, y, *inputs)
            return list(given) if isinstance(given, tuple | list) else [given]

        found = vmap(one, in_axes=(0, 0, *(0 if m else None for m in mapped)))(g, y, *inputs)
        if len(found) != len(mapped):
            return tuple(found)  # the caller reports this
        return tuple(ct if ct is None or m else ct.sum(axis=0) for ct, m in zip(found, mapped, strict=True))

    inputs = [*(call.each(i) for i in range(count)), *call.tensors[count:]]
    return results(op, inputs, (CustomVjpRule(back, own.structure), count), [True] * count)


# --- matrices of derivatives --------------------------------------------------------------------------------------------------------


def jacobian(f: Callable[..., Any], argnums: int | Sequence[int] = 0) -> Callable[..., Any]:
    """The Jacobian: the derivatives of all results by all elements of an argument, of shape y.shape + x.shape.

    >>> import weft
    >>> jacobian(lambda x: weft.stack([x[0] * x[1], x[1] ** 2]))(weft.asarray([2.0, 3.0])).tolist()
    [[3.0, 2.0], [0.0, 6.0]]
    """

    @functools.wraps(f)
    def call(*args: Any, **kwargs: Any) -> Any:
        of_chosen, chosen = by_arguments("jacobian", f, argnums, args, kwargs)
        value, back = vjp(of_chosen, *chosen)
        ys, structure = flatten(value)

        def rows(i: int) -> Any:
            """The derivatives of one result, with its axes in front."""
            y = as_tensor(ys[i])
            others = [zeros(as_tensor(r).shape, dtype=as_tensor(r).dtype) for r in ys]

            def row(ct: Tensor) -> Any:
                found = back(unflatten(structure, [*others[:i], ct, *others[i + 1 :]]))
                return found[0] if isinstance(argnums, int) else found

            basis = reshape(eye(y.size, dtype=y.dtype), (y.size, *y.shape))
            return map_tree(lambda g: reshape(g, (*y.shape, *g.shape[1:])), vmap(row)(basis))

        return unflatten(structure, [rows(i) for i in range(len(ys))])

    return call


def hessian(f: Callable[..., Any], argnums: int | Sequence[int] = 0) -> Callable[..., Any]:
    """The Hessian: all second derivatives of a function with a scalar result.

    >>> import weft
    >>> hessian(lambda x: x[0] ** 2 * x[1])(weft.asarray([2.0, 3.0])).tolist()
    [[6.0, 4.0], [4.0, 0.0]]
    """
    return jacobian(grad(f, argnums), argnums)
