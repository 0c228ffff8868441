"""Layouts of tensors between layers: whole in every process, or split along a dimension into one part per process.

All processes run the same program on parts of equal shape. If a size does not divide evenly, the last parts are padded; the values of
the padding are unspecified, and layers that are not elementwise mask it.
"""

from __future__ import annotations

from ...derivatives import custom_vjp
from ...errors import UserError
from ...mesh import mesh as meshes
from ...mesh.parts import part_length
from ...ops.collective import all_gather, axis_index, replicate
from ...ops.creation import arange
from ...ops.indexing import take
from ...ops.movement import cut, moveaxis, pad, reshape
from ...records import dataclass
from ...tensor import Tensor

BATCH, CHANNELS, ROWS = 0, 1, 2  # the dimensions of images: (batch, channels, rows, ...)


@dataclass(frozen=True)
class Layout:
    """A tensor of which each process holds a part along a dimension. Whole tensors have the layout None."""

    dim: int
    size: int | None  # of the whole along this dimension; None for the batch, which may differ from call to call

    def __str__(self) -> str:
        return f"cut along dimension {self.dim}"


Whole = Layout | None


def own_part(x: Tensor, layout: Layout, axis: str) -> Tensor:
    """This process's part of a whole value; its gradient is that of this process alone."""
    ranks, size = meshes.current().size(axis), x.shape[layout.dim]
    length = part_length(size, ranks)
    if layout.size is None and size % ranks:
        raise UserError("split", f"a batch that is a multiple of the {ranks} processes is required, got {size}.")
    if ranks == 1:
        return x
    widths = [(0, length * ranks - size if d == layout.dim else 0) for d in range(x.ndim)]
    x = pad(x, widths) if size % ranks else x
    parts = reshape(x, (*x.shape[: layout.dim], ranks, length, *x.shape[layout.dim + 1 :]))
    return take(parts, axis_index(axis), axis=layout.dim)


def scattered(x: Tensor, layout: Layout, axis: str) -> Tensor:
    """This process's part of a whole value; its gradient is gathered from all processes."""
    return custom_vjp(  # type: ignore[no-any-return]
        lambda x: own_part(x, layout, axis), lambda g, y, x: (gathered(g, layout, axis, alike=True),)
    )(x)


def gathered(x: Tensor, layout: Layout, axis: str, *, alike: bool) -> Tensor:
    """The whole value, given its parts. `alike`: all processes then compute the same with it; else the gradients of all are summed."""
    parts = all_gather(x, axis, loss="shared" if alike else "summed")
    stacked = moveaxis(parts, 0, layout.dim)
    whole = reshape(stacked, (*x.shape[: layout.dim], -1, *x.shape[layout.dim + 1 :]))
    return whole if layout.size in (None, whole.shape[layout.dim]) else cut(whole, layout.dim, 0, layout.size)


def read(x: Tensor, given: Whole, wanted: Whole, axis: str) -> Tensor:
    """An input in the layout that a split layer needs; each process uses it differently."""
    if given is None:
        return replicate(x, axis) if wanted is None else scattered(x, wanted, axis)
    if given == wanted:
        return x
    whole = gathered(x, given, axis, alike=False)
    return whole if wanted is None else own_part(whole, wanted, axis)


def write(y: Tensor, natural: Whole, wanted: Whole, axis: str) -> Tensor:
    """The result of a split layer in the layout that the next ones need: its own, or whole."""
    return y if natural == wanted or natural is None else gathered(y, natural, axis, alike=True)


def real_rows(length: int, layout: Layout, axis: str, ndim: int, first: Tensor | int = 0) -> Tensor:
    """A mask of the rows (from `first` of this process's part on) that are not padding, to broadcast over a tensor."""
    ranks = meshes.current().size(axis)
    assert layout.size is not None
    place = axis_index(axis) * part_length(layout.size, ranks) + first + arange(length)
    return reshape((place >= 0) & (place < layout.size), (-1, *[1] * (ndim - layout.dim - 1)))


def is_uneven(layout: Layout, axis: str) -> bool:
    """Whether the last parts are padded."""
    return layout.size is not None and layout.size % meshes.current().size(axis) != 0
