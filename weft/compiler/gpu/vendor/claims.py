"""Which products, convolutions and attention NVIDIA's libraries may compute, and where they write the result. A library writes a plain
result, in 16 bits if every use first rounds it to 16 bits. If there is no epilogue, or the library supports it, it writes to the final
tensor; otherwise to scratch memory, and a second kernel applies the epilogue.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from math import prod

from ....dtypes import DType
from ....graph.node import Node
from ....records import dataclass
from ...ir.conv_shape import described
from ...ir.kernel import Kernel, View, anchor_shape, is_contiguous
from ...ir.storage import nbytes
from ..anchors import (
    LINES_OF_K,
    anchor_of,
    is_attention,
    is_convolution,
    is_filter_gradient,
    is_grouped,
    is_product,
    is_semi_sparse,
    of_integers,
)
from ..attention.claims import attention_spec
from ..attention.problem import AttentionProblem
from ..compile import ALIGNED
from ..kernel_utils import scratch_tensor
from .epilogues import Epilogue, epilogue, only_store, scaling, unnarrowed
from .specs import FLOAT8, CompressionSpec, ConvSpec, ProductSpec, Spec, filter_order, supported


@dataclass(frozen=True)
class Claim:
    """The call of a library, and the tensor that it writes."""

    spec: Spec
    result: Node
    direct: bool  # the tensor is one of the program, not internal to this kernel
    more: tuple[Node, ...] = ()  # tensors besides the operands: a bias, a residual, the argument of a gelu
    rounded: Node | None = None  # the bias of the program, if the first of `more` is a copy of it in another type
    kept: bool = False  # the bias is a constant: its copy is made once, for many runs
    source: Node | None = None  # a tensor internal to this kernel that is read instead of the operands
    filter: Node | None = None  # a copy of the filter in the order that libraries require, if it has another one
    limit: int | None = None  # the workspace limit in bytes
    by_name: bool = False  # the user requested this library, even if it is not the fastest

    @property
    def library(self) -> str:
        """Its name among algorithms."""
        if isinstance(self.spec, CompressionSpec) or (isinstance(self.spec, ProductSpec) and self.spec.compressed):
            return "CUSPARSELT"
        return "CUBLASLT" if isinstance(self.spec, ProductSpec) else "CUDNN"

    @property
    def scratch_tensors(self) -> list[Node]:
        """The tensors internal to its phases: copies of a filter and of a bias, and the result if it is not `direct`."""
        copies = [self.filter, self.bias_copy if not self.kept else None]
        return [node for node in (*copies, None if self.direct else self.result) if node is not None]

    @property
    def bias_copy(self) -> Node | None:
        """The copy of a bias in another type."""
        return None if self.rounded is None else self.more[0]

    def operands(self, views: Sequence[View]) -> list[View | Node]:
        """Its first arguments: the operands, or copies of them."""
        if self.source is not None:
            return [self.source]
        return [view if n == 0 or self.filter is None else self.filter for n, view in enumerate(views)]


Judge = Callable[[Kernel, Claim], bool]  # whether a library should do it


def judge_in_body(judge: Judge) -> Judge:
    """The same in the body of control flow, whose tensors may be elements of longer ones: libraries require alignment."""

    def judged(kernel: Kernel, claim: Claim) -> bool:
        tensors = (*(view.base for view in kernel.views), *claim.more, claim.result)
        return all(nbytes(node) % ALIGNED == 0 for node in tensors) and judge(kernel, claim)

    return judged


def claims(
    kernel: Kernel, limit: int | None = None, tf32: bool = False, constants: Collection[Node] = ()
) -> list[Claim]:
    """The possible library calls for this product or convolution, with a workspace of at most this many bytes. The first includes as much
    of the epilogue as libraries can express; they may have no kernel for it, but one for the next. `constants`: values that
    rarely change.
    """
    found = []
    for claim in _unlimited(kernel, tf32):
        wanted = replace(claim, kept=claim.rounded in constants)
        left = None if limit is None else limit - sum(map(nbytes, wanted.scratch_tensors))
        if left is None or left >= 0:
            found.append(replace(wanted, spec=replace(wanted.spec, workspace=left), limit=limit))
    return found


def _unlimited(kernel: Kernel, tf32: bool) -> list[Claim]:
    anchor = anchor_of(kernel)
    if is_attention(anchor):
        return _attention(kernel)
    if is_grouped(anchor):
        return []  # no library reads such weights
    if anchor.op.name == "compress_semi_sparse":
        return [_compression(anchor)]
    result = _direct(kernel)
    dtype = result.dtype if result is not None else _narrow_use(kernel) or anchor.dtype
    describe = _product if is_product(anchor) else _convolution
    if is_semi_sparse(anchor):  # its results have the type of its operands
        dtype, result = anchor.dtype, result if result is not None and result.dtype is anchor.dtype else None
    spec = describe(kernel, dtype, tf32)
    if spec is None:
        return []
    if result is not None:
        found: list[Claim | None] = [Claim(spec, result, True)]
    else:
        found = [_fused(kernel, spec), _scaled(kernel, spec), Claim(spec, _own_room(anchor, dtype), False)]
    copy = _filter_copy(kernel)
    return [replace(claim, filter=copy) for claim in found if claim is not None and supported(claim.spec)]


def _attention(kernel: Kernel) -> list[Claim]:
    """Attention and its gradients, which are written to the tensors of the program."""
    problem = AttentionProblem(kernel)
    spec = attention_spec(problem)
    if spec is None:
        return []
    *more, last = (problem.results[name] for name in sorted(problem.results))
    return [Claim(spec, last, True, tuple(more))]


def _compression(anchor: Node) -> Claim:
    """The compression of a weight with 2:4 sparsity, which another phase expands first."""
    values, [size] = anchor.inputs[0], anchor.shape
    rows, columns = values.shape[0], 2 * values.shape[1]
    return Claim(CompressionSpec(rows, columns, values.dtype.name, size), anchor, True, source=expanded_weight(anchor))


def expanded_weight(anchor: Node) -> Node:
    """Memory for the dense weight that is compressed."""
    values = anchor.inputs[0]
    return scratch_tensor("expanded", anchor, (values.shape[0], 2 * values.shape[1]), values.dtype)


def _filter_copy(kernel: Kernel) -> Node | None:
    """Memory for a copy of the filter, if it does not have the layout that libraries require: filter by filter, channels last."""
    anchor, view = kernel.anchor, kernel.views[1]
    assert anchor is not None
    if not is_convolution(anchor) or is_filter_gradient(anchor):
        return None
    shape = anchor.inputs[1].shape
    order = filter_order(len(shape))
    lies = is_contiguous(tuple(view.strides[a] for a in order), tuple(shape[a] for a in order))
    if lies and not view.offset:
        return None
    return scratch_tensor("filter", anchor, (prod(shape),), view.base.dtype)


def _fused(kernel: Kernel, spec: ProductSpec | ConvSpec) -> Claim | None:
    """The call with the epilogue, if libraries support it, and the tensors that it reads."""
    done = epilogue(kernel)
    asked = None if done is None else _asked(spec, done)
    if done is None or asked is None:
        return None
    dtype = done.store.dtype if isinstance(asked, ProductSpec) else kernel.views[0].base.dtype
    if is_semi_sparse(anchor_of(kernel)) and done.store.dtype is not dtype:
        return None
    if any(node is not None and not (node.dtype is done.store.dtype is dtype) for node in (done.residual, done.sum)):
        return None  # they must have the layout of the result; and, as for biases, there are kernels for the operands' type only
    given = [node for node in (done.bias, done.residual, done.sum) if node is not None]
    if done.bias is None or done.bias.dtype is dtype:
        return Claim(asked, done.store, True, tuple(given))
    assert kernel.anchor is not None
    if dtype not in (kernel.anchor.dtype, _narrow_use(kernel)):
        return None  # rounding the bias is as accurate as rounding the result before adding it, but the result is not rounded here
    copy = scratch_tensor("bias", kernel.anchor, (prod(done.bias.shape),), dtype)
    return Claim(asked, done.store, True, (copy, *given[1:]), done.bias)


def _scaled(kernel: Kernel, spec: Spec) -> Claim | None:
    """A product of 8-bit floats with the scales of its operands, which cuBLASLt applies to the sums."""
    if not isinstance(spec, ProductSpec) or spec.a_dtype not in FLOAT8:
        return None
    done = scaling(kernel)
    if done is None or not done.store.dtype.is_float:
        return None
    asked = replace(spec, c_dtype=done.store.dtype.name, factor=done.factor, scales=len(done.numbers))
    return Claim(asked, done.store, True, done.numbers)


def _asked(spec: ProductSpec | ConvSpec, done: Epilogue) -> Spec | None:
    """A call with an epilogue, if it can be expressed: the epilogues of cuDNN's kernels start with a bias."""
    if isinstance(spec, ProductSpec):
        kept = "sum" if done.sum is not None and done.activation == "gelu_tanh" else ""
        words = "_".join(filter(None, ("bias" if done.bias is not None else "", done.activation, kept)))
        residual = done.residual is not None
        return (
            replace(spec, epilogue=words, residual=residual, c_dtype=done.store.dtype.name)
            if words or residual
            else None
        )
    if done.bias is None or done.sum is not None:
        return None
    parts = ("bias", *(["residual"] if done.residual is not None else []), *filter(None, [done.activation]))
    return replace(spec, epilogue=parts, result_dtype=done.store.dtype.name)


def _own_room(anchor: Node, dtype: DType) -> Node:
    """Memory for a result, as a tensor internal to the two launches of its kernel."""
    return scratch_tensor("library", anchor, (prod(anchor.shape),), dtype)


def _direct(kernel: Kernel) -> Node | None:
    """The only tensor that is written, if it is the result without any arithmetic."""
    anchor = anchor_of(kernel)
    if kernel.nest is None:
        return None if is_filter_gradient(anchor) else anchor  # libraries write filters in another order of axes
    store = only_store(kernel)
    return store if store is not None and unnarrowed(store) is anchor else None


def _narrow_use(kernel: Kernel) -> DType | None:
    """The 16-bit type to which all uses of the result first round it."""
    found: set[DType | None] = {None} if kernel.anchor in kernel.outputs else set()
    for phase, body in zip(kernel.nest.phases if kernel.nest is not None else (), kernel.bodies, strict=True):
        results: set[int] = set()  # steps whose value is the result, possibly moved
        for number, step in enumerate(body.steps):
            if step.node is kernel.anchor or (step.kind == "same" and results.intersection(step.args)):
                results.add(number)
            elif results.intersection(step.args):
                rounds = step.kind == "op" and step.node.op.name == "cast" and step.node.dtype.is_half
                found.add(step.node.dtype if rounds else None)
        if any(body.number[store.node, store.place] in results for store in phase.stores):
            found.add(None)
    return found.pop() if len(found) == 1 else None


def _product(kernel: Kernel, dtype: DType, tf32: bool) -> ProductSpec | None:
    anchor, (a, b) = kernel.anchor, kernel.views
    assert anchor is not None
    batch, m, n = anchor.shape
    k = anchor.inputs[0].shape[2]
    if is_semi_sparse(anchor):
        name, size = a.base.dtype.name, anchor.inputs[1].shape[0]
        return ProductSpec(
            batch, m, n, k, _three(a.strides), (k * n, 1, k), name, name, dtype.name, compressed=size, alignment=_alignment(a, b),
        )  # fmt: skip
    left, right = _three(a.strides), _three(b.strides)
    types = a.base.dtype.name, b.base.dtype.name
    if anchor.op.name in LINES_OF_K:
        right, tf32 = (right[0], right[2], right[1]), False
        types = types if of_integers(anchor) else anchor.param("formats")
    return ProductSpec(batch, m, n, k, left, right, *types, dtype.name, tf32=tf32, alignment=_alignment(a, b))


def _three(steps: tuple[int, ...]) -> tuple[int, int, int]:
    batch, row, column = steps
    return batch, row, column


def _alignment(*views: View) -> int:
    """The alignment of all operands, in bytes."""
    begins = [v.offset * v.base.dtype.itemsize for v in views]
    return next(size for size in (16, 8, 4, 2, 1) if all(b % size == 0 for b in begins))


def _convolution(kernel: Kernel, dtype: DType, tf32: bool) -> ConvSpec | None:
    anchor = anchor_of(kernel)
    first, second = kernel.views
    if of_integers(anchor):
        return None  # weft's kernel applies the rest of the layer while the sums are in registers
    if first.offset or first.base.dtype is not second.base.dtype:
        return None
    direction, shape = described(anchor)
    x, y = anchor.inputs
    if not is_contiguous(first.strides, x.shape):
        return None
    if direction == "filter_gradient" and (second.offset or not is_contiguous(second.strides, y.shape)):
        return None
    padding = anchor.param("padding")
    return ConvSpec(
        direction, shape.batch, shape.channels, shape.filters, shape.spatial, shape.kernel, shape.out, shape.stride, tuple(p[0] for p in padding),
        tuple(p[1] for p in padding), shape.dilation, shape.groups, first.base.dtype.name, dtype.name, tf32=tf32,
    )  # fmt: skip


def operations(kernel: Kernel) -> int:
    """The number of multiplications and additions."""
    anchor = anchor_of(kernel)
    if is_attention(anchor):
        assert anchor.op.flops is not None
        return anchor.op.flops(anchor)
    batch, rows, columns = anchor_shape(anchor)
    if is_product(anchor):
        return 2 * batch * rows * columns * anchor.inputs[0].shape[2]
    _, shape = described(anchor)
    return int(shape.flops)
