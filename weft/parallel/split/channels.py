"""Linear layers and convolutions split by output or by input features (maps), embeddings by vocabulary.

By output, each process computes its features from the whole input: the gradients of the input are all-reduced. By input, it
reads its features and computes partial sums: the results are all-reduced. Output followed by input needs no communication in between.
"""

from __future__ import annotations

from typing import Any

from ...errors import UserError
from ...nn.activations import activation
from ...ops.collective import all_reduce, axis_index
from ...ops.elementwise import where
from ...ops.indexing import embedding
from ...ops.movement import expand_dims, reshape
from ...tensor import Tensor
from .layer import Message, Shapes, SplitLayer, divisible, elementwise_activation, result_sum
from .layout import CHANNELS, Layout, Whole


class LinearByOutput(SplitLayer):
    """y_r = x W_r^T + b_r: rows of the weight; the result is split along the features."""

    how = "output"

    @classmethod
    def layouts(cls, layer: Any, given: Whole, shapes: Shapes) -> tuple[Whole, Whole]:
        divisible(layer, "the outputs", shapes.y[-1], shapes.ranks)
        elementwise_activation(layer)
        return None, Layout(len(shapes.y) - 1, shapes.y[-1])

    def cut_parameters(self) -> None:
        self.cut("weight", 0)
        self.cut("bias", 0)

    def compute(self, x: Tensor) -> Tensor:
        return self.call_layer(x)  # type: ignore[no-any-return]


class _ByInput(SplitLayer):
    """Each process computes partial sums; the bias and the activation come after the all-reduce."""

    how = "input"
    weight: Any
    bias: Any
    activation: Any

    @classmethod
    def traffic(cls, layer: Any, wanted: Whole, shapes: Shapes, itemsize: int, backward: bool) -> list[Message]:
        return result_sum(shapes, itemsize)

    def cut_parameters(self) -> None:
        self.cut("weight", 1)

    def compute(self, x: Tensor) -> Tensor:
        y = all_reduce(self.call_layer(x, bias=None, activation=None), self._place.axis, loss="shared")
        return activation(self.activation)(y if self.bias is None else y + self.spread_bias(y))

    def spread_bias(self, y: Tensor) -> Tensor:
        """The bias, broadcast to the shape of a result."""
        return self.bias  # type: ignore[no-any-return]


class LinearByInput(_ByInput):
    """y = sum over r of x_r W_r^T, plus b: columns of the weight; the result is whole."""

    @classmethod
    def layouts(cls, layer: Any, given: Whole, shapes: Shapes) -> tuple[Whole, Whole]:
        divisible(layer, "the inputs", shapes.x[-1], shapes.ranks)
        return Layout(len(shapes.x) - 1, shapes.x[-1]), None


class ConvByOutput(SplitLayer):
    """Each process has its own filters: the result is split along the channels. Groups stay together."""

    how = "output"

    @classmethod
    def layouts(cls, layer: Any, given: Whole, shapes: Shapes) -> tuple[Whole, Whole]:
        divisible(layer, "the outputs", shapes.y[1], shapes.ranks)
        elementwise_activation(layer)
        groups = conv_groups(layer)
        if groups > 1:  # a process with its own groups reads only their channels
            divisible(layer, "the groups", groups, shapes.ranks)
        return Layout(CHANNELS, shapes.x[1]) if groups > 1 else None, Layout(CHANNELS, shapes.y[1])

    def cut_parameters(self) -> None:
        self.cut("weight", 0)
        self.cut("bias", 0)

    def compute(self, x: Tensor) -> Tensor:
        groups = getattr(self, "groups", 1)
        if groups == 1:
            return self.call_layer(x)  # type: ignore[no-any-return]
        return self.call_layer(x, groups=groups // self._place.shapes.ranks)  # type: ignore[no-any-return]


class ConvByInput(_ByInput):
    """Each process reads its own channels and computes partial sums over channels: the result is whole."""

    @classmethod
    def layouts(cls, layer: Any, given: Whole, shapes: Shapes) -> tuple[Whole, Whole]:
        divisible(layer, "the inputs", shapes.x[1], shapes.ranks)
        if conv_groups(layer) > 1:
            raise UserError(
                "split", f"a convolution in {conv_groups(layer)} groups has no sum over all inputs. Use 'output'."
            )
        return Layout(CHANNELS, shapes.x[1]), None

    def spread_bias(self, y: Tensor) -> Tensor:
        return reshape(self.bias, (-1, *[1] * (y.ndim - 2)))


def conv_groups(layer: Any) -> int:
    """The groups of a convolution; a depthwise one has a group for each input channel."""
    return layer.weight.shape[0] // layer.multiplier if hasattr(layer, "multiplier") else layer.groups  # type: ignore[no-any-return]


class EmbeddingByVocabulary(SplitLayer):
    """Each process has rows of the table; an index outside them gives 0, and the all-reduce gives the row."""

    how = "vocabulary"
    weight: Any
    padding: int | None

    @classmethod
    def layouts(cls, layer: Any, given: Whole, shapes: Shapes) -> tuple[Whole, Whole]:
        return None, None

    @classmethod
    def traffic(cls, layer: Any, wanted: Whole, shapes: Shapes, itemsize: int, backward: bool) -> list[Message]:
        return result_sum(shapes, itemsize)

    def cut_parameters(self) -> None:
        self.cut("weight", 0)

    def compute(self, x: Tensor) -> Tensor:
        rows = self.weight.shape[0]
        place = x - axis_index(self._place.axis).astype(x.dtype) * rows
        mine = (place >= 0) & (place < rows)
        if self.padding is not None:
            mine = mine & (x != self.padding)
        found = where(expand_dims(mine, -1), embedding(self.weight, where(mine, place, 0)), 0.0)
        return all_reduce(found, self._place.axis, loss="shared")


class EmbeddingByOutput(SplitLayer):
    """Each process has columns of the table: the result is split along the features."""

    how = "output"

    @classmethod
    def layouts(cls, layer: Any, given: Whole, shapes: Shapes) -> tuple[Whole, Whole]:
        divisible(layer, "the features", shapes.y[-1], shapes.ranks)
        return None, Layout(len(shapes.y) - 1, shapes.y[-1])

    def cut_parameters(self) -> None:
        self.cut("weight", 1)

    def compute(self, x: Tensor) -> Tensor:
        return self.call_layer(x)  # type: ignore[no-any-return]
