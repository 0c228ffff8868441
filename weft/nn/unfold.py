"""`Unfold` (im2col) and `Fold` (col2im): windows of an image as columns of a matrix, and back."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from functools import reduce
from operator import add

from ..errors import UserError
from ..ops.conv import Padding, Sizes, normal_padding, per_axis
from ..ops.movement import pad, pad_constant, reshape, slice_, stack
from ..ops.window import Pairs, out_size
from ..tensor import ArrayLike, Tensor, as_tensor
from . import checks
from .module import Module


class _Windows(Module):
    """Base class of both directions: the positions of windows in an image of a known size."""

    def __init__(self, kernel: Sizes, *, stride: Sizes = 1, padding: Padding = 0, dilation: Sizes = 1) -> None:
        name = type(self).__name__
        self.kernel = per_axis(name, "kernel", kernel, 2)
        self.stride = per_axis(name, "stride", stride, 2)
        self.padding = checks.check_padding(name, padding, 2)
        self.dilation = per_axis(name, "dilation", dilation, 2)

    def _window_grid(self, size: tuple[int, ...]) -> tuple[Pairs, tuple[int, ...]]:
        """The padding, and the number of windows in height and width."""
        name = type(self).__name__
        pairs = normal_padding(name, self.padding, size, self.kernel, self.stride, self.dilation)
        facts = zip(size, self.kernel, self.stride, pairs, self.dilation, strict=True)
        counts = tuple(out_size(*f) for f in facts)
        if min(counts) < 1:
            raise UserError(name, f"a kernel of {self.kernel} does not fit into {size} with padding {self.padding}.")
        return pairs, counts

    def _kernel_offsets(self) -> Iterator[tuple[int, ...]]:
        """The offset of each kernel element from the corner of its window."""
        for tap in itertools.product(*map(range, self.kernel)):
            yield tuple(t * d for t, d in zip(tap, self.dilation, strict=True))


class Unfold(_Windows):
    """y[n, c * kernel + t, l] = x[n, c, element t of window l]: (batch, channels * kernel, windows)"""

    def forward(self, x: ArrayLike) -> Tensor:
        x = checks.check_spatial("Unfold", x, 2)
        pairs, counts = self._window_grid(x.shape[2:])
        wide, parts = pad(x, ((0, 0), (0, 0), *pairs)), []
        for place in self._kernel_offsets():
            ends = [p + (c - 1) * s + 1 for p, c, s in zip(place, counts, self.stride, strict=True)]
            parts.append(slice_(wide, (0, 0, *place), (*x.shape[:2], *ends), (1, 1, *self.stride)))
        return reshape(stack(parts, axis=2), (x.shape[0], x.shape[1] * len(parts), counts[0] * counts[1]))


class Fold(_Windows):
    """The sum of windows, each at the position from which Unfold reads it in an image of `size` (height, width)"""

    def __init__(
        self, size: Sizes, kernel: Sizes, *, stride: Sizes = 1, padding: Padding = 0, dilation: Sizes = 1
    ) -> None:
        super().__init__(kernel, stride=stride, padding=padding, dilation=dilation)
        self.size = per_axis("Fold", "size", size, 2)
        self._window_grid(self.size)

    def forward(self, x: ArrayLike) -> Tensor:
        pairs, counts = self._window_grid(self.size)
        x, taps = as_tensor(x), self.kernel[0] * self.kernel[1]
        if x.ndim != 3 or x.shape[1] % taps or x.shape[2] != counts[0] * counts[1]:
            raise UserError(
                "Fold",
                f"an input (batch, channels * {taps}, {counts[0] * counts[1]}) is required, got shape {x.shape}.",
            )
        parts = reshape(x, (x.shape[0], x.shape[1] // taps, taps, *counts))
        wide = reduce(
            add, [self._scatter_windows(parts[:, :, i], place, pairs) for i, place in enumerate(self._kernel_offsets())]
        )
        starts = (0, 0, *(lo for lo, _ in pairs))
        ends = (*wide.shape[:2], *(lo + n for (lo, _), n in zip(pairs, self.size, strict=True)))
        return slice_(wide, starts, ends, (1,) * 4)

    def _scatter_windows(self, part: Tensor, place: tuple[int, ...], pairs: Pairs) -> Tensor:
        """The elements of all windows at one kernel offset, scattered into the padded image."""
        widths = []
        for before, n, pair, s, count in zip(place, self.size, pairs, self.stride, part.shape[2:], strict=True):
            widths.append((before, n + sum(pair) - before - (count - 1) * s - 1, s - 1))
        return pad_constant(part, ((0, 0, 0), (0, 0, 0), *widths))
