"""Plans of filter gradients by Winograd's algorithm."""

from __future__ import annotations

from math import prod

from ....records import dataclass
from ...ir.conv_shape import ConvShape
from ...ir.plan import Plan
from ...thresholds import thresholds
from ..conv.filter_gradient_plan import SUMS, UNITS, ending, finishes_by_blocks
from ..conv.shape import whole_lines
from ..target import CpuTarget
from .filter_gradient import GRADIENT
from .plan import SIZES, transform_cost
from .tiles import APART

_TILES = {("aarch64", 32): (8, 2), ("x86_64", 32): (4, 4), ("x86_64", 16): (6, 2)}  # rows and vectors
_MOST = 64  # channels of a block


def gradient_applies(shape: ConvShape, target: CpuTarget) -> bool:
    """3 x 3 taps in two dimensions, no stride, no dilation, no groups, and channels that can be divided into blocks of whole vectors."""
    plain = shape.kernel == (3, 3) and shape.stride == shape.dilation == (1, 1) and shape.groups == 1
    return plain and all(_block(n, target) for n in (shape.channels, shape.filters))


def _block(channels: int, target: CpuTarget, most: int = _MOST) -> int:
    """The channels of a block: as many as possible, such that the last block has at least a vector; 0 if impossible."""
    lanes = target.lanes(32)
    if channels < lanes:
        return 0
    good = (n for n in range(most // lanes * lanes, 0, -lanes) if channels % n == 0 or channels % n >= lanes)
    return min(channels, next(good, 0))


def _blocks(shape: ConvShape, rows: int, columns: int) -> int:
    return -(-shape.channels // rows) * -(-shape.filters // columns)


def _smaller(shape: ConvShape, rows: int, columns: int, units: int, target: CpuTarget) -> tuple[int, int]:
    """Halve blocks until there are `units` of them, at the price of more transforms, or until they cannot be divided."""
    while _blocks(shape, rows, columns) < units:
        halves = _block(shape.channels, target, rows // 2), _block(shape.filters, target, columns // 2)
        if rows >= columns and halves[0]:
            rows = halves[0]
        elif halves[1]:
            columns = halves[1]
        else:
            break
    return rows, columns


@dataclass(frozen=True)
class _BlockPartition:
    """The partition of the work. Only the chunks, whose sums are added, must not depend on the number of threads."""

    height: int
    vectors: int
    rows: int  # input channels of a unit
    columns: int  # output channels
    x_pitch: int
    g_pitch: int
    tiles: int
    chunk: int  # tiles
    chunks: int
    slab: int  # tiles

    @classmethod
    def of(cls, shape: ConvShape, size: int, threads: int, target: CpuTarget) -> _BlockPartition:
        height, vectors = _TILES.get((target.arch, target.registers), (4, 2))
        rows, columns = _block(shape.channels, target), _block(shape.filters, target)
        tiles = shape.batch * prod(-(-n // size) for n in shape.out)
        chunks = -(-UNITS // _blocks(shape, rows, columns))
        chunks = max(1, min(chunks, tiles // thresholds.winograd_chunk, SUMS // (9 * shape.channels * shape.filters)))
        chunk = max(1, -(-tiles // chunks))
        chunks = max(1, -(-tiles // chunk))
        rows, columns = _smaller(shape, rows, columns, -(-threads // chunks), target)
        width = vectors * target.lanes(32)
        x_pitch, g_pitch = -(-rows // height) * height, -(-columns // width) * width
        slab = -(-chunk // -(-chunk // thresholds.winograd_slab))
        return cls(height, vectors, rows, columns, x_pitch, g_pitch, tiles, chunk, chunks, slab)


_SHORT = 1.25  # slowdown of a product whose accumulators are loaded and stored for every slab


def gradient_cost(shape: ConvShape, size: int, threads: int, target: CpuTarget) -> float:
    """The estimated time, in multiply-adds of all threads."""
    cut, number = _BlockPartition.of(shape, size, threads, target), transform_cost(target)
    blocks = -(-shape.channels // cut.rows), -(-shape.filters // cut.columns)
    pairs = shape.channels * shape.filters
    tile = pairs + number * (shape.channels * blocks[1] + shape.filters * blocks[0])
    units = cut.chunks * prod(blocks)
    busy = units / (-(-units // threads) * threads)
    return _SHORT * (size + 2) ** 2 * (cut.tiles * tile + cut.chunks * pairs * number) / busy


def gradient_plan(name: str, shape: ConvShape, threads: int, target: CpuTarget, turned: bool) -> Plan:
    size = SIZES[name]
    cut, points = _BlockPartition.of(shape, size, threads, target), (size + 2) ** 2
    by_blocks = finishes_by_blocks(shape, turned)
    scratch = whole_lines(4 * cut.chunks * 9 * shape.channels * shape.filters) if cut.chunks > 1 else 0
    gradients = whole_lines(4 * points * (cut.slab * cut.x_pitch + APART))
    sums = gradients + whole_lines(4 * points * (cut.slab * cut.g_pitch + APART))
    nothing = cut.height * cut.vectors * target.lanes(32)
    patch = sums + whole_lines(4 * (nothing + points * (cut.x_pitch * cut.g_pitch + APART)))
    partial = 0 if cut.chunks > 1 else -2 if by_blocks else -1
    numbers = {
        "partial": partial, "scratch": scratch, "gradients": gradients, "sums": sums, "patch": patch,
        "scratch_size": patch + whole_lines(4 * points * max(cut.rows, cut.columns)),
        "batch": shape.batch, "inputs": shape.channels, "outputs": shape.filters,
        "y_inside": shape.spatial[0], "x_inside": shape.spatial[1], "y_outside": shape.out[0], "x_outside": shape.out[1],
        "y_before": shape.padding[0], "x_before": shape.padding[1],
        "rows": cut.rows, "columns": cut.columns, "chunk": cut.chunk, "chunks": cut.chunks, "slab": cut.slab,
    }  # fmt: skip
    symbol = f"winograd_gradient.{size}.{cut.height}x{cut.vectors}"
    writes = ["work"] if cut.chunks > 1 else ["w", "work"]
    main = GRADIENT.phase(symbol, {}, numbers, reads=["x", "g"], writes=writes)
    phases = (main, *ending(shape, partial, cut.chunks, by_blocks))
    return Plan(name, phases, scratch + threads * numbers["scratch_size"], shape.flops)
