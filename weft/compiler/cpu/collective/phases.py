"""The calls of collectives: one native function that all threads call, whatever connects the processes."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any
from zlib import crc32

from ....graph.node import Op, Type
from ...ir.plan import PlanPhase

ARGUMENTS = ("x0", "y", "count", "detail", "axis", "tag", "status", "tid", "threads")
_BY_PARTS = ("all_gather", "all_to_all")  # whose results have a part from each process


def phase(op: Op, params: Sequence[Any], result: Type, number: int | None = None) -> PlanPhase:
    """The call of the native function. Its symbol contains everything that its code depends on; its tag identifies the collective.

    `number`: of the operand and result, if the op has several.
    """
    known = dict(zip(op.params, params, strict=True))
    mesh = known["mesh"]
    size = dict(mesh)[known["axis"]]
    numbers = {
        "count": prod(result.shape) // (size if op.name in _BY_PARTS else 1),
        "detail": known.get("detail", 0),
        "axis": [name for name, _ in mesh].index(known["axis"]),
        "tag": crc32(f"{op.name} {tuple(params)} {result} {number}".encode()) & 0xFFFF,
    }
    combine = known.get("combine", "none")
    dtype = f"int{max(8, result.dtype.bits)}" if combine == "none" else result.dtype.name  # what is only moved
    symbol = f"collective.{op.name}.{dtype}.{combine}.{size}"
    x, y = ("x0", "y") if number is None else (f"x{number}", f"y{number}")
    known_names = {"x0": x if op.arity else y, "y": y, **numbers}
    reads = frozenset({x} if op.arity else ())
    return PlanPhase(symbol, tuple(known_names.get(name, name) for name in ARGUMENTS), reads, frozenset({y}))
