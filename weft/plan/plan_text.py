"""A plan as text: how the best split scales, all splits of the largest number of ranks, and why one of them is best."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from ..insight.memory_text import size_text
from ..insight.profile_text import duration, table
from ..report.axes import short
from .published import ScalingCheck
from .step_time import StepPrediction

OTHERS = 6  # splits compared with the best one


class PrintablePlan(Protocol):
    """The attributes of a plan that the text needs: see `ScalingPlan`."""

    @property
    def subject(self) -> str: ...
    @property
    def title(self) -> str: ...
    @property
    def overlap(self) -> bool: ...
    @property
    def batch(self) -> float: ...
    @property
    def fixed_total(self) -> bool: ...
    @property
    def parameters(self) -> float: ...
    @property
    def ranks(self) -> list[int]: ...
    @property
    def limits(self) -> dict[int, float | None]: ...
    def fits(self, row: StepPrediction) -> bool: ...
    def of(self, ranks: int) -> list[StepPrediction]: ...
    def best(self, ranks: int) -> StepPrediction: ...


def plan_text(plan: PrintablePlan) -> str:
    """The text of the whole plan."""
    most = plan.ranks[-1]
    examples = (
        f"{plan.batch:g} example{'' if plan.batch == 1 else 's'} {'in total' if plan.fixed_total else 'per rank'}"
    )
    head = f"{plan.subject + ' on ' if plan.subject else ''}{plan.title}; {examples}, {size_text(plan.parameters)} of parameters; all figures are predicted"
    scaling = [plan.best(n) for n in plan.ranks]
    parts = [head, f"best split by number of ranks\n{_rows(plan, scaling)}"]
    if len(plan.of(most)) > 1:
        parts.append(f"all splits over {most:,} ranks\n{_rows(plan, plan.of(most))}")
    return "\n\n".join([*parts, explanation(plan)])


def _rows(plan: PrintablePlan, rows: Sequence[StepPrediction]) -> str:
    lines = [["ranks", "split", "step", "efficiency", "examples/s", "compute", "comm", "exposed", "bubble", "all-reduce", "memory"]]  # fmt: skip
    for row in rows:
        lines.append(
            [f"{row.split.ranks:,}", str(row.split), duration(row.seconds), f"{row.efficiency:.1%}", short(row.per_second)]
            + [_time(t) for t in (row.compute, row.communication, row.exposed, row.waiting)]
            + [row.algorithm or "-", size_text(row.memory.total) + ("" if plan.fits(row) else " (too much)")]
        )  # fmt: skip
    return table(lines, left=2, ragged=(9,))


def _time(seconds: float) -> str:
    return duration(seconds) if seconds > 0 else "-"


def explanation(plan: PrintablePlan) -> str:
    """Which split is best for the largest number of ranks, and why the others are not."""
    found = plan.of(plan.ranks[-1])
    best, others = found[0], found[1:]
    if best.split.ranks == 1:
        return "There is nothing to split with one rank."
    lines = [f"{best.split} is best: {_why(plan, best)}."]
    lines += [f"- {row.split}: {_why_not(plan, best, row)}." for row in others[:OTHERS]]
    return "\n".join(lines)


def _why(plan: PrintablePlan, best: StepPrediction) -> str:
    if not plan.fits(best):
        return f"no split fits in the memory of a rank, and this one needs the least ({size_text(best.memory.total)})"
    loss = {
        "exposed communication": best.exposed,
        "the pipeline bubble": best.waiting,
        "copies of gradients": best.copies,
        "slower kernels and fixed costs": best.compute + best.update - best.alone,
    }
    largest = max(loss, key=lambda name: loss[name])
    if best.efficiency > 0.995:
        return f"efficiency {best.efficiency:.1%}; " + _hidden(best)
    return f"efficiency {best.efficiency:.1%}, limited by {largest} ({duration(max(loss[largest], 1e-9))} of {duration(best.seconds)}); {_hidden(best)}"  # fmt: skip


def _hidden(row: StepPrediction) -> str:
    if not row.communication:
        return "no communication"
    hidden = 1 - row.exposed / row.communication
    return f"{duration(row.communication)} of communication, {hidden:.0%} of it overlapped with the backward pass"


def _why_not(plan: PrintablePlan, best: StepPrediction, row: StepPrediction) -> str:
    slower = row.seconds / best.seconds - 1
    memory = f"{size_text(row.memory.total)} per rank"
    if not plan.fits(row):
        return f"does not fit: {memory}, of {size_text(plan.limits[row.split.ranks] or 0)} available"
    if slower < 0.01:
        return f"as fast, but more complex; {memory} instead of {size_text(best.memory.total)}"
    causes = {
        "a larger pipeline bubble": row.waiting - best.waiting,
        "more exposed communication": row.exposed - best.exposed,
        "longer computation, in smaller or unequal pieces": row.compute - best.compute,
        "more copies and updates of parameters": row.copies + row.update - best.copies - best.update,
    }
    worst = max(causes, key=lambda name: causes[name])
    share = f"{slower:.0%} slower" if slower < 1 else f"{1 + slower:.1f} times as slow"
    return f"{share}: {worst} ({duration(max(causes[worst], 1e-9))}); {memory}"


def checks_text(checks: Sequence[ScalingCheck]) -> str:
    """Published efficiencies beside predicted ones."""
    lines = [["network", "cluster", "ranks", "published", "predicted", "all-reduce", "exposed"]]
    for check in checks:
        row, made = check.published, check.predicted
        lines.append(
            [row.network, row.cluster, str(row.ranks), f"{row.efficiency:.0%}", f"{made.efficiency:.1%}"]
            + [duration(made.communication), _time(made.exposed)]
        )
    reasons = [f"{check.published.network}: {check.reason}" for check in checks]
    return "\n".join([table(lines, left=2), *reasons, f"published: {checks[0].published.source}"])
