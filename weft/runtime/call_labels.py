"""Labels of a program's calls, for timelines: the name of the call, and the layer and phase with the largest share of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..compiler import planning
from ..timeline import CallLabel

if TYPE_CHECKING:
    from ..compiler.ir.program import Call, KernelProgram


def call_labels(program: KernelProgram) -> list[CallLabel]:
    """A label for every call of a program, in their order."""
    return [call_label(program, [call]) for call in program.calls]


def call_label(program: KernelProgram, calls: Sequence[Call]) -> CallLabel:
    """The label of calls that are merged into one."""
    main = calls[0]
    scope = planning.describe.main_scope(main.kernel)
    sources = planning.describe.sources(main.kernel)
    more = f" and {len(calls) - 1} more" if len(calls) > 1 else ""
    work = [planning.cost_model.work(program, call) for call in calls]
    facts = {
        "layer": scope.label,
        "class": scope.kind,
        "phase": scope.phase,
        "FLOP": float(sum(one.flops for one in work)),
        "bytes": float(sum(one.nbytes for one in work)),
        "source": str(sources[0]) if sources else "",
    }
    return CallLabel(planning.describe.name(program, main) + more, scope.label, scope.phase, facts)
