"""Attention: softmax(query key^T * scale) value, and its gradients, as primitives whose kernels never store queries x keys.

    output, lse = attention(q, k, v, ...)      the log-sum-exp of each row of scores is all that the gradients need beside the output

Layout: (batch, time, heads, features), as products leave it. There may be fewer key heads than heads: several heads then share keys
and values. Dropout takes the bits of the counter-based generator at (batch, head, query, key), as `weft.dropout` of the weights does.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import Any, Literal

import numpy as np

from ..dtypes import bool_, float32, float64, uint64
from ..errors import UserError
from ..graph.node import CONST, Node, Op, Shape, Type
from ..tensor import FUNCTIONS, ArrayLike, Tensor, as_tensor, emit_all, function
from .attention_composite import (
    GIVEN,
    OPTIONS,
    AttentionOptions,
    bias_gradient,
    composite,
    distances,
    gradients_composite,
    gradients_reference,
    reference,
)
from .creation import zeros
from .declare import Sample, Wrong, as_float, broadcast_shape, expand_to, on_nodes, whole
from .elementwise import astype
from .movement import permute_dims, reshape, same_dtype, stack
from .reduce import sum

MOST_FEATURES = 256  # of a head that kernels keep on the chip
Alignment = Literal["upper_left", "lower_right"]
Causal = bool | Alignment


# --- the ops --------------------------------------------------------------------------------------------------------------------------


def _infer(inputs: tuple[Node, ...], *params: Any) -> tuple[Type, Type]:
    q, _, v = _checked("attention", inputs, 3, params)
    batch, queries, heads, _ = q.shape
    wide = float64 if q.dtype is float64 else float32
    return Type((batch, queries, heads, v.shape[3]), q.dtype), Type((batch, heads, queries), wide)


def _gradients_infer(inputs: tuple[Node, ...], *params: Any) -> tuple[Type, Type, Type]:
    q, k, v = _checked("attention_gradients", inputs, 6, params)
    out, lse, g = inputs[3:6]
    batch, queries, heads, _ = q.shape
    wanted = Type((batch, queries, heads, v.shape[3]), q.dtype)
    if out.type != wanted or g.type != wanted or lse.shape != (batch, heads, queries) or not lse.dtype.is_float:
        raise UserError(
            "attention_gradients",
            f"the results of attention and a gradient of type {wanted} are required, got {out.type}, {lse.type} and {g.type}.",
        )
    return q.type, k.type, v.type


def _checked(name: str, inputs: tuple[Node, ...], operands: int, params: tuple[Any, ...]) -> tuple[Node, Node, Node]:
    options = AttentionOptions(*params)
    if len(inputs) != operands + len(options.given):
        raise UserError(name, f"{operands + len(options.given)} inputs are required, got {len(inputs)}.")
    q, k, v = inputs[:3]
    if any(len(x.shape) != 4 or x.dtype is not q.dtype or not x.dtype.is_float for x in (q, k, v)):
        raise UserError(
            name,
            f"floats (batch, time, heads, features) of one dtype are required, got {q.type}, {k.type} and {v.type}.",
        )
    fits = (
        (q.shape[0], *k.shape[1:3]) == (k.shape[0], *v.shape[1:3])
        and k.shape[0] == v.shape[0]
        and q.shape[3] == k.shape[3]
    )
    if not fits or not all((*q.shape, *k.shape, *v.shape)) or q.shape[2] % k.shape[2]:
        raise UserError(
            name, f"matching sizes, and heads in whole groups, are required, got {q.shape}, {k.shape} and {v.shape}."
        )
    if max(q.shape[3], v.shape[3]) > MOST_FEATURES:
        raise UserError(
            name, f"heads of up to {MOST_FEATURES} features are required, got {q.shape[3]} and {v.shape[3]}."
        )
    _check_options(name, options)
    _check_given(name, options, options.split(inputs, operands)[1], (*q.shape[:3], k.shape[1]))
    return q, k, v


def _check_options(name: str, options: AttentionOptions) -> None:
    if options.align not in ("upper_left", "lower_right"):
        raise UserError(name, f"the alignment must be 'upper_left' or 'lower_right', got {options.align!r}.")
    if not 0.0 <= options.dropout < 1.0 or not math.isfinite(options.scale):
        raise UserError(
            name, f"a dropout in [0, 1) and a finite scale are required, got {options.dropout} and {options.scale}."
        )
    if tuple(sorted(set(options.given), key=GIVEN.index)) != options.given:
        raise UserError(name, f"further inputs out of {GIVEN}, in this order, are required, got {options.given}.")
    if min(options.left, options.right) < -1 or bool(options.dropout) != (
        "key" in options.given and "offset" in options.given
    ):
        raise UserError(
            name, f"a band of -1 or more, and a random stream for dropout only, are required, got {options}."
        )


def _check_given(name: str, options: AttentionOptions, extra: dict[str, Node], sizes: Shape) -> None:
    batch, queries, heads, keys = sizes
    full = (batch, heads, queries, keys)
    for what in ("mask", "bias"):
        node = extra.get(what)
        if node is None:
            continue
        fits = len(node.shape) == 4 and all(n in (1, m) for n, m in zip(node.shape, full, strict=True))
        if not fits or (node.dtype is not bool_ if what == "mask" else not node.dtype.is_float):
            raise UserError(name, f"a {what} that broadcasts to {full} is required, got {node.type}.")
    wanted = {"lengths": (batch,), "slopes": (heads,), "key": (), "offset": (), "lse_gradient": full[:3]}
    for what, shape in wanted.items():
        node = extra.get(what)
        if node is None:
            continue
        kind = "int" if what == "lengths" else "uint" if what in ("key", "offset") else "float"
        if node.shape != shape or node.dtype.kind != kind or (kind == "uint" and node.dtype is not uint64):
            dtype = {"int": "a signed integer dtype", "uint": "dtype uint64", "float": "a float dtype"}[kind]
            raise UserError(name, f"{what} of shape {shape} and {dtype} are required, got {node.type}.")


def band(options: AttentionOptions, queries: int, keys: int) -> Iterator[tuple[int, int]]:
    """The range of keys (first, last + 1) that each query can attend to, as far as it follows from the shapes."""
    shift = keys - queries if options.align == "lower_right" else 0
    for i in range(queries):
        first = 0 if options.left < 0 else min(keys, max(0, i + shift - options.left))
        end = keys if options.right < 0 else max(0, min(keys, i + shift + options.right + 1))
        yield first, max(first, end)


@cache
def _pairs(options: AttentionOptions, queries: int, keys: int) -> int:
    if options.left < 0 and options.right < 0:
        return queries * keys
    return int(np.sum([end - first for first, end in band(options, queries, keys)]))


def pairs(node: Node) -> int:
    """How many pairs of a query and a key are computed, in all heads and examples."""
    q, k = node.inputs[:2]
    options = AttentionOptions(*node.get_params(*OPTIONS))._replace(scale=1.0, dropout=0.0, given=())
    return q.shape[0] * q.shape[2] * _pairs(options, q.shape[1], k.shape[1])


def _flops(node: Node) -> int:
    return 2 * pairs(node) * (node.inputs[0].shape[3] + node.inputs[2].shape[3])


def _gradients_flops(node: Node) -> int:
    """Five products: the scores, recomputed, and one for each gradient of q, k, v and the weights."""
    return 2 * pairs(node) * (3 * node.inputs[0].shape[3] + 2 * node.inputs[2].shape[3])


# --- derivatives ------------------------------------------------------------------------------------------------------------------------

Rule = Callable[[], Tensor] | None


def _vjp(gs: Sequence[Tensor], ys: Sequence[Tensor], inputs: tuple[Tensor, ...], *params: Any) -> tuple[Rule, ...]:
    options = AttentionOptions(*params)
    given, more = options.given, inputs[3:]
    if not _is_zero(gs[1]):
        given, more = (*given, "lse_gradient"), (*more, gs[1])
    operands, wanted = (*inputs[:3], *ys, gs[0], *more), tuple(options._replace(given=given))
    made = cache(lambda: emit_all(_GRADIENTS, operands, wanted))
    extra = options.split(inputs, 3)[1]

    def of_bias() -> Tensor:
        return _summed_to(bias_gradient(*operands, *wanted), extra["bias"])

    def of_slopes() -> Tensor:
        away = distances(inputs[0].shape[1], inputs[1].shape[1], options, extra)
        g = bias_gradient(*operands, *wanted)
        return astype(sum(g * -astype(away, g.dtype), axis=(0, 2, 3)), extra["slopes"].dtype)

    rules: dict[str, Rule] = {"bias": of_bias, "slopes": of_slopes}
    return (*(lambda i=i: made()[i] for i in range(3)), *(rules.get(name) for name in options.given))


def _is_zero(x: Tensor) -> bool:
    return x.node.op is CONST and x.node.param("value") == 0.0


def _summed_to(g: Tensor, x: Tensor) -> Tensor:
    """A gradient summed over the axes along which x was broadcast."""
    axes = tuple(a for a, n in enumerate(x.shape) if n == 1 and g.shape[a] != 1)
    return astype(sum(g, axis=axes, keepdims=True) if axes else g, x.dtype)


def _gradients_vjp(
    gs: Sequence[Tensor], ys: Sequence[Tensor], inputs: tuple[Tensor, ...], *params: Any
) -> tuple[Rule, ...]:
    """Second derivatives are those of the composite."""
    floats = [i for i, x in enumerate(inputs) if x.dtype.is_float]

    def gradients(*some: Tensor) -> tuple[Tensor, ...]:
        known = dict(zip(floats, some, strict=True))
        return gradients_composite(*(known.get(i, x) for i, x in enumerate(inputs)), *params)

    found = cache(lambda: FUNCTIONS["vjp"](gradients, *(inputs[i] for i in floats))[1](tuple(gs)))
    return tuple((lambda n=floats.index(i): found()[n]) if i in floats else None for i in range(len(inputs)))


# --- many examples ----------------------------------------------------------------------------------------------------------------------


def _batched(call: Any, op: Op, *params: Any) -> tuple[Tensor, ...]:
    """The examples are additional rows of the batch, unless each has slopes of its own, or all share the same random numbers."""
    options = AttentionOptions(*params)
    operands = len(call.tensors) - len(options.given)
    apart = any(
        call.mapped[operands + options.given.index(name)]
        for name in ("slopes", "key", "offset")
        if name in options.given
    )
    if apart or (options.dropout and not call.draws):
        each = [emit_all(op, tuple(t[i] for t in call.all()), params) for i in range(call.size)]
        return tuple(stack(parts) for parts in zip(*each, strict=True))
    names = ("",) * operands + options.given
    batch = call.each(0).shape[1]
    inputs = [_merged(call, i, name, batch) for i, name in enumerate(names)]
    results = emit_all(op, tuple(inputs), params)
    return tuple(reshape(y, (call.size, batch, *y.shape[1:])) for y in results)


def _merged(call: Any, i: int, name: str, batch: int) -> Tensor:
    if name in ("slopes", "key", "offset"):
        return call.tensors[i]  # type: ignore[no-any-return]
    if name in ("mask", "bias") and not call.mapped[i] and call.tensors[i].shape[0] == 1:
        return call.tensors[i]  # type: ignore[no-any-return]
    x = call.each(i)
    x = expand_to(x, (x.shape[0], batch, *x.shape[2:]))
    return reshape(x, (call.size * batch, *x.shape[2:]))


# --- samples for the tests ----------------------------------------------------------------------------------------------------------------


def _samples(rng: np.random.Generator) -> Iterator[Sample]:
    full, causal = (-1, -1, "upper_left"), (-1, 0, "lower_right")
    uint = np.uint64(rng.integers(1 << 62))
    for (batch, heads, key_heads, queries, keys, width, values), how, dropout, names in (
        ((2, 2, 1, 3, 4, 2, 3), full, 0.0, ()),
        ((1, 2, 2, 3, 5, 3, 2), causal, 0.0, ("bias", "slopes")),
        ((2, 1, 1, 4, 4, 2, 1), (1, 1, "upper_left"), 0.25, ("mask", "lengths", "key", "offset")),
    ):
        extra = {
            "mask": ~np.eye(queries, keys, 1, bool)[None, None], "bias": rng.normal(size=(batch, 1, queries, keys)),
            "lengths": np.asarray([keys, keys - 1][:batch]), "slopes": rng.normal(size=heads), "key": uint, "offset": uint,
        }  # fmt: skip
        q = rng.normal(size=(batch, queries, heads, width))
        k, v = rng.normal(size=(batch, keys, key_heads, width)), rng.normal(size=(batch, keys, key_heads, values))
        yield Sample([q, k, v, *(extra[name] for name in names)], (*how, 0.7, dropout, names))


def _gradients_samples(rng: np.random.Generator) -> Iterator[Sample]:
    for inputs, params, *_ in _samples(rng):
        out, lse = reference(tuple(map(np.asarray, inputs)), *params)
        lse = np.where(np.isneginf(lse), 0.0, lse)
        yield Sample([*inputs[:3], out, lse, rng.normal(size=out.shape), *inputs[3:]], params)


def _node(op: Op, *shapes: Shape, **changes: Any) -> Callable[[], Any]:
    options = AttentionOptions(-1, -1, "upper_left", 1.0, 0.0, ())._replace(**changes)
    return lambda: emit_all(op, tuple(zeros(shape) for shape in shapes), tuple(options))


def _errors(name: str, op: Callable[[], Op], more: tuple[Shape, ...]) -> tuple[Wrong, ...]:
    x, y = (1, 2, 2, 3), (1, 2, 3, 3)

    def call(*shapes: Shape, **changes: Any) -> Callable[[], Any]:
        return lambda: _node(op(), *shapes, *more, **changes)()

    return (
        Wrong(call(x, x), f"[{name}] {3 + len(more)} inputs are required, got {2 + len(more)}"),
        Wrong(
            call(x, y, y),
            f"[{name}] matching sizes, and heads in whole groups, are required, got (1, 2, 2, 3), (1, 2, 3, 3)",
        ),
        Wrong(
            call((1, 2, 2, 257), (1, 2, 2, 257), x), f"[{name}] heads of up to 256 features are required, got 257 and 3"
        ),
        Wrong(call(x, x, x, align="top"), f"[{name}] the alignment must be 'upper_left' or 'lower_right', got 'top'"),
        Wrong(
            call(x, x, x, dropout=0.5),
            f"[{name}] a band of -1 or more, and a random stream for dropout only, are required",
        ),
    )


_ATTENTION: Op = Op(
    "attention", "anchor", _infer, reference, _vjp, OPTIONS, None, samples=_samples, errors=_errors("attention", lambda: _ATTENTION, ()),
    own_kernels=True, decompose=on_nodes(composite), batch=_batched, precision="product", product_inputs=(0, 1, 2), flops=_flops,
    strided_inputs=(0, 1, 2),
)  # fmt: skip
_X = (1, 2, 2, 3)
_GRADIENTS: Op = Op(
    "attention_gradients", "anchor", _gradients_infer, gradients_reference, _gradients_vjp, OPTIONS, None, samples=_gradients_samples,
    errors=_errors("attention_gradients", lambda: _GRADIENTS, (_X, (1, 2, 2), _X)), own_kernels=True, decompose=on_nodes(gradients_composite),
    batch=_batched, precision="product", product_inputs=(0, 1, 2, 3, 5), flops=_gradients_flops, strided_inputs=(0, 1, 2, 3, 5),
)  # fmt: skip
for _op in (_ATTENTION, _GRADIENTS):
    _op.external = False  # what they decompose into is part of weft, so compiled code is kept on disk


# --- functions ----------------------------------------------------------------------------------------------------------------------------


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    mask: Tensor | None = None,
    causal: Causal = False,
    align: Alignment | None = None,
    window: int | tuple[int, int] | None = None,
    scale: float | None = None,
    key_lengths: Tensor | None = None,
    slopes: Tensor | None = None,
    dropout: float = 0.0,
    generator: Any = None,
) -> tuple[Tensor, Tensor]:
    """(output, log-sum-exp) of q, k and v in the layout (batch, time, heads, features); see `dot_product_attention` for the options.

    `align` is the alignment of queries to keys where it does not follow from `causal`.
    """
    inputs: dict[str, Tensor] = {}
    if mask is not None:
        inputs["mask" if mask.dtype is bool_ else "bias"] = mask
    if key_lengths is not None:
        inputs["lengths"] = key_lengths
    if slopes is not None:
        inputs["slopes"] = slopes
    if dropout:
        words = q.shape[0] * q.shape[2] * q.shape[1] * k.shape[1]
        inputs["key"], inputs["offset"] = FUNCTIONS["reserve_words"](words, q, generator)
    left, right = _window(window)
    if causal:
        right = 0
    align = align or (causal if isinstance(causal, str) else "lower_right")
    scale = 1.0 / math.sqrt(max(1, q.shape[3])) if scale is None else float(scale)
    options = AttentionOptions(left, right, align, scale, float(dropout), tuple(inputs))
    if not all((*q.shape, *k.shape[:3])):
        wide = float64 if q.dtype is float64 else float32
        lse = zeros((q.shape[0], q.shape[2], q.shape[1]), dtype=wide) - math.inf
        return zeros((*q.shape[:3], v.shape[3]), dtype=q.dtype), lse
    if not v.shape[3] or max(q.shape[3], v.shape[3]) > MOST_FEATURES:
        return composite(q, k, v, *inputs.values(), *options)
    output, lse = emit_all(_ATTENTION, (q, k, v, *inputs.values()), tuple(options))
    return output, lse


def _window(window: int | tuple[int, int] | None) -> tuple[int, int]:
    """How many keys before and after its own position a query attends to."""
    if window is None:
        return -1, -1
    if isinstance(window, tuple):
        if len(window) != 2:
            raise UserError(
                "dot_product_attention", f"window must be a number of keys, or (left, right), got {window!r}."
            )
        left, right = window
        return tuple(-1 if n == -1 else whole("dot_product_attention", "window", n) for n in (left, right))  # type: ignore[return-value]
    return whole("dot_product_attention", "window", window, 1) - 1, -1


@function
def dot_product_attention(
    query: ArrayLike,
    key: Any,
    value: Any,
    *,
    mask: Any = None,
    causal: Causal = False,
    scale: float | None = None,
    window: int | tuple[int, int] | None = None,
    key_lengths: Any = None,
    slopes: Any = None,
    dropout: float = 0.0,
    generator: Any = None,
) -> Tensor:
    """softmax(query @ key.T * scale) @ value, over the last two axes (time, features); the axis before is heads, others are batches.

    A bool mask selects the positions to attend to; a float mask is added to the scores. With `causal`, a query attends only to
    earlier positions: the last query is aligned to the last key ('lower_right', the default), or the first to the first ('upper_left').
    `window=n` limits it to the n keys up to its own position, `window=(left, right)` to that many on each side (-1: all).
    `key_lengths` (one for each example) says how many keys count; the last query is then aligned to the last of these. `slopes` (one a head) are
    those of ALiBi: slope * distance is subtracted from the scores. Keys and values may have fewer heads, each shared by
    a group of query heads. `dropout` of the weights. A query that attends to nothing gives zeros.

    >>> dot_product_attention([[0.0]], [[1.0], [2.0]], [[1.0], [3.0]]).tolist()
    [[2.0]]
    """
    name = "dot_product_attention"
    q, k, v = same_dtype(name, [as_float(as_tensor(t), name) for t in (query, key, value)])
    if min(q.ndim, k.ndim, v.ndim) < 2 or q.shape[-1] != k.shape[-1] or k.shape[-2] != v.shape[-2]:
        raise UserError(
            name, f"(..., time, features) of matching sizes are required, got {q.shape}, {k.shape} and {v.shape}."
        )
    if not 0.0 <= dropout <= 1.0:
        raise UserError(name, f"a dropout in [0, 1] is required, got {dropout}.")
    if causal not in (False, True, "upper_left", "lower_right"):
        raise UserError(name, f"causal must be a bool, 'upper_left' or 'lower_right', got {causal!r}.")
    lead, q, k, v = _four_axes(q, k, v)
    shape = (*lead, q.shape[1], v.shape[3])
    if dropout == 1.0:
        return zeros(shape, dtype=q.dtype)
    batch, heads = q.shape[0], q.shape[2]
    full = (*lead, q.shape[1], k.shape[1])
    y, _ = attention(
        q, k, v, mask=None if mask is None else _mask_of(as_tensor(mask), full, (batch, heads)), causal=causal, scale=scale, window=window,
        key_lengths=None if key_lengths is None else _lengths(as_tensor(key_lengths), lead, batch),
        slopes=None if slopes is None else as_tensor(slopes), dropout=dropout, generator=generator,
    )  # fmt: skip
    return reshape(permute_dims(y, (0, 2, 1, 3)), shape)


def _four_axes(q: Tensor, k: Tensor, v: Tensor) -> tuple[Shape, Tensor, Tensor, Tensor]:
    """The axes in front of (time, features) of the result, and the operands as (batch, time, heads, features)."""
    rank = max(q.ndim, k.ndim, v.ndim)
    operands = [reshape(x, (*[1] * (rank - x.ndim), *x.shape)) for x in (q, k, v)]
    front = [x.shape[:-2] for x in operands]
    if rank < 4:  # no axis of heads
        operands = [reshape(x, (*x.shape[:-2], 1, *x.shape[-2:])) for x in operands]
        lead = broadcast_shape("dot_product_attention", *front)
        batch, heads, key_heads = lead, 1, 1
    else:
        batch = broadcast_shape("dot_product_attention", *(f[:-1] for f in front))
        key_heads = broadcast_shape("dot_product_attention", *(f[-1:] for f in front[1:]))[0]
        heads = max(front[0][-1], key_heads)
        if heads % max(1, key_heads) or front[0][-1] not in (1, heads):
            raise UserError(
                "dot_product_attention",
                f"query heads in groups of the key heads are required, got {front[0][-1]} and {key_heads}.",
            )
        lead = (*batch, heads)
    moved = []
    for x, count in zip(operands, (heads, key_heads, key_heads), strict=True):
        x = expand_to(x, (*batch, count, *x.shape[-2:]))
        moved.append(permute_dims(reshape(x, (math.prod(batch), count, *x.shape[-2:])), (0, 2, 1, 3)))
    q, k, v = moved
    return lead, q, k, v


def _mask_of(mask: Tensor, full: Shape, sizes: tuple[int, int]) -> Tensor:
    """A mask that broadcasts to the scores, as one of (1 or batch, 1 or heads, 1 or queries, 1 or keys)."""
    if mask.dtype is not bool_ and not mask.dtype.is_float:
        raise UserError("dot_product_attention", f"a bool or float mask is required, got {mask.dtype.name}.")
    full = (
        full if len(full) > 3 else (*full[:-2], *[1] * (4 - len(full)), *full[-2:]) if len(full) == 3 else (1, 1, *full)
    )
    if mask.ndim == 3 and len(full) == 4 and full[1] == 1:  # (batch, queries, keys) where there are no heads
        mask = reshape(mask, (mask.shape[0], 1, *mask.shape[1:]))
    mask = reshape(mask, (*[1] * (len(full) - mask.ndim), *mask.shape))
    if broadcast_shape("dot_product_attention", mask.shape, full) != full:
        raise UserError("dot_product_attention", f"a mask that broadcasts to {full} is required, got {mask.shape}.")
    *front, heads, queries, keys = mask.shape
    if all(n == 1 for n in front):
        return reshape(mask, (1, heads, queries, keys))
    return reshape(expand_to(mask, (*full[:-3], heads, queries, keys)), (sizes[0], heads, queries, keys))


def _lengths(lengths: Tensor, lead: Shape, batch: int) -> Tensor:
    axes = lead[:-1] if len(lead) > 1 else lead
    return reshape(expand_to(lengths, axes) if math.prod(axes) == batch else lengths, (batch,))
