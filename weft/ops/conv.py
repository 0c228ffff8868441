"""Convolution in 1, 2 and 3 dimensions and its two gradients: three primitives, closed under differentiation.

x is (batch, channels, *spatial), w is (filters, channels / groups, *kernel), y is (batch, filters, *spatial'):

    y[n, o, p] = sum over c, t of  x[n, c, p * stride + t * dilation - padding] * w[o, c, t]

This form is linear in x and in w, so `conv(x, w)`, `conv_data(g, w)` (towards x) and `conv_filter(x, g)` (towards w)
close under differentiation. A transposed convolution is `conv_data`.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from ..compiler.ir.conv_shape import conv_flops
from ..compiler.planning.algorithms import check as check_preference
from ..compiler.planning.algorithms import in_force
from ..dtypes import DTypeLike
from ..errors import UserError
from ..graph.node import Node, Op, Shape, Type
from ..tensor import ArrayLike, Tensor, as_tensor, emit, function
from .creation import zeros
from .declare import Sample, Wrong, accept, as_ints, whole
from .movement import reshape, same_dtype
from .window import Pairs, out_size

_PARAMS = ("stride", "padding", "dilation", "groups", "prefer")

# --- the rules -----------------------------------------------------------------------------------------------------------


def _conv_infer(x: Node, w: Node, stride: Shape, padding: Pairs, dilation: Shape, groups: int, prefer: str) -> Type:
    check_preference("conv", prefer)
    _check("conv", x.shape, w.shape, x, w, stride, padding, dilation, groups)
    facts = zip(x.shape[2:], w.shape[2:], stride, padding, dilation, strict=True)
    return Type((x.shape[0], w.shape[0], *(out_size(*f) for f in facts)), x.dtype)


def _data_infer(
    g: Node, w: Node, stride: Shape, padding: Pairs, dilation: Shape, groups: int, prefer: str, size: Shape
) -> Type:
    check_preference("conv_data", prefer)
    shape = (g.shape[0], w.shape[1] * groups, *size)
    _check("conv_data", shape, w.shape, g, w, stride, padding, dilation, groups)
    _check_output("conv_data", g, (shape[0], w.shape[0]), size, w.shape[2:], stride, padding, dilation)
    return Type(shape, g.dtype)


def _filter_infer(
    x: Node, g: Node, stride: Shape, padding: Pairs, dilation: Shape, groups: int, prefer: str, size: Shape
) -> Type:
    check_preference("conv_filter", prefer)
    if groups < 1 or x.shape[1] % groups:
        raise UserError("conv_filter", f"{x.shape[1]} channels cannot be divided into {groups} groups.")
    shape = (g.shape[1], x.shape[1] // groups, *size)
    _check("conv_filter", x.shape, shape, x, g, stride, padding, dilation, groups)
    _check_output("conv_filter", g, (x.shape[0], shape[0]), x.shape[2:], size, stride, padding, dilation)
    return Type(shape, x.dtype)


def _check(
    name: str, x: Shape, w: Shape, a: Node, b: Node, stride: Shape, padding: Pairs, dilation: Shape, groups: int
) -> None:
    accept(name, a.dtype, "numeric")
    if a.dtype is not b.dtype:
        raise UserError(name, f"operands of one dtype are required, got {a.dtype.name} and {b.dtype.name}.")
    _check_ranks(name, x, w)
    if groups < 1 or x[1] != w[1] * groups:
        raise UserError(
            name,
            f"the input has {x[1]} channels but the filter expects {w[1] * max(groups, 1)} (groups={groups}). "
            "The filter's second dimension is channels / groups.",
        )
    if w[0] % groups:
        raise UserError(name, f"{w[0]} filters cannot be divided into {groups} groups.")
    if not len(stride) == len(padding) == len(dilation) == len(x) - 2:
        raise UserError(name, f"stride, padding and dilation for {len(x) - 2} dimensions are required.")
    for n, k, s, p, d in zip(x[2:], w[2:], stride, padding, dilation, strict=True):
        if min(k, s, d) < 1 or min(p) < 0:
            raise UserError(
                name,
                f"kernel, stride and dilation of 1 or more and padding of 0 or more are required, got {k}, {s}, {d}, {p}.",
            )
        if n + sum(p) < (k - 1) * d + 1:
            raise UserError(name, f"a kernel of {(k - 1) * d + 1} does not fit into {n} elements with padding {p}.")


def _check_ranks(name: str, x: Shape, w: Shape) -> None:
    if len(x) != len(w) or not 3 <= len(x) <= 5:
        raise UserError(
            name,
            "the input must be (batch, channels, spatial...) and the filter (filters, channels, kernel...) with 1, 2 or 3 "
            f"spatial dimensions, got shapes {x} and {w}.",
        )


def _check_output(
    name: str, g: Node, front: Shape, size: Shape, kernel: Shape, stride: Shape, padding: Pairs, dilation: Shape
) -> None:
    expected = (*front, *(out_size(*f) for f in zip(size, kernel, stride, padding, dilation, strict=True)))
    if g.shape != expected:
        raise UserError(name, f"a gradient of shape {expected} is required, got {g.shape}.")


# --- the definitions: a sum over the places of the kernel --------------------------------------------------------------------


def _taps(kernel: Shape, counts: Shape, stride: Shape, dilation: Shape) -> Iterator[tuple[Any, Any]]:
    """For each position in the kernel, the slice of the padded input that it multiplies."""
    for tap in itertools.product(*map(range, kernel)):
        facts = zip(tap, counts, stride, dilation, strict=True)
        yield (..., *tap), (..., *(slice(t * d, t * d + (c - 1) * s + 1, s) for t, c, s, d in facts))


def _grouped(x: np.ndarray, axis: int, groups: int) -> np.ndarray:
    return x.reshape(*x.shape[:axis], groups, x.shape[axis] // groups, *x.shape[axis + 1 :])


def _pads(padding: Pairs, front: int) -> list[tuple[int, int]]:
    return [(0, 0)] * front + list(padding)


def _conv(
    x: np.ndarray, w: np.ndarray, stride: Shape, padding: Pairs, dilation: Shape, groups: int, prefer: str
) -> np.ndarray:
    counts = tuple(out_size(*f) for f in zip(x.shape[2:], w.shape[2:], stride, padding, dilation, strict=True))
    padded, filters = np.pad(_grouped(x, 1, groups), _pads(padding, 3)), _grouped(w, 0, groups)
    y = np.zeros((x.shape[0], groups, w.shape[0] // groups, *counts), x.dtype)
    for tap, view in _taps(w.shape[2:], counts, stride, dilation):
        y += np.einsum("ngc...,goc->ngo...", padded[view], filters[tap], optimize=True)
    return y.reshape(x.shape[0], w.shape[0], *counts)


def _data(
    g: np.ndarray, w: np.ndarray, stride: Shape, padding: Pairs, dilation: Shape, groups: int, prefer: str, size: Shape
) -> np.ndarray:
    padded = np.zeros(
        (g.shape[0], groups, w.shape[1], *(n + sum(p) for n, p in zip(size, padding, strict=True))), g.dtype
    )
    grads, filters = _grouped(g, 1, groups), _grouped(w, 0, groups)
    for tap, view in _taps(w.shape[2:], g.shape[2:], stride, dilation):
        padded[view] += np.einsum("ngo...,goc->ngc...", grads, filters[tap], optimize=True)
    inside: Any = (..., *(slice(p[0], p[0] + n) for n, p in zip(size, padding, strict=True)))
    return np.asarray(padded[inside]).reshape(g.shape[0], groups * w.shape[1], *size)


def _filter(
    x: np.ndarray, g: np.ndarray, stride: Shape, padding: Pairs, dilation: Shape, groups: int, prefer: str, size: Shape
) -> np.ndarray:
    padded, grads = np.pad(_grouped(x, 1, groups), _pads(padding, 3)), _grouped(g, 1, groups)
    result = np.zeros((groups, g.shape[1] // groups, x.shape[1] // groups, *size), x.dtype)
    spatial = "xyz"[: len(size)]
    for tap, view in _taps(size, g.shape[2:], stride, dilation):
        equation = f"ngc{spatial},ngo{spatial}->goc"
        result[tap] = np.einsum(equation, padded[view], grads, optimize=True)
    return result.reshape(g.shape[1], x.shape[1] // groups, *size)


# --- the declarations ------------------------------------------------------------------------------------------------------


def _configurations() -> Iterator[tuple[Shape, Shape, Shape, Pairs, Shape, int]]:
    yield (2, 3, 6), (4, 3, 3), (1,), ((0, 0),), (1,), 1
    yield (1, 4, 7), (4, 2, 2), (2,), ((1, 2),), (2,), 2
    yield (2, 2, 5, 4), (3, 2, 3, 2), (2, 1), ((1, 1), (0, 1)), (1, 1), 1
    yield (1, 3, 5, 5), (6, 1, 2, 2), (1, 2), ((0, 0), (1, 0)), (2, 1), 3
    yield (1, 2, 3, 4, 3), (2, 2, 2, 2, 1), (1, 2, 1), ((0, 1), (0, 0), (1, 0)), (1, 1, 1), 1
    yield (0, 2, 4), (2, 2, 2), (1,), ((0, 0),), (1,), 1


def _samples(which: str) -> Any:
    def samples(rng: np.random.Generator) -> Iterator[Sample]:
        for x, w, stride, padding, dilation, groups in _configurations():
            y = (x[0], w[0], *(out_size(*f) for f in zip(x[2:], w[2:], stride, padding, dilation, strict=True)))
            shapes, size = {"conv": ((x, w), ()), "data": ((y, w), (x[2:],)), "filter": ((x, y), (w[2:],))}[which]
            yield Sample([rng.normal(size=s) for s in shapes], (stride, padding, dilation, groups, "", *size))

    return samples


_CONV = Op(
    "conv", "anchor", _conv_infer, _conv,
    lambda g, y, x, w, *how: (lambda: _emit_data(g, w, how, x.shape[2:]), lambda: _emit_filter(x, g, how, w.shape[2:])),
    _PARAMS, 2, True, _samples("conv"),
    (
        Wrong(lambda: conv(zeros((1, 3, 8, 8)), zeros((2, 4, 3, 3))), "[conv] the input has 3 channels but the filter expects 4 (groups=1)"),
        Wrong(lambda: conv(zeros((1, 3, 8)), zeros((2, 3, 3, 3))), "[conv] the input must be (batch, channels, spatial...)"),
        Wrong(lambda: conv(zeros((1, 3, 2, 8)), zeros((2, 3, 3, 3))), "[conv] a kernel of 3 does not fit into 2 elements"),
        Wrong(lambda: conv(zeros((1, 4, 8)), zeros((3, 2, 3)), groups=2), "[conv] 3 filters cannot be divided into 2 groups"),
        Wrong(lambda: conv(zeros((1, 4, 8)), zeros((3, 4, 3)), padding="valid-ish"), "[conv] the padding must be"),
        Wrong(lambda: conv(zeros((1, 4, 8)), zeros((3, 4, 3)), algorithm="WINOGRAT"), "[conv] a known algorithm is required, got 'WINOGRAT'"),
    ),
    kernel="convolution", precision="product", flops=conv_flops,
)  # fmt: skip
_DATA = Op(
    "conv_data", "anchor", _data_infer, _data,
    lambda ct, y, g, w, *how: (lambda: emit(_CONV, (ct, w), how[:5]), lambda: _emit_filter(ct, g, how[:5], w.shape[2:])),
    (*_PARAMS, "size"), 2, True, _samples("data"),
    (Wrong(lambda: _emit_data(zeros((1, 2, 9)), zeros((2, 3, 3)), ((1,), ((0, 0),), (1,), 1, ""), (8,)), "[conv_data] a gradient of shape (1, 2, 6) is required"),),
    kernel="convolution", precision="product", flops=conv_flops,
)  # fmt: skip
_FILTER = Op(
    "conv_filter", "anchor", _filter_infer, _filter,
    lambda ct, y, x, g, *how: (lambda: _emit_data(g, ct, how[:5], x.shape[2:]), lambda: emit(_CONV, (x, ct), how[:5])),
    (*_PARAMS, "size"), 2, True, _samples("filter"),
    (Wrong(lambda: _emit_filter(zeros((1, 3, 8)), zeros((1, 2, 9)), ((1,), ((0, 0),), (1,), 1, ""), (3,)), "[conv_filter] a gradient of shape (1, 2, 6) is required"),),
    kernel="convolution", precision="product", flops=conv_flops,
)  # fmt: skip


def _emit_data(g: Tensor, w: Tensor, how: tuple[Any, ...], size: Shape) -> Tensor:
    return emit(_DATA, (g, w), (*how, size))


def _emit_filter(x: Tensor, g: Tensor, how: tuple[Any, ...], size: Shape) -> Tensor:
    return emit(_FILTER, (x, g), (*how, size))


# --- public functions -----------------------------------------------------------------------------------------------------

Sizes = int | Sequence[int]
Padding = int | str | Sequence[Any]


@function
def conv(
    x: ArrayLike,
    w: ArrayLike,
    bias: Any = None,
    *,
    stride: Sizes = 1,
    padding: Padding = 0,
    dilation: Sizes = 1,
    groups: int = 1,
    algorithm: str | None = None,
    dtype: DTypeLike | None = None,
) -> Tensor:
    """Convolution (cross-correlation, as in every deep-learning library) in 1, 2 or 3 dimensions.

    x: (batch, channels, spatial...), w: (filters, channels / groups, kernel...), bias: (filters,). The padding is a
    number, a number or a pair (before, behind) for each dimension, "valid" (none) or "same" (as many results as inputs,
    divided by the stride). The algorithm is a preference (see docs/algorithms.md) that holds for the gradients as well; it
    changes the speed, the workspace and the last bits of the result. `dtype` is that of the sums and of the result, as in `matmul`:
    "int32" for operands of int8.

    >>> conv(as_tensor([[[1.0, 2.0, 3.0]]]), as_tensor([[[1.0, 1.0]]])).tolist()
    [[[3.0, 5.0]]]
    """
    x, w = same_dtype("conv", [x, w], dtype)
    groups = whole("conv", "groups", groups)
    _check_ranks("conv", x.shape, w.shape)
    ndim = w.ndim - 2
    strides, dilations = per_axis("conv", "stride", stride, ndim), per_axis("conv", "dilation", dilation, ndim)
    pairs = normal_padding("conv", padding, x.shape[2:], w.shape[2:], strides, dilations)
    how = strides, pairs, dilations, groups, in_force("conv", algorithm)
    return _with_bias("conv", emit(_CONV, (x, w), how), bias)


@function
def conv_transpose(
    x: ArrayLike,
    w: ArrayLike,
    bias: Any = None,
    *,
    stride: Sizes = 1,
    padding: Padding = 0,
    output_padding: Sizes = 0,
    dilation: Sizes = 1,
    groups: int = 1,
    algorithm: str | None = None,
) -> Tensor:
    """The transposed convolution: the gradient of `conv` with these settings with respect to its input. It upsamples by the stride.

    x: (batch, channels, spatial...), w: (channels, filters / groups, kernel...), bias: (filters,).

    >>> conv_transpose(as_tensor([[[1.0, 2.0]]]), as_tensor([[[1.0, 1.0]]]), stride=2).tolist()
    [[[1.0, 1.0, 2.0, 2.0]]]
    """
    x, w = same_dtype("conv_transpose", [x, w])
    groups = whole("conv_transpose", "groups", groups)
    ndim = w.ndim - 2
    if x.ndim != w.ndim or not 1 <= ndim <= 3 or x.shape[1] != w.shape[0]:
        raise UserError(
            "conv_transpose",
            "the input must be (batch, channels, spatial...) and the filter (channels, filters / groups, kernel...), "
            f"got shapes {x.shape} and {w.shape}.",
        )
    strides = per_axis("conv_transpose", "stride", stride, ndim)
    dilations = per_axis("conv_transpose", "dilation", dilation, ndim)
    extra = per_axis("conv_transpose", "output_padding", output_padding, ndim, least=0)
    full = tuple(
        (n - 1) * s + (k - 1) * d + 1 for n, s, k, d in zip(x.shape[2:], strides, w.shape[2:], dilations, strict=True)
    )
    if padding == "same" and any(extra):
        raise UserError("conv_transpose", "padding='same' decides the size of the result: it takes no output_padding.")
    if padding == "same":  # the result is the stride times as large as the input
        size = tuple(n * s for n, s in zip(x.shape[2:], strides, strict=True))
        spare = [max(f - n, 0) for f, n in zip(full, size, strict=True)]
        pairs: Pairs = tuple((t // 2, t - t // 2) for t in spare)
    else:
        pairs = normal_padding("conv_transpose", padding, full, w.shape[2:], strides, dilations)
        size = tuple(f - sum(p) + e for f, p, e in zip(full, pairs, extra, strict=True))
    if any(e >= s for e, s in zip(extra, strides, strict=True)):
        raise UserError("conv_transpose", f"the output padding must be below the stride, got {extra} and {strides}.")
    if any(n < 1 for n in size):
        raise UserError("conv_transpose", f"with padding {pairs} nothing of the result {full} is left.")
    how = strides, pairs, dilations, groups, in_force("conv_transpose", algorithm), size
    return _with_bias("conv_transpose", emit(_DATA, (x, w), how), bias)


def _with_bias(name: str, y: Tensor, bias: Any) -> Tensor:
    if bias is None:
        return y
    bias = as_tensor(bias)
    if bias.shape != (y.shape[1],):
        raise UserError(name, f"a bias of shape ({y.shape[1]},) is required, got {bias.shape}.")
    return y + reshape(bias, (-1, *[1] * (y.ndim - 2))).astype(y.dtype)


def per_axis(name: str, what: str, value: Sizes, ndim: int, least: int = 1) -> Shape:
    """Normalize an argument to one int per spatial dimension."""
    values = as_ints(value) if isinstance(value, Sequence) else as_ints([value]) * ndim
    if len(values) != ndim or any(v < least for v in values):
        raise UserError(name, f"the {what} must be an int of {least} or more, or {ndim} of them, got {value!r}.")
    return values


def normal_padding(name: str, padding: Padding, size: Shape, kernel: Shape, stride: Shape, dilation: Shape) -> Pairs:
    """Normalize a padding to a pair (before, behind) per spatial dimension."""
    if padding == "valid":
        padding = 0
    if padding == "same":
        pairs = []
        for n, k, s, d in zip(size, kernel, stride, dilation, strict=True):
            total = max((-(-n // s) - 1) * s + (k - 1) * d + 1 - n, 0)
            pairs.append((total // 2, total - total // 2))
        return tuple(pairs)
    values = padding if isinstance(padding, Sequence) else [padding] * len(kernel)
    pairs_given = [as_ints(v) if isinstance(v, Sequence) else as_ints([v]) * 2 for v in values]
    result = tuple((p[0], p[1]) for p in pairs_given if len(p) == 2 and min(p) >= 0)
    if isinstance(padding, str) or len(values) != len(kernel) or len(result) != len(values):
        raise UserError(
            name,
            f"the padding must be 'same', 'valid', an int, or an int or a pair (before, behind) for each of {len(kernel)} "
            f"dimensions, got {padding!r}.",
        )
    return result
