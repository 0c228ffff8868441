"""Descriptions of calls for people: a name, the source lines it comes from, and why its results are stored."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from math import prod

from ...errors import Scope, Source
from ...graph.graph import Graph
from ...graph.node import Node, Op
from ...records import dataclass
from ..ir.conv_shape import described
from ..ir.kernel import Kernel, is_control
from ..ir.program import FRAME_RESERVED, Call, KernelProgram
from ..ir.storage import ARENA, nbytes
from .cost_model import side_phase, step_cost, times, work

MOST_OPS = 4  # that a name lists


def name(program: KernelProgram, call: Call) -> str:
    """The name of a call: what it computes."""
    return _name(program, call) + (" (again)" if call.kernel in program.recomputed else "")


def _name(program: KernelProgram, call: Call) -> str:
    kernel = call.kernel
    if call.kind == "copy":
        into_state = FRAME_RESERVED <= call.writes[0].base < FRAME_RESERVED + len(program.graph.inputs)
        return f"copy of {_bytes(call.reads[0].nbytes)}" + (" to state" if into_state else "")
    if call.kind == "control":
        return _control(program, kernel)
    if call.kind == "plan":
        return _plan(program, call)
    return _loops(program, kernel)


def sources(kernel: Kernel) -> list[Source]:
    """The user's source lines that a kernel comes from, the most expensive first."""
    return source_lines(_parts(kernel))


def source_lines(parts: Iterable[tuple[Node, float]]) -> list[Source]:
    """The user's source lines of nodes with these costs, the most expensive first."""
    weight: dict[tuple[str, int], float] = defaultdict(float)
    found: dict[tuple[str, int], Source] = {}
    for node, cost in parts:
        if node.source:
            line = (node.source.file, node.source.line)
            weight[line] += cost
            found.setdefault(line, node.source)
    return [found[line] for line in sorted(weight, key=lambda l: -weight[l])]


def scopes(kernel: Kernel, program: KernelProgram | None = None) -> dict[Scope, float]:
    """The layers that a kernel computes, and the share of its work that each has.

    With its program, those of control flow are the layers that its bodies call.
    """
    if program is not None and kernel in program.bodies and (inside := _body_scopes(kernel, program)):
        return inside
    return scope_shares(_parts(kernel))


def scope_shares(parts: Iterable[tuple[Node, float]]) -> dict[Scope, float]:
    """The layers of nodes with these costs, and the share of the cost that each has."""
    found: dict[Scope, float] = defaultdict(float)
    for node, cost in parts:
        found[_scope(node)] += cost
    return _shares(found) or {Scope(): 1.0}


def _scope(node: Node) -> Scope:
    return (None if node.source is None else node.source.scope) or Scope()


def _shares(found: Mapping[Scope, float]) -> dict[Scope, float]:
    total = sum(found.values())
    return {scope: cost / total for scope, cost in found.items()} if total else {}


def _body_scopes(kernel: Kernel, program: KernelProgram) -> dict[Scope, float]:
    """The layers in the body of control flow, by their operations; none where it is not known which layers they are.

    That is so for branches, one of which runs. Equal bodies are one object, whose names are those of the layer that was traced last; those of the others
    differ in the path of the layer that has the loop, or else cannot be told.
    """
    assert kernel.anchor is not None
    found = _operations(program.bodies[kernel])
    outer = _scope(kernel.anchor)
    callers = [_scope(one).path for one in _same_bodies(kernel.anchor, program)]
    homes = [path for path in callers if all(_is_within(scope.path, path) for scope in found)]
    if kernel.anchor.op.name == "cond" or not homes or len(set(callers)) < len(callers):
        return {}
    moved: dict[Scope, float] = defaultdict(float)
    for scope, count in found.items():
        path = f"{outer.path}.{scope.path.removeprefix(homes[0]).lstrip('.')}".strip(".")
        phase = scope.phase if outer.phase == "forward" else outer.phase
        moved[scope._replace(path=path, phase=phase)] += count
    return _shares(moved)


def _operations(bodies: Iterable[KernelProgram]) -> dict[Scope, float]:
    """The operations of each layer in programs."""
    found: dict[Scope, float] = defaultdict(float)
    for body in bodies:
        for call in body.calls:
            flops = work(body, call).flops
            for scope, share in scopes(call.kernel, body).items() if flops else ():
                found[scope] += share * flops
    return found


def _same_bodies(anchor: Node, program: KernelProgram) -> list[Node]:
    """The control flow of a program that has the bodies of this one, with itself."""
    anchors = [kernel.anchor for kernel in program.kernels if kernel.anchor is not None]
    return [one for one in anchors if one.op is anchor.op and _bodies(one) == _bodies(anchor)]


def _bodies(anchor: Node) -> list[Graph]:
    return [param for param in anchor.params if isinstance(param, Graph)]


def _is_within(path: str, outer: str) -> bool:
    return not outer or path == outer or path.startswith(f"{outer}.")


def main_scope(kernel: Kernel) -> Scope:
    """The layer and phase with most of a kernel's work."""
    shares = scopes(kernel)
    return max(shares, key=shares.__getitem__)


def _parts(kernel: Kernel) -> Iterator[tuple[Node, float]]:
    """The nodes that a kernel computes, and the approximate cost of each."""
    if kernel.anchor is not None:
        yield kernel.anchor, 1e18  # the epilogue costs less
    for phase, body in zip(kernel.nest.phases if kernel.nest is not None else (), kernel.bodies, strict=True):
        for step in body.steps:
            if step.kind not in ("load", "row", "const"):
                yield step.node, step_cost(step) * times(step.place) + 1e-3
        for reduction in phase.reductions:
            yield reduction.node, float(prod(reduction.factors[0][0].shape))


# --- names --------------------------------------------------------------------------------------------------------------------


def _bytes(n: int) -> str:
    for unit, size in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if n >= size:
            return f"{n / size:.1f} {unit}"
    return f"{n} bytes"


def _shape(shape: Iterable[int]) -> str:
    return "x".join(map(str, shape)) or "1"


def _control(program: KernelProgram, kernel: Kernel) -> str:
    node = kernel.anchor
    assert node is not None
    kernels = " and ".join(str(len(body.kernels)) for body in program.bodies[kernel])
    title = f"scan of {node.param('length')} steps" if node.op.name == "scan" else _label(node.op)
    return f"{title} ({kernels} kernels)"


def _plan(program: KernelProgram, call: Call) -> str:
    kernel, plan = call.kernel, program.plans[call.kernel]
    anchor = kernel.anchor
    assert anchor is not None
    side = side_phase(call.phase.symbol)
    if side is not None and call.phase is not plan.phases[-1]:
        return f"{_anchor(anchor, plan.name)} ({side})"
    title = _anchor(anchor, plan.name) + (f" ({side})" if side is not None else "")
    extras = _epilogue(program, kernel) if "epilogue" in call.phase.arguments else []
    return " + ".join([title, *extras])


def _anchor(anchor: Node, algorithm: str) -> str:
    if anchor.op.kernel == "contraction":
        batch, m, n = anchor.shape
        several = f"{batch} of " if batch != 1 else ""
        return f"matmul {several}{m}x{n}x{anchor.inputs[0].shape[2]}"
    if anchor.op.kernel == "convolution":
        return f"{_label(anchor.op)} {_convolution(anchor)} {algorithm}"
    return f"{anchor.op.name} {_shape(anchor.inputs[0].shape if anchor.outputs else anchor.shape)}"


def _convolution(anchor: Node) -> str:
    """The filter and what a convolution maps: `3x3 64->128 stride 2x2`."""
    _, conv = described(anchor)
    text = f"{_shape(conv.kernel)} {conv.channels}->{conv.filters}"
    text += f" stride {_shape(conv.stride)}" if any(s != 1 for s in conv.stride) else ""
    return text + (f" groups {conv.groups}" if conv.groups != 1 else "")


def _epilogue(program: KernelProgram, kernel: Kernel) -> list[str]:
    replaced = updated(program, kernel)
    if kernel.nest is None:
        return []
    if replaced and len(replaced) == len(kernel.outputs):
        return [_update(replaced)]
    return [*_ops(kernel), *([_update(replaced)] if replaced else [])]


def updated(program: KernelProgram, kernel: Kernel) -> list[Node]:
    """The state that a kernel replaces in place."""
    state = range(FRAME_RESERVED, FRAME_RESERVED + len(program.graph.inputs))
    return [n for n in kernel.outputs if program.memory.slots[n].base in state]


def _update(nodes: Sequence[Node]) -> str:
    return "update" if len(nodes) == 1 else f"update of {len(nodes)} tensors"


def _ops(kernel: Kernel) -> list[str]:
    """What a kernel does with each element: the names of ops, none twice, in order."""
    steps = [s.node.op for b in kernel.bodies for s in b.steps if s.kind in ("op", "window", "bits")]
    telling = [op for op in steps if op.label != ""] or steps
    ops = [_label(op) for op in dict.fromkeys(telling)]
    return ops if len(ops) <= MOST_OPS else [*ops[: MOST_OPS - 1], f"{len(ops) - MOST_OPS + 1} more"]


def _label(op: Op) -> str:
    return op.label or op.name.replace("_", " ").strip()


def _loops(program: KernelProgram, kernel: Kernel) -> str:
    assert kernel.nest is not None
    replaced = updated(program, kernel)
    extras = [_update(replaced)] if replaced else []
    if kernel.nest.rows:
        rows, length = _row_shape(kernel)
        return " + ".join([f"{_reductions(kernel)} rows {rows}x{length}", *extras])
    shape = _shape(max((o.shape for o in kernel.outputs), key=prod))
    if replaced and len(replaced) == len(kernel.outputs):
        several = f"update of {len(replaced)} tensor{'s' if len(replaced) > 1 else ''}"
        return f"{several}, {_shape((sum(prod(n.shape) for n in replaced),))} elements"
    return " + ".join([f"{' + '.join(_ops(kernel) or _moves(kernel))} {shape}", *extras])


def _reductions(kernel: Kernel) -> str:
    """The well-known functions that are made of reductions, or the reductions by name."""
    assert kernel.nest is not None
    rows = [n.op for n in kernel.nest.rows]
    kinds = [op.name for op in rows]
    ops = {s.node.op.name for b in kernel.bodies for s in b.steps if s.kind == "op"}
    if {"max", "sum"} <= set(kinds) and "exp" in ops:
        return "log softmax" if "log" in ops else "softmax"
    if kinds.count("sum") > 1 and ops & {"sqrt", "rsqrt"}:
        return "normalise"
    return " + ".join(dict.fromkeys(map(_label, rows)))


def _row_shape(kernel: Kernel) -> tuple[int, int]:
    """How many rows there are, and the length of the longest reduction."""
    assert kernel.nest is not None
    lengths = [prod(l.size for l in r.loops) for p in kernel.nest.phases for r in p.reductions]
    return prod(l.size for l in kernel.nest.outer), max(lengths)


def _moves(kernel: Kernel) -> list[str]:
    moved = dict.fromkeys(
        s.node.op.name for b in kernel.bodies for s in b.steps if s.kind in ("same", "guard", "choose", "iota")
    )
    telling = [m for m in moved if m not in ("reshape", "expand")]
    return telling or ["fill" if not kernel.reads else "copy"]


# --- why kernels end ----------------------------------------------------------------------------------------------------------


def reasons(program: KernelProgram) -> dict[Kernel, str]:
    """For each kernel, why its results are stored instead of being fused into the kernels that read them."""
    readers: dict[Node, list[Kernel]] = defaultdict(list)
    for kernel in program.kernels:
        for node in kernel.reads:
            readers[node].append(kernel)
    return {k: ", ".join(_reasons(program, k, readers)) for k in program.kernels}


def _reasons(program: KernelProgram, kernel: Kernel, readers: Mapping[Node, Sequence[Kernel]]) -> list[str]:
    state = set(updated(program, kernel))
    found = Counter(_reason(program, node, node in state, readers[node]) for node in kernel.outputs)
    return [reason for reason, _ in found.most_common(2)]


def _reason(program: KernelProgram, node: Node, is_state: bool, readers: Sequence[Kernel]) -> str:
    if node in program.graph.outputs:
        return "new state" if is_state else "result"
    for reader in readers:
        if reader.anchor is not None and any(v.base is node for v in reader.views):
            return f"operand of a {_kind(reader.anchor)}"
    if is_control(node):
        return "control flow"
    return f"read by {len(readers)} kernels" if len(readers) > 1 else "read in other rows"


def _kind(anchor: Node) -> str:
    if anchor.op.kernel == "contraction":
        return "matrix product"
    return "convolution" if anchor.op.kernel == "convolution" else _label(anchor.op)


# --- memory -------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Life:
    """The lifetime of a value in the arena: from the kernel that writes it to the last one that reads it."""

    type: str
    nbytes: int
    first: int
    last: int


def lives(program: KernelProgram) -> list[Life]:
    """The values that share the arena, the largest first."""
    found = [
        Life(str(node.type), nbytes(node), i, last)
        for (i, node), last in last_reads(program.kernels).items()
        if program.memory.slots[node].base == ARENA
    ]
    return sorted(found, key=lambda life: -life.nbytes)


def last_reads(kernels: Sequence[Kernel]) -> dict[tuple[int, Node], int]:
    """For each kernel, by number, and each of its results the number of the last kernel that reads it, before it is computed again."""
    found: dict[tuple[int, Node], int] = {}
    last: dict[Node, int] = {}
    for i, kernel in reversed(list(enumerate(kernels))):
        found |= {(i, node): last.pop(node, i) for node in kernel.outputs}
        last |= {node: i for node in kernel.reads if node not in last}
    return found


def live_bytes(program: KernelProgram) -> dict[Kernel, int]:
    """The bytes of the arena that are in use while each kernel runs. A value that is written over another one counts in its place."""
    kernels, slots = program.kernels, program.memory.slots
    last = last_reads(kernels)
    change = [0] * (len(kernels) + 1)
    for i, kernel in enumerate(kernels):
        for node in kernel.outputs:
            if slots[node].base == ARENA:
                end = last[i, node]
                is_replaced = end > i and any(slots[other] == slots[node] for other in kernels[end].outputs)
                change[i] += nbytes(node)
                change[end if is_replaced else end + 1] -= nbytes(node)
    return dict(zip(kernels, accumulate(change), strict=False))


__all__ = ["Life", "last_reads", "live_bytes", "lives", "name", "reasons", "scopes", "sources", "updated"]
