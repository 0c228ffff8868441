"""Which products and convolutions NVIDIA's libraries are asked for, and where they put the result.

A library writes a plain result, of 16 bits where that is all that is made of it. If nothing else is done with it, it goes right to
where it is wanted; otherwise to memory of the kernel's own, from where a second kernel, the epilogue, takes it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import prod

from ...dtypes import DType
from ...graph.node import CONST, Node, Type, placeholder
from ...knobs import knobs
from ..algorithms import described
from ..index import Place, fresh, linear, moved
from ..kernel import Kernel, View, anchor_place, anchor_shape, is_contiguous
from ..memory import nbytes
from .build import ALIGNED
from .vendor import ConvSpec, ProductSpec, Spec, supported


@dataclass(frozen=True)
class Claim:
    """What a library is asked for, and the tensor that it writes."""

    spec: Spec
    result: Node
    direct: bool  # the tensor is one of the program; else only this kernel knows it
    more: tuple[Node, ...] = ()  # tensors that it reads beside the operands: a bias
    rounded: Node | None = None  # the bias of the program, if `more` has a copy of it in the operands' type
    limit: int | None = None  # bytes that it may take beside operands and results
    wished: bool = False  # by its name: then it need not be the fastest

    @property
    def library(self) -> str:
        """Its name among algorithms."""
        return "CUBLASLT" if isinstance(self.spec, ProductSpec) else "CUDNN"


Judge = Callable[[Kernel, Claim], bool]  # whether a library should do it


def claims(kernel: Kernel, limit: int | None = None) -> list[Claim]:
    """What a library could be asked for, if it has a form for this product or convolution, and may take so many bytes for it.

    The first has as much of the epilogue in it as libraries know; they may have no kernel for that, but for the next.
    """
    found = []
    for wanted in _unlimited(kernel):
        left = None if limit is None else limit if wanted.direct else limit - nbytes(wanted.result)
        if left is None or left >= 0:
            found.append(replace(wanted, spec=replace(wanted.spec, workspace=left), limit=limit))
    return found


def _unlimited(kernel: Kernel) -> list[Claim]:
    anchor = kernel.anchor
    assert anchor is not None
    result = _direct(kernel)
    dtype = result.dtype if result is not None else _narrow_use(kernel) or anchor.dtype
    spec = _product(kernel, dtype) if anchor.op.name == "contract" else _convolution(kernel, dtype)
    if spec is None or not supported(spec) or not _is_aligned(kernel, result):
        return []
    if result is not None and not (isinstance(spec, ConvSpec) and spec.direction == "filter_gradient"):
        return [Claim(spec, result, True)]
    fused = _with_bias(kernel, spec)
    return [*([fused] if fused is not None else []), Claim(spec, _own_room(anchor, dtype), False)]


def _with_bias(kernel: Kernel, spec: Spec) -> Claim | None:
    """A convolution whose epilogue is a bias for each filter, and perhaps a relu: cuDNN adds it as it writes."""
    if not isinstance(spec, ConvSpec) or spec.direction != "forward":
        return None
    store = _only_store(kernel)
    if store is None:
        return None
    node = _unmoved(_uncast(store))
    value = _unrelu(node)
    parts = ("bias",) if value is node else ("bias", "relu")
    value = _unmoved(value)
    if value.op.name != "add":
        return None
    for sum, other in (value.inputs, value.inputs[::-1]):
        bias = _unmoved(other)
        if (
            _unwidened(sum) is kernel.anchor
            and bias in kernel.reads
            and _is_by_filter(other, bias, sum, _unwidened(sum))
        ):
            fused = replace(spec, epilogue=parts, result_dtype=store.dtype.name)
            if not supported(fused) or not _is_aligned(kernel, store):
                return None
            dtype = kernel.views[0].base.dtype
            if bias.dtype is dtype:
                return Claim(fused, store, True, (bias,))
            # Libraries have kernels for a bias of the operands' type only, so a copy of it is rounded like them.
            copy = placeholder(("bias", kernel.anchor), Type((spec.filters,), dtype))
            return Claim(fused, store, True, (copy,), bias)
    return None


def _unrelu(node: Node) -> Node:
    """What a relu is the relu of; anything else is itself."""
    node = _unmoved(node)
    if node.op.name != "where":
        return node
    test, zero, x = node.inputs
    zeros = all(n.op is CONST and float(n.params[0]) == 0 for n in (zero, *test.inputs[1:]))
    return x if test.op.name == "le" and test.inputs[0] is x and zeros else node


def _unwidened(node: Node) -> Node:
    """Below a rounding to 16 bits and back: the library's sum is not rounded in between, and nothing is lost by that."""
    node = _unmoved(node)
    if node.op.name == "cast" and node.inputs[0].dtype.is_half:
        node = _uncast(node.inputs[0])
    return _unmoved(node)


def _is_by_filter(spread: Node, bias: Node, sum: Node, anchor: Node) -> bool:
    """Whether one of two that are added is a bias with one number for each filter, the last axis of the other's convolution."""
    place = fresh(spread.shape)
    there, here = _followed(spread, place, bias), _followed(sum, place, anchor)
    if there is None or here is None or prod(bias.shape) != anchor.shape[-1]:
        return False
    return linear(there, bias.shape) == here[-1]


def _followed(node: Node, place: Place, target: Node) -> Place | None:
    """Where a place of a node lies in another one, if only movement and casts are between them."""
    while node is not target:
        if node.op.name == "cast":
            node = node.inputs[0]
            continue
        found = moved(node, place) if node.op.kind == "move" else []
        if len(found) != 1 or found[0][2]:
            return None
        node, place, _ = found[0]
    return place


def _is_aligned(kernel: Kernel, result: Node | None) -> bool:
    """Whether memory begins where libraries expect it, also where it is an element of a longer tensor."""
    touched = [*(view.base for view in kernel.views), *([result] if result is not None else [])]
    return all(nbytes(node) % ALIGNED == 0 for node in touched)


def _own_room(anchor: Node, dtype: DType) -> Node:
    """Memory for a result, as a tensor that only the two launches of its kernel know."""
    return placeholder(("library", anchor), Type((prod(anchor.shape),), dtype))


def _direct(kernel: Kernel) -> Node | None:
    """The one tensor that is made of the result without any arithmetic, if that is all that is done with it."""
    anchor = kernel.anchor
    assert anchor is not None
    if kernel.nest is None:
        return anchor
    store = _only_store(kernel)
    return store if store is not None and _unmoved(_uncast(store)) is anchor else None


def _only_store(kernel: Kernel) -> Node | None:
    """The one tensor that an epilogue writes, if it is all that is wanted and lies as the result does."""
    anchor = kernel.anchor
    assert anchor is not None
    if kernel.nest is None or anchor in kernel.outputs or len(kernel.nest.phases[0].stores) != 1:
        return None
    [store] = kernel.nest.phases[0].stores
    here = linear(anchor_place(anchor, kernel.rows), anchor.shape)
    return store.node if linear(store.place, store.node.shape) == here else None


def _unmoved(node: Node) -> Node:
    while node.op.kind == "move" and len(node.inputs) == 1:
        node = node.inputs[0]
    return node


def _uncast(node: Node) -> Node:
    node = _unmoved(node)
    return node.inputs[0] if node.op.name == "cast" and node.dtype.is_half else node


def _narrow_use(kernel: Kernel) -> DType | None:
    """The 16-bit type that all which is done with the result begins with."""
    found: set[DType | None] = {None} if kernel.anchor in kernel.outputs else set()
    for body in kernel.bodies:
        for step in body.steps:
            if step.kind == "op" and any(_unmoved(i) is kernel.anchor for i in step.node.inputs):
                found.add(step.node.dtype if step.node.op.name == "cast" and step.node.dtype.is_half else None)
    return found.pop() if len(found) == 1 else None


def _product(kernel: Kernel, dtype: DType) -> ProductSpec | None:
    anchor, (a, b) = kernel.anchor, kernel.views
    assert anchor is not None
    batch, m, n = anchor.shape
    k = anchor.inputs[0].shape[2]
    left, right = _three(a.strides), _three(b.strides)
    return ProductSpec(
        batch, m, n, k, left, right, a.base.dtype.name, b.base.dtype.name, dtype.name, tf32=bool(knobs.tf32),
        alignment=_alignment(a, b),
    )  # fmt: skip


def _three(steps: tuple[int, ...]) -> tuple[int, int, int]:
    batch, row, column = steps
    return batch, row, column


def _alignment(*views: View) -> int:
    """The bytes that all operands begin at a multiple of."""
    begins = [v.offset * v.base.dtype.itemsize for v in views]
    return next(size for size in (16, 8, 4, 2, 1) if all(b % size == 0 for b in begins))


def _convolution(kernel: Kernel, dtype: DType) -> ConvSpec | None:
    anchor = kernel.anchor
    assert anchor is not None
    first, second = kernel.views
    if first.offset or second.offset or first.base.dtype is not second.base.dtype:
        return None
    direction, shape = described(anchor)
    x, y = anchor.inputs
    if not is_contiguous(first.strides, x.shape):
        return None
    if direction != "filter_gradient":
        by_filter = (y.shape[0], *y.shape[2:], y.shape[1])  # each filter by itself, its channels last
        moved = (second.strides[0], *second.strides[2:], second.strides[1])
        if not is_contiguous(moved, by_filter):
            return None
    elif not is_contiguous(second.strides, y.shape):
        return None
    padding = anchor.params[1]
    return ConvSpec(
        direction, shape.batch, shape.channels, shape.filters, shape.spatial, shape.kernel, shape.out, shape.stride, tuple(p[0] for p in padding),
        tuple(p[1] for p in padding), shape.dilation, shape.groups, first.base.dtype.name, dtype.name, tf32=bool(knobs.tf32),
    )  # fmt: skip


def operations(kernel: Kernel) -> int:
    """How many multiplications and additions it is."""
    anchor = kernel.anchor
    assert anchor is not None
    batch, rows, columns = anchor_shape(anchor)
    if anchor.op.name == "contract":
        return 2 * batch * rows * columns * anchor.inputs[0].shape[2]
    _, shape = described(anchor)
    return int(shape.flops)
