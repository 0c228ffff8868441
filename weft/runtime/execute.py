"""From nodes to values: collect nodes without a value, run them on their device, and keep the values that may be read again."""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Iterable, Sequence

import numpy as np

from ..errors import UserError
from ..graph.node import CONST, ITEM, PLACEHOLDER, VARIABLE, Node, Op, dependencies, existing, make, toposort
from ..knobs import knobs
from .device import Buffer, Device, NodeProgram, device


def evaluate(roots: Iterable[Node]) -> None:
    """Compute the values of the roots. Intermediate values that may be read again are kept; all others are freed."""
    roots = [root for root in roots if _missing(root)]
    for home in {root.device or device() for root in roots}:
        _run([root for root in roots if (root.device or device()) is home], home)


def _missing(node: Node) -> bool:
    """Whether a node has no value, or one on a device that is no longer the default."""
    return node.value is None or (node.device is None and node.value.device is not device())


def _refuse_abstract(order: list[Node]) -> None:
    for node in order:
        if node.op is PLACEHOLDER:
            raise UserError(
                "evaluate",
                "this tensor stands for a value that is not known while a function is being traced. "
                "Return it from the function, or decide with weft.where, weft.cond or weft.while_loop. "
                "An argument that the function must know, such as a count, is named in weft.jit(..., static=...).",
            )


def _run(roots: list[Node], home: Device) -> None:
    """Compute roots that are all on one device."""

    def missing(node: Node) -> Sequence[Node]:
        # A node that belongs to no device may have been computed on another one; then it is computed again.
        inputs = dependencies(node)
        for i in inputs:
            if i.value is not None:
                return [i for i in inputs if i.value is None or (i.device is None and i.value.device is not home)]
        return inputs

    start = time.perf_counter()
    order = toposort(roots, missing)
    if any(root.abstract for root in roots):
        _refuse_abstract(order)
    moves = [node for node in order if node.op is TRANSFER]
    if moves:
        for node in moves:
            node.value = _moved(node.inputs[0], device(node.param("target")))
        order = toposort([root for root in roots if _missing(root)], missing)
    siblings = _held_siblings(order)
    if siblings:
        order = toposort([*roots, *siblings], missing)
    order = _without_streams(order, home)
    wanted = _kept(order, set(roots))
    for node, value in zip(wanted, home.run(NodeProgram(order, wanted)), strict=True):
        node.value = value
        if node.op is VARIABLE:
            node.param("cell").fill(value)
        if node.outputs:
            _assign_items(node, value)
    if knobs.debug:
        elapsed = 1e3 * (time.perf_counter() - start)
        print(f"weft: {home} ran {len(order)} nodes, kept {len(wanted)}, {elapsed:.2f} ms", file=sys.stderr)


def _without_streams(order: list[Node], home: Device) -> list[Node]:
    """The nodes without the keys and positions of random streams, which are evaluated here: as constants, they would make every draw a new
    program."""
    draws = [node for node in order if node.op.kind == "random"]
    numbers = {i for node in draws for i in node.inputs if i.op is CONST}
    for node in numbers:
        node.value = home.put(np.asarray(node.params[0], node.dtype.numpy), node.dtype)
    return [node for node in order if node not in numbers] if numbers else order


def _held_siblings(order: Sequence[Node]) -> list[Node]:
    """Other results of ops with several results, if tensors refer to them: they are computed together."""
    several = [node for node in order if node.outputs and not _is_kept_whole(node)]
    parts = [existing(ITEM, (node,), (i,)) for node in several for i in range(len(node.outputs))]
    return [part for part in parts if part is not None and part.holders]


def _assign_items(node: Node, values: Buffer) -> None:
    """Assign the values of a node with several results to the items that tensors refer to."""
    for index, kind in enumerate(node.outputs):
        part = existing(ITEM, (node,), (index,))
        if part is not None and part.holders:
            content = values.content[index] if values.content is not None else None
            part.value = Buffer(values.device, kind.shape, kind.dtype, content)


def _kept(order: Sequence[Node], roots: set[Node]) -> list[Node]:
    """The nodes whose values may be read again: a tensor refers to them, or a live node outside of this run uses them.

    Constants that no tensor refers to are recomputed: all graphs share them, so keeping those that other graphs use would make every run a
    new program.
    """
    uses = Counter(i for node in order for i in node.inputs)
    return [
        n for n in order if n.holders or n in roots or _is_kept_whole(n) or (n.users > uses[n] and n.op is not CONST)
    ]


def _is_kept_whole(node: Node) -> bool:
    """Whether all results of a node are kept: those of control flow, which is expensive to run again."""
    return bool(node.outputs) and node.op.kind == "control"


def fetch(node: Node) -> np.ndarray:
    """The value of a node as an array that must not be written to."""
    if _missing(node):
        evaluate([node])
    assert isinstance(node.value, Buffer)
    return node.value.device.get(node.value)


def _moved(node: Node, target: Device) -> Buffer:
    """The value of a node on a device. A node without a value that belongs to no device is computed on that one."""
    if node.value is None and node.device is None:
        _run([node], target)
    if isinstance(node.value, Buffer) and node.value.device is target:
        return node.value
    return target.put(fetch(node), node.dtype)


def transfer(node: Node, target: Device) -> Node:
    """The same value on another device."""
    if node.device is target:
        return node
    return make(TRANSFER, (node,), (target.name,))


TRANSFER = Op(
    "transfer", "control", lambda x, target: x.type, lambda x, target: x,
    lambda g, y, x, target: (g.to_device(x.device),), params=("target",), arity=1, home=device,
)  # fmt: skip
