"""The latency of saved programs, measured so that they can be compared: their calls take turns, so that other work on the machine meets all of them.

Their energy is modelled: see weft/insight/energy_model.py.
"""

from __future__ import annotations

import time
from typing import Any

from ...graph.text import parse_type
from ...insight.profile import profile
from ...ops.creation import zeros
from ...saved.program import Program
from ...tensor import Tensor
from ...tracing.jit import Jit, jit
from ..device import on

CALLS = 30


def latencies(*programs: Program, device: str | None = None) -> list[float] | None:
    """Milliseconds of a call of each with one example, the fastest of some; None for networks with inputs of several free sizes."""
    with on(device):
        calls = [call for call in map(_call, programs) if call is not None]
        if len(calls) < len(programs):
            return None
        best = [float("inf")] * len(calls)
        for _ in range(CALLS):
            for i, (function, x) in enumerate(calls):
                begun = time.perf_counter()
                function(x).numpy()
                best[i] = min(best[i], 1000 * (time.perf_counter() - begun))
    return [round(one, 4) for one in best]


def modelled_energy(program: Program, device: str | None = None) -> float | None:
    """Joules of a call with one example, modelled; None as for latencies."""
    with on(device):
        call = _call(program)
        return None if call is None else float(profile(*call, repeats=1).total.joules)


def _call(program: Program) -> tuple[Jit[Any], Tensor] | None:
    types = program.eval().argument_types()
    if len(types) != 1 or set(program.manifest.dimensions) - {"batch"}:
        return None
    kind = parse_type(types[0], {"batch": 1})
    return jit(program), zeros(kind.shape, dtype=kind.dtype)
