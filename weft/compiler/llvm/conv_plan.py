"""Plans of sweeps (forward convolutions and data gradients) from native functions: tiles, chunks, workspace."""

from __future__ import annotations

from dataclasses import dataclass, replace

from .conv_direct import COPIED, DIRECT, IN_PLACE, PREPARED, TABLE
from .conv_pack import pack_phase, panels_size, zeros_size
from .conv_shape import Sweep
from .conv_sweep import record_words
from .library import Phase, Plan
from .target import Target

LINE = 64  # bytes
_TILES = {
    # by architecture and vector registers: pixels of a tile for 4, 3, 2, 1 vectors of output channels
    ("aarch64", 32): {4: 5, 3: 7, 2: 9, 1: 12},
    ("x86_64", 16): {2: 6, 1: 10},
    ("x86_64", 32): {3: 8, 2: 12, 1: 14},
}
_RECORDS = 24 << 10  # bytes of records of a unit that stay in the first cache
_UNIT_TILES = 16


@dataclass(frozen=True)
class Names:
    """What the operands of a sweep are called in a plan."""

    source: str = "x"
    result: str = "y"
    packed: str = "work"


def heights(target: Target) -> dict[int, int]:
    """Pixels of a tile, by its vectors."""
    return _TILES.get((target.arch, target.registers), _TILES["x86_64", 16])


@dataclass(frozen=True)
class Block:
    """Some output channels of each group, done with tiles of so many vectors."""

    begin: int
    end: int
    vectors: int


def blocks(outputs: int, target: Target) -> list[Block]:
    """Wide tiles for most output channels, a narrower one for the rest."""
    lanes, widest = target.lanes(32), max(heights(target))
    whole = outputs - outputs % (widest * lanes)
    found = [Block(0, whole, widest)] if whole else []
    if whole < outputs:
        found.append(Block(whole, outputs, -(-(outputs - whole) // lanes)))
    return found


@dataclass(frozen=True)
class Packing:
    """Where the packed filter lies: the blocks of output channels and their first float."""

    blocks: tuple[tuple[Block, int], ...]
    floats: int


def packing(sweep: Sweep, target: Target) -> Packing:
    at, found = zeros_size(sweep), []
    for block in blocks(sweep.outputs, target):
        found.append((block, at))
        at += panels_size(sweep, block.end - block.begin, block.vectors * target.lanes(32))
    return Packing(tuple(found), at)


def pack_phases(sweep: Sweep, target: Target, into: str) -> list[Phase]:
    return [
        pack_phase(sweep, (block.begin, block.end), block.vectors * target.lanes(32), at, into, zeros=index == 0)
        for index, (block, at) in enumerate(packing(sweep, target).blocks)
    ]


def sweep_plan(name: str, sweep: Sweep, threads: int, target: Target, mode: int, names: Names, prepacked: bool = False) -> Plan:
    """DIRECT (IN_PLACE), IMPLICIT_GEMM (COPIED) or IMPLICIT_PRECOMP_GEMM (PREPARED)."""
    packed = packing(sweep, target)
    phases = [] if prepacked else pack_phases(sweep, target, names.packed)
    scratch = 0 if prepacked else _round(packed.floats * 4)
    end = scratch
    for block, at in packed.blocks:
        main, used = _block_phases(sweep, threads, target, mode, names, block, at, scratch)
        phases += main
        end = max(end, scratch + used)
    return Plan(name, tuple(phases), end, sweep.flops)


def _block_phases(
    sweep: Sweep, threads: int, target: Target, mode: int, names: Names, block: Block, panels: int, scratch: int
) -> tuple[list[Phase], int]:
    """The phases of some output channels, and the bytes of workspace they need."""
    height = heights(target)[block.vectors]
    tiles = -(-sweep.pixels // height)
    record = record_words(height, sweep.most_taps)
    patch = 0 if mode != COPIED else height * sweep.most_taps * sweep.inputs * 4
    columns = -(-(block.end - block.begin) // (block.vectors * target.lanes(32)))
    chunk, strip, channels_first = _units(sweep, threads, tiles, columns, record * 8 + patch)
    numbers = {
        **sweep.numbers, "mode": mode, "column_begin": block.begin, "column_end": block.end, "panels": panels,
        "scratch": scratch, "scratch_size": _round(chunk * (record * 8 + patch)), "patches": chunk * record * 8,
        "record": record, "chunk": chunk, "blocks": strip, "channels_first": channels_first,
    }  # fmt: skip
    reads = [names.source, names.packed]
    pointers = {"x": names.source, "packed": names.packed, "y": names.result}
    phases, used = [], threads * numbers["scratch_size"]
    if mode == PREPARED:
        phases.append(TABLE.phase(f"conv_table.{height}", pointers, numbers, reads=reads, writes=["work"]))
        used = _all_tiles(sweep, height) * record * 8
        reads = [*reads, "work"]
    symbol = f"conv_direct.{height}x{block.vectors}"
    phases.append(DIRECT.phase(symbol, pointers, numbers, reads=reads, writes=[names.result, "work"]))
    return phases, used


def _all_tiles(sweep: Sweep, height: int) -> int:
    """At least the tiles of all phases."""
    count = 1
    for axis in sweep.axes:
        count *= axis.phases
    return count * -(-sweep.pixels // height)


def _units(sweep: Sweep, threads: int, tiles: int, columns: int, tile_bytes: int) -> tuple[int, int, int]:
    """Tiles and blocks of a unit, and whether threads share out channels: then the filter is read once, else the source."""
    most = max(1, min(_UNIT_TILES, _RECORDS // tile_bytes))
    filter_size = sweep.taps * sweep.inputs * sweep.outputs
    source_size = sweep.pixels * sweep.inputs
    if columns * sweep.groups >= threads and filter_size > source_size or tiles < threads:
        return max(1, min(tiles, 4 * most)), 1, 1
    chunks = -(-tiles // most)
    chunks = -(-chunks // threads) * threads
    return max(1, -(-tiles // chunks)), columns, 0


def _round(size: int) -> int:
    return -(-size // LINE) * LINE


def modes() -> dict[str, int]:
    return {"DIRECT": IN_PLACE, "IMPLICIT_GEMM": COPIED, "IMPLICIT_PRECOMP_GEMM": PREPARED}


__all__ = ["Names", "Packing", "pack_phases", "packing", "replace", "sweep_plan"]
