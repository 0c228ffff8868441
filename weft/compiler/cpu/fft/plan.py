"""Plans of convolutions by fast Fourier transforms, and their estimated times."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from math import ceil, log2

from ....records import dataclass
from ...ir.fft_tiling import LEAST_TAPS, FftTiling, FftWindow, fft_tilings
from ...ir.plan import Plan, PlanPhase
from ...thresholds import thresholds
from ..conv.shape import ConvAxis, Sweep, whole_lines
from ..conv.sweep_plan import SweepOperands
from ..target import CpuTarget
from .convolution import FILTER, IMAGE, RESULT
from .products import PRODUCT, ComplexTile, best_tile
from .spectra import APART, BITS, scratch_elements

_STACK, _STACKS = 1 << 19, {"wasm32": 1 << 15}  # bytes of scratch memory on the stack, at most
_STRIP = 4  # vectors of channels that are transformed back before the epilogue is called


def applies(sweep: Sweep) -> bool:
    """25 taps or more in two dimensions, no stride, groups of more than one channel, and a window that is not too large."""
    z, y, x = sweep.axes
    plain = all(axis.phases == axis.step == 1 for axis in (y, x)) and sweep.taps >= LEAST_TAPS
    flat = z.kernel == z.phases == z.step == 1 and z.reach == 0 and z.inside == z.outside
    return plain and flat and sweep.kind in BITS and sweep.inputs * sweep.outputs > 1


def reach(axis: ConvAxis) -> int:
    """Pixels of the source beside the first that a pixel of the result depends on."""
    return (axis.kernel - 1) * axis.dilation


def tilings(name: str, spans: tuple[int, int], out: tuple[int, int], target: CpuTarget, kind: str) -> list[FftTiling]:
    """The tilings of an algorithm whose windows fit on the stack."""
    stack, lanes = _STACKS.get(target.arch, _STACK), target.lanes(BITS[kind])
    every = fft_tilings(name, spans, out)
    return [one for one in every if scratch_elements(one.window, lanes) * BITS[kind] // 8 <= stack]


# Cycles measured on AVX-512; other CPUs are assumed to be similar. Of a pixel of a transform: so many for each halving of the window, less
# some, at least a few. Of a tap of a vector of filters, read or written. To load a complex vector of the transformed filter, or to update
# one of its gradient, and for each product with it.
_HALVING, _LESS, _LEAST, _TAP = 11.0, 38.0, 42.0, 150.0
_LOAD, _UPDATE, _PRODUCT = 26.0, 46.0, 2.9


def transform_cycles(window: FftWindow) -> float:
    """Of one window of a vector of channels, by one thread."""
    return window.pixels * max(_LEAST, _HALVING * log2(window.pixels) - _LESS)


def filter_cycles(window: FftWindow, taps: int) -> float:
    """Of the transform of a vector of filters in either direction, in which most rows of the window are zeros or not wanted."""
    return transform_cycles(window) / 2 + _TAP * taps


def product_cycles(elements: int, times: int, update: bool = False) -> float:
    """Of the products of one point: a matrix of so many complex vectors, each used so many times."""
    return elements * ((_UPDATE if update else _LOAD) + _PRODUCT * times)


def in_multiply_adds(cycles: float, target: CpuTarget, kind: str) -> float:
    """The unit of all estimates: multiply-adds of the direct algorithm."""
    return cycles * 2 * target.lanes(BITS[kind])


@lru_cache(256)
def best_tiling(name: str, sweep: Sweep, target: CpuTarget) -> FftTiling | None:
    """The fastest tiling by the estimate, the same for any number of threads: they round differently."""
    out = sweep.axes[1].outside, sweep.axes[2].outside
    found = tilings(name, (reach(sweep.axes[1]), reach(sweep.axes[2])), out, target, sweep.kind)
    return min(found, key=lambda one: _cycles(sweep, one, target, False), default=None)


def fft_cost(name: str, sweep: Sweep, target: CpuTarget, packed: bool) -> float:
    """The estimated time, in multiply-adds of all threads."""
    tiling = best_tiling(name, sweep, target)
    assert tiling is not None
    return in_multiply_adds(_cycles(sweep, tiling, target, packed), target, sweep.kind)


def _cycles(sweep: Sweep, tiling: FftTiling, target: CpuTarget, packed: bool) -> float:
    cut = _Partition.of(sweep, tiling, target)
    lanes, window = target.lanes(BITS[sweep.kind]), tiling.window
    vectors = -(-sweep.inputs // lanes) + -(-sweep.outputs // lanes)
    filters = cut.blocks * cut.tile.vectors * sweep.inputs  # vectors
    padded = -(-cut.tiles // cut.tile.rows) * cut.tile.rows
    work = cut.tiles * vectors * transform_cycles(window) + window.points * product_cycles(filters, padded)
    return sweep.groups * (work + (0.0 if packed else filters * filter_cycles(window, sweep.taps)))


@dataclass(frozen=True)
class _Partition:
    """Sizes of the matrices of spectra. Tiles are processed in slabs, whose spectra share a bounded workspace."""

    tile: ComplexTile
    blocks: int
    tiles: int
    slab: int
    source_pitch: int
    result_pitch: int

    @classmethod
    def of(cls, sweep: Sweep, tiling: FftTiling, target: CpuTarget) -> _Partition:
        ty, tx = tiling.count((sweep.axes[1].outside, sweep.axes[2].outside))
        tiles, lanes = sweep.batch * sweep.axes[0].outside * ty * tx, target.lanes(BITS[sweep.kind])
        source = -(-sweep.inputs // lanes) * lanes
        tile = best_tile(target, max(1, tiles), sweep.outputs, sweep.kind)
        blocks = -(-sweep.outputs // (tile.vectors * lanes))
        result = blocks * tile.vectors * lanes
        slab = slab_of(
            tiles, tiling.window.points * (source + result) * sweep.groups * BITS[sweep.kind] // 4, tile.rows
        )
        return cls(tile, blocks, tiles, slab, source, result)

    @property
    def rows(self) -> int:
        """Tiles of a slab, rounded up to whole register tiles."""
        return -(-self.slab // self.tile.rows) * self.tile.rows


def slab_of(tiles: int, tile_bytes: int, rows: int) -> int:
    """Tiles whose spectra fit into the workspace, of even slabs of whole register tiles."""
    most = max(thresholds.fft_slab, thresholds.fft_slab_bytes // tile_bytes)
    even = ceil(tiles / max(1, ceil(tiles / most)))
    return max(1, ceil(even / rows) * rows)


def slabs(tiles: int, slab: int) -> Iterator[tuple[int, int]]:
    """(first, count) of each."""
    for first in range(0, tiles, slab):
        yield first, min(slab, tiles - first)


def packed_size(name: str, sweep: Sweep, target: CpuTarget) -> int:
    """The bytes of the transformed filter."""
    tiling = best_tiling(name, sweep, target)
    assert tiling is not None
    return sweep.groups * _filter_group(sweep, tiling, target) * BITS[sweep.kind] // 8


def _filter_apart(sweep: Sweep, tiling: FftTiling, target: CpuTarget) -> int:
    return sweep.inputs * 2 * _Partition.of(sweep, tiling, target).result_pitch + APART


def _filter_group(sweep: Sweep, tiling: FftTiling, target: CpuTarget) -> int:
    return tiling.window.points * _filter_apart(sweep, tiling, target)


def filter_phase(name: str, sweep: Sweep, target: CpuTarget, into: str) -> PlanPhase:
    """The transform of the filter."""
    tiling = best_tiling(name, sweep, target)
    assert tiling is not None
    view, (_, y, x) = sweep.filter, sweep.axes
    cut = _Partition.of(sweep, tiling, target)
    numbers = {
        "groups": sweep.groups, "outputs": sweep.outputs, "inputs": sweep.inputs, "width": cut.result_pitch // cut.blocks,
        "apart": _filter_apart(sweep, tiling, target), "group_apart": _filter_group(sweep, tiling, target),
        "base": view.base, "group_stride": view.group, "output_stride": view.output, "input_stride": view.input,
        "y_stride": view.taps[1], "x_stride": view.taps[2],
        "y_taps": y.kernel, "x_taps": x.kernel, "y_dilation": y.dilation, "x_dilation": x.dilation,
    }  # fmt: skip
    symbol = f"fft_filter.{sweep.kind}.{tiling.window}"
    return FILTER.phase(symbol, {"packed": into}, numbers, reads=["w"], writes=[into])


def image_phase(
    tiling: FftTiling, kind: str, source: str, numbers: dict[str, int], size: tuple[int, int], first: tuple[int, int], extent: tuple[int, int]
) -> PlanPhase:  # fmt: skip
    """The transform of some tiles' windows of an image of `size`; the first begins at `first`, and `extent` of its pixels are read."""
    numbers = numbers | {
        "y_step": tiling.y, "x_step": tiling.x, "y_inside": size[0], "x_inside": size[1],
        "y_first": first[0], "x_first": first[1], "y_extent": extent[0], "x_extent": extent[1],
    }  # fmt: skip
    symbol = f"fft_image.{kind}.{tiling.window}"
    return IMAGE.phase(symbol, {"x": source}, numbers, reads=[source], writes=["work"])


def fft_plan(name: str, sweep: Sweep, target: CpuTarget, names: SweepOperands, prepacked: bool) -> Plan | None:
    """The plan, or None where the windows would be too large."""
    tiling = best_tiling(name, sweep, target)
    if tiling is None:
        return None
    cut, window, kind = _Partition.of(sweep, tiling, target), tiling.window, sweep.kind
    size, (_, y, x) = BITS[kind] // 8, sweep.axes
    source_apart, result_apart = (cut.rows * 2 * pitch + APART for pitch in (cut.source_pitch, cut.result_pitch))
    spectra = 0 if prepacked else whole_lines(packed_size(name, sweep, target))
    products = spectra + whole_lines(sweep.groups * window.points * source_apart * size)
    end = products + whole_lines(sweep.groups * window.points * result_apart * size)
    ty, tx = tiling.count((y.outside, x.outside))
    shared = {
        "tiles_y": ty, "tiles_x": tx, "y_step": tiling.y, "x_step": tiling.x,
        "groups": sweep.groups,
    }  # fmt: skip
    by_source = {"channels": sweep.inputs, "row": 2 * cut.source_pitch, "apart": source_apart, "group_apart": window.points * source_apart, "spectra": spectra}  # fmt: skip
    by_result = {"channels": sweep.outputs, "row": 2 * cut.result_pitch, "apart": result_apart, "group_apart": window.points * result_apart, "spectra": products}  # fmt: skip
    product = {
        "source": spectra, "result": products, "groups": sweep.groups, "points": window.points, "inputs": sweep.inputs, "blocks": cut.blocks,
        "source_row": 2 * cut.source_pitch, "source_apart": source_apart, "source_group": window.points * source_apart,
        "filter_apart": _filter_apart(sweep, tiling, target), "filter_group": _filter_group(sweep, tiling, target),
        "result_row": 2 * cut.result_pitch, "result_apart": result_apart, "result_group": window.points * result_apart,
    }  # fmt: skip
    ends = {
        "y_outside": y.outside, "x_outside": x.outside, "y_skipped": reach(y), "x_skipped": reach(x),
        "strip": _STRIP * target.lanes(BITS[kind]),
    }  # fmt: skip
    phases = [] if prepacked else [filter_phase(name, sweep, target, names.packed)]
    first = y.reach - reach(y), x.reach - reach(x)
    for start, count in slabs(cut.tiles, cut.slab):
        some = {"first": start, "count": count}
        phases += [
            image_phase(tiling, kind, names.source, shared | by_source | some, (y.inside, x.inside), first, (window.y, window.x)),
            PRODUCT.phase(f"fft_product.{kind}.{cut.tile}", {"packed": names.packed}, product | {"rows": count}, reads=["work", names.packed], writes=["work"]),
            RESULT.phase(f"fft_result.{kind}.{window}", {"y": names.result}, shared | by_result | ends | some, reads=["work"], writes=[names.result]),
        ]  # fmt: skip
    return Plan(name, tuple(phases), end, sweep.flops)
