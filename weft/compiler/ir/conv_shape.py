"""The shape of a convolution, independent of the layout of its tensors."""

from __future__ import annotations

from math import prod
from typing import Literal

from ...graph.node import Node
from ...records import dataclass

Direction = Literal["forward", "data_gradient", "filter_gradient"]
DIRECTIONS: dict[str, Direction] = {"conv": "forward", "conv_data": "data_gradient", "conv_filter": "filter_gradient"}


@dataclass(frozen=True)
class ConvShape:
    """A convolution in 1, 2 or 3 dimensions; `padding` is the padding before the first element along each."""

    batch: int
    channels: int
    filters: int
    groups: int
    spatial: tuple[int, ...]
    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    out: tuple[int, ...]

    @property
    def lifted(self) -> ConvShape:
        """The same with three dimensions."""
        more = 3 - len(self.spatial)
        ones, zeros = (1,) * more, (0,) * more
        return ConvShape(
            self.batch, self.channels, self.filters, self.groups, ones + self.spatial, ones + self.kernel,
            ones + self.stride, zeros + self.padding, ones + self.dilation, ones + self.out,
        )  # fmt: skip

    @property
    def flops(self) -> int:
        """The same for all three directions; multiplications with padding are included."""
        return 2 * self.batch * prod(self.out) * prod(self.kernel) * self.channels * self.filters // self.groups

    @property
    def depthwise(self) -> bool:
        return self.groups == self.channels == self.filters > 1


def described(node: Node) -> tuple[Direction, ConvShape]:
    """The direction and shape of a convolution, channels first or, after the pass `layout`, channels last."""
    name = node.op.name.removesuffix("_last")
    last, of_integers = name != node.op.name, name == "conv_int8"
    name = "conv" if of_integers else name
    a, b, y = (n.shape for n in (*node.inputs, node))
    if last:
        a = _first(a)
        b = _first(b) if name == "conv_filter" or of_integers else b
        y = (y[-1], y[-2], *y[:-2]) if name == "conv_filter" else _first(y)
    x, w, out = {"conv": (a, b, y), "conv_data": (y, b, a), "conv_filter": (a, y, b)}[name]
    stride, padding, dilation, groups = node.get_params("stride", "padding", "dilation", "groups")
    before = tuple(p[0] for p in padding)
    return DIRECTIONS[name], ConvShape(
        x[0], x[1], w[0], groups, x[2:], w[2:], stride, before, dilation, out[2:]
    )  # fmt: skip


def conv_flops(node: Node) -> int:
    """The operations of a convolution or of one of its gradients."""
    return described(node)[1].flops


def _first(shape: tuple[int, ...]) -> tuple[int, ...]:
    return (shape[0], shape[-1], *shape[1:-1])
