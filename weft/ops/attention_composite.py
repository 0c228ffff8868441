"""What the attention ops compute, once in NumPy and once made of other ops.

The reference defines the ops. The composites store the scores of all queries and keys; they serve devices without kernels for
attention, second derivatives, and derivatives with respect to what is added to the scores.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from ..dtypes import float32, int64, uint64
from ..graph.node import OPS
from ..tensor import Tensor, emit, number
from .contract import einsum
from .creation import iota
from .elementwise import abs, astype, exp, log, stop_gradient, where
from .movement import permute_dims, reshape
from .reduce import max, sum
from .statistics import softmax

OPTIONS = ("left", "right", "align", "scale", "dropout", "given")
LOWEST = -1e30  # the score of a masked key in rows that may be masked entirely, where -inf would give nan
GIVEN = ("mask", "bias", "lengths", "slopes", "key", "offset", "lse_gradient")  # further inputs, in this order


class AttentionOptions(NamedTuple):
    """The parameters of the attention ops. A query at position p attends to keys from p - left to p + right; -1 is unlimited.

    The position of the first query is 0 (`upper_left`), or such that the last query is aligned to the last key (`lower_right`): of all
    keys, or of the first `lengths`. `given` names the inputs that follow.
    """

    left: int
    right: int
    align: str
    scale: float
    dropout: float
    given: tuple[str, ...]

    def split(self, inputs: Sequence[Any], operands: int) -> tuple[Sequence[Any], dict[str, Any]]:
        """The operands, and the further inputs by name."""
        return inputs[:operands], dict(zip(self.given, inputs[operands:], strict=True))

    @property
    def threshold(self) -> int:
        """An element is kept by dropout if its 32 random bits are below this number."""
        return round((1.0 - self.dropout) * 2**32)


# --- the definition, in NumPy -------------------------------------------------------------------------------------------------------


def reference(inputs: tuple[np.ndarray, ...], *params: Any) -> tuple[np.ndarray, np.ndarray]:
    """(output, log-sum-exp): in float64."""
    options = AttentionOptions(*params)
    (q, k, v), extra = options.split(inputs, 3)
    k, v = _for_each_head(k, q.shape[2]), _for_each_head(v, q.shape[2])
    scores, _ = _reference_scores(q, k, options, extra)
    highest = scores.max(axis=-1, keepdims=True)
    weights = np.exp(scores - np.where(np.isneginf(highest), 0.0, highest))
    total = weights.sum(axis=-1, keepdims=True)
    weights = weights / np.where(total == 0.0, 1.0, total)
    lse = np.where(total == 0.0, -np.inf, highest + np.log(np.where(total == 0.0, 1.0, total)))
    kept = _reference_kept(weights.shape, options, extra)
    return np.einsum("bhqk,bkhd->bqhd", weights * kept, v), lse[..., 0]


def gradients_reference(inputs: tuple[np.ndarray, ...], *params: Any) -> tuple[np.ndarray, ...]:
    """The gradients of q, k and v."""
    options = AttentionOptions(*params)
    (q, k, v, out, lse, g), extra = options.split(inputs, 6)
    groups = q.shape[2] // k.shape[2]
    out, g, lse = (x.astype(np.float64) for x in (out, g, lse))
    wide_k, wide_v = _for_each_head(k, q.shape[2]), _for_each_head(v, q.shape[2])
    scores, q = _reference_scores(q, wide_k, options, extra)
    weights = np.where(np.isneginf(scores), 0.0, np.exp(scores - np.where(np.isneginf(lse), 0.0, lse)[..., None]))
    kept = _reference_kept(weights.shape, options, extra)
    delta = np.einsum("bqhd,bqhd->bhq", g, out) - extra.get("lse_gradient", 0.0)
    of_scores = weights * (np.einsum("bqhd,bkhd->bhqk", g, wide_v) * kept - delta[..., None])
    of_q = np.einsum("bhqk,bkhd->bqhd", of_scores, wide_k) * options.scale
    of_k = np.einsum("bhqk,bqhd->bkhd", of_scores, q) * options.scale
    of_v = np.einsum("bhqk,bqhd->bkhd", weights * kept, g)
    return of_q, *(np.reshape(x, (*y.shape[:3], groups, -1)).sum(axis=3) for x, y in ((of_k, k), (of_v, v)))


def _for_each_head(x: np.ndarray, heads: int) -> np.ndarray:
    return np.repeat(x.astype(np.float64), heads // x.shape[2], axis=2)


def _reference_scores(
    q: np.ndarray, k: np.ndarray, options: AttentionOptions, extra: dict[str, np.ndarray]
) -> tuple[np.ndarray, np.ndarray]:
    """Scores (batch, heads, queries, keys), -inf where a query does not attend to a key; and q in float64."""
    q = q.astype(np.float64)
    scores = np.einsum("bqhd,bkhd->bhqk", q, k) * options.scale
    rows, columns = np.arange(q.shape[1])[:, None], np.arange(k.shape[1])
    ends = np.reshape(extra.get("lengths", np.asarray(k.shape[1])), (-1, 1, 1, 1))
    position = rows + (ends - q.shape[1] if options.align == "lower_right" else 0)
    if "bias" in extra:
        scores = scores + extra["bias"]
    if "slopes" in extra:
        scores = scores - np.reshape(extra["slopes"], (-1, 1, 1)) * np.abs(position - columns)
    allowed = columns < ends
    if options.right >= 0:
        allowed = allowed & (columns <= position + options.right)
    if options.left >= 0:
        allowed = allowed & (columns >= position - options.left)
    if "mask" in extra:
        allowed = allowed & extra["mask"]
    return np.where(allowed, scores, -np.inf), q


def _reference_kept(shape: tuple[int, ...], options: AttentionOptions, extra: dict[str, np.ndarray]) -> Any:
    """The factors by which dropout multiplies the weights."""
    if not options.dropout:
        return 1.0
    bits = OPS["random_bits"].reference(extra["key"], extra["offset"], shape)
    return np.where(bits.astype(np.uint64) < options.threshold, 1.0 / (1.0 - options.dropout), 0.0)


# --- made of other ops --------------------------------------------------------------------------------------------------------------


def composite(*given: Any) -> tuple[Tensor, Tensor]:
    """(output, log-sum-exp), from the inputs and parameters of the op."""
    options = AttentionOptions(*given[-len(OPTIONS) :])
    (q, k, v), extra = options.split(given[: -len(OPTIONS)], 3)
    dtype = q.dtype
    q, k, v = (_wide(x) for x in (q, k, v))
    scores, allowed = _scores(q, k, options, extra)
    weights = softmax(scores) if allowed is None else where(allowed, softmax(where(allowed, scores, LOWEST)), 0.0)
    output = _values(_dropped(weights, options, extra), v)
    return astype(output, dtype), _log_sum_exp(scores, allowed)


def _log_sum_exp(scores: Tensor, allowed: Tensor | None) -> Tensor:
    """Over the keys that are not masked; -inf if all are."""
    scores = scores if allowed is None else where(allowed, scores, LOWEST)
    highest = stop_gradient(max(scores, axis=-1, keepdims=True))
    terms = exp(scores - highest)
    total = sum(terms if allowed is None else where(allowed, terms, 0.0), axis=-1)
    some = total > 0.0
    return where(some, log(where(some, total, 1.0)) + reshape(highest, total.shape), -math.inf)


def gradients_composite(*given: Any) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of q, k and v, from the inputs and parameters of the op."""
    options = AttentionOptions(*given[-len(OPTIONS) :])
    (q, k, v, out, lse, g), extra = options.split(given[: -len(OPTIONS)], 6)
    dtype = q.dtype
    q, k, v, out, g = (_wide(x) for x in (q, k, v, out, g))
    weights, of_scores = _score_gradients(q, k, v, out, lse, g, options, extra)
    groups = (k.shape[2], q.shape[2] // k.shape[2])
    shared = (*weights.shape[:1], *groups, *weights.shape[2:])
    q_groups, g_groups = (reshape(x, (*x.shape[:2], *groups, x.shape[3])) for x in (q, g))
    of_scores, weights = reshape(of_scores * options.scale, shared), reshape(_dropped(weights, options, extra), shared)
    of_q = reshape(einsum("bngqk,bknd->bqngd", of_scores, k), q.shape)
    of_k = einsum("bngqk,bqngd->bknd", of_scores, q_groups)
    of_v = einsum("bngqk,bqngd->bknd", weights, g_groups)
    return astype(of_q, dtype), astype(of_k, dtype), astype(of_v, dtype)


def bias_gradient(*given: Any) -> Tensor:
    """The gradient of what is added to the scores, (batch, heads, queries, keys), from the inputs and parameters of the gradient op."""
    options = AttentionOptions(*given[-len(OPTIONS) :])
    (q, k, v, out, lse, g), extra = options.split(given[: -len(OPTIONS)], 6)
    q, k, v, out, g = (_wide(x) for x in (q, k, v, out, g))
    return _score_gradients(q, k, v, out, lse, g, options, extra)[1]


def distances(queries: int, keys: int, options: AttentionOptions, extra: dict[str, Tensor]) -> Tensor:
    """The distance of each key from each query: (1 or batch, 1, queries, keys)."""
    return abs(_positions(queries, keys, options, extra) - iota(keys))


def _score_gradients(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    g: Tensor,
    options: AttentionOptions,
    extra: dict[str, Tensor],
) -> tuple[Tensor, Tensor]:
    """(weights before dropout, the gradient of the scores)."""
    scores, allowed = _scores(q, k, options, extra)
    there = reshape(where(lse > -math.inf, lse, 0.0), (*lse.shape, 1))
    weights = exp(scores - there) if allowed is None else where(allowed, exp(where(allowed, scores - there, 0.0)), 0.0)
    delta = permute_dims(sum(g * out, axis=-1), (0, 2, 1))
    if "lse_gradient" in extra:
        delta = delta - extra["lse_gradient"]
    of_weights = _dropped(_products(g, v), options, extra)
    return weights, weights * (of_weights - reshape(delta, (*delta.shape, 1)))


def _wide(x: Tensor) -> Tensor:
    return astype(x, float32) if x.dtype.is_half else x


def _products(x: Tensor, y: Tensor) -> Tensor:
    """(batch, queries, heads, n) times (batch, keys, key heads, n) as (batch, heads, queries, keys)."""
    batch, queries, heads, width = x.shape
    if heads == y.shape[2]:
        return einsum("bqhd,bkhd->bhqk", x, y)
    groups = reshape(x, (batch, queries, y.shape[2], heads // y.shape[2], width))
    return reshape(einsum("bqngd,bknd->bngqk", groups, y), (batch, heads, queries, y.shape[1]))


def _values(weights: Tensor, v: Tensor) -> Tensor:
    batch, heads, queries, keys = weights.shape
    if heads == v.shape[2]:
        return einsum("bhqk,bkhd->bqhd", weights, v)
    groups = reshape(weights, (batch, v.shape[2], heads // v.shape[2], queries, keys))
    return reshape(einsum("bngqk,bknd->bqngd", groups, v), (batch, queries, heads, v.shape[3]))


def _positions(queries: int, keys: int, options: AttentionOptions, extra: dict[str, Tensor]) -> Tensor:
    rows = reshape(iota(queries), (1, 1, queries, 1))
    if options.align == "upper_left":
        return rows
    return rows + (_ends(extra["lengths"]) if "lengths" in extra else keys) - queries


def _ends(lengths: Tensor) -> Tensor:
    return reshape(astype(lengths, int64), (-1, 1, 1, 1))


def _scores(q: Tensor, k: Tensor, options: AttentionOptions, extra: dict[str, Tensor]) -> tuple[Tensor, Tensor | None]:
    """Scores (batch, heads, queries, keys), and the mask of those that are used, in a shape that broadcasts to them; None: all."""
    scores = _products(q, k) * options.scale
    queries, keys = q.shape[1], k.shape[1]
    columns, position = iota(keys), _positions(queries, keys, options, extra)
    allowed: list[Tensor] = []
    if "bias" in extra:
        bias = astype(extra["bias"], scores.dtype)
        allowed.append(bias > -math.inf)
        scores = scores + where(allowed[0], bias, 0.0)
    if "slopes" in extra:
        slopes = reshape(astype(extra["slopes"], scores.dtype), (-1, 1, 1))
        scores = scores - slopes * astype(distances(queries, keys, options, extra), scores.dtype)
    if "lengths" in extra:
        allowed.append(columns < _ends(extra["lengths"]))
    if options.right >= 0:
        allowed.append(columns <= position + options.right)
    if options.left >= 0:
        allowed.append(columns >= position - options.left)
    if "mask" in extra:
        allowed.append(extra["mask"])
    return scores, functools.reduce(lambda x, y: x & y, allowed) if allowed else None


def _dropped(weights: Tensor, options: AttentionOptions, extra: dict[str, Tensor]) -> Tensor:
    if not options.dropout:
        return weights
    bits = emit(OPS["random_bits"], (extra["key"], extra["offset"]), (weights.shape,))
    kept = astype(bits, uint64) < number(options.threshold, uint64)
    return where(kept, weights * (1.0 / (1.0 - options.dropout)), 0.0)
