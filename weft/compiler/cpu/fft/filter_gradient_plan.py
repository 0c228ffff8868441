"""Plans of filter gradients by fast Fourier transforms."""

from __future__ import annotations

from functools import lru_cache
from math import prod

from ....records import dataclass
from ...ir.conv_shape import ConvShape
from ...ir.fft_tiling import FftTiling, filter_spans
from ...ir.plan import Plan
from ..conv.filter_gradient_plan import ending
from ..conv.shape import whole_lines
from ..target import CpuTarget
from .filter_gradient import TAPS
from .plan import (
    filter_cycles,
    image_phase,
    in_multiply_adds,
    product_cycles,
    slab_of,
    slabs,
    tilings,
    transform_cycles,
)
from .products import SUMS, ComplexTile, best_tile
from .spectra import APART, BITS


def _out(shape: ConvShape) -> tuple[int, int]:
    y, x = shape.out
    return y, x


@lru_cache(256)
def best_tiling(name: str, shape: ConvShape, kind: str, target: CpuTarget) -> FftTiling | None:
    """The fastest tiling by the estimate, the same for any number of threads."""
    found = tilings(name, filter_spans(shape), _out(shape), target, kind)
    return min(found, key=lambda one: _cycles(shape, one, kind, target), default=None)


def gradient_cost(name: str, shape: ConvShape, kind: str, target: CpuTarget) -> float:
    """The estimated time, in multiply-adds of all threads."""
    tiling = best_tiling(name, shape, kind, target)
    assert tiling is not None
    return in_multiply_adds(_cycles(shape, tiling, kind, target), target, kind)


def _cycles(shape: ConvShape, tiling: FftTiling, kind: str, target: CpuTarget) -> float:
    cut, lanes = _GradientPartition.of(shape, tiling, kind, target), target.lanes(BITS[kind])
    vectors, filters = (cut.x_pitch + cut.g_pitch) // lanes, cut.inputs * cut.g_pitch // lanes
    work = cut.tiles * vectors * transform_cycles(tiling.window) + filters * filter_cycles(
        tiling.window, prod(shape.kernel)
    )
    return shape.groups * (work + tiling.window.points * product_cycles(filters, cut.tiles, update=True))


@dataclass(frozen=True)
class _GradientPartition:
    """Sizes of the matrices of spectra. Tiles are processed in slabs, whose products are added in order."""

    tile: ComplexTile
    blocks: int
    inputs: int  # of one group
    outputs: int
    tiles: int
    slab: int
    x_pitch: int
    g_pitch: int

    @classmethod
    def of(cls, shape: ConvShape, tiling: FftTiling, kind: str, target: CpuTarget) -> _GradientPartition:
        lanes, inputs, outputs = target.lanes(BITS[kind]), shape.channels // shape.groups, shape.filters // shape.groups
        tiles = shape.batch * prod(tiling.count(_out(shape)))
        tile = best_tile(target, inputs, outputs, kind)
        blocks = -(-outputs // (tile.vectors * lanes))
        x, g = -(-inputs // lanes) * lanes, blocks * tile.vectors * lanes
        slab = slab_of(tiles, tiling.window.points * (x + g) * shape.groups * BITS[kind] // 4, 1)
        return cls(tile, blocks, inputs, outputs, tiles, slab, x, g)


def gradient_plan(name: str, shape: ConvShape, target: CpuTarget, kind: str = "f32") -> Plan | None:
    """The plan, or None where the windows would be too large."""
    tiling = best_tiling(name, shape, kind, target)
    if tiling is None:
        return None
    cut, window, size = _GradientPartition.of(shape, tiling, kind, target), tiling.window, BITS[kind] // 8
    x_apart, g_apart = (cut.slab * 2 * pitch + APART for pitch in (cut.x_pitch, cut.g_pitch))
    rows = -(-cut.inputs // cut.tile.rows) * cut.tile.rows
    sums_apart = rows * 2 * cut.g_pitch + APART
    gradients = whole_lines(shape.groups * window.points * x_apart * size)
    sums = gradients + whole_lines(shape.groups * window.points * g_apart * size)
    end = sums + whole_lines(shape.groups * window.points * sums_apart * size)
    ty, tx = tiling.count(_out(shape))
    shared = {"tiles_y": ty, "tiles_x": tx, "groups": shape.groups}
    of_x = {"spectra": 0, "channels": cut.inputs, "row": 2 * cut.x_pitch, "apart": x_apart, "group_apart": window.points * x_apart}  # fmt: skip
    of_g = {"spectra": gradients, "channels": cut.outputs, "row": 2 * cut.g_pitch, "apart": g_apart, "group_apart": window.points * g_apart}  # fmt: skip
    product = {
        "x": 0, "g": gradients, "sums": sums, "groups": shape.groups, "points": window.points, "inputs": cut.inputs, "blocks": cut.blocks,
        "x_row": 2 * cut.x_pitch, "x_apart": x_apart, "x_group": window.points * x_apart,
        "g_row": 2 * cut.g_pitch, "g_apart": g_apart, "g_group": window.points * g_apart,
        "sums_apart": sums_apart, "sums_group": window.points * sums_apart,
    }  # fmt: skip
    phases = []
    (y_inside, x_inside), (y_out, x_out) = shape.spatial, shape.out
    for start, count in slabs(max(1, cut.tiles), cut.slab):
        some = {"first": start, "count": min(count, cut.tiles)}
        mode = "more" if start else "first"
        phases += [
            image_phase(tiling, kind, "x", shared | of_x | some, (y_inside, x_inside), (-shape.padding[0], -shape.padding[1]), (window.y, window.x)),
            image_phase(tiling, kind, "g", shared | of_g | some, (y_out, x_out), (0, 0), (tiling.y, tiling.x)),
            SUMS.phase(f"fft_sums.{kind}.{cut.tile}.{mode}", {}, product | {"rows": some["count"]}, reads=["work"], writes=["work"]),
        ]  # fmt: skip
    taps = shared | {
        "sums": sums, "inputs": cut.inputs, "outputs": cut.outputs, "row": 2 * cut.g_pitch, "apart": sums_apart,
        "group_apart": window.points * sums_apart, "y_taps": shape.kernel[0], "x_taps": shape.kernel[1],
        "y_dilation": shape.dilation[0], "x_dilation": shape.dilation[1],
    }  # fmt: skip
    phases.append(TAPS.phase(f"fft_taps.{kind}.{window}", {}, taps, reads=["work"], writes=["w"]))
    phases += ending(shape, 0, 1, by_blocks=True)
    return Plan(name, tuple(phases), end, shape.flops)
