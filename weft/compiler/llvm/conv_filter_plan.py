"""Plans of filter gradients."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod

from . import gemm
from .conv_chunks import FINISH, SUM
from .conv_filter import FACTS, FILTER, PAD
from .conv_shape import ConvShape, whole_lines
from .library import Phase, Plan
from .product import PRODUCT
from .target import Target

# By architecture and vector registers: (rows, vectors) of register tiles, and what part of the time they do useful work.
_TILES = {
    ("aarch64", 32): {(6, 4): 1.0, (8, 3): 0.98, (8, 2): 0.96, (12, 1): 0.8},
    ("x86_64", 16): {(6, 2): 1.0, (10, 1): 0.8},
    ("x86_64", 32): {(6, 4): 1.0, (9, 3): 1.0, (12, 2): 0.94, (14, 1): 0.76},
}
_MOST_SLAB, _LEAST_SLAB = 256, 96  # pixels packed at a time
_FEW_VECTORS = 8  # of output channels, for which x is read in place
_PACK_TOGETHER, _PACK_ONE = 2.0, 1.3  # cycles to pack the rows of a block side by side, and one of several that are not
_MOST_RUNS = 6  # in a block of rows: each has a pointer
UNITS = 16  # with as many blocks of rows there is enough work for all threads
_LEAST_CHUNK, _GOOD_CHUNK = 512, 2048  # pixels
SUMS = 1 << 21  # the most elements of the sums of all chunks
_FEW_PIXELS = 2048  # with more of them a product goes through its result too often
_LARGE = 1 << 15  # elements of a filter that is finished block by block: a smaller one stays in the first caches


def filter_plan(name: str, shape: ConvShape, threads: int, target: Target, turned: bool = False) -> Plan:
    """A matrix product if it is one, and a short one, else slab by slab.

    Turned: whoever wants it has the taps of a channel side by side. A large filter is then finished block by block.
    """
    by_blocks = finishes_by_blocks(shape, turned)
    if target.arch != "aarch64" and _pointwise(shape) and shape.batch * prod(shape.out) <= _FEW_PIXELS:
        return _product_plan(name, shape, threads, target, by_blocks)
    return _slab_plan(name, shape, threads, target, by_blocks)


def finishes_by_blocks(shape: ConvShape, turned: bool) -> bool:
    return turned and prod(shape.kernel) * shape.channels // shape.groups * shape.filters >= _LARGE


def _pointwise(shape: ConvShape) -> bool:
    """Is the pixel of x that a pixel of g meets always the same one?"""
    plain = all(n == 1 for n in (*shape.kernel, *shape.stride, shape.groups))
    return plain and not any(shape.padding) and shape.out == shape.spatial


def _product_plan(name: str, shape: ConvShape, threads: int, target: Target, by_blocks: bool) -> Plan:
    """dw = x^T @ g: nothing has to be packed that a product would not pack."""
    rows, columns, pixels = shape.channels, shape.filters, shape.batch * prod(shape.out)
    plan = gemm.plan(rows, columns, pixels, (1, rows), (columns, 1), ldc=columns, threads=threads, target=target)
    phases = [_renamed(phase, {"a": "x", "b": "g", "c": "w"}) for phase in plan.phases]
    if not by_blocks or not phases[-1].symbol.startswith("product."):
        return replace(plan, name=name, phases=tuple(phases))
    values = dict(zip(PRODUCT, phases[-1].arguments, strict=True)) | {"finishes": 0}
    phases[-1] = replace(phases[-1], arguments=tuple(values.values()))
    return replace(plan, name=name, phases=(*phases, _finish(shape)))


def _renamed(phase: Phase, names: dict[str, str]) -> Phase:
    arguments = tuple(names.get(a, a) if isinstance(a, str) else a for a in phase.arguments)
    reads, writes = (frozenset(names.get(n, n) for n in some) for some in (phase.reads, phase.writes))
    return Phase(phase.symbol, arguments, reads, writes)


def _finish(shape: ConvShape, partial: int = 0, chunks: int = 0) -> Phase:
    """Add up the chunks, if there are any, and show the result to the epilogue, block by block."""
    numbers = {"partial": partial, "taps": prod(shape.kernel), "inputs": shape.channels // shape.groups}
    numbers |= {"columns": shape.filters, "chunks": chunks}
    return FINISH.phase("conv_finish", {}, numbers, reads=["work" if chunks else "w"], writes=["w"])


def ending(shape: ConvShape, partial: int, chunks: int, by_blocks: bool) -> list[Phase]:
    """Add up the chunks, which lie in `work` from `partial` on, if there are several; show the result to the epilogue if that waits."""
    if by_blocks:
        return [_finish(shape, partial, chunks) if chunks > 1 else _finish(shape)]
    if chunks == 1:
        return []
    rows = prod(shape.kernel) * shape.channels // shape.groups
    numbers = {"partial": partial, "rows": rows, "columns": shape.filters, "chunks": chunks}
    return [SUM.phase("conv_sum", {}, numbers, reads=["work"], writes=["w"])]


def _slab_plan(name: str, shape: ConvShape, threads: int, target: Target, by_blocks: bool) -> Plan:
    """Patches of x are packed slab by slab, see conv_filter.py."""
    size, padding = _padding(shape)
    phases, start = ([padding], whole_lines(4 * shape.batch * prod(size) * shape.channels)) if padding else ([], 0)
    cut = _Cut.of(shape, threads, target)
    scratch = start + (whole_lines(4 * cut.chunks * cut.rows * shape.filters) if cut.chunks > 1 else 0)
    partial = start if cut.chunks > 1 else -2 if by_blocks else -1
    thread, numbers = _scratch(shape, cut)
    numbers |= {
        "partial": partial, "scratch": scratch, "batch": shape.batch, "groups": shape.groups,
        "inputs": shape.channels // shape.groups, "outputs": shape.filters // shape.groups,
        "rows": cut.rows, "unit": cut.unit, "chunk": cut.chunk, "chunks": cut.chunks, "slab": cut.slab, "few": cut.few,
    }  # fmt: skip
    lifted = shape.lifted
    for i, letter in enumerate("zyx"):
        facts = (lifted.kernel[i], lifted.out[i], lifted.stride[i], lifted.dilation[i], size[i])
        numbers |= dict(
            zip((f"{letter}_{w}" for w in ("kernel", "pixels", "step", "move", "size")), facts, strict=True)
        )
    writes = ["work"] if cut.chunks > 1 else ["w", "work"]
    x = "work" if padding else "x"
    symbol = f"conv_filter.{cut.height}x{cut.vectors}" + (f".{cut.runs}" if cut.runs else "")
    phases.append(FILTER.phase(symbol, {"x": x}, numbers, reads=[x, "g"], writes=writes))
    phases += ending(shape, partial, cut.chunks, by_blocks)
    return Plan(name, tuple(phases), scratch + threads * thread, shape.flops)


@dataclass(frozen=True)
class _Cut:
    """How the work is cut. Only the chunks, whose sums are added, must not depend on the number of threads."""

    height: int
    vectors: int
    runs: int  # of rows in a block, if x is read in place
    width: int  # of a tile, in floats
    rows: int
    unit: int  # blocks of rows
    chunk: int  # pixels
    chunks: int
    slab: int  # pixels packed at a time
    few: int  # blocks of rows packed at a time

    @classmethod
    def of(cls, shape: ConvShape, threads: int, target: Target) -> _Cut:
        outputs, pixels = shape.filters // shape.groups, shape.batch * prod(shape.out)
        height, vectors, runs = _tile(shape, target)
        width = vectors * target.lanes(32)
        rows = prod(shape.kernel) * shape.channels // shape.groups
        blocks = -(-rows // height)
        chunks = max(1, min(-(-UNITS // (shape.groups * blocks)), pixels // _LEAST_CHUNK))
        # Threads that share out rows pack all of g, each for itself; those that share out pixels do not.
        chunks = max(chunks, min(UNITS, pixels // _GOOD_CHUNK, SUMS // (rows * shape.filters)))
        chunk = max(1, -(-pixels // chunks))
        chunks = max(1, -(-pixels // chunk))
        # The sums of a unit and the panels of g share the second cache with what streams through.
        far = _splats_are_free(target)
        most = max(1, target.l2 // (2 if far else 4) // (height * outputs * 4))
        strips = -(-blocks // most)
        if chunks * shape.groups < threads:
            strips = -(-strips // threads) * threads
        slab = min(chunk, _MOST_SLAB, max(_LEAST_SLAB, target.l2 // 4 // (outputs * 4)))
        few = max(1, (target.l1 // 2 - slab * width * 4) // (slab * height * 4))
        unit = max(1, -(-blocks // strips))
        if far:
            # A wide panel of g stays in the first cache, while what is read of x comes from the second.
            slab = min(slab, max(_LEAST_SLAB, target.l1 // 2 // (width * 4))) if runs else slab
            slab = -(-chunk // -(-chunk // slab))
            few = unit if runs else max(1, target.l2 // 8 // (slab * height * 4))
        return cls(height, vectors, runs, width, rows, unit, chunk, chunks, slab, few)


def _tile(shape: ConvShape, target: Target) -> tuple[int, int, int]:
    """Rows, vectors, and runs of rows if x is read in place, of the tile that takes the least time."""
    outputs, lanes = shape.filters // shape.groups, target.lanes(32)
    tiles = _TILES.get((target.arch, target.registers), _TILES["x86_64", 16])

    def cost(tile: tuple[int, int]) -> float:
        width = tile[1] * lanes
        return -(-outputs // width) * width / tiles[tile]

    packed = (*min(tiles, key=cost), 0)
    if not _pays_in_place(shape, target):
        return packed
    return min(packed, *_in_place(shape, lanes), key=lambda tile: _cycles(shape, lanes, tile))


def _pays_in_place(shape: ConvShape, target: Target) -> bool:
    """Not with many output channels: x is packed once for many products. Nor with pixels so far apart that they leave the first cache."""
    few = shape.filters // shape.groups <= _FEW_VECTORS * target.lanes(32)
    apart = 4 * shape.channels * shape.stride[-1]
    return _splats_are_free(target) and few and apart * _LEAST_SLAB <= target.l1


def _splats_are_free(target: Target) -> bool:
    """Does the CPU read one number into all lanes as quickly as a vector, and has it the registers to gain by it?"""
    return target.arch == "x86_64" and target.registers == 32


def _runs(shape: ConvShape) -> tuple[int, int]:
    """The runs of rows that follow each other in memory: how long, and how many."""
    inputs, width = shape.channels // shape.groups, shape.lifted.kernel[-1]
    length = inputs * (width if shape.groups == 1 and (width == 1 or shape.lifted.dilation[-1] == 1) else 1)
    return length, prod(shape.kernel) * inputs // length


def _in_place(shape: ConvShape, lanes: int) -> list[tuple[int, int, int]]:
    """The tiles whose rows are parts of runs, or whole ones, as conv_filter.py has it."""
    length, runs = _runs(shape)
    heights = [(rows, 1) for rows in range(1, length + 1) if length % rows == 0]
    heights += [(length * some, some) for some in range(2, _MOST_RUNS + 1) if runs % some == 0]
    most = -(-shape.filters // shape.groups // lanes)
    # Sums, a row of g and a number of x must fit in the registers.
    return [(rows, v, some) for rows, some in heights for v in range(1, min(4, most) + 1) if rows * v + v + 1 <= 31]


def _cycles(shape: ConvShape, lanes: int, tile: tuple[int, int, int]) -> float:
    """About how long a pixel takes."""
    rows, vectors, runs = tile
    length, count = _runs(shape)
    # Two sums and two reads in a cycle, a sum ready for the next after four; then the loop, and reads that collide.
    product = max(4.0, rows * vectors / 2, (rows + vectors) / 2) + 1.5 + (rows + vectors) / 16
    packing = 0.0 if runs else _PACK_TOGETHER if length >= 2 * rows else _PACK_ONE * rows
    blocks = -(-length * count // rows), -(-shape.filters // shape.groups // (lanes * vectors))
    return blocks[0] * (blocks[1] * product + packing)


def _scratch(shape: ConvShape, cut: _Cut) -> tuple[int, dict[str, int]]:
    """The bytes of a thread's memory, and where in it what lies."""
    panels = -(-shape.filters // shape.groups // cut.width)
    x = whole_lines(panels * cut.slab * cut.width * 4)
    sums = x + (0 if cut.runs else whole_lines(cut.few * cut.slab * cut.height * 4))
    offsets = sums + whole_lines((cut.unit * panels + 1) * cut.height * cut.width * 4)
    lines = offsets + whole_lines(cut.unit * cut.height * 8)
    size = lines + (whole_lines((cut.slab + 1) * FACTS * 8) if cut.runs else 0)
    return size, {"scratch_size": size, "panels": x, "sums": sums, "offsets": offsets, "lines": lines}


def _padding(shape: ConvShape) -> tuple[tuple[int, ...], Phase | None]:
    """The spatial size that the filter is swept over, and the phase that pads x to it, if it must be."""
    lifted = shape.lifted
    facts = zip(lifted.out, lifted.stride, lifted.kernel, lifted.dilation, strict=True)
    reach = tuple((o - 1) * s + (k - 1) * d + 1 for o, s, k, d in facts)
    if not any(lifted.padding) and all(r <= i for r, i in zip(reach, lifted.spatial, strict=True)):
        return lifted.spatial, None
    numbers = {"offset": 0, "batch": shape.batch, "channels": shape.channels}
    for i, letter in enumerate("zyx"):
        before, padded = lifted.padding[i], reach[i]
        numbers |= {f"{letter}_inside": lifted.spatial[i], f"{letter}_padded": padded, f"{letter}_before": before}
    return reach, PAD.phase("conv_pad", {}, numbers, reads=["x"], writes=["work"])
