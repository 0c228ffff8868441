"""Attention split by heads, and the two linear layers of a transformer split by their hidden features (Shoeybi et al. 2019)."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

from ...errors import UserError
from ...mesh import mesh as meshes
from ...nn.attention import MultiHeadAttention, Selection, slopes_of
from ...nn.module import Module
from ...ops.attention import Causal
from ...ops.collective import replicate
from ...ops.creation import eye
from ...ops.elementwise import where
from ...ops.movement import broadcast_to, moveaxis, reshape
from ...ops.selection import repeat
from ...random import bernoulli
from ...tensor import Tensor, as_tensor
from .channels import LinearByInput
from .layer import Message, Shapes, SplitLayer, SplitPlace, cut_tensor, divisible, elementwise_activation, result_sum
from .layout import Layout, Whole, own_part


class AttentionByHeads(SplitLayer):
    """Each process computes its heads: rows of the query, key and value weights, columns of the output weight."""

    how = "heads"
    output: Any

    @classmethod
    def layouts(cls, layer: Any, given: Whole, shapes: Shapes) -> tuple[Whole, Whole]:
        divisible(layer, "the heads", layer.heads, shapes.ranks)
        divisible(layer, "the key heads", layer.key_heads, shapes.ranks)
        return None, None

    @classmethod
    def traffic(cls, layer: Any, wanted: Whole, shapes: Shapes, itemsize: int, backward: bool) -> list[Message]:
        return result_sum(shapes, itemsize)

    def cut_parameters(self) -> None:
        for name in ("query", "key", "value"):
            setattr(self, name, _by_output(getattr(self, name), self._place))
        self.output = _by_input(self.output, self._place)

    def forward(
        self,
        x: Any,
        context: Any = None,
        *,
        mask: Any = None,
        causal: Causal = False,
        key_lengths: Any = None,
        cache: Any = None,
    ) -> Tensor:
        """As MultiHeadAttention, without a cache."""
        if cache is not None:
            raise UserError("split", "attention that is split by heads has no key-value cache.")
        axis = self._place.axis
        mine = _HeadsOfProcess(self, axis)
        others = None if context is None or context is x else replicate(as_tensor(context), axis)
        return mine.forward(replicate(as_tensor(x), axis), others, mask=mask, causal=causal, key_lengths=key_lengths)


class _HeadsOfProcess(MultiHeadAttention):
    """The attention of one process. Dropout draws the numbers of all heads, so that the result is that of a single process."""

    _axis: str
    _all_heads: int

    def __init__(self, split: AttentionByHeads, axis: str) -> None:
        ranks = meshes.current().size(axis)
        settings: dict[str, Any] = {n: v for n, v in vars(split).items() if not n.startswith("_")}
        settings |= {"heads": split._layer.heads // ranks, "key_heads": split._layer.key_heads // ranks}  # type: ignore[attr-defined]
        vars(self).update(settings, _axis=axis, _all_heads=split._layer.heads)  # type: ignore[attr-defined]

    def _attend(self, q: Tensor, k: Tensor, v: Tensor, which: Selection) -> Tensor:
        if which.mask is not None and as_tensor(which.mask).ndim == 4 and as_tensor(which.mask).shape[1] > 1:
            which = replace(which, mask=own_part(as_tensor(which.mask), Layout(1, self._all_heads), self._axis))
        if not self.training or self.dropout == 0.0:
            return super()._attend(q, k, v, which)
        return self._attend_with_dropout(q, k, v, which)

    def _attend_with_dropout(self, q: Tensor, k: Tensor, v: Tensor, which: Selection) -> Tensor:
        """Attention weights are computed and dropped explicitly, because the op would draw numbers for this process's heads only."""
        batch, keys, heads, _ = v.shape
        one = broadcast_to(reshape(eye(keys, dtype=v.dtype), (1, keys, 1, keys)), (batch, keys, heads, keys))
        weights = self._weighted(q, k, one, which)
        kept = part_dropout(moveaxis(weights, 2, 1), self.dropout, Layout(1, self._all_heads), self._axis)
        return moveaxis(kept @ repeat(moveaxis(v, 2, 1), self.heads // heads, axis=1), 1, 2)

    def _slopes(self) -> Tensor | None:
        """Those of this process's heads."""
        return own_part(slopes_of(self._all_heads), Layout(0, self._all_heads), self._axis) if self.alibi else None


class FeedForwardByHidden(SplitLayer):
    """Each process computes its hidden features: rows of the first weight, columns of the second."""

    how = "hidden"
    first: Any
    second: Any
    dropout: float

    @classmethod
    def layouts(cls, layer: Any, given: Whole, shapes: Shapes) -> tuple[Whole, Whole]:
        divisible(layer, "the hidden features", layer.first.weight.shape[0], shapes.ranks)
        elementwise_activation(layer.first)
        return None, None

    @classmethod
    def traffic(cls, layer: Any, wanted: Whole, shapes: Shapes, itemsize: int, backward: bool) -> list[Message]:
        return result_sum(shapes, itemsize)

    def cut_parameters(self) -> None:
        self._hidden = self.first.weight.shape[0]
        self.first = _by_output(self.first, self._place)
        self.second = _by_input(self.second, self._place)

    def compute(self, x: Tensor) -> Tensor:
        y = self.first(x)
        if self.training and self.dropout:
            y = part_dropout(y, self.dropout, Layout(y.ndim - 1, self._hidden), self._place.axis)
        return self.second(y)  # type: ignore[no-any-return]


def part_dropout(x: Tensor, rate: float, layout: Layout, axis: str) -> Tensor:
    """Dropout of a part. The numbers of the whole tensor are drawn, so that the same elements are dropped as in a single process."""
    shape = list(x.shape)
    shape[layout.dim] = layout.size or x.shape[layout.dim] * meshes.current().size(axis)
    keep = own_part(bernoulli(1.0 - rate, shape), layout, axis)
    return where(keep, x * (1.0 / (1.0 - rate)), 0.0)


def _by_output(linear: Module, place: SplitPlace) -> Module:
    """A plain linear layer with this process's output features."""
    made = copy.copy(linear)
    cut_tensor(made, "weight", 0, place)
    cut_tensor(made, "bias", 0, place)
    return made


def _by_input(linear: Any, place: SplitPlace) -> Module:
    """A linear layer that reads this process's features and returns the complete sum."""
    features = Layout(len(place.shapes.x) - 1, linear.weight.shape[1])
    return LinearByInput(linear, SplitPlace(place.axis, features, features, None, None, place.shapes))
