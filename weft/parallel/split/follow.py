"""Layers that follow the layout of their input: norms, global pooling, flatten, dropout."""

from __future__ import annotations

from math import prod
from typing import Any

from ...dtypes import float32
from ...mesh import mesh as meshes
from ...ops.collective import all_reduce
from ...ops.elementwise import where
from ...ops.movement import reshape
from ...ops.normalize import batch_norm
from ...ops.reduce import max as reduce_max
from ...ops.reduce import sum as reduce_sum
from ...tensor import Tensor
from .attention import part_dropout
from .layer import ByBatch, Message, Shapes, SplitLayer, parameter_sums, result_sum
from .layout import BATCH, CHANNELS, ROWS, Layout, Whole, is_uneven, real_rows


class BatchNormFollowing(SplitLayer):
    """Split by channels, each process normalizes its own. Split by examples or rows, the statistics are all-reduced."""

    how = "input's layout"
    scale: Any
    shift: Any
    mean: Any
    var: Any
    eps: float
    momentum: float
    track: bool

    @classmethod
    def layouts(cls, layer: Any, given: Whole, shapes: Shapes) -> tuple[Whole, Whole]:
        return given, given

    @classmethod
    def traffic(cls, layer: Any, wanted: Whole, shapes: Shapes, itemsize: int, backward: bool) -> list[Message]:
        if wanted is None or wanted.dim == CHANNELS:
            return []
        sums = [Message("all_reduce", shapes.y[1] * itemsize)] * 4  # mean and variance, forward and backward
        return parameter_sums(layer) + sums

    def cut_parameters(self) -> None:
        if _dim(self) == CHANNELS:
            for name in ("scale", "shift", "mean", "var"):
                self.cut(name, 0)

    def compute(self, x: Tensor) -> Tensor:
        if _dim(self) == CHANNELS:
            return self.call_layer(x)  # type: ignore[no-any-return]
        scale, shift = (None if t is None else self.shared(t) for t in (self.scale, self.shift))
        if not self.training and self.track:
            return batch_norm(x, scale, shift, mean_=self.mean, var_=self.var, eps=self.eps).value
        mean, var, count = self._statistics(x)
        if self.training and self.track:
            for running, batch in ((self.mean, mean), (self.var, var * (count / (count - 1)))):
                wide = running.astype(batch.dtype)
                running.assign((wide + self.momentum * (batch.detach() - wide)).astype(running.dtype))
        return batch_norm(x, scale, shift, mean_=mean, var_=var, eps=self.eps).value

    def _statistics(self, x: Tensor) -> tuple[Tensor, Tensor, int]:
        """Mean and variance of each channel over all processes, and the number of elements."""
        layout, axis = self._place.natural, self._place.axis
        assert layout is not None
        size = layout.size or x.shape[layout.dim] * meshes.current().size(axis)
        count = x.size // x.shape[1] // x.shape[layout.dim] * size
        mask = real_rows(x.shape[layout.dim], layout, axis, x.ndim) if is_uneven(layout, axis) else None
        x = x.astype(float32) if x.dtype.is_half else x

        def mean(values: Tensor) -> Tensor:
            real = values if mask is None else where(mask, values, 0.0)
            return all_reduce(reduce_sum(real, axis=[d for d in range(x.ndim) if d != 1]), axis) / float(count)

        centre = mean(x)
        deviation = x - reshape(centre, (-1, *[1] * (x.ndim - 2)))
        return centre, mean(deviation * deviation), count


class GlobalPoolFollowing(SplitLayer):
    """The mean or maximum over all positions; if rows are split, it is combined over the processes."""

    how = "input's layout"

    @classmethod
    def layouts(cls, layer: Any, given: Whole, shapes: Shapes) -> tuple[Whole, Whole]:
        return given, None if isinstance(given, Layout) and given.dim >= ROWS else given

    @classmethod
    def traffic(cls, layer: Any, wanted: Whole, shapes: Shapes, itemsize: int, backward: bool) -> list[Message]:
        return result_sum(shapes, itemsize) if wanted and wanted.dim >= ROWS else []

    def compute(self, x: Tensor) -> Tensor:
        layout, axis = self._place.wanted, self._place.axis
        if layout is None or layout.dim < ROWS:
            return self.call_layer(x)  # type: ignore[no-any-return]
        maximum = type(self._layer).__name__ == "GlobalMaxPool"
        if is_uneven(layout, axis):
            x = where(real_rows(x.shape[ROWS], layout, axis, x.ndim), x, float("-inf") if maximum else 0.0)
        positions = list(range(2, x.ndim))
        if maximum:
            return all_reduce(reduce_max(x, axis=positions), axis, "max", loss="shared")
        total = all_reduce(reduce_sum(x, axis=positions), axis, loss="shared")
        return total / float(prod(self._place.shapes.x[2:]))


class FlattenFollowing(SplitLayer):
    """Channels become consecutive features, so a split by channels is preserved; a split by rows is not."""

    how = "input's layout"

    @classmethod
    def layouts(cls, layer: Any, given: Whole, shapes: Shapes) -> tuple[Whole, Whole] | None:
        if given is None or (given.dim == BATCH and layer.start > 0):
            return given, given
        return (given, Layout(CHANNELS, shapes.y[1])) if given.dim == CHANNELS and layer.start == 1 else None

    def compute(self, x: Tensor) -> Tensor:
        return self.call_layer(x)  # type: ignore[no-any-return]


class DropoutFollowing(SplitLayer):
    """Dropout that drops the same elements as a single process would."""

    how = "input's layout"
    rate: float

    @classmethod
    def layouts(cls, layer: Any, given: Whole, shapes: Shapes) -> tuple[Whole, Whole] | None:
        return given, given

    def compute(self, x: Tensor) -> Tensor:
        layout = self._place.natural
        if not self.training or self.rate == 0.0 or layout is None:
            return self.call_layer(x)  # type: ignore[no-any-return]
        return part_dropout(x, self.rate, layout, self._place.axis)


class ExamplesFollowing(ByBatch):
    """A layer that treats each example independently, on this process's examples; it needs other inputs whole."""

    how = "input's layout"

    @classmethod
    def layouts(cls, layer: Any, given: Whole, shapes: Shapes) -> tuple[Whole, Whole] | None:  # type: ignore[override]
        return (given, given) if given is None or given.dim == BATCH else None


def _dim(layer: SplitLayer) -> int | None:
    return None if layer._place.natural is None else layer._place.natural.dim
