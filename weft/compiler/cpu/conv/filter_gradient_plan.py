"""Plans of filter gradients."""

from __future__ import annotations

from dataclasses import replace
from math import prod

from ....records import dataclass
from ...ir.conv_shape import ConvShape
from ...ir.plan import Plan, PlanPhase
from ...thresholds import thresholds
from ..gemm import plans as gemm
from ..gemm.product import PRODUCT
from ..target import CpuTarget
from .filter_gradient import FILTER, PAD
from .filter_gradient_sums import FINISH, SUM
from .filter_gradient_tiles import FilterTile, in_place_tile, packed_tile, pays_in_place
from .pixel_lines import FACTS, LINES
from .shape import forward_sweep, whole_lines
from .sweep_plan import patches_phase

UNITS = 16  # with this many blocks of rows there is enough work for all threads
SUMS = 1 << 21  # the most elements of the sums of all chunks
_FEW_PIXELS = 2048  # with more of them a product traverses its result too often
# How much longer than the fastest one another algorithm takes, roughly.
_COSTS = {"DIRECT": 1.1, "IMPLICIT_PRECOMP_GEMM": 1.12, "IMPLICIT_GEMM": 1.15, "GEMM": 1.3}


def filter_plans(shape: ConvShape, threads: int, target: CpuTarget, turned: bool = False) -> dict[str, Plan]:
    """All algorithms but Winograd's, by name.

    `turned`: the epilogue stores the result with the taps of a channel contiguous. A large filter is then finished block by block.
    """
    by_blocks = finishes_by_blocks(shape, turned)
    packed, in_place = packed_tile(shape, target), in_place_tile(shape, target)

    def plan(name: str, tile: FilterTile) -> Plan:
        return _slab_plan(name, shape, tile, threads, target, by_blocks)

    found = {"IMPLICIT_GEMM": plan("IMPLICIT_GEMM", packed), "DIRECT": plan("DIRECT", in_place)}
    if shape.groups == 1:
        found["IMPLICIT_PRECOMP_GEMM"] = plan("IMPLICIT_PRECOMP_GEMM", in_place)
        multiplied = _product_plan if _pointwise(shape) else _patches_plan
        found["GEMM"] = multiplied("GEMM", shape, threads, target, by_blocks)
    return found


def filter_cost(name: str, shape: ConvShape, target: CpuTarget) -> float:
    """The estimated time of an algorithm relative to the fastest of filter_plans."""
    return 1.0 if name == _fastest(shape, target) else _COSTS[name]


def _fastest(shape: ConvShape, target: CpuTarget) -> str:
    if target.arch != "aarch64" and _pointwise(shape) and shape.batch * prod(shape.out) <= _FEW_PIXELS:
        return "GEMM"
    return "DIRECT" if pays_in_place(shape, target) else "IMPLICIT_GEMM"


def finishes_by_blocks(shape: ConvShape, turned: bool) -> bool:
    return turned and prod(shape.kernel) * shape.channels // shape.groups * shape.filters >= thresholds.filter_by_blocks


def _pointwise(shape: ConvShape) -> bool:
    """Whether the convolution is pointwise: every pixel of g corresponds to the same pixel of x."""
    plain = all(n == 1 for n in (*shape.kernel, *shape.stride, shape.groups))
    return plain and not any(shape.padding) and shape.out == shape.spatial


def _product_plan(name: str, shape: ConvShape, threads: int, target: CpuTarget, by_blocks: bool) -> Plan:
    """dw = x^T @ g as a plain matrix product."""
    rows, columns, pixels = shape.channels, shape.filters, shape.batch * prod(shape.out)
    plan = gemm.plan(rows, columns, pixels, (1, rows), (columns, 1), ldc=columns, threads=threads, target=target)
    phases = [_renamed(phase, {"a": "x", "b": "g", "c": "w"}) for phase in plan.phases]
    if not by_blocks or not phases[-1].symbol.startswith("product."):
        return replace(plan, name=name, phases=tuple(phases))
    values = dict(zip(PRODUCT, phases[-1].arguments, strict=True)) | {"finishes": 0}
    phases[-1] = replace(phases[-1], arguments=tuple(values.values()))
    return replace(plan, name=name, phases=(*phases, _finish(shape)))


def _renamed(phase: PlanPhase, names: dict[str, str]) -> PlanPhase:
    arguments = tuple(names.get(a, a) if isinstance(a, str) else a for a in phase.arguments)
    reads, writes = (frozenset(names.get(n, n) for n in some) for some in (phase.reads, phase.writes))
    return replace(phase, arguments=arguments, reads=reads, writes=writes)


def _finish(shape: ConvShape, partial: int = 0, chunks: int = 0) -> PlanPhase:
    """Sum the chunks, if there are any, and call the epilogue block by block."""
    numbers = {"partial": partial, "taps": prod(shape.kernel), "inputs": shape.channels // shape.groups}
    numbers |= {"columns": shape.filters, "chunks": chunks}
    return FINISH.phase("conv_finish", {}, numbers, reads=["work" if chunks else "w"], writes=["w"])


def ending(shape: ConvShape, partial: int, chunks: int, by_blocks: bool) -> list[PlanPhase]:
    """The final phases: sum the chunks at `partial` in the workspace, if there are several, and call the epilogue if it was deferred."""
    if by_blocks:
        return [_finish(shape, partial, chunks) if chunks > 1 else _finish(shape)]
    if chunks == 1:
        return []
    rows = prod(shape.kernel) * shape.channels // shape.groups
    numbers = {"partial": partial, "rows": rows, "columns": shape.filters, "chunks": chunks}
    return [SUM.phase("conv_sum", {}, numbers, reads=["work"], writes=["w"])]


def _slab_plan(name: str, shape: ConvShape, tile: FilterTile, threads: int, target: CpuTarget, by_blocks: bool) -> Plan:
    """Patches of x are packed slab by slab, or read in place, see filter_gradient.py."""
    phases, source, start = _padded(shape)
    cut = _SlabPartition.of(shape, tile, threads, target)
    main, end = _slab_phases(shape, cut, threads, source, start, by_blocks, prepared=name == "IMPLICIT_PRECOMP_GEMM")
    phases += [*main, *ending(shape, start, cut.chunks, by_blocks)]
    return Plan(name, tuple(phases), end, shape.flops)


def _patches_plan(name: str, shape: ConvShape, threads: int, target: CpuTarget, by_blocks: bool) -> Plan:
    """im2col into the workspace, followed by a convolution with a single tap."""
    phases, source, place = _padded(shape)
    sweep = forward_sweep(replace(shape.lifted, spatial=source.size, padding=(0, 0, 0)), (0,) * 5)
    gathering, start, used = patches_phase(sweep, threads, source.pointer, "work", place)
    images, pixels = min(1, shape.batch), max(1, shape.batch) * prod(shape.out)
    rows = prod(shape.kernel) * shape.channels
    flat = ConvShape(images, rows, shape.filters, 1, (pixels,), (1,), (1,), (0,), (1,), (pixels,))
    cut = _SlabPartition.of(flat, packed_tile(flat, target), threads, target)
    main, end = _slab_phases(flat, cut, threads, _SourceImage("work", (1, 1, pixels), place), start, by_blocks)
    phases += [gathering, *main, *ending(shape, start, cut.chunks, by_blocks)]
    return Plan(name, tuple(phases), max(end, used), shape.flops)


@dataclass(frozen=True)
class _SourceImage:
    """Where x lies."""

    pointer: str
    size: tuple[int, ...]  # along its three axes
    offset: int = 0  # bytes


def _slab_phases(
    shape: ConvShape,
    cut: _SlabPartition,
    threads: int,
    source: _SourceImage,
    start: int,
    by_blocks: bool,
    prepared: bool = False,
) -> tuple[list[PlanPhase], int]:
    """The phases except the final ones, with the workspace from byte `start` on, which begins with the sums of the chunks if there are
    several; and the end of the workspace."""
    table = start + (whole_lines(4 * cut.chunks * cut.rows * shape.filters) if cut.chunks > 1 else 0)
    lines = cut.slab_lines(shape)
    slabs = cut.chunks * -(-cut.chunk // cut.slab)
    scratch = table + (whole_lines(8 * FACTS * lines * slabs) if prepared else 0)
    thread, numbers = _scratch(shape, cut, 0 if prepared else lines)
    numbers |= {
        "partial": start if cut.chunks > 1 else -2 if by_blocks else -1, "scratch": scratch, "x_offset": source.offset,
        "table": table if prepared else -1, "slab_lines": lines, "batch": shape.batch, "groups": shape.groups,
        "inputs": shape.channels // shape.groups, "outputs": shape.filters // shape.groups,
        "rows": cut.rows, "unit": cut.unit, "chunk": cut.chunk, "chunks": cut.chunks, "slab": cut.slab, "few": cut.few,
    }  # fmt: skip
    lifted = shape.lifted
    for i, letter in enumerate("zyx"):
        facts = (lifted.kernel[i], lifted.out[i], lifted.stride[i], lifted.dilation[i], source.size[i])
        numbers |= dict(
            zip((f"{letter}_{w}" for w in ("kernel", "pixels", "step", "move", "size")), facts, strict=True)
        )
    reads = [source.pointer, "g", *(["work"] if prepared else [])]
    writes = ["work"] if cut.chunks > 1 else ["w", "work"]
    phases = [LINES.phase("conv_lines", {}, numbers, reads=[], writes=["work"])] if prepared else []
    phases.append(
        FILTER.phase(f"conv_filter.{cut.tile.name}", {"x": source.pointer}, numbers, reads=reads, writes=writes)
    )
    return phases, scratch + threads * thread


@dataclass(frozen=True)
class _SlabPartition:
    """The partition of the work. Only the chunks, whose sums are added, must not depend on the number of threads."""

    tile: FilterTile
    width: int  # of a tile, in floats
    rows: int
    unit: int  # blocks of rows
    chunk: int  # pixels
    chunks: int
    slab: int  # pixels packed at a time
    few: int  # blocks of rows packed at a time

    @classmethod
    def of(cls, shape: ConvShape, tile: FilterTile, threads: int, target: CpuTarget) -> _SlabPartition:
        outputs, pixels = shape.filters // shape.groups, shape.batch * prod(shape.out)
        width = tile.vectors * target.lanes(32)
        rows = prod(shape.kernel) * shape.channels // shape.groups
        blocks = -(-rows // tile.rows)
        chunks = max(1, min(-(-UNITS // (shape.groups * blocks)), pixels // thresholds.filter_chunk))
        # Threads that divide the rows each pack all of g; those that divide the pixels do not.
        chunks = max(chunks, min(UNITS, pixels // thresholds.filter_good_chunk, SUMS // (rows * shape.filters)))
        chunk = max(1, -(-pixels // chunks))
        chunks = max(1, -(-pixels // chunk))
        # The accumulators of a unit and the panels of g share the L2 cache with streamed data.
        far = _reads_far(target)
        most = max(1, target.l2 // (2 if far else 4) // (tile.rows * outputs * 4))
        strips = -(-blocks // most)
        if chunks * shape.groups < threads:
            strips = -(-strips // threads) * threads
        slab = min(chunk, thresholds.filter_slab, max(thresholds.filter_least_slab, target.l2 // 4 // (outputs * 4)))
        few = max(1, (target.l1 // 2 - slab * width * 4) // (slab * tile.rows * 4))
        unit = max(1, -(-blocks // strips))
        if tile.runs:
            # A wide panel of g stays in L1, while x is read from L2.
            slab, few = min(slab, max(thresholds.filter_least_slab, target.l1 // 2 // (width * 4))), unit
        if far:
            slab = -(-chunk // -(-chunk // slab))
            few = few if tile.runs else max(1, target.l2 // 8 // (slab * tile.rows * 4))
        return cls(tile, width, rows, unit, chunk, chunks, slab, few)

    def slab_lines(self, shape: ConvShape) -> int:
        """The maximum number of lines that a slab overlaps; 0 if x is packed."""
        wide = shape.out[-1]
        return (self.slab + wide - 2) // wide + 1 if self.tile.runs else 0


def _reads_far(target: CpuTarget) -> bool:
    """Whether x is read from the L2 cache: AVX-512 loads one element of it for each of its wide accumulators."""
    return target.arch == "x86_64" and target.registers == 32


def _scratch(shape: ConvShape, cut: _SlabPartition, own_lines: int) -> tuple[int, dict[str, int]]:
    """The bytes of a thread's scratch memory, and the offsets of its parts."""
    panels, tile = -(-shape.filters // shape.groups // cut.width), cut.tile
    x = whole_lines(panels * cut.slab * cut.width * 4)
    sums = x + (0 if tile.runs else whole_lines(cut.few * cut.slab * tile.rows * 4))
    offsets = sums + whole_lines((cut.unit * panels + 1) * tile.rows * cut.width * 4)
    lines = offsets + whole_lines(cut.unit * tile.rows * 8)
    size = lines + whole_lines(8 * FACTS * own_lines)
    return size, {"scratch_size": size, "panels": x, "sums": sums, "offsets": offsets, "lines": lines}


def _padded(shape: ConvShape) -> tuple[list[PlanPhase], _SourceImage, int]:
    """The phase that pads x, if the kernel reaches over its edges; where the padded x is; and the first free byte of the workspace."""
    lifted = shape.lifted
    facts = zip(lifted.out, lifted.stride, lifted.kernel, lifted.dilation, strict=True)
    reach = tuple((o - 1) * s + (k - 1) * d + 1 for o, s, k, d in facts)
    if not any(lifted.padding) and all(r <= i for r, i in zip(reach, lifted.spatial, strict=True)):
        return [], _SourceImage("x", lifted.spatial), 0
    numbers = {"offset": 0, "batch": shape.batch, "channels": shape.channels}
    for i, letter in enumerate("zyx"):
        before, padded = lifted.padding[i], reach[i]
        numbers |= {f"{letter}_inside": lifted.spatial[i], f"{letter}_padded": padded, f"{letter}_before": before}
    padding = PAD.phase("conv_pad", {}, numbers, reads=["x"], writes=["work"])
    return [padding], _SourceImage("work", reach), whole_lines(4 * shape.batch * prod(reach) * shape.channels)
