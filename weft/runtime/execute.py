"""From nodes to values: collect what is not computed yet, hand it to its device, remember what is wanted."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Sequence

import numpy as np

from ..errors import UserError
from ..graph.node import PLACEHOLDER, VARIABLE, Node, Op, Type, dependencies, make, toposort
from ..knobs import knobs
from .device import Buffer, Device, Program, device


def evaluate(roots: Iterable[Node]) -> None:
    """Give the roots their values.

    Whatever a live tensor names and is computed on the way keeps its value too; everything else is forgotten.
    """
    roots = [root for root in roots if root.value is None]
    for home in {root.device or device() for root in roots}:
        _run([root for root in roots if (root.device or device()) is home], home)


def _refuse_abstract(order: list[Node]) -> None:
    for node in order:
        if node.op is PLACEHOLDER:
            raise UserError(
                "evaluate",
                "this tensor stands for a value that is not known while a function is being traced. "
                "Return it from the function, or decide with weft.where, weft.cond or weft.while_loop.",
            )


def _run(roots: list[Node], home: Device) -> None:
    """Compute roots that live on one device."""

    def missing(node: Node) -> Sequence[Node]:
        # A node that may live anywhere can have been computed elsewhere; then it is computed here again.
        inputs = dependencies(node)
        for i in inputs:
            if i.value is not None and i.value.device is home:
                return [i for i in inputs if i.value is None or i.value.device is not home]
        return inputs

    start = time.perf_counter()
    order = toposort(roots, missing)
    if any(root.abstract for root in roots):
        _refuse_abstract(order)
    moves = [node for node in order if node.op is TRANSFER]
    if moves:
        for node in moves:
            node.value = device(node.params[0]).put(fetch(node.inputs[0]), node.dtype)
        order = toposort([root for root in roots if root.value is None], missing)
    asked = set(roots)
    wanted = [node for node in order if node.value is None and not node.outputs and (node.holders or node in asked)]
    for node, value in zip(wanted, home.run(Program(order, wanted)), strict=True):
        node.value = value
        if node.op is VARIABLE:
            node.params[0].fill(value)
    if knobs.debug:
        elapsed = 1e3 * (time.perf_counter() - start)
        print(f"weft: {home} ran {len(order)} nodes, kept {len(wanted)}, {elapsed:.2f} ms", file=sys.stderr)


def fetch(node: Node) -> np.ndarray:
    """The value of a node as an array that must not be written to."""
    if node.value is None:
        evaluate([node])
    assert isinstance(node.value, Buffer)
    return node.value.device.get(node.value)


def transfer(node: Node, target: Device) -> Node:
    """The same value on another device."""
    if (node.device or device()) is target:
        return node
    moved = make(TRANSFER, (node,), (target.name,))
    moved.device = target
    return moved


def _transfer_infer(x: Node, target: str) -> Type:
    return x.type


# The vjp is entered where tensors are known (weft/tensor.py).
TRANSFER = Op("transfer", "control", _transfer_infer, lambda x, target: x, None, ("target",), 1)
