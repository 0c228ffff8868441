"""The latency of saved programs, measured so that they can be compared: their calls take turns, so that other work on the machine meets all of them."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from ...graph.text import parse_type
from ...ops.creation import zeros
from ...saved.program import Program
from ...tracing.jit import jit
from ..device import on

CALLS = 30


def latencies(*programs: Program, device: str | None = None) -> list[float] | None:
    """Milliseconds of a call of each with one example, the fastest of some; None for networks with inputs of several free sizes."""
    with on(device):
        calls = [_call(program) for program in programs]
        if None in calls:
            return None
        best = [float("inf")] * len(calls)
        for _ in range(CALLS):
            for i, call in enumerate(calls):
                begun = time.perf_counter()
                call().numpy()  # type: ignore[misc]
                best[i] = min(best[i], 1000 * (time.perf_counter() - begun))
    return [round(one, 4) for one in best]


def _call(program: Program) -> Callable[[], Any] | None:
    types = program.eval().argument_types()
    if len(types) != 1 or set(program.manifest.dimensions) - {"batch"}:
        return None
    kind = parse_type(types[0], {"batch": 1})
    call, x = jit(program), zeros(kind.shape, dtype=kind.dtype)
    return lambda: call(x)
