"""Plans of Winograd convolutions."""

from __future__ import annotations

from ...ir.plan import Plan, PlanPhase
from ..conv.shape import Sweep, whole_lines
from ..conv.sweep_plan import SweepOperands, heights
from ..target import CpuTarget
from .convolution import FILTER, WINOGRAD
from .tiles import APART

SIZES = {"WINOGRAD": 4, "WINOGRAD_2X2": 2}  # the results of a tile along each axis, by the name of the algorithm


def applies(sweep: Sweep, target: CpuTarget) -> bool:
    """3 x 3 taps in two dimensions, no stride, no dilation, no groups, and a vector of channels."""
    z, y, x = sweep.axes
    plain = all(axis.phases == axis.step == axis.dilation == 1 for axis in (y, x)) and y.kernel == x.kernel == 3
    flat = z.kernel == z.phases == z.step == 1 and z.reach == 0 and z.inside == z.outside
    return plain and flat and sweep.groups == 1 and min(sweep.inputs, sweep.outputs) >= target.lanes(32)


def packed_size(sweep: Sweep, target: CpuTarget, size: int) -> int:
    """The floats of the transformed filter."""
    width = _vectors(sweep.outputs, target) * target.lanes(32)
    return (size + 2) ** 2 * (sweep.inputs * -(-sweep.outputs // width) * width + APART)


def filter_phase(sweep: Sweep, target: CpuTarget, size: int, into: str) -> PlanPhase:
    view = sweep.filter
    numbers = {
        "outputs": sweep.outputs, "inputs": sweep.inputs, "width": _vectors(sweep.outputs, target) * target.lanes(32),
        "base": view.base, "output_stride": view.output, "input_stride": view.input,
        "y_stride": view.taps[1], "x_stride": view.taps[2],
    }  # fmt: skip
    return FILTER.phase(f"winograd_filter.{size}", {"packed": into}, numbers, reads=["w"], writes=[into])


def winograd_plan(
    name: str, sweep: Sweep, threads: int, target: CpuTarget, names: SweepOperands, prepacked: bool
) -> Plan:
    size = SIZES[name]
    z, y, x = sweep.axes
    vectors = _vectors(sweep.outputs, target)
    height, width = heights(target)[vectors], vectors * target.lanes(32)
    blocks, points = -(-sweep.outputs // width), (size + 2) ** 2
    tiles = _tiles(sweep, size)
    chunk, strip, channels_first = _units(sweep, threads, tiles, blocks, height, points * 4, target)
    products = whole_lines(points * (chunk * sweep.inputs + APART) * 4)
    patch = products + whole_lines(points * (chunk * strip * width + APART) * 4)
    scratch = 0 if prepacked else whole_lines(packed_size(sweep, target, size) * 4)
    numbers = {
        "scratch": scratch, "scratch_size": patch + whole_lines(points * sweep.inputs * 4), "products": products, "patch": patch,
        "batch": sweep.batch * z.outside, "inputs": sweep.inputs, "outputs": sweep.outputs,
        "y_inside": y.inside, "x_inside": x.inside, "y_outside": y.outside, "x_outside": x.outside,
        "y_first": y.reach - 2, "x_first": x.reach - 2,
        "chunk": chunk, "blocks": strip, "channels_first": channels_first,
    }  # fmt: skip
    pointers = {"x": names.source, "packed": names.packed, "y": names.result}
    phases = [] if prepacked else [filter_phase(sweep, target, size, names.packed)]
    symbol = f"winograd.{size}.{height}x{vectors}"
    reads, writes = [names.source, names.packed], [names.result, "work"]
    phases.append(WINOGRAD.phase(symbol, pointers, numbers, reads=reads, writes=writes))
    return Plan(name, tuple(phases), scratch + threads * numbers["scratch_size"], sweep.flops)


# Measured cycles to transform an element of the source or the result, and one of the filter. With its wider vectors x86 is bound by
# the caches where NEON is bound by arithmetic.
_TRANSFORM = {"aarch64": (0.5, 2.0)}
_TRANSFORM_X86 = (1.0, 2.2)
_SHARED = 0.6  # cycles to read an element that many threads share
_FEW_THREADS = 4


def transform_cost(target: CpuTarget) -> float:
    """The cost of transforming an element of the source or the result, in multiply-adds."""
    return _TRANSFORM.get(target.arch, _TRANSFORM_X86)[0] * 2 * target.lanes(32)


def winograd_cost(sweep: Sweep, size: int, threads: int, target: CpuTarget, packed: bool) -> float:
    """The estimated time, in multiply-adds of all threads."""
    vectors, points = _vectors(sweep.outputs, target), (size + 2) ** 2
    height, width = heights(target)[vectors], vectors * target.lanes(32)
    tiles, blocks = _tiles(sweep, size), -(-sweep.outputs // width)
    chunk, strip, _ = _units(sweep, threads, tiles, blocks, height, points * 4, target)
    rounds = -(-(-(-tiles // chunk) * -(-blocks // strip)) // threads)
    unit = _unit_cost(sweep, chunk, min(strip * width, sweep.outputs), threads, target)
    weight = _TRANSFORM.get(target.arch, _TRANSFORM_X86)[1] * 2 * target.lanes(32)
    filters = 0 if packed else sweep.inputs * sweep.outputs * weight
    return float(points * (rounds * threads * unit + filters))


def _unit_cost(sweep: Sweep, chunk: int, columns: int, threads: int, target: CpuTarget) -> float:
    """Multiply-adds of one point of a unit with this many tiles and output channels."""
    cycle = 2 * target.lanes(32)  # multiply-adds
    number = transform_cost(target)
    shared = _SHARED * cycle * sweep.inputs * columns if threads > _FEW_THREADS else 0.0  # the filter
    return chunk * (sweep.inputs * columns + number * (sweep.inputs + columns)) + shared


def _tiles(sweep: Sweep, size: int) -> int:
    z, y, x = sweep.axes
    return sweep.batch * z.outside * -(-y.outside // size) * -(-x.outside // size)


def _vectors(outputs: int, target: CpuTarget) -> int:
    """The width of the tile that wastes the least; the wider of equals."""
    lanes = target.lanes(32)
    wide = sorted((v for v in heights(target) if v > 1), reverse=True) or [1]
    return min(wide, key=lambda v: -(-outputs // (v * lanes)) * v)


def _units(
    sweep: Sweep, threads: int, tiles: int, blocks: int, height: int, point_bytes: int, target: CpuTarget
) -> tuple[int, int, int]:
    """Tiles (a multiple of a register tile's) and blocks of a unit, and whether threads divide the channels."""
    fit = max(height, target.l2 // 2 // (point_bytes * (sweep.inputs + sweep.outputs)))
    groups = max(1, -(-tiles // height))
    if threads > _FEW_THREADS:
        return _shared_units(sweep, threads, groups, blocks, height, fit, target)
    if groups < 2 * threads and blocks >= threads:
        return groups * height, -(-blocks // threads), 1
    chunks = -(-tiles // max(fit, 4 * height))
    chunks = max(1, min(groups, -(-chunks // threads) * threads))
    return -(-groups // chunks) * height, blocks, 0


def _shared_units(
    sweep: Sweep, threads: int, groups: int, blocks: int, height: int, fit: int, target: CpuTarget
) -> tuple[int, int, int]:
    """Units for many threads: all have work, at the price of tiles that several threads transform for different channels."""
    best = (float("inf"), height, blocks)
    for strips in range(1, min(blocks, threads) + 1):
        strip = -(-blocks // strips)
        for rounds in (1, 2, 3, 4):
            chunk = min(max(1, fit // height), -(-groups * strips // (rounds * threads)))
            units = -(-groups // chunk) * -(-blocks // strip)
            unit = _unit_cost(sweep, chunk * height, strip * sweep.outputs // blocks, threads, target)
            best = min(best, (-(-units // threads) * unit, chunk * height, strip))
    _, chunk, strip = best
    return chunk, strip, int(strip < blocks)
