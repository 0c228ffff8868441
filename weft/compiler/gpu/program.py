"""A graph as a list of GPU commands: kernels in Triton, library calls and copies, on planned memory.

Passes, fusion, schedule and memory plan are shared with the other backends. A stream runs commands in order, so no barriers are needed.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from itertools import count, zip_longest
from math import prod

from ...dtypes import uint8
from ...graph.graph import Graph
from ...graph.node import ITEM, Node, Type, placeholder
from ...options import CompileOptions
from ..ir.kernel import Kernel, View
from ..ir.nest import ready_nest
from ..ir.plan import Plan
from ..ir.program import FRAME_RESERVED, Call, KernelProgram
from ..ir.storage import Slot, nbytes
from ..lowering import LoweringTable
from ..passes.integer_products import Int8Kernels
from ..passes.pipeline import PassOptions, apply_passes
from ..passes.pipeline import passes as each_pass
from ..passes.semi_sparse_products import CompressedBytes
from ..passes.slice_updates import spread_updates
from ..planning.algorithms import asked_for_loops
from ..planning.build import Backend, build, control_buffers
from ..planning.fuse import KernelKinds
from ..thresholds import thresholds
from . import scalars
from .algorithms import choose, claimed, kept_tensors, plan_scratch_offsets, write
from .anchors import anchor_of, is_attention, is_contraction
from .commands import Collective, Command, CommandList, CompiledCommands, ControlFlow, Copy, Launch, LibraryCall
from .compile import ALIGNED, Binary
from .contraction import write_copy
from .row_scan_source import outer_slot, write_row_scan
from .row_scans import row_scan
from .source import KernelSource, Site, joined
from .special import collectives
from .special import plans as special
from .split_reductions import loops_scratch, loops_workspace, write_kernels
from .streams import in_streams
from .vendor.claims import Judge, judge_in_body
from .vendor.specs import Spec

WIDENS: KernelKinds = frozenset(("contraction", "convolution"))  # our kernels read 16 bits as they are
RECOMPUTE_LIMIT = 64  # number of additions that take longer than writing a number and reading it again
LANES = 32  # threads of a warp: longer loops are worth coalesced reads
EARLY_FREE_BYTES = 1 << 24  # values of this size are worth a separate launch to be freed early
FLOPS_PER_BYTE = 150.0  # of products of 16-bit floats, in the time in which memory moves a byte
LOOP_PARAMS = ("carried", "sequences", "length", "reverse", "history")  # of control flow, as `ControlFlow` has them
MOST_SHARED = (
    128 << 10
)  # bytes of shared memory in a launch: Triton allocates it for each of the merged kernels separately


SHARED_BYTES = 227 << 10  # the shared memory that a kernel may take on GPUs for data centers, from Hopper on

# Long sums need no second kernel, channels are padded to what tensor cores read, and 16 bits are read as they are.
# Attention of wider floats is decomposed: its kernels multiply 16-bit floats on the matrix units.
WIDE_ATTENTION = dict.fromkeys(("attention", "attention_gradients"), ("float32", "float64"))
LOWERINGS = LoweringTable("gpu", scalars.TABLE, special.KERNELS, scalars.MATHS, WIDE_ATTENTION, special.METHODS)
INT8 = Int8Kernels(unsigned=False, depthwise=False)
PASSES = PassOptions(
    LOWERINGS.lowers_node,
    recompute=True,
    pad_to_words=True,
    merge_products=True,
    int8_kernels=INT8,
    narrow_kernels=True,
    adds=collectives.nccl_adds,
)
DEFAULTS = CompileOptions("cuda")


def gpu_passes(
    graph: Graph,
    options: CompileOptions = DEFAULTS,
    updates: Mapping[int, int] | None = None,
    semi_sparse: CompressedBytes | None = None,
) -> dict[str, Graph]:
    """The graph after each pass for GPUs, by the pass's name."""
    return each_pass(spread_updates(graph, updates or {}), replace(PASSES, semi_sparse=semi_sparse), options)


def gpu_program(
    graph: Graph,
    updates: Mapping[int, int],
    options: CompileOptions = DEFAULTS,
    constants: frozenset[int] = frozenset(),
    judge: Judge | None = None,
    collecting: Callable[[], AbstractContextManager[None]] | None = None,
    semi_sparse: CompressedBytes | None = None,
    shared_bytes: int = SHARED_BYTES,
) -> KernelProgram:
    """The graph as a program: fused, ordered, with its memory planned. It depends on these arguments only.

    `updates`: outputs that replace inputs in place. `constants`: inputs that rarely change; what is made of them alone is kept.
    `judge` says which products and convolutions NVIDIA's libraries do; without one they do none. In a block of `collecting` it sees
    all of them before any is planned: what it has to measure it measures at the end of the block, all at once. `semi_sparse` says which
    products with weights of 2:4 sparsity read them compressed, and how long those are; without it they are expanded. `shared_bytes`: the
    shared memory that a kernel may take.
    """

    def survey(kernels: Sequence[Kernel], unchanging: Collection[Node]) -> None:
        if collecting is not None:
            with collecting():
                for kernel in kernels:
                    _plan(kernel, 1, unchanging, False, judge, options)

    LOWERINGS.check(graph, options.device)
    in_body = None if judge is None else judge_in_body(judge)
    target = Backend(
        partial(apply_passes, wanted=replace(PASSES, semi_sparse=semi_sparse), options=options), partial(_plan, judge=judge, options=options),
        body_planner=partial(_plan, judge=in_body, options=options),
        by_loops=partial(asked_for_loops, conv_algorithm=options.conv_algorithm), widens=WIDENS, scratch_of=_scratch,
        recompute_limit=RECOMPUTE_LIMIT, survey=survey, narrow=options.narrow, gathers=True, early_free_bytes=EARLY_FREE_BYTES, overlaps=True,
        memory=options.memory or None, flops_per_byte=FLOPS_PER_BYTE, by_graph=_is_by_graph, libraries=judge is not None,
    )  # fmt: skip
    return replace(build(graph, updates, target, constants), shared_bytes=shared_bytes)


def _is_by_graph(kernel: Kernel, plan: Plan | None) -> bool:
    """Whether weft's own code computes the results of a kernel: libraries round less often than the graph specifies."""
    phases = () if plan is None else plan.phases
    return not any(p.symbol == "library" and "epilogue" in p.arguments for p in phases)


def _scratch(kernel: Kernel) -> int:
    """The bytes that loops cut into parts need beside their tensors."""
    return loops_scratch(ready_nest(kernel, LANES))


def _plan(
    kernel: Kernel, threads: int, still: Collection[Node], hidden: bool, judge: Judge | None, options: CompileOptions
) -> Plan:
    """The plan of an anchor."""
    anchor = kernel.anchor
    assert anchor is not None
    if is_attention(anchor):
        return choose(kernel, False, judge, options).plan
    if anchor.op.own_kernels:
        return special.plan(kernel)
    if not prod(anchor.shape):
        return Plan("nothing", (), 0, 0)
    assert is_contraction(kernel), anchor.op.name  # wider integers are multiplied by loops
    return choose(kernel, hidden, judge, options, still).plan


def commands(program: KernelProgram) -> CommandList[KernelSource]:
    """All commands of a program, in their order. Kernels that are the same are one object: they are compiled once."""
    return _commands(program, {}, frozenset(), program.shared_bytes)


Compiler = Callable[[Sequence[KernelSource]], list[Binary]]


def compiled_commands(program: KernelProgram, compiler: Compiler) -> CompiledCommands:
    """The commands of a program with their kernels compiled."""
    written = commands(program)
    numbers = {source: i for i, source in enumerate(dict.fromkeys(launch.kernel for launch in written.launches))}
    statuses = count(1)

    def numbered(launch: Launch[KernelSource]) -> Launch[int]:
        status = next(statuses) if launch.kernel.errors else 0
        return Launch(numbers[launch.kernel], launch.programs, launch.slots, launch.once, status)

    done = written.with_kernels(numbered)
    failing = sum(1 for launch in done.launches if launch.status)
    memory, kernels = program.memory, tuple(compiler(list(numbers)))
    return CompiledCommands(done, kernels, memory.arena, memory.kept, failing, memory.recomputed)


def library_specs(program: KernelProgram) -> set[Spec]:
    """The library calls of a program and of the bodies of its control flow."""
    found = {claimed(call.kernel, call.phase).spec for call in program.calls if _is_library(call)}
    return found.union(*(library_specs(body) for bodies in program.bodies.values() for body in bodies))


def error_sites(program: KernelProgram) -> list[tuple[Site, ...]]:
    """The possible errors of each launch, in the order of their entries in the status."""
    return [launch.kernel.errors for launch in commands(program).launches if launch.kernel.errors]


_Launcher = Callable[[KernelSource, Sequence[Slot], bool, tuple[Call, ...]], Launch[KernelSource]]


def _commands(
    program: KernelProgram, known: dict[object, KernelSource], loose: frozenset[int], shared_bytes: int
) -> CommandList[KernelSource]:
    """The same where some entries of the frame are `loose`: not aligned as memory usually is."""

    def launch(made: KernelSource, slots: Sequence[Slot], once: bool, calls: tuple[Call, ...]) -> Launch[KernelSource]:
        made = replace(made, loose=tuple(i for i, s in enumerate(slots) if s.base in loose or s.offset % ALIGNED))
        # The text does not contain the types of memory, nor the source lines of errors.
        same = (made.body, tuple(node.type for node in made.arguments), made.errors, made.loose)
        kernel = known.setdefault(same, made)
        return Launch(kernel, kernel.programs, tuple(slots), once, calls=calls)

    places = dict(program.memory.slots)
    for kernel, scratch in program.memory.scratch.items():
        if kernel not in program.bodies:
            places |= _scratch_slots(program, kernel, scratch)
    for kernel, kept in program.memory.packed.items():
        places |= dict.fromkeys(kept_tensors(kernel, program.plans[kernel]), kept)
    found: list[Command[KernelSource]] = []
    for calls in _independent_groups(program.calls):
        first = calls[0]
        if _is_library(first):
            wanted = claimed(first.kernel, first.phase)
            read = [
                program.viewed(o) if isinstance(o, View) else places[o] for o in wanted.operands(first.kernel.views)
            ]
            slots = (*read, *(places[n] for n in (*wanted.more, wanted.result)))
            found.append(LibraryCall(wanted.spec, slots, first.once, (first,)))
            continue
        if _is_collective(first):
            slots = tuple(first.operands[str(name)] for name in first.phase.arguments)
            found.append(Collective(collectives.spec(first.kernel), slots, (first,)))
            continue
        if first.kind == "copy":
            found += _copied(calls, launch)
            continue
        if first.kind == "control":
            found += _control(program, first, known, launch, shared_bytes)
            continue
        for made, done in _in_order(calls):
            found.append(launch(made, [places[node] for node in made.arguments], first.once, done))
    return in_streams(found)


def _copied(calls: Sequence[Call], launch: _Launcher) -> list[Command[KernelSource]]:
    """Independent copies: short ones share a kernel."""
    short = [c for c in calls if 0 < c.reads[0].nbytes <= thresholds.gpu_short_copy]
    steps: list[Command[KernelSource]] = [
        Copy(c.reads[0], c.writes[0], (c,)) for c in calls if c not in short or len(short) == 1
    ]
    for begin in range(0, len(short) if len(short) > 1 else 0, thresholds.gpu_copies):
        some = short[begin : begin + thresholds.gpu_copies]
        slots = [slot for c in some for slot in (c.reads[0], c.writes[0])]
        arguments = [placeholder(("copy", i), Type((slot.nbytes,), uint8)) for i, slot in enumerate(slots)]
        made = joined(
            "kernel", [write_copy("kernel", *pair) for pair in zip(arguments[::2], arguments[1::2], strict=True)]
        )
        steps.append(launch(made, [slots[arguments.index(n)] for n in made.arguments], False, tuple(some)))
    return steps


def _scratch_slots(program: KernelProgram, kernel: Kernel, scratch: Slot) -> dict[Node, Slot]:
    """The slots of a kernel's scratch tensors."""
    if kernel.anchor is None:
        found = loops_workspace(ready_nest(kernel, LANES))
    elif kernel.anchor.op.own_kernels:
        found = special.scratch_layout(kernel)
    else:
        found = plan_scratch_offsets(kernel, program.plans[kernel])
    return {node: Slot(scratch.base, scratch.offset + begin, nbytes(node)) for node, begin in found.items()}


def _control(
    program: KernelProgram, call: Call, known: dict[object, KernelSource], launch: _Launcher, shared_bytes: int
) -> list[Command[KernelSource]]:
    bodies = program.bodies[call.kernel]
    scan = row_scan(call.kernel, bodies, shared_bytes)
    if scan is None:
        return [_control_flow(program, call, known, shared_bytes)]
    flow = _control_flow(program, call, known, shared_bytes)
    found: list[Command[KernelSource]] = []
    for made, _ in _in_order(scan.before):
        slots = [outer_slot(flow, scan.body.memory.slots[node]) for node in made.arguments]
        found.append(launch(made, slots, False, (call,)))
    made, places = write_row_scan(scan, flow)
    return [*found, launch(made, places, False, (call,))]


def _control_flow(
    program: KernelProgram, call: Call, known: dict[object, KernelSource], shared_bytes: int
) -> ControlFlow[KernelSource]:
    kernel, slots = call.kernel, program.memory.slots
    bodies = program.bodies[kernel]
    scratch = program.memory.scratch[kernel]
    buffers = {
        name: Slot(scratch.base, scratch.offset + buffer.offset, buffer.nbytes)
        for name, buffer in control_buffers(kernel, bodies).items()
    }
    numbers = {n.param("index"): n for n in kernel.outputs if n.op is ITEM}
    node = anchor_of(kernel)
    outputs = tuple(slots[numbers[i]] if i in numbers else None for i in range(len(node.outputs)))
    inside = tuple(_commands(body, known, _loose(kernel, body), shared_bytes) for body in bodies)
    inputs, sizes = tuple(map(program.viewed, kernel.views)), tuple(map(nbytes, node.inputs))
    given = {name: node.param(name) for name in LOOP_PARAMS if name in node.op.params}
    flow = ControlFlow(
        node.op.name,
        inside,
        inputs,
        outputs,
        buffers,
        sizes,
        in_place=tuple(bodies[-1].updates),
        calls=(call,),
        **given,
    )
    if "sequences" not in node.op.params:
        return flow
    begin, end = flow.carried, flow.carried + flow.sequences
    steps = [size // max(1, flow.length) if begin <= i < end else size for i, size in enumerate(sizes)]
    return replace(flow, sizes=tuple(steps), results=tuple(map(nbytes, node.param("body").outputs)))


def _loose(kernel: Kernel, body: KernelProgram) -> frozenset[int]:
    """The inputs of a body may be elements or slices of longer tensors, which are not aligned."""
    first = len(kernel.views) - len(body.graph.inputs)  # the condition of a `cond` is not passed to its branches
    offsets = [v.offset * v.base.dtype.itemsize for v in kernel.views[first:]]
    given, made = body.graph.inputs, body.graph.outputs
    parts = [nbytes(node) % ALIGNED or offset % ALIGNED for node, offset in zip(given, offsets, strict=True)]
    parts += [nbytes(node) % ALIGNED for node in made]
    return frozenset(FRAME_RESERVED + i for i, rest in enumerate(parts) if rest)


def _is_library(call: Call) -> bool:
    return call.phase is not None and call.phase.symbol == "library"


def _is_collective(call: Call) -> bool:
    return call.phase is not None and call.phase.symbol == collectives.SYMBOL


def _is_alone(call: Call) -> bool:
    """Whether it is no kernel of ours."""
    return call.kind == "control" or _is_library(call) or _is_collective(call)


def _independent_groups(calls: Sequence[Call]) -> list[list[Call]]:
    """Calls grouped so that those of a group are independent."""
    groups: list[list[Call]] = []
    for call in calls:
        last = groups[-1][0] if groups else call
        apart = _is_alone(call) or _is_alone(last) or (last.kind == "copy") != (call.kind == "copy")
        if not groups or call.barrier or apart or (last.once, last.beside) != (call.once, call.beside):
            groups.append([])
        groups[-1].append(call)
    return groups


_Made = tuple[KernelSource, tuple[Call, ...]]


def _in_order(calls: Sequence[Call]) -> Iterator[_Made]:
    """The kernels of calls that do not wait for each other: a call's second waits for its first, and so on."""
    for sources in zip_longest(*map(_sources, calls)):
        made = [(source, (call,)) for source, call in zip(sources, calls, strict=True) if source is not None]
        yield from (m for m in made if m[0].programs > thresholds.gpu_small)
        yield from _joined([m for m in made if m[0].programs <= thresholds.gpu_small])


def _joined(made: Sequence[_Made]) -> Iterator[_Made]:
    """Small kernels as one launch, since a launch takes longer than they do. Large ones are not merged, because merged kernels share the
    largest number of registers. Kernels of many warps and of few are not merged: all would run with many.
    """
    groups: list[list[_Made]] = []
    for one in sorted(made, key=lambda m: m[0].warps):
        if groups and _goes_with([source for source, _ in groups[-1]], one[0]):
            groups[-1].append(one)
        else:
            groups.append([one])
    for group in groups:
        yield joined("kernel", [source for source, _ in group]), tuple(call for _, calls in group for call in calls)


def _goes_with(group: Sequence[KernelSource], one: KernelSource) -> bool:
    every = [*group, one]
    return (
        len(every) <= thresholds.gpu_joined
        and sum(source.shared for source in every) <= MOST_SHARED
        and sum(len(source.body) for source in every) <= thresholds.gpu_joined_text
        and one.warps <= 2 * group[0].warps
    )


def _sources(call: Call) -> list[KernelSource]:
    if call.kind == "plan" and call.kernel.anchor is not None and call.kernel.anchor.op.own_kernels:
        return [special.write(call.kernel, call.phase)]
    if call.kind == "plan":
        return [write(call.kernel, call.phase)]
    return write_kernels("kernel", ready_nest(call.kernel, LANES))
