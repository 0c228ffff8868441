"""Plans of sweeps (forward convolutions and data gradients): tiles, chunks, workspace."""

from __future__ import annotations

from dataclasses import replace
from math import prod

from ....records import dataclass
from ...ir.plan import Plan, PlanPhase
from ...thresholds import thresholds
from ..gemm import matrix_unit
from ..gemm.arithmetic import has_offset, needs_registers
from ..gemm.register_tile import RegisterTile
from ..target import CpuTarget
from .direct import COPIED, DIRECT, IN_PLACE, PATCHES, PREPARED, TABLE
from .filter_packing import pack_phase, panels_size, zeros_size
from .shape import Sweep, whole_lines
from .sweep import record_words

_TILES = {
    # by architecture and vector registers: pixels of a tile for 4, 3, 2, 1 vectors of output channels
    ("aarch64", 32): {4: 5, 3: 7, 2: 9, 1: 12},
    ("riscv64", 8): {1: 6},
    ("x86_64", 16): {2: 6, 1: 10},
    ("x86_64", 32): {4: 6, 3: 8, 2: 12, 1: 12},
}
# More of them, as (vectors, pixels), and the time of a product relative to the others: no pixels are computed in vain where a tile
# divides the 49 of the last layers of many networks.
_MORE_TILES = {("x86_64", 32): {(5, 5): 1.0, (3, 7): 1.06}}
_MATRIX_UNIT = {(2, 32): 0.36, (2, 16): 0.5}
_RECORDS = 24 << 10  # bytes of records of a unit that stay in the L1 cache
_UNIT_TILES = 16
_PATCHES = 8  # pixels whose patches are laid out at a time
_FEW_THREADS = 4  # up to which dividing the pixels alone is good enough

MODES = {"DIRECT": IN_PLACE, "IMPLICIT_GEMM": COPIED, "IMPLICIT_PRECOMP_GEMM": PREPARED}


@dataclass(frozen=True)
class SweepOperands:
    """The names of a sweep's operands in a plan."""

    source: str = "x"
    result: str = "y"
    packed: str = "work"


def heights(target: CpuTarget, kind: str = "f32") -> dict[int, int]:
    """Pixels of a tile, by its vectors."""
    if target.arch == "x86_64" and needs_registers(kind, target):
        if target.registers == 16:
            return {2: 4, 1: 6}
        if not has_offset(kind, target):
            return {4: 5, 3: 7, 2: 10, 1: 12}
    return _TILES.get((target.arch, target.registers), _TILES["x86_64", 16])


def _more_tiles(sweep: Sweep, target: CpuTarget) -> dict[tuple[int, int], float]:
    if matrix_unit.multiplies(sweep.kind, sweep.most_taps * sweep.inputs, target):
        return _MATRIX_UNIT
    return _MORE_TILES.get((target.arch, target.registers), {}) if sweep.kind == "f32" else {}


@dataclass(frozen=True)
class ChannelBlock:
    """A range of output channels of each group, computed with tiles of this many vectors."""

    begin: int
    end: int
    vectors: int
    pixels: int  # of a tile

    @property
    def by_matrix_unit(self) -> bool:
        return matrix_unit.is_matrix_tile(RegisterTile(self.pixels, self.vectors))


def blocks(sweep: Sweep, target: CpuTarget) -> list[ChannelBlock]:
    """Tiles of one width for all output channels; or the widest for most, and a narrower one for the rest."""
    usual, lanes, outputs = heights(target, sweep.kind), target.lanes(32), sweep.outputs
    shapes = [*usual.items(), *_more_tiles(sweep, target)]
    candidates = [[ChannelBlock(0, outputs, vectors, pixels)] for vectors, pixels in shapes]
    widest = max(usual)
    whole = outputs - outputs % (widest * lanes)
    if 0 < whole < outputs:
        rest = min(widest, -(-(outputs - whole) // lanes))
        candidates.append(
            [ChannelBlock(0, whole, widest, usual[widest]), ChannelBlock(whole, outputs, rest, usual[rest])]
        )
    return min(candidates, key=lambda found: sum(_cycles(sweep, block, target) for block in found))


def sweep_cycles(sweep: Sweep, target: CpuTarget) -> float:
    """The estimated cycles of one thread."""
    pixels = sweep.batch * prod(axis.outside for axis in sweep.axes)
    return pixels * sum(_cycles(sweep, block, target) for block in blocks(sweep, target))


def _cycles(sweep: Sweep, block: ChannelBlock, target: CpuTarget) -> float:
    """The estimated cycles of a pixel: a narrow tile uses fewer units, the last one may have fewer pixels, and every pass locates
    the pixels again."""
    count = -(-(block.end - block.begin) // (block.vectors * target.lanes(32)))
    products = sweep.most_taps * sweep.inputs * block.vectors / 2 * (1.25 if block.vectors == 1 else 1.0)
    products *= _more_tiles(sweep, target).get((block.vectors, block.pixels), 1.0)
    products *= -(-sweep.pixels // block.pixels) * block.pixels / max(1, sweep.pixels)
    return count * products + 4 * (4 + sweep.most_taps / sweep.axes[2].most_taps)


@dataclass(frozen=True)
class Packing:
    """Where the packed filter lies: the blocks of output channels and their first float."""

    blocks: tuple[tuple[ChannelBlock, int], ...]
    floats: int


def packing(sweep: Sweep, target: CpuTarget) -> Packing:
    at, found = zeros_size(sweep), []
    for block in blocks(sweep, target):
        found.append((block, at))
        at += panels_size(sweep, block.end - block.begin, block.vectors * target.lanes(32))
    return Packing(tuple(found), at)


def pack_phases(sweep: Sweep, target: CpuTarget, into: str) -> list[PlanPhase]:
    return [
        pack_phase(
            sweep,
            (block.begin, block.end),
            block.vectors * target.lanes(32),
            at,
            into,
            0 if index else zeros_size(sweep),
        )
        for index, (block, at) in enumerate(packing(sweep, target).blocks)
    ]


def sweep_plan(
    name: str,
    sweep: Sweep,
    threads: int,
    target: CpuTarget,
    names: SweepOperands,
    prepacked: bool = False,
    streamed: bool = False,
) -> Plan:
    """The plan of one of MODES. `streamed`: only the epilogue reads the result, which need not be stored as a whole; a sweep with one phase is required."""
    mode = MODES[name]
    packed = packing(sweep, target)
    phases = [] if prepacked else pack_phases(sweep, target, names.packed)
    scratch = 0 if prepacked else whole_lines(packed.floats * 4)
    end = scratch
    for block, at in packed.blocks:
        main, used = _block_phases(sweep, threads, target, mode, names, block, at, scratch, streamed=streamed)
        phases += main
        end = max(end, scratch + used)
    return Plan(name, tuple(phases), end, sweep.flops, hidden=streamed)


def gemm_plan(
    name: str, sweep: Sweep, threads: int, target: CpuTarget, names: SweepOperands, prepacked: bool = False
) -> Plan:
    """GEMM: all patches are laid out in the workspace, then multiplied with the filter. One phase, no groups."""
    packed = packing(sweep, target)
    phases = [] if prepacked else pack_phases(sweep, target, names.packed)
    patches = 0 if prepacked else whole_lines(packed.floats * 4)
    gathering, scratch, end = patches_phase(sweep, threads, names.source, names.packed, patches)
    phases.append(gathering)
    z, y, x = (replace(axis, inside=1, outside=1, kernel=1, dilation=1, reach=0, step=1) for axis in sweep.axes)
    x = replace(x, inside=sweep.pixels, outside=sweep.pixels)
    flat = replace(sweep, batch=1, inputs=sweep.taps * sweep.inputs, axes=(z, y, x))
    for block, at in packed.blocks:
        main, used = _block_phases(
            flat, threads, target, IN_PLACE, replace(names, source="work"), block, at, scratch, patches
        )
        phases += main
        end = max(end, scratch + used)
    return Plan(name, tuple(phases), end, sweep.flops)


def patches_phase(sweep: Sweep, threads: int, source: str, zeros: str, place: int) -> tuple[PlanPhase, int, int]:
    """im2col of all pixels into the workspace from byte `place` on; where the patches end, and where its own scratch memory ends.

    Padding is read from the beginning of `zeros`.
    """
    scratch = place + whole_lines(-(-sweep.pixels // _PATCHES) * _PATCHES * sweep.taps * sweep.inputs * 4)
    record = record_words(_PATCHES, sweep.taps)
    own = {"scratch": scratch, "scratch_size": whole_lines(record * 8), "patches": place, "record": record}
    phase = PATCHES.phase(
        f"conv_patches.{_PATCHES}", {"x": source, "packed": zeros}, sweep.numbers | own,
        reads=[source, zeros], writes=["work"],
    )  # fmt: skip
    return phase, scratch, scratch + threads * own["scratch_size"]


def _block_phases(
    sweep: Sweep,
    threads: int,
    target: CpuTarget,
    mode: int,
    names: SweepOperands,
    block: ChannelBlock,
    panels: int,
    scratch: int,
    source: int = 0,
    streamed: bool = False,
) -> tuple[list[PlanPhase], int]:
    """The phases of some output channels, and the bytes of workspace they need."""
    if block.by_matrix_unit:
        mode = COPIED  # tile registers are loaded from rows at equal distances
    height = block.pixels
    tiles = -(-sweep.pixels // height)
    record = record_words(height, sweep.most_taps)
    patch = 0 if mode != COPIED else height * sweep.most_taps * sweep.inputs * 4
    columns = -(-(block.end - block.begin) // (block.vectors * target.lanes(32)))
    room = target.l2 // 2 if block.by_matrix_unit else _RECORDS
    most = min(_UNIT_TILES, max(1, room // (record * 8 + patch)))
    chunk, strip, channels_first = _units(sweep, threads, tiles, columns, most, reused=block.by_matrix_unit)
    sums = whole_lines(chunk * (record * 8 + patch))
    size = whole_lines(chunk * height * sweep.groups * sweep.outputs * 4) * streamed
    numbers = {
        **sweep.numbers, "mode": mode, "x_offset": source, "column_begin": block.begin, "column_end": block.end,
        "panels": panels, "scratch": scratch, "scratch_size": sums + size, "streamed": int(streamed), "sums": sums,
        "patches": chunk * record * 8, "record": record, "chunk": chunk, "blocks": strip, "channels_first": channels_first,
        "piece": _piece(sweep, block.vectors * target.lanes(32)),
    }  # fmt: skip
    reads = [names.source, names.packed]
    pointers = {"x": names.source, "packed": names.packed, "y": "work" if streamed else names.result}
    phases, used = [], threads * numbers["scratch_size"]
    if mode == PREPARED:
        phases.append(TABLE.phase(f"conv_table.{height}", pointers, numbers, reads=reads, writes=["work"]))
        used = _all_tiles(sweep, height) * record * 8
        reads = [*reads, "work"]
    symbol = f"conv_direct.{sweep.kind}.{height}x{block.vectors}"
    reads, writes = ([*reads, "context"], ["work"]) if streamed else (reads, [names.result, "work"])
    share = (block.end - block.begin) / sweep.outputs
    phases.append(DIRECT.phase(symbol, pointers, numbers, reads, writes, share))
    return phases, used


def _piece(sweep: Sweep, width: int) -> int:
    """Rows of a block of the filter that stay in the L2 cache while all tiles of a unit are multiplied with them."""
    whole = max(1, sweep.most_taps * sweep.inputs)
    pieces = -(-whole * width * 4 // thresholds.filter_piece)
    return -(-whole // pieces)


def _all_tiles(sweep: Sweep, height: int) -> int:
    """At least the tiles of all phases."""
    count = 1
    for axis in sweep.axes:
        count *= axis.phases
    return count * -(-sweep.pixels // height)


def _units(sweep: Sweep, threads: int, tiles: int, columns: int, most: int, *, reused: bool) -> tuple[int, int, int]:
    """Tiles and blocks of a unit, and whether threads divide the channels (the filter is read once) or the pixels (the source is).

    `most`: tiles that fit in the cache. `reused`: preparing a tile is expensive, so that it is multiplied with many blocks.
    """
    filter_size = sweep.taps * sweep.inputs * sweep.outputs
    source_size = sweep.pixels * sweep.inputs
    if threads > _FEW_THREADS or reused:
        return _shared(max(1, tiles), columns * sweep.groups, most, threads, filter_size / max(1, source_size))
    if (columns * sweep.groups >= threads and filter_size > source_size) or tiles < threads:
        return max(1, min(tiles, 4 * most)), 1, 1
    chunks = -(-tiles // most)
    chunks = max(1, -(-chunks // threads) * threads)
    return max(1, -(-tiles // chunks)), columns, 0


def _shared(tiles: int, columns: int, most: int, threads: int, weight: float) -> tuple[int, int, int]:
    """Units for many threads, such that all have work and each reads little. `weight`: size of the filter relative to the source."""
    best = (float("inf"), 1, 1)
    for strips in range(1, min(columns, threads) + 1):
        strip = -(-columns // strips)
        for rounds in (1, 2, 3, 4):
            chunk = min(most, max(1, -(-tiles * strips // (rounds * threads))))
            units = -(-tiles // chunk) * -(-columns // strip)
            work = (
                -(-units // threads) * chunk * strip / (tiles * columns / threads)
            )  # 1 if all threads are always busy
            reads = (strip / columns * weight + chunk * -(-units // threads) / tiles) / (1 + weight)
            best = min(best, (work + reads, chunk, strip))
    _, chunk, strip = best
    return chunk, strip, int(strip < columns)
